package agent

import (
	"errors"
	"hash/fnv"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	pollBackoff  = 5 * time.Minute  // longest pause while the source does not answer, unless the interval is longer
	healBackoff  = 15 * time.Minute // longest pause before a refusal that may heal at the source is looked at again
	firstSpread  = 10 * time.Second // a site that gets its power back does not ask all at once
	pollJitter   = 0.2
	phaseMinimum = 0.5
)

// poll decides when the source is asked and takes in what it said. It is part of the loop.
type poll struct {
	next     time.Time
	started  int // checks
	done     int // the last one that ended
	busy     bool
	tidying  bool // the device is being tidied: content that a check brings must not be taken for left-overs
	phased   bool
	failures int
	problem  error     // why the source could not be asked
	since    time.Time // of problem
	checked  time.Time
	forced   bool // someone asked: look at refused states again, too
	heal     time.Time
	heals    int
	kept     time.Time // proven times, by the hour
	looked   time.Time // at the freshness of the accepted state, since the start
	unfresh  error     // why nobody could tell it then
	fresh    bool      // something was examined since the start: until then a refusal of an earlier run means nothing
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

// due is when the next check is; zero while one runs.
func (p *poll) due() time.Time {
	if p.busy || p.tidying {
		return time.Time{}
	}
	return p.next
}

// start begins a check that is due.
func (p *poll) start(l *loop, now time.Time) {
	if p.busy || p.tidying || now.Before(p.next) {
		return
	}
	q := ask{accepted: l.accepted, refused: l.refused, policy: l.fingerprint(), fresh: l.fresh}
	l.forgetSigners() // after the fingerprint, which looks at the policy
	q.look = l.looksFresh(now, q.policy)
	if l.accepted != nil && (l.next != nil || l.target != nil && l.target.Digest == l.accepted.Digest) {
		q.loaded = l.accepted.Digest
	}
	if r := l.refused; r != nil {
		q.retry = p.forced || !p.fresh || r.Policy != q.policy || r.Temporary && !now.Before(p.heal)
	}
	if q.renew = l.trust.wants(l, now, p.forced); q.renew {
		l.trust.busy = true
	}
	p.started++
	p.busy, p.forced = true, false
	l.spawn(func() {
		r := l.check(l.ctx, q)
		l.post(func(l *loop) { l.checked(r) })
	})
}

// checked takes in the answer of a check.
func (l *loop) checked(r answer) {
	now, p := l.o.Now(), &l.poll
	p.busy, p.done = false, p.started
	if l.ctx.Err() != nil {
		return
	}
	l.counts.polls.Add(1)
	l.lookAtTrust() // the check may have renewed it
	if r.resolved.Digest != "" {
		p.checked = now
	}
	if r.mended != nil {
		l.whole(r.mended)
	}
	err := r.err
	switch code := CodeOf(err); {
	case err == nil:
		p.fresh = true
		err = errors.Join(l.take(now, r), l.refreshed(now, r))
	case sourceTrouble(code):
	default:
		p.fresh = true
		err = l.turnDown(now, r)
	}
	l.keepTime(now)
	p.judge(l, now, err)
	p.schedule(l, now, err)
	l.renewed(r.renewal)
}

// sourceTrouble tells codes that say nothing about the state itself.
func sourceTrouble(c Code) bool {
	switch c {
	case CodeSourceUnreachable, CodeSourceUnauthenticated, CodeSourceDenied, CodeStateNotFound, CodeDiskFull, CodeInternal, CodeContentDamaged:
		return true
	}
	return false
}

// whole takes in the accepted state, whose documents were damaged and are whole again.
func (l *loop) whole(d *Desired) {
	if l.running != nil && l.running.Digest == d.Digest {
		l.wanted = d
	} else {
		l.coming = d
	}
	l.damaged = nil
	l.recompose()
	l.log.Info("saved documents are whole again", "generation", d.Generation)
}

// take takes in a check that found nothing wrong.
func (l *loop) take(now time.Time, r answer) error {
	switch {
	case r.known:
		return nil
	case r.state != nil:
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
		l.pump.nudge()
	}
	return nil
}

// turnDown takes in a state that failed a check.
func (l *loop) turnDown(now time.Time, r answer) error {
	code := CodeOf(r.err)
	heals := false
	for _, d := range Codes() {
		heals = heals || d.Code == code && d.Retried
	}
	l.tidy = true
	p := &l.poll
	if l.refused == nil || l.refused.Digest != r.resolved.Digest {
		p.heals = 0
	}
	p.heals++
	p.heal = now.Add(backoff(p.heals, l.o.Interval, max(healBackoff, l.o.Interval)))
	return l.refuse(now, store.Refused{
		Digest: r.resolved.Digest, Generation: r.generation, Code: string(code), Message: r.err.Error(), Hint: hintOf(r.err),
		Temporary: heals, Since: now, Policy: r.policy,
	})
}

// judge notes whether the source could be asked: one line when that changes.
func (p *poll) judge(l *loop, now time.Time, err error) {
	if err == nil {
		if p.problem != nil {
			l.log.Info("the source answers again", "repository", l.o.Repository)
			l.events.Emit(Event{Kind: EventSource})
		}
		p.failures, p.problem, p.since = 0, nil, time.Time{}
		return
	}
	if p.problem == nil || CodeOf(p.problem) != CodeOf(err) {
		p.since = now
		l.log.Warn("cannot check for a new state; what runs is kept", "code", CodeOf(err), "err", err)
		l.events.Emit(Event{Kind: EventSource, Code: CodeOf(err), Message: err.Error()})
	}
	p.failures++
	l.counts.pollErrors.Add(1)
	p.problem = err
}

// schedule sets the time of the next check.
func (p *poll) schedule(l *loop, now time.Time, err error) {
	d := l.o.Interval
	switch {
	case err != nil:
		d = backoff(p.failures, l.o.Interval, max(pollBackoff, l.o.Interval))
		if after, ok := fault.RetryAfter(err); ok {
			d = max(d, min(after, time.Hour))
		}
	case !p.phased:
		p.phased = true
		d = time.Duration((phaseMinimum + phase(string(l.o.Device))) * float64(d))
	}
	p.next = now.Add(time.Duration(float64(d) * (1 - pollJitter/2 + pollJitter*l.o.Random())))
	for _, w := range l.waiters {
		if w.need > p.done {
			p.next, p.forced = now, true
		}
	}
}

// waiter is someone who asked for a check.
type waiter struct {
	reply  chan<- SyncResult // has room for one
	need   int               // the check whose end it waits for
	before digest.Digest     // what ran completely when it asked
}

// sync has a check made now and remembers who asked.
func (l *loop) sync(reply chan<- SyncResult) {
	w := waiter{reply: reply, need: l.poll.started + 1}
	if l.committed != nil {
		w.before = l.committed.Digest
	}
	l.waiters = append(l.waiters, w)
	if !l.poll.busy {
		l.poll.next, l.poll.forced = l.o.Now(), true
	}
	l.pull.nudge()
}

// answer tells those whose outcome is known.
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
}

