package testenv

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

const (
	sigstoreReady = 60 * time.Second // for one of its servers to answer
	rekorOrigin   = "127.0.0.1"      // how the log names itself: the host of its URL, as verifiers expect
)

// Sigstore is an instance of sigstore on this machine: real Fulcio, timestamp authority and Rekor 2, and in this process an
// identity provider and a certificate log. It ends with its test.
type Sigstore struct {
	Fulcio, Rekor, Clock string // URLs; Clock is the timestamp authority's endpoint
	Issuer               string // URL of the identity provider
	ActionsURL           string // where a job of GitHub Actions would ask the identity provider for a token
	ActionsToken         string // what it would show there
	TrustedRoot          string // file: the instance's trusted_root.json, written by cosign
	SigningConfig        string // file: its signing config, written by cosign

	box      *Box
	provider *identityProvider
}

// StartSigstore starts an instance for one test. Only one runs at a time on a machine: the timestamp authority insists on
// one port for its metrics.
func StartSigstore(t testing.TB) *Sigstore {
	t.Helper()
	for _, name := range []string{"fulcio", "timestamp-server", "rekor-server", "cosign3"} {
		Program(t, name)
	}
	box := NewBox(t)
	s, err := openSigstore(t.Context(), os.Stderr, box)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func openSigstore(ctx context.Context, out io.Writer, box *Box) (*Sigstore, error) {
	unlock, err := lockFile(ctx, filepath.Join(os.TempDir(), boxes+".sigstore.lock"))
	if err != nil {
		return nil, err
	}
	box.Add("lock of sigstore", func() error { unlock(); return nil })
	s := &Sigstore{box: box}
	if err := s.startProvider(); err != nil {
		return nil, err
	}
	certLog, err := s.startCertLog()
	if err != nil {
		return nil, err
	}
	if err := errors.Join(s.startFulcio(ctx, out, certLog), s.startClock(ctx, out), s.startRekor(ctx, out)); err != nil {
		return nil, err
	}
	return s, s.describe(ctx, out, certLog)
}

// Token is an identity token for an e-mail address.
func (s *Sigstore) Token(email string) (string, error) { return s.provider.mint(email, time.Now()) }

// Stop ends the instance's servers, as a verifier that asks none of them would not notice.
func (s *Sigstore) Stop() error { return s.box.Empty() }

// serve runs a handler in this process until the box is emptied.
func (s *Sigstore) serve(what string, h http.Handler) (url string) {
	server := httptest.NewServer(h)
	s.box.Add(what, func() error {
		server.CloseClientConnections()
		server.Close()
		return nil
	})
	return server.URL
}

// unusedPort is a port without a listener at the moment.
func unusedPort() (string, error) {
	port, err := FreePort()
	return strconv.Itoa(int(port)), err
}

// server starts one of sigstore's programs and waits until it answers at a path. It gets its port and one for metrics.
func (s *Sigstore) server(ctx context.Context, out io.Writer, name, ready string, flags func(port, metrics string) []string) (url string, err error) {
	path, err := BuildProgram(ctx, out, name)
	if err != nil {
		return "", err
	}
	port, err := unusedPort()
	if err != nil {
		return "", err
	}
	metrics, err := unusedPort()
	if err != nil {
		return "", err
	}
	p, err := s.box.Start(name, []string{"HOME=" + s.box.Dir()}, append([]string{path, "serve"}, flags(port, metrics)...)...)
	if err != nil {
		return "", err
	}
	url = "http://127.0.0.1:" + port
	err = Await(ctx, sigstoreReady, func() error {
		if err := p.Running(); err != nil {
			return err
		}
		_, err := Get(ctx, url+ready)
		return err
	})
	if err != nil {
		err = fmt.Errorf("start %s: %w\n%s", name, err, p.Log(20))
	}
	return url, err
}

func (s *Sigstore) startFulcio(ctx context.Context, out io.Writer, certLog *certLog) error {
	config, err := json.Marshal(map[string]any{"OIDCIssuers": map[string]any{
		s.Issuer: map[string]string{"IssuerURL": s.Issuer, "ClientID": "sigstore", "Type": "email"},
	}})
	if err != nil {
		return err
	}
	file := filepath.Join(s.box.Dir(), "fulcio.json")
	if err := os.WriteFile(file, config, 0o644); err != nil {
		return err
	}
	grpc, err := unusedPort()
	if err != nil {
		return err
	}
	s.Fulcio, err = s.server(ctx, out, "fulcio", "/api/v2/trustBundle", func(port, metrics string) []string {
		return []string{
			"--ca=ephemeralca", "--config-path=" + file, "--ct-log-url=" + certLog.url,
			"--host=127.0.0.1", "--grpc-host=127.0.0.1", "--port=" + port, "--grpc-port=" + grpc, "--metrics-port=" + metrics,
			"--legacy-unix-domain-socket=" + filepath.Join(s.box.Dir(), "fulcio.sock"),
		}
	})
	return err
}

func (s *Sigstore) startClock(ctx context.Context, out io.Writer) error {
	url, err := s.server(ctx, out, "timestamp-server", "/api/v1/timestamp/certchain", func(port, _ string) []string {
		return []string{"--host=127.0.0.1", "--port=" + port, "--timestamp-signer=memory", "--disable-ntp-monitoring"}
	})
	s.Clock = url + "/api/v1/timestamp"
	return err
}

func (s *Sigstore) startRekor(ctx context.Context, out io.Writer) error {
	key, err := s.newKey("rekor")
	if err != nil {
		return err
	}
	storage, err := s.box.Folder("rekor")
	if err != nil {
		return err
	}
	grpc, err := unusedPort()
	if err != nil {
		return err
	}
	s.Rekor, err = s.server(ctx, out, "rekor-server", "/healthz", func(port, metrics string) []string {
		return []string{
			"--http-port=" + port, "--grpc-port=" + grpc, "--http-metrics-port=" + metrics, "--hostname=" + rekorOrigin,
			"--storage-dir=" + storage, "--signer-filepath=" + key.file, "--checkpoint-interval=500ms", "--batch-max-age=20ms",
		}
	})
	return err
}

// serverKey is a key of the instance and its files.
type serverKey struct {
	*ecdsa.PrivateKey
	file, public string
}

func (s *Sigstore) newKey(name string) (serverKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return serverKey{}, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return serverKey{}, err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return serverKey{}, err
	}
	k := serverKey{key, filepath.Join(s.box.Dir(), name+".pem"), filepath.Join(s.box.Dir(), name+".pub")}
	return k, errors.Join(
		os.WriteFile(k.file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600),
		os.WriteFile(k.public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o644),
	)
}

