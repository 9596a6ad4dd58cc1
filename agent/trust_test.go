package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// policies is a trust policy that goes on by what a test puts into next.
type policies struct {
	mu      sync.Mutex
	version uint64
	next    []intake.TrustVersion
	err     error
	asked   int
	order   func(string) // is told of each question
	revoked []store.Revocation
	signers []string
	within  bool // a transaction: Status was asked there, where it may wait for Refresh, which waits for the transaction
}

func (p *policies) Refresh(_ context.Context, hold func(intake.TrustVersion) bool) (taken []intake.TrustVersion, held *intake.TrustVersion, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	if p.order != nil {
		p.order("trust")
	}
	for len(p.next) > 0 {
		v := p.next[0]
		if hold != nil && hold(v) {
			return taken, &v, p.err
		}
		taken, p.next = append(taken, v), p.next[1:]
		p.version = v.Version
	}
	return taken, nil, p.err
}

func (p *policies) Status() status.Trust {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.within = p.within || bytes.Contains(debug.Stack(), []byte("store.(*Store).Update"))
	return status.Trust{Version: p.version, Source: status.TrustFromRegistry, Repository: "registry.example/plant/trust", File: "/etc/longshore/trust.yaml"}
}

func (p *policies) Signers() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.signers
}

func (p *policies) Revoked(keys, content []digest.Digest) []store.Revocation {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []store.Revocation
	for _, r := range p.revoked {
		if slices.Contains(keys, r.Key) || slices.Contains(content, r.Digest) {
			out = append(out, r)
		}
	}
	return out
}

func (p *policies) set(f func(p *policies)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p)
}

func (p *policies) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.asked
	p.asked = 0
	return n
}

func (p *policies) fingerprint() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprint("version ", p.version)
}

// inTrust is inWorld with a policy at version 1.
func inTrust(t *testing.T, f func(t *testing.T, w *agenttest.World, p *policies)) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		p := &policies{version: 1}
		w.Edit = func(o *agent.Options) { o.Trust, o.Fingerprint = p, p.fingerprint }
		f(t, w, p)
		p.set(func(p *policies) {
			if p.within {
				t.Error("the trust policy was asked in a transaction of the store")
			}
		})
	})
}

func version(n uint64) intake.TrustVersion {
	return intake.TrustVersion{Version: n, Digest: digest.FromString(fmt.Sprint(n)), SignedBy: []string{"root-1", "root-2"}}
}

// TestWhenTheNextTrustPolicyIsAskedFor: at the start, on sync, before a new state is looked at, and each hour; never with an
// unchanged poll, which stays at one request.
func TestWhenTheNextTrustPolicyIsAskedFor(t *testing.T) {
	inTrust(t, func(t *testing.T, w *agenttest.World, p *policies) {
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Committed(t, r, 1)
		if n := p.count(); n != 1 {
			t.Errorf("asked %d times at the start, want once", n)
		}
		w.Registry.Requests()
		time.Sleep(50 * time.Minute)
		requests := w.Registry.Requests()
		if n := p.count(); n != 0 || len(requests) < 40 {
			t.Errorf("asked %d times in 50 minutes of %d polls", n, len(requests))
		}
		for _, q := range requests {
			if !strings.HasPrefix(q, "resolve "+agenttest.Repository) {
				t.Errorf("an unchanged poll asks %q", q)
			}
		}
		time.Sleep(24 * time.Hour)
		if n := p.count(); n < 20 || n > 28 {
			t.Errorf("asked %d times in a day, want each hour", n)
		}
		w.Sync(t, r)
		if n := p.count(); n != 1 {
			t.Errorf("asked %d times on sync", n)
		}
		var order []string
		p.set(func(p *policies) { p.order = func(s string) { order = append(order, s) } })
		w.Verifier.Rule(func(k intake.Kind, _ string, _ ocispec.Descriptor) (intake.Verdict, error) {
			if k == intake.KindState {
				p.set(func(*policies) { order = append(order, "verify") })
			}
			return intake.Verdict{}, nil
		})
		w.Publish(t, 2, anApp(1, "web:2"))
		w.Committed(t, r, 2)
		if n := p.count(); n != 1 || strings.Join(order, " ") != "trust verify" {
			t.Errorf("asked %d times for a new state; order %v, want the policy first", n, order)
		}
	})
}

