// Package approval decides whether a device may make a change now: whether the change needs a local approval, what was decided, and what else
// blocks it. It is pure: no I/O, no clock.
//
// The entry points are [Policy], of agent.yaml, and [Question.Wait].
package approval

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/schedule"
)

// Policy says which changes need an approval, of deployments and of the trust policy. The zero value: none.
type Policy struct {
	Kinds       []plan.Kind   // of changes that need one
	Deployments []string      // names of deployments, with * and ? as in file names; nil: all
	ValidFor    time.Duration // of an approval, until the change begins; 0: [DefaultValidFor]
	// AutomaticAfter is how long a change waits for a decision, while the agent runs, before it counts as approved; 0: for ever.
	AutomaticAfter time.Duration
}

// DefaultValidFor is how long an approval lasts whose change cannot begin: a week has every maintenance window.
const DefaultValidFor = 7 * 24 * time.Hour

// Needs reports whether a change needs an approval.
func (p Policy) Needs(c plan.Change) bool {
	if slices.Contains(c.Kinds, plan.TrustPolicy) {
		return slices.Contains(p.Kinds, plan.TrustPolicy) // whatever Deployments says
	}
	if !slices.ContainsFunc(c.Kinds, func(k plan.Kind) bool { return slices.Contains(p.Kinds, k) }) {
		return false
	}
	return len(p.Deployments) == 0 || slices.ContainsFunc(p.Deployments, func(pattern string) bool {
		ok, err := path.Match(pattern, c.Name)
		return ok || err != nil // the configuration was checked; a pattern that is none holds back
	})
}

// Expiry is when a decision of a verdict that is made now ends; zero: never.
func (p Policy) Expiry(v store.Verdict, now time.Time) time.Time {
	switch {
	case v != store.Approved:
		return time.Time{}
	case p.ValidFor > 0:
		return now.Add(p.ValidFor)
	}
	return now.Add(DefaultValidFor)
}

// Lock is what a workload says to keep changes away from itself.
type Lock struct {
	Owner   string    // component and service, or the name that the file gives
	Reason  string    // "": it gives none
	Expires time.Time // never zero
}

// Question is a change, and all that may hold it back.
type Question struct {
	Now     time.Time
	Change  plan.Change
	Record  store.Change
	Policy  Policy
	Locks   []Lock
	Counted time.Time // when Waited of Record was counted; zero: Now
	// Closed says that it is outside of the windows for changes. Opens is when the next one begins; zero: it is not known.
	Closed bool
	Opens  time.Time
	// ClockUnknown reports that the window counts as closed because the device's clock is not trusted.
	ClockUnknown bool
}

// Wait is why the change is not made now; nil: nothing holds it back. What a person decides comes first, then locks, then windows.
func (q Question) Wait() *plan.Wait {
	for _, f := range []func() *plan.Wait{q.decision, q.lock, q.window} {
		if w := f(); w != nil {
			return w
		}
	}
	return nil
}

func (q Question) decision() *plan.Wait {
	if d := q.Record.Decision; d.Counts(q.Now) {
		switch d.Verdict {
		case store.Rejected:
			return &plan.Wait{Code: codes.ChangeRejected, Message: "rejected by " + d.By + because(d.Reason)}
		case store.Postponed:
			return &plan.Wait{
				Code: codes.ChangePostponed, Until: d.Until,
				Message: fmt.Sprintf("postponed by %s until %s%s", d.By, d.Until.UTC().Format(time.RFC3339), because(d.Reason)),
			}
		}
		return nil
	}
	if !q.Policy.Needs(q.Change) || q.Automatic() != nil {
		return nil
	}
	w := &plan.Wait{Code: codes.ApprovalNeeded, Message: "waiting for approval: longshore-agent approve " + q.Change.Name}
	if q.Policy.AutomaticAfter > 0 {
		w.Until = q.automaticAt()
		w.Message += fmt.Sprintf(" (approved automatically at %s)", w.Until.UTC().Format(time.RFC3339))
	}
	return w
}

// Automatic returns the approval of a change without a decision within [Policy].AutomaticAfter; nil: not approved.
func (q Question) Automatic() *store.Decision {
	if q.Policy.AutomaticAfter == 0 || q.Record.Decision.Counts(q.Now) || !q.Policy.Needs(q.Change) || q.counted().Before(q.automaticAt()) {
		return nil
	}
	return &store.Decision{
		Verdict: store.Approved, By: "automaticAfter " + schedule.Brief(q.Policy.AutomaticAfter), Via: "automatic", At: q.Now, Until: q.Policy.Expiry(store.Approved, q.Now),
	}
}

func (q Question) automaticAt() time.Time {
	return q.counted().Add(q.Policy.AutomaticAfter - q.Record.Waited).Truncate(time.Second).Add(time.Second).UTC() // the same each time
}

func (q Question) counted() time.Time {
	if q.Counted.IsZero() {
		return q.Now
	}
	return q.Counted
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + reason
}

func (q Question) lock() *plan.Wait {
	var w *plan.Wait
	for _, l := range q.Locks {
		if !q.Now.Before(l.Expires) {
			continue
		}
		w = &plan.Wait{
			Code: codes.UpdateLocked, Until: l.Expires,
			Message: fmt.Sprintf("locked by %s until %s%s", l.Owner, l.Expires.UTC().Format(time.RFC3339), because(strings.TrimSpace(l.Reason))),
		}
	}
	return w
}

func (q Question) window() *plan.Wait {
	switch {
	case !q.Closed:
		return nil
	case q.ClockUnknown:
		return &plan.Wait{Code: codes.OutsideWindow, Message: "the time is not known, so the window for changes counts as closed"}
	case q.Opens.IsZero():
		return &plan.Wait{Code: codes.OutsideWindow, Message: "waiting for a window for changes: none begins"}
	}
	return &plan.Wait{Code: codes.OutsideWindow, Until: q.Opens, Message: "waiting for the window for changes at " + q.Opens.UTC().Format(time.RFC3339)}
}
