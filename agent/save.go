package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/currentstate"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// saveRetry is the pause after the store could not be written.
const saveRetry = 5 * time.Second

// maxReported is how many security events, and how many decisions, go into one report.
const maxReported = 8

// saving is what could not be saved yet. It is part of the loop.
type saving struct {
	err        error     // the store could not be written
	at         time.Time // of the next attempt, after err
	security   []*securityEvent
	securityAt time.Time // of the next attempt at security; zero: there are none
}

// told is what was last reported. It is part of the loop.
type told struct {
	statuses     map[string]store.Status // by deployment
	conflicts    map[string]string       // why start-first is done as stop-first, by project and service
	stale        bool
	capabilities bool // since the start
	found        found
	loaded       loaded
}

// capabilities appends the device's report of itself, if it has an endpoint.
func (l *loop) capabilities(tx *store.Tx, now time.Time) error {
	found := foundIn(l.progressed)
	tx.Saved(func() { l.told.found = found })
	if l.o.Reporter == nil {
		return nil
	}
	b, err := l.capabilitiesBody(tx, nil)
	if err != nil {
		return err
	}
	_, err = tx.Append(store.Report{Kind: store.KindCapabilities, Subject: string(l.o.Device), Body: b, At: now})
	return err
}

// capabilitiesBody is what the device reports of itself. transitions are for a current state only: an endpoint gets each as a report.
func (l *loop) capabilitiesBody(tx *store.Tx, transitions *artifacts.CurrentTransitions) ([]byte, error) {
	x := status.Extra{AgentVersion: l.o.Version, Stale: l.told.stale, StaleSince: l.staleSince().UTC(), Insecure: l.insecure(), TrustVersion: l.trust.version}
	if l.o.Reporter != nil {
		x.ReportIntervalSeconds, x.FullIntervalSeconds = int64(l.o.ReportInterval/time.Second), int64(l.o.FullInterval/time.Second)
	}
	if l.accepted != nil {
		x.AcceptedGeneration, x.Digest = l.accepted.Generation, l.accepted.Digest.String()
	}
	if r := l.running(); r != nil {
		x.RunningGeneration = r.Generation
	}
	if l.committed != nil {
		x.CommittedGeneration = l.committed.Generation
	}
	x.Progress = l.reportedProgress()
	x.Hold = status.NewHold(l.hold)
	for _, id := range slices.Sorted(maps.Keys(l.gate.waits)) {
		w := l.gate.waits[id]
		x.Waiting = append(x.Waiting, artifacts.CurrentWait{Deployment: id, Name: status.NameOf(l.told.statuses, id), Code: string(w.Code), Message: w.Message, Until: w.Until})
	}
	if w, _ := l.trustWaits(); w != nil {
		x.Waiting = append(x.Waiting, artifacts.CurrentWait{Deployment: status.TrustPolicyName, Name: status.TrustPolicyName, Code: string(w.Code), Message: w.Message, Until: w.Until})
	}
	if r := l.refused; r != nil {
		x.Refused = &artifacts.CurrentRefusal{Digest: r.Digest, Generation: r.Generation, Code: r.Code, Message: r.Message, Since: r.Since.UTC()}
	}
	gap, err := tx.Gap()
	if err != nil {
		return nil, err
	}
	if gap != nil {
		x.ReportsLost = gap.Count
	}
	security, err := tx.Security()
	if err != nil {
		return nil, err
	}
	x.Security = security[max(0, len(security)-maxReported):]
	if x.Decisions, err = reportedDecisions(tx); err != nil {
		return nil, err
	}
	if transitions != nil && len(transitions.List) > 0 {
		x.Transitions = transitions
	}
	c := l.device
	c.Extensions = maps.Clone(c.Extensions)
	if c.Extensions == nil {
		c.Extensions = margo.Extensions{}
	}
	c.Extensions[status.Extension] = x
	b, err := c.Encode()
	if err != nil {
		return nil, fmt.Errorf("write capabilities: %w", err)
	}
	return b, nil
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
	if l.saving.err != nil && now.Before(l.saving.at) {
		return false
	}
	for {
		a := plan.Assess(l.assessmentInput(now))
		changed, err := l.persist(now, a)
		if err != nil {
			if l.saving.err == nil {
				l.log.Error("cannot save what the device is at; nothing is changed until it can", "err", err)
			}
			l.saving.err, l.saving.at = err, now.Add(saveRetry)
			return false
		}
		l.saving.err = nil
		if !changed {
			return true
		}
		l.nudge()
	}
}

