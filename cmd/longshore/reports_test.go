package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/site"
	"github.com/longshore-dev/longshore/testenv"
)

// Reports travel back on a stick: once, in order, verified at the centre by the devices' keys.
func TestReportsOnAStick(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution) // the registry of the site
	centre := testenv.Registry(t, testenv.Distribution)
	s.write("certs.d/registry.graz.local/hosts.toml", "server = \""+s.server.URL+"\"\n")
	s.write("certs.d/centre.example/hosts.toml", "server = \""+centre.URL+"\"\n")
	const at, there = "registry.graz.local/plant/state", "centre.example/plant/state"
	s.do(outcome.NotFound, "export", "--reports", at, "stick")
	press, other := s.reporter("press-07"), s.reporter("gw/press-08")
	press.report(nil)
	other.report(nil)
	s.do(outcome.OK, "export", "--reports", at, "stick")
	s.do(outcome.OK, "verify", "device", "-q", "--key", "press-07.pub", "oci-layout:stick/reports:press-07") // offline, from the stick
	s.do(outcome.OK, "import", "--reports", "stick", there)
	s.do(outcome.OK, "import", "--reports", "-o", "json", "stick", there) // nothing twice
	s.do(outcome.OK, "verify", "device", "-q", "--key", "press-07.pub", there+":press-07")

	counter := func() uint64 {
		t.Helper()
		var r reportResult
		_, out, errs := s.try("verify", "device", "-o", "json", "--key", "press-07.pub", there+":press-07")
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatalf("%v\n%s", err, errs)
		}
		return r.Counter
	}
	press.report(nil)
	press.report(nil)
	s.do(outcome.OK, "export", "-o", "json", "--reports", at, "stick2") // a second stick, which is there first
	s.do(outcome.OK, "import", "--reports", "stick2", there)
	if got := counter(); got != 3 {
		t.Errorf("the centre has report %d", got)
	}
	s.do(outcome.OK, "import", "--reports", "stick", there) // the older stick
	if got := counter(); got != 3 {
		t.Errorf("the centre has report %d after the older stick", got)
	}
	press.report(nil)
	s.do(outcome.OK, "export", "--reports", at, "stick") // the same stick again
	s.do(outcome.OK, "import", "--reports", "stick", there)
	if got := counter(); got != 4 {
		t.Errorf("the centre has report %d", got)
	}

	// What somebody put there that is no report is named, and the others are carried.
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", host+"/plant/state:1.4.0")
	s.move("junk.current", "1.4.0")
	s.do(outcome.Verification, "export", "--reports", at, "stick3")
	var r reportsResult
	_, out, errs := s.try("import", "-o", "json", "--reports", "stick3", there)
	if err := json.Unmarshal([]byte(out), &r); err != nil || len(r.Reports) != 2 {
		t.Errorf("import = %+v, %v\n%s", r, err, errs)
	}
	for _, x := range r.Reports {
		if x.Outcome != site.ReportThere {
			t.Errorf("%s: %s %s", x.Tag, x.Outcome, x.Reason)
		}
	}
	// A report in a device's name, with a high number and another key, does not get past the keys.
	thief := s.reporter("thief")
	thief.id, thief.counter = "press-07", 1000
	thief.report(nil)
	if err := os.Mkdir("keys", 0o755); err != nil {
		t.Fatal(err)
	}
	s.write("keys/press-07.pub", string(mustRead(t, "press-07.pub")))
	s.do(outcome.Verification, "export", "-q", "--reports", at, "stick4") // junk.current is still there
	s.do(outcome.Verification, "import", "--reports", "--device-keys", "keys", "stick4", there)
	if got := counter(); got != 4 {
		t.Errorf("the centre has report %d", got)
	}
	s.do(outcome.Misused, "import", "--reports", "stick", "stick2", there)
	s.do(outcome.Misused, "export", "--reports", at+":"+artifacts.CurrentTag("press-07"), "stick")
	s.mask(`sha256:[0-9a-f]{12,64}`, "sha256:NEW", `("time": ")[^"]*`, "${1}TIME")
	s.golden(golden)
}

