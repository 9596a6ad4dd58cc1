package registry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// No registry has a compare-and-swap for tags. The program sets shared tags only with [Repository.SetTag], which gets the
// previous digest, and reads the tag again before every further try. Package release adds the chain, with two tags that are set in
// order; for a single tag there is [Repository.CompareAndSetTag], which waits.

// waitForRival waits before a writer checks that its tag was not replaced, with a random part, so that two writers that replace each
// other's value do not stay in step. round is the number of earlier tries.
func (p *remotePlace) waitForRival(ctx context.Context, round int) error {
	return delay.For(ctx, p.c.o.TagWait+rand.N(p.c.o.TagWait*time.Duration(1+min(round, 4))))
}

// ResolveUpstream returns the digest of a tag at the registry itself, because mirrors may be outdated. "": the tag does not exist, or a lax
// registry has a truncated manifest of a killed publisher.
func (r *Repository) ResolveUpstream(ctx context.Context, tag string) (digest.Digest, error) {
	return orNothing(r.here(ctx, tag))
}

// here resolves a tag at the registry itself.
func (r *Repository) here(ctx context.Context, tag string) (ocispec.Descriptor, error) {
	p, ok := r.place.(*remotePlace)
	if !ok {
		return r.Resolve(ctx, tag)
	}
	a := p.upstream()
	d, err := p.resolveAt(p.reading(ctx, a), a, tag)
	return d, r.fail(opResolve, tag, err)
}

// FetchUpstream is ResolveUpstream, but reads the manifest, and so proves that it exists.
func (r *Repository) FetchUpstream(ctx context.Context, tag string) (digest.Digest, error) {
	var d ocispec.Descriptor
	var err error
	if p, ok := r.place.(*remotePlace); ok {
		a := p.upstream()
		d, _, err = p.manifestAt(p.reading(ctx, a), a, tag, MaxForeignManifest)
	} else {
		d, _, err = r.manifest(ctx, tag, MaxForeignManifest)
	}
	there, err := orNothing(d, err)
	return there, r.fail("read back", tag, err)
}

// ErrMoved: another writer has set a tag since it was read. It wraps fault.ErrConflict.
var ErrMoved = fault.WithHint(fmt.Errorf("it names something else now: %w", fault.ErrConflict),
	"another writer set it meanwhile: look at it, and decide again")

// SetTag puts a manifest under a tag whose previous digest is was; "": none. Before a further try it reads the tag, and does not
// overwrite another writer's value: [ErrMoved]. The first try does not read it, because the caller has.
func (r *Repository) SetTag(ctx context.Context, desc ocispec.Descriptor, data []byte, tag string, was digest.Digest) error {
	p, ok := r.place.(*remotePlace)
	if !ok {
		return r.PushManifest(ctx, desc, data, tag)
	}
	err := checkPut(desc, data, tag)
	if err == nil {
		err = p.setTag(ctx, desc, data, tag, &was)
	}
	return r.fail(opPushManifest, tag, err)
}

// CompareAndSetTag is SetTag for a single tag: it reads the tag before, and again after a wait. If the tag names
// neither was nor the manifest, that is fault.ErrConflict. Of two concurrent writers at most one gets nil, if
// each takes less time than that wait from its read to its write; a further try reads the tag again.
func (r *Repository) CompareAndSetTag(ctx context.Context, desc ocispec.Descriptor, data []byte, tag string, was digest.Digest) error {
	return r.compareAndSetTag(ctx, desc.Digest, tag, was, func() (ocispec.Descriptor, []byte, error) { return desc, data, nil })
}

// CompareAndMoveTag is CompareAndSetTag for a manifest that exists in the repository.
func (r *Repository) CompareAndMoveTag(ctx context.Context, tag string, was, d digest.Digest) error {
	return r.compareAndSetTag(ctx, d, tag, was, func() (ocispec.Descriptor, []byte, error) { return r.ManifestLimit(ctx, d, MaxForeignManifest) })
}

func (r *Repository) compareAndSetTag(ctx context.Context, d digest.Digest, tag string, was digest.Digest, get func() (ocispec.Descriptor, []byte, error)) error {
	there, err := r.ResolveUpstream(ctx, tag)
	switch {
	case err != nil:
		return err
	case there == d:
		return nil
	case there != was:
		return r.moved(tag, there)
	}
	desc, manifest, err := get()
	if err == nil {
		err = r.SetTag(ctx, desc, manifest, tag, was)
	}
	if errors.Is(err, fault.ErrConflict) && !errors.Is(err, ErrMoved) {
		return fault.WithHint(err, "the registry keeps tags: exempt those that are to move")
	}
	if p, ok := r.place.(*remotePlace); ok && err == nil {
		err = p.waitForRival(ctx, 0)
	}
	if err != nil {
		return err
	}
	if there, err = r.ResolveUpstream(ctx, tag); err == nil && there != d {
		err = r.moved(tag, there)
	}
	return err
}

func (r *Repository) moved(tag string, there digest.Digest) error {
	names := there.String()
	if there == "" {
		names = "nothing"
	}
	return fault.WithHint(r.fail("move", tag, fmt.Errorf("it names %s now: %w", names, fault.ErrConflict)), "another publisher moved it: look at it, and decide again")
}
