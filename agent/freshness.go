package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/retry"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
)

const (
	// freshLooks is how many looks for a newer statement fit into the life of one, once half of it has passed.
	freshLooks = 16
	freshPause = time.Hour // longest pause between them
	// keepEvery is how often a device whose clock is behind saves what time it is at least, and one with approvals.automaticAfter how long
	// changes have waited: other devices write nothing for it.
	keepEvery = time.Hour
)

// keepTime keeps, now and then, what time it is at least, where the device's clock would forget it.
func (l *loop) keepTime(now time.Time) {
	if x := l.clock.Doubt(); x == nil || x.Proof == nil || now.Sub(l.poll.kept) < keepEvery {
		return
	}
	l.poll.kept = now
	l.times.Unsaved()
	if err := l.o.Store.Update(l.times.Save); err != nil {
		l.times.Unsaved()
		l.log.Warn("what time it is at least cannot be kept", "err", err)
	}
}

// looksFresh reports whether a check of an unchanged state also looks for a newer freshness statement: when nothing is known of
// it by this policy, and from half of its life on, now and then.
func (l *loop) looksFresh(now time.Time, policy string) bool {
	if l.o.Fresher == nil || l.accepted == nil {
		return false
	}
	f := l.fresh
	if f == nil || f.Digest != l.accepted.Digest || f.Policy != policy {
		return true
	}
	if !f.Required {
		return false
	}
	if l.poll.forced || l.poll.looked.IsZero() && f.NotAfter.IsZero() {
		return true
	}
	life := f.NotAfter.Sub(f.IssuedAt)
	trusted := l.clock.Now()
	if trusted.Before(f.IssuedAt.Add(life / 2)) {
		return false
	}
	longest := freshPause
	if !trusted.Before(f.NotAfter) {
		longest = healBackoff
	}
	pause := longest
	if life > 0 {
		pause = min(life/freshLooks, longest)
	}
	pause = max(pause, l.o.Interval)
	return l.poll.looked.IsZero() || now.Sub(l.poll.looked) >= pause*9/10 // checks come a little early, too
}

// refreshed takes in a look at the freshness of the accepted state.
func (l *loop) refreshed(now time.Time, r intake.Result) error {
	if !r.LookedFresh {
		return nil
	}
	l.poll.looked, l.poll.unfresh = now, nil
	f := r.Fresh
	if f == nil {
		l.poll.unfresh = r.Unfresh // what is known stays, and is looked at again
		return nil
	}
	var x *securityEvent
	if codes.Of(r.Unfresh) == codes.StateStale && !f.Withheld {
		f.Withheld = true
		x = l.newSecurityEvent(codes.StateStale, f.Digest, l.accepted.Generation, "the source answers and has no newer one: it is not renewed, or it is withheld: "+r.Unfresh.Error())
	}
	old := l.fresh
	if old != nil && x == nil && sameFresh(*old, *f) {
		return nil // not written to the disk at each look
	}
	err := l.o.Store.Update(func(tx *store.Tx) error {
		return errors.Join(tx.SetFresh(f), l.times.Save(tx), x.save(tx))
	})
	if err != nil {
		l.times.Unsaved()
		return err
	}
	l.fresh = f
	l.emitSecurity(x)
	return nil
}

// sameFresh compares all but when it was looked at.
func sameFresh(a, b store.Fresh) bool {
	return a.Digest == b.Digest && a.Policy == b.Policy && a.Required == b.Required && a.By == b.By && a.IssuedAt.Equal(b.IssuedAt) &&
		a.NotAfter.Equal(b.NotAfter) && a.Withheld == b.Withheld
}

// staleSince is since when the accepted state is not known to be the current one, or what runs has expired; zero: it is
// well.
func (l *loop) staleSince() time.Time {
	now := l.clock.Now()
	var since time.Time
	if l.target != nil && !l.target.Expires.IsZero() && !now.Before(l.target.Expires) {
		since = l.target.Expires
	}
	if f := l.unfresh(); f != nil && !now.Before(f.NotAfter) {
		if t := l.unfreshSince(f); since.IsZero() || t.Before(since) {
			since = t
		}
	}
	return since
}

// unfresh is what is known of the accepted state when the policy asks for freshness; nil: it does not.
func (l *loop) unfresh() *store.Fresh {
	if f := l.fresh; f != nil && f.Required && l.accepted != nil && f.Digest == l.accepted.Digest {
		return f
	}
	return nil
}

