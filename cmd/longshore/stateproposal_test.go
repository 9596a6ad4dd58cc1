package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/testenv"
)

// twoOfThree is a policy by which two of three keys have to sign every state.
func (s *shell) twoOfThree() {
	s.t.Helper()
	s.third()
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	s.write("two.yaml", "keys:\n  - {name: release, file: release.pub}\n  - {name: root, file: root.pub}\n  - {name: third, file: third.pub}\n"+
		"rules:\n  - {scope: "+host+"/plant/state, signers: [release, root, third], threshold: 2}\n")
}

var thirdKey [2]string // private and public, once for all tests: scrypt is slow on purpose

// third makes a key, which is another one in each run.
func (s *shell) third() {
	s.t.Helper()
	if thirdKey[0] != "" {
		s.write("third.key", thirdKey[0])
		s.write("third.pub", thirdKey[1])
		return
	}
	if code, _, stderr := s.try("key", "generate", "third"); code != outcome.OK {
		s.t.Fatal(stderr)
	}
	thirdKey = [2]string{string(mustRead(s.t, "third.key")), string(mustRead(s.t, "third.pub"))}
}

// guard fails the test if a tag that devices or publishers follow is set to a state that the policy does not accept at that
// moment. Of all manifests that are written, the first few pass, as far as allow says; the others are denied.
func (s *shell) guard(allow int) {
	var mu sync.Mutex
	s.server.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: "/plant/state/manifests/", Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		mu.Lock()
		allow--
		denied := allow < 0
		mu.Unlock()
		if denied {
			testenv.Status(http.StatusForbidden, 0)(w, r, next)
			return
		}
		data, err := io.ReadAll(r.Body)
		if err != nil {
			s.t.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(data))
		if tag := path.Base(r.URL.Path); strings.HasPrefix(tag, "press-0") && !strings.HasSuffix(tag, ".proposal") {
			if code, _, stderr := s.try("verify", "--policy", "two.yaml", states+"@"+digest.FromBytes(data).String()); code != outcome.OK {
				s.t.Errorf("%s is set before enough have signed: %s", tag, stderr)
			}
		}
		next.ServeHTTP(w, r)
	}})
}

const everything = 1 << 30

// stateTags are the tags of the states without signatures.
func (s *shell) stateTags() string {
	s.t.Helper()
	list, err := s.repository().Tags(s.t.Context())
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		s.t.Fatal(err)
	}
	return strings.Join(slices.DeleteFunc(list, func(t string) bool { return strings.HasPrefix(t, "sha256-") }), " ")
}

// Whoever proposes chooses the generation: the others are told of one that skips numbers, before they sign.
func TestProposalSkipsNumbers(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.twoOfThree()
	s.do(outcome.OK, "state", "push", "--device", "press-07", "--key", "release.key", "--policy", "two.yaml", "--component", monitor+":1.4.0", "--generation", "900", states)
	s.refuses(outcome.OK, []string{"it is generation 900, although 1 is the next one"},
		"state", "sign", "--dry-run", "--device", "press-07", "--policy", "two.yaml", states)
}

