package agent

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Limits of tidying up.
const (
	sweepLimit = 10 * time.Minute // checks wait for it
	sweepRetry = 10 * time.Minute // after one that did not succeed
)

// collect removes what no generation that the device may need again refers to: the accepted one, the one it is kept at, the
// one that ran completely and the one before that, and the last good revision of each deployment. It runs when nothing is on its way, and checks wait for it. While documents
// are damaged nobody knows what they refer to, so nothing is removed.
func (l *loop) collect() {
	if !l.tidy || l.poll.busy || l.poll.tidying || l.pull.digest != "" || l.next != nil || l.target == nil ||
		l.blind != nil || l.unsaved != nil || l.damaged != nil || l.o.Now().Before(l.tidyAt) || len(l.sup.Busy) > 0 {
		return
	}
	l.tidy, l.poll.tidying = false, true
	loaded := *l.wanted
	var images []workload.Image
	for _, c := range l.seen.Containers { // what is there may still be needed to stop or restart it
		if repository, d, ok := strings.Cut(c.Image, "@"); ok {
			images = append(images, workload.Image{Repository: repository, Digest: digest.Digest(d)})
		}
	}
	var marks []store.State
	for _, s := range []*store.State{l.accepted, l.running, l.committed, l.lastGood} {
		if s != nil && !slices.ContainsFunc(marks, func(x store.State) bool { return x.Digest == s.Digest }) {
			marks = append(marks, *s)
		}
	}
	blobs, states, good, whole := l.keep()
	images = append(images, good...)
	l.spawn(func() {
		ctx, cancel := context.WithTimeout(l.ctx, sweepLimit)
		defer cancel()
		err := l.sweep(ctx, sweeping{loaded: loaded, marks: marks, images: images, blobs: blobs, states: states, whole: whole})
		l.post(func(l *loop) {
			l.poll.tidying = false
			if err != nil {
				l.tidy, l.tidyAt = true, l.o.Now().Add(sweepRetry) // some poll or look after that comes here again
				l.log.Warn("cannot remove what is not needed any more; it is tried again", "err", err)
			}
		})
	})
}

// sweeping is what must stay.
type sweeping struct {
	loaded        Desired       // one of marks, that need not be read
	marks         []store.State // and all that they refer to
	images        []workload.Image
	blobs, states []digest.Digest // states: their pins
	whole         bool            // blobs are all
}

func (a *Agent) sweep(ctx context.Context, w sweeping) error {
	blobs, states, images, known := w.blobs, w.states, w.images, w.whole
	for _, s := range w.marks {
		states = append(states, s.Digest)
		d := &w.loaded
		if s.Digest != w.loaded.Digest {
			var err error
			if d, err = a.load(ctx, s, true); err != nil {
				known = false // damaged: what is left of it may be any blob
				continue
			}
		}
		blobs = append(blobs, d.Blobs...)
		images = append(images, d.images()...)
	}
	if known {
		slices.Sort(blobs)
		if err := a.o.Content.Retain(ctx, slices.Compact(blobs)); err != nil {
			return err
		}
	}
	if err := a.o.Runtime.Collect(ctx, images); err != nil {
		return err
	}
	return a.o.Store.Update(func(tx *store.Tx) error { return tx.RetainPins(states...) })
}
