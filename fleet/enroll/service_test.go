package enroll_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/enroll"
	"github.com/longshore-dev/longshore/fleet/enroll/enrolltest"
	"github.com/longshore-dev/longshore/fleet/enroll/harbor"
	"github.com/longshore-dev/longshore/fleet/enroll/harbortest"
	"github.com/longshore-dev/longshore/fleet/store"
	"github.com/longshore-dev/longshore/identity"
	protocol "github.com/longshore-dev/longshore/identity/enroll"
	"github.com/longshore-dev/longshore/identity/identitytest"
	"github.com/longshore-dev/longshore/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// device is one with a key of its own.
type device struct {
	*enrolltest.Plant
	key   *ecdsa.PrivateKey
	print string
	id    string // that it asks for
	token string
}

func newDevice(t *testing.T, p *enrolltest.Plant, id string) *device {
	t.Helper()
	d := &device{Plant: p, key: identitytest.NewKey(t), id: id}
	f, err := identity.Fingerprint(d.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	d.print = f.String()
	return d
}

func (d *device) options() protocol.Options {
	return protocol.Options{URL: d.URL, Key: d.key, Now: time.Now, Trust: protocol.Trust{Anchors: d.Authority.Bundle().JSON()}}
}

func (d *device) ask(t *testing.T) (protocol.Answer, error) {
	t.Helper()
	c, err := protocol.New(d.options())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := protocol.NewRequest(d.key)
	if err != nil {
		t.Fatal(err)
	}
	r.Device, r.Token = d.id, d.token
	return c.Ask(t.Context(), r)
}

// is asks, and wants a status. Whoever is not approved must get nothing.
func (d *device) is(t *testing.T, want protocol.Status) protocol.Answer {
	t.Helper()
	a, err := d.ask(t)
	if err != nil || a.Status != want || want != protocol.Approved && (a.Grant != nil || a.TrustBundle != nil) || want == protocol.Approved && a.Grant == nil {
		t.Fatalf("%s: %+v, %v, want %s", d.id, a, err, want)
	}
	return a
}

func (d *device) approve(t *testing.T, id string) error {
	t.Helper()
	_, err := d.ApproveEnrollment(t.Context(), store.Approval{Key: d.print, Device: id, At: time.Now()})
	return err
}

// leaf is the certificate of a grant.
func leaf(t *testing.T, g *protocol.Grant, d *device) *x509.Certificate {
	t.Helper()
	c, err := g.Check(protocol.Expected{Key: d.key, Manager: identity.Name{TrustDomain: "plant.acme.example", Manager: "main"}, Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return c.SVID.Leaf()
}

// until waits for something that the service does in the background.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	testenv.Eventually(t, time.Minute, what, func() error {
		if !is() {
			return errors.New("still not")
		}
		return nil
	})
}

func TestEnroll(t *testing.T) {
	h := harbortest.Start(t)
	pull, err := harbor.New(harbor.Options{URL: h.URL, Host: "harbor.acme.example", Name: harbortest.Project, Username: harbortest.Username, Password: harbortest.Password})
	if err != nil {
		t.Fatal(err)
	}
	p := enrolltest.Start(t, pull)
	d := newDevice(t, p, "press-07")
	if a := d.is(t, protocol.Pending); a.RetryAfter() != 5*time.Second {
		t.Errorf("retry after %s", a.RetryAfter())
	}
	if err := d.approve(t, "press-07"); err != nil {
		t.Fatal(err)
	}
	g := d.is(t, protocol.Approved).Grant
	c := leaf(t, g, d)
	if known, err := p.Service.Look("press-07", c); !known || err != nil {
		t.Errorf("Look = %v, %v", known, err)
	}
	if len(g.Registries) != 1 || h.Robots()[g.Registries[0].Username].Secret != g.Registries[0].Password {
		t.Errorf("pull credential %+v of %v", g.Registries, h.Robots())
	}
	if g.Source != (protocol.Source{Registry: "harbor.acme.example/plant/state"}) || g.Manager != p.URL {
		t.Errorf("grant %+v", g)
	}
	if _, err := d.ask(t); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("a grant right after the last one: %v", err)
	}
	h.Down(true)
	if _, err := p.RemoveDevice(t.Context(), "press-07", true, time.Now()); err != nil {
		t.Fatal(err)
	}
	until(t, "the removed device is known", func() bool { _, err := p.Service.Look("press-07", c); return errors.Is(err, fault.ErrDenied) })
	if a := d.is(t, protocol.Removed); !a.Wipe || a.Device != "press-07" {
		t.Errorf("a removed device is told %+v", a)
	}
	// Its credential is withdrawn as soon as Harbor answers, which a decision about another device does not wait for.
	h.Down(false)
	p.Skew(2 * time.Minute)
	until(t, "its account is deleted", func() bool { return len(h.Robots()) == 0 })
	until(t, "that is known", func() bool {
		due, err := p.ListEnrollments(t.Context(), store.EnrollmentQuery{Withdraw: true})
		return err == nil && len(due) == 0
	})
}

