package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

// Old generations go with their signatures; what devices may need stays and is signed, whoever keeps the lists.
func TestPrune(t *testing.T) {
	golden := goldenDir(t)
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		t.Run(string(kind), func(t *testing.T) {
			s := newShell(t, kind)
			s.do(outcome.NotFound, "state", "prune", states)
			s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
			push := func(device, poll string) {
				s.do(outcome.OK, "state", "push", "-q", "-d", device, "--key", "release.key", "--component", monitor+":1.4.0", "--set", "POLL_SECONDS="+poll, states)
			}
			for _, poll := range []string{"1", "2", "3", "4", "5"} {
				push("press-07", poll)
			}
			push("press-08", "1")
			s.do(outcome.OK, "state", "rollback", "-q", "--device", "press-07", "--to", "3", "--key", "release.key", states)
			before := s.tags()
			s.do(outcome.Misused, "state", "prune", "--keep", "0", states)
			s.do(outcome.Misused, "state", "prune", states+":press-07")
			s.do(outcome.Misused, "state", "prune", "--younger-than", "young", states)
			s.do(outcome.OK, "state", "prune", states)
			s.do(outcome.OK, "state", "prune", "--keep", "2", "--dry-run", states)
			s.do(outcome.OK, "state", "prune", "--keep", "2", "--dry-run", "--younger-than", "1h", states) // nobody knows when
			if now := s.tags(); !slices.Equal(now, before) {
				t.Errorf("tags are %v, want %v", now, before)
			}
			s.do(outcome.OK, "state", "prune", "--keep", "2", "--device", "press-08", states)
			s.do(outcome.OK, "state", "prune", "--keep", "2", "--younger-than", "2025-11-20T18:00:00Z", "--verify-key", "release.pub", "-o", "json", states)
			s.do(outcome.OK, "state", "prune", "--keep", "2", states)
			s.do(outcome.OK, "state", "history", "--device", "press-07", states)
			for _, tag := range s.tags() {
				if strings.Contains(tag, ".v") {
					s.do(outcome.OK, "verify", "-q", "--key", "release.pub", states+":"+tag)
				}
			}
			if kind == testenv.Distribution {
				lists := slices.DeleteFunc(s.tags(), func(tag string) bool { return !strings.HasPrefix(tag, "sha256-") })
				if len(lists) != 4 { // 3, 5, 6 of press-07 and 1 of press-08
					t.Errorf("%d lists of signatures are left, want those of what stays: %v", len(lists), lists)
				}
				s.golden(golden)
			}
		})
	}
}

// What is wrong with the command line is found before any registry is asked, and nothing is removed from a registry that a layout is named like.
func TestPruneChecksFirst(t *testing.T) {
	for line, says := range map[string]string{
		"state prune --younger-than young 127.0.0.1:1/plant/state":                `--younger-than "young" is neither a time`,
		"state prune --younger-than 9999-01-01T00:00:00Z 127.0.0.1:1/plant/state": "is in the future",
		"state prune --keep 0 127.0.0.1:1/plant/state":                            "at least 1 generation must stay",
		"fleet prune --younger-than young missing":                                `--younger-than "young" is neither a time`,
		"state prune oci-layout:127.0.0.1:1/plant/state":                          "oci-layout:127.0.0.1:1/plant/state: a layout keeps all its states",
	} {
		var out, errs bytes.Buffer
		if code := testProgram(&out, &errs).run(t.Context(), strings.Fields(line)); code != outcome.Misused || !strings.Contains(errs.String(), says) {
			t.Errorf("longshore %s = %d, want %d with %q\n%s%s", line, code, outcome.Misused, says, &out, &errs)
		}
	}
}