func (l *loop) assessmentInput(now time.Time) plan.AssessmentInput {
	return plan.AssessmentInput{Now: now, Target: l.targetResolved, Accepted: l.acceptedResolved, Observed: l.sight.seen, Supervision: l.sup, Policy: l.p, Pulls: l.pull.troubles, Before: l.told.statuses, Unseen: !l.sight.known, Good: l.good}
}

// persist writes what is new in an assessment, in one transaction; false: nothing is.
func (l *loop) persist(now time.Time, a plan.Assessment) (bool, error) {
	if len(a.Bad) > 0 { // first: what is reported follows from it
		return true, l.recordFailedUpdates(a.Bad)
	}
	since := l.staleSince()
	stale := !since.IsZero()
	commit := a.Settled && l.target != nil && (l.committed == nil || l.committed.Digest != l.target.Digest)
	states, told := l.states, l.told
	if commit {
		l.commit()
	}
	at, before := l.standing(now, a), l.progressed
	moved, more := !sameProgress(before, at), l.loadedMore(at)
	tell := !l.told.capabilities || stale != told.stale || commit || !maps.Equal(l.gate.waits, l.gate.told) || moved && !looksAround(before, at) ||
		more != told.loaded || l.foundLong(now, at) != told.found
	var fresh []store.Status
	for _, s := range a.Statuses {
		if !status.Same(l.told.statuses[s.DeploymentID], s) {
			fresh = append(fresh, s)
		}
	}
	ailing := !maps.Equal(a.FailedBefore, l.sup.FailedBefore)
	if len(fresh)+len(a.Removed)+len(a.Good) == 0 && !tell && !ailing && (!moved || looksAround(before, at)) {
		l.progressed = at // nothing is lost with the agent: it checks again
		l.tellProgress(before)
		return false, nil
	}
	l.told.stale, l.progressed, l.told.loaded = stale, at, more
	attacks := l.newAttacks(fresh)
	err := l.o.Store.Update(func(tx *store.Tx) error {
		if err := l.statuses(tx, now, fresh, a.Removed); err != nil {
			return err
		}
		if commit {
			if err := l.saveCommitted(tx); err != nil {
				return err
			}
		}
		if ailing {
			if err := tx.SetAiling(a.FailedBefore); err != nil {
				return err
			}
		}
		for _, d := range a.Good {
			if err := tx.SetGood(l.goodRecord(now, d)); err != nil {
				return err
			}
		}
		for _, s := range a.Removed {
			if err := tx.DeleteGood(s.DeploymentID); err != nil {
				return err
			}
		}
		for _, x := range attacks {
			if err := x.save(tx); err != nil {
				return err
			}
		}
		if tell || len(attacks) > 0 {
			if err := l.capabilities(tx, now); err != nil {
				return err
			}
		}
		return l.saveProgress(tx, at)
	})
	if err != nil {
		l.states, l.told, l.progressed = states, told, before
		return false, err
	}
	l.told.capabilities, l.sup.FailedBefore, l.gate.told = true, a.FailedBefore, l.gate.waits
	l.remember(fresh, a.Removed)
	l.tellProgress(before)
	for _, x := range attacks {
		l.emitSecurity(x)
	}
	if stale != told.stale {
		l.turnedStale(since)
	}
	l.markGood(now, a)
	if commit {
		l.garbage = true
		l.log.Info("generation runs completely", "generation", l.committed.Generation, "digest", l.committed.Digest)
		l.events.Emit(status.Event{Kind: status.EventCommitted, Generation: l.committed.Generation})
	}
	return true, nil
}

// commit has the target be what ran completely.
func (l *loop) commit() {
	if l.committed != nil {
		l.lastGood = l.committed
	}
	l.committed = l.target
}

