package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Freshness is what is known of how long a state is the current one.
type Freshness struct {
	Required bool     // the policy asks for a statement; without it the rest is empty
	Signers  []string // who may make one, as the policy names them
	By       string   // who made the newest good one, several with ", " between them; "": there is none
	IssuedAt time.Time
	NotAfter time.Time // it has ended from then on
}

// Fresher finds the newest good freshness statement about a state, whether it has ended or not. Where the policy asks for one
// and there is none the error says why, as a [Verifier] does, and Required and Signers are set all the same.
type Fresher interface {
	Freshness(ctx context.Context, repository string, d ocispec.Descriptor, tag string, generation uint64) (Freshness, error)
}

const (
	// freshLooks is how many looks for a newer statement fit into the life of one, once half of it has passed.
	freshLooks = 16
	freshPause = time.Hour // longest pause between them
	// keepEvery is how often a device whose clock is behind keeps what time it is at least: other devices write nothing for it.
	keepEvery = time.Hour
	// hintStatement names what a statement hints at: see [clock.Clock.Hint].
	hintStatement = "freshness statement"
)

// freshness asks for the freshness of a state. known is what was known of the same one; an earlier good statement by the same
// policy still counts. An error says that nobody could tell, and leaves what is known as it is.
func (a *Agent) freshness(ctx context.Context, d ocispec.Descriptor, generation uint64, known *store.Fresh, policy string) (*store.Fresh, error) {
	if a.o.Fresher == nil {
		return nil, nil
	}
	if known != nil && (known.Digest != d.Digest || known.Policy != policy) {
		known = nil
	}
	out := store.Fresh{Digest: d.Digest, Policy: policy, LookedAt: a.o.Now().UTC()}
	f, err := a.o.Fresher.Freshness(ctx, a.o.Repository, d, a.o.Tag, generation)
	out.Required = f.Required
	switch {
	case err != nil && !f.Required, err != nil && unknown(err):
		return nil, refuse(sourceCode(err, CodeSourceUnreachable), fmt.Errorf("look for a freshness statement about %s@%s: %w", a.o.Repository, d.Digest, err))
	case !f.Required:
		return &out, nil
	}
	if a.clock.Forget(clock.Freshness, among(f.Signers)) {
		a.proven.Store(true)
	}
	if known != nil && !a.reached(known.By, known.IssuedAt) {
		known = nil
	}
	if f.By != "" && !a.reached(f.By, f.IssuedAt) {
		err = fmt.Errorf("the one by %s is dated %s, and it is %s: %w", f.By, f.IssuedAt.UTC().Format(time.RFC3339), a.clock.Now().UTC().Format(time.RFC3339), fault.ErrRejected)
		f.By = ""
	}
	if f.By != "" && (known == nil || !f.NotAfter.Before(known.NotAfter)) {
		out.By, out.IssuedAt, out.NotAfter = f.By, f.IssuedAt.UTC(), f.NotAfter.UTC()
		out.Withheld = known != nil && known.Withheld && known.NotAfter.Equal(out.NotAfter)
		switch now := a.clock.Now(); {
		case now.Before(out.NotAfter):
			a.clock.Hint(hintStatement, time.Time{})
		case known == nil || known.IssuedAt.Before(out.IssuedAt): // made since the last look, and it has ended already
			a.clock.HintLimit(hintStatement, out.NotAfter)
		}
	} else if known != nil {
		out.By, out.IssuedAt, out.NotAfter, out.Withheld = known.By, known.IssuedAt, known.NotAfter, known.Withheld
	}
	if out.NotAfter.IsZero() && err != nil {
		return &out, refuse(CodeStateStale, fmt.Errorf("no freshness statement about %s@%s: %w", a.o.Repository, d.Digest, err))
	}
	if !a.clock.Now().Before(out.NotAfter) {
		return &out, refusef(CodeStateStale, "the freshness statement about %s@%s by %s ended %s, and it is %s: %w", a.o.Repository, d.Digest,
			out.By, out.NotAfter.Format(time.RFC3339), a.clock.Now().UTC().Format(time.RFC3339), fault.ErrRejected)
	}
	out.Withheld = false
	return &out, nil
}

