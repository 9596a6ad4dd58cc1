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
// one that ran completely and the one before that. It runs when nothing is on its way, and checks wait for it. While documents
// are damaged nobody knows what they refer to, so nothing is removed.
func (l *loop) collect() {
	if !l.tidy || l.poll.busy || l.poll.tidying || l.pull.digest != "" || l.next != nil || l.target == nil ||
		l.blind != nil || l.unsaved != nil || l.damaged != nil || l.o.Now().Before(l.tidyAt) || len(l.sup.Busy) > 0 {
		return
	}
	l.tidy, l.poll.tidying = false, true
	loaded := *l.target
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
	l.spawn(func() {
		ctx, cancel := context.WithTimeout(l.ctx, sweepLimit)
		defer cancel()
		err := l.sweep(ctx, loaded, marks, images)
		l.post(func(l *loop) {
			l.poll.tidying = false
			if err != nil {
				l.tidy, l.tidyAt = true, l.o.Now().Add(sweepRetry) // some poll or look after that comes here again
				l.log.Warn("cannot remove what is not needed any more; it is tried again", "err", err)
			}
		})
	})
}

func (a *Agent) sweep(ctx context.Context, loaded Desired, marks []store.State, images []workload.Image) error {
	var blobs, states []digest.Digest
	known := true
	for _, s := range marks {
		states = append(states, s.Digest)
		d := &loaded
		if s.Digest != loaded.Digest {
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
