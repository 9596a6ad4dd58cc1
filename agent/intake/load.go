package intake

import (
	"context"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
)

// Load reads an accepted state again: from the device, and unless offline what is missing there from the source.
func (in *Intake) Load(ctx context.Context, s store.State, offline bool) (*plan.Desired, error) {
	d, _, err := in.load(ctx, s, offline)
	return d, err
}

func (in *Intake) load(ctx context.Context, s store.State, offline bool) (*plan.Desired, *builder, error) {
	pins, err := in.pins(s.Digest)
	if err != nil {
		return nil, nil, codes.Wrap(codes.ContentDamaged, err)
	}
	c := fetcher{in: in, repository: s.Repository, offline: offline}
	_, data, err := c.manifest(ctx, s.Repository, ocispec.Descriptor{MediaType: s.MediaType, Digest: s.Digest, Size: s.Size}, true)
	if err != nil {
		return nil, nil, codes.Wrap(codes.ContentDamaged, fmt.Errorf("read generation %d: %w", s.Generation, err))
	}
	x, err := in.open(s.MediaType, data)
	if err != nil {
		return nil, nil, codes.Wrap(codes.ContentDamaged, fmt.Errorf("read generation %d: %w", s.Generation, err))
	}
	b := &builder{in: in, c: c, x: x, state: s.Digest, pins: pins, trusted: true}
	b.parts = []Part{{KindState, s.Repository, ocispec.Descriptor{MediaType: s.MediaType, Digest: s.Digest, Size: s.Size}}}
	d, err := b.build(ctx)
	if err != nil {
		return nil, nil, codes.Wrap(codes.ContentDamaged, fmt.Errorf("read generation %d: %w", s.Generation, err))
	}
	if !offline {
		if err := in.sync(ctx); err != nil {
			return nil, nil, err
		}
	}
	return d, b, nil
}

// Revision reads one revision of a deployment again, from the device.
func (in *Intake) Revision(ctx context.Context, g store.Good) (*plan.Deployment, error) {
	pins, err := in.pins(g.State)
	if err != nil {
		return nil, err
	}
	c := fetcher{in: in, repository: g.Repository, offline: true}
	data, err := c.blob(ctx, g.Repository, ocispec.Descriptor{Digest: g.Digest, Size: g.Size}, artifacts.MaxArchive, false)
	if err != nil {
		return nil, fmt.Errorf("read deployment %s of generation %d: %w", g.Name, g.Generation, err)
	}
	doc, err := artifacts.ReadDeployment(g.DeploymentID+".yaml", data)
	if err != nil {
		return nil, fmt.Errorf("read deployment %s of generation %d: %w", g.Name, g.Generation, err)
	}
	b := builder{in: in, c: c, state: g.State, pins: pins, trusted: true}
	d, err := b.deployment(ctx, doc, g.Generation)
	if err != nil {
		return nil, fmt.Errorf("read generation %d: %w", g.Generation, err)
	}
	d.Blobs = append(b.c.fetched, g.Digest)
	return &d, nil
}

// pins are what the references of a state were resolved to when it was accepted.
func (in *Intake) pins(state digest.Digest) (pins map[string]digest.Digest, err error) {
	err = in.o.Store.View(func(tx *store.Tx) (err error) {
		pins, err = tx.Pins(state)
		return err
	})
	return pins, err
}