// reached takes the date of a freshness statement as a proof of the time, and tells whether it is that late then. A date that
// the clock does not follow counts for nothing: its end would never come.
func (a *Agent) reached(by string, issued time.Time) bool {
	a.prove(clock.Proof{Kind: clock.Freshness, By: by, Time: issued})
	return !issued.After(a.clock.Now().Add(clock.Slack))
}

// unknown tells errors that say that nobody could tell from those that say that there is nothing good.
func unknown(err error) bool {
	if errors.Is(err, fault.ErrTemporary) {
		return true
	}
	return !slices.ContainsFunc([]error{fault.ErrUnsigned, fault.ErrBadSignature, fault.ErrRejected, fault.ErrNotFound, fault.ErrTooLarge, fault.ErrDigestMismatch},
		func(kind error) bool { return errors.Is(err, kind) })
}

// prove takes in a time that somebody trusted has signed; it is kept with the next thing that is saved.
func (a *Agent) prove(p clock.Proof) {
	if a.clock.Prove(p) {
		a.proven.Store(true)
	}
}

// keepTimes keeps proven times for the next start.
func (a *Agent) keepTimes(tx *store.Tx) error {
	if !a.proven.Swap(false) {
		return nil
	}
	var all []store.Proof
	for _, p := range a.clock.Proofs() {
		all = append(all, store.Proof{Kind: string(p.Kind), By: p.By, Time: p.Time})
	}
	return tx.SetProofs(all)
}

// keepTime keeps, now and then, what time it is at least, where the device's clock would forget it.
func (l *loop) keepTime(now time.Time) {
	if x := l.clock.Doubt(); x == nil || x.Proof == nil || now.Sub(l.poll.kept) < keepEvery {
		return
	}
	l.poll.kept = now
	l.proven.Store(true)
	if err := l.o.Store.Update(l.keepTimes); err != nil {
		l.proven.Store(true)
		l.log.Warn("what time it is at least cannot be kept", "err", err)
	}
}

// recallTimes takes up what earlier runs have proven.
func (a *Agent) recallTimes() error {
	return a.o.Store.View(func(tx *store.Tx) error {
		all, err := tx.Proofs()
		for _, p := range all {
			a.clock.Recall(clock.Proof{Kind: clock.Kind(p.Kind), By: p.By, Time: p.Time})
		}
		if err != nil && errors.Is(err, fault.ErrInvalid) {
			return nil // Damaged tells of it
		}
		return err
	})
}

// looksFresh tells whether a check of an unchanged state also looks for a newer freshness statement: when nothing is known of
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
func (l *loop) refreshed(now time.Time, r answer) error {
	if !r.looked {
		return nil
	}
	l.poll.looked, l.poll.unfresh = now, nil
	f := r.fresh
	if f == nil {
		l.poll.unfresh = r.unfresh // what is known stays, and is looked at again
		return nil
	}
	var x *alarm
	if CodeOf(r.unfresh) == CodeStateStale && !f.Withheld {
		f.Withheld = true
		x = l.newAlarm(CodeStateStale, f.Digest, l.accepted.Generation, "the source answers and has no newer one: nobody renews it, or somebody withholds it: "+r.unfresh.Error())
	}
	old := l.fresh
	if old != nil && x == nil && sameFresh(*old, *f) {
		return nil // not written to the disk at each look
	}
	err := l.o.Store.Update(func(tx *store.Tx) error {
		return errors.Join(tx.SetFresh(f), l.keepTimes(tx), x.save(tx))
	})
	if err != nil {
		l.proven.Store(true)
		return err
	}
	l.fresh = f
	l.alarmed(x)
	return nil
}

