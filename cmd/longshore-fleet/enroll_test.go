package main

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite" // to make a database of another version

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/identity"
	protocol "github.com/longshore-dev/longshore/identity/enroll"
	"github.com/longshore-dev/longshore/identity/identitytest"
	"github.com/longshore-dev/longshore/testenv"
)

// enroller is a server that enrolls devices, with its files.
type enroller struct {
	dir string
	url string // by mutual TLS
	pin string // its fingerprint, as logged
	log *log
}

func (e *enroller) path(name string) string { return filepath.Join(e.dir, name) }

const settings = `url: https://fleet.acme.example:8443
trust: trust.yaml
source: {registry: oci://harbor.acme.example/plant/state}
registry: {login: {username: edge, passwordFile: password}}
`

// newEnroller writes what a server needs that enrolls devices.
func newEnroller(t *testing.T) *enroller {
	t.Helper()
	e := &enroller{dir: t.TempDir()}
	if code, _, errs := command(t, "ca", "init", "--trust-domain", "plant.acme.example", "--dir", e.path("ca")); code != 0 {
		t.Fatalf("ca init = %d\n%s", code, errs)
	}
	for name, text := range map[string]string{"enroll.yaml": settings, "trust.yaml": "rules: [{scope: harbor.acme.example/plant/**, allowUnsigned: true}]\n", "password": "s3cret\n"} {
		identitytest.Write(t, e.path(name), []byte(text))
	}
	return e
}

func (e *enroller) line(more ...string) []string {
	return append([]string{"--database", e.path("fleet.db"), "--mtls-listen", "127.0.0.1:0", "--enroll", e.path("enroll.yaml")}, more...)
}

var fingerprintAt = regexp.MustCompile(`fingerprint=(\S+)`)

func (e *enroller) start(t *testing.T) {
	t.Helper()
	_, e.log, _ = serve(t, e.line()...)
	await(t, "the second address", func() bool { return fingerprintAt.MatchString(e.log.String()) })
	e.url, e.pin = mutualAt.FindStringSubmatch(e.log.String())[1], fingerprintAt.FindStringSubmatch(e.log.String())[1]
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	testenv.Eventually(t, time.Minute, what, func() error {
		if !is() {
			return errors.New("still not")
		}
		return nil
	})
}

