package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// pulling brings images, beside everything else. The loop has two: one for the accepted generation, one for images of the
// target that were lost, so that what runs does not wait for a slow update. It is part of the loop.
type pulling struct {
	progress *progress
	digest   digest.Digest // of the state that images are being pulled for; "": none
	rebuilt  int           // when images was made
	images   string        // what is being pulled
	cancel   context.CancelFunc
	kick     chan struct{}
	ready    digest.Digest           // state all of whose images are here, or will never come; "": none
	lacking  map[string]plan.Trouble // of ready: those that will never come
	repair   bool                    // images of the target are missing
	after    time.Time               // not before: the new target could not be saved
	full     bool                    // the disk is, and nothing was done about it since
	roomAt   time.Time               // not before: room was made already
	troubles map[string]plan.Trouble // by image name, of the pull in progress
}

// again has the target's images pulled once more: the runtime has lost one.
func (p *pulling) again() { p.repair = true }

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
	kick := p.kick
	l.background(func() {
		ok, lacking := l.pullAll(ctx, p, want, kick)
		l.send(func(l *loop) { l.pulled(p, want, ok, lacking) })
	})
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
	p.progress.end()
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
	return l.pull.has(l, l.acceptedResolved) && !now.Before(l.pull.after) && !l.finishesFirst(now)
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
		l.unsaved, l.saveAt = err, now.Add(saveRetry)
		l.pull.after = l.saveAt
		l.log.Error("cannot save the new target", "err", err)
	}
}

// finishesFirst reports whether an update has begun and is neither good nor bad, while what takes its place waits: in between the device
// would go back to the revision before, outside of every window. The same holds for what leaves the device and waits to come back: it would stay.
func (l *loop) finishesFirst(now time.Time) bool {
	if !l.gated() {
		return false
	}
	var waiting []plan.Change
	for _, c := range l.openChanges(l.acceptedDesired) {
		r, known := l.gate.records[c.ID]
		if !known {
			r.Since = now
		}
		if r.Begun.IsZero() && l.waitOf(c, r, now) != nil {
			waiting = append(waiting, c)
		}
	}
	of := func(id string) bool {
		return slices.ContainsFunc(waiting, func(c plan.Change) bool { return c.Deployment == id })
	}
	return slices.ContainsFunc(waiting, func(c plan.Change) bool { return l.leaves(c.Deployment) }) ||
		slices.ContainsFunc(l.openChanges(l.targetDesired), func(c plan.Change) bool {
			return of(c.Deployment) && !l.gate.records[c.ID].Begun.IsZero() && l.good[c.Deployment].Deployment != nil
		})
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
	for i := range l.acceptedResolved.Deployments {
		q.RecordFailedPull(&a, &l.acceptedResolved.Deployments[i])
	}
	return len(a.Bad) > 0
}

// pullAll pulls every image of a generation, and does not give up before ctx ends. False: it ended. For a new generation it is
// content when only such images are lacking that will not come however often they are asked for: the others are not to wait.
func (l *loop) pullAll(ctx context.Context, p *pulling, d *plan.Desired, kick <-chan struct{}) (bool, map[string]plan.Trouble) {
	left, parallel, give := d.Images(), l.o.ParallelPulls, p == &l.pull
	p.progress.begin(d.Generation, len(left))
	for try := 1; ; try++ {
		images, failed := l.pullEach(ctx, p.progress, left, parallel)
		l.send(func(l *loop) {
			maps.Copy(l.images, images)
			l.rebuild()
		})
		if ctx.Err() != nil {
			return false, nil
		}
		if len(failed) == 0 {
			return true, nil
		}
		troubles, pause := map[string]plan.Trouble{}, clock.Backoff(try, time.Second, pollBackoff)
		left = left[:0]
		final := true
		for _, f := range failed {
			left = append(left, f.image)
			troubles[f.image.Name()] = pullTrouble(f.err, try)
			final = final && troubles[f.image.Name()].FailsUpdate
			if errors.Is(f.err, syscall.ENOSPC) {
				parallel = 1 // two that do not fit beside each other would keep each other out for ever
			}
			pause = max(pause, asked(f.err))
		}
		err := failed[0].err
		l.send(func(l *loop) {
			if p.digest == d.Digest {
				p.troubles = troubles
				for _, t := range troubles {
					p.full = p.full || t.Code == codes.DiskFull
				}
				if !give {
					l.sup.Missing = lasting(troubles, l.sup.Missing)
				}
				if try == 1 {
					l.log.Warn("cannot load every image; what runs is kept", "generation", d.Generation, "err", err)
				}
			}
		})
		if give && final {
			return true, troubles
		}
		p.progress.waits(l.o.Now().Add(pause))
		select {
		case <-ctx.Done():
			return false, nil
		case <-kick:
		case <-time.After(pause):
		}
	}
}