// The account that Harbor made for a device is withdrawn with the device, also if its devices get another credential meanwhile: until the settings of
// Harbor are back, that it is still to be withdrawn stays known.
func TestAccountOfEarlierSettings(t *testing.T) {
	h := harbortest.Start(t)
	pull, err := harbor.New(harbor.Options{URL: h.URL, Host: "harbor.acme.example", Name: harbortest.Project, Username: harbortest.Username, Password: harbortest.Password})
	if err != nil {
		t.Fatal(err)
	}
	p := enrolltest.Start(t, pull)
	var all []*device
	for _, id := range []string{"press-07", "press-08"} {
		d := newDevice(t, p, id)
		d.is(t, protocol.Pending)
		if err := d.approve(t, id); err != nil {
			t.Fatal(err)
		}
		d.is(t, protocol.Approved)
		all = append(all, d)
	}
	p.Registry(enroll.Shared{Host: "harbor.acme.example", Username: "robot$edge", Password: "x"}, "")
	p.Skew(10 * time.Second)
	all[0].is(t, protocol.Approved) // it renews its certificate
	var leaves []*x509.Certificate
	for _, d := range all {
		if _, err := p.RemoveDevice(t.Context(), d.id, false, time.Now()); err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, &x509.Certificate{RawSubjectPublicKeyInfo: public(t, d)})
	}
	until(t, "the removals are known", func() bool {
		_, first := p.Service.Look(all[0].id, leaves[0])
		_, second := p.Service.Look(all[1].id, leaves[1])
		return errors.Is(first, fault.ErrDenied) && errors.Is(second, fault.ErrDenied)
	})
	p.Registry(pull, "")
	p.Skew(2 * time.Minute)
	until(t, "their accounts are deleted", func() bool { return len(h.Robots()) == 0 })
}