// A state that only the next policy lets pass is accepted in the same check.
func TestTheNextPolicyDecidesAboutANewState(t *testing.T) {
	inTrust(t, func(t *testing.T, w *agenttest.World, p *policies) {
		w.Verifier.Rule(func(k intake.Kind, repository string, _ ocispec.Descriptor) (intake.Verdict, error) {
			if p.fingerprint() == "version 1" {
				return intake.Verdict{}, fmt.Errorf("%s: %w", repository, fault.ErrBadSignature)
			}
			return intake.Verdict{SignedBy: []string{"release-b"}}, nil
		})
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		if res := w.Sync(t, r); res.Code != codes.SignatureInvalid {
			t.Fatalf("sync = %+v, want refused", res)
		}
		other := version(3)
		other.Parted = digest.FromString("another 2")
		p.set(func(p *policies) { p.next = []intake.TrustVersion{version(2), other} })
		time.Sleep(2 * time.Hour) // the refresh by itself makes what was refused be looked at again
		w.Committed(t, r, 1)
		s := r.Status()
		if s.Trust == nil || s.Trust.Version != 3 || s.Trust.CheckedAt.IsZero() || len(s.Problems) != 0 {
			t.Errorf("status %+v, problems %+v", s.Trust, s.Problems)
		}
		var told []string
		if err := r.Events(t.Context(), status.EventRequest{}, func(e status.Event) error {
			if e.Kind == status.EventTrust {
				told = append(told, e.Message)
			}
			return nil
		}); err != nil || len(told) != 3 || !strings.Contains(told[2], "does not follow version 2 as it was here ("+other.Parted.String()) {
			t.Errorf("events of versions: %q, %v", told, err)
		}
	})
}

// Each report tells the version that decided when it was written, from the first one on.
func TestReportsTellTheTrustVersion(t *testing.T) {
	inTrust(t, func(t *testing.T, w *agenttest.World, p *policies) {
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Committed(t, r, 1)
		p.set(func(p *policies) { p.next = []intake.TrustVersion{version(2)} })
		w.Publish(t, 2, anApp(1, "web:2"))
		w.Committed(t, r, 2)
		time.Sleep(time.Minute)
		told := false
		for _, x := range w.Fleet.Reports() {
			if x.Kind != store.KindCapabilities {
				continue
			}
			var body map[string]json.RawMessage
			if err := json.Unmarshal(x.Body, &body); err != nil {
				t.Fatal(err)
			}
			var e status.Extra
			if err := json.Unmarshal(body[status.Extension], &e); err != nil {
				t.Fatalf("%v: %s", err, x.Body)
			}
			if e.TrustVersion == 0 || e.AcceptedGeneration == 2 && e.TrustVersion != 2 {
				t.Errorf("report %d tells generation %d by version %d of the policy", x.Sequence, e.AcceptedGeneration, e.TrustVersion)
			}
			told = told || e.AcceptedGeneration == 2
		}
		if !told {
			t.Error("generation 2 is not reported")
		}
	})
}

