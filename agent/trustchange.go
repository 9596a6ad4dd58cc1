package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/approval"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
)

// maxTold bounds the sentences about what a version of the trust policy changes.
const maxTold = 50

// holdTrust says which versions of the trust policy wait for an approval, by what is decided now: it may be called beside the loop. nil: none
// does. Windows and locks do not hold them back, as they restart nothing.
func (l *loop) holdTrust(now time.Time) func(intake.TrustVersion) bool {
	if !slices.Contains(l.o.Approvals.Kinds, plan.TrustPolicy) {
		return nil
	}
	l.approveTrust(now)
	policy, records, counted := l.o.Approvals, maps.Clone(l.gate.records), l.gate.countedAt
	return func(v intake.TrustVersion) bool {
		r, ok := records[v.Digest]
		if !ok {
			r = store.Change{ID: v.Digest, Since: now}
		}
		return trustQuestion(r, policy, now, counted).Wait() != nil
	}
}

// approveTrust records that the version that waits is approved automatically, if it is.
func (l *loop) approveTrust(now time.Time) {
	r := l.heldTrust()
	if r == nil {
		return
	}
	c := trustChange(r.ID)
	if r.Decision = trustQuestion(*r, l.o.Approvals, now, l.gate.countedAt).Automatic(); r.Decision == nil {
		return
	}
	records := maps.Clone(l.gate.records)
	records[r.ID] = *r
	l.keepChanges(now, records, c)
}

func trustQuestion(r store.Change, policy approval.Policy, now, counted time.Time) approval.Question {
	return approval.Question{Now: now, Change: trustChange(r.ID), Record: r, Policy: policy, Counted: counted}
}

// trustChange is a version of the trust policy as a change of the device.
func trustChange(version digest.Digest) plan.Change {
	return plan.Change{ID: version, Deployment: status.TrustPolicyName, Name: status.TrustPolicyName, Kinds: []plan.Kind{plan.TrustPolicy}}
}

// heldTrust is the version of the trust policy that is not taken over yet; nil: there is none.
func (l *loop) heldTrust() *store.Change {
	for _, r := range l.gate.records {
		if r.Trust != nil && r.Trust.Version > l.trust.version {
			return &r
		}
	}
	return nil
}

// waitingChanges are those of deployments, and that of the trust policy.
func (l *loop) waitingChanges() []plan.Change {
	r := l.heldTrust()
	if r == nil {
		return l.gate.changes
	}
	return append(slices.Clone(l.gate.changes), trustChange(r.ID))
}

// trustWaiting is why a version of the trust policy is not taken over; nil: nothing holds it back.
func (l *loop) trustWaiting(r store.Change) *plan.Wait {
	return trustQuestion(r, l.o.Approvals, l.o.Now(), l.gate.countedAt).Wait()
}

// trustWaits is why the next version of the trust policy waits, for reports, and since when; nil: none does.
func (l *loop) trustWaits() (w *plan.Wait, since time.Time) {
	r := l.heldTrust()
	if r == nil {
		return nil, since
	}
	if w = l.trustWaiting(*r); w != nil {
		w.Message = fmt.Sprintf("trust policy version %d: %s", r.Trust.Version, w.Message)
	}
	return w, r.Since
}

// noteHeld takes in which version of the trust policy waits, as a refresh found it.
func (l *loop) noteHeld(now time.Time, r *intake.Renewal) {
	old := l.heldTrust()
	if r.Held == nil && old != nil && r.Err != nil { // it was not found out whether it is still there
		return
	}
	if r.Held == nil || l.gate.records[r.Held.Digest].Trust == nil {
		l.replaceHeld(now, r.Held)
	}
	if h := l.heldTrust(); h != nil && r.Held != nil {
		switch w := l.trustWaiting(*h); {
		case w == nil: // it was decided meanwhile
			l.trust.next = now
		case !w.Until.IsZero() && w.Until.Before(l.trust.next):
			l.trust.next = w.Until
		}
	}
}

// replaceHeld remembers another version that waits; nil: none does.
func (l *loop) replaceHeld(now time.Time, v *intake.TrustVersion) {
	l.keepWaits(now) // what begins to wait now has not waited since then
	records := maps.Clone(l.gate.records)
	maps.DeleteFunc(records, func(_ digest.Digest, c store.Change) bool { return c.Trust != nil })
	if v == nil && len(records) == len(l.gate.records) {
		return
	}
	if v != nil {
		told := slices.Clone(v.Changes)
		if more := len(told) - maxTold; more > 0 {
			told = append(told[:maxTold], fmt.Sprintf("and %d more", more))
		}
		for i := range told {
			told[i] = status.Cut(told[i], status.MaxMessage)
		}
		records[v.Digest] = store.Change{
			ID: v.Digest, Deployment: status.TrustPolicyName, Since: now,
			Trust: &store.TrustChange{Version: v.Version, SignedBy: v.SignedBy, Changes: told},
		}
	}
	l.gate.records = records
	err := l.o.Store.Update(func(tx *store.Tx) error { return errors.Join(tx.SetChanges(records), l.capabilities(tx, now)) })
	if err != nil { // it counts all the same until the agent ends, and is found again then
		l.log.Error("cannot save which trust policy waits", "err", err)
	}
	l.nudge()
	if w, _ := l.trustWaits(); w != nil && v != nil {
		l.log.Info("the next trust policy waits", "version", v.Version, "digest", v.Digest, "code", w.Code, "why", w.Message)
		l.events.Emit(status.Event{
			Kind: status.EventTrust, Digest: v.Digest, Code: w.Code,
			Message: fmt.Sprintf("version %d, signed by %s, %s", v.Version, strings.Join(v.SignedBy, ", "), w.Message),
		})
	}
}
