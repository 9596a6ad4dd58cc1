package agent

import (
	"context"
	"maps"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/loading"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
)

const parallelPulls = 2 // images at a time

// pulling brings images, beside everything else. The loop has two: one for the accepted generation, one for images of the
// target that were lost, so that what runs does not wait for a slow update. It is part of the loop.
type pulling struct {
	progress *loading.Progress
	digest   digest.Digest // of the state that images are being pulled for; "": none
	rebuilt  int           // when images was made
	images   string        // what is being pulled
	cancel   context.CancelFunc
	kick     chan struct{}
	ready    digest.Digest           // state all of whose images are here, or will never come; "": none
	lacking  map[string]plan.Trouble // of ready: those that will never come
	repair   bool                    // images of the target are missing: they are pulled once more
	after    time.Time               // not before: the new target could not be saved
	full     bool                    // the disk is, and nothing was done about it since
	roomAt   time.Time               // not before: room was made already
	troubles map[string]plan.Trouble // by image name, of the pull in progress
}

// nudge ends the pause between attempts.
func (p *pulling) nudge() {
	if p.digest != "" {
		ring(p.kick)
	}
}

// lost is the state whose images are to be pulled again; nil: none.
func (l *loop) lost() *plan.Desired {
	if !l.refill.repair {
		return nil
	}
	return l.targetResolved
}

// start begins to pull what is wanted; a newer generation takes the place of an older one that is not complete.
func (p *pulling) start(l *loop, want *plan.Desired) {
	switch {
	case want == nil:
		if p.ready = ""; p.digest != "" {
			p.cancel()
		}
		return
	case p.has(l, want):
		return
	case p.digest == want.Digest && p.same(l, want), l.o.Now().Before(p.after):
		return
	case p.digest != "":
		p.cancel() // its end brings us here again
		return
	}
	if p == &l.pull {
		l.disks.removalUseless = false
	}
	ctx, cancel := context.WithCancel(l.ctx)
	p.digest, p.cancel, p.kick = want.Digest, cancel, make(chan struct{}, 1)
	p.images, p.rebuilt, p.ready = nameAll(want), l.rebuilt, ""
	puller := loading.Puller{
		Pull: l.o.Runtime.Pull, Parallel: parallelPulls, Patient: p != &l.pull, Progress: p.progress, Now: l.o.Now, Kick: p.kick,
		Tell: func(a loading.Attempt) { l.send(func(l *loop) { l.pullTried(p, want, a) }) },
	}
	l.background(func() {
		ok, lacking := puller.All(ctx, want.Generation, want.Images())
		l.send(func(l *loop) { l.pulled(p, want, ok, lacking) })
	})
}

// pullTried takes in an attempt at all images that were not here.
func (l *loop) pullTried(p *pulling, d *plan.Desired, a loading.Attempt) {
	maps.Copy(l.images, a.Pulled)
	l.rebuild()
	if a.Err == nil || p.digest != d.Digest {
		return
	}
	p.troubles = a.Troubles
	for _, t := range a.Troubles {
		p.full = p.full || t.Code == codes.DiskFull
	}
	if p == &l.refill {
		l.sup.Missing = keepPermanent(a.Troubles, l.sup.Missing)
	}
	if a.Number == 1 {
		l.log.Warn("cannot load every image; what runs is kept", "generation", d.Generation, "err", a.Err)
	}
}

// has reports whether all of a state is here.
func (p *pulling) has(l *loop, d *plan.Desired) bool {
	return d != nil && p.ready == d.Digest && p.same(l, d)
}

// same reports whether what is being pulled is still what is wanted: a revision may have given way to the last good one.
func (p *pulling) same(l *loop, want *plan.Desired) bool {
	if p.rebuilt != l.rebuilt {
		if nameAll(want) != p.images {
			return false
		}
		p.rebuilt = l.rebuilt
	}
	return true
}

func nameAll(d *plan.Desired) string {
	var names []string
	for _, img := range d.Images() {
		names = append(names, img.Name())
	}
	return strings.Join(names, "\n")
}

// pulled takes in the end of a pull.
func (l *loop) pulled(p *pulling, d *plan.Desired, ok bool, lacking map[string]plan.Trouble) {
	p.cancel()
	p.digest, p.troubles, p.full = "", lacking, false
	p.progress.End()
	switch {
	case !ok:
	case p == &l.refill:
		l.refilled()
	case l.acceptedResolved != nil && l.acceptedResolved.Digest == d.Digest:
		if l.rejectsUpdate() {
			return // without them, what is to be pulled is something else
		}
		p.ready, p.lacking, p.troubles = d.Digest, lacking, nil
	}
}

// canTake reports whether all of the accepted state is here, and nothing has to be finished before it is applied.
func (l *loop) canTake(now time.Time) bool {
	return l.pull.has(l, l.acceptedResolved) && !now.Before(l.pull.after) && !l.facts(now).FinishesFirst()
}

// take has the device kept at the accepted state.
func (l *loop) take(now time.Time) {
	if !l.canTake(now) {
		return
	}
	before := l.sup.Missing
	l.sup.Missing = l.pull.lacking
	if err := l.promoteAccepted(); err != nil {
		l.sup.Missing = before
		l.saving.err, l.saving.at = err, now.Add(saveRetry)
		l.pull.after = l.saving.at
		l.log.Error("cannot save the new target", "err", err)
	}
}

// refilled has what waited for the target's images go on.
func (l *loop) refilled() {
	l.refill.repair, l.sup.Missing = false, nil
	if err := l.o.Store.Update(func(tx *store.Tx) error { return tx.SetImages(l.images) }); err != nil {
		l.log.Warn("cannot save what images say; after a restart of the agent they are looked at again", "err", err)
	}
	l.rebuild()
	for k, r := range l.sup.Retries {
		if r.Gone {
			r.At, r.Gone = time.Time{}, false
			l.sup.Retries[k] = r
		}
	}
}

// rejectsUpdate reports whether an update in the next generation has failed, because an image of it will never come.
func (l *loop) rejectsUpdate() bool {
	var a plan.Assessment
	q := l.assessmentInput(l.o.Now())
	for d := range l.acceptedResolved.All() {
		q.RecordFailedPull(&a, d)
	}
	return len(a.Bad) > 0
}

// keepPermanent keeps a failure permanent that was so before, until the image is pulled, whatever the number of the attempt.
func keepPermanent(now, before map[string]plan.Trouble) map[string]plan.Trouble {
	for name, t := range now {
		if old := before[name]; old.Permanent && old.Code == t.Code {
			t.Permanent, t.FailsUpdate = true, t.FailsUpdate || old.FailsUpdate
			now[name] = t
		}
	}
	return now
}