// lasting has what could not be pulled for good before stay so until it is pulled, whatever the number of the attempt.
func lasting(now, before map[string]plan.Trouble) map[string]plan.Trouble {
	for name, t := range now {
		if old := before[name]; old.Permanent && old.Code == t.Code {
			t.Permanent, t.FailsUpdate = true, t.FailsUpdate || old.FailsUpdate
			now[name] = t
		}
	}
	return now
}

type pullFailure struct {
	image workload.Image
	err   error
}

// pullEach makes one attempt at each image. It returns what those that came say, by name, and those that did not come.
func (l *loop) pullEach(ctx context.Context, p *progress, images []workload.Image, parallel int) (map[string]workload.ImageInfo, []pullFailure) {
	var (
		mu     sync.Mutex
		failed []pullFailure
		wg     sync.WaitGroup
	)
	pulled := map[string]workload.ImageInfo{}
	slots := make(chan struct{}, parallel)
	for _, img := range images {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if ctx.Err() != nil {
				return
			}
			p.began(img.Name())
			info, err := l.o.Runtime.Pull(ctx, img, func(done, total int64) { p.image(img.Name(), done, total) })
			p.ended(img.Name(), err == nil)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				pulled[img.Name()] = info
				return
			}
			failed = append(failed, pullFailure{img, err})
		})
	}
	wg.Wait()
	return pulled, failed
}

// pullTrouble names why an image cannot be pulled. What may pass by itself in a moment is not reported as a failure.
func pullTrouble(err error, try int) plan.Trouble {
	t := plan.Trouble{Code: codes.ImagePull, Message: err.Error(), Permanent: try >= 3, FailsUpdate: try >= 3}
	switch {
	case errors.Is(err, syscall.ENOSPC):
		t.Code, t.Permanent, t.FailsUpdate = codes.DiskFull, true, false
		var full interface{ Short() int64 }
		if errors.As(err, &full) {
			t.Short = full.Short()
		}
	case errors.Is(err, fault.ErrConfig):
		t.Code, t.Permanent, t.FailsUpdate = codes.Config, true, false
	case errors.Is(err, fault.ErrTemporary):
		t.Code, t.Permanent, t.FailsUpdate = codes.SourceUnreachable, false, false
	case errors.Is(err, fault.ErrNotFound):
		t.Code, t.Permanent, t.FailsUpdate = codes.ImageMissing, true, false
	case errors.Is(err, fault.ErrDigestMismatch):
		// Whoever sent it is wrong, not the image: a proxy that spoils a layer once must not spoil the revision for ever.
		t.Code, t.Permanent, t.FailsUpdate = codes.ImageDigest, true, false
	case errors.Is(err, fault.ErrUnfit), errors.Is(err, fault.ErrUnsupported):
		t.Code, t.Permanent, t.FailsUpdate = codes.ImagePlatform, true, true
	case errors.Is(err, fault.ErrUnauthenticated):
		t.Code, t.Permanent, t.FailsUpdate = codes.SourceUnauthenticated, true, false
	case errors.Is(err, fault.ErrDenied):
		t.Code, t.Permanent, t.FailsUpdate = codes.SourceDenied, true, false
	}
	return t
}