// tags are those of the states.
func (s *shell) tags() []string {
	s.t.Helper()
	client, err := registry.New(registry.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	defer client.Close()
	list, err := client.Tags(s.t.Context(), s.server.Host+"/plant/state")
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// A fleet's files say which devices are meant, and where their states are.
func TestFleetPrune(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.do(outcome.OK, "fleet", "prune", "plant") // nothing was published yet
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/plant/apps/line")
	for _, poll := range []string{"poll: 11", "poll: 12", "poll: 13", "poll: 14"} {
		s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "plant")
		text := string(mustRead(t, "plant/fleet.yaml"))
		i := strings.Index(text, "poll: ")
		s.write("plant/fleet.yaml", text[:i]+poll+text[i+len(poll):])
	}
	s.do(outcome.NotFound, "fleet", "prune", "--select", "line=z", "plant")
	s.do(outcome.OK, "fleet", "prune", "--keep", "2", "--select", "line=b", "plant")
	s.server.Faults.Add(testenv.Rule{Method: http.MethodDelete, Effect: testenv.Status(http.StatusMethodNotAllowed, 0)})
	s.do(outcome.Misused, "fleet", "prune", "--keep", "2", "plant")
	s.server.Faults.Clear()
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", states+":press-07.v1") // nothing was lost
	s.do(outcome.OK, "fleet", "prune", "--keep", "2", "plant")
	s.do(outcome.OK, "fleet", "prune", "--keep", "2", "plant")
	s.do(outcome.OK, "fleet", "rollback", "--previous", "--select", "device=press-07", "--key", "release.key", "plant")
	s.golden(golden)
}

// What a halted rollout may be undone to stays, and what a device says that it has, which was offline for weeks: with what that
// follows. A rollout of which nobody knows what it needs lets nothing be removed.
func TestPruneKeepsWhatIsNeeded(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.waves(2, "rollout: {waves: [{name: canary, select: \"device=press-0000\"}, {name: rest, percent: 100}]}")
	has := map[string]int{} // generations by device
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := path.Base(r.URL.Path)
		fmt.Fprintf(w, `{"id": %q, "agentVersion": "1", "acceptedGeneration": %d, "committedGeneration": %d}`, id, has[id], has[id])
	}))
	t.Cleanup(endpoint.Close)
	poll := 5
	publish := func(flag string) {
		s.do(outcome.OK, "fleet", "publish", "-q", flag, "--key", "release.key", "--endpoint", endpoint.URL, "waves")
		s.change("waves/fleet.yaml", fmt.Sprintf("POLL_SECONDS: %d", poll), fmt.Sprintf("POLL_SECONDS: %d", poll+1))
		poll++
	}
	for range 3 {
		publish("--at-once")
	}
	publish("--no-wait") // to press-0000, as generation 4
	s.do(outcome.OK, "fleet", "rollout", "halt", "-q", "--key", "release.key", "waves")
	for range 3 {
		publish("--at-once") // by which both have gone on
	}
	told := func(code int, want []string, not string, args ...string) {
		t.Helper()
		got, stdout, stderr := s.try(args...)
		for _, w := range want {
			if !strings.Contains(stdout+stderr, w) {
				t.Errorf("longshore %s: no %q\n%s%s", strings.Join(args, " "), w, stdout, stderr)
			}
		}
		if got != code || not != "" && strings.Contains(stdout, not) {
			t.Errorf("longshore %s: exit %d, want %d\n%s%s", strings.Join(args, " "), got, code, stdout, stderr)
		}
	}
	before := s.tags()
	// press-0000 has 7 generations, press-0001 6: the tag's and what that follows stay, 3 and 4 of the rollout, 2 which 3 follows.
	why := "generation 3: rollout 1 of acme-plant, which is halted, may need it"
	needed := []string{
		"press-0000  generations 1, 5\n", "press-0001  generations 1, 4\n", "press-0000  " + why, "press-0001  " + why,
		"press-0000  generation 2: generation 3, which is needed, follows it", "press-0000  generation 4: rollout 1",
	}
	prune := []string{"--keep", "1", "--dry-run"}
	fleet := func(more ...string) []string {
		return slices.Concat([]string{"fleet", "prune"}, prune, more, []string{"waves"})
	}
	told(outcome.OK, needed, "", fleet()...)
	told(outcome.OK, needed, "", append(append([]string{"state", "prune"}, prune...), states)...)
	told(outcome.OK, needed, "", fleet("--verify-key", "release.pub")...)
	has["press-0001"] = 1
	told(outcome.OK, append(needed[:1:1], "press-0001  generation 4\n", "press-0001  generation 1: the device reports it"), "", fleet("--endpoint", endpoint.URL)...)
	told(outcome.Temporary, []string{"read device reports"}, "", fleet("--endpoint", "http://127.0.0.1:1")...)

	prune = prune[:2]
	told(outcome.Verification, []string{"what the rollout of acme-plant may go back to", "hint: if another key of yours signed it"}, "", fleet("--verify-key", "other.pub")...)
	s.server.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: "/plant/rollouts/manifests/", Effect: testenv.Status(http.StatusNotFound, 0)})
	told(outcome.NotFound, []string{"what the rollout of acme-plant may go back to"}, "", fleet()...)
	told(outcome.NotFound, []string{"what the rollout of acme-plant may go back to"}, "", append(append([]string{"state", "prune"}, prune...), states)...)
	s.server.Faults.Clear()
	if now := s.tags(); !slices.Equal(now, before) {
		t.Errorf("tags are %v, want %v", now, before)
	}
	s.do(outcome.OK, fleet()...)
	s.do(outcome.Refused, "fleet", "rollout", "undo", "-q", "--key", "release.key", "waves") // both have something else by now, and keep it
	told(outcome.OK, []string{"press-0000  generations 2 to 4\n"}, "rollout 1", fleet("--dry-run")...)
}

