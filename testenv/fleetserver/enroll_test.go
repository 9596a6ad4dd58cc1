package fleetserver_test

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/enroll"
	"github.com/longshore-dev/longshore/identity/identitytest"
	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/fleetserver"
)

// newcomer is a device that enrolls.
type newcomer struct {
	s    *server
	id   string
	key  crypto.Signer
	own  *identity.Credentials // nil: it is not enrolled yet
	http *http.Client
}

// Credentials implements [identity.Source].
func (d *newcomer) Credentials() (*identity.Credentials, error) { return d.own, nil }

// ask sends a request for a certificate, or a check with the certificate.
func (d *newcomer) ask() enroll.Answer {
	d.s.t.Helper()
	o := enroll.Options{URL: d.s.URL, Key: d.key, Now: time.Now}
	r := enroll.Request{Check: true, Device: d.id}
	var err error
	if d.own != nil {
		o.Enrolled = d
	} else if o.Trust.Anchors, err = enroll.Anchors(d.s.t.Context(), o); err == nil {
		r, err = enroll.NewRequest(d.key)
		r.Device = d.id
	}
	if err != nil {
		d.s.t.Fatal(err)
	}
	c, err := enroll.New(o)
	if err != nil {
		d.s.t.Fatal(err)
	}
	defer c.Close()
	a, err := c.Ask(d.s.t.Context(), r)
	if err != nil {
		d.s.t.Fatal(err)
	}
	return a
}

func (d *newcomer) fingerprint() string {
	d.s.t.Helper()
	f, err := identity.Fingerprint(d.key.Public())
	if err != nil {
		d.s.t.Fatal(err)
	}
	return f.String()
}

// enroll enrolls a device that is expected.
func (s *server) enroll(id string) *newcomer {
	s.t.Helper()
	d := &newcomer{s: s, id: id, key: identitytest.NewKey(s.t)}
	s.command("devices", "approve", id, "--expect", d.fingerprint()) // what fails shows in the answer
	a := d.ask()
	if a.Grant == nil {
		s.t.Fatalf("%s is told %+v", id, a)
	}
	var err error
	if d.own, err = a.Grant.Check(enroll.Expected{Key: d.key, Device: id, Manager: identity.Name{TrustDomain: fleetserver.Domain, Manager: fleetserver.Manager}, Now: time.Now()}); err != nil {
		s.t.Fatal(err)
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{{Certificate: [][]byte{d.own.SVID.Leaf().Raw}, PrivateKey: d.key}}}}
	s.t.Cleanup(tr.CloseIdleConnections)
	d.http = &http.Client{Transport: tr, Timeout: time.Minute}
	return d
}

// state is the device's desired state, as soon as the manager knows the device.
func (d *newcomer) state() []byte {
	d.s.t.Helper()
	var body []byte
	testenv.Eventually(d.s.t, time.Minute, "the manager serves "+d.id, func() error {
		a := d.s.do(d.http, "GET", "/api/v1/deployments", "")
		if body = a.Body; a.Code != 200 {
			return os.ErrPermission
		}
		return nil
	})
	return body
}

// forgotten wants a device whose record is lost to wait for a decision, and to be told so.
func (d *newcomer) forgotten() {
	d.s.t.Helper()
	a := d.s.do(d.http, "GET", "/api/v1/deployments", "")
	if a.Code != 403 || !strings.Contains(string(a.Body), d.id+" is neither enrolled at this manager nor an accepted client; see longshore-fleet devices pending, then approve") {
		d.s.t.Errorf("GET as %s = %d %s", d.id, a.Code, a.Body)
	}
	for range 2 {
		if a := d.ask(); a.Status != enroll.Pending || a.Grant != nil {
			d.s.t.Errorf("%s is told %+v", d.id, a)
		}
	}
	if got := d.s.pending(); len(got) != 1 || got[d.id] != d.fingerprint() {
		d.s.t.Errorf("pending: %v, want %s once", got, d.id)
	}
}

// pending are the devices that wait for a decision, and the fingerprints of their keys.
func (s *server) pending() map[string]string {
	s.t.Helper()
	text, code := s.command("devices", "pending", "-o", "json")
	var all []struct{ Device, Fingerprint string }
	if err := json.Unmarshal([]byte(text), &all); code != 0 || err != nil {
		s.t.Fatalf("devices pending = %d %s, %v", code, text, err)
	}
	out := map[string]string{}
	for _, d := range all {
		out[d.Device] += d.Fingerprint
	}
	return out
}

