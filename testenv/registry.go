package testenv

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cuelabs.dev/go/oci/ociregistry/ocimem"
	"cuelabs.dev/go/oci/ociregistry/ociserver"
	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/sirupsen/logrus"
	"golang.org/x/crypto/bcrypt"

	"github.com/longshore-dev/longshore/testenv/memory"

	// What the configurations below name.
	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd"
	_ "github.com/distribution/distribution/v3/registry/auth/token"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

// Kind names a registry server and how it is set up.
type Kind string

// The kinds. The first four are CNCF distribution v3, which has no referrers API.
const (
	Distribution         Kind = "distribution"          // plain HTTP, no credentials
	DistributionTLS      Kind = "distribution-tls"      // HTTPS under a CA of its own
	DistributionHtpasswd Kind = "distribution-htpasswd" // basic authentication
	DistributionToken    Kind = "distribution-token"    // bearer tokens of a token server, for push and pull
	Referrers            Kind = "referrers"             // ociregistry: referrers API with filters, subject header
	Lax                  Kind = "lax"                   // go-containerregistry's: no check of manifests' digests on PUT, no open ranges, wrong artifact types
)

// Kinds lists all kinds, for tests that hold for each.
func Kinds() []Kind {
	return []Kind{Distribution, DistributionTLS, DistributionHtpasswd, DistributionToken, Referrers, Lax}
}

// RegistryServer is a real registry, in this process, with faults in front of it.
type RegistryServer struct {
	Kind     Kind
	Host     string // "127.0.0.1:port", the same for the server's life
	URL      string // with scheme, without path
	CAFile   string // PEM of its CA; "": plain HTTP
	CertFile string // client certificate and key, when [WithClientCert] asks for one
	KeyFile  string
	Username string // "": none needed
	Password string
	Faults   *Faults

	ca      *x509.CertPool
	tls     *tls.Config
	plain   bool
	network string
	handler http.Handler
	mu      sync.Mutex
	server  *http.Server
	done    chan struct{}
	close   func() error
}

// RegistryOption changes how a registry is set up.
type RegistryOption func(*registrySetup)

type registrySetup struct {
	tls        bool
	plain      bool
	clientCert bool
	storage    string
	address    string
	network    string
	sparse     bool
	dir        string
	user       string
	password   string
}

// WithCredentials sets user and password of a kind that asks for them.
func WithCredentials(user, password string) RegistryOption {
	return func(s *registrySetup) { s.user, s.password = user, password }
}

// WithTLS serves any kind over HTTPS.
func WithTLS() RegistryOption { return func(s *registrySetup) { s.tls = true } }

// WithPlainToo implies [WithTLS] and answers plain HTTP on the same port as well, as whoever sits on the way to a registry
// can: [Request.Plain] says what came without TLS.
func WithPlainToo() RegistryOption {
	return func(s *registrySetup) { s.tls, s.plain = true, true }
}

// WithClientCert asks clients for a certificate; it implies [WithTLS].
func WithClientCert() RegistryOption {
	return func(s *registrySetup) { s.tls, s.clientCert = true, true }
}

// WithSparseIndexes lets distribution take an index whose images are not all there, as its configuration may allow.
func WithSparseIndexes() RegistryOption { return func(s *registrySetup) { s.sparse = true } }

// WithStorage keeps the content of a distribution registry in a folder, so that another one can serve it later.
func WithStorage(dir string) RegistryOption { return func(s *registrySetup) { s.storage = dir } }

// WithAddress listens there instead of on a free port of 127.0.0.1.
func WithAddress(address string) RegistryOption {
	return func(s *registrySetup) { s.address = address }
}

// WithNetwork listens inside the network namespace with this path.
func WithNetwork(path string) RegistryOption {
	return func(s *registrySetup) { s.network = path }
}

// Registry starts a registry for one test.
func Registry(t testing.TB, kind Kind, opts ...RegistryOption) *RegistryServer {
	t.Helper()
	s, err := StartRegistry(t.TempDir(), kind, opts...)
	if err != nil {
		t.Fatalf("start registry %s: %v", kind, err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("stop registry %s: %v", kind, err)
		}
	})
	return s
}

