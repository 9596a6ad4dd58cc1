package agent

import (
	"errors"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/retry"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	pollBackoff  = 5 * time.Minute  // longest pause while the source does not answer, unless the interval is longer
	healBackoff  = 15 * time.Minute // longest pause before a refusal that may heal at the source is looked at again
	firstSpread  = 10 * time.Second // a site that gets its power back does not ask all at once
	phaseMinimum = 0.5
	slowCheck    = 5 * time.Minute
	wholeEvery   = 24 * time.Hour // between two looks at signatures that were kept: megabytes, where there are attestations
)

// poll decides when the source is asked and takes in what it said. It is part of the loop.
type poll struct {
	next       time.Time
	started    int       // checks
	begun      time.Time // the last one
	verifying  time.Time // since when it verifies a state, or did; zero: it does not, or found nothing new
	done       int       // the last one that ended
	busy       bool
	collecting bool // garbage is being collected: content that a check brings must not be taken for garbage
	phased     bool
	failures   int
	problem    error     // why the source could not be asked
	told       bool      // of problem, by an event
	excused    bool      // problem is expected: there was a declared downtime
	since      time.Time // of problem
	checked    time.Time
	forced     bool // someone asked: look at refused states again, too
	heal       time.Time
	heals      int
	kept       time.Time // proven times, by the hour
	again      time.Time // when the accepted state is held against a policy again that did not accept it
	whole      time.Time // when it is looked whether its signatures on the device are undamaged
	looked     time.Time // at the freshness of the accepted state, since the start
	unfresh    error     // why it could not be found out then
	fresh      bool      // something was examined since the start: until then a refusal of an earlier run means nothing
}

func (p *poll) first(l *loop) {
	p.next = l.o.Now()
	if l.accepted != nil {
		p.next = p.next.Add(time.Duration(phase(string(l.o.Device)) * float64(min(l.o.Interval, firstSpread))))
	}
}

// phase spreads devices over an interval, each always at the same place: [0,1).
func phase(device string) float64 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(device)) // never fails
	return float64(h.Sum32()) / (1 << 32)
}

// due is when the next check is; zero while one runs, or waits for something else.
func (p *poll) due(l *loop) time.Time {
	if p.busy || p.collecting || l.floorUnknown() {
		return time.Time{}
	}
	if p.forced {
		return p.next
	}
	return l.windowTimes.First(l.o.PollWindows, p.next)
}

func (p *poll) start(l *loop, now time.Time) {
	if at := p.due(l); at.IsZero() || now.Before(at) {
		return
	}
	q := intake.Query{Accepted: l.accepted, Refused: l.refused, Policy: l.intake.Fingerprint(), Fresh: l.fresh}
	l.forgetSigners() // after the fingerprint, which looks at the policy
	q.Anew = l.replaced != nil && !l.trust.current
	q.LookFresh = l.looksFresh(now, l.o.Fingerprint())
	if l.accepted != nil && (l.acceptedResolved != nil || l.targetResolved != nil && l.targetResolved.Digest == l.accepted.Digest || l.held() && l.damaged == nil) {
		q.Loaded = l.accepted.Digest
	}
	if r := l.refused; r != nil {
		q.Retry = p.forced || !p.fresh || r.Policy != q.Policy || r.Temporary && !now.Before(p.heal)
	}
	q.Again, q.Whole = p.forced || !now.Before(p.again), !p.forced && now.Before(p.whole)
	q.HoldTrust = l.holdTrust(now)
	if q.RenewTrust = l.trust.wants(l, now, p.forced); q.RenewTrust {
		l.trust.busy = true
	}
	q.Told = func(d digest.Digest, verifying bool) {
		at := l.o.Now()
		l.send(func(l *loop) {
			if l.found = (found{digest: d, verifying: verifying}); verifying {
				l.poll.verifying = at
			}
		})
	}
	p.started++
	p.busy, p.forced, p.begun, p.verifying = true, false, now, time.Time{}
	l.background(func() {
		r := l.intake.Check(l.ctx, q)
		l.send(func(l *loop) { l.checked(r) })
	})
}

// checked takes in the answer of a check.
func (l *loop) checked(r intake.Result) {
	now, p := l.o.Now(), &l.poll
	p.busy, p.done, l.found = false, p.started, found{}
	if l.ctx.Err() != nil {
		return
	}
	l.counts.polls.Add(1)
	l.lookAtTrust() // the check may have renewed it
	if r.Resolved.Digest != "" {
		p.checked = now
	}
	if r.Reloaded != nil {
		l.whole(r.Reloaded)
	}
	err := r.Err
	switch code := codes.Of(err); {
	case err == nil:
		p.fresh = true
		err = errors.Join(l.applyCheckResult(now, r), l.refreshed(now, r), l.verifiedAgain(now, r))
	case sourceTrouble(code), r.Resolved.Digest == "": // no state that could be refused
	default:
		p.fresh = true
		err = l.reject(now, r)
	}
	l.keepTime(now)
	p.judge(l, now, err)
	p.schedule(l, now, err)
	l.renewed(r.Renewal)
}