// The next export of reports repairs what is damaged of those on the stick, and an import says so.
func TestReportsOnADamagedStick(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.reporter("press-07").report(nil)
	s.do(outcome.OK, "export", "-q", "--reports", states, "stick")
	file, _ := largest(t, "stick/reports")
	name := "stick/reports/blobs/sha256/" + file.Encoded()
	data := mustRead(t, name)
	if err := os.Chmod(name, 0o600); err != nil {
		t.Fatal(err)
	}
	s.write(name, "x"+string(data[1:]))
	s.do(outcome.OK, "export", "-q", "--reports", "--check-media", states, "stick")
	if digest.FromBytes(mustRead(t, name)) != file {
		t.Error("the report is still damaged")
	}
	s.write("stick/reports/index.json", string(mustRead(t, "stick/reports/index.json")[:10]))
	s.refuses(outcome.Misused, []string{"stick/reports", "hint: ", "longshore export"}, "import", "-q", "--reports", "stick", siteHost+"/plant/state")
	s.do(outcome.OK, "export", "-q", "--reports", states, "stick")
	s.do(outcome.OK, "verify", "device", "-q", "--key", "press-07.pub", "oci-layout:stick/reports:press-07")
}

// What verifies no state reads no policy, which the environment may name for other commands.
func TestPolicyOfOtherCommands(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.reporter("press-07").report(nil)
	s.env["LONGSHORE_POLICY"] = "elsewhere/trust.yaml"
	s.do(outcome.OK, "export", "-q", "--reports", states, "stick")
	s.do(outcome.OK, "import", "-q", "--reports", "stick", host+"/copy/state")
	s.do(outcome.OK, "fleet", "check", "-q", "--offline", "plant")
	s.refuses(outcome.NotFound, []string{"elsewhere/trust.yaml"}, "fleet", "check", "plant")
}

// import --reports hands reports in to a fleet endpoint, with the viewers' password, and says what became of each.
func TestReportsToAnEndpoint(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	press, other := s.reporter("press-07"), s.reporter("press-08")
	press.report(nil)
	other.report(nil)
	s.do(outcome.OK, "export", "-q", "--reports", states, "stick")
	had := map[artifacts.DeviceID]uint64{}
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		bundle, err := io.ReadAll(r.Body)
		var c *artifacts.CurrentState
		if err == nil {
			c, err = artifacts.PeekCurrentState(bundle)
		}
		if err != nil || password != "secret" || r.Method != http.MethodPost || r.URL.Path != "/fleet/v1/reports" {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
			return
		}
		if c.Device == "press-08" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		stored := c.Counter > had[c.Device]
		had[c.Device] = max(had[c.Device], c.Counter)
		fmt.Fprintf(w, `{"stored":%v,"note":"transitions are missing"}`, stored)
	}))
	defer endpoint.Close()
	s.write("password", "secret\n")
	for _, want := range []string{site.ReportCarried, site.ReportThere} {
		var r reportsResult
		code, out, errs := s.try("import", "-o", "json", "--reports", "--endpoint", endpoint.URL, "--endpoint-password-file", "password", "stick")
		if err := json.Unmarshal([]byte(out), &r); err != nil || code != outcome.Verification || len(r.Reports) != 2 || r.Reports[0].Outcome != want || r.Reports[0].Note == "" || r.Reports[1].Outcome != site.ReportInvalid {
			t.Errorf("exit %d, %v, %+v, want %s\n%s", code, err, r, want, errs)
		}
	}
	if _, out, _ := s.try("import", "--reports", "--endpoint", endpoint.URL, "--endpoint-password-file", "password", "stick"); !strings.Contains(out, "press-07.current: transitions are missing") {
		t.Errorf("it is not told:\n%s", out)
	}
	asked, status := 0, http.StatusTooManyRequests
	full := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked++; asked > 1 {
			fmt.Fprint(w, `{"stored":true}`)
			return
		}
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(status)
	}))
	defer full.Close()
	var r reportsResult
	code, out, errs := s.try("import", "-o", "json", "--reports", "--endpoint", full.URL, "stick")
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != outcome.Temporary || r.Carried != 1 || len(r.Reports) != 2 || r.Reports[0].Outcome != site.ReportLater || !strings.Contains(errs, "429") {
		t.Errorf("a device over its quota: exit %d, %v, %+v\n%s", code, err, r, errs)
	}
	for _, status = range []int{http.StatusNotFound, http.StatusMethodNotAllowed} { // without --report-keys
		asked = 0
		if s.refuses(outcome.Misused, []string{"--report-keys"}, "import", "--reports", "--endpoint", full.URL, "stick"); asked != 1 {
			t.Errorf("%d requests, want one", asked)
		}
	}
	for _, flag := range []string{"--max-rate=1MB", "--max-bytes=1MB", "--window=22:00-06:00"} {
		s.refuses(outcome.Misused, []string{"cannot be used with --endpoint"}, "import", "--reports", flag, "--endpoint", full.URL, "stick")
	}
	endpoint.Close()
	s.refuses(outcome.Temporary, []string{"fleet endpoint"}, "import", "--reports", "--endpoint", endpoint.URL, "stick")
	s.refuses(outcome.Misused, []string{"--endpoint"}, "import", "--reports", "--endpoint", endpoint.URL, "stick", states)
	s.refuses(outcome.Misused, []string{"--reports"}, "import", "--endpoint", endpoint.URL, "stick", siteHost)
	s.env["LONGSHORE_ENDPOINT"] = endpoint.URL
	s.refuses(outcome.Misused, []string{"--reports"}, "import", "--endpoint", endpoint.URL, "stick", siteHost)
	delete(s.env, "LONGSHORE_ENDPOINT")
	s.refuses(outcome.Misused, []string{"registry of the site"}, "import", "stick")
}

