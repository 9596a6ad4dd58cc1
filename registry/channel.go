package registry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// settleWait is how long is waited before it is looked at whether a tag that was set has held: longer than others take from
// looking to setting.
var settleWait = 120 * time.Millisecond

// settle waits for it, and each for another time: two who set back what the other one set come apart.
var settle = func(ctx context.Context) error { return sleep(ctx, settleWait+rand.N(settleWait)) }

// MoveTag makes a moving tag name d, which has to be there, when it names was until now; "": it is not there. Another one
// there is fault.ErrConflict, and so is one that somebody else sets at the same time: no registry compares before it sets a
// tag, so it is looked at before and, a moment later, again. Of two who move it at once at most one gets nil, as long as
// each takes less than that moment from its look to its move; one that has to try again looks again.
func (r *Repository) MoveTag(ctx context.Context, tag string, was, d digest.Digest) error {
	there, err := r.names(ctx, tag)
	switch {
	case err != nil:
		return err
	case there == d:
		return nil
	case there != was:
		return r.moved(tag, there)
	}
	desc, manifest, err := r.ManifestLimit(ctx, d, MaxForeignManifest)
	if err == nil {
		err = r.SetTag(ctx, desc, manifest, tag, was)
	}
	if errors.Is(err, fault.ErrConflict) && !errors.Is(err, errMoved) {
		return fault.WithHint(err, "the registry keeps tags: exempt those that are to move")
	}
	if err == nil {
		err = settle(ctx)
	}
	if err != nil {
		return err
	}
	if there, err = r.names(ctx, tag); err == nil && there != d {
		err = r.moved(tag, there)
	}
	return err
}

func (r *Repository) moved(tag string, there digest.Digest) error {
	names := there.String()
	if there == "" {
		names = "nothing"
	}
	return fault.WithHint(r.fail("move", tag, fmt.Errorf("it names %s now: %w", names, fault.ErrConflict)), "somebody else moved it: look at it, and decide again")
}
