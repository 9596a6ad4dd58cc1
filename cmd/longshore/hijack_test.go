package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/testenv"
)

// repository opens the states as somebody who may write there.
func (s *shell) repository() *registry.Repository {
	s.t.Helper()
	client, err := registry.New(registry.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(client.Close)
	repo, err := client.OpenName(s.t.Context(), s.server.Reference("plant/state"))
	if err != nil {
		s.t.Fatal(err)
	}
	return repo
}

// forge publishes an unsigned state.
func (s *shell) forge(o artifacts.StateOptions, tags ...string) {
	s.t.Helper()
	a, err := artifacts.PackState(o)
	if err == nil {
		_, err = release.Publish(s.t.Context(), s.repository(), a, release.PublishOptions{Tags: tags})
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// move points the device's tag at what another tag names.
func (s *shell) move(tag, to string) {
	s.t.Helper()
	repo := s.repository()
	d, err := repo.Resolve(s.t.Context(), to)
	if err == nil {
		err = repo.Tag(s.t.Context(), d, tag)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *shell) pushed(args ...string) stateResult {
	s.t.Helper()
	var r stateResult
	out := s.do(outcome.OK, append(append([]string{"state", "push", "-o", "json", "-d", "press-07"}, args...), states)...)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		s.t.Fatal(err)
	}
	return r
}

// What the registry holds is not signed by repeating it: neither a number nor deployments of somebody else.
func TestHijackedState(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	with := []string{"--key", "release.key", "--component", monitor + ":1.4.0"}
	for n := range 2 {
		if r := s.pushed(with...); r.Generation != uint64(n+1) || r.Notes != nil {
			t.Fatalf("generation %d, notes %q", r.Generation, r.Notes)
		}
	}
	refused := func(hint string, args ...string) {
		t.Helper()
		code, _, stderr := s.try(append(append([]string{"state", "push", "-d", "press-07"}, args...), states)...)
		if code != outcome.Verification || !strings.Contains(stderr, hint) {
			t.Errorf("%v: exit %d, want %d and %q\n%s", args, code, outcome.Verification, hint, stderr)
		}
	}
	next := uint64(3)
	heals := func(note string, args ...string) {
		t.Helper()
		r := s.pushed(append(args, "--set", fmt.Sprintf("POLL_SECONDS=%d", next))...)
		if r.Generation != next || !strings.Contains(strings.Join(r.Notes, "; "), note) {
			t.Errorf("%v: generation %d, notes %q, want %d and %q", args, r.Generation, r.Notes, next, note)
		}
		s.do(outcome.OK, "verify", "--key", "release.pub", states+":press-07")
		next++
	}
	forged := artifacts.StateOptions{Device: "press-07", Generation: ^uint64(0) - 1}
	s.forge(forged, "press-07")
	refused("--verify-key", with...)
	heals("not signed", append(with, "--replace")...)
	s.forge(forged, "press-07.v18446744073709551614")
	heals("", with...) // far above what comes next: nothing looks there
	s.move("press-07", "press-07.v1")
	heals("does not name it", with...)

	// Another device: a first push, and a forged one before it.
	s.forge(artifacts.StateOptions{Device: "press-08", Generation: 41}, "press-08")
	code, _, stderr := s.try("state", "push", "-d", "press-08", "--key", "release.key", "--empty", states)
	if code != outcome.Verification || !strings.Contains(stderr, "--generation") {
		t.Errorf("over a forged state: exit %d\n%s", code, stderr)
	}
	s.do(outcome.OK, "state", "push", "-d", "press-08", "--key", "release.key", "--empty", "--generation", "1", states)
	s.do(outcome.OK, "state", "push", "-d", "press-08", "--key", "release.key", "--empty", states)
}

// The new key vouches for what the old one signed when it is told to.
func TestKeyRotation(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	component := []string{"--component", monitor + ":1.4.0"}
	s.do(outcome.OK, "key", "generate", "next")
	s.pushed(append(component, "--key", "release.key")...)
	rotate := []string{"state", "push", "-d", "press-07", "--key", "next.key", "--deployment", "vision.yaml", states}
	s.do(outcome.OK, "component", "push", "-q", "./sensor", host+"/plant/components/vision:0.9.2")
	s.do(outcome.Verification, rotate...)
	s.do(outcome.Verification, append(rotate, "--verify-key", "other.pub")...)
	s.do(outcome.Verification, append(rotate, "--policy", "allow.yaml")...)
	s.do(outcome.OK, append(rotate, "--verify-key", "other.pub", "--verify-key", "release.pub")...)
	if r := s.pushed("--key", "next.key", "--deployment", "vision.yaml"); r.Generation != 3 || !slices.Equal(r.Kept, []string{"line-monitor"}) {
		t.Errorf("after the change of keys: %+v", r)
	}
	s.write("next.yaml", "rules:\n  - scope: "+states+"\n    keys: [{name: next, file: next.pub}]\n")
	s.do(outcome.OK, "state", "push", "-d", "press-07", "--key", "release.key", "--policy", "next.yaml", "--empty", states)
}

// Who does not sign vouches for nothing.
func TestUnsignedFollowsUnsigned(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.do(outcome.OK, "component", "push", "-q", "./sensor", host+"/plant/components/vision:0.9.2")
	for n := range 3 {
		if r := s.pushed("--unsigned", "--deployment", "vision.yaml"); r.Generation != uint64(n+1) {
			t.Errorf("generation %d, want %d", r.Generation, n+1)
		}
	}
	s.do(outcome.Verification, "state", "push", "-d", "press-07", "--key", "release.key", "--deployment", "vision.yaml", states)
	if r := s.pushed("--key", "release.key", "--deployment", "vision.yaml", "--replace", "--generation", "4"); r.Generation != 4 {
		t.Errorf("generation %d, want 4", r.Generation)
	}
	if r := s.pushed("--key", "release.key", "--deployment", "vision.yaml"); r.Generation != 5 {
		t.Errorf("generation %d, want 5", r.Generation)
	}
}

// A push that was interrupted before the device's tag moved is in nobody's way.
func TestInterruptedPush(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.do(outcome.OK, "component", "push", "-q", "./sensor", host+"/plant/components/vision:0.9.2")
	s.pushed("--key", "release.key", "--deployment", "vision.yaml")
	cut := s.pushed("--key", "release.key", "--deployment", "vision.yaml", "-a", "note=cut")
	s.move("press-07", "press-07.v1")
	if again := s.pushed("--key", "release.key", "--deployment", "vision.yaml", "-a", "note=cut"); again.Digest != cut.Digest || len(again.Notes) != 1 {
		t.Errorf("the same again: %+v, want %s", again, cut.Digest)
	}
	s.move("press-07", "press-07.v1")
	if other := s.pushed("--key", "release.key", "--empty"); other.Generation != 3 || other.Previous != cut.Digest || len(other.Notes) != 1 {
		t.Errorf("something else: %+v, want generation 3", other)
	}
}

// Whoever may write to the registry puts a generation above the one that is being published: nobody signed it, and it does not
// become the device's.
func TestForgedWhilePublishing(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	s.write("one/fleet.yaml", "fleet: one\nregistry: "+host+"/plant\nstates: state\napplications: {line: {component: components/line-monitor, version: 1.4.0}}\n"+
		"deployments: {line: {application: line, select: \"*\"}}\ndevices: [{id: press-08, capabilities: unchecked}]\n")
	for device, args := range map[artifacts.DeviceID][]string{
		"press-07": {"state", "push", "-d", "press-07", "--key", "release.key", "--component", monitor + ":1.4.0", states},
		"press-08": {"fleet", "publish", "--key", "release.key", "one"},
	} {
		s.server.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: "/plant/state/manifests/" + device.Tag() + "$", Times: 1, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			s.forge(artifacts.StateOptions{Device: device, Generation: 2}, artifacts.HistoryTag(device.Tag(), 2))
			next.ServeHTTP(w, r)
		}})
		s.do(outcome.OK, args...)
		s.do(outcome.OK, "verify", "--key", "release.pub", states+":"+device.Tag())
	}
}

