package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/approval"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// RollbackRequest is the generation that somebody at the device wants it to run.
type RollbackRequest struct {
	To     uint64        `json:"to"` // 0: the one that ran completely before
	By     string        `json:"-"`
	Via    string        `json:"-"`
	Reason string        `json:"reason,omitempty"`
	Over   digest.Digest `json:"-"` // the accepted state that was looked at; another one is a conflict. "": the one of now
}

// RollBack brings the device back to a generation that ran completely here and is still on its disk, and holds it there until another state
// is accepted or [Agent.Release] is called. From now on its revisions are the good ones: what comes next is a change against them.
// fault.ErrNotFound: the device has no such generation; fault.ErrRejected: the trust policy does not accept its signatures any more, or has
// revoked it or a key that signed a part of it; fault.ErrConflict: the device runs it already, or has accepted another state than was looked at.
func (a *Agent) RollBack(ctx context.Context, r RollbackRequest) (h status.Hold, err error) {
	for range rollBackTries {
		var s store.State
		s, err = ask(ctx, a, func(l *loop) (store.State, error) {
			s, err := l.rollBackTo(r)
			if err == nil {
				r.Over = l.accepted.Digest
			}
			return s, err
		})
		if err != nil {
			return h, err
		}
		v := verified{state: s.Digest, policy: a.o.Fingerprint()}
		v.desired, v.err = a.intake.Reverify(ctx, s) // beside the loop: attestations are megabytes
		if h, err = ask(ctx, a, func(l *loop) (status.Hold, error) { return l.manualRollback(r, v) }); !errors.Is(err, errChanged) {
			return h, err
		}
	}
	return h, err
}

const rollBackTries = 3

// errChanged: a state was verified for a rollback, and another one or another policy counts by now.
var errChanged = fmt.Errorf("roll back: the trust policy or the state changed meanwhile: %w", fault.ErrTemporary)

// verified is a state that was verified again, and by which policy.
type verified struct {
	state   digest.Digest
	policy  string
	desired *plan.Desired
	err     error
}

// Release ends a hold: the accepted state is applied. fault.ErrNotFound: there is none.
func (a *Agent) Release(ctx context.Context, by, via string) (status.Hold, error) {
	return ask(ctx, a, func(l *loop) (status.Hold, error) { return l.release(by, via) })
}

// rollBackTo is the generation that a request means.
func (l *loop) rollBackTo(r RollbackRequest) (store.State, error) {
	if r.By == "" {
		return store.State{}, fmt.Errorf("roll back: the request does not name who decides: %w", fault.ErrInvalid)
	}
	if l.accepted == nil || l.target == nil {
		return store.State{}, fmt.Errorf("roll back: the device has accepted no state: %w", fault.ErrNotFound)
	}
	if r.Over != "" && r.Over != l.accepted.Digest {
		return store.State{}, fault.WithHint(fmt.Errorf("roll back: generation %d was accepted meanwhile: %w", l.accepted.Generation, fault.ErrConflict), "look at the status again")
	}
	s, err := l.earlier(r.To)
	if err != nil {
		return store.State{}, err
	}
	return *s, nil
}