// A manager that enrolls devices restores a backup: what is in it goes on as before. A device that came later, and all devices where
// there is no backup, are told to be approved again; they keep key and certificate, and their state is found in the registry.
func TestEnrollmentsLost(t *testing.T) {
	s := start(t, fleetserver.Options{Enroll: true})
	for i, id := range []string{"press-07", "press-08"} {
		if err := s.Publish(t.Context(), id, uint64(i+3), "web"); err != nil {
			t.Fatal(err)
		}
	}
	seven := s.enroll("press-07")
	served := seven.state()
	gone := s.enroll("press-09")
	backup := s.Path("backup.db")
	before := time.Now()
	if out, code := s.command("backup", backup); code != 0 {
		t.Fatalf("backup = %d %s", code, out)
	}
	after := time.Now()
	eight := s.enroll("press-08")
	eight.state()
	remove := func() {
		t.Helper()
		if out, code := s.command("devices", "remove", "press-09"); code != 0 {
			t.Fatalf("devices remove = %d %s", code, out)
		}
	}
	remove()
	s.Kill()
	s.lose(strings.Fields(everything)...)
	if err := os.Chtimes(backup, time.Now(), time.Now().Add(-48*time.Hour)); err != nil { // as some copies do
		t.Fatal(err)
	}
	out, code := s.command("restore", backup)
	_, text, _ := strings.Cut(out, "devices from "+backup+" of ")
	text, _, _ = strings.Cut(text, "\n")
	if made, err := time.Parse(time.RFC3339, text); code != 0 || err != nil || made.Before(before.Truncate(time.Second)) || made.After(after) || !strings.Contains(out, "longshore-fleet devices remove ID") {
		t.Fatalf("restore = %d %s, %v, want a backup from %s to %s", code, out, err, before, after)
	}
	remove() // the backup has it as enrolled
	s.restart()
	if a := gone.ask(); a.Status != enroll.Removed || a.Grant != nil {
		t.Errorf("after the restore the removed press-09 is told %+v", a)
	}
	if body := seven.state(); !bytes.Equal(body, served) {
		t.Errorf("after the restore press-07 is served %s, want %s", body, served)
	}
	if a := seven.ask(); a.Status != enroll.Approved {
		t.Errorf("after the restore press-07 is told %+v", a)
	}
	eight.forgotten()

	s.Kill()
	s.lose(strings.Fields(everything)...)
	s.restart()
	seven.forgotten()
	thief := &newcomer{s: s, id: "press-07", key: identitytest.NewKey(t)}
	if a := thief.ask(); a.Status != enroll.Pending || a.Grant != nil {
		t.Errorf("another key for press-07 is told %+v", a)
	}
	if out, code := s.command("devices", "approve", "press-07", "--fingerprint", seven.fingerprint()); code != 0 {
		t.Fatalf("approve = %d %s", code, out)
	}
	if body := seven.state(); !bytes.Equal(body, served) {
		t.Errorf("approved again, press-07 is served %s, want %s", body, served)
	}
	if a := seven.ask(); a.Status != enroll.Approved {
		t.Errorf("approved again, press-07 is told %+v", a)
	}
	if a := thief.ask(); a.Grant != nil || a.Status == enroll.Approved {
		t.Errorf("another key for press-07 is told %+v", a)
	}
}

// A server makes its authority once, as enroll.yaml says, and never another one in its place.
func TestOwnAuthority(t *testing.T) {
	s := start(t, fleetserver.Options{Enroll: true})
	d := s.enroll("press-07")
	files := map[string][]byte{}
	for name, mode := range map[string]os.FileMode{"ca/ca.crt": 0o644, "ca/ca.key": 0o600, "ca/bundle.json": 0o644} {
		info, err := os.Stat(s.Path(name))
		if err != nil || info.Mode().Perm() != mode {
			t.Fatalf("%s: %v, %v, want mode %04o", name, info, err, mode)
		}
		if files[name], err = os.ReadFile(s.Path(name)); err != nil {
			t.Fatal(err)
		}
	}
	s.Kill()
	s.restart()
	d.state()
	if n := strings.Count(s.Log(), "authority created"); n != 1 {
		t.Errorf("authority created %d times\n%s", n, s.Log())
	}
	for name, before := range files {
		if now, err := os.ReadFile(s.Path(name)); err != nil || !bytes.Equal(now, before) {
			t.Errorf("%s was replaced: %v", name, err)
		}
	}
	s.Kill()
	serve := func() (string, int) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), s.Program, "serve", "--listen", "127.0.0.1:0", "--mtls-listen", "127.0.0.1:0", "--database", s.Path("other.db"),
			"--state", s.Repo.Name(), "--enroll", s.Path("enroll.yaml"))
		out, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	s.lose("ca/ca.key")
	if out, code := serve(); code == 0 || !strings.Contains(out, "has no ca.key") || !strings.Contains(out, "restore the file") {
		t.Errorf("serve without the key = %d\n%s", code, out)
	}
	if err := os.WriteFile(s.Path("ca/ca.key"), files["ca/ca.key"], 0o600); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(s.Path("enroll.yaml"))
	if err == nil {
		err = os.WriteFile(s.Path("enroll.yaml"), bytes.Replace(text, []byte(fleetserver.Domain), []byte("other.example"), 1), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if out, code := serve(); code == 0 || !strings.Contains(out, "authority.trustDomain is other.example") {
		t.Errorf("serve with another trust domain = %d\n%s", code, out)
	}
	for name, before := range files {
		if now, err := os.ReadFile(s.Path(name)); err != nil || !bytes.Equal(now, before) {
			t.Errorf("%s was replaced: %v", name, err)
		}
	}
}
