package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/testenv"
)

// freshened runs freshen with -o json.
func (s *shell) freshened(want int, args ...string) freshenResult {
	s.t.Helper()
	out := s.do(want, append([]string{"freshen", "-o", "json"}, args...)...)
	var r freshenResult
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	return r
}

// freshenedAt runs freshen at a time.
func (s *shell) freshenedAt(at time.Time, args ...string) freshenResult {
	s.t.Helper()
	var out, errs bytes.Buffer
	p := testProgram(&out, &errs)
	p.now, p.lookup = func() time.Time { return at }, s.lookup
	code := p.run(s.t.Context(), append([]string{"freshen", "-o", "json"}, args...))
	var r freshenResult
	if err := json.Unmarshal(out.Bytes(), &r); code != outcome.OK || err != nil {
		s.t.Fatalf("freshen: exit %d, %v: %s%s", code, err, out.String(), errs.String())
	}
	return r
}

// A statement of a clock that was ahead is not relied on: devices may not count it.
func TestFreshenAhead(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.do(outcome.OK, "key", "generate", "pulse")
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--empty", states)
	now := time.Now().UTC().Truncate(time.Second)
	for _, at := range []time.Time{now.AddDate(30, 0, 0), now} {
		if r := s.freshenedAt(at, "--key", "pulse.key", states+":press-07"); r.Renewed != 1 || r.States[0].IssuedAt != at.Format(time.RFC3339) {
			t.Errorf("at %v: freshen = %+v", at, r)
		}
	}
	if r := s.freshenedAt(now, "--key", "pulse.key", states+":press-07"); r.Fresh != 1 || r.States[0].IssuedAt != now.Format(time.RFC3339) {
		t.Errorf("again: freshen = %+v", r)
	}
}

// With COSIGN_REPOSITORY statements are kept there, found there by the next run, and taken away there.
func TestFreshenElsewhere(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.do(outcome.OK, "key", "generate", "pulse")
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--empty", states)
	s.env["COSIGN_REPOSITORY"] = host + "/plant/signatures"
	args := []string{"--key", "pulse.key", "--for", "24h", states + ":press-07"}
	now := time.Now()
	if r := s.freshenedAt(now.Add(-30*time.Hour), args...); r.Renewed != 1 {
		t.Fatalf("freshen = %+v", r)
	}
	if r := s.freshenedAt(now, args...); r.Renewed != 1 || r.States[0].Pruned == 0 && len(r.Notes) == 0 {
		t.Errorf("after the end of the first: freshen = %+v, want the first taken away, or told that it cannot be", r)
	}
	if r := s.freshenedAt(now, args...); r.Renewed != 0 || r.Fresh != 1 {
		t.Errorf("again: freshen = %+v, want nothing new", r)
	}
}

// A schedule freshens what is current, again only when half of the time has passed, and nothing that is older.
func TestFreshen(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		t.Run(string(kind), func(t *testing.T) {
			s := newShell(t, kind)
			s.do(outcome.OK, "key", "generate", "pulse")
			s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
			for _, device := range []string{"press-07", "press-08"} {
				s.do(outcome.OK, "state", "push", "-q", "-d", device, "--key", "release.key", "--component", monitor+":1.4.0", states)
			}
			for _, wrong := range [][]string{
				{"--key", "pulse.key", states},
				{"--key", "pulse.key", "--all", states + ":press-07"},
				{states + ":press-07"},
				{"--key", "pulse.key", "--for", "9601h", states + ":press-07"},
				{"--key", "pulse.key", "--for", "1s", states + ":press-07"},
			} {
				s.do(outcome.Misused, append([]string{"freshen"}, wrong...)...)
			}
			s.do(outcome.NotFound, "freshen", "--key", "pulse.key", states+":press-09")
			one := []string{"--key", "pulse.key", states + ":press-07"}
			if r := s.freshened(outcome.OK, one...); r.Renewed != 1 || r.States[0].Generation != 1 || r.States[0].Device != "press-07" {
				t.Errorf("freshen = %+v", r)
			}
			if r := s.freshened(outcome.OK, one...); r.Renewed != 0 || r.Fresh != 1 || r.States[0].NotAfter == "" {
				t.Errorf("freshen again = %+v", r)
			}
			all := []string{"--key", "pulse.key", "--verify-key", "release.pub", "--record", "record.json", "--all", states}
			if r := s.freshened(outcome.OK, all...); r.Renewed != 1 || r.Fresh != 1 || len(r.Skipped) != 0 {
				t.Errorf("freshen --all = %+v", r)
			}
			s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--empty", states)
			if r := s.freshened(outcome.OK, all...); r.Renewed != 1 || r.Fresh != 1 || r.States[0].Generation != 2 {
				t.Errorf("freshen --all after a new state = %+v", r)
			}
			s.move("press-07", "press-07.v1")
			if r := s.freshened(outcome.Refused, all...); r.Failed != 1 || r.Fresh != 1 || !strings.Contains(r.States[0].Error, "older state") {
				t.Errorf("freshen --all after the tag was moved back = %+v", r)
			}
			s.move("press-07.v2", "press-07.v1") // and what is newer is gone
			if r := s.freshened(outcome.Refused, all...); r.Failed != 1 {
				t.Errorf("freshen --all after the newer one was deleted = %+v", r)
			}
			s.write("record.json", "{}")
			s.do(outcome.Misused, append([]string{"freshen"}, all...)...)
		})
	}
}