// ask sends the request of a device, which knows only the fingerprint.
func (e *enroller) ask(t *testing.T, key crypto.Signer, device, token string) (protocol.Answer, error) {
	t.Helper()
	o := protocol.Options{URL: e.url, Key: key, Now: time.Now}
	anchors, err := protocol.Anchors(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	o.Trust.Anchors = anchors
	bundle, err := identity.ParseBundle("of the manager", anchors, "plant.acme.example")
	if err != nil {
		t.Fatal(err)
	}
	if f, err := protocol.ManagerFingerprint(bundle); err != nil || f.String() != e.pin {
		t.Errorf("the log shows the fingerprint %s, and it is %s, %v", e.pin, f, err)
	}
	c, err := protocol.New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r, err := protocol.NewRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	r.Device, r.Token = device, token
	return c.Ask(t.Context(), r)
}

// run runs a command with the server's database.
func (e *enroller) run(t *testing.T, args ...string) string {
	t.Helper()
	code, out, errs := command(t, append(args, "--database", e.path("fleet.db"))...)
	if code != 0 {
		t.Fatalf("%v = %d\n%s", args, code, errs)
	}
	return out
}

// newKey makes the key of a device, and its fingerprint.
func newKey(t *testing.T) (crypto.Signer, string) {
	t.Helper()
	key := identitytest.NewKey(t)
	print, err := identity.Fingerprint(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return key, print.String()
}

// devices is "devices list" of a state.
func (e *enroller) devices(t *testing.T, state string) []deviceInfo {
	t.Helper()
	var all []deviceInfo
	if err := json.Unmarshal([]byte(e.run(t, "devices", "list", "--state", state, "-o", "json")), &all); err != nil {
		t.Fatal(err)
	}
	return all
}

// An operator approves a device by its key, beside the running server; it uses its certificate until it is removed.
func TestServeEnroll(t *testing.T) {
	e := newEnroller(t)
	e.start(t)
	key, print := newKey(t)
	if a, err := e.ask(t, key, "press-07", ""); err != nil || a.Status != protocol.Pending {
		t.Fatalf("a new device: %+v, %v", a, err)
	}
	if out := e.run(t, "devices", "pending"); !strings.Contains(out, "press-07") || !strings.Contains(out, print) {
		t.Errorf("devices pending:\n%s", out)
	}
	e.run(t, "devices", "approve", "press-07", "--fingerprint", print)

	identitytest.Write(t, e.path("enroll.yaml"), []byte(settings+"trsut: x\n")) // while the server runs
	if a, err := e.ask(t, key, "press-07", ""); !errors.Is(err, fault.ErrTemporary) || a.Grant != nil || !strings.Contains(e.log.String(), "enroll.yaml:5") {
		t.Errorf("with damaged settings: %+v, %v\n%s", a, err, e.log)
	}
	identitytest.Write(t, e.path("enroll.yaml"), []byte(settings))
	var g *protocol.Grant
	await(t, "the device is enrolled", func() bool { // it asked a moment ago
		a, err := e.ask(t, key, "press-07", "")
		g = a.Grant
		return err == nil
	})
	if g == nil || len(g.Registries) != 1 || g.Registries[0] != (protocol.Login{Host: "harbor.acme.example", Username: "edge", Password: "s3cret"}) || !strings.Contains(g.Trust.Document, "allowUnsigned") {
		t.Fatalf("grant %+v", g)
	}
	if strings.Contains(e.log.String(), "s3cret") {
		t.Error("the log has the password")
	}
	own, err := g.Check(protocol.Expected{Key: key, Device: "press-07", Manager: identity.Name{TrustDomain: "plant.acme.example", Manager: "main"}, Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{{Certificate: [][]byte{own.SVID.Leaf().Raw}, PrivateKey: key}}}}
	t.Cleanup(tr.CloseIdleConnections)
	put := func() int {
		code, _ := do(t, &http.Client{Transport: tr}, "PUT", e.url+"/api/v1/capabilities/press-07", "", gateway)
		return code
	}
	if code := put(); code != 201 {
		t.Errorf("PUT with the certificate = %d", code)
	}
	e.run(t, "devices", "remove", "press-07", "--wipe")
	await(t, "the certificate is rejected, on an open connection", func() bool { return put() == 403 })
	if a, err := e.ask(t, key, "press-07", ""); err != nil || a.Status != protocol.Removed || !a.Wipe {
		t.Errorf("a removed device is told %+v, %v", a, err)
	}
}

// A denied device is told the reason. Its key can be approved later; an enrolled device cannot be denied.
func TestServeDeny(t *testing.T) {
	e := newEnroller(t)
	e.start(t)
	key, print := newKey(t)
	if a, err := e.ask(t, key, "press-07", ""); err != nil || a.Status != protocol.Pending {
		t.Fatalf("a new device: %+v, %v", a, err)
	}
	if out := e.run(t, "devices", "deny", "--fingerprint", print, "--reason", "not ours, ask hall 3"); out != "denied "+print+"\n" {
		t.Errorf("devices deny: %q", out)
	}
	if a, err := e.ask(t, key, "press-07", ""); err != nil || a.Status != protocol.Denied || a.Reason != "not ours, ask hall 3" || a.Grant != nil || a.TrustBundle != nil {
		t.Errorf("a denied device is told %+v, %v", a, err)
	}
	if all := e.devices(t, "denied"); len(all) != 1 || all[0].Fingerprint != print || all[0].Reason != "not ours, ask hall 3" || all[0].Decided.IsZero() {
		t.Errorf("denied devices %+v", all)
	}
	if out := e.run(t, "devices", "pending"); strings.Contains(out, print) {
		t.Errorf("a denied device is pending:\n%s", out)
	}
	e.run(t, "devices", "approve", "press-07", "--fingerprint", print)
	if a, err := e.ask(t, key, "press-07", ""); err != nil || a.Status != protocol.Approved || a.Grant == nil || a.Reason != "" {
		t.Errorf("approved after all: %+v, %v", a, err)
	}
	if code, out, errs := command(t, "devices", "deny", "--fingerprint", print, "--database", e.path("fleet.db")); code == 0 || out != "" || !strings.Contains(errs, "longshore-fleet devices remove") {
		t.Errorf("deny an enrolled device = %d %s\n%s", code, out, errs)
	}
}

// A device whose key is approved before it asks gets its certificate at once, with the id of the approval, unless that has expired.
func TestServeExpected(t *testing.T) {
	e := newEnroller(t)
	e.start(t)
	key, print := newKey(t)
	if out := e.run(t, "devices", "approve", "press-07", "--expect", print); out != "press-07 is expected with the key "+print+"\n" {
		t.Errorf("devices approve --expect: %q", out)
	}
	if all := e.devices(t, "expected"); len(all) != 1 || all[0].Device != "press-07" || all[0].Fingerprint != print || all[0].Expires.Sub(all[0].Decided) != expectTTL {
		t.Errorf("expected devices %+v", all)
	}
	a, err := e.ask(t, key, "press-99", "")
	if err != nil || a.Status != protocol.Approved || a.Device != "press-07" || a.Grant == nil {
		t.Fatalf("an expected device: %+v, %v", a, err)
	}
	if _, err := a.Grant.Check(protocol.Expected{Key: key, Device: "press-07", Manager: identity.Name{TrustDomain: "plant.acme.example", Manager: "main"}, Now: time.Now()}); err != nil {
		t.Error(err)
	}
	if all := e.devices(t, "approved"); len(all) != 1 || all[0].Device != "press-07" || all[0].Certificate.IsZero() {
		t.Errorf("approved devices %+v", all)
	}
	for expires, want := range map[string]struct {
		after  time.Duration
		status protocol.Status
	}{"24h": {24 * time.Hour, protocol.Approved}, "0": {0, protocol.Approved}, "1ns": {1, protocol.Pending}} {
		key, print := newKey(t)
		device := "press-for-" + expires
		var made deviceInfo
		if err := json.Unmarshal([]byte(e.run(t, "devices", "approve", device, "--expect", print, "--expires", expires, "-o", "json")), &made); err != nil {
			t.Fatal(err)
		}
		if made.State != "expected" || made.Device != device || want.after == 0 && !made.Expires.IsZero() || want.after != 0 && made.Expires.Sub(made.Decided) != want.after {
			t.Errorf("--expires %s: %+v", expires, made)
		}
		if a, err := e.ask(t, key, device, ""); err != nil || a.Status != want.status || (a.Grant != nil) != (want.status == protocol.Approved) {
			t.Errorf("--expires %s: the device is told %+v, %v", expires, a, err)
		}
	}
}

// On a connection of a device without a certificate all but enrollment and the trust bundle is a problem document, and stores nothing.
func TestEnrollOtherRequests(t *testing.T) {
	e := newEnroller(t)
	e.start(t)
	pair := identitytest.New(t).Issue(t, managerID, func(c *x509.Certificate) { c.URIs = nil })
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{certificate}, NextProtos: []string{protocol.Protocol, "http/1.1"}}}
	t.Cleanup(tr.CloseIdleConnections)
	for _, tt := range []struct {
		path  string
		right []string // methods that are answered otherwise
		code  int
		allow string
	}{
		{protocol.Path, []string{"POST"}, 405, "POST"},
		{"/.well-known/spiffe/bundle.json", []string{"GET", "HEAD"}, 405, "GET, HEAD"},
		{protocol.Path + "/", nil, 404, ""},
		{"/enroll/v1", nil, 404, ""},
		{"/.well-known/margo", nil, 404, ""},
		{"/api/v1/deployments", nil, 404, ""},
		{"/api/v1/capabilities/press-07", nil, 404, ""},
	} {
		for _, method := range []string{"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"} {
			if slices.Contains(tt.right, method) {
				continue
			}
			req, err := http.NewRequestWithContext(t.Context(), method, e.url+tt.path, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			res, err := tr.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if err != nil || res.StatusCode != tt.code || res.Header.Get("Allow") != tt.allow || res.Header.Get("Content-Type") != margo.ProblemMediaType {
				t.Errorf("%s %s = %d, Allow %q, %s, %v", method, tt.path, res.StatusCode, res.Header.Get("Allow"), res.Header.Get("Content-Type"), err)
			}
			if p, err := margo.ParseProblem("problem", body); method != "HEAD" && (err != nil || p.Status != tt.code || p.Type != "about:blank") {
				t.Errorf("%s %s is no problem document: %s, %v", method, tt.path, body, err)
			}
		}
	}
	if all := e.devices(t, "pending"); len(all) != 0 {
		t.Errorf("pending devices %+v", all)
	}
}

// A join token of the command is good for one device, and one that was revoked for none.
func TestServeJoinToken(t *testing.T) {
	e := newEnroller(t)
	e.start(t)
	token := strings.TrimSpace(e.run(t, "join-token", "create", "--device", "press-07", "--trust-bundle", e.path("ca/bundle.json")))
	if !strings.HasSuffix(token, "_"+strings.TrimPrefix(e.pin, "sha256:")) {
		t.Errorf("join token %s has not the fingerprint %s", token, e.pin)
	}
	if a, err := e.ask(t, identitytest.NewKey(t), "", token); err != nil || a.Device != "press-07" || a.Grant == nil {
		t.Errorf("with the token: %+v, %v", a, err)
	}
	if a, err := e.ask(t, identitytest.NewKey(t), "", token); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("a second device with the token: %+v, %v", a, err)
	}
	var made joinTokenInfo
	if err := json.Unmarshal([]byte(e.run(t, "join-token", "create", "--device", "press-08", "-o", "json")), &made); err != nil {
		t.Fatal(err)
	}
	e.run(t, "join-token", "revoke", made.ID)
	if a, err := e.ask(t, identitytest.NewKey(t), "", made.Token); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("with a revoked token: %+v, %v", a, err)
	}
}