// Another team keeps its rollout at the same place, signed with a key of its own: only who says which fleets are his goes on, and
// its devices lose nothing.
func TestStatePruneBesideOthers(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.waves(1, "rollout: {waves: [{name: all, percent: 100}]}")
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, `{"id": %q}`, path.Base(r.URL.Path)) }))
	t.Cleanup(silent.Close)
	s.do(outcome.OK, "key", "generate", "-q", "others")
	s.write("others/fleet.yaml", strings.NewReplacer("acme-plant", "acme-others", "press-", "lathe-").Replace(string(mustRead(t, "waves/fleet.yaml"))))
	for poll, flag := range []string{"--at-once", "--no-wait", "--at-once", "--at-once"} { // the second is a rollout's
		for dir, key := range map[string]string{"waves": "release.key", "others": "others.key"} {
			s.do(outcome.OK, "fleet", "publish", "-q", flag, "--key", key, "--endpoint", silent.URL, dir)
			s.change(dir+"/fleet.yaml", fmt.Sprintf("POLL_SECONDS: %d", 5+poll), fmt.Sprintf("POLL_SECONDS: %d", 6+poll))
		}
	}
	prune := func(more ...string) []string {
		return slices.Concat([]string{"state", "prune", "--keep", "1", "--verify-key", "release.pub"}, more, []string{states})
	}
	told := func(want int, args []string, words ...string) {
		t.Helper()
		code, stdout, stderr := s.try(args...)
		for _, w := range words {
			if !strings.Contains(stdout+stderr, w) {
				t.Errorf("longshore %s: no %q", strings.Join(args, " "), w)
			}
		}
		if code != want || t.Failed() {
			t.Fatalf("longshore %s: exit %d, want %d\n%s%s", strings.Join(args, " "), code, want, stdout, stderr)
		}
	}
	told(outcome.Verification, prune(), "the rollout of acme-others", "if it is not your fleet, name your fleets with --fleet NAME")
	told(outcome.Verification, prune("--fleet", "acme-others"), "the rollout of acme-others")
	told(outcome.OK, prune("--fleet", "acme-plant", "--yes"), "note: rollout 1 of acme-others is not signed by any of your keys: 1 device may need all generations",
		"lathe-0000  generation 1: rollout 1 of acme-others, which none of your keys has signed, may need it", "generation 1: rollout 1 of acme-plant, which is running, may need it")
	for _, tag := range []string{"lathe-0000.v1", "lathe-0000.v2", "lathe-0000.v3", "press-0000.v1"} {
		if !slices.Contains(s.tags(), tag) {
			t.Errorf("%s is gone", tag)
		}
	}
}

