package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/crypto/bcrypt"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet/enroll"
	"github.com/longshore-dev/longshore/fleet/enroll/enrolltest"
	"github.com/longshore-dev/longshore/fleet/enroll/harbor"
	"github.com/longshore-dev/longshore/fleet/enroll/harbortest"
	"github.com/longshore-dev/longshore/fleet/store"
	protocol "github.com/longshore-dev/longshore/identity/enroll"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing/token"
	"github.com/longshore-dev/longshore/testenv"
)

// output collects what a command writes while it runs.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// newcomer is a device that is being enrolled at a manager.
type newcomer struct {
	*enrolltest.Plant
	dir  string
	pin  string
	args []string
}

func newNewcomer(t *testing.T, p *enrolltest.Plant, args ...string) *newcomer {
	t.Helper()
	pin, err := protocol.ManagerFingerprint(p.Authority.Bundle())
	if err != nil {
		t.Fatal(err)
	}
	d := &newcomer{Plant: p, dir: t.TempDir(), pin: pin.String()}
	d.args = append([]string{"--config-dir", d.path("etc"), "--data-dir", d.path("data"), "--report-key", "file"}, args...) // the last of several counts
	return d
}

func (d *newcomer) path(name string) string { return filepath.Join(d.dir, name) }

func (d *newcomer) enroll(t *testing.T, more ...string) (code int, stdout, stderr string) {
	t.Helper()
	return command(t, append(append([]string{"enroll", d.URL}, d.args...), more...)...)
}

// fingerprint is what the device shows.
func (d *newcomer) fingerprint(t *testing.T) string {
	t.Helper()
	code, out, errs := command(t, append([]string{"enroll", "--print-fingerprint"}, d.args...)...)
	if code != 0 {
		t.Fatalf("enroll --print-fingerprint = %d\n%s", code, errs)
	}
	return strings.TrimSpace(out)
}

func (d *newcomer) approve(t *testing.T, key string) {
	t.Helper()
	if _, err := d.ApproveEnrollment(t.Context(), store.Approval{Key: key, Device: "press-07", At: time.Now()}); err != nil {
		t.Fatal(err)
	}
}

// A device is interrupted while it waits, asks again with the same key, is approved, and has a configuration.
func TestEnroll(t *testing.T) {
	h := harbortest.Start(t)
	pull, err := harbor.New(harbor.Options{URL: h.URL, Host: "harbor.acme.example", Name: harbortest.Project, Username: harbortest.Username, Password: harbortest.Password})
	if err != nil {
		t.Fatal(err)
	}
	d := newNewcomer(t, enrolltest.Start(t, pull), "--device", "press-07", "--allow-wipe", "-o", "json")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan int)
	out := &output{}
	args := append([]string{"longshore-agent", "enroll", d.URL, "--expect-manager", d.pin, "--qr"}, d.args...)
	go func() { ended <- run(ctx, args, strings.NewReader(""), out, out) }()
	testenv.Eventually(t, time.Minute, "the device waits", func() error {
		if !strings.Contains(out.String(), "waiting for approval") {
			return os.ErrNotExist
		}
		return nil
	})
	cancel()
	if code := <-ended; code != 130 || !strings.Contains(out.String(), "█▀") {
		t.Errorf("an interrupted enroll = %d\n%s", code, out)
	}
	key := d.fingerprint(t)
	if !strings.Contains(out.String(), "longshore-fleet devices approve press-07 --fingerprint "+key) {
		t.Errorf("the device shows another key than %s:\n%s", key, out)
	}
	d.approve(t, key)
	code, text, errs := d.enroll(t, "--expect-manager", d.pin)
	var result enrolled
	if err := json.Unmarshal([]byte(text), &result); code != 0 || err != nil || result.Device != "press-07" || result.Fingerprint.String() != key || result.Trust == "" {
		t.Fatalf("enroll = %d %+v, %v\n%s", code, result, err, errs)
	}
	file := d.path("etc/agent.yaml")
	if code, out, errs := command(t, "check-config", "--config", file); code != 0 || !strings.Contains(out, "device press-07, state harbor.acme.example/plant/state") {
		t.Errorf("check-config = %d %s\n%s", code, out, errs)
	}
	cfg, err := readConfig(file)
	if err != nil || !cfg.Enrollment.AllowWipe || cfg.Fleet.URL != d.URL || cfg.Fleet.KeyFile != "" {
		t.Errorf("agent.yaml: %+v, %v", cfg, err)
	}
	for name, mode := range map[string]os.FileMode{"etc/device.key": 0o600, "data/identity/registry.json": 0o600, "data/identity/device.crt": 0o600, "etc/agent.yaml": 0o644} {
		if info, err := os.Stat(d.path(name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v, want mode %v", name, info, err, mode)
		}
	}
	if code, _, errs := d.enroll(t, "--expect-manager", d.pin); code != 6 || !strings.Contains(errs, "there is one") {
		t.Errorf("enroll again = %d\n%s", code, errs)
	}
}