// Reports beside the states are in nobody's way: the tags of reports are not devices.
func TestReportsBesideStates(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.site(testenv.Distribution)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.reporter("press-07").report(nil)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", "--set", "POLL_SECONDS=9", states)
	s.do(outcome.OK, "site", "plan", states, siteHost)
	s.do(outcome.OK, "mirror", "--key", "release.pub", states, siteHost)
	s.do(outcome.OK, "export", "--key", "release.pub", states, "stick")
	s.do(outcome.OK, "state", "prune", "-d", "press-07", "--keep", "1", "--dry-run", states)
	s.do(outcome.OK, "inspect", states+":press-07.current")
	// A stick that came with reports, and a receipt, takes states back.
	s.do(outcome.OK, "export", "-q", "--reports", states, "back")
	s.write("back/receipt.json", "{}")
	s.do(outcome.OK, "export", "-q", "--key", "release.pub", states, "back")
	s.do(outcome.OK, "import", "-q", "--key", "release.pub", "back", siteHost)
	s.write("other/holiday.jpg", "no layout")
	s.do(outcome.Misused, "export", "-q", "--key", "release.pub", states, "other")
}

// With the devices' keys a true report takes the place of what no key of its device has signed, whatever that is and says.
func TestTrueReportsReplaceFalseOnes(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	centre := testenv.Registry(t, testenv.Distribution)
	s.write("certs.d/registry.graz.local/hosts.toml", "server = \""+s.server.URL+"\"\n")
	s.write("certs.d/centre.example/hosts.toml", "server = \""+centre.URL+"\"\n")
	const at, there = "registry.graz.local/plant/state", "centre.example/plant/state"
	for _, id := range []string{"press-07", "press-08", "press-09"} {
		s.reporter(id).report(nil)
		s.write("keys/"+id+".pub", string(mustRead(t, id+".pub")))
	}
	s.do(outcome.OK, "export", "-q", "--reports", at, "stick")

	thief := s.reporter("thief")
	thief.id, thief.counter = "press-07", 1000
	thief.report(nil)
	d, err := s.repository().Resolve(t.Context(), "press-07.current")
	if err != nil {
		t.Fatal(err)
	}
	to := opened(t, centre.Reference("plant/state"))
	if _, err := to.CopyFrom(t.Context(), s.repository(), d.Digest, "press-07.current"); err != nil {
		t.Fatal(err)
	}
	if err := to.Tag(t.Context(), d, "press-08.current"); err != nil { // of another device
		t.Fatal(err)
	}
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", there+":1.4.0")
	junk, err := to.Resolve(t.Context(), "1.4.0")
	if err == nil {
		err = to.Tag(t.Context(), junk, "press-09.current") // no report
	}
	if err != nil {
		t.Fatal(err)
	}
	s.do(outcome.OK, "import", "--reports", "--device-keys", "keys", "stick", there)
	for _, id := range []string{"press-07", "press-08", "press-09"} {
		s.do(outcome.OK, "verify", "device", "-q", "--key", "keys/"+id+".pub", there+":"+id)
	}
}