// A state that needs two signatures gets the device's tag with the second one, and no device sees it before.
func TestStateProposal(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Referrers)
	s.twoOfThree()
	s.guard(everything)
	push := func(key string, more ...string) []string {
		return append(append([]string{"state", "push", "--device", "press-07", "--key", key, "--policy", "two.yaml"}, more...), states)
	}
	sign := func(key string, more ...string) []string {
		return append([]string{"state", "sign", "--device", "press-07", "--key", key, "--policy", "two.yaml"}, append(more, states)...)
	}
	first := []string{"--component", monitor + ":1.4.0"}
	s.do(outcome.NotFound, sign("root.key")...)
	s.do(outcome.OK, push("release.key", append(first, "--dry-run")...)...)
	s.do(outcome.OK, push("release.key", first...)...)
	if got := s.stateTags(); got != "press-07.v1.proposal" {
		t.Errorf("tags after the first signature: %s", got)
	}
	s.do(outcome.NotFound, "state", "show", "--device", "press-07", states)
	s.do(outcome.OK, "state", "proposals", states)
	s.do(outcome.OK, "state", "proposals", "--policy", "two.yaml", "-o", "json", states)
	s.refuses(outcome.OK, []string{"line-monitor 1.4.0 (new)", "1 of 2: release"}, append([]string{"state", "sign", "--dry-run"}, sign("root.key")[2:]...)...)
	s.do(outcome.OK, sign("release.key")...) // once more: one person is one signature
	if got := s.stateTags(); got != "press-07.v1.proposal" {
		t.Errorf("tags after the same signature twice: %s", got)
	}
	s.write("others.yaml", strings.ReplaceAll(string(mustRead(t, "two.yaml")), "[release, root, ", "[release, "))
	s.refuses(outcome.Refused, []string{"key root", "2 of release, third"}, "state", "sign", "--device", "press-07", "--key", "root.key", "--policy", "others.yaml", states)
	s.refuses(outcome.Misused, []string{"--policy"}, "state", "sign", "--device", "press-07", "--key", "root.key", states)
	s.refuses(outcome.NotFound, nil, append(sign("root.key")[:8], states+"@sha256:"+strings.Repeat("0", 64))...)
	s.do(outcome.OK, sign("root.key", "-o", "json")...)
	if got := s.stateTags(); got != "press-07 press-07.v1 press-07.v1.proposal" {
		t.Errorf("tags after the second signature: %s", got)
	}
	s.do(outcome.OK, "verify", "--policy", "two.yaml", states+":press-07")
	s.do(outcome.OK, sign("third.key", "-q")...) // who comes late finds it published

	// Another proposal of the same generation, and one that is overtaken.
	replaced := strings.TrimSpace(s.do(outcome.OK, push("release.key", append(first, "--set", "POLL_SECONDS=7", "-q")...)...))
	s.refuses(outcome.Refused, []string{"--replace-proposal"}, push("root.key", append(first, "--set", "POLL_SECONDS=8")...)...)
	s.do(outcome.OK, push("root.key", append(first, "--set", "POLL_SECONDS=8", "--replace-proposal")...)...)
	s.refuses(outcome.Refused, []string{"and not " + replaced}, append(sign("third.key")[:8], states+"@"+replaced)...)
	s.do(outcome.OK, sign("third.key", "-q")...)
	s.do(outcome.OK, "state", "proposals", states)
	s.do(outcome.OK, push("release.key", append(first, "--set", "POLL_SECONDS=9")...)...)
	s.server.Faults.Clear()
	s.do(outcome.OK, "state", "push", "-q", "--device", "press-07", "--key", "release.key", "--verify-key", "third.pub", "--empty", states) // by one who knows no policy
	s.refuses(outcome.Refused, []string{"generation 3 of press-07 was proposed as", "propose it again"}, sign("release.key")...)
	s.golden(golden)
}

// Whatever ends a command between two steps: no tag is set early, and the same command goes on.
func TestStateProposalTakenUp(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.twoOfThree()
	steps := func(args ...string) {
		t.Helper()
		for allow := 0; ; allow++ {
			if allow > 20 {
				t.Fatalf("%s never ends", strings.Join(args, " "))
			}
			s.guard(allow)
			code, _, _ := s.try(args...)
			s.server.Faults.Clear()
			if code == outcome.OK {
				break
			}
		}
	}
	steps("state", "push", "--device", "press-07", "--key", "release.key", "--policy", "two.yaml", "--component", monitor+":1.4.0", states)
	steps("state", "sign", "--device", "press-07", "--key", "root.key", "--policy", "two.yaml", states)
	if got, want := s.stateTags(), "press-07 press-07.v1 press-07.v1.proposal"; got != want {
		t.Errorf("tags are %s, want %s", got, want)
	}
	s.do(outcome.OK, "verify", "--policy", "two.yaml", states+":press-07")

	// Whoever may write to the registry puts what only the approver has signed above what is being published.
	push := []string{"state", "push", "--device", "press-08", "--propose", "--component", monitor + ":1.4.0"}
	s.do(outcome.OK, append(push, "--key", "root.key", "--generation", "2", "--set", "POLL_SECONDS=8", states)...)
	d := s.do(outcome.OK, append(push, "-q", "--key", "release.key", "--generation", "1", states)...)
	sign := []string{"state", "sign", "--device", "press-08", "--key", "root.key", "--policy", "two.yaml"}
	s.refuses(outcome.Refused, []string{"generations 2 1 are proposed", "by its digest"}, append(sign, states)...)
	s.server.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: "/plant/state/manifests/press-08$", Times: 1, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		s.move("press-08.v2", "press-08.v2.proposal")
		next.ServeHTTP(w, r)
	}})
	s.do(outcome.OK, append(sign, states+"@"+strings.TrimSpace(d))...)
	s.do(outcome.OK, "verify", "--policy", "two.yaml", states+":press-08")

	s.forge(artifacts.StateOptions{Device: "press-09", Generation: 1, Expires: time.Unix(1, 0)}, artifacts.ProposalTag("press-09", 1))
	s.refuses(outcome.Refused, []string{"expired 1970-01-01T00:00:01Z", "--expires"}, "state", "sign", "--device", "press-09", "--key", "root.key", "--policy", "two.yaml", states)
}