var until = regexp.MustCompile(`until (\S+); it is not shown again`)

// How long a join token is valid is shown where it is created and listed, and then it is over.
func TestJoinTokenExpires(t *testing.T) {
	e := newEnroller(t)
	e.start(t)
	code, text, errs := command(t, "join-token", "create", "--device", "press-07", "--expires", "90m", "--database", e.path("fleet.db"))
	shown := until.FindStringSubmatch(errs)
	if code != 0 || shown == nil {
		t.Fatalf("join-token create = %d\n%s", code, errs)
	}
	end, err := time.Parse(time.RFC3339, shown[1])
	if err != nil {
		t.Fatal(err)
	}
	var listed []joinTokenInfo
	if err := json.Unmarshal([]byte(e.run(t, "join-token", "list", "-o", "json")), &listed); err != nil {
		t.Fatal(err)
	}
	if len(listed) != 1 || listed[0].Expires.Sub(listed[0].Created) != 90*time.Minute || !listed[0].Expires.Truncate(time.Second).Equal(end) || listed[0].Token != "" {
		t.Errorf("join-token create shows %s, list %+v", end, listed)
	}
	if out := e.run(t, "join-token", "list"); !strings.Contains(out, date(listed[0].Expires)) || strings.Contains(out, strings.TrimSpace(text)) {
		t.Errorf("join-token list lacks %s, or has the token:\n%s", date(listed[0].Expires), out)
	}
	var made joinTokenInfo
	if err := json.Unmarshal([]byte(e.run(t, "join-token", "create", "--device", "press-08", "--expires", "1ns", "-o", "json")), &made); err != nil {
		t.Fatal(err)
	}
	if a, err := e.ask(t, identitytest.NewKey(t), "", made.Token); made.Expires.Sub(made.Created) != 1 || !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("with an expired token %+v: %+v, %v", made, a, err)
	}
}

