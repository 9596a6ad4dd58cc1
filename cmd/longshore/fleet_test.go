package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// change replaces a text in a file.
func (s *shell) change(name, from, to string) {
	s.t.Helper()
	text := string(mustRead(s.t, name))
	if !strings.Contains(text, from) {
		s.t.Fatalf("%s has no %q", name, from)
	}
	s.write(name, strings.Replace(text, from, to, 1))
}

// stock pushes what the fleet of testdata runs.
func (s *shell) stock() {
	s.t.Helper()
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	s.do(outcome.OK, "component", "push", "-q", "./sensor", host+"/plant/components/sensor:1.4.0")
}

// copyProject makes a project like line-monitor that publishes another port.
func (s *shell) copyProject(name, port string) {
	s.t.Helper()
	if err := os.CopyFS(name, os.DirFS("line-monitor")); err != nil {
		s.t.Fatal(err)
	}
	s.change(name+"/compose.yaml", "8080:80", port)
}

// A fleet from its files to every device's state, and what each command says on the way.
func TestFleet(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.do(outcome.OK, "fleet", "check", "--offline", "plant")
	s.do(outcome.Misused, "fleet", "check", "plant") // the package is not there yet
	s.do(outcome.OK, "app", "push", "--channel", "stable", "./app", host+"/plant/apps/line")
	s.do(outcome.OK, "app", "list", host+"/plant/apps/line")
	s.do(outcome.OK, "app", "show", host+"/plant/apps/line:stable")
	s.do(outcome.OK, "app", "show", "-o", "json", host+"/plant/apps/line:1.4.0")
	s.do(outcome.OK, "fleet", "check", "plant")
	s.do(outcome.OK, "fleet", "check", "-o", "json", "plant")
	s.do(outcome.Differs, "fleet", "plan", "plant")
	s.do(outcome.Differs, "fleet", "plan", "-q", "--out", "plan.json", "plant")
	if _, _, stderr := s.try("fleet", "plan", "--out", "plan.json", "plant"); !strings.Contains(stderr, "wrote the plan to plan.json\n") {
		t.Errorf("fleet plan --out does not say that it wrote it:\n%s", stderr)
	}
	s.do(outcome.Differs, "fleet", "status", "plant")
	s.do(outcome.OK, "fleet", "publish", "--dry-run", "--select", "device=press-07", "plant")
	s.do(outcome.OK, "fleet", "publish", "--key", "release.key", "--plan", "plan.json", "plant")
	s.do(outcome.OK, "fleet", "publish", "--key", "release.key", "--plan", "plan.json", "plant") // again: nothing to do
	s.do(outcome.OK, "fleet", "plan", "plant")
	s.do(outcome.OK, "fleet", "diff", "plant")
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", states+":press-08")
	s.do(outcome.OK, "state", "show", "-d", "press-08", states)

	s.change("plant/fleet.yaml", "poll: 10", "poll: 12")
	s.do(outcome.Refused, "fleet", "publish", "--key", "release.key", "--plan", "plan.json", "plant") // not what was shown
	s.do(outcome.Differs, "fleet", "plan", "-o", "json", "--select", "device=press-07", "plant")
	s.do(outcome.Differs, "fleet", "plan", "-o", "markdown", "plant")
	s.do(outcome.Differs, "fleet", "diff", "plant")
	s.do(outcome.Differs, "fleet", "diff", "-o", "json", "plant")
	s.do(outcome.OK, "fleet", "publish", "--key", "release.key", "-o", "json", "plant")
	s.do(outcome.Differs, "state", "diff", "--device", "press-07", states)
	s.do(outcome.Differs, "state", "diff", "-o", "json", "--device", "press-07", states, "2", "v1")
	s.do(outcome.OK, "state", "diff", "--device", "press-07", states, "2", "2")
	s.do(outcome.Differs, "state", "diff", "-q", "--device", "press-08", states)
	s.do(outcome.NotFound, "state", "diff", "--device", "press-07", states, "7")
	s.do(outcome.Misused, "state", "diff", "--device", "press-07", states, "latest")
	s.pushImage("library/caddy:2.10", "linux/amd64", "linux/arm64", "linux/riscv64")
	s.change("app/margo.yaml", "version: 1.4.0", "version: 1.4.1")
	s.change("app/margo.yaml", "revision: 1.4.0", "revision: 1.4.1")
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.1")
	s.do(outcome.OK, "app", "push", "-q", "--channel", "stable", "./app", host+"/plant/apps/line:1.4.1")
	s.do(outcome.OK, "app", "list", "--range", "~1.4", "-o", "json", host+"/plant/apps/line")
	s.do(outcome.Differs, "fleet", "plan", "plant")
	s.do(outcome.OK, "fleet", "publish", "--key", "release.key", "plant")
	s.do(outcome.OK, "fleet", "status", "plant")
	s.do(outcome.OK, "fleet", "status", "-o", "json", "--select", "line=b", "plant")
	s.golden(golden)
}

