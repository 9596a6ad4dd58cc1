package agent

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// saveRetry is the pause after the store could not be written.
const saveRetry = 5 * time.Second

// Extension is the member of the capabilities report that tells what the agent is at. It is an [Extra].
const Extension = "x-longshore-extensions"

// Extra is what a device tells of itself beyond Margo, in its capabilities report under [Extension].
type Extra struct {
	AgentVersion        string        `json:"agentVersion"`
	AcceptedGeneration  uint64        `json:"acceptedGeneration"` // 0: none
	Digest              string        `json:"digest,omitempty"`   // of the accepted state
	RunningGeneration   uint64        `json:"runningGeneration"`
	CommittedGeneration uint64        `json:"committedGeneration"`
	Refused             *ExtraRefused `json:"refused,omitempty"`
	Stale               bool          `json:"stale"`
	StaleSince          time.Time     `json:"staleSince,omitzero"`
	Insecure            []string      `json:"insecure"`
	TrustVersion        uint64        `json:"trustVersion,omitempty"` // of the trust policy; 0: it does not travel
	ReportsLost         uint64        `json:"reportsLost"`

	Security []SecurityEvent `json:"security,omitempty"` // the newest few, the last at the end
}

// maxReported is how many security events go into one report.
const maxReported = 8

// ExtraRefused is the state that the tag points at and that this device does not take.
type ExtraRefused struct {
	Digest     string    `json:"digest"`
	Generation uint64    `json:"generation"` // 0: not known
	Code       string    `json:"code"`
	Message    string    `json:"message"`
	Since      time.Time `json:"since"`
}

// capabilities appends the device's report of itself.
func (l *loop) capabilities(tx *store.Tx, now time.Time) error {
	if l.o.Reporter == nil {
		return nil
	}
	x := Extra{AgentVersion: l.o.Version, Stale: l.stale, StaleSince: l.staleSince().UTC(), Insecure: l.insecure(), TrustVersion: l.trust.version}
	if l.accepted != nil {
		x.AcceptedGeneration, x.Digest = l.accepted.Generation, l.accepted.Digest.String()
	}
	if l.running != nil {
		x.RunningGeneration = l.running.Generation
	}
	if l.committed != nil {
		x.CommittedGeneration = l.committed.Generation
	}
	if r := l.refused; r != nil {
		x.Refused = &ExtraRefused{r.Digest.String(), r.Generation, r.Code, r.Message, r.Since.UTC()}
	}
	gap, err := tx.Gap()
	if err != nil {
		return err
	}
	if gap != nil {
		x.ReportsLost = gap.Count
	}
	security, err := tx.Security()
	if err != nil {
		return err
	}
	for _, s := range security[max(0, len(security)-maxReported):] {
		x.Security = append(x.Security, securityEvent(s))
	}
	c := l.o.Capabilities
	c.Extensions = maps.Clone(c.Extensions)
	if c.Extensions == nil {
		c.Extensions = margo.Extensions{}
	}
	c.Extensions[Extension] = x
	b, err := c.Encode()
	if err != nil {
		return fmt.Errorf("write capabilities: %w", err)
	}
	_, err = tx.Append(store.Report{Kind: store.KindCapabilities, Subject: string(l.o.Device), Body: b, At: now})
	return err
}

func (l *loop) insecure() []string {
	out := append([]string{}, l.o.Weakened...)
	if l.accepted != nil {
		out = append(out, l.accepted.Insecure...)
	}
	return out
}

// save derives what the device is at and makes it durable together with its reports, before anything is done about it. So
// no transition is lost, whenever the process ends. False: it could not be saved.
func (l *loop) save(now time.Time) bool {
	if l.unsaved != nil && now.Before(l.saveAt) {
		return false
	}
	for {
		a := assess(l.question(now))
		changed, err := l.saved(now, a)
		if err != nil {
			if l.unsaved == nil {
				l.log.Error("cannot save what the device is at; nothing is changed until it can", "err", err)
			}
			l.unsaved, l.saveAt = err, now.Add(saveRetry)
			return false
		}
		l.unsaved = nil
		if !changed {
			return true
		}
		l.pump.nudge()
	}
}

func (l *loop) question(now time.Time) question {
	return question{now: now, target: l.target, next: l.next, o: l.seen, s: l.sup, p: l.p, pulls: l.pull.troubles, before: l.before, unseen: !l.observed, good: l.good}
}