func (l *loop) unfreshSince(f *store.Fresh) time.Time {
	if f.NotAfter.IsZero() {
		return f.LookedAt
	}
	return f.NotAfter
}

func (l *loop) freshnessStatus() *status.Freshness {
	f := l.unfresh()
	if f == nil {
		return nil
	}
	out := &status.Freshness{By: f.By, IssuedAt: f.IssuedAt, NotAfter: f.NotAfter, CheckedAt: f.LookedAt, Stale: !l.clock.Now().Before(f.NotAfter)}
	if l.poll.unfresh != nil {
		out.Error = l.poll.unfresh.Error()
	}
	return out
}

// clockStatus looks whether the device's clock is in doubt.
func (l *loop) clockStatus() *status.Clock {
	x := l.clock.Doubt()
	if l.doubt = x; x == nil {
		return nil
	}
	out := &status.Clock{Clock: x.Clock.UTC(), Believed: x.Believed.UTC(), From: x.From, Said: x.Said.UTC()}
	if x.Proof != nil {
		out.ProvenBy = string(x.Proof.Kind)
		if x.Proof.By != "" {
			out.ProvenBy += " " + x.Proof.By
		}
	}
	return out
}

// turnedStale emits that the device went stale, or is well again.
func (l *loop) turnedStale(since time.Time) {
	if since.IsZero() {
		l.log.Info("what is accepted is the current state again")
		l.events.Emit(status.Event{Kind: status.EventStale})
		return
	}
	e := status.Event{Kind: status.EventStale, Code: codes.Stale, Message: "expired " + since.UTC().Format(time.RFC3339)}
	if f := l.unfresh(); f != nil && !l.clock.Now().Before(f.NotAfter) {
		e.Code, e.Message = codes.StateStale, "not known to be the current state since "+since.UTC().Format(time.RFC3339)
	}
	if l.accepted != nil {
		e.Generation = l.accepted.Generation
	}
	l.log.Warn("stale; what runs runs on, nothing older is taken", "code", e.Code, "since", since)
	l.events.Emit(e)
}

// staleProblems come before all others: what the device runs may not be what it should.
func (l *loop) staleProblems(now time.Time, add func(code codes.Code, message, doing, hint string, since time.Time)) {
	trusted := l.clock.Now()
	if f := l.unfresh(); f != nil && !trusted.Before(f.NotAfter) {
		what := fmt.Sprintf("generation %d is not known to be the current one: ", l.accepted.Generation)
		switch {
		case f.NotAfter.IsZero():
			what += "the policy asks for a freshness statement and there is none"
		default:
			what += fmt.Sprintf("its freshness statement by %s ended %s", f.By, f.NotAfter.UTC().Format(time.RFC3339))
		}
		switch err := l.poll.unfresh; {
		case err != nil:
			what += "; " + err.Error()
		case f.Withheld && l.poll.problem == nil:
			what += "; the source answers and has no newer one: it is not renewed, or it is withheld"
		}
		add(codes.StateStale, what, "runs it on, takes nothing older; next look "+retry.In(l.poll.due(l).Sub(now)), "", l.unfreshSince(f))
	}
	if x := l.doubt; x != nil {
		says := "the clock says " + x.Clock.UTC().Format(time.RFC3339)
		switch {
		case x.Proof != nil:
			add(codes.ClockWrong, fmt.Sprintf("%s, and it is no earlier than %s (%s)", says, x.Believed.UTC().Format(time.RFC3339), proofWords(*x.Proof)),
				"goes by the later one", "", time.Time{})
		case x.From == intake.HintStatement:
			add(codes.ClockWrong, fmt.Sprintf("%s, and a freshness statement that is new here ended %s: the clock is ahead, or the statement was withheld", says, x.Said.UTC().Format(time.RFC3339)),
				"goes by its clock; stops nothing", "", time.Time{})
		default:
			add(codes.ClockWrong, fmt.Sprintf("%s, and %s says %s, which is not signed", says, x.From, x.Said.UTC().Format(time.RFC3339)),
				"goes by its clock; stops nothing", "", time.Time{})
		}
	}
}

func proofWords(p clock.Proof) string {
	switch p.Kind {
	case clock.Build:
		return "this program was built then"
	case clock.Freshness:
		return "a freshness statement by " + p.By + " is that new"
	}
	return "a signature by " + p.By + " is that new"
}