func TestFleetErrors(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Referrers)
	s.stock()
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/plant/apps/line")
	s.do(outcome.NotFound, "fleet", "check")
	s.do(outcome.NotFound, "fleet", "check", "nowhere")
	s.do(outcome.NotFound, "fleet", "plan", "--select", "line=z", "plant")
	s.do(outcome.Misused, "fleet", "plan", "--select", "line in (", "plant")
	s.do(outcome.Misused, "fleet", "plan", "-o", "html", "plant")
	s.do(outcome.Misused, "fleet", "publish", "plant")
	s.do(outcome.Misused, "fleet", "publish", "--plan", "plant/fleet.yaml", "--key", "release.key", "plant")
	s.do(outcome.Misused, "fleet", "plan", "plant/fleet.yaml")
	s.do(outcome.Misused, "fleet", "publish", "--plan", "plant", "--key", "release.key", "plant")
	s.write("torn.json", `{"version": 1, "fleet": "pl`)
	s.do(outcome.Misused, "fleet", "publish", "--plan", "torn.json", "--key", "release.key", "plant")
	s.do(outcome.Misused, "app", "push", "./app", host+"/plant/apps/line:2.0.0")
	s.do(outcome.NotFound, "app", "push", "./plant", host+"/plant/apps/line")
	s.do(outcome.NotFound, "app", "list", host+"/plant/apps/lime")
	s.do(outcome.Misused, "app", "list", "--range", "no range", host+"/plant/apps/line")
	s.do(outcome.Misused, "app", "show", monitor+":1.4.0")
	s.do(outcome.Misused, "fleet", "init", "--component", "a:1.0.0", "--package", "b:1.0.0", "x")
	s.do(outcome.Misused, "fleet", "init", "--name", "Not a name", "x")
	s.do(outcome.Refused, "fleet", "init", "--registry", host+"/plant", "plant")
	// A change of keys: what another key signed is not followed, unless it is named.
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "plant")
	if code, _, stderr := s.try("key", "generate", "next"); code != outcome.OK { // no two keys are equal
		t.Fatal(stderr)
	}
	s.change("plant/fleet.yaml", "poll: 10", "poll: 12")
	s.do(outcome.Verification, "fleet", "publish", "--key", "next.key", "plant")
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "next.key", "--verify-key", "release.pub", "plant")
	s.do(outcome.Misused, "fleet", "promote", "plant", "./plant")
	s.do(outcome.NotFound, "state", "prune", "--keep", "3", "--device", "press-70", states)
	s.do(outcome.NotFound, "fleet", "publish", "--key", "lost.key", "plant")
	s.do(outcome.Misused, "fleet", "publish", "--key", "release.pub", "plant")
	// All faults of all files in one run.
	s.change("plant/fleet.yaml", "poll: 12", "poll: 0")
	s.change("plant/fleet.yaml", "place: Graz", "plcae: Graz")
	s.change("plant/devices/all.yaml", "poll: 20", `poll: "20"`)
	s.do(outcome.Misused, "fleet", "check", "plant")
	s.do(outcome.Misused, "fleet", "plan", "plant")
	s.change("plant/fleet.yaml", "poll: 0", "poll: 1")
	s.change("plant/fleet.yaml", "plcae: Graz", "place: Graz")
	s.change("plant/devices/all.yaml", `poll: "20"`, "poll: 20")
	s.write("slip/fleet.yaml", "fleet: slip\nregistry: "+host+"/plant\napplications: {monitor: {component: components/line-monitor, version: 1.4.0}}\n"+
		"deployments: {monitor: {application: monitor, select: \"*\", parameters: {POLL_SECOND: 5}}}\ndevices: [{id: press-07, capabilities: unchecked}]\n")
	s.do(outcome.Refused, "fleet", "check", "slip")
	// A device that does not fit keeps the others, unless it is skipped.
	s.write("plant/capabilities/small.json", strings.Replace(string(mustRead(t, "plant/capabilities/press.json")), "4Gi", "256Mi", 1))
	s.change("plant/devices/all.yaml", "press-09, labels: {line: b}", "press-09, labels: {line: b}, capabilities: capabilities/small.json")
	s.do(outcome.Refused, "fleet", "check", "plant")
	s.do(outcome.Refused, "fleet", "plan", "plant")
	s.do(outcome.Refused, "fleet", "publish", "--key", "next.key", "plant")
	s.do(outcome.Differs, "fleet", "plan", "--skip-unfit", "plant")
	s.do(outcome.OK, "fleet", "publish", "--key", "next.key", "--skip-unfit", "plant")
	s.golden(golden)
}

