package registry

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// No registry compares before it sets a tag. [Repository.SetTag] is the one step by which the program sets tags that others
// may set too: it knows what the tag named before, and looks again before every further try. What two tags that are set in
// order add to that is the chain of registry/release; one tag alone has [Repository.SwapTag], which waits.

// hold waits before a writer looks whether its tag has held, and each writer for another time: two who set back what the other
// one set come apart. round is how often the writer has tried before.
func (p *remotePlace) hold(ctx context.Context, round int) error {
	return sleep(ctx, p.c.o.TagWait+rand.N(p.c.o.TagWait*time.Duration(1+min(round, 4))))
}

// Named returns what a tag names at the registry itself; mirrors learn of it later. "": it is not there, or a lax registry
// keeps half of what a killed publisher sent.
func (r *Repository) Named(ctx context.Context, tag string) (digest.Digest, error) {
	return orNothing(r.here(ctx, tag))
}

// here asks what a tag names of the registry itself.
func (r *Repository) here(ctx context.Context, tag string) (ocispec.Descriptor, error) {
	p, ok := r.place.(*remotePlace)
	if !ok {
		return r.Resolve(ctx, tag)
	}
	a := p.upstream()
	d, err := p.resolveAt(p.reading(ctx, a), a, tag)
	return d, r.fail("resolve", tag, err)
}

// ReadTag is Named by the bytes that are there, and so shows that they are.
func (r *Repository) ReadTag(ctx context.Context, tag string) (digest.Digest, error) {
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

// ErrMoved says that another writer has set a tag since it was looked at. It wraps fault.ErrConflict.
var ErrMoved = fault.WithHint(fmt.Errorf("it names something else now: %w", fault.ErrConflict),
	"another writer set it meanwhile: look at it, and decide again")

// SetTag puts a manifest under a tag that names was until now; "": nothing. Before it tries again it looks, and what somebody
// else has set meanwhile stays: [ErrMoved]. The first try does not look: the caller has.
func (r *Repository) SetTag(ctx context.Context, desc ocispec.Descriptor, data []byte, tag string, was digest.Digest) error {
	p, ok := r.place.(*remotePlace)
	if !ok {
		return r.PushManifest(ctx, desc, data, tag)
	}
	err := checkPut(desc, data, tag)
	if err == nil {
		err = p.setTag(ctx, desc, data, tag, &was)
	}
	return r.fail("push manifest", tag, err)
}

// SwapTag is SetTag of a tag that stands alone: it looks before, and a moment later whether the tag has held. What the tag
// names is fault.ErrConflict where that is neither was nor the manifest. Of two who set it at once at most one gets nil, as
// long as each takes less than that moment from its look to its write; one that has to try again looks again.
func (r *Repository) SwapTag(ctx context.Context, desc ocispec.Descriptor, data []byte, tag string, was digest.Digest) error {
	return r.swapTag(ctx, desc.Digest, tag, was, func() (ocispec.Descriptor, []byte, error) { return desc, data, nil })
}

// MoveTag is SwapTag to a manifest that is in the repository.
func (r *Repository) MoveTag(ctx context.Context, tag string, was, d digest.Digest) error {
	return r.swapTag(ctx, d, tag, was, func() (ocispec.Descriptor, []byte, error) { return r.ManifestLimit(ctx, d, MaxForeignManifest) })
}

func (r *Repository) swapTag(ctx context.Context, d digest.Digest, tag string, was digest.Digest, get func() (ocispec.Descriptor, []byte, error)) error {
	there, err := r.Named(ctx, tag)
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
		err = p.hold(ctx, 0)
	}
	if err != nil {
		return err
	}
	if there, err = r.Named(ctx, tag); err == nil && there != d {
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
