package agent

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// saveRetry is the pause after the store could not be written.
const saveRetry = 5 * time.Second

// Extension is the member of the capabilities report that says what the agent is doing. It is an [Extra].
const Extension = "x-longshore-extensions"

// Extra is what a device reports of itself beyond Margo, in its capabilities report under [Extension].
type Extra struct {
	AgentVersion        string        `json:"agentVersion"`
	AcceptedGeneration  uint64        `json:"acceptedGeneration"` // 0: none
	Digest              string        `json:"digest,omitempty"`   // of the accepted state
	RunningGeneration   uint64        `json:"runningGeneration"`  // that it runs or changes to: not one whose changes all wait
	CommittedGeneration uint64        `json:"committedGeneration"`
	Refused             *ExtraRefused `json:"refused,omitempty"`
	Hold                *status.Hold  `json:"hold,omitempty"`    // somebody at the device keeps it at an earlier generation
	Waiting             []ExtraWait   `json:"waiting,omitempty"` // changes that are not made yet

	Decisions   []artifacts.CurrentDecision   `json:"decisions,omitempty"`   // of people at the device, the newest few, the last at the end
	Transitions *artifacts.CurrentTransitions `json:"transitions,omitempty"` // in a current state

	Progress     *status.Progress `json:"progress,omitempty"` // of the change to the accepted state; nil: none was ever found
	Stale        bool             `json:"stale"`
	StaleSince   time.Time        `json:"staleSince,omitzero"`
	Insecure     []string         `json:"insecure"`
	TrustVersion uint64           `json:"trustVersion,omitempty"` // of the trust policy; 0: it does not travel
	ReportsLost  uint64           `json:"reportsLost"`

	ReportIntervalSeconds int64 `json:"reportIntervalSeconds,omitempty"` // the device reports at least so often; 0: only changes
	FullIntervalSeconds   int64 `json:"fullIntervalSeconds,omitempty"`   // and at least so often everything; 0: only what changes

	Security []status.SecurityEvent `json:"security,omitempty"` // the newest few, the last at the end
}

// maxReported is how many security events, and how many decisions, go into one report.
const maxReported = 8

// ExtraRefused is the state that the tag points at and that this device does not take.
type ExtraRefused struct {
	Digest     string    `json:"digest"`
	Generation uint64    `json:"generation"` // 0: not known
	Code       string    `json:"code"`
	Message    string    `json:"message"`
	Since      time.Time `json:"since"`
}

// ExtraWait is a change that is not made yet.
type ExtraWait struct {
	Deployment string     `json:"deployment"` // id
	Name       string     `json:"name"`
	Code       codes.Code `json:"code"`
	Message    string     `json:"message"`
	Until      time.Time  `json:"until,omitzero"`
}

// capabilities appends the device's report of itself, if it has an endpoint.
func (l *loop) capabilities(tx *store.Tx, now time.Time) error {
	l.foundTold = foundIn(l.progressed)
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
	x := Extra{AgentVersion: l.o.Version, Stale: l.stale, StaleSince: l.staleSince().UTC(), Insecure: l.insecure(), TrustVersion: l.trust.version}
	x.ReportIntervalSeconds, x.FullIntervalSeconds = int64(l.o.ReportInterval/time.Second), int64(l.o.FullInterval/time.Second)
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
		x.Waiting = append(x.Waiting, ExtraWait{id, status.NameOf(l.reportedStatus, id), w.Code, w.Message, w.Until})
	}
	if w := l.trustWaits(); w != nil {
		x.Waiting = append(x.Waiting, ExtraWait{status.TrustPolicyName, status.TrustPolicyName, w.Code, w.Message, w.Until})
	}
	if r := l.refused; r != nil {
		x.Refused = &ExtraRefused{r.Digest.String(), r.Generation, r.Code, r.Message, r.Since.UTC()}
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
	for _, s := range security[max(0, len(security)-maxReported):] {
		x.Security = append(x.Security, status.NewSecurityEvent(s))
	}
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
	c.Extensions[Extension] = x
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
	if l.unsaved != nil && now.Before(l.saveAt) {
		return false
	}
	for {
		a := plan.Assess(l.assessmentInput(now))
		changed, err := l.persist(now, a)
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
		l.nudge()
	}
}