// What goes wrong leaves no configuration behind.
func TestEnrollFails(t *testing.T) {
	p := enrolltest.Start(t, nil)
	other := digest.FromString("another manager").String()
	for name, tt := range map[string]struct {
		args  []string
		state func(t *testing.T, d *newcomer, key string)
		code  int
		want  string
	}{
		"nothing to authenticate the manager by": {nil, nil, 2, "the device must know its manager"},
		"another manager":                        {[]string{"--expect-manager", other}, nil, 3, "no authority of the server has the fingerprint"},
		"no fingerprint":                         {[]string{"--expect-manager", "9f1c"}, nil, 2, "64 hexadecimal digits"},
		"no https":                               {[]string{"--bundle-url", "http://x"}, nil, 2, "must begin with https://"},
		"denied": {[]string{"--expect-manager", "ours"}, func(t *testing.T, d *newcomer, key string) {
			if _, err := d.RequestEnrollment(t.Context(), store.EnrollmentRequest{Key: key, At: time.Now()}); err != nil {
				t.Fatal(err)
			}
			if err := d.DenyEnrollment(t.Context(), key, "not ours", time.Now()); err != nil {
				t.Fatal(err)
			}
		}, 3, "the manager denied this device: not ours"},
		"approved as another device": {[]string{"--expect-manager", "ours", "--device", "press-08"}, func(t *testing.T, d *newcomer, key string) {
			if _, err := d.ApproveEnrollment(t.Context(), store.Approval{Key: key, Device: "press-09", Ahead: true, At: time.Now()}); err != nil {
				t.Fatal(err)
			}
		}, 6, "the manager approved this device as press-09"},
		"another trust policy": {[]string{"--expect-manager", "ours", "--expect-trust", other}, func(t *testing.T, d *newcomer, key string) {
			if _, err := d.ApproveEnrollment(t.Context(), store.Approval{Key: key, Device: "press-10", Ahead: true, At: time.Now()}); err != nil {
				t.Fatal(err)
			}
		}, 5, "is expected"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newNewcomer(t, p)
			for i, a := range tt.args {
				if a == "ours" {
					tt.args[i] = d.pin
				}
			}
			if tt.state != nil {
				tt.state(t, d, d.fingerprint(t))
			}
			code, _, errs := d.enroll(t, tt.args...)
			if code != tt.code || !strings.Contains(errs, tt.want) {
				t.Errorf("enroll = %d, want %d %q\n%s", code, tt.code, tt.want, errs)
			}
			for _, f := range []string{"etc/agent.yaml", "etc/trust.yaml", "data/identity"} {
				if _, err := os.Lstat(d.path(f)); !os.IsNotExist(err) {
					t.Errorf("%s is there: %v", f, err)
				}
			}
		})
	}
}