func (l *loop) outcome(w waiter) (SyncResult, bool) {
	if l.poll.done < w.need {
		return SyncResult{}, false
	}
	var r SyncResult
	if l.accepted != nil {
		r.Generation = l.accepted.Generation
	}
	failed := func(outcome string, code Code, message, hint string) (SyncResult, bool) {
		r.Outcome, r.Code, r.Message, r.Hint = outcome, code, message, hint
		return r, true
	}
	switch err := l.poll.problem; {
	case err != nil:
		return failed(SyncUnreachable, CodeOf(err), err.Error(), hintOf(err))
	case l.refused != nil:
		r.Generation = l.refused.Generation
		return failed(SyncRefused, Code(l.refused.Code), l.refused.Message, l.refused.Hint)
	case l.blind != nil:
		return failed(SyncFailed, CodeRuntime, l.blind.Error(), "")
	case l.unsaved != nil:
		return failed(SyncFailed, CodeOf(l.unsaved), l.unsaved.Error(), hintOf(l.unsaved))
	}
	if l.committed != nil && l.accepted != nil && l.committed.Digest == l.accepted.Digest {
		r.Outcome = SyncUnchanged
		if w.before != l.committed.Digest {
			r.Outcome = SyncInstalled
		}
		for _, s := range l.before {
			if e := overallError(s); e != nil {
				return failed(SyncFailed, Code(e.Code), s.Name+": "+e.Message, "")
			}
		}
		return r, true
	}
	for _, s := range l.before {
		if e := overallError(s); e != nil && (l.next == nil || l.next.deployment(s.DeploymentID) != nil) {
			return failed(SyncFailed, Code(e.Code), s.Name+": "+e.Message, "")
		}
	}
	return r, false
}
