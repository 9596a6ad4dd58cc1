package main

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// badInput is one thing that goes wrong with a fleet whose first generation is published.
type badInput struct {
	name    string
	prepare func(s *shell)
	args    []string // "fleet" stands before them; DIR is the fleet's directory
	code    int
	done    string   // in standard output; "": nothing is there
	says    []string // in standard error, each once
	lines   int      // of standard error, hints not counted; 0: as many as says
}

func edit(pairs ...string) func(*shell) {
	return func(s *shell) {
		for i := 0; i < len(pairs); i += 3 {
			s.change(pairs[i], pairs[i+1], pairs[i+2])
		}
	}
}

// filler makes a file of 50 MB.
func filler(name, line string) func(*shell) {
	return func(s *shell) { s.write(name, strings.Repeat(line, 50<<20/len(line))) }
}

func badInputs() []badInput {
	const file, devices = "bad/fleet.yaml", "bad/devices/all.yaml"
	changed := edit(file, "poll: 10", "poll: 12", file, "{place: Graz}", "{place: Graz, poll: 11}") // press-07, press-09
	publish := []string{"publish", "--key", "release.key", "DIR"}
	broken := func(r testenv.Rule) func(*shell) {
		return func(s *shell) { changed(s); s.server.Faults.Add(r) }
	}
	said := func(status int, body string) testenv.Effect {
		return func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}
	}
	var ended atomic.Bool // the token is good until the first device has its state
	expiring := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if ended.Load() && !strings.Contains(r.URL.Path, "press-07") {
			said(http.StatusUnauthorized, `{"errors":[{"code":"UNAUTHORIZED","message":"token expired"}]}`)(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/manifests/press-07") {
			ended.Store(true)
		}
	}
	harbor := `{"errors":[{"code":"DENIED","message":"adding 1.2 KiB of storage resource, which when updated to current usage of 10.0 MiB will exceed the configured upper limit of 10.0 MiB."}]}`
	return []badInput{
		{
			name: "an unknown device on the command line", args: []string{"publish", "--key", "release.key", "--select", "device=press-99", "DIR"}, code: outcome.NotFound,
			says: []string{"--select device=press-99: not found: no device of the fleet matches"},
		},
		{
			name: "an unknown device in the files", prepare: edit(file, "exclude: device=press-1*", "exclude: device=press-99"), args: publish, code: outcome.Misused,
			says: []string{"bad/fleet.yaml:17:14: deployments.line.exclude:", "press-99"}, lines: 1,
		},
		{
			name: "a selector that matches nothing", prepare: edit(file, "select: group=line-a", "select: line=c"), args: publish, code: outcome.Misused,
			says: []string{"bad/fleet.yaml:", "line=c"}, lines: 1,
		},
		{name: "two deployments with one name", prepare: func(s *shell) {
			s.write("bad/devices/more.yaml", "deployments:\n  sensor: {application: sensor, select: line=b}\n")
		}, args: publish, code: outcome.Misused, says: []string{"bad/devices/more.yaml:2:3:", "sensor"}, lines: 1},
		{
			name: "a version that does not exist", prepare: edit(file, "version: 1.4.0", "version: 9.9.9"), args: publish, code: outcome.Misused,
			says: []string{"bad/fleet.yaml:6:", "components/sensor:9.9.9", "hint: there are: 1.4.0"}, lines: 1,
		},
		{name: "everything of a run together", prepare: edit(
			file, "poll: 10", "poll: 4000", // out of range
			file, "place: Graz", "place: Graz, palce: Wien", // no such parameter
			file, "version: 1.4.0", "version: 9.9.9", // no such version
			file, "select: group=line-a", "select: line=c", // nothing
			devices, "poll: 20", `poll: often`, // no number
		), args: publish, code: outcome.Misused, says: []string{"poll: 4000 is above 3600", "palce", "sensor:9.9.9", "no device is selected: select \"line=c\"\n  hint: of line there are: a, b", "bad/devices/all.yaml:3:"}},
		{
			name: "a fleet file of 50 MB", prepare: filler(file, "# nothing of use, and a lot of it\n"), args: publish, code: outcome.Misused,
			says: []string{"bad/fleet.yaml", "more than the 1048576 bytes that are allowed"}, lines: 1,
		},
		{
			name: "an included file of 50 MB", prepare: filler("bad/devices/more.yaml", "# nothing of use, and a lot of it\n"), args: publish, code: outcome.Misused,
			says: []string{"bad/devices/more.yaml", "more than the 1048576 bytes that are allowed", "hint: split it"}, lines: 1,
		},
		{
			name: "capabilities of 50 MB", prepare: filler("bad/capabilities/press.json", "                                "), args: publish, code: outcome.Misused,
			says: []string{"bad/fleet.yaml:10:19: groups.line-a.capabilities: capabilities/press.json: more than 4194304 bytes"},
		},
		{
			name: "a device twice", prepare: func(s *shell) { s.write("bad/devices/more.yaml", "devices: [{id: press-07}]\n") }, args: publish, code: outcome.Misused,
			says: []string{`bad/devices/more.yaml:1:16: devices[0].id: the device "press-07" is there already, at bad/devices/all.yaml:`},
		},
		{
			name: "a plan of 70 MB", prepare: func(s *shell) { s.write("plan.json", strings.Repeat(" ", 70<<20)) },
			args: []string{"publish", "--key", "release.key", "--plan", "plan.json", "DIR"}, code: outcome.Misused, says: []string{"plan.json"},
		},
		{
			name: "a registry that is full", prepare: broken(testenv.Rule{Method: http.MethodPut, Path: "/plant/state/(blobs|manifests)/", Skip: 4, Effect: said(507, "")}),
			args: publish, code: outcome.Other, says: []string{"507 Insufficient Storage: no room left", "hint: the registry has no room left"}, lines: 1,
		},
		{
			name: "a quota that is used up", prepare: broken(testenv.Rule{Method: http.MethodPut, Path: "/plant/state/manifests/", Skip: 3, Effect: said(403, harbor)}),
			args: publish, code: outcome.Other, says: []string{"configured upper limit of 10.0 MiB", "hint: the registry has no room left"}, lines: 1,
		},
		{
			name: "credentials that end half way", prepare: broken(testenv.Rule{Path: "/v2/", Effect: expiring}),
			args: append(slices.Clone(publish), "--parallel", "1"), code: outcome.Auth,
			done: "1 state published, signed", says: []string{"1 of 2 states published: publish press-09:", "401", "hint: log in"}, lines: 1,
		},
		{
			name: "a tag that another publisher moved", prepare: func(s *shell) {
				changed(s)
				s.do(outcome.Differs, "fleet", "plan", "-q", "--out", "plan.json", "bad")
				s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--replace", "--component", monitor+":1.4.0", states)
			}, args: []string{"publish", "--key", "release.key", "--plan", "plan.json", "DIR"}, code: outcome.Refused,
			says: []string{"conflict", "press-07", "hint: the files, a version, or what is published has changed since"}, lines: 1,
		},
	}
}

