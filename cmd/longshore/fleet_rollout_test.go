package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

var floorDevices = flag.Int("rollout.devices", testenv.Rounds(100, 1000), "devices of TestRolloutOfThousand")

// waves writes a fleet of devices, and returns their ids.
func (s *shell) waves(devices int, rollout string) []string {
	s.t.Helper()
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	var b strings.Builder
	fmt.Fprintf(&b, "fleet: acme-plant\nregistry: %s/plant\n%s\n", host, rollout)
	b.WriteString("applications: {monitor: {component: components/line-monitor, version: 1.4.0}}\n" +
		"deployments: {monitor: {application: monitor, select: \"*\", parameters: {POLL_SECONDS: 5}}}\ndevices:\n")
	var ids []string
	for i := range devices {
		ids = append(ids, fmt.Sprintf("press-%04d", i))
		fmt.Fprintf(&b, "  - {id: %s}\n", ids[i])
	}
	s.write("waves/fleet.yaml", b.String())
	return ids
}

// shown is what fleet rollout show tells.
func (s *shell) shown(want int, args ...string) rolloutInfo {
	s.t.Helper()
	code, stdout, stderr := s.try(append([]string{"fleet", "rollout", "show", "-o", "json", "--verify-key", "release.pub", "waves"}, args...)...)
	var r rolloutInfo
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != want {
		s.t.Fatalf("exit %d, %v\n%s\n%s", code, err, stdout, stderr)
	}
	return r
}

func generations(all map[string]uint64) map[uint64]int {
	out := map[uint64]int{}
	for _, g := range all {
		out[g]++
	}
	return out
}

const rings = "rollout: {onFailure: rollback, waves: [{name: ring-1, percent: 2, soak: 1s}, {name: ring-2, percent: 25, soak: 1s}, {name: ring-3, percent: 100}]}"

// floorOf starts devices that all run the first release.
func floorOf(t *testing.T, n int) (*shell, *floor, []string, func(string)) {
	t.Helper()
	began := time.Now()
	lap := func(what string) { t.Logf("%6.1fs %s", time.Since(began).Seconds(), what) }
	s := newShell(t, testenv.Referrers)
	f := newFloor(t, s, s.waves(n, rings))
	s.do(outcome.OK, "fleet", "publish", "-q", "--at-once", "--key", "release.key", "waves")
	lap(fmt.Sprintf("published to %d devices at once", n))
	if got := f.settled(3 * time.Minute); got[1] != n {
		t.Fatalf("devices by generation: %v", got)
	}
	lap("all run generation 1")
	return s, f, []string{"fleet", "publish", "--key", "release.key", "--endpoint", f.url, "--look-every", "1s", "waves"}, lap
}

// A thousand devices and a bad release: it goes to the first ring only, is taken back there by itself, and the ring is well
// again. For the others nothing was written.
func TestRolloutOfThousand(t *testing.T) {
	s, f, publish, lap := floorOf(t, *floorDevices)
	n := len(f.devices)
	s.change("waves/fleet.yaml", "POLL_SECONDS: 5", "POLL_SECONDS: 666")
	s.server.Faults.Forget()
	code, stdout, stderr := s.try(publish...)
	if code != outcome.Refused || !strings.Contains(stderr, "rollout 1 of acme-plant is rolled back: wave ring-1: ") {
		t.Fatalf("exit %d\n%s\n%s", code, stdout, stderr)
	}
	lap("the bad release is rolled back")
	first := n / 50
	if got := generations(f.tags()); got[3] != first || got[1] != n-first {
		t.Errorf("tags by generation: %v, want %d devices rolled back and the rest untouched", got, first)
	}
	written := map[string]bool{}
	for _, r := range s.server.Faults.Requests("PUT", `/plant/state/manifests/press-`) {
		device, _, _ := strings.Cut(r.Path[strings.LastIndexByte(r.Path, '/')+1:], ".")
		written[device] = true
	}
	if len(written) != first {
		t.Errorf("something was published for %d devices, ring 1 has %d", len(written), first)
	}
	if got := f.settled(3 * time.Minute); got[3] != first || got[1] != n-first {
		t.Errorf("devices by generation: %v", got)
	}
	lap("ring 1 is well again")
	if r := s.shown(outcome.Refused, "--endpoint", f.url); r.Phase != "rolled-back" || r.Waves[0].State != "rolled-back" || r.Waves[1].State != "pending" || r.Waves[0].Reports == nil {
		t.Errorf("%+v", r)
	}
	if code, _, stderr := s.try(publish...); code != outcome.Refused || !strings.Contains(stderr, "was of the same and is rolled-back") {
		t.Errorf("the same again: exit %d\n%s", code, stderr)
	}
	code, stdout, _ = s.try("fleet", "status", "--endpoint", f.url, "waves")
	if code != outcome.Differs || !strings.Contains(stdout, fmt.Sprintf("%d well", n)) {
		t.Errorf("status: exit %d\n%s", code, stdout[max(0, len(stdout)-300):])
	}
	lap("looked at")
}