func (l *loop) assessmentInput(now time.Time) plan.AssessmentInput {
	return plan.AssessmentInput{Now: now, Target: l.targetResolved, Accepted: l.acceptedResolved, Observed: l.seen, Supervision: l.sup, Policy: l.p, Pulls: l.pull.troubles, Before: l.reportedStatus, Unseen: !l.observed, Good: l.good}
}

// persist writes what is new in an assessment, in one transaction; false: nothing is.
func (l *loop) persist(now time.Time, a plan.Assessment) (bool, error) {
	if len(a.Bad) > 0 { // first: what is reported follows from it
		return true, l.recordFailedUpdates(a.Bad)
	}
	since := l.staleSince()
	stale := !since.IsZero()
	commit := a.Settled && l.target != nil && (l.committed == nil || l.committed.Digest != l.target.Digest)
	was := [3]any{l.committed, l.lastGood, l.stale}
	if commit {
		l.commit()
	}
	at, before := l.standing(now, a), l.progressed
	moved, said, more, foundTold := !sameProgress(before, at), l.loaded, l.loadedMore(at), l.foundTold
	tell := !l.reported || stale != l.stale || commit || !maps.Equal(l.gate.waits, l.gate.told) || moved && !looksAround(before, at) || more != said || l.foundLong(now, at) != foundTold
	var fresh []store.Status
	for _, s := range a.Statuses {
		if !same(l.reportedStatus[s.DeploymentID], s) {
			fresh = append(fresh, s)
		}
	}
	ailing := !maps.Equal(a.FailedBefore, l.sup.FailedBefore)
	if len(fresh)+len(a.Removed)+len(a.Good) == 0 && !tell && !ailing && (!moved || looksAround(before, at)) {
		l.progressed = at // nothing is lost with the agent: it checks again
		l.tellProgress(before)
		return false, nil
	}
	turned := stale != l.stale
	l.stale, l.progressed, l.loaded = stale, at, more
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
		l.committed, l.lastGood, l.stale, l.progressed, l.loaded, l.foundTold = was[0].(*store.State), was[1].(*store.State), was[2].(bool), before, said, foundTold
		return false, err
	}
	l.reported, l.sup.FailedBefore, l.gate.told = true, a.FailedBefore, l.gate.waits
	l.remember(fresh, a.Removed)
	l.tellProgress(before)
	for _, x := range attacks {
		l.emitSecurity(x)
	}
	if turned {
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
		old, known := l.reportedStatus[s.DeploymentID]
		x := transition(now, s)
		if l.o.Reporter != nil {
			b, err := body(string(l.o.Device), s)
			if err != nil {
				return fmt.Errorf("write status of %s: %w", s.DeploymentID, err)
			}
			if was, err := body(string(l.o.Device), old); err == nil && bytes.Equal(was, b) {
				continue // nothing that is in a report has changed
			}
			if x.Sequence, err = tx.Append(store.Report{Kind: store.KindStatus, Subject: s.DeploymentID, Body: b, At: now}); err != nil {
				return err
			}
		}
		if l.o.Publisher != nil && !(known && x.Same(transition(now, old))) {
			if err := tx.AddTransition(x); err != nil {
				return err
			}
		}
	}
	return nil
}

// transition is that a deployment came to where it is now.
func transition(now time.Time, s store.Status) artifacts.CurrentTransition {
	x := artifacts.CurrentTransition{At: now.UTC(), Deployment: s.DeploymentID, Generation: s.Generation, State: s.State, Error: cutError(statusError(s))}
	if x.Error != nil {
		x.Error.Source, x.Error.Message = status.Cut(x.Error.Source, maxSentence/4), status.Cut(x.Error.Message, maxSentence/4)
	}
	return x
}