// saved writes what is new in an assessment, in one transaction; false: nothing is.
func (l *loop) saved(now time.Time, a assessment) (bool, error) {
	if len(a.bad) > 0 { // first: what is reported follows from it
		return true, l.turnBack(a.bad)
	}
	since := l.staleSince()
	stale := !since.IsZero()
	commit := a.settled && l.running != nil && (l.committed == nil || l.committed.Digest != l.running.Digest)
	tell := !l.reported || stale != l.stale || commit
	var fresh []store.Status
	for _, s := range a.statuses {
		if !same(l.before[s.DeploymentID], s) {
			fresh = append(fresh, s)
		}
	}
	if len(fresh)+len(a.removed)+len(a.good) == 0 && !tell {
		return false, nil
	}
	old := [3]any{l.committed, l.lastGood, l.stale}
	turned := stale != l.stale
	l.stale = stale
	alarms := l.alarms(fresh)
	if commit {
		if l.committed != nil {
			l.lastGood = l.committed
		}
		l.committed = l.running
	}
	err := l.o.Store.Update(func(tx *store.Tx) error {
		if err := l.statuses(tx, now, fresh, a.removed); err != nil {
			return err
		}
		if commit {
			if err := tx.SetState(store.Committed, *l.committed); err != nil {
				return err
			}
			if l.lastGood != nil {
				if err := tx.SetState(store.LastGood, *l.lastGood); err != nil {
					return err
				}
			}
		}
		for _, d := range a.good {
			if err := tx.SetGood(l.goodRecord(now, d)); err != nil {
				return err
			}
		}
		for _, s := range a.removed {
			if err := tx.DeleteGood(s.DeploymentID); err != nil {
				return err
			}
		}
		for _, x := range alarms {
			if err := x.save(tx); err != nil {
				return err
			}
		}
		if tell || len(alarms) > 0 {
			return l.capabilities(tx, now)
		}
		return nil
	})
	if err != nil {
		l.committed, l.lastGood, l.stale = old[0].(*store.State), old[1].(*store.State), old[2].(bool)
		return false, err
	}
	l.reported = true
	l.remember(fresh, a.removed)
	for _, x := range alarms {
		l.alarmed(x)
	}
	if turned {
		l.turnedStale(since)
	}
	l.approve(now, a)
	if commit {
		l.tidy = true
		l.log.Info("generation runs completely", "generation", l.committed.Generation, "digest", l.committed.Digest)
		l.events.Emit(Event{Kind: EventCommitted, Generation: l.committed.Generation})
	}
	return true, nil
}

// statuses writes statuses and their reports.
func (l *loop) statuses(tx *store.Tx, now time.Time, fresh, removed []store.Status) error {
	for _, s := range slices.Concat(fresh, removed) {
		var err error
		if s.State == margo.StateRemoved {
			err = tx.DeleteStatus(s.DeploymentID)
		} else {
			err = tx.SetStatus(s)
		}
		if err != nil {
			return err
		}
		if l.o.Reporter == nil {
			continue
		}
		b, err := body(string(l.o.Device), s)
		if err != nil {
			return fmt.Errorf("write status of %s: %w", s.DeploymentID, err)
		}
		if old, err := body(string(l.o.Device), l.before[s.DeploymentID]); err == nil && bytes.Equal(old, b) {
			continue // nothing that a report tells has changed
		}
		if _, err := tx.Append(store.Report{Kind: store.KindStatus, Subject: s.DeploymentID, Body: b, At: now}); err != nil {
			return err
		}
	}
	return nil
}

// recap reports the newest of everything once more: reports were dropped, and all that waited has been delivered.
func (l *loop) recap() {
	now, told := l.o.Now(), false
	err := l.o.Store.Update(func(tx *store.Tx) error {
		gap, err := tx.Gap()
		if err != nil || gap == nil || gap.Told {
			return err
		}
		told = true
		for _, id := range slices.Sorted(maps.Keys(l.before)) {
			b, err := body(string(l.o.Device), l.before[id])
			if err != nil {
				return fmt.Errorf("write status of %s: %w", id, err)
			}
			if _, err := tx.Append(store.Report{Kind: store.KindStatus, Subject: id, Body: b, At: now}); err != nil {
				return err
			}
		}
		return errors.Join(l.capabilities(tx, now), tx.ToldGap())
	})
	switch {
	case err != nil:
		l.log.Warn("cannot report everything once more after reports were lost", "err", err)
	case told:
		l.log.Info("reports were lost; the newest of everything is reported once more")
		l.pump.nudge()
	}
}

// remember takes over what was written.
func (l *loop) remember(fresh, removed []store.Status) {
	for _, s := range fresh {
		if was := l.before[s.DeploymentID]; was.State != s.State || was.Digest != s.Digest {
			e := Event{Kind: EventDeployment, Deployment: s.Name, Generation: s.Generation, Message: string(s.State)}
			args := []any{"deployment", s.Name, "id", s.DeploymentID, "state", s.State, "generation", s.Generation}
			if x := overallError(s); x != nil {
				args = append(args, "code", x.Code, "err", x.Message)
				e.Code, e.Message = Code(x.Code), e.Message+": "+x.Message
			}
			l.log.Info("deployment", args...)
			l.events.Emit(e)
		}
		l.before[s.DeploymentID] = s
	}
	for _, s := range removed {
		l.log.Info("deployment", "deployment", s.Name, "id", s.DeploymentID, "state", s.State, "generation", s.Generation)
		l.events.Emit(Event{Kind: EventDeployment, Deployment: s.Name, Generation: s.Generation, Message: string(s.State)})
		delete(l.before, s.DeploymentID)
	}
}