// Statements that have ended do not stay for ever, whoever keeps the list of them.
func TestFreshenPrunes(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		t.Run(string(kind), func(t *testing.T) {
			s := newShell(t, kind)
			s.do(outcome.OK, "key", "generate", "pulse")
			d := strings.TrimSpace(s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--empty", states))
			at := time.Now().Add(-90 * time.Hour)
			pruned, refused := 0, false
			for range 4 {
				at = at.Add(30 * time.Hour)
				r := s.freshenedAt(at, "--key", "pulse.key", "--for", "24h", states+":press-07")
				if r.Renewed != 1 {
					t.Fatalf("freshen = %+v", r)
				}
				pruned += r.States[0].Pruned
				refused = refused || len(r.Notes) > 0
			}
			list, err := s.repository().Referrers(t.Context(), ocispec.Descriptor{Digest: digest.Digest(d)})
			if err != nil {
				t.Fatal(err)
			}
			// The release's signature, the statement that is good, and where nobody may delete all the others.
			if want := 2 + 3 - pruned; len(list) != want || pruned != 3 && !refused {
				t.Errorf("%d referrers after %d statements were taken away, want %d; told: %t", len(list), pruned, want, refused)
			}
			s.do(outcome.OK, "verify", "--key", "release.pub", states+":press-07")
		})
	}
}

// A state that is signed in cosign's older format is freshened there: both cosigns go on verifying it, and statements that have
// ended make room for the next one.
func TestFreshenOlderLayout(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.do(outcome.OK, "key", "generate", "pulse")
	d := strings.TrimSpace(s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--signature-format", "legacy", "--empty", states))
	at := time.Now().Add(-90 * time.Hour)
	for range 4 {
		at = at.Add(30 * time.Hour)
		if r := s.freshenedAt(at, "--key", "pulse.key", "--for", "24h", states+":press-07"); r.Renewed != 1 {
			t.Fatalf("freshen = %+v", r)
		}
	}
	if r := s.freshenedAt(at, "--key", "pulse.key", "--for", "24h", states+":press-07"); r.Fresh != 1 {
		t.Errorf("freshen again = %+v", r)
	}
	subject := ocispec.Descriptor{Digest: digest.Digest(d)}
	if list, err := s.repository().Referrers(t.Context(), subject); err != nil || len(list) != 0 {
		t.Errorf("Referrers = %v, %v, want none: a bundle hides the signature from cosign", list, err)
	}
	under, err := s.repository().Resolve(t.Context(), signing.AttestationTag(subject.Digest))
	if err != nil {
		t.Fatal(err)
	}
	_, data, err := s.repository().Manifest(t.Context(), under.Digest)
	if err != nil {
		t.Fatal(err)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil || len(m.Layers) != 1 {
		t.Errorf("%d statements, %v, want the one that is good", len(m.Layers), err)
	}
	for _, program := range []string{"cosign2", "cosign3"} {
		if out, err := s.cosign(program, "verify", "--key", "release.pub", "--insecure-ignore-tlog", s.real(states+"@"+d)); err != nil {
			t.Errorf("%s does not find its signature any more: %v\n%s", program, err, out)
		}
	}
}