// A server whose settings are wrong does not start, and names all faults at once, each with its line and its path.
func TestEnrollMisuse(t *testing.T) {
	var b bytes.Buffer
	for _, tt := range []struct{ name, text string }{
		{"everything", `url: http://fleet.acme.example/path
trsut: trust.yaml
lifetime: 5s
authority: {dir: ca, keys: pkcs11}
source: {registry: harbor.acme.example/plant/state:press-07, margo: maybe}
registry:
  login: {username: edge}
  harbor: {url: harbor.acme.example, project: ''}
`},
		{"nothing", ""},
		{"no source of states", "url: https://fleet.acme.example:8443\nsource: {margo: false}\n"},
		{"a login for no registry", "url: https://fleet.acme.example:8443\nsource: {margo: true}\nregistry:\n  login: {username: edge, passwordFile: password}\n"},
		{"a login for no name of a registry", "url: https://fleet.acme.example:8443\nsource: {margo: true}\nregistry:\n  login: {host: 'https://harbor', username: edge, passwordFile: password}\n"},
		{"a login for a repository", "url: https://fleet.acme.example:8443\nsource: {margo: true}\nregistry:\n  login: {host: harbor.example/plant, username: edge, passwordFile: password}\n"},
		{"a login for another registry than that of the states", "url: https://fleet.acme.example:8443\nsource: {registry: harbor.acme.example/plant/state}\nregistry:\n  login: {host: 'harbor.acme.example:5000', username: edge, passwordFile: password}\n"},
		{"a server without states", "url: https://fleet.acme.example:8443\nsource: {margo: true}\n"},
		{"torn", "url: [\n"},
		{"no authority", strings.Replace(settings, "trust: trust.yaml", "authority: {dir: nowhere}", 1)},
		{"another trust domain", settings + "authority: {trustDomain: other.example}\n"},
		{"no id of a manager", settings + "authority: {manager: 'a b'}\n"},
		{"no trust policy", strings.Replace(settings, "trust.yaml", "nowhere.yaml", 1)},
		{"an empty password", strings.Replace(settings, "passwordFile: password", "passwordFile: empty", 1)},
	} {
		e := newEnroller(t)
		identitytest.Write(t, e.path("enroll.yaml"), []byte(tt.text))
		identitytest.Write(t, e.path("empty"), []byte("\n"))
		code, _, errs := command(t, append([]string{"serve", "--listen", "127.0.0.1:0"}, e.line()...)...)
		fmt.Fprintf(&b, "# %s\n%s%d\n\n", tt.name, strings.ReplaceAll(errs, e.dir+"/", ""), code)
		if _, err := os.Lstat(e.path("fleet.db")); !os.IsNotExist(err) {
			t.Errorf("%s: a database was made: %v", tt.name, err)
		}
	}
	golden(t, "enroll.golden", b.Bytes())
}