// A wrong date by a key moves the time of a device whose clock has forgotten everything, and no longer than the key counts.
func TestTimesOfSignersWhoCountNoMoreAreForgotten(t *testing.T) {
	inTrust(t, func(t *testing.T, w *agenttest.World, p *policies) {
		var skew atomic.Int64
		skew.Store(int64(-20 * 365 * 24 * time.Hour))
		built := time.Now().Add(-365 * 24 * time.Hour)
		edit := w.Edit
		wrongClock(w, &skew)
		wrong := w.Edit
		w.Edit = func(o *agent.Options) { edit(o); wrong(o); o.Built = built }
		w.Verifier.Rule(func(k intake.Kind, _ string, _ ocispec.Descriptor) (intake.Verdict, error) {
			return intake.Verdict{SignedBy: []string{"release-a", "release-b"}, SignedAt: time.Now().AddDate(3, 0, 0)}, nil
		})
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Committed(t, r, 1)
		far := func() bool {
			c := r.Status().Clock
			return c != nil && c.ProvenBy == "signature release-a, release-b" && c.Believed.After(time.Now().AddDate(2, 0, 0))
		}
		w.Sync(t, r) // no one knows the signers: nothing is forgotten
		if !far() {
			t.Fatalf("clock = %+v", r.Status().Clock)
		}
		p.set(func(p *policies) { p.signers = []string{"other", "release-b", "release-a"} })
		w.Sync(t, r)
		if !far() {
			t.Fatalf("both signers count: clock = %+v", r.Status().Clock)
		}
		w.Registry.Fail(func(string) error { return fmt.Errorf("its certificate is over: %w", fault.ErrTemporary) })
		p.set(func(p *policies) { p.signers = []string{"other", "release-b"} })
		w.Sync(t, r)
		for range 2 {
			w.Wait(t, "the time to be forgotten", func() bool { c := r.Status().Clock; return c != nil && c.ProvenBy == "build" })
			r.Stop(t)
			p.set(func(p *policies) { p.signers = nil })
			r = w.Start(t)
		}
	})
}

// A repository of policies that does not answer, or holds a bad one, keeps nobody from their states; status tells it.
func TestTrustTroubleIsToldAndStopsNothing(t *testing.T) {
	for _, code := range []codes.Code{codes.TrustUnreachable, codes.TrustInvalid, codes.TrustRollback, codes.TrustUnusable} {
		t.Run(string(code), func(t *testing.T) {
			inTrust(t, func(t *testing.T, w *agenttest.World, p *policies) {
				p.err = &codes.Error{Code: code, Err: fmt.Errorf("trust policy 2: %w", fault.ErrTemporary)}
				w.Publish(t, 1, anApp(1, "web:1"))
				r := w.Start(t)
				w.Committed(t, r, 1)
				s := r.Status()
				if len(s.Problems) != 1 || s.Problems[0].Code != code || s.Problems[0].Hint == "" || s.Trust.Version != 1 {
					t.Errorf("problems %+v", s.Problems)
				}
				since := s.Problems[0].Since
				time.Sleep(3 * time.Hour)
				if n := p.count(); n < 4 || n > 20 {
					t.Errorf("asked %d times in three hours of trouble, want some, with pauses that grow", n)
				}
				if s := r.Status(); s.Problems[0].Since != since {
					t.Errorf("since %v, was %v", s.Problems[0].Since, since)
				}
				p.set(func(p *policies) { p.err = nil })
				w.Sync(t, r)
				if s := r.Status(); len(s.Problems) != 0 {
					t.Errorf("problems left: %+v", s.Problems)
				}
			})
		})
	}
}