// Of two who approve at once both are told that it is published, with one tag.
func TestStateProposalByTwoAtOnce(t *testing.T) {
	s := newShell(t, testenv.Distribution) // where both write one list of signatures
	s.race = true
	s.twoOfThree()
	s.guard(everything)
	s.do(outcome.OK, "state", "push", "-q", "--device", "press-07", "--propose", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "state", "sign", "-q", "--device", "press-07", "--key", "release.key", "--policy", "two.yaml", states)
	var wg sync.WaitGroup
	for _, key := range []string{"root.key", "third.key"} {
		wg.Go(func() {
			code, stdout, stderr := s.try("state", "sign", "-o", "json", "--device", "press-07", "--key", key, "--policy", "two.yaml", states)
			var r stateResult
			if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != outcome.OK || !r.Proposal.Published {
				t.Errorf("state sign --key %s: exit %d, %v\n%s%s", key, code, err, stdout, stderr)
			}
		})
	}
	wg.Wait()
	if got := s.stateTags(); got != "press-07 press-07.v1 press-07.v1.proposal" {
		t.Errorf("tags: %s", got)
	}
}

// The states of a fleet that need two signatures are proposed by the first publisher, and tagged by the second, device by device.
func TestFleetProposal(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Referrers)
	s.twoOfThree()
	s.guard(everything)
	files := "fleet: one\nregistry: " + host + "/plant\nstates: state\napplications: {line: {component: components/line-monitor, version: 1.4.0}}\n" +
		"deployments: {line: {application: line, select: \"*\"}}\ndevices: [{id: press-07, capabilities: unchecked}, {id: press-08, capabilities: unchecked}]\n"
	s.write("one/fleet.yaml", files)
	s.write("waves/fleet.yaml", files+"endpoint: http://127.0.0.1:1\nrollout: {waves: [{name: all, percent: 100}]}\n")
	publish := func(code int, key string, more ...string) {
		t.Helper()
		s.do(code, append(append([]string{"fleet", "publish", "--key", key, "--policy", "two.yaml"}, more...), "one")...)
	}
	tags := func(want string) {
		t.Helper()
		if got := s.stateTags(); got != want {
			t.Errorf("tags are %s, want %s", got, want)
		}
	}
	s.do(outcome.Misused, "fleet", "publish", "--key", "release.key", "--policy", "two.yaml", "waves")
	s.do(outcome.Misused, "fleet", "publish", "--dry-run", "--key", "release.key", "--policy", "two.yaml", "waves")
	s.do(outcome.Misused, "fleet", "publish", "--propose", "--key", "release.key", "waves")
	s.do(outcome.Misused, "fleet", "publish", "--propose", "--unsigned", "one")
	s.do(outcome.Misused, "fleet", "rollout", "continue", "--key", "release.key", "--policy", "two.yaml", "waves")
	s.do(outcome.Misused, "fleet", "rollout", "undo", "--key", "release.key", "--policy", "two.yaml", "waves")
	s.write("fourth.yaml", strings.ReplaceAll(string(mustRead(t, "two.yaml")), "signers: [release, ", "signers: ["))
	s.do(outcome.Refused, "fleet", "publish", "--key", "release.key", "--policy", "fourth.yaml", "one") // a key that does not count
	publish(outcome.OK, "release.key", "--dry-run")
	s.do(outcome.Refused, "fleet", "publish", "--unsigned", "--policy", "two.yaml", "one")
	s.do(outcome.Refused, "state", "push", "--unsigned", "--policy", "two.yaml", "-d", "press-07", "--component", monitor+":1.4.0", states)
	tags("")
	publish(outcome.OK, "release.key")
	tags("press-07.v1.proposal press-08.v1.proposal")
	publish(outcome.OK, "release.key", "-o", "json") // once more: one person is one signature
	tags("press-07.v1.proposal press-08.v1.proposal")
	s.do(outcome.OK, "state", "proposals", "--policy", "two.yaml", states)
	s.do(outcome.OK, "state", "sign", "-q", "--device", "press-08", "--key", "third.key", "--policy", "two.yaml", states)
	tags("press-07.v1.proposal press-08 press-08.v1 press-08.v1.proposal")
	publish(outcome.OK, "root.key")
	tags("press-07 press-07.v1 press-07.v1.proposal press-08 press-08.v1 press-08.v1.proposal")
	publish(outcome.OK, "third.key") // nothing is left

	// Other files make another state, which does not replace what is proposed.
	s.write("one/fleet.yaml", strings.ReplaceAll(files, `"*"}`, `"*", parameters: {POLL_SECONDS: 5}}`))
	publish(outcome.OK, "release.key")
	s.write("one/fleet.yaml", strings.ReplaceAll(files, `"*"}`, `"*", parameters: {POLL_SECONDS: 6}}`))
	publish(outcome.Refused, "root.key")
	publish(outcome.OK, "root.key", "--replace-proposal")
	publish(outcome.OK, "release.key", "-q")
	s.do(outcome.OK, "verify", "-q", "--policy", "two.yaml", states+":press-07")
	s.do(outcome.OK, "fleet", "rollback", "--yes", "--previous", "--key", "third.key", "--policy", "two.yaml", "one")
	s.do(outcome.OK, "fleet", "rollback", "--yes", "--previous", "--key", "root.key", "--policy", "two.yaml", "one")
	s.do(outcome.OK, "state", "show", "--device", "press-08", states)
	s.do(outcome.OK, "fleet", "publish", "-q", "--propose", "--key", "release.key", "--verify-key", "root.pub", "one") // without a policy
	s.golden(golden)
}

