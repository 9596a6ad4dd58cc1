package registry

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/budget"
	"github.com/longshore-dev/longshore/registry/cache"
	"github.com/longshore-dev/longshore/registry/internal/auths"
	"github.com/longshore-dev/longshore/registry/internal/certsd"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

// Defaults of Options.
const (
	defaultConcurrency  = 3                // concurrent blobs, as oras-go
	defaultRetryBudget  = time.Minute      // all waits of one request together
	defaultStallTimeout = 60 * time.Second // a body with almost no data for so long is aborted and resumed
	defaultTagWait      = 120 * time.Millisecond
	defaultUserAgent    = "longshore"
)

// Options configure the access to registries. The zero value is strict: HTTPS with the system's roots, no credentials, no
// mirrors, and, without Getenv, no environment.
type Options struct {
	// PlainHTTP uses HTTP for every registry. Without it only PlainHTTPHosts, hosts with http:// in hosts.toml, and
	// loopback addresses without TLS settings of their own are accessed without TLS.
	PlainHTTP      bool
	PlainHTTPHosts []string // host[:port], as in references
	// LoopbackTLS uses HTTPS also for loopback addresses, unless one of these settings applies.
	LoopbackTLS bool

	SkipVerify        bool   // accept any server certificate
	CAFile            string // PEM; added to the system's roots
	LaterCAFile       string // like CAFile, but it need not be there yet
	CertFile, KeyFile string // client certificate, PEM; both or none

	// Username with Password, or Token (a registry bearer token), are sent to Host only; with an empty Host, to the registries for
	// which [Client.Open] was called. Never to a mirror, nor to a registry that only a file, a document or an image
	// reference names. They come before any file. The environment variables LONGSHORE_USERNAME, LONGSHORE_PASSWORD,
	// LONGSHORE_TOKEN and LONGSHORE_REGISTRY_HOST are the defaults.
	Host               string
	Username, Password string
	Token              string

	// AuthFile is a Docker config.json or podman auth.json that is read before (and written by Login instead of) the
	// files that Docker and podman use: REGISTRY_AUTH_FILE, $DOCKER_CONFIG/config.json, ~/.docker/config.json,
	// $XDG_RUNTIME_DIR/containers/auth.json, ~/.config/containers/auth.json.
	AuthFile string

	// CertsDir holds containerd's <host>/hosts.toml files: mirrors, CAs, client certificates; or the certificates alone, as
	// Docker names them: <host>/*.crt, NAME.cert with NAME.key. Empty: none.
	CertsDir string

	// Now is the clock for the validity of certificates; nil: the system's clock.
	Now func() time.Time
	// Date is called with the time that servers send, which is not authenticated. nil: not called.
	Date func(time.Time)
	// Mismatch is called when a mirror has sent wrong bytes: once for each mirror, and again if it has sent correct
	// bytes since, at most once an hour by Now (without Now: once). err names the mirror. It is called from many goroutines and must not block;
	// nil: not called.
	Mismatch func(repository string, err error)

	UserAgent    string
	Logger       *slog.Logger  // nil: silent
	Concurrency  int           // blobs moved at a time; 0: 3
	Requests     int           // concurrent requests to one server; 0: any number
	RetryBudget  time.Duration // all waits for retries of one request together; 0: one minute; negative: no retry
	TagWait      time.Duration // shortest wait of the writer of a shared tag before it checks that the tag was not replaced; 0: 120 ms, longer than others need between reading and setting it
	StallTimeout time.Duration // time with almost no data after which a body is resumed, and two thirds of the timeout of a response; also the timeout of a credential helper; 0: one minute

	// Uploads is a directory for the state of uploads, so that a later run continues uploads of a killed one; "": not
	// stored.
	Uploads cache.Folder

	// Budget limits the use of the link by all requests together; nil: no limit. Calls must use its context.
	Budget *budget.Budget

	// Getenv reads the environment (os.Getenv in programs). Nil: an empty environment: no HOME, no proxies.
	Getenv func(string) string
}