// StartRegistry is the context-free form of [Registry]: dir takes certificates and keys, and the caller closes.
func StartRegistry(dir string, kind Kind, opts ...RegistryOption) (*RegistryServer, error) {
	setup := registrySetup{address: "127.0.0.1:0", dir: dir, tls: kind == DistributionTLS}
	for _, o := range opts {
		o(&setup)
	}
	l, err := In(setup.network, func() (net.Listener, error) { return net.Listen("tcp", setup.address) })
	if err != nil {
		return nil, err
	}
	s := &RegistryServer{Kind: kind, Host: l.Addr().String(), Faults: &Faults{}, plain: setup.plain, network: setup.network, close: func() error { return nil }}
	s.URL = "http://" + s.Host
	if setup.tls {
		s.URL = "https://" + s.Host
		err = s.useTLS(setup)
	}
	if err == nil {
		err = s.build(setup)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s.handler = s.Faults.Wrap(s.handler)
	s.serve(l)
	return s, nil
}

// Client is an HTTP client that trusts the registry's CA and shows the client certificate; it sends no credentials.
// The caller closes its idle connections.
func (s *RegistryServer) Client() *http.Client {
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.ca}}
	if s.CertFile != "" {
		tr.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			pair, err := tls.LoadX509KeyPair(s.CertFile, s.KeyFile)
			return &pair, err
		}
	}
	return &http.Client{Transport: tr}
}

// Reference is a reference on this registry: Host, "/", and what is given.
func (s *RegistryServer) Reference(repositoryAndTag string) string {
	return s.Host + "/" + strings.TrimPrefix(repositoryAndTag, "/")
}

// Down makes the registry unreachable: connections break, new ones are refused. Its content stays.
func (s *RegistryServer) Down() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server == nil {
		return
	}
	s.Faults.Clear() // nothing may hold a connection
	_ = s.server.Close()
	<-s.done
	s.server = nil
}

// Up ends Down, on the same port.
func (s *RegistryServer) Up() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		return nil
	}
	var l net.Listener
	// Another process may have the port for a moment, as the local end of a connection.
	err := Await(context.Background(), time.Minute, func() (err error) {
		l, err = In(s.network, func() (net.Listener, error) { return net.Listen("tcp", s.Host) })
		return err
	})
	if err == nil {
		s.serve(l)
	}
	return err
}

// Close stops the registry for good.
func (s *RegistryServer) Close() error {
	s.Down()
	return s.close()
}

// serve runs a server on l; Down waits for its goroutine.
func (s *RegistryServer) serve(l net.Listener) {
	server := &http.Server{Handler: s.handler, TLSConfig: s.tls, ErrorLog: log.New(io.Discard, "", 0)}
	done := make(chan struct{})
	s.server, s.done = server, done
	go func() {
		defer close(done)
		if s.plain {
			_ = server.Serve(&eitherListener{l, s.tls})
			return
		}
		if s.tls != nil {
			_ = server.ServeTLS(l, "", "")
			return
		}
		_ = server.Serve(l)
	}()
}

func (s *RegistryServer) useTLS(setup registrySetup) error {
	ca, err := newAuthority("longshore test registry")
	if err != nil {
		return err
	}
	names := []string{"127.0.0.1", "::1", "localhost"}
	if host, _, err := net.SplitHostPort(setup.address); err == nil && !slices.Contains(names, host) {
		names = append(names, host)
	}
	cert, err := ca.issue("registry", names...)
	if err != nil {
		return err
	}
	s.ca = ca.pool()
	s.CAFile = filepath.Join(setup.dir, "ca.pem")
	s.tls = &tls.Config{Certificates: []tls.Certificate{cert}}
	if setup.clientCert {
		s.tls.ClientAuth, s.tls.ClientCAs = tls.RequireAndVerifyClientCert, s.ca
		client, err := ca.issue("client")
		if err != nil {
			return err
		}
		s.CertFile, s.KeyFile = filepath.Join(setup.dir, "client.pem"), filepath.Join(setup.dir, "client.key")
		if err := writePair(client, s.CertFile, s.KeyFile); err != nil {
			return err
		}
	}
	return os.WriteFile(s.CAFile, ca.pem, 0o644)
}

