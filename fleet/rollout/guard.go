package rollout

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
)

const (
	guardEvery = 2 * time.Second // a wave looks so often whether it may still be published
	settle     = 3 * guardEvery  // after which no process publishes a wave that another one has ended
)

// errTaken ends a wave that another process has halted, undone or continued. It is not a conflict, which would be about one device.
var errTaken = fmt.Errorf("the rollout's record has another revision: %w", fault.ErrTemporary)

// guard publishes the states of a wave as long as the rollout is this run's: a large wave takes minutes, and who halts it
// wants nothing more of it published.
type guard struct {
	fleet.Publisher
	run *Run

	mu     sync.Mutex
	looked time.Time // when the record was last read
}

// Publish is the publisher's, or an error that wraps errTaken.
func (g *guard) Publish(ctx context.Context, repository string, a *artifacts.Artifact, p fleet.Publication) error {
	if err := g.own(ctx); err != nil {
		return err
	}
	return g.Publisher.Publish(ctx, repository, a, p)
}

func (g *guard) own(ctx context.Context) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	at := g.run.cfg.Now()
	if since := at.Sub(g.looked); since >= 0 && since < guardEvery { // below 0: the clock was set
		return nil
	}
	moved, err := g.run.cfg.Store.moved(ctx, g.run.record)
	switch {
	case err != nil:
		return fmt.Errorf("look whether the rollout is still this run's: %w", err)
	case moved:
		return errTaken
	}
	g.looked = at
	return nil
}