func (l *loop) manualRollback(r RollbackRequest, v verified) (status.Hold, error) {
	fail := func(kind error, hint, format string, args ...any) (status.Hold, error) {
		return status.Hold{}, fault.WithHint(fmt.Errorf("roll back: %w: %w", fmt.Errorf(format, args...), kind), hint)
	}
	to, err := l.rollBackTo(r)
	if err != nil {
		return status.Hold{}, err
	}
	if to.Digest != v.state || l.o.Fingerprint() != v.policy {
		return status.Hold{}, errChanged
	}
	s, desired, err := &to, v.desired, v.err
	switch {
	case err != nil && codes.Of(err) == codes.ContentDamaged:
		return fail(err, "", "generation %d is not completely on the device", s.Generation)
	case fault.Distrusted(err):
		return fail(fault.ErrRejected, "choose another generation, or publish a new one", "generation %d does not pass the present trust policy: %w", s.Generation, err)
	case err != nil:
		return fail(err, "", "cannot verify generation %d again", s.Generation)
	}
	if l.o.Trust != nil {
		if x := l.o.Trust.Revoked(evidence(s, desired)); len(x) > 0 {
			return fail(fault.ErrRejected, "choose another generation, or publish a new one", "generation %d: the trust policy has revoked %s", s.Generation, cmp.Or(x[0].Digest.String(), "key "+x[0].Key.String()))
		}
	}
	hold := &store.Hold{Generation: s.Generation, State: s.Digest, Over: l.accepted.Digest, By: r.By, Via: r.Via, Reason: status.Cut(r.Reason, status.MaxMessage), At: l.o.Now()}
	states, before, damaged, good := l.states, l.hold, l.damaged, l.good
	l.hold, l.target, l.targetDesired, l.acceptedDesired, l.damaged = hold, s, desired, nil, nil
	l.good = l.goodOf(hold.At, desired)
	records, again := approval.TrustOnly(l.gate.records), l.comingBack(desired)
	told := status.Event{Kind: status.EventHold, Generation: s.Generation, Digest: s.Digest, Code: codes.Held, Message: "rolled back by " + r.By + reasonText(r.Reason)}
	err = l.o.Store.Update(func(tx *store.Tx) error {
		return errors.Join(
			tx.SetHold(hold), tx.SetState(store.Target, *s), tx.SetAgain(again), tx.ReplaceGood(goodRecords(l.good)), tx.SetChanges(records), keepDecided(tx, told, store.Decision{Verdict: store.RolledBack, By: r.By, Via: r.Via, Reason: hold.Reason, At: hold.At}),
			l.capabilities(tx, hold.At),
		)
	})
	if err != nil {
		l.states, l.hold, l.damaged, l.good = states, before, damaged, good
		return fail(err, "", "save the hold")
	}
	l.setRestarting(again)
	l.gate.records = records // what was decided about a change of the newer state is decided anew
	l.newTarget()
	l.refill.repair = true // what its images say may be forgotten
	l.log.Warn("rolled back by hand; the accepted state is not applied", "generation", s.Generation, "accepted", l.accepted.Generation, "by", r.By, "via", r.Via, "reason", hold.Reason)
	l.events.Emit(told)
	return *status.NewHold(hold), nil
}

// newTarget has the loop work on another target.
func (l *loop) newTarget() {
	l.sup.Generation = l.target.Generation
	l.gate.built = -1
	clear(l.sup.Begun)
	l.garbage = true
	l.nudge()
	l.rebuild()
}

// earlier is a generation that ran completely on the device and is not the target.
func (l *loop) earlier(generation uint64) (*store.State, error) {
	var held []*store.State
	var numbers []string
	for _, s := range []*store.State{l.committed, l.lastGood} {
		if s != nil && s.Digest != l.target.Digest && s.Digest != l.accepted.Digest && !slices.ContainsFunc(held, func(x *store.State) bool { return x.Digest == s.Digest }) {
			held = append(held, s)
			numbers = append(numbers, fmt.Sprint(s.Generation))
		}
	}
	for _, s := range held {
		if generation == 0 || s.Generation == generation {
			return s, nil
		}
	}
	switch {
	case generation == l.target.Generation:
		return nil, fault.WithHint(fmt.Errorf("roll back: the device is kept at generation %d already: %w", generation, fault.ErrConflict),
			"end that with longshore-agent release, or name another generation")
	case len(held) == 0:
		return nil, fault.WithHint(fmt.Errorf("roll back: the device has no earlier generation that ran completely: %w", fault.ErrNotFound),
			"publish one: longshore state rollback")
	}
	return nil, fault.WithHint(fmt.Errorf("roll back: the device does not have generation %d any more, or it did not run completely: %w", generation, fault.ErrNotFound),
		"it can go back to generation "+strings.Join(numbers, ", "))
}

