// Package fleetserver runs longshore-fleet as users run it: the built program, with mutual TLS by its own small authority, and a real
// registry with the desired state. [Start] starts it; it can be killed, and started again on the same or on lost files.
package fleetserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/ca"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/testenv"
)

// What the server is called.
const (
	Domain  = "plant.acme.example"
	Manager = "main"
)

const (
	day       = 24 * time.Hour
	startTime = 30 * time.Second
)

// Options of a server.
type Options struct {
	Clients  string        // accepted-client policy, YAML; "": every client is accepted
	Registry testenv.Kind  // of states; "": distribution
	Interval time.Duration // between two requests for a device's state; 0: one second
	Flags    []string      // more flags of serve
	Enroll   bool          // the server makes its own authority and enrolls devices; Clients and Server.CA are not used
}

// Server is a longshore-fleet that runs.
type Server struct {
	URL      string // by mutual TLS
	Open     string // the other address, without TLS
	Dir      string // with fleet.db, states, and the files of the authority
	Program  string
	CA       *ca.Authority
	Registry *testenv.RegistryServer
	Repo     *registry.Repository // of states
	Process  *testenv.Process

	client *registry.Client
}

// Start builds and starts a server in a box.
func Start(ctx context.Context, box *testenv.Box, o Options) (s *Server, err error) {
	s = &Server{}
	if s.Dir, err = box.Folder("fleet"); err != nil {
		return nil, err
	}
	if s.Registry, err = testenv.StartRegistry(filepath.Join(s.Dir, "registry"), cmp.Or(o.Registry, testenv.Distribution)); err != nil {
		return nil, err
	}
	box.Add("registry of states", s.Registry.Close)
	if s.client, err = registry.New(registry.Options{Getenv: func(string) string { return "" }}); err != nil {
		return nil, err
	}
	box.Add("registry client", func() error { s.client.Close(); return nil })
	if s.Repo, err = s.client.OpenName(ctx, s.Registry.Host+"/plant/state"); err != nil {
		return nil, err
	}
	if err := testenv.BuildOwn(ctx, s.Dir, "longshore-fleet"); err != nil {
		return nil, err
	}
	var at [2]string
	for i := range at {
		port, err := testenv.FreePort()
		if err != nil {
			return nil, err
		}
		at[i] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	s.URL, s.Open, s.Program = "https://"+at[0], "http://"+at[1], filepath.Join(s.Dir, "longshore-fleet")
	argv := append([]string{
		s.Program, "serve", "--database", s.Path("fleet.db"), "--listen", at[1], "--mtls-listen", at[0], "--trust-bundle-uri", s.URL + "/.well-known/spiffe/bundle.json",
		"--state", s.Repo.Name(), "--state-interval", cmp.Or(o.Interval, time.Second).String(),
	}, o.Flags...)
	if o.Enroll {
		argv = append(argv, "--enroll", s.Path("enroll.yaml"))
		err = s.write("enroll.yaml", "url: "+s.URL+"\nauthority: {trustDomain: "+Domain+"}\nsource: {margo: true}\n")
	} else {
		argv = append(argv, "--svid-cert", s.Path("main.crt"), "--svid-key", s.Path("main.key"), "--trust-bundle", s.Path("bundle.json"), "--clients", s.Path("clients.yaml"))
		err = s.identify(cmp.Or(o.Clients, "accept: ['*']\n"))
	}
	if err != nil {
		return nil, err
	}
	if s.Process, err = box.Start("longshore-fleet", nil, argv...); err != nil {
		return nil, err
	}
	return s, s.Ready(ctx)
}

// Path is a file of the server.
func (s *Server) Path(name string) string { return filepath.Join(s.Dir, name) }

// identify makes the authority, the manager's certificate and the policy.
func (s *Server) identify(clients string) error {
	var err error
	if s.CA, err = ca.New(Domain, time.Now()); err != nil {
		return err
	}
	cert, key, err := s.CA.Issue(identity.Name{TrustDomain: Domain, Manager: Manager}, time.Now(), day)
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{"main.crt": cert, "main.key": key, "bundle.json": s.CA.Bundle().JSON(), "clients.yaml": []byte(clients)} {
		if err := s.write(name, string(data)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) write(name, text string) error {
	return os.WriteFile(s.Path(name), []byte(text), 0o600)
}

// Ready waits until the server answers.
func (s *Server) Ready(ctx context.Context) error {
	err := testenv.Await(ctx, startTime, func() error {
		_, err := testenv.Get(ctx, s.Open+"/healthz")
		return err
	})
	if err != nil {
		err = fmt.Errorf("longshore-fleet does not answer: %w\n%s", err, s.Log())
	}
	return err
}

// Kill ends the server without a chance to finish anything; Restart starts it again.
func (s *Server) Kill() { s.Process.Kill() }

// Restart starts the server after it was ended.
func (s *Server) Restart(ctx context.Context) error {
	return errors.Join(s.Process.Start(), s.Ready(ctx))
}

// Log is what the server has logged.
func (s *Server) Log() string {
	data, err := os.ReadFile(s.Process.LogFile)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// Certificate is one of a client of the manager.
func (s *Server) Certificate(client string) (tls.Certificate, error) {
	cert, key, err := s.CA.Issue(identity.Name{TrustDomain: Domain, Manager: Manager, Client: client}, time.Now(), day)
	if err != nil {
		return tls.Certificate{}, err
	}
	return tls.X509KeyPair(cert, key)
}

// Anchor is the authority's certificate with its key.
func (s *Server) Anchor() (*x509.Certificate, tls.Certificate, error) {
	cert, key, err := s.CA.Files()
	if err != nil {
		return nil, tls.Certificate{}, err
	}
	block, _ := pem.Decode(cert)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, tls.Certificate{}, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	return c, pair, err
}

// TLS is the configuration of a client: it presents its certificate, and accepts only this manager.
func (s *Server) TLS(client string) (*tls.Config, error) {
	pair, err := s.Certificate(client)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	for _, c := range s.CA.Bundle().Anchors() {
		roots.AddCert(c)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, // no host name: the chain is verified below
		VerifyConnection: func(state tls.ConnectionState) error {
			_, err := state.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
			return err
		},
	}, nil
}

// HTTP is a client. Close its idle connections.
func (s *Server) HTTP(client string) (*http.Client, error) {
	config, err := s.TLS(client)
	if err != nil {
		return nil, err
	}
	return &http.Client{Timeout: startTime, Transport: &http.Transport{TLSClientConfig: config}}, nil
}

// Publish publishes a generation of a device's state, with a deployment of each name.
func (s *Server) Publish(ctx context.Context, device string, generation uint64, names ...string) error {
	o := artifacts.StateOptions{Device: artifacts.DeviceID(device), Generation: generation}
	for _, name := range names {
		d := margo.ApplicationDeployment{
			ID: artifacts.DeploymentID(o.Device, name), Metadata: margo.DeploymentMetadata{Name: name, Namespace: "default", DeviceID: device},
			Spec: margo.DeploymentSpec{ApplicationID: name, DeploymentProfile: margo.DeploymentProfile{Type: "compose", Components: []margo.Component{
				{Name: name, Properties: margo.ComponentProperties{Repository: "oci://" + s.Registry.Host + "/plant/components/" + name, Revision: "1.0.0", Wait: true}},
			}}},
		}
		b, err := d.Encode()
		if err != nil {
			return err
		}
		o.Deployments = append(o.Deployments, b)
	}
	a, err := artifacts.PackState(o)
	if err == nil {
		_, err = release.Publish(ctx, s.Repo, a, release.PublishOptions{HistoryTag: artifacts.HistoryTag(o.Device.Tag(), generation), Tags: []string{o.Device.Tag()}})
	}
	return err
}

// Answer is what a request was answered.
type Answer struct {
	Code   int
	Header http.Header
	Body   []byte
}

const maxAnswer = 64 << 20 // bytes

// Do sends a request as a client. header are names and values in turn.
func (s *Server) Do(ctx context.Context, c *http.Client, method, path string, body io.Reader, header ...string) (*Answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, s.URL+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := c.Do(r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	return &Answer{res.StatusCode, res.Header, data}, err
}
