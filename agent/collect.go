package agent

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Limits of one garbage collection.
const (
	collectLimit = 10 * time.Minute // checks wait for it
	collectRetry = 10 * time.Minute // after one that did not succeed
)

// collect removes what no generation that the device may need again refers to: the accepted one, the one it is kept at, the
// one that ran completely and the one before that, and the last good revision of each deployment. It runs when nothing is on its way, and checks wait for it. While documents
// are damaged, what they refer to is not known, so nothing is removed.
func (l *loop) collect() {
	if !l.garbage || l.poll.busy || l.poll.collecting || l.pull.digest != "" || l.refill.digest != "" || l.acceptedResolved != nil || l.targetResolved == nil ||
		l.sight.blind != nil || l.sight.looking != nil || l.saving.err != nil || l.damaged != nil || l.o.Now().Before(l.collectAt) || len(l.sup.Busy) > 0 || l.admission.busy {
		return
	}
	l.garbage = false
	l.collectInBackground(l.needed(), func(err error) {
		if err != nil {
			l.garbage, l.collectAt = true, l.o.Now().Add(collectRetry) // some poll or look after that comes here again
		}
	})
}

// makeRoom removes images that are not needed while others are to be loaded and the disk is full: [loop.collect] waits until
// they are loaded, and after a start of the agent the runtime does not know yet which are needed. Documents stay.
func (l *loop) makeRoom() {
	now := l.o.Now()
	if !l.pull.full && !l.refill.full || l.poll.busy || l.poll.collecting || l.sight.blind != nil || l.sight.looking != nil || !l.sight.known || l.damaged != nil || now.Before(l.pull.roomAt) || len(l.sup.Busy) > 0 {
		return
	}
	l.pull.full, l.refill.full, l.pull.roomAt = false, false, now.Add(collectRetry)
	l.log.Warn("the disk is full: removing images that are not needed any more")
	w := l.needed()
	w.only = true
	w.images = slices.Concat(w.images, l.targetResolved.Images(), l.acceptedResolved.Images())
	l.collectInBackground(w, func(err error) {
		if err == nil {
			l.pull.nudge()
			l.refill.nudge()
		}
	})
}

// collectInBackground collects garbage beside the loop. Checks wait for it.
func (l *loop) collectInBackground(w retained, then func(error)) {
	l.poll.collecting = true
	l.within(collectLimit, func(ctx context.Context) {
		err := l.collectGarbage(ctx, w)
		l.send(func(l *loop) {
			l.poll.collecting = false
			if then(err); err != nil {
				l.log.Warn("cannot remove what is not needed any more; it is tried again", "err", err)
			}
		})
	})
}

// needed is what the device may need again, as it is known now.
func (l *loop) needed() retained {
	var w retained
	if l.targetDesired != nil {
		w.loaded = *l.targetDesired
	}
	for _, c := range l.sight.seen.Containers { // their images may still be needed to restart them
		if repository, d, ok := strings.Cut(c.Image, "@"); ok {
			w.images = append(w.images, workload.Image{Repository: repository, Digest: digest.Digest(d)})
		}
	}
	for _, s := range []*store.State{l.accepted, l.target, l.committed, l.lastGood} {
		if s != nil && !slices.ContainsFunc(w.marks, func(x store.State) bool { return x.Digest == s.Digest }) {
			w.marks = append(w.marks, *s)
		}
	}
	var good []workload.Image
	w.blobs, w.states, good, w.whole = l.keep()
	w.images = append(w.images, good...)
	return w
}

// retained is what a garbage collection must leave.
type retained struct {
	loaded        plan.Desired  // one of marks, that need not be read
	marks         []store.State // and all that they refer to
	images        []workload.Image
	blobs, states []digest.Digest // states: their pins
	whole         bool            // blobs are all
	only          bool            // images are removed, nothing else
}

func (a *Agent) collectGarbage(ctx context.Context, w retained) error {
	blobs, states, images, known := w.blobs, w.states, w.images, w.whole
	for _, s := range w.marks {
		states = append(states, s.Digest)
		d := &w.loaded
		if s.Digest != w.loaded.Digest {
			var err error
			if d, err = a.intake.Load(ctx, s, true); err != nil {
				known = false // damaged: what is left of it may be any blob
				continue
			}
		}
		signatures, err := a.intake.Signatures(ctx, s)
		if err != nil {
			known = false
		}
		blobs = append(append(blobs, d.Blobs...), signatures...)
		images = append(images, d.Images()...)
	}
	if err := ctx.Err(); err != nil { // what could not be read for that may be needed
		return err
	}
	if known && !w.only {
		slices.Sort(blobs)
		if err := a.o.Content.Retain(ctx, slices.Compact(blobs)); err != nil {
			return err
		}
	}
	if err := a.o.Runtime.Collect(ctx, images); err != nil {
		return err
	}
	if w.only {
		return nil
	}
	return a.o.Store.Update(func(tx *store.Tx) error { return tx.RetainPins(states...) })
}