// saveCommitted writes which generations ran completely.
func (l *loop) saveCommitted(tx *store.Tx) error {
	for mark, s := range map[store.Mark]*store.State{store.Committed: l.committed, store.LastGood: l.lastGood} {
		if s == nil {
			continue
		}
		if err := tx.SetState(mark, *s); err != nil {
			return err
		}
	}
	return nil
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
		old, known := l.told.statuses[s.DeploymentID]
		x := currentstate.Transition(now, s)
		if l.o.Reporter != nil {
			b, err := status.Report(string(l.o.Device), s)
			if err != nil {
				return fmt.Errorf("write status of %s: %w", s.DeploymentID, err)
			}
			if was, err := status.Report(string(l.o.Device), old); err == nil && bytes.Equal(was, b) {
				continue // nothing that is in a report has changed
			}
			if x.Sequence, err = tx.Append(store.Report{Kind: store.KindStatus, Subject: s.DeploymentID, Body: b, At: now}); err != nil {
				return err
			}
		}
		if l.o.Publisher != nil && !(known && x.Same(currentstate.Transition(now, old))) {
			if err := tx.AddTransition(x); err != nil {
				return err
			}
		}
	}
	return nil
}

// recap has the loop report everything once more.
func (a *Agent) recap(ctx context.Context) {
	select {
	case a.inbox <- (*loop).recap:
	case <-ctx.Done():
	}
}