// A plan with an end as a duration is published with the end that was shown.
func TestFleetPlanHasItsEnd(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.stock()
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/plant/apps/line")
	s.do(outcome.Differs, "fleet", "plan", "-q", "--expires", "720h", "--out", "plan.json", "plant")
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "--plan", "plan.json", "plant")
	var shown stateInfo
	if err := json.Unmarshal([]byte(s.do(outcome.OK, "state", "show", "-o", "json", "-d", "press-07", states)), &shown); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(mustRead(t, "plan.json")), `"expires": "`+shown.Expires+`"`) || shown.Expires == "" {
		t.Errorf("the state ends at %q, the plan says\n%s", shown.Expires, mustRead(t, "plan.json"))
	}
	s.do(outcome.OK, "fleet", "plan", "-q", "--expires", "721h", "plant")
	s.do(outcome.Differs, "fleet", "plan", "-q", "--expires", "2160h", "plant")
}

// What was published without a signature is signed later, as it is; so it is when keys change.
func TestFleetResign(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.stock()
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/plant/apps/line")
	s.do(outcome.OK, "fleet", "publish", "-q", "--unsigned", "plant")
	s.do(outcome.OK, "fleet", "status", "--key", "release.key", "plant") // who signed what stays is not asked
	s.expect(outcome.Misused, "--resign needs", "fleet", "plan", "--resign", "plant")
	if out := s.do(outcome.Differs, "fleet", "status", "--key", "release.key", "--resign", "plant"); strings.Count(out, "unsigned") != 3 {
		t.Errorf("status says\n%s", out)
	}
	digest := s.do(outcome.OK, "state", "show", "-q", "-d", "press-07", states)
	s.do(outcome.OK, "fleet", "publish", "--key", "release.key", "--resign", "plant")
	s.do(outcome.OK, "fleet", "status", "-q", "--key", "release.key", "--resign", "plant")
	for _, device := range []string{"press-07", "press-08", "press-09"} {
		s.do(outcome.OK, "verify", "-q", "--key", "release.pub", states+":"+device)
	}
	if now := s.do(outcome.OK, "state", "show", "-q", "-d", "press-07", states); now != digest {
		t.Errorf("the state is %s, want %s, signed", now, digest)
	}
	s.do(outcome.OK, "key", "generate", "-q", "next")
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "next.key", "--resign", "plant")
	s.do(outcome.OK, "verify", "-q", "--key", "next.pub", states+":press-08")
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", states+":press-08")
}

// From nothing to a published fleet.
func TestFleetInit(t *testing.T) {
	s := newShell(t, testenv.Lax)
	s.stock()
	s.do(outcome.OK, "fleet", "init", "--name", "acme", "--registry", host+"/plant", "--component", "components/line-monitor:1.4.0", "--device", "press-07", "new")
	s.do(outcome.OK, "fleet", "check", "new")
	s.do(outcome.OK, "fleet", "publish", "--key", "release.key", "new")
	var shown stateInfo
	if err := json.Unmarshal([]byte(s.do(outcome.OK, "state", "show", "-o", "json", "-d", "press-07", states)), &shown); err != nil {
		t.Fatal(err)
	}
	if len(shown.Deployments) != 1 || shown.Deployments[0].Components[0].Version != "1.4.0" || shown.Deployments[0].Components[0].Digest == "" {
		t.Errorf("state = %+v, want the component, pinned", shown)
	}
	if _, err := os.Stat("new/fleet.schema.json"); err != nil {
		t.Error(err)
	}
}