// A key has to count only where a state is published.
func TestProposalsOfChangesOnly(t *testing.T) {
	got := repositoriesOf(&fleet.Plan{Devices: []*fleet.DevicePlan{
		{Repository: "a", Action: fleet.Same}, {Repository: "b", Action: fleet.Publish}, {Repository: "c", Action: fleet.Cannot},
	}})
	if !slices.Equal(got, []string{"b"}) {
		t.Errorf("repositories = %q, want b", got)
	}
}

// Whatever ends fleet publish between two steps: no tag is set early, and the same command goes on.
func TestFleetProposalTakenUp(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.twoOfThree()
	s.write("one/fleet.yaml", "fleet: one\nregistry: "+host+"/plant\nstates: state\napplications: {line: {component: components/line-monitor, version: 1.4.0}}\n"+
		"deployments: {line: {application: line, select: \"*\"}}\ndevices: [{id: press-07, capabilities: unchecked}]\n")
	for _, key := range []string{"release.key", "root.key"} {
		for allow := 0; ; allow++ {
			if allow > 20 {
				t.Fatalf("fleet publish --key %s never ends", key)
			}
			s.guard(allow)
			code, _, _ := s.try("fleet", "publish", "--key", key, "--policy", "two.yaml", "one")
			s.server.Faults.Clear()
			if code == outcome.OK {
				break
			}
		}
	}
	if got, want := s.stateTags(), "press-07 press-07.v1 press-07.v1.proposal"; got != want {
		t.Errorf("tags are %s, want %s", got, want)
	}
	s.do(outcome.OK, "verify", "--policy", "two.yaml", states+":press-07")
}