// sourceTrouble reports whether a code says nothing about the state itself.
func sourceTrouble(c codes.Code) bool {
	switch c {
	case codes.SourceUnreachable, codes.SourceUnauthenticated, codes.SourceDenied, codes.StateNotFound, codes.DiskFull, codes.Config, codes.Internal, codes.ContentDamaged, codes.TrustUnreachable:
		return true
	}
	return false
}

// whole takes in the accepted state, whose documents were damaged and are whole again.
func (l *loop) whole(d *plan.Desired) {
	switch {
	case l.target != nil && l.target.Digest == d.Digest:
		l.targetDesired = d
	case l.held(): // it is not wanted now
		return
	default:
		l.acceptedDesired = d
	}
	l.damaged = nil
	l.rebuild()
	l.log.Info("saved documents are whole again", "generation", d.Generation)
}

// applyCheckResult takes in a check that found nothing wrong.
func (l *loop) applyCheckResult(now time.Time, r intake.Result) error {
	switch {
	case r.Known:
		return nil
	case r.State != nil:
		return l.accept(now, r)
	}
	if l.refused != nil { // the tag points at the accepted state again
		old := l.refused
		l.refused = nil
		err := l.o.Store.Update(func(tx *store.Tx) error {
			return errors.Join(tx.SetRefused(nil), l.capabilities(tx, now))
		})
		if err != nil {
			l.refused = old
			return err
		}
		l.nudge()
	}
	return nil
}

