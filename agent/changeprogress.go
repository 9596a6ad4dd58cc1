package agent

import (
	"maps"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
)

// found is the state that a check is looking at.
type found struct {
	digest    digest.Digest // "": none that is new
	verifying bool
	since     time.Time // of where a change stands
}

// foundAfter is how long a check looks at a newer state before that is saved and reports tell of it: most take a moment.
const foundAfter = 10 * time.Second

// foundIn is the state that a check is looking at where a change stands.
func foundIn(p *store.Progress) found {
	if p == nil || !p.Phase.Found() {
		return found{}
	}
	return found{p.Digest, p.Phase == store.PhaseVerifying, p.Since}
}

// foundLong is what reports are to say now of the state that a check is looking at.
func (l *loop) foundLong(now time.Time, at *store.Progress) found {
	if x := foundIn(at); x == (found{}) || now.Sub(at.Since) >= foundAfter {
		return x
	}
	return l.told.found
}

// foundDue is when reports are to say something else of it; zero: they need not.
func (l *loop) foundDue() time.Time {
	if x := foundIn(l.progressed); x == (found{}) || x == l.told.found {
		return time.Time{}
	}
	return l.progressed.Since.Add(foundAfter)
}

// standing is where the change to the accepted state stands, as it follows from what the loop has now.
func (l *loop) standing(now time.Time, a plan.Assessment) *store.Progress {
	s := plan.Standing{
		Now: now, Accepted: l.accepted, Committed: l.committed, Found: l.found.digest, Verifying: l.found.verifying,
		Unloaded: l.acceptedResolved != nil, Whole: l.pull.has(l, l.acceptedResolved), Settled: a.Settled, Stage: a.Stage, Damaged: l.damaged,
	}
	if x := l.progress.Status(); len(l.pull.troubles) == 0 && (x == nil || x.Done == x.Total) {
		s.Intact = true
	}
	if s.Whole && l.facts(now).FinishesFirst() {
		s.First = l.target.Generation
	}
	if l.held() {
		s.Hold = l.hold
	}
	for _, name := range slices.Sorted(maps.Keys(l.pull.troubles)) {
		if t := l.pull.troubles[name]; t.Permanent {
			s.Pull = t
			break
		}
	}
	if x := l.attempts; x != nil && l.accepted != nil && x.State == l.accepted.Digest {
		s.Attempt = x.Boots + 1
	}
	p := plan.Progress(l.progressed, s)
	if l.beginning(p) != nil {
		p.Attempt = 1
	}
	return p
}

// beginning counts the boots from this one on, when a change begins to be applied; nil: it has not begun, or they are counted already.
func (l *loop) beginning(p *store.Progress) *store.Attempts {
	if p == nil || l.o.BootID == "" || p.Phase != store.PhaseApplying && p.Phase != store.PhaseProbation || l.attempts != nil && l.attempts.State == p.Digest {
		return nil
	}
	return &store.Attempts{State: p.Digest, Boot: l.o.BootID}
}

func (l *loop) saveProgress(tx *store.Tx, p *store.Progress) error {
	if a := l.beginning(p); a != nil {
		if err := tx.SetAttempts(*a); err != nil {
			return err
		}
	}
	return tx.SetProgress(p)
}

// tellProgress takes over what was saved of a change that stood elsewhere before.
func (l *loop) tellProgress(was *store.Progress) {
	p := l.progressed
	if a := l.beginning(p); a != nil {
		l.attempts = a
	}
	if p == nil || was != nil && was.Phase == p.Phase && was.Digest == p.Digest {
		return
	}
	l.log.Info("phase", "phase", p.Phase, "generation", p.Generation, "digest", p.Digest, "code", p.Code, "why", p.Message)
	l.events.Emit(status.Event{Kind: status.EventPhase, Generation: p.Generation, Digest: p.Digest, Code: codes.Code(p.Code), Message: string(p.Phase)})
}

// reportedProgress is what a report says of it: of earlier states no messages, which may be long.
func (l *loop) reportedProgress() *status.Progress {
	p := status.NewProgress(l.progressed)
	if p == nil {
		return nil
	}
	p.History = slices.Clone(p.History)
	for i := range p.History {
		p.History[i].Message = ""
	}
	if x := l.told.loaded; p.Phase == store.PhaseDownloading && p.Generation == x.generation {
		p.Done, p.Total = x.done, x.total
	}
	return p
}

// loaded is how far the images of a generation were here, as reports say it.
type loaded struct {
	generation  uint64 // 0: nothing was said yet
	tenths      int
	done, total int64 // bytes
}

// loadedMore is what reports are to say of it now: something new with each tenth. Bytes come all the time, and reports must not.
func (l *loop) loadedMore(at *store.Progress) loaded {
	said, x := l.told.loaded, l.progress.Status()
	if at == nil || at.Phase != store.PhaseDownloading || x == nil || x.Generation != at.Generation || x.Total <= 0 || l.o.Reporter == nil && l.o.Publisher == nil {
		return said
	}
	more := loaded{x.Generation, int(10 * x.Done / x.Total), x.Done, x.Total}
	if more.tenths == 0 || said.generation == more.generation && more.tenths <= said.tenths { // the total grows while images are resolved
		return said
	}
	return more
}

// looksAround reports whether all that changed is which newer state is being checked.
func looksAround(before, at *store.Progress) bool {
	return at == nil || at.Phase.Found() || before != nil && before.Phase.Found() && at.Phase.Ended()
}

// sameProgress compares all but times that follow from the rest.
func sameProgress(a, b *store.Progress) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Phase == b.Phase && a.Digest == b.Digest && a.Generation == b.Generation && a.Attempt == b.Attempt && a.Code == b.Code && a.Message == b.Message &&
		a.Until.Equal(b.Until) && len(a.History) == len(b.History)
}