// oneAtATime lets the requests of one upload wait for one another: ocimem sets the offset of an upload that is continued without a lock,
// also while it still reads what a client sent that has gone.
func oneAtATime(next http.Handler) http.Handler {
	var uploads sync.Map // by path
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/blobs/uploads/") && r.Method != http.MethodPost {
			upload, _ := uploads.LoadOrStore(r.URL.Path, new(sync.Mutex))
			upload.(*sync.Mutex).Lock()
			defer upload.(*sync.Mutex).Unlock()
		}
		next.ServeHTTP(w, r)
	})
}

func (s *RegistryServer) build(setup registrySetup) error {
	switch s.Kind {
	case Referrers:
		s.handler = oneAtATime(ociserver.New(ocimem.New(), &ociserver.Options{}))
		return nil
	case Lax:
		s.handler = registry.New(registry.Logger(log.New(io.Discard, "", 0)))
		return nil
	case Distribution, DistributionTLS:
		return s.distribution(setup, "")
	case DistributionHtpasswd:
		s.Username, s.Password = cmp.Or(setup.user, "robot"), cmp.Or(setup.password, "correct horse")
		hash, err := bcrypt.GenerateFromPassword([]byte(s.Password), bcrypt.MinCost)
		if err != nil {
			return err
		}
		file := filepath.Join(setup.dir, "htpasswd")
		if err := os.WriteFile(file, append([]byte(s.Username+":"), hash...), 0o600); err != nil {
			return err
		}
		return s.distribution(setup, fmt.Sprintf("auth:\n  htpasswd:\n    realm: longshore test\n    path: %q\n", file))
	case DistributionToken:
		s.Username, s.Password = cmp.Or(setup.user, "robot"), cmp.Or(setup.password, "correct horse")
		issuer, err := newTokenServer(s.Username, s.Password)
		if err != nil {
			return err
		}
		file := filepath.Join(setup.dir, "jwks.json")
		if err := os.WriteFile(file, issuer.keys(), 0o600); err != nil {
			return err
		}
		auth := fmt.Sprintf("auth:\n  token:\n    realm: %q\n    service: %q\n    issuer: %q\n    jwks: %q\n    signingalgorithms: [ES256]\n",
			s.URL+tokenPath, tokenService, tokenIssuer, file)
		if err := s.distribution(setup, auth); err != nil {
			return err
		}
		mux := http.NewServeMux()
		mux.Handle("/", s.handler)
		mux.Handle(tokenPath, issuer)
		s.handler = mux
		return nil
	}
	return fmt.Errorf("no registry is of kind %q", s.Kind)
}

// distribution builds a distribution registry; auth is a part of its configuration file.
func (s *RegistryServer) distribution(setup registrySetup, auth string) error {
	storage := "  " + memory.Driver + ": {}\n"
	if setup.storage != "" {
		storage = fmt.Sprintf("  filesystem: {rootdirectory: %q}\n", setup.storage)
	}
	text := "version: 0.1\nlog: {level: error}\nhttp: {secret: testenv}\nstorage:\n" + storage +
		"  delete: {enabled: true}\n  maintenance: {uploadpurging: {enabled: false}}\n" + auth
	if setup.sparse {
		text += "validation: {manifests: {indexes: {platforms: none}}}\n"
	}
	c, err := configuration.Parse(bytes.NewReader([]byte(text)))
	if err != nil {
		return err
	}
	logrus.SetOutput(io.Discard) // it takes no logger
	app := handlers.NewApp(context.Background(), c)
	s.handler, s.close = app, app.Shutdown
	return nil
}