// same compares everything but times, which follow from the rest.
func same(a, b store.Status) bool {
	return a.DeploymentID == b.DeploymentID && a.Name == b.Name && a.Digest == b.Digest && a.Generation == b.Generation &&
		a.State == b.State && slices.EqualFunc(a.Components, b.Components, func(x, y store.Component) bool {
		return x.Name == y.Name && x.Revision == y.Revision && x.Identity == y.Identity && x.State == y.State && sameError(x.Error, y.Error)
	})
}

func sameError(a, b *margo.StatusError) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// accept makes a state that passed every check the device's own: the high-water mark, what it was resolved to, the first
// statuses, all at once. Its images are not here yet and nothing is stopped.
func (l *loop) accept(now time.Time, r answer) error {
	coming := l.coming
	accepted, refused, fresh := l.accepted, l.refused, l.fresh
	l.coming, l.accepted, l.refused, l.fresh = r.desired, r.state, nil, r.fresh
	l.recompose()
	a := assess(l.question(now))
	err := l.o.Store.Update(func(tx *store.Tx) error {
		return errors.Join(
			tx.SetState(store.Accepted, *r.state),
			tx.SetPins(r.state.Digest, r.pins),
			tx.SetRefused(nil),
			tx.SetFresh(r.fresh),
			l.keepTimes(tx),
			tx.RetainBad(digests(l.wanted, l.coming)),
			l.statuses(tx, now, slices.DeleteFunc(slices.Clone(a.statuses), func(s store.Status) bool {
				return same(l.before[s.DeploymentID], s)
			}), a.removed),
			l.capabilities(tx, now),
		)
	})
	if err != nil {
		l.coming, l.accepted, l.refused, l.fresh = coming, accepted, refused, fresh
		l.proven.Store(true)
		l.recompose()
		return err
	}
	l.reported = true
	told := Event{Kind: EventAccepted, Generation: r.state.Generation, Digest: r.state.Digest}
	if r.state.Repeats != "" {
		told.Message = "it repeats the content of " + r.state.Repeats.String()
	}
	if accepted != nil && r.state.Generation < accepted.Generation {
		told.Message = fmt.Sprintf("the trust policy has taken back generation %d", accepted.Generation)
		l.log.Warn("the trust policy has taken back a generation", "generation", accepted.Generation, "digest", accepted.Digest)
	}
	l.events.Emit(told)
	l.remember(a.statuses, a.removed)
	l.pump.nudge()
	l.log.Info("accepted", "generation", r.state.Generation, "digest", r.state.Digest, "signedBy", r.state.SignedBy, "insecure", r.state.Insecure)
	return nil
}

// refuse remembers a state that failed a check, and reports it. A refusal that is known already is not written again.
func (l *loop) refuse(now time.Time, r store.Refused) error {
	if old := l.refused; old != nil && old.Digest == r.Digest && old.Code == r.Code && old.Policy == r.Policy {
		return nil
	}
	old := l.refused
	l.refused = &r
	var x *alarm
	if Code(r.Code).Attack() {
		x = l.newAlarm(Code(r.Code), r.Digest, r.Generation, r.Message)
	}
	err := l.o.Store.Update(func(tx *store.Tx) error {
		return errors.Join(tx.SetRefused(&r), l.keepTimes(tx), x.save(tx), l.capabilities(tx, now))
	})
	if err != nil {
		l.refused = old
		l.proven.Store(true)
		return err
	}
	l.alarmed(x)
	l.pump.nudge()
	l.events.Emit(Event{Kind: EventRefused, Generation: r.Generation, Code: Code(r.Code), Message: r.Message})
	l.log.Warn("refused", "generation", r.Generation, "digest", r.Digest, "code", r.Code, "err", r.Message, "hint", r.Hint)
	return nil
}

// retarget makes the accepted generation, all of whose bytes are here, the one that the device is kept at.
func (l *loop) retarget() error {
	keep := digests(l.coming)
	err := l.o.Store.Update(func(tx *store.Tx) error {
		return errors.Join(tx.SetState(store.Target, *l.accepted), tx.RetainBad(keep))
	})
	if err != nil {
		return err
	}
	l.running, l.wanted, l.coming, l.damaged = l.accepted, l.coming, nil, nil
	maps.DeleteFunc(l.bad, func(d digest.Digest, _ store.Bad) bool { return !keep[d] })
	l.admission.forget(keep)
	l.recompose()
	l.forget()
	l.tidy = true // also of a device that never settles
	clear(l.sup.Begun)
	l.look = true
	l.events.Emit(Event{Kind: EventPulled, Generation: l.running.Generation})
	l.log.Info("all of the generation is on the device; applying it", "generation", l.running.Generation)
	return nil
}