// statusError is why a deployment does not run, or does not begin.
func statusError(s store.Status) *margo.StatusError {
	return cmp.Or(plan.OverallError(s), plan.PendingReason(s))
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
		for _, id := range slices.Sorted(maps.Keys(l.reportedStatus)) {
			b, err := body(string(l.o.Device), l.reportedStatus[id])
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
		if was := l.reportedStatus[s.DeploymentID]; was.State != s.State || was.Digest != s.Digest {
			e := status.Event{Kind: status.EventDeployment, Deployment: s.Name, Generation: s.Generation, Message: string(s.State), Since: s.Since}
			args := []any{"deployment", s.Name, "id", s.DeploymentID, "state", s.State, "generation", s.Generation}
			if x := plan.OverallError(s); x != nil {
				args = append(args, "code", x.Code, "err", x.Message)
				e.Code, e.Message = codes.Code(x.Code), e.Message+": "+x.Message
			}
			l.log.Info("deployment", args...)
			l.events.Emit(e)
		}
		l.reportedStatus[s.DeploymentID] = s
	}
	for _, s := range removed {
		l.log.Info("deployment", "deployment", s.Name, "id", s.DeploymentID, "state", s.State, "generation", s.Generation)
		l.events.Emit(status.Event{Kind: status.EventDeployment, Deployment: s.Name, Generation: s.Generation, Message: string(s.State)})
		delete(l.reportedStatus, s.DeploymentID)
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
func (l *loop) accept(now time.Time, r intake.Result) error {
	coming, begun := l.acceptedDesired, l.underWay(now, r.State)
	accepted, refused, fresh, hold, before := l.accepted, l.refused, l.fresh, l.hold, l.progressed
	committed, lastGood := l.committed, l.lastGood
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
				return same(l.reportedStatus[s.DeploymentID], s)
			}), a.Removed),
			l.saveProgress(tx, l.progressed),
			setChanges(tx, begun),
			l.capabilities(tx, now),
		)
	})
	if err != nil {
		l.acceptedDesired, l.accepted, l.refused, l.fresh, l.hold, l.progressed = coming, accepted, refused, fresh, hold, before
		l.committed, l.lastGood, l.gate.records = committed, lastGood, records
		l.times.Unsaved()
		l.rebuild()
		return err
	}
	l.reported, l.replaced = true, nil
	told := status.Event{Kind: status.EventAccepted, Generation: r.State.Generation, Digest: r.State.Digest, Since: l.poll.begun, Verifying: l.poll.verifying}
	if r.State.Repeats != "" {
		told.Message = "it repeats the content of " + r.State.Repeats.String()
	}
	switch {
	case accepted == nil:
	case !accepted.Continues(r.State.Repository):
		told.Message = "from " + r.State.Repository + ", which counts by itself; before from " + accepted.Repository
		l.log.Warn("states come from elsewhere now, where generations are counted anew", "from", r.State.Repository, "before", accepted.Repository)
	case r.State.Generation < accepted.Generation:
		told.Message = fmt.Sprintf("the trust policy has taken back generation %d", accepted.Generation)
		l.log.Warn("the trust policy has taken back a generation", "generation", accepted.Generation, "digest", accepted.Digest)
	}
	l.events.Emit(told)
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
	l.look = true
	l.events.Emit(status.Event{Kind: status.EventPulled, Generation: l.target.Generation})
	l.progressed = at
	l.tellProgress(before)
	l.log.Info("all of the generation is on the device; applying it", "generation", l.target.Generation)
	return nil
}

// reportedFor is the device that a status is about: one behind this one only where it is a single one.
func reportedFor(device, child string) string {
	if child == "" || strings.HasSuffix(child, "/*") {
		return device
	}
	return child
}

// body is the report that a status makes.
func body(device string, s store.Status) ([]byte, error) {
	d := margo.DeploymentStatus{
		DeploymentID: s.DeploymentID, DeviceID: reportedFor(device, s.Child), AdoptedManifestVersion: s.Generation,
		Status:     margo.OverallStatus{State: s.State, Error: statusError(s)},
		Components: []margo.ComponentStatus{},
	}
	for _, c := range s.Components {
		d.Components = append(d.Components, margo.ComponentStatus{Name: c.Name, State: c.State, Error: c.Error})
	}
	return d.Encode()
}
