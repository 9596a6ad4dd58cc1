package approval

import (
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
)

// Decided is which changes wait.
type Decided struct {
	Changes   []plan.Change                  // of the newest state; those that were found bad are not among them
	Records   map[digest.Digest]store.Change // all that are to be kept
	Automatic []plan.Change                  // that are approved automatically by now
	Waits     map[string]plan.Wait           // by deployment, of what is applied
	At        time.Time                      // when to decide again; zero: not by itself
	// LocksAgain are changes that nothing else holds back any more, and that began to wait before: a lock may be newer than the last look.
	LocksAgain []digest.Digest
}

// Decide decides which changes of the target and of the accepted state wait, and which begin.
func (f *Facts) Decide() Decided {
	target := f.Open(f.Desired)
	out := Decided{Changes: target, Records: TrustOnly(f.Records), Waits: map[string]plan.Wait{}}
	if f.Accepted != nil {
		out.Changes = f.Open(f.Accepted)
	}
	for id, r := range f.Records {
		if f.RemovedFor(r) {
			out.Records[id] = r
		}
	}
	for i, c := range slices.Concat(target, f.Open(f.Accepted)) {
		applied := i < len(target)
		if _, both := out.Records[c.ID]; both && !applied {
			continue
		}
		r, known := f.Records[c.ID]
		if !known {
			r = store.Change{ID: c.ID, Deployment: c.Deployment, Since: f.Now}
		}
		if r.Begun.IsZero() {
			r = f.decide(&out, c, r, applied)
		}
		out.Records[c.ID] = r
	}
	return out
}

// decide decides on a change that has not begun.
func (f *Facts) decide(out *Decided, c plan.Change, r store.Change, applied bool) store.Change {
	if d := f.question(c, r).Automatic(); d != nil && !f.unfinished(c) {
		r.Decision, out.Automatic = d, append(out.Automatic, c)
	}
	w := f.Wait(c, r)
	if w == nil && applied && f.Waits[c.Deployment].Code != "" && f.lockedBy(c.Deployment) {
		out.LocksAgain, w = append(out.LocksAgain, c.ID), &plan.Wait{}
	}
	if w == nil && applied && f.canBegin(c) {
		r.Begun, r.For = f.Now, f.Target.Digest
	}
	if w != nil && applied {
		out.Waits[c.Deployment] = *w
	}
	if w != nil && !w.Until.IsZero() && (out.At.IsZero() || w.Until.Before(out.At)) {
		out.At = w.Until
	}
	return r
}

// TrustOnly are the records of changes of the trust policy.
func TrustOnly(all map[digest.Digest]store.Change) map[digest.Digest]store.Change {
	out := map[digest.Digest]store.Change{}
	for id, r := range all {
		if r.Trust != nil {
			out[id] = r
		}
	}
	return out
}