// Two who publish at once: never both are told that they did, and what devices get is of one who was, or of nobody.
func TestFleetRace(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/plant/apps/line")
	for _, name := range []string{"one", "two"} {
		if err := os.CopyFS(name, os.DirFS("plant")); err != nil {
			t.Fatal(err)
		}
	}
	before := uint64(0)
	for round := range 12 {
		codes := make([]int, 2)
		outputs := make([]string, 2)
		var wg sync.WaitGroup
		for i, name := range []string{"one", "two"} {
			poll := fmt.Sprintf("poll: %d", 100+2*round+i)
			text := regexp.MustCompile(`poll: \d+`).ReplaceAllString(string(mustRead(t, name+"/fleet.yaml")), poll)
			s.write(name+"/fleet.yaml", text)
			wg.Go(func() {
				codes[i], outputs[i] = s.process("fleet", "publish", "--key", "release.key", "--select", "device=press-07", name)
			})
		}
		wg.Wait()
		var shown stateInfo
		if err := json.Unmarshal([]byte(s.do(outcome.OK, "state", "show", "-o", "json", "-d", "press-07", states)), &shown); err != nil {
			t.Fatal(err)
		}
		// Each who was told that it published has a generation of its own: nobody's was replaced.
		said := uint64(0)
		for _, code := range codes {
			if code == outcome.OK {
				said++
			}
		}
		if shown.Generation < before+said {
			t.Fatalf("round %d: %d published over generation %d, and it is generation %d now", round, said, before, shown.Generation)
		}
		before = shown.Generation
		poll := 0.0
		for _, d := range shown.Deployments {
			if v, ok := d.Parameters["poll"].(float64); ok {
				poll = v
			}
		}
		for i, code := range codes {
			want := float64(100 + 2*round + i)
			switch {
			case code != outcome.OK && code != outcome.Refused:
				t.Fatalf("round %d: exit %d\n%s", round, code, outputs[i])
			case code == outcome.Refused && !strings.Contains(outputs[i], "another publisher published press-07 meanwhile"):
				t.Fatalf("round %d: %s", round, outputs[i])
			case code == outcome.OK && codes[1-i] != outcome.OK && poll != want:
				t.Fatalf("round %d: %d published poll %v, the device gets %v", round, i, want, poll)
			}
		}
		// Both may be right, one after the other; then the later one's plan had seen the earlier one's state.
		if codes[0] == outcome.OK && codes[1] == outcome.OK && int(poll) != 100+2*round && int(poll) != 101+2*round {
			t.Fatalf("round %d: the device gets poll %v", round, poll)
		}
	}
}

func TestDoctor(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	s.do(outcome.OK, "doctor", host+"/plant/doctor")
	s.do(outcome.OK, "doctor", "-o", "json", host+"/plant/doctor")
	s.do(outcome.Misused, "doctor", host+"/plant/doctor:1")
	s.do(outcome.Misused, "doctor", host)
	s.do(outcome.OK, "help", "doctor")
	s.golden(golden)
}

// What ends a run half way, credentials or a full registry, is told once; the next run goes on, and no device ever sees
// a tag without a signature.
func TestFleetPublishEndsHalfWay(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.stock()
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/plant/apps/line")
	s.server.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: `/plant/state/manifests/press-0\d$`, Skip: 1, Effect: testenv.Status(http.StatusForbidden, 0)})
	code, _, stderr := s.try("fleet", "publish", "--key", "release.key", "--parallel", "1", "plant")
	if code != outcome.Auth || !strings.Contains(stderr, "1 of 3 states published: publish press-08:") || strings.Count(stderr, "longshore:") != 1 {
		t.Errorf("exit %d\n%s", code, stderr)
	}
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", states+":press-07")
	s.do(outcome.NotFound, "verify", "-q", "--key", "release.pub", states+":press-08")
	s.server.Faults.Clear()
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "plant")
	s.do(outcome.OK, "fleet", "plan", "-q", "plant")
	for _, device := range []string{"press-07", "press-08", "press-09"} {
		s.do(outcome.OK, "verify", "-q", "--key", "release.pub", states+":"+device)
		s.do(outcome.NotFound, "state", "show", "-q", states+":"+device+".v2")
	}
	// What is published is told, and what is not.
	s.server.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: `/plant/state/manifests/press-0\d$`, Skip: 1, Effect: testenv.Status(http.StatusForbidden, 0)})
	s.change("plant/fleet.yaml", "poll: 10", "poll: 14")
	s.change("plant/devices/all.yaml", "poll: 20", "poll: 24")
	code, stdout, _ := s.try("fleet", "publish", "--key", "release.key", "--parallel", "1", "-o", "json", "plant")
	var r fleetPublished
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != outcome.Auth || len(r.Published) != 1 || r.Published[0].Device != "press-07" ||
		len(r.Failed) != 1 || r.Failed[0].Device != "press-08" || !strings.Contains(r.Failed[0].Error, "denied") {
		t.Errorf("exit %d, %+v, %v\n%s", code, r, err, stdout)
	}
}