// A release whose publisher is killed in the middle of a ring is brought to its end by another process, and each device
// gets it once.
func TestRolloutKilled(t *testing.T) {
	s, f, publish, lap := floorOf(t, testenv.Rounds(100, 200))
	n := len(f.devices)
	s.change("waves/fleet.yaml", "POLL_SECONDS: 5", "POLL_SECONDS: 7")
	f.passed.Store(0)
	f.most.Store(int64(n/50 + n/10))
	s.killInRing2(publish, n)
	f.most.Store(0)
	lap("killed in ring 2")
	if got := generations(f.tags()); got[1] < n*3/4 || got[2] <= n/50 {
		t.Errorf("tags by generation: %v", got)
	}
	if r := s.shown(outcome.Differs); r.Phase != "running" || r.Waves[1].State != "publishing" {
		t.Errorf("after the kill: %+v", r)
	}
	s.env["USER"] = "another"
	if code, output := s.process(publish...); code != outcome.OK {
		t.Fatalf("exit %d\n%s", code, output)
	}
	lap("brought to its end by another process")
	if r := s.shown(outcome.OK); r.Phase != "done" || r.Rollout != 1 || !strings.HasPrefix(r.By, "another@") {
		t.Errorf("%+v", r)
	}
	if got := f.settled(3 * time.Minute); got[2] != n {
		t.Errorf("devices by generation: %v", got)
	}
	s.do(outcome.OK, "fleet", "status", "-q", "--endpoint", f.url, "waves")
	lap("all run it")
}

// killInRing2 runs a command in a process and kills it when some states of the second ring are published.
func (s *shell) killInRing2(args []string, n int) {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	s.server.Faults.Forget()
	cmd := exec.CommandContext(s.t.Context(), self, args...)
	cmd.Env = []string{processVariable + "=1", "PATH=" + os.Getenv("PATH")}
	for k, v := range s.env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	half := testenv.Await(s.t.Context(), 3*time.Minute, func() error {
		if got := len(s.server.Faults.Requests("PUT", `/plant/state/manifests/press-\d+$`)); got < n/50+n/10 {
			return fmt.Errorf("%d states", got)
		}
		return nil
	})
	kill := cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	if half != nil || kill != nil {
		s.t.Fatal(half, kill)
	}
}

