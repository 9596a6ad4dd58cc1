package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts"
)

// recall reads what was remembered of revisions and restarts: no network.
func (l *loop) recall() error {
	var good []store.Good
	err := l.o.Store.View(func(tx *store.Tx) error {
		var err1, err2, err3 error
		good, err1 = tx.Good()
		bad, err2 := tx.Bad()
		l.again, err3 = tx.Again()
		for _, b := range bad {
			l.bad[b.Digest] = b
		}
		return errors.Join(err1, err2, err3)
	})
	if err != nil {
		return err
	}
	l.sup.Again = maps.Clone(l.again)
	for _, g := range good {
		rev := goodRevision{rec: g}
		if d := l.wanted.deployment(g.DeploymentID); d != nil && d.Digest == g.Digest {
			rev.d = d
		} else if rev.d, err = l.revision(l.ctx, g); err != nil {
			l.log.Error("the last good revision of a deployment is damaged; an update that fails has nothing to go back to",
				"deployment", g.Name, "generation", g.Generation, "err", err)
		}
		l.good[g.DeploymentID] = rev
	}
	return nil
}

// revision reads one revision of a deployment again, from the device.
func (a *Agent) revision(ctx context.Context, g store.Good) (*Deployment, error) {
	var pins map[string]digest.Digest
	err := a.o.Store.View(func(tx *store.Tx) (err error) {
		pins, err = tx.Pins(g.State)
		return err
	})
	if err != nil {
		return nil, err
	}
	c := courier{a: a, repository: g.Repository, offline: true, sizes: maps.Clone(g.Sizes)}
	if c.sizes == nil {
		c.sizes = map[digest.Digest]int64{}
	}
	data, err := c.blob(ctx, g.Repository, ocispec.Descriptor{Digest: g.Digest, Size: g.Size}, artifacts.MaxArchive, false)
	if err != nil {
		return nil, fmt.Errorf("read deployment %s of generation %d: %w", g.Name, g.Generation, err)
	}
	doc, err := artifacts.ReadDeployment(g.DeploymentID+".yaml", data)
	if err != nil {
		return nil, fmt.Errorf("read deployment %s of generation %d: %w", g.Name, g.Generation, err)
	}
	b := builder{a: a, c: c, state: g.State, pins: pins, trusted: true}
	d, err := b.deployment(ctx, doc, g.Generation)
	if err != nil {
		return nil, fmt.Errorf("read generation %d: %w", g.Generation, err)
	}
	d.Blobs = append(b.c.brought, g.Digest)
	return &d, nil
}

// goodRecord is what is remembered of a deployment that runs completely.
func (l *loop) goodRecord(now time.Time, d *Deployment) store.Good {
	g := store.Good{
		DeploymentID: d.ID, Name: d.Name, Digest: d.Digest, Size: d.Size, Generation: l.running.Generation, State: l.running.Digest,
		Repository: l.running.Repository, Since: now, Sizes: map[digest.Digest]int64{},
	}
	for _, b := range d.Blobs {
		if n, ok := l.running.Sizes[b]; ok {
			g.Sizes[b] = n
		}
	}
	return g
}

// approve takes over which revisions are good now.
func (l *loop) approve(now time.Time, a assessment) {
	for _, d := range a.good {
		l.good[d.ID] = goodRevision{l.goodRecord(now, d), l.wanted.deployment(d.ID)}
	}
	for _, s := range a.removed {
		delete(l.good, s.DeploymentID)
	}
	if len(a.good)+len(a.removed) > 0 {
		l.tidy = true
		l.recompose()
	}
}

// turnBack remembers revisions that failed: from now on they are not tried.
func (l *loop) turnBack(bad []store.Bad) error {
	err := l.o.Store.Update(func(tx *store.Tx) error {
		for _, b := range bad {
			if err := tx.AddBad(b); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, b := range bad {
		l.bad[b.Digest] = b
		l.turnedBack(b)
		args := []any{"deployment", b.DeploymentID, "generation", b.Generation, "code", b.Code, "component", b.Source, "err", b.Message}
		if b.Pause {
			l.log.Error("an update failed and is paused", args...)
		} else {
			l.log.Error("an update failed; going back to the last good revision", append(args, "good", l.good[b.DeploymentID].rec.Generation)...)
		}
	}
	l.recompose()
	return nil
}

// saveAgain remembers which containers are about to be stopped only to be started again, before they are.
func (l *loop) saveAgain(steps []Step) bool {
	next := maps.Clone(l.sup.Again)
	for _, st := range steps {
		if st.Again {
			next[st.Container] = st.run
		}
	}
	if !maps.Equal(next, l.again) {
		if err := l.o.Store.Update(func(tx *store.Tx) error { return tx.SetAgain(next) }); err != nil {
			if l.unsaved == nil {
				l.log.Error("cannot save which containers are being restarted", "err", err)
			}
			return false
		}
		l.again = maps.Clone(next)
	}
	l.sup.Again = next
	return true
}

// digests are those of all deployments of some generations.
func digests(ds ...*Desired) map[digest.Digest]bool {
	out := map[digest.Digest]bool{}
	for _, d := range ds {
		if d != nil {
			for i := range d.Deployments {
				out[d.Deployments[i].Digest] = true
			}
		}
	}
	return out
}

// keep is what the last good revisions need on the device, and the pins of their states. False: one of them is damaged,
// and nobody knows what it needs.
func (l *loop) keep() (blobs, states []digest.Digest, images []workload.Image, whole bool) {
	whole = true
	for _, id := range slices.Sorted(maps.Keys(l.good)) {
		g := l.good[id]
		states = append(states, g.rec.State)
		if g.d == nil {
			whole = false
			continue
		}
		blobs, images = append(blobs, g.d.Blobs...), append(images, g.d.images()...)
	}
	return blobs, states, images, whole
}