// An account that cannot be deleted keeps no other one from being deleted.
func TestOneAccountThatStays(t *testing.T) {
	pull := &stubborn{}
	p := enrolltest.Start(t, pull)
	for _, id := range []string{"press-07", "press-08"} {
		d := newDevice(t, p, id)
		d.is(t, protocol.Pending)
		if err := d.approve(t, id); err != nil {
			t.Fatal(err)
		}
		d.is(t, protocol.Approved)
		pull.mu.Lock()
		pull.stays = cmp.Or(pull.stays, d.print) // the first, by name
		pull.mu.Unlock()
	}
	for _, id := range []string{"press-07", "press-08"} {
		if _, err := p.RemoveDevice(t.Context(), id, false, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "one is withdrawn", func() bool {
		due, err := p.ListEnrollments(t.Context(), store.EnrollmentQuery{Withdraw: true})
		return err == nil && len(due) == 1 && due[0].Device == "press-07"
	})
}

// stubborn is a registry with an account that cannot be deleted.
type stubborn struct {
	mu    sync.Mutex
	stays string
}

func (*stubborn) Give(context.Context, string, string) (protocol.Login, error) {
	return protocol.Login{Host: "harbor.acme.example"}, nil
}
func (*stubborn) Handle(key digest.Digest) string { return key.String() }
func (s *stubborn) Withdraw(_ context.Context, handle string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if handle == s.stays {
		return fault.ErrConfig
	}
	return nil
}

func public(t *testing.T, d *device) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(d.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// A registry that gives no credential is a fault of the manager: the device tries again, and does not learn what the manager may do there.
func TestNoCredential(t *testing.T) {
	for _, kind := range []error{fault.ErrDenied, fault.ErrUnauthenticated, fault.ErrInvalid, fault.ErrConflict} {
		p := enrolltest.Start(t, refusing{kind})
		d := newDevice(t, p, "press-07")
		d.is(t, protocol.Pending)
		if err := d.approve(t, "press-07"); err != nil {
			t.Fatal(err)
		}
		if a, err := d.ask(t); !errors.Is(err, fault.ErrTemporary) || errors.Is(err, fault.ErrDenied) || strings.Contains(err.Error(), "robot") || a.Grant != nil {
			t.Errorf("%v: %+v, %v", kind, a, err)
		}
	}
}

// refusing is a registry that rejects the manager's own account.
type refusing struct{ err error }

func (r refusing) Give(context.Context, string, string) (protocol.Login, error) {
	return protocol.Login{}, fmt.Errorf("create a robot account: %w", r.err)
}
func (refusing) Handle(digest.Digest) string            { return "1" }
func (refusing) Withdraw(context.Context, string) error { return nil }

// A device that is not approved receives nothing, two devices never share an identity, an approval for one key never serves another.
func TestAttacks(t *testing.T) {
	p := enrolltest.Start(t, nil)
	good, evil := newDevice(t, p, "press-07"), newDevice(t, p, "press-07")
	good.is(t, protocol.Pending)
	evil.is(t, protocol.Pending)
	if err := good.approve(t, "press-07"); err != nil {
		t.Fatal(err)
	}
	evil.is(t, protocol.Pending) // it asked for the same id
	if err := evil.approve(t, "press-07"); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("a second key for an enrolled id: %v", err)
	}
	evil.is(t, protocol.Pending)
	c := leaf(t, good.is(t, protocol.Approved).Grant, good)
	// A certificate for the same id and another key, of the same authority.
	other, err := p.Authority.Certify(evil.key.Public(), identity.Name{TrustDomain: "plant.acme.example", Manager: "main", Client: "press-07"}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Service.Look("press-07", other); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("another key with the id of an enrolled device: %v", err)
	}
	if known, err := p.Service.Look("press-08", c); known || err != nil {
		t.Errorf("another id with the key of an enrolled device: %v, %v", known, err)
	}
	evil.id = "line-a/press-09"
	if _, err := evil.ask(t); err == nil {
		t.Error("an id that a SPIFFE id cannot have")
	}
	evil.id = "press-09"
	if err := p.DenyEnrollment(t.Context(), evil.print, "not ours", time.Now()); err != nil {
		t.Fatal(err)
	}
	if a := evil.is(t, protocol.Denied); a.Reason != "not ours" {
		t.Errorf("reason %q", a.Reason)
	}
	if a, err := evil.check(t); err != nil || a.Status != protocol.Denied || a.TrustBundle != nil {
		t.Errorf("a check of a denied device: %+v, %v", a, err)
	}
}

func (d *device) check(t *testing.T) (protocol.Answer, error) {
	t.Helper()
	c, err := protocol.New(d.options())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.Ask(t.Context(), protocol.Request{Check: true})
}

// A join token is for one device, whoever is faster.
func TestJoinToken(t *testing.T) {
	p := enrolltest.Start(t, nil)
	mint := func(device string, lifetime time.Duration) string {
		text, token := enroll.MintToken(device, digest.FromString("pin"), time.Now(), lifetime)
		if err := p.AddJoinTokens(t.Context(), token); err != nil {
			t.Fatal(err)
		}
		return text
	}
	token := mint("press-07", time.Hour)
	devices := make([]*device, 10)
	errs, answers := make([]error, len(devices)), make([]protocol.Answer, len(devices))
	var wg sync.WaitGroup
	for i := range devices {
		devices[i] = newDevice(t, p, "")
		devices[i].token = token
		wg.Go(func() { answers[i], errs[i] = devices[i].ask(t) })
	}
	wg.Wait()
	in := 0
	for i, err := range errs {
		if err == nil && answers[i].Grant != nil && answers[i].Device == "press-07" {
			in++
		} else if !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "was used by another device") {
			t.Errorf("device %d: %+v, %v", i, answers[i], err)
		}
	}
	if in != 1 {
		t.Errorf("%d devices are in with one join token", in)
	}
	for name, text := range map[string]string{
		"expired": mint("press-08", -time.Second), "another secret": token[:len("lsj_")+17] + "aaaa", "no token": "lsj_", "another form": "abc", "long": "lsj_a_" + strings.Repeat("a", 1000),
	} {
		d := newDevice(t, p, "")
		d.token = text
		if a, err := d.ask(t); !errors.Is(err, fault.ErrDenied) {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
		if _, err := p.Enrollment(t.Context(), d.print); !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("%s: the key is stored: %v", name, err)
		}
	}
}

// What was recorded on one connection is worth nothing on another.
func TestReplay(t *testing.T) {
	p := enrolltest.Start(t, nil)
	good, evil := newDevice(t, p, "press-07"), newDevice(t, p, "press-07")
	good.is(t, protocol.Pending)
	if err := good.approve(t, "press-07"); err != nil {
		t.Fatal(err)
	}
	r, err := protocol.NewRequest(good.key)
	if err != nil {
		t.Fatal(err)
	}
	recorded, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if code, body := evil.post(t, bytes.NewReader(recorded)); code != http.StatusBadRequest || !strings.Contains(body, "of another key than the connection") {
		t.Errorf("a recorded request: %d %s", code, body)
	}
	if _, err := p.Enrollment(t.Context(), evil.print); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("whoever replays is stored: %v", err)
	}
}

// transport makes connections with the device's key, and no name.
func (d *device) transport(t *testing.T) *http.Transport {
	t.Helper()
	pair := identitytest.New(t).IssueKey(t, d.key, "spiffe://x/y", func(c *x509.Certificate) { c.URIs = nil })
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	return &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{certificate}, NextProtos: []string{protocol.Protocol, "http/1.1"}}}
}