func (o Options) withDefaults() Options {
	if o.Getenv == nil {
		o.Getenv = func(string) string { return "" }
	}
	if o.Username == "" && o.Password == "" && o.Token == "" {
		o.Username, o.Password = o.Getenv("LONGSHORE_USERNAME"), o.Getenv("LONGSHORE_PASSWORD")
		if o.Username == "" {
			o.Token = o.Getenv("LONGSHORE_TOKEN")
		}
	}
	o.Host = cmp.Or(o.Host, o.Getenv("LONGSHORE_REGISTRY_HOST"))
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.TagWait <= 0 {
		o.TagWait = defaultTagWait
	}
	if o.Concurrency <= 0 {
		o.Concurrency = defaultConcurrency
	}
	o.RetryBudget = cmp.Or(o.RetryBudget, defaultRetryBudget)
	if o.StallTimeout <= 0 {
		o.StallTimeout = defaultStallTimeout
	}
	o.UserAgent = cmp.Or(o.UserAgent, defaultUserAgent)
	return o
}

func (o Options) check() error {
	switch {
	case o.Host != "" && checkHost(o.Host) != nil:
		return fault.WithHint(fmt.Errorf("registry options: the host that credentials are for is %q: %w", o.Host, fault.ErrInvalid),
			"a registry is named by its host and port, as in references: registry.example.com:5000")
	case (o.CertFile == "") != (o.KeyFile == ""):
		return fmt.Errorf("registry options: a client certificate needs both a certificate and a key file: %w", fault.ErrInvalid)
	case o.Token != "" && (o.Username != "" || o.Password != ""):
		return fmt.Errorf("registry options: a token and a user name exclude each other: %w", fault.ErrInvalid)
	case o.Username == "" && o.Password != "":
		return fmt.Errorf("registry options: a password needs a user name: %w", fault.ErrInvalid)
	}
	return nil
}

// ReadFiles returns the option that names an unusable file, and the error; "" for none. Without this check the error is returned by each
// request to a registry; an unusable AuthFile, which Login creates, would not be reported at all.
func (o Options) ReadFiles() (option string, err error) {
	if o.CAFile != "" {
		if _, err := (wire.TLS{CAFiles: []string{o.CAFile}}).Config(); err != nil {
			return "CAFile", err
		}
	}
	if _, err := (wire.TLS{LaterCAFile: o.LaterCAFile}).Config(); err != nil {
		return "LaterCAFile", err
	}
	if o.CertFile != "" && o.KeyFile != "" {
		if _, err := (wire.TLS{Pairs: [][2]string{{o.CertFile, o.KeyFile}}}).Config(); err != nil {
			return "CertFile", err
		}
	}
	if o.AuthFile != "" {
		if err := auths.Check(o.AuthFile); err != nil {
			return "AuthFile", err
		}
	}
	return "", nil
}

// CheckCerts reads every folder of a CertsDir and the certificates that it names, and returns all errors.
func CheckCerts(dir string) error {
	folders, err := certsd.Folders(dir)
	if err != nil {
		return unusable(err)
	}
	var errs []error
	for _, folder := range folders {
		config, err := certsd.LoadFolder(folder)
		if err != nil {
			errs = append(errs, unusable(err))
			continue
		}
		if config.Server != nil {
			config.Mirrors = append(config.Mirrors, *config.Server)
		}
		for _, h := range config.Mirrors {
			if _, err := (wire.TLS{CAFiles: h.CAFiles, Pairs: h.Pairs}).Config(); err != nil {
				errs = append(errs, unusable(fmt.Errorf("%s: %w", folder, err)))
			}
		}
	}
	return errors.Join(errs...)
}

// plain reports whether host is accessed without TLS if hosts.toml does not name it.
func (o Options) plain(host string) bool {
	if o.PlainHTTP || slices.Contains(o.PlainHTTPHosts, host) {
		return true
	}
	if o.LoopbackTLS || o.CAFile != "" || wire.Exists(o.LaterCAFile) || o.CertFile != "" || o.SkipVerify {
		return false
	}
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	ip := net.ParseIP(strings.Trim(name, "[]"))
	return name == "localhost" || (ip != nil && ip.IsLoopback())
}