// What the commands say on the way of a release, by hand.
func TestFleetRollout(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	ids := s.waves(6, "rollout: {waves: [{name: canary, select: \"device=press-0000\"}, {name: rest, percent: 100, success: 80}]}")
	f := newFloor(t, s, ids)
	command := func(want int, out, errs string, args ...string) {
		t.Helper()
		code, stdout, stderr := s.try(append(args, "waves")...)
		if code != want || !strings.Contains(stdout, out) || !strings.Contains(stderr, errs) {
			t.Errorf("longshore %s: exit %d\n%s\n%s", strings.Join(args, " "), code, stdout, stderr)
		}
	}
	const key = "--key=release.key"
	at := "--endpoint=" + f.url
	command(outcome.Misused, "", "no fleet endpoint that has", "fleet", "publish", key)
	command(outcome.NotFound, "", "there is no rollout in", "fleet", "rollout", "show")
	command(outcome.Differs, "wave canary: 1 device, then 1 of them well\nwave rest: 5 devices, then 4 of them well\n", "", "fleet", "plan")
	command(outcome.Temporary, "", "read device reports", "fleet", "publish", key, "--no-wait", "--endpoint=http://127.0.0.1:1")
	command(outcome.Temporary, "canary        1  published", "read device reports", "fleet", "rollout", "show", "--endpoint=http://127.0.0.1:1")
	command(outcome.Misused, "", "use --key, --keyless", "fleet", "rollout", "halt")
	command(outcome.OK, "rollout 1 of acme-plant: halted: lunch", "", "fleet", "rollout", "halt", key, "--reason", "lunch")
	command(outcome.Refused, "", "there is nothing to halt", "fleet", "rollout", "halt", key)
	command(outcome.Refused, "", "was of the same and is halted: lunch", "fleet", "publish", key, at)
	testenv.Eventually(t, time.Minute, "the device of the canary is well", func() error {
		code, stdout, _ := s.try("fleet", "rollout", "show", at, "waves")
		if code != outcome.Refused || !strings.Contains(stdout, "canary        1  published     1 of 1 device well") {
			return fmt.Errorf("exit %d\n%s", code, stdout)
		}
		return nil
	})
	command(outcome.OK, "rollout 1 of acme-plant: done", "wave rest: 5 states published", "fleet", "rollout", "continue", key, at, "--look-every=100ms")
	f.settled(time.Minute) // the wave passed with four
	command(outcome.OK, "rest          5  passed        5 of 5 devices well", "", "fleet", "rollout", "show", at)
	command(outcome.Refused, "", "there is nothing to continue", "fleet", "rollout", "continue", key, at)
	command(outcome.OK, "6 devices up to date", "", "fleet", "publish", key, at)
	command(outcome.OK, "press-0003  current            1  well\n", "", "fleet", "status", at)
	command(outcome.Temporary, "press-0003  current            1\n", "read device reports", "fleet", "status", "--endpoint=http://127.0.0.1:1")

	s.change("waves/fleet.yaml", "POLL_SECONDS: 5", "POLL_SECONDS: 666")
	command(outcome.Refused, "canary        1  failed", "rollout 2 of acme-plant is halted: wave canary: 1 of 1 devices failed (limit 0): press-0000: ", "fleet", "publish", key, at, "--look-every=100ms")
	command(outcome.Differs, "press-0000  current            2  failed\n  ", "", "fleet", "status", at)
	command(outcome.NotFound, "", "there is wave canary, wave rest", "fleet", "rollout", "continue", "--promote=none", key, at)
	command(outcome.Refused, "", "wave rest: ", "fleet", "rollout", "continue", "--promote=canary", key, at, "--look-every=100ms") // worse
	if code, _, stderr := s.try("key", "generate", "next"); code != outcome.OK {
		t.Fatal(stderr)
	}
	command(outcome.Verification, "", "if another key of yours signed it", "fleet", "rollout", "undo", "--key=next.key")
	command(outcome.OK, "rolled-back: by hand", "rolled back: 6 devices", "fleet", "rollout", "undo", key)
	command(outcome.Refused, "", "rolled back already", "fleet", "rollout", "undo", key)
	if got := f.settled(time.Minute); got[3] != 6 {
		t.Errorf("devices by generation: %v", got)
	}
	s.change("waves/fleet.yaml", "POLL_SECONDS: 666", "POLL_SECONDS: 5")
	command(outcome.OK, "6 devices up to date", "", "fleet", "publish", key, at)
	s.change("waves/fleet.yaml", "POLL_SECONDS: 5", "POLL_SECONDS: 6")
	command(outcome.OK, "6 states published", "", "fleet", "publish", key, "--at-once")
	// What the devices have reported decides what they can run.
	s.change("waves/fleet.yaml", "{id: press-0005}", "{id: press-0005, capabilities: reported}")
	command(outcome.Misused, "", "there is no fleet endpoint to ask", "fleet", "check")
	command(outcome.OK, "6 devices", "", "fleet", "check", at)
}

// A branch that is followed goes through the waves too, and a commit that did not go well is not tried again and again.
func TestFleetWatchWaves(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	f := newFloor(t, s, s.waves(4, "rollout: {onFailure: rollback, waves: [{name: half, percent: 50}, {name: rest, percent: 100}]}"))
	watch := func(want int, out, errs string) {
		t.Helper()
		code, stdout, stderr := s.try("fleet", "watch", "--once", "--key", "release.key", "--endpoint", f.url, "--look-every", "100ms", "--path", "waves", "-o", "json", ".")
		if code != want || !strings.Contains(stdout, out) || strings.Count(stdout, "\n") > 1 || !strings.Contains(stderr, errs) {
			t.Errorf("exit %d\n%s\n%s", code, stdout, stderr)
		}
	}
	first := s.commit("first")
	watch(outcome.OK, `"phase":"done"`, "wave half: 2 states published")
	s.server.Faults.Forget()
	watch(outcome.OK, `"same":4`, "")
	if n := len(s.server.Faults.Requests("GET", "plant/state/manifests/press-0001$")); n != 1 {
		t.Errorf("planned %d times", n)
	}
	if a := s.annotations(states + ":press-0001"); a["org.opencontainers.image.revision"] != first {
		t.Errorf("annotations %v", a)
	}
	s.change("waves/fleet.yaml", "POLL_SECONDS: 5", "POLL_SECONDS: 666")
	s.commit("bad")
	watch(outcome.Refused, `"phase":"rolled-back"`, "wave half failed: ")
	watch(outcome.Refused, "", "was of the same and is rolled-back")
	if got := generations(f.tags()); got[3] != 2 || got[1] != 2 {
		t.Errorf("generations %v", got)
	}
	back := 0
	for id, g := range f.tags() {
		if a := s.annotations(states + ":" + id); g == 3 && a["org.opencontainers.image.revision"] == first {
			back++
		}
	}
	if back != 2 {
		t.Errorf("%d devices have the content of the first commit again, and say so", back)
	}
}