// recap reports the newest of everything once more: all that waited has been delivered, and reports were dropped, the endpoint lost some,
// or it is time for it.
func (l *loop) recap() {
	now, told := l.o.Now(), false
	err := l.o.Store.Update(func(tx *store.Tx) error {
		gap, err := tx.Gap()
		if err != nil || gap == nil || gap.Told {
			return err
		}
		told = true
		for _, id := range slices.Sorted(maps.Keys(l.told.statuses)) {
			b, err := status.Report(string(l.o.Device), l.told.statuses[id])
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
		l.log.Warn("cannot report everything once more", "err", err)
	case told:
		l.log.Info("the newest of everything is reported once more")
		l.nudge()
	}
}

// remember takes over what was written.
func (l *loop) remember(fresh, removed []store.Status) {
	for _, s := range fresh {
		if was := l.told.statuses[s.DeploymentID]; was.State != s.State || was.Digest != s.Digest {
			e := status.Event{Kind: status.EventDeployment, Deployment: s.Name, Generation: s.Generation, Message: string(s.State), Since: s.Since}
			args := []any{"deployment", s.Name, "id", s.DeploymentID, "state", s.State, "generation", s.Generation}
			if x := plan.OverallError(s); x != nil {
				args = append(args, "code", x.Code, "err", x.Message)
				e.Code, e.Message = codes.Code(x.Code), e.Message+": "+x.Message
			}
			l.log.Info("deployment", args...)
			l.events.Emit(e)
		}
		l.told.statuses[s.DeploymentID] = s
	}
	for _, s := range removed {
		l.log.Info("deployment", "deployment", s.Name, "id", s.DeploymentID, "state", s.State, "generation", s.Generation)
		l.events.Emit(status.Event{Kind: status.EventDeployment, Deployment: s.Name, Generation: s.Generation, Message: string(s.State)})
		delete(l.told.statuses, s.DeploymentID)
	}
}

// accept makes a state that passed every check the device's own: the high-water mark, what it was resolved to, the first
// statuses, all at once. Its images are not here yet and nothing is stopped.
func (l *loop) accept(now time.Time, r intake.Result) error {
	begun := l.facts(now).UnderWay(r.State)
	states, told, fresh, hold, before := l.states, l.told, l.fresh, l.hold, l.progressed
	l.endHold()
	l.acceptedDesired, l.accepted, l.refused, l.fresh = r.Desired, r.State, nil, r.Fresh
	records := maps.Clone(l.gate.records)
	for _, r := range begun {
		l.gate.records[r.ID] = r
	}
	l.rebuild()
	a := plan.Assess(l.assessmentInput(now))
	l.progressed = l.standing(now, a)
	err := l.o.Store.Update(func(tx *store.Tx) error {
		return errors.Join(
			tx.SetState(store.Accepted, *r.State),
			tx.SetPins(r.State.Digest, r.Pins),
			tx.SetRefused(nil),
			tx.SetHold(nil),
			l.saveCommitted(tx),
			tx.SetLost(nil),
			tx.SetFresh(r.Fresh),
			l.times.Save(tx),
			tx.RetainBad(digests(l.targetDesired, l.acceptedDesired)),
			l.statuses(tx, now, slices.DeleteFunc(slices.Clone(a.Statuses), func(s store.Status) bool {
				return status.Same(l.told.statuses[s.DeploymentID], s)
			}), a.Removed),
			l.saveProgress(tx, l.progressed),
			tx.SetChanges(l.gate.records),
			l.capabilities(tx, now),
		)
	})
	if err != nil {
		l.states, l.told, l.fresh, l.hold, l.progressed, l.gate.records = states, told, fresh, hold, before, records
		l.times.Unsaved()
		l.rebuild()
		return err
	}
	l.told.capabilities, l.replaced = true, nil
	event := status.Event{Kind: status.EventAccepted, Generation: r.State.Generation, Digest: r.State.Digest, Since: l.poll.begun, Verifying: l.poll.verifying}
	if r.State.Repeats != "" {
		event.Message = "it repeats the content of " + r.State.Repeats.String()
	}
	switch accepted := states.accepted; {
	case accepted == nil:
	case !accepted.Continues(r.State.Repository):
		event.Message = "from " + r.State.Repository + ", which counts by itself; before from " + accepted.Repository
		l.log.Warn("states come from elsewhere now, where generations are counted anew", "from", r.State.Repository, "before", accepted.Repository)
	case r.State.Generation < accepted.Generation:
		event.Message = fmt.Sprintf("the trust policy has taken back generation %d", accepted.Generation)
		l.log.Warn("the trust policy has taken back a generation", "generation", accepted.Generation, "digest", accepted.Digest)
	}
	l.events.Emit(event)
	l.remember(a.Statuses, a.Removed)
	l.tellProgress(before)
	l.nudge()
	l.log.Info("accepted", "generation", r.State.Generation, "digest", r.State.Digest, "signedBy", r.State.SignedBy, "insecure", r.State.Insecure)
	return nil
}

// refuse remembers a state that failed a check, and reports it. A refusal that is known already is not written again.
func (l *loop) refuse(now time.Time, r store.Refused) error {
	if old := l.refused; old != nil && old.Digest == r.Digest && old.Code == r.Code && old.Policy == r.Policy {
		return nil
	}
	old := l.refused
	l.refused = &r
	var x *securityEvent
	if codes.Code(r.Code).Attack() {
		x = l.newSecurityEvent(codes.Code(r.Code), r.Digest, r.Generation, r.Message)
	}
	err := l.o.Store.Update(func(tx *store.Tx) error {
		return errors.Join(tx.SetRefused(&r), l.times.Save(tx), x.save(tx), l.capabilities(tx, now))
	})
	if err != nil {
		l.refused = old
		l.times.Unsaved()
		return err
	}
	l.emitSecurity(x)
	l.nudge()
	l.events.Emit(status.Event{
		Kind: status.EventRefused, Generation: r.Generation, Digest: r.Digest, Code: codes.Code(r.Code), Message: r.Message, Since: l.poll.begun, Verifying: l.poll.verifying,
	})
	l.log.Warn("refused", "generation", r.Generation, "digest", r.Digest, "code", r.Code, "err", r.Message, "hint", r.Hint)
	return nil
}

// promoteAccepted makes the accepted generation, all of whose bytes are here, the one that the device is kept at.
func (l *loop) promoteAccepted() error {
	keep := digests(l.acceptedDesired)
	l.forget()
	before := l.progressed
	at := plan.Progress(before, plan.Standing{Now: l.o.Now(), Accepted: l.accepted, Committed: l.committed, Whole: true, Unloaded: true})
	again := l.comingBack(l.acceptedDesired)
	err := l.o.Store.Update(func(tx *store.Tx) error {
		return errors.Join(tx.SetState(store.Target, *l.accepted), tx.SetAgain(again), tx.RetainBad(keep), tx.SetImages(l.images), l.saveProgress(tx, at))
	})
	if err != nil {
		return err
	}
	l.target, l.targetDesired, l.acceptedDesired, l.damaged = l.accepted, l.acceptedDesired, nil, nil
	l.setRestarting(again)
	l.sup.Generation = l.target.Generation
	maps.DeleteFunc(l.bad, func(d digest.Digest, _ store.Bad) bool { return !keep[d] })
	l.admission.forget(keep)
	l.rebuild()
	l.garbage = true // also of a device that never settles
	clear(l.sup.Begun)
	l.events.Emit(status.Event{Kind: status.EventPulled, Generation: l.target.Generation})
	l.progressed = at
	l.tellProgress(before)
	l.log.Info("all of the generation is on the device; applying it", "generation", l.target.Generation)
	return nil
}