// sameFresh compares all but when it was looked at.
func sameFresh(a, b store.Fresh) bool {
	return a.Digest == b.Digest && a.Policy == b.Policy && a.Required == b.Required && a.By == b.By && a.IssuedAt.Equal(b.IssuedAt) &&
		a.NotAfter.Equal(b.NotAfter) && a.Withheld == b.Withheld
}

// staleSince tells since when the accepted state is not known to be the current one, or what runs has expired; zero: it is
// well.
func (l *loop) staleSince() time.Time {
	now := l.clock.Now()
	var since time.Time
	if l.running != nil && !l.running.Expires.IsZero() && !now.Before(l.running.Expires) {
		since = l.running.Expires
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

func (l *loop) freshnessStatus() *FreshnessStatus {
	f := l.unfresh()
	if f == nil {
		return nil
	}
	out := &FreshnessStatus{By: f.By, IssuedAt: f.IssuedAt, NotAfter: f.NotAfter, CheckedAt: f.LookedAt, Stale: !l.clock.Now().Before(f.NotAfter)}
	if l.poll.unfresh != nil {
		out.Error = l.poll.unfresh.Error()
	}
	return out
}

// clockStatus looks whether the device's clock is in doubt.
func (l *loop) clockStatus() *ClockStatus {
	x := l.clock.Doubt()
	if l.doubt = x; x == nil {
		return nil
	}
	out := &ClockStatus{Clock: x.Clock.UTC(), Believed: x.Believed.UTC(), From: x.From, Said: x.Said.UTC()}
	if x.Proof != nil {
		out.ProvenBy = string(x.Proof.Kind)
		if x.Proof.By != "" {
			out.ProvenBy += " " + x.Proof.By
		}
	}
	return out
}

// turnedStale tells that the device went stale, or is well again.
func (l *loop) turnedStale(since time.Time) {
	if since.IsZero() {
		l.log.Info("what is accepted is the current state again")
		l.events.Emit(Event{Kind: EventStale})
		return
	}
	e := Event{Kind: EventStale, Code: CodeStale, Message: "expired " + since.UTC().Format(time.RFC3339)}
	if f := l.unfresh(); f != nil && !l.clock.Now().Before(f.NotAfter) {
		e.Code, e.Message = CodeStateStale, "not known to be the current state since "+since.UTC().Format(time.RFC3339)
	}
	if l.accepted != nil {
		e.Generation = l.accepted.Generation
	}
	l.log.Warn("stale; what runs runs on, nothing older is taken", "code", e.Code, "since", since)
	l.events.Emit(e)
}

// staleProblems come before all others: what the device runs may not be what it should.
func (l *loop) staleProblems(now time.Time, add func(code Code, message, doing, hint string, since time.Time)) {
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
			what += "; the source answers and has no newer one: nobody renews it, or somebody withholds it"
		}
		add(CodeStateStale, what, "runs it on, takes nothing older; next look "+until(l.poll.due().Sub(now)), "", l.unfreshSince(f))
	}
	if x := l.doubt; x != nil {
		says := "the clock says " + x.Clock.UTC().Format(time.RFC3339)
		switch {
		case x.Proof != nil:
			add(CodeClockWrong, fmt.Sprintf("%s, and it is no earlier than %s (%s)", says, x.Believed.UTC().Format(time.RFC3339), proofWords(*x.Proof)),
				"goes by the later one", "", time.Time{})
		case x.From == hintStatement:
			add(CodeClockWrong, fmt.Sprintf("%s, and a freshness statement that is new here ended %s: the clock is ahead, or the statement was withheld", says, x.Said.UTC().Format(time.RFC3339)),
				"goes by its clock; stops nothing", "", time.Time{})
		default:
			add(CodeClockWrong, fmt.Sprintf("%s, and %s says %s, which nobody vouches for", says, x.From, x.Said.UTC().Format(time.RFC3339)),
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
