package desired

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/fleet/store"
)

const (
	tick         = time.Second
	readTimeout  = 5 * time.Minute // of a check in the background
	collectEvery = time.Hour
)

// Run looks for new states of the clients that have polled, spread over time, until ctx ends, and removes content from disk that is no
// longer served.
func (v *View) Run(ctx context.Context) error {
	var g errgroup.Group
	g.SetLimit(looksAtOnce)
	defer g.Wait()
	t := time.NewTicker(tick)
	defer t.Stop()
	next := v.o.Now().Add(collectEvery)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		now := v.o.Now()
		for _, x := range v.waiting(now) {
			if ctx.Err() != nil {
				break
			}
			g.Go(func() error {
				ctx, cancel := context.WithTimeout(ctx, readTimeout)
				defer cancel()
				_ = v.look(ctx, x) // recorded and logged
				return nil
			})
		}
		if now.After(next) && v.collect(ctx) {
			next = now.Add(collectEvery)
		}
	}
}

// waiting are the clients that are due, longest first.
func (v *View) waiting(now time.Time) []*client {
	type turn struct {
		x   *client
		due time.Time
	}
	var all []turn
	v.mu.Lock()
	for _, x := range v.clients {
		x.mu.Lock()
		if !now.Before(x.due) && x.loaded && len(x.busy) == 0 {
			all = append(all, turn{x, x.due})
		}
		x.mu.Unlock()
	}
	v.mu.Unlock()
	slices.SortFunc(all, func(a, b turn) int { return a.due.Compare(b.due) })
	out := make([]*client, len(all))
	for i := range all {
		out[i] = all[i].x
	}
	return out
}

// jitter is the random time to the next look, to spread them.
func (v *View) jitter(times int) time.Duration {
	every := v.o.Every * time.Duration(times)
	return every - every/10 + rand.N(every/5+1)
}

// collect removes content that is not served to any client; false: not now.
func (v *View) collect(ctx context.Context) bool {
	if !v.loading.TryLock() {
		return false // content is being read that is not referenced yet
	}
	defer v.loading.Unlock()
	heads, err := v.o.Manifests.ListManifests(ctx)
	var keep []digest.Digest
	for _, head := range heads {
		keep = append(keep, v.kept(ctx, head)...)
	}
	if err == nil {
		err = v.o.Content.Retain(ctx, keep)
	}
	if err != nil {
		v.o.Logger.Warn("what is not served any more stays on disk", "error", err)
	}
	return true
}

// kept is the content that a client needs on disk. A client that has not polled since the start may do so while the registry is unavailable.
func (v *View) kept(ctx context.Context, head store.Manifest) (keep []digest.Digest) {
	v.mu.Lock()
	x := v.clients[head.Client]
	v.mu.Unlock()
	if x != nil {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.loaded {
			for s := x.served; s != nil; s = s.before {
				keep = append(keep, s.keep...)
			}
			return keep
		}
	}
	if s, err := v.restore(ctx, head); err == nil { // otherwise there is no content to keep
		keep = s.keep
	}
	return keep
}