// The authority of devices must be one that they trust.
func TestEnrollOtherAuthority(t *testing.T) {
	e := newEnroller(t)
	a := identitytest.New(t)
	cert, key := a.Issue(t, managerID, nil).Write(t, e.dir, "main")
	identitytest.Write(t, e.path("bundle.pem"), a.PEM())
	line := append([]string{"serve", "--listen", "127.0.0.1:0"}, e.line("--svid-cert", cert, "--svid-key", key, "--trust-bundle", e.path("bundle.pem"))...)
	if code, _, errs := command(t, line...); code != 2 || !strings.Contains(errs, "is not in the trust bundle of this manager") || !strings.Contains(errs, "add its certificate to the file of --trust-bundle") {
		t.Errorf("serve = %d\n%s", code, errs)
	}
}

// A database of a newer version is left as it is, by the server and by the commands beside it.
func TestNewerDatabase(t *testing.T) {
	e := newEnroller(t)
	e.run(t, "token", "create", "--device", "press-07")
	db, err := sql.Open("sqlite", e.path("fleet.db"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), "PRAGMA journal_mode = DELETE; INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, 1)"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(e.path("fleet.db"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range [][]string{
		append([]string{"serve", "--listen", "127.0.0.1:0"}, e.line()...),
		{"devices", "pending", "--database", e.path("fleet.db")},
		{"devices", "approve", "press-07", "--expect", "sha256:" + strings.Repeat("a", 64), "--database", e.path("fleet.db")},
		{"join-token", "create", "--database", e.path("fleet.db")},
	} {
		if code, out, errs := command(t, line...); code == 0 || out != "" || !strings.Contains(errs, "made by a newer version") || !strings.Contains(errs, "use the newer longshore-fleet") {
			t.Errorf("%v = %d %s\n%s", line, code, out, errs)
		}
	}
	db, err = sql.Open("sqlite", e.path("fleet.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var devices, tokens int
	if err := db.QueryRowContext(t.Context(), "SELECT (SELECT count(*) FROM enrollments), (SELECT count(*) FROM join_tokens)").Scan(&devices, &tokens); err != nil || devices+tokens != 0 {
		t.Errorf("%d devices, %d tokens, %v", devices, tokens, err)
	}
	if after, err := os.ReadFile(e.path("fleet.db")); err != nil || len(after) < len(before) {
		t.Errorf("the file has %d bytes, %d before, %v", len(after), len(before), err)
	}
}