// post sends a body on a connection with the device's key.
func (d *device) post(t *testing.T, body io.Reader) (int, string) {
	t.Helper()
	tr := d.transport(t)
	defer tr.CloseIdleConnections()
	res, err := (&http.Client{Transport: tr}).Post(d.URL+protocol.Path, "application/json", body)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(text)
}

// A good request by another method than POST is a problem, and the key is not stored.
func TestMethods(t *testing.T) {
	p := enrolltest.Start(t, nil)
	d := newDevice(t, p, "press-07")
	r, err := protocol.NewRequest(d.key)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	tr := d.transport(t)
	t.Cleanup(tr.CloseIdleConnections)
	for _, method := range []string{"GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"} {
		req, err := http.NewRequestWithContext(t.Context(), method, p.URL+protocol.Path, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		res, err := tr.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		h := res.Header
		if err != nil || res.StatusCode != http.StatusMethodNotAllowed || h.Get("Allow") != "POST" || h.Get("Content-Type") != margo.ProblemMediaType || h.Get("Cache-Control") != "no-store" {
			t.Errorf("%s = %s %v, %v", method, res.Status, h, err)
		}
		problem, err := margo.ParseProblem("problem", text)
		if method != "HEAD" && (err != nil || problem.Status != res.StatusCode || problem.Type != "about:blank" || problem.Retryable == nil || *problem.Retryable) {
			t.Errorf("%s is no problem document: %s, %v", method, text, err)
		}
	}
	if _, err := p.Enrollment(t.Context(), d.print); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("the key is stored: %v", err)
	}
	d.is(t, protocol.Pending)
}

// endless is a body of a gibibyte, which counts what was taken of it.
type endless struct{ taken atomic.Int64 } // the transport may still read when the answer is there

func (e *endless) Read(b []byte) (int, error) {
	if e.taken.Add(int64(len(b))) > 1<<30 {
		return 0, io.EOF
	}
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

func TestBodies(t *testing.T) {
	p := enrolltest.Start(t, nil)
	d := newDevice(t, p, "press-07")
	e := &endless{}
	if code, body := d.post(t, e); code != http.StatusBadRequest && !strings.Contains(body, "reset") && !strings.Contains(body, "broken pipe") && !strings.Contains(body, "closed") || e.taken.Load() > 64<<20 {
		t.Errorf("1 GiB: %d %s, %d bytes were taken", code, body, e.taken.Load())
	}
	d.is(t, protocol.Pending)

	hurried := newDevice(t, enrolltest.Start(t, nil, func(s *http.Server) { s.ReadTimeout = time.Second }), "press-07")
	slow, end := io.Pipe()
	defer end.Close()
	go func() { _, _ = end.Write([]byte("{")) }()
	if code, body := hurried.post(t, slow); code == http.StatusOK { // without an end it would take for ever
		t.Errorf("a slow body: %d %s", code, body)
	}
}

// A flood of devices that nobody knows stays bounded, and does not keep those out that are known.
func TestFlood(t *testing.T) {
	p := enrolltest.Start(t, nil)
	known := newDevice(t, p, "press-07")
	if _, err := p.ApproveEnrollment(t.Context(), store.Approval{Key: known.print, Device: "press-07", Ahead: true, At: time.Now()}); err != nil {
		t.Fatal(err)
	}
	for i := range store.MaxPendingAddress {
		if _, err := p.RequestEnrollment(t.Context(), store.EnrollmentRequest{Key: fmt.Sprint(i), Address: "127.0.0.1", At: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	late := newDevice(t, p, "press-08")
	_, err := late.ask(t)
	if after, _ := fault.RetryAfter(err); !errors.Is(err, fault.ErrTemporary) || after != time.Minute {
		t.Errorf("one more: %v, again after %s", err, after)
	}
	known.is(t, protocol.Approved)
}

// A manager whose clock is wrong is told apart from a wrong manager, and gives nothing.
func TestManagersClock(t *testing.T) {
	p := enrolltest.Start(t, nil)
	d := newDevice(t, p, "press-07")
	d.is(t, protocol.Pending)
	if err := d.approve(t, "press-07"); err != nil {
		t.Fatal(err)
	}
	p.Skew(24 * time.Hour)
	if a, err := d.ask(t); !errors.Is(err, fault.ErrUnauthenticated) || !strings.Contains(fault.Hint(err), "clocks") {
		t.Errorf("a manager of tomorrow: %+v, %v (%s)", a, err, fault.Hint(err))
	}
	p.Skew(0)
	if e, err := p.Enrollment(t.Context(), d.print); err != nil || !e.Certified.IsZero() {
		t.Errorf("a certificate was issued: %+v, %v", e, err)
	}
	d.is(t, protocol.Approved)
}