// A clock that is wrong, at the manager or the device, is told with what to do. The device has the same key when it is right.
func TestEnrollWithWrongClock(t *testing.T) {
	d := newNewcomer(t, enrolltest.Start(t, nil), "--device", "press-07")
	key := d.fingerprint(t)
	if _, err := d.ApproveEnrollment(t.Context(), store.Approval{Key: key, Device: "press-07", Ahead: true, At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	for name, skew := range map[string]time.Duration{"the manager is ahead": 48 * time.Hour, "the manager is behind": -48 * time.Hour} {
		d.Skew(skew)
		code, _, errs := d.enroll(t, "--expect-manager", d.pin)
		if code != 3 || !strings.Contains(errs, "hint: compare the clocks of this device and of the manager") {
			t.Errorf("%s: enroll = %d\n%s", name, code, errs)
		}
		for _, f := range []string{"etc/agent.yaml", "etc/trust.yaml", "data/identity"} {
			if _, err := os.Lstat(d.path(f)); !os.IsNotExist(err) {
				t.Errorf("%s: %s is there: %v", name, f, err)
			}
		}
	}
	d.Skew(0)
	if code, out, errs := d.enroll(t, "--expect-manager", d.pin, "-o", "json"); code != 0 || !strings.Contains(out, key) {
		t.Errorf("with right clocks: enroll = %d %s\n%s", code, out, errs)
	}
}

// A device says what a proxy must do that ends TLS, and goes on as soon as it does.
func TestEnrollThroughProxy(t *testing.T) {
	d := newNewcomer(t, enrolltest.Start(t, nil), "--device", "press-07")
	target, err := url.Parse(d.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	proxy.Transport, proxy.ErrorLog = tr, log.New(io.Discard, "", 0)
	s := httptest.NewTLSServer(proxy)
	t.Cleanup(func() { s.Close(); tr.CloseIdleConnections() })
	bundle := d.path("bundle.json")
	if err := os.WriteFile(bundle, d.Authority.Bundle().JSON(), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, ended := &output{}, make(chan int, 1)
	line := append([]string{"longshore-agent", "enroll", s.URL, "--expect-manager", d.pin}, d.args...)
	go func() { ended <- run(ctx, line, strings.NewReader(""), out, out) }()
	testenv.Eventually(t, time.Minute, "the device says what to do", func() error {
		if !strings.Contains(out.String(), "must not end it") {
			return errors.New(out.String())
		}
		return nil
	})
	cancel()
	<-ended
	// With the trust bundle it knows that the server is not the manager: waiting does not help.
	if code, _, errs := command(t, append([]string{"enroll", s.URL, "--trust-bundle", bundle}, d.args...)...); code != 3 || !strings.Contains(errs, "must not end it") {
		t.Errorf("enroll with a trust bundle = %d\n%s", code, errs)
	}
	if all, err := d.ListEnrollments(t.Context(), store.EnrollmentQuery{}); err != nil || len(all) != 0 {
		t.Errorf("the manager knows %+v, %v", all, err)
	}
}

// Nobody is asked, with a join token: it also says who the manager is.
func TestEnrollByJoinToken(t *testing.T) {
	d := newNewcomer(t, enrolltest.Start(t, nil))
	text, token := enroll.MintToken("press-07", digest.Digest(d.pin), time.Now(), time.Hour)
	if err := d.AddJoinTokens(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	file := d.path("join")
	if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := d.enroll(t, "--join-token-file", file)
	if code != 0 || !strings.Contains(out, "press-07 at spiffe://plant.acme.example/margo/wfm/main") || strings.Contains(out+errs, text) {
		t.Errorf("enroll = %d %s\n%s", code, out, errs)
	}
	second := newNewcomer(t, d.Plant)
	if code, _, errs := second.enroll(t, "--join-token-file", file); code != 3 || !strings.Contains(errs, "was used by another device") {
		t.Errorf("a second device with the token = %d\n%s", code, errs)
	}
}

// The key never leaves the TPM, and is good for everything that an enrolled device does.
func TestEnrollInTPM(t *testing.T) {
	chip := testenv.StartSoftTPM(t)
	d := newNewcomer(t, enrolltest.Start(t, nil), "--report-key", "tpm:"+chip.Socket)
	key := d.fingerprint(t)
	if _, err := d.ApproveEnrollment(t.Context(), store.Approval{Key: key, Device: "press-07", Ahead: true, At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := d.enroll(t, "--expect-manager", d.pin); code != 0 {
		t.Fatalf("enroll = %d\n%s", code, errs)
	}
	if _, err := os.Lstat(d.path("etc/device.key")); !os.IsNotExist(err) {
		t.Errorf("there is a key in a file: %v", err)
	}
	k := d.keeping(t)
	if _, err := k.ask(t.Context(), true); err != nil && !strings.Contains(err.Error(), "too many requests") {
		t.Errorf("renew by mutual TLS: %v", err)
	}
	if a, err := k.ask(t.Context(), false); err != nil || a.Status != protocol.Approved {
		t.Errorf("check by mutual TLS: %+v, %v", a, err)
	}
}

// The key never leaves a PKCS#11 token, and is good for everything that an enrolled device does, from one start to the next. A wrong PIN
// is told by that name, and the device goes on when it is corrected.
func TestEnrollInToken(t *testing.T) {
	if !token.Built {
		testenv.Unavailable(t, "this build has no cgo: install gcc")
	}
	soft := testenv.SoftHSM(t)
	pin := filepath.Join(t.TempDir(), "token.pin")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(pin, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d := newNewcomer(t, enrolltest.Start(t, nil), "--report-key", soft.URI("device")+"&pin-source="+pin)
	write("0000")
	if code, _, errs := command(t, append([]string{"enroll", "--print-fingerprint"}, d.args...)...); code == 0 || !strings.Contains(errs, "CKR_PIN_INCORRECT") || !strings.Contains(errs, "hint: check the PIN") {
		t.Errorf("enroll with a wrong PIN = %d\n%s", code, errs)
	}
	write(soft.PIN)
	keeps(t, d)
	if _, err := os.Lstat(d.path("etc/device.key")); !os.IsNotExist(err) {
		t.Errorf("there is a key in a file: %v", err)
	}
	file := d.path("etc/agent.yaml")
	var shown keyResult
	code, out, errs := command(t, "key", "-o", "json", "--config", file)
	if err := json.Unmarshal([]byte(out), &shown); code != 0 || err != nil || !strings.HasPrefix(shown.PKCS11, "pkcs11:token=longshore;object=device?") || shown.File+shown.TPM != "" {
		t.Errorf("key -o json = %d %+v, %v\n%s", code, shown, err, errs)
	}
	if err := os.Chmod(pin, 0o644); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := command(t, "check-config", "--config", file); code == 0 || !strings.Contains(errs, pin+": mode 0644, others may read it") {
		t.Errorf("check-config with an open PIN file = %d\n%s", code, errs)
	}
}

// keeping is the enrollment of the device, as its agent has it.
func (d *newcomer) keeping(t *testing.T) *keeping {
	t.Helper()
	cfg, err := readConfig(d.path("etc/agent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	k := &keeping{cfg: cfg, dir: protocol.Dir(filepath.Dir(cfg.Fleet.CertFile)), now: time.Now, log: slog.New(slog.DiscardHandler)}
	k.source = files.New(credentialFiles(cfg, cfg.Fleet.Endpoint), func() time.Time { return k.now() }, k.log)
	return k
}

// A certificate is renewed by mutual TLS, also in place of one that has expired; the files change and nothing is restarted.
func TestKeepEnrolled(t *testing.T) { keeps(t, newNewcomer(t, enrolltest.Start(t, nil))) }

// keeps enrolls a device, which renews its certificate and is removed.
func keeps(t *testing.T, d *newcomer) {
	t.Helper()
	p := d.Plant
	key := d.fingerprint(t)
	if _, err := p.ApproveEnrollment(t.Context(), store.Approval{Key: key, Device: "press-07", Ahead: true, At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := d.enroll(t, "--expect-manager", d.pin); code != 0 {
		t.Fatalf("enroll = %d\n%s", code, errs)
	}
	k := d.keeping(t)
	first, err := k.source.Credentials()
	if err != nil {
		t.Fatal(err)
	}
	later := 10 * time.Second
	k.now = func() time.Time { return time.Now().Add(later) }
	p.Skew(later)
	renew := func(what string) {
		t.Helper()
		a, err := k.ask(t.Context(), true)
		if err == nil {
			err = k.take(a)
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		now, err := k.source.Credentials()
		if err != nil || !now.SVID.NotAfter.After(first.SVID.NotAfter) || now.SVID.Name != first.SVID.Name {
			t.Errorf("%s: %v after %v, %v", what, now.SVID.NotAfter, first.SVID.NotAfter, err)
		}
		first = now
	}
	renew("renew by mutual TLS")
	later = 3 * time.Hour // the certificate is valid for one
	p.Skew(later)
	renew("renew after it expired")
	if _, err := p.RemoveDevice(t.Context(), "press-07", true, time.Now()); err != nil {
		t.Fatal(err)
	}
	a, err := k.ask(t.Context(), false)
	if err != nil || a.Status != protocol.Removed || k.removed(a) || k.wipe {
		t.Errorf("a device that does not permit a wipe: %+v, %v, wipe %v", a, err, k.wipe)
	}
	k.cfg.Enrollment.AllowWipe = true
	if !k.removed(a) || !k.wipe {
		t.Error("a device that permits a wipe goes on")
	}
	if _, err := k.ask(t.Context(), true); err != nil {
		t.Errorf("a removed device asks for a certificate: %v", err)
	}
}

// rotating gives every device the same credential, which changes.
type rotating struct {
	host     string
	password atomic.Value // string
}

func (r *rotating) Give(context.Context, string, string) (protocol.Login, error) {
	return protocol.Login{Host: r.host, Username: "edge", Password: r.password.Load().(string)}, nil
}
func (*rotating) Handle(digest.Digest) string            { return "" }
func (*rotating) Withdraw(context.Context, string) error { return nil }

// webServer is a certificate for 127.0.0.1, and its authority.
func webServer(t *testing.T) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// The first credential and the first authority of a registry that a renewal brings are used by the running agent's client, and another
// authority in their place: the one before does not count any more.
func TestFirstRegistryAtRenewal(t *testing.T) {
	oldPair, oldCA := webServer(t)
	newPair, newCA := webServer(t)
	var pair atomic.Pointer[tls.Certificate]
	pair.Store(&oldPair)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "horse" {
			w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.WriteHeader(http.StatusNotFound) // nothing is published: the registry let the device in
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.TLS = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.Load(), nil }}
	s.Listener = tls.NewListener(s.Listener, s.TLS)
	s.Start()
	t.Cleanup(s.Close)
	host := s.Listener.Addr().String()
	p := enrolltest.Start(t, nil)
	d := newNewcomer(t, p)
	if _, err := p.ApproveEnrollment(t.Context(), store.Approval{Key: d.fingerprint(t), Device: "press-07", Ahead: true, At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := d.enroll(t, "--expect-manager", d.pin); code != 0 {
		t.Fatalf("enroll = %d\n%s", code, errs)
	}
	k := d.keeping(t)
	o := registryOptions(k.cfg)
	o.LoopbackTLS, o.RetryBudget, o.Getenv = true, -1, func(string) string { return "" }
	client, err := registry.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	repo, err := client.OpenName(t.Context(), host+"/plant/state")
	if err != nil {
		t.Fatal(err)
	}
	pulls := func(what string, in bool) {
		t.Helper()
		if _, err := repo.Resolve(t.Context(), "press-07"); errors.Is(err, fault.ErrNotFound) != in {
			t.Errorf("%s: Resolve: %v", what, err)
		}
	}
	later := time.Duration(0)
	k.now = func() time.Time { return time.Now().Add(later) }
	renew := func(pull enroll.Credentials, ca string) {
		t.Helper()
		p.Registry(pull, ca)
		later += 10 * time.Second
		p.Skew(later)
		a, err := k.ask(t.Context(), true)
		if err == nil {
			err = k.take(a)
		}
		if err != nil {
			t.Fatal(err)
		}
		if code, out, errs := command(t, "check-config", "--config", d.path("etc/agent.yaml")); code != 0 {
			t.Errorf("check-config = %d %s\n%s", code, out, errs)
		}
	}
	pull := enroll.Shared{Host: host, Username: "edge", Password: "horse"}
	pulls("without credential and authority", false)
	renew(pull, "")
	pulls("without authority", false)
	renew(pull, oldCA)
	pulls("with both", true)
	pair.Store(&newPair)
	renew(pull, newCA)
	pulls("with the next authority", true)
	pair.Store(&oldPair)
	renew(pull, newCA)
	s.CloseClientConnections()
	pulls("with the authority before", false)
	pair.Store(&newPair)
	pulls("with the next authority again", true)
	renew(pull, "")
	pulls("without authority again", false)
}

// passwords makes password the only one of a registry.
func passwords(t *testing.T, dir, password string) {
	t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "htpasswd")
	if err := os.WriteFile(file, []byte("edge:"+string(hash)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// The pull credential that a renewal brings is used by the running agent's client, which was opened with the one before.
func TestRenewedPullCredential(t *testing.T) {
	dir := t.TempDir()
	s, err := testenv.StartRegistry(dir, testenv.DistributionHtpasswd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	passwords(t, dir, "first")
	pull := &rotating{host: s.Host}
	pull.password.Store("first")
	p := enrolltest.Start(t, pull)
	d := newNewcomer(t, p)
	if _, err := p.ApproveEnrollment(t.Context(), store.Approval{Key: d.fingerprint(t), Device: "press-07", Ahead: true, At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := d.enroll(t, "--expect-manager", d.pin); code != 0 {
		t.Fatalf("enroll = %d\n%s", code, errs)
	}
	k := d.keeping(t)
	o := registryOptions(k.cfg)
	o.Getenv = func(string) string { return "" }
	client, err := registry.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	repo, err := client.OpenName(t.Context(), s.Reference("plant/state"))
	if err != nil {
		t.Fatal(err)
	}
	pulls := func(want error) {
		t.Helper()
		if _, err := repo.Resolve(t.Context(), "press-07"); !errors.Is(err, want) {
			t.Errorf("Resolve: %v, want %v", err, want)
		}
	}
	pulls(fault.ErrNotFound) // nothing is published: the registry let the device in
	passwords(t, dir, "second")
	pull.password.Store("second")
	pulls(fault.ErrUnauthenticated)
	later := 10 * time.Second // a certificate was issued a moment ago
	k.now = func() time.Time { return time.Now().Add(later) }
	p.Skew(later)
	a, err := k.ask(t.Context(), true)
	if err == nil {
		err = k.take(a)
	}
	if err != nil {
		t.Fatal(err)
	}
	pulls(fault.ErrNotFound)
}