// evidence is what a state was accepted by, and all that it brings, as far as it can be read.
func evidence(s *store.State, d *plan.Desired) (keys, content []digest.Digest) {
	for _, x := range s.Signers {
		if !slices.Contains(keys, x.Key) {
			keys = append(keys, x.Key)
		}
	}
	content = []digest.Digest{s.Digest}
	if d != nil {
		content = append(content, d.Blobs...)
	}
	for _, img := range d.Images() {
		content = append(content, img.Digest)
	}
	return keys, content
}

func (l *loop) release(by, via string) (status.Hold, error) {
	h := l.hold
	if h == nil {
		return status.Hold{}, fault.WithHint(fmt.Errorf("release: the device is not held at a generation: %w", fault.ErrNotFound),
			"there is nothing to do: longshore-agent status")
	}
	if by == "" {
		return status.Hold{}, fmt.Errorf("release: the request does not name who decides: %w", fault.ErrInvalid)
	}
	desired, err := l.intake.Load(l.ctx, *l.accepted, true)
	if err != nil {
		l.log.Warn("the accepted state is read again from the registry", "err", err)
	}
	states := l.states
	l.endHold()
	now := l.o.Now()
	told := status.Event{Kind: status.EventHold, Generation: l.accepted.Generation, Digest: l.accepted.Digest, Message: "released by " + by}
	err = l.o.Store.Update(func(tx *store.Tx) error {
		return errors.Join(tx.SetHold(nil), l.saveCommitted(tx), keepDecided(tx, told, store.Decision{Verdict: store.Released, By: by, Via: via, At: now}), l.capabilities(tx, now))
	})
	if err != nil {
		l.hold, l.states = h, states
		return status.Hold{}, fmt.Errorf("release: save: %w", err)
	}
	if l.accepted.Digest != l.target.Digest {
		l.acceptedDesired = desired
	}
	l.gate.built = -1
	l.rebuild()
	l.nudge()
	l.log.Info("released; the accepted state is applied", "generation", l.accepted.Generation, "by", by, "via", via)
	l.events.Emit(told)
	return *status.NewHold(h), nil
}

// endHold ends a hold in memory, and commits the generation of the rollback by hand, also if the rollback is not complete: its revisions are the
// good ones since it began.
func (l *loop) endHold() {
	if l.held() && (l.committed == nil || l.committed.Digest != l.target.Digest) {
		l.commit()
	}
	l.hold = nil
}

// keepHeld writes a hold in place of a damaged one: without it the device would apply the state that it was rolled back from. The target is
// the generation that was chosen.
func (l *loop) keepHeld(tx *store.Tx) error {
	target, err := tx.State(store.Target)
	accepted, acceptedErr := tx.State(store.Accepted)
	if err != nil || acceptedErr != nil || target == nil || accepted == nil || target.Digest == accepted.Digest {
		return nil //nolint:nilerr // a damaged mark keeps the agent from starting: readSaved reads them next
	}
	return tx.SetHold(&store.Hold{
		Generation: target.Generation, State: target.Digest, Over: accepted.Digest, By: "the agent", Via: "automatic",
		Reason: "the record of a rollback by hand was damaged; longshore-agent release ends it", At: l.o.Now(),
	})
}

// held reports whether the accepted state is not applied because somebody rolled the device back.
func (l *loop) held() bool {
	return l.hold != nil && l.accepted != nil && l.hold.Over == l.accepted.Digest
}

// heldText says what a hold does.
func (l *loop) heldText() string {
	return fmt.Sprintf("%s keeps the device at generation %d; generation %d is not applied%s", l.hold.By, l.hold.Generation, l.accepted.Generation, reasonText(l.hold.Reason))
}