// A history tag that another publisher sets after the tags were listed is kept: this push is a conflict, and the next one gets a higher number.
func TestHistoryTagSetMeanwhile(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	s.write("one/fleet.yaml", "fleet: one\nregistry: "+host+"/plant\nstates: state\napplications: {line: {component: components/line-monitor, version: 1.4.0}}\n"+
		"deployments: {line: {application: line, select: \"*\"}}\ndevices: [{id: press-08, capabilities: unchecked}]\n")
	for device, args := range map[artifacts.DeviceID][]string{
		"press-07": {"state", "push", "-d", "press-07", "--unsigned", "--component", monitor + ":1.4.0", states},
		"press-08": {"fleet", "publish", "--unsigned", "one"},
	} {
		history := artifacts.HistoryTag(device.Tag(), 1)
		s.server.Faults.Add(testenv.Rule{Path: "/plant/state/tags/list", Times: 1, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			next.ServeHTTP(w, r)
			s.forge(artifacts.StateOptions{Device: device, Generation: 1, Annotations: map[string]string{"who": "another"}}, history)
		}})
		s.do(outcome.Refused, args...)
		s.do(outcome.OK, args...)
		if out := s.do(outcome.OK, "state", "show", states+":"+device.Tag()); !strings.Contains(out, "generation 2") {
			t.Errorf("%s is not generation 2:\n%s", device, out)
		}
		d, err := s.repository().Resolve(t.Context(), history)
		if err != nil {
			t.Fatal(err)
		}
		_, manifest, err := s.repository().Manifest(t.Context(), d.Digest)
		if err != nil || !strings.Contains(string(manifest), `"who":"another"`) {
			t.Errorf("%s was written over: %v\n%s", history, err, manifest)
		}
	}
}