// describe lets cosign write the two documents about the instance.
func (s *Sigstore) describe(ctx context.Context, out io.Writer, certLog *certLog) error {
	cosign, err := BuildProgram(ctx, out, "cosign3")
	if err != nil {
		return err
	}
	fulcioChain, err := s.fulcioChain(ctx)
	if err != nil {
		return err
	}
	clockChain, err := Get(ctx, s.Clock+"/certchain")
	if err != nil {
		return err
	}
	dir := s.box.Dir()
	for name, data := range map[string][]byte{"fulcio.chain": fulcioChain, "clock.chain": clockChain} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	s.TrustedRoot, s.SigningConfig = filepath.Join(dir, "trusted_root.json"), filepath.Join(dir, "signing_config.json")
	start := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	env := []string{"HOME=" + dir, "TUF_ROOT=" + filepath.Join(dir, "tuf"), "HTTPS_PROXY=http://127.0.0.1:1"}
	_, err = s.box.Output(ctx, env, cosign, "trusted-root", "create", "--out="+s.TrustedRoot,
		"--fulcio=url="+s.Fulcio+",certificate-chain="+filepath.Join(dir, "fulcio.chain"),
		"--ctfe=url="+certLog.url+",public-key="+certLog.key.public+",start-time="+start,
		"--rekor=url="+s.Rekor+",public-key="+filepath.Join(dir, "rekor.pub")+",start-time="+start+",origin="+rekorOrigin,
		"--tsa=url="+s.Clock+",certificate-chain="+filepath.Join(dir, "clock.chain"))
	if err != nil {
		return err
	}
	service := func(url string, version int) string {
		return "url=" + url + ",api-version=" + strconv.Itoa(version) + ",start-time=" + start + ",operator=testenv"
	}
	_, err = s.box.Output(ctx, env, cosign, "signing-config", "create", "--out="+s.SigningConfig,
		"--fulcio="+service(s.Fulcio, 1), "--oidc-provider="+service(s.Issuer, 1),
		"--rekor="+service(s.Rekor, 2), "--rekor-config=ANY", "--tsa="+service(s.Clock, 1), "--tsa-config=ANY")
	return err
}

func (s *Sigstore) fulcioChain(ctx context.Context) ([]byte, error) {
	data, err := Get(ctx, s.Fulcio+"/api/v2/trustBundle")
	if err != nil {
		return nil, err
	}
	var said struct {
		Chains []struct{ Certificates []string }
	}
	if err := json.Unmarshal(data, &said); err != nil {
		return nil, fmt.Errorf("certificates of fulcio: %w", err)
	}
	var chain []byte
	for _, c := range said.Chains {
		for _, pem := range c.Certificates {
			chain = append(chain, pem...)
		}
	}
	return chain, nil
}