// What stays for being new is not read: of a device with 12 generations that keeps 10, what its tag names and the two that go.
func TestPruneAsksLittle(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	devices := s.waves(3, "rollout: {waves: [{name: all, percent: 100}]}")
	for poll := range 12 {
		s.do(outcome.OK, "fleet", "publish", "-q", "--at-once", "--key", "release.key", "waves")
		s.change("waves/fleet.yaml", fmt.Sprintf("POLL_SECONDS: %d", 5+poll), fmt.Sprintf("POLL_SECONDS: %d", 6+poll))
	}
	for _, command := range [][]string{{"state", "prune", states}, {"fleet", "prune", "waves"}} {
		for keep, want := range map[string]int{"12": 0, "11": 1 + 1, "10": 1 + 2} {
			s.server.Faults.Forget()
			args := append(append(command[:2:2], "--dry-run", "--keep", keep), command[2])
			if code, stdout, stderr := s.try(args...); code != outcome.OK {
				t.Fatalf("exit %d\n%s%s", code, stdout, stderr)
			}
			n := len(s.server.Faults.Requests("", "/plant/state/manifests/"))
			if t.Logf("%s: %d requests for manifests", strings.Join(args, " "), n); n != want*len(devices) {
				t.Errorf("%s: %d requests for manifests, want %d for each of %d devices", strings.Join(args, " "), n, want, len(devices))
			}
			if n := len(s.server.Faults.Requests("", "/plant/state/tags/")); n != 1 {
				t.Errorf("%s: tags were listed %d times", strings.Join(args, " "), n)
			}
		}
	}
}

// A fleet whose registry is a host alone keeps its rollouts right below it; a host that has no repository there has no rollouts.
func TestStatePruneLooksBelowTheHost(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.waves(1, "rollout: {waves: [{name: all, percent: 100}]}")
	s.change("waves/fleet.yaml", "registry: "+host+"/plant", "registry: "+host)
	s.change("waves/fleet.yaml", "component: components", "component: plant/components")
	silent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, `{"id": %q}`, path.Base(r.URL.Path)) }))
	t.Cleanup(silent.Close)
	for poll, flag := range []string{"--at-once", "--no-wait", "--at-once", "--at-once"} { // the second is a rollout's
		s.do(outcome.OK, "fleet", "publish", "-q", flag, "--key", "release.key", "--endpoint", silent.URL, "waves")
		s.change("waves/fleet.yaml", fmt.Sprintf("POLL_SECONDS: %d", 5+poll), fmt.Sprintf("POLL_SECONDS: %d", 6+poll))
	}
	prune := []string{"state", "prune", "--keep", "1", "--dry-run", host + "/state"}
	if code, stdout, stderr := s.try(prune...); code != outcome.OK || !strings.Contains(stdout, "generation 1: rollout 1 of acme-plant") {
		t.Errorf("exit %d, want that generation 1 stays\n%s%s", code, stdout, stderr)
	}
	s.server.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: "/v2/rollouts/tags/list", Effect: testenv.Status(http.StatusBadRequest, 0)})
	if code, stdout, stderr := s.try(prune...); code != outcome.OK || !strings.Contains(stdout, "generations 1 to 2") {
		t.Errorf("exit %d, want that nothing is needed\n%s%s", code, stdout, stderr)
	}
}