// verifiedAgain takes in by whom the accepted state is signed, now that another policy judges it or its signatures had to be kept again. One that the
// policy does not accept runs on: it may be signed again, so it is looked at again.
func (l *loop) verifiedAgain(now time.Time, r intake.Result) error {
	if r.NotAgain != nil {
		if l.poll.again.IsZero() {
			l.log.Warn("cannot verify the accepted state by the present trust policy: it runs on, and is verified again later", "generation", l.accepted.Generation, "err", r.NotAgain)
		}
		l.poll.again, l.poll.whole = now.Add(max(healBackoff, l.o.Interval)), time.Time{}
	} else if r.AgainLooked {
		l.poll.again = time.Time{}
		if !now.Before(l.poll.whole) {
			l.poll.whole = now.Add(wholeEvery)
		}
	}
	if r.Again == nil {
		return nil
	}
	marks := l.marks()
	maps.DeleteFunc(marks, func(_ store.Mark, s **store.State) bool { return *s == nil || (*s).Digest != r.Again.Digest })
	err := l.o.Store.Update(func(tx *store.Tx) error {
		var errs []error
		for m := range marks {
			errs = append(errs, tx.SetState(m, *r.Again))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	for _, s := range marks {
		*s = r.Again
	}
	l.poll.again, l.garbage = time.Time{}, true // the signatures of before
	return nil
}

// reject takes in a state that failed a check.
func (l *loop) reject(now time.Time, r intake.Result) error {
	code := codes.Of(r.Err)
	l.garbage = true
	p := &l.poll
	if l.refused == nil || l.refused.Digest != r.Resolved.Digest {
		p.heals = 0
	}
	p.heals++
	p.heal = now.Add(retry.Backoff(p.heals, l.o.Interval, max(healBackoff, l.o.Interval)))
	return l.refuse(now, store.Refused{
		Digest: r.Resolved.Digest, Generation: r.Generation, Code: string(code), Message: r.Err.Error(), Hint: codes.Hint(r.Err),
		Temporary: codes.Explain(code).Retried, Since: now, Policy: r.Policy,
	})
}

// judge notes whether the source could be asked: one line when that changes.
func (p *poll) judge(l *loop, now time.Time, err error) {
	if err == nil {
		if p.told {
			l.log.Info("the source answers again", "repository", l.o.Repository)
			l.events.Emit(status.Event{Kind: status.EventSource})
		}
		p.failures, p.problem, p.since, p.told, p.excused = 0, nil, time.Time{}, false, false
		return
	}
	if p.excused = l.excused(now, err); p.excused { // and the back-off begins anew after it
		p.failures, p.problem = 0, err
		return
	}
	if p.problem == nil || !p.told || codes.Of(p.problem) != codes.Of(err) {
		p.since = now
		l.log.Warn("cannot check for a new state; what runs is kept", "code", codes.Of(err), "err", err)
		l.events.Emit(status.Event{Kind: status.EventSource, Code: codes.Of(err), Message: err.Error()})
		p.told = true
	}
	p.failures++
	l.counts.pollErrors.Add(1)
	p.problem = err
}

// schedule sets the time of the next check.
func (p *poll) schedule(l *loop, now time.Time, err error) {
	d := l.o.Interval
	switch {
	case fault.NoRetry(err):
		d = max(healBackoff, l.o.Interval)
	case err != nil && !fault.Steady(err):
		d = retry.Backoff(p.failures, l.o.Interval, max(pollBackoff, l.o.Interval))
	case err != nil:
	case l.o.Phase > 0:
		d = untilPhase(now, l.o.Interval, l.o.Phase)
	case !p.phased:
		p.phased = true
		d = time.Duration((phaseMinimum + phase(string(l.o.Device))) * float64(d))
	}
	p.next = now.Add(max(l.jittered(d), retry.Asked(err)))
	if until, down := l.downtime(now); down && err != nil && !until.IsZero() && until.Before(p.next) {
		p.next = until.Add(time.Duration(phase(string(l.o.Device)) * float64(min(l.o.Interval, firstSpread))))
	}
	for _, w := range l.waiters {
		if w.need > p.done {
			p.next, p.forced = now, true
		}
	}
}

// untilPhase is the time until the next place in an interval that is not too near.
func untilPhase(now time.Time, interval, phase time.Duration) time.Duration {
	at := now.Truncate(interval).Add(phase % interval)
	for at.Sub(now) < time.Duration(phaseMinimum*float64(interval)) {
		at = at.Add(interval)
	}
	return at.Sub(now)
}

// jittered is d, a little longer or shorter.
func (l *loop) jittered(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (1 - l.o.Jitter*(0.5-l.o.Random())))
}

// late is when a check that runs has taken so long that status says so; zero: none runs, or it was said.
func (p *poll) late(now time.Time) time.Time {
	if at := p.begun.Add(slowCheck); p.busy && now.Before(at) {
		return at
	}
	return time.Time{}
}

// slow reports whether a check runs that has taken so long.
func (p *poll) slow(now time.Time) bool { return p.busy && !now.Before(p.begun.Add(slowCheck)) }

// waiter is someone who asked for a check.
type waiter struct {
	reply  chan<- status.SyncResult // has room for one
	need   int                      // the check whose end it waits for
	before digest.Digest            // what ran completely when it asked
}

// sync has a check made now and remembers who asked.
func (l *loop) sync(reply chan<- status.SyncResult) {
	w := waiter{reply: reply, need: l.poll.started + 1}
	if l.committed != nil {
		w.before = l.committed.Digest
	}
	l.waiters = append(l.waiters, w)
	if !l.poll.busy {
		l.poll.next, l.poll.forced = l.o.Now(), true
	}
	l.pull.nudge()
	l.refill.nudge()
}

// answer replies to those whose outcome is known.
func (l *loop) answer() {
	waiting := l.waiters[:0]
	for _, w := range l.waiters {
		if r, ok := l.outcome(w); ok {
			w.reply <- r
		} else {
			waiting = append(waiting, w)
		}
	}
	clear(l.waiters[len(waiting):])
	l.waiters = waiting
	l.restarts = slices.DeleteFunc(l.restarts, func(r *restart) bool {
		over := l.restarted(r)
		if over {
			r.reply <- r
		}
		return over
	})
}

func (l *loop) outcome(w waiter) (status.SyncResult, bool) {
	if l.poll.done < w.need {
		return status.SyncResult{}, false
	}
	var r status.SyncResult
	if l.accepted != nil {
		r.Generation = l.accepted.Generation
	}
	failed := func(outcome string, code codes.Code, message, hint string) (status.SyncResult, bool) {
		if r.Outcome, r.Code, r.Message = outcome, code, message; outcome != status.SyncWaiting {
			r.Hint = l.hint(code, hint, "")
		}
		return r, true
	}
	broken := func(of *plan.Desired) bool { // nil: of all that is reported
		for _, s := range status.ByName(l.told.statuses) {
			if e := plan.OverallError(s); e != nil && (of == nil || of.Deployment(s.DeploymentID) != nil) {
				r.Outcome, r.Code, r.Message, r.Hint = status.SyncFailed, codes.Code(e.Code), s.Name+": "+e.Message, l.hint(codes.Code(e.Code), "", s.Name)
				return true
			}
		}
		return false
	}
	switch err := l.poll.problem; {
	case err != nil:
		return failed(status.SyncUnreachable, codes.Of(err), err.Error(), codes.Hint(err))
	case l.refused != nil:
		r.Generation = l.refused.Generation
		return failed(status.SyncRefused, codes.Code(l.refused.Code), l.refused.Message, l.refused.Hint)
	case l.sight.blind != nil:
		return failed(status.SyncFailed, codes.Runtime, l.sight.blind.Error(), "")
	case l.saving.err != nil:
		return failed(status.SyncFailed, codes.Of(l.saving.err), l.saving.err.Error(), codes.Hint(l.saving.err))
	}
	if l.held() {
		return failed(status.SyncFailed, codes.Held, l.heldText(), "")
	}
	if len(l.gate.waits) > 0 && broken(nil) {
		return r, true
	}
	if id, w, ok := l.waitsFor(); ok {
		return failed(status.SyncWaiting, w.Code, status.NameOf(l.told.statuses, id)+": "+w.Message, "")
	}
	if l.committed != nil && l.accepted != nil && l.committed.Digest == l.accepted.Digest {
		r.Outcome = status.SyncUnchanged
		if w.before != l.committed.Digest {
			r.Outcome = status.SyncInstalled
		}
		broken(nil)
		return r, true
	}
	return r, broken(l.acceptedResolved)
}