// What is bad is told in one message each, with its position, everything of a run together; and whatever it is, a device
// sees either what it had or a whole new state that is signed.
func TestBadInput(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/plant/apps/line")
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "plant")
	for _, c := range badInputs() {
		t.Run(c.name, func(t *testing.T) {
			s.t = t
			if err := os.RemoveAll("bad"); err != nil {
				t.Fatal(err)
			}
			if err := os.CopyFS("bad", os.DirFS("plant")); err != nil {
				t.Fatal(err)
			}
			s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "plant")
			if c.prepare != nil {
				c.prepare(s)
			}
			before := s.deviceTags()
			args := []string{"fleet"}
			for _, a := range c.args {
				args = append(args, strings.Replace(a, "DIR", "bad", 1))
			}
			code, stdout, stderr := s.try(args...)
			s.server.Faults.Clear()
			if code != c.code || !strings.Contains(stdout, c.done) || c.done == "" && stdout != "" {
				t.Errorf("exit %d, want %d\n%s%s", code, c.code, stdout, stderr)
			}
			lines := 0
			for line := range strings.Lines(stderr) {
				if !strings.HasPrefix(line, "  hint: ") {
					lines++
				}
			}
			if lines != cmp.Or(c.lines, len(c.says)) {
				t.Errorf("%d messages:\n%s", lines, stderr)
			}
			for _, want := range c.says {
				if !strings.Contains(stderr, want) {
					t.Errorf("it does not say %q:\n%s", want, stderr)
				}
			}
			for tag, was := range s.deviceTags() {
				if was != before[tag] || before[tag] == "" {
					s.do(outcome.OK, "verify", "-q", "--key", "release.pub", states+":"+tag)
				}
			}
		})
	}
	s.t = t
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "plant") // and all goes on
	s.do(outcome.OK, "fleet", "status", "-q", "plant")
}

// deviceTags are the digests of the devices' moving tags.
func (s *shell) deviceTags() map[string]string {
	s.t.Helper()
	out := map[string]string{}
	for _, device := range []string{"press-07", "press-08", "press-09", "press-10"} {
		if code, stdout, _ := s.try("state", "show", "-q", states+":"+device); code == outcome.OK {
			out[device] = stdout
		}
	}
	return out
}

// A registry whose disk is really full.
func TestFullRegistry(t *testing.T) {
	disk := t.TempDir()
	testenv.SmallDisk(t, disk, 4<<20)
	full := testenv.Registry(t, testenv.Distribution, testenv.WithStorage(disk))
	s := newShell(t, testenv.Distribution)
	s.write("certs.d/full.example/hosts.toml", "server = \""+full.URL+"\"\n")
	s.stock()
	push := []string{"state", "push", "-d", "press-07", "--key", "release.key", "--component", monitor + ":1.4.0", "full.example/plant/state"}
	s.do(outcome.OK, push...)
	before := s.do(outcome.OK, "state", "show", "-q", "full.example/plant/state:press-07")
	hog, err := os.Create(filepath.Join(disk, "hog"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.Copy(hog, zeros{})
	if err == nil || hog.Close() != nil {
		t.Fatalf("the disk takes everything: %v", err)
	}
	code, stdout, stderr := s.try(append(push, "--set", "POLL_SECONDS=5", "--timeout", "20s")...)
	// distribution may lose the upload that it has just begun, and then says that there is none.
	if code != outcome.Temporary && (code != outcome.NotFound || !strings.Contains(stderr, "push blob")) || strings.Contains(stdout, "pushed") || strings.Count(stderr, "longshore:") != 1 {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	t.Logf("a registry without room: %s", stderr)
	if got := s.do(outcome.OK, "state", "show", "-q", "full.example/plant/state:press-07"); got != before {
		t.Errorf("the tag moved from %s to %s", before, got)
	}
	if err := os.Remove(hog.Name()); err != nil {
		t.Fatal(err)
	}
	s.do(outcome.OK, append(push, "--set", "POLL_SECONDS=5")...)
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", "full.example/plant/state:press-07")
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