// A security event that the disk has no room for is told at once and kept as soon as it can be, although the trouble that it is
// about does not change, or is over.
func TestSecurityEventThatCouldNotBeSaved(t *testing.T) {
	for _, over := range []bool{false, true} {
		t.Run(fmt.Sprintf("over %v", over), func(t *testing.T) {
			inTrust(t, func(t *testing.T, w *agenttest.World, p *policies) {
				var full atomic.Bool
				w.Commit = func(after bool) error {
					if full.Load() && !after {
						return fmt.Errorf("agent.db: %w", unix.ENOSPC)
					}
					return nil
				}
				w.Publish(t, 1, anApp(1, "web:1"))
				r := w.Start(t)
				w.Committed(t, r, 1)
				attack := &codes.Error{Code: codes.TrustRollback, Err: errors.New("version 1 again")}
				p.set(func(p *policies) { p.err = attack })
				full.Store(true)
				w.Sync(t, r)
				told := func() int { return len(eventsOf(t, r.Agent, status.EventRequest{Kind: status.EventSecurity})) }
				if n := told(); n != 1 {
					t.Errorf("%d security events are told, want one", n)
				}
				when := time.Now()
				time.Sleep(10 * time.Minute)
				if s := r.Status().Security; len(s) != 0 {
					t.Errorf("kept on a full disk: %+v", s)
				}
				if over {
					p.set(func(p *policies) { p.err = nil })
					w.Sync(t, r)
				}
				full.Store(false)
				w.Wait(t, "the event to be kept", func() bool { return len(r.Status().Security) == 1 })
				s := r.Status().Security[0]
				if s.Code != codes.TrustRollback || s.Count != 1 || s.Last.After(when) || r.Counts().Security[codes.TrustRollback] != 1 || told() != 1 {
					t.Errorf("kept %+v, counted %d, told %d times", s, r.Counts().Security[codes.TrustRollback], told())
				}
				w.Wait(t, "the event to be reported", func() bool { return len(w.Extra(t).Security) == 1 })
				r.Stop(t)
				r = w.Start(t)
				w.Wait(t, "the event to be there after a restart", func() bool { return len(r.Status().Security) == 1 })
			})
		})
	}
}

// What was accepted runs on when its key is revoked, and status names the key and what runs by it; also after a restart.
func TestRevokedKeysOfWhatRunsAreTold(t *testing.T) {
	inTrust(t, func(t *testing.T, w *agenttest.World, p *policies) {
		key, vendor := digest.FromString("release-a"), digest.FromString("vendor")
		w.Verifier.Rule(func(k intake.Kind, _ string, _ ocispec.Descriptor) (intake.Verdict, error) {
			switch k {
			case intake.KindState:
				return intake.Verdict{SignedBy: []string{"release-a"}, Keys: map[string]digest.Digest{"release-a": key}}, nil
			case intake.KindComponent:
				return intake.Verdict{SignedBy: []string{"vendor"}, Keys: map[string]digest.Digest{"vendor": vendor}}, nil
			}
			return intake.Verdict{}, nil
		})
		state := w.State(t, 7, func(*artifacts.StateOptions) {}, anApp(1, "web:1"))
		w.Registry.Push(agenttest.Repository, state, agenttest.Device.Tag())
		r := w.Start(t)
		w.Committed(t, r, 7)
		before := w.Observe(t)
		p.set(func(p *policies) {
			p.next = []intake.TrustVersion{version(2)}
			p.revoked = []store.Revocation{
				{Key: key, Reason: "laptop stolen"},
				{Key: vendor},
				{Key: digest.FromString("nobody's")},
				{Digest: state.Descriptor.Digest},
				{Digest: digest.FromString("web:1")},
				{Digest: digest.FromString("elsewhere")},
			}
		})
		w.Sync(t, r)
		look := func() {
			t.Helper()
			var told []string
			for _, p := range r.Status().Problems {
				told = append(told, string(p.Code)+": "+p.Message)
			}
			for _, want := range []string{
				"key-revoked: generation 7 runs, signed by key release-a (" + key.String() + "), which was revoked (laptop stolen)",
				"key-revoked: component registry.example/plant/components/app-1 runs, signed by key vendor",
				"digest-revoked: " + state.Descriptor.Digest.String(), "digest-revoked: " + digest.FromString("web:1").String(),
			} {
				if !slices.ContainsFunc(told, func(s string) bool { return strings.HasPrefix(s, want) }) {
					t.Errorf("status does not tell %q:\n%s", want, strings.Join(told, "\n"))
				}
			}
			if len(told) != 4 {
				t.Errorf("%d problems:\n%s", len(told), strings.Join(told, "\n"))
			}
			for id, c := range before {
				if now := w.Observe(t)[id]; now.ID != c.ID || now.PID != c.PID {
					t.Errorf("%s was %v, is %v", id, c, now)
				}
			}
		}
		look()
		r.Stop(t)
		r = w.Start(t)
		w.Sync(t, r)
		look()
	})
}
