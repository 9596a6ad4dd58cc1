package intake

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// fetcher brings small artifacts: from the device when they are here, else from the source, and then keeps them. It trusts
// neither: bytes that do not hash to their digest do not pass.
type fetcher struct {
	in         *Intake
	repository string
	offline    bool            // never ask the source
	fetched    []digest.Digest // everything that passed
}

// manifest brings an artifact's manifest. d's size may be 0: not known. keep reports whether it may stay on the device yet.
func (c *fetcher) manifest(ctx context.Context, repository string, d ocispec.Descriptor, keep bool) (ocispec.Descriptor, []byte, error) {
	if err := hashable(d.Digest); err != nil {
		return d, nil, fmt.Errorf("manifest %s@%s: %w", repository, d.Digest, err)
	}
	if data, err := c.local(ctx, d.Digest); data != nil || err != nil {
		d.Size = int64(len(data))
		return d, data, err
	}
	got, data, err := c.in.o.Source.Manifest(ctx, repository, d.Digest)
	if err != nil {
		return d, nil, &fetchError{err}
	}
	limit := int64(artifacts.MaxManifest)
	if d.MediaType == artifacts.TypeState {
		limit = artifacts.MaxDocument
	}
	if err := checkBytes(d.Digest, data, limit); err != nil {
		return d, nil, fmt.Errorf("fetch manifest %s@%s: %w", repository, d.Digest, &fetchError{err})
	}
	got.Digest, got.Size = d.Digest, int64(len(data))
	return got, data, c.passed(ctx, got, data, keep)
}

// blob brings a layer of an artifact: from its descriptor, where the manifest carries it.
func (c *fetcher) blob(ctx context.Context, repository string, d ocispec.Descriptor, limit int64, keep bool) ([]byte, error) {
	if err := hashable(d.Digest); err != nil {
		return nil, fmt.Errorf("blob %s@%s: %w", repository, d.Digest, err)
	}
	if data := artifacts.Carried(d); data != nil {
		return data, nil // it is kept with the manifest
	}
	if data, err := c.local(ctx, d.Digest); data != nil || err != nil {
		return data, err
	}
	if d.Size > limit {
		return nil, fmt.Errorf("fetch %s@%s: %d bytes, at most %d: %w", repository, d.Digest, d.Size, limit, fault.ErrTooLarge)
	}
	data, err := c.in.o.Source.Blob(ctx, repository, d, limit)
	if err != nil {
		return nil, &fetchError{err}
	}
	if err := checkBytes(d.Digest, data, limit); err != nil {
		return nil, fmt.Errorf("fetch %s@%s: %w", repository, d.Digest, &fetchError{err})
	}
	d.Size = int64(len(data))
	return data, c.passed(ctx, d, data, keep)
}

// local reads what is on the device. nil without an error: the source has to be asked.
func (c *fetcher) local(ctx context.Context, d digest.Digest) ([]byte, error) {
	data, err := c.in.o.Content.Get(ctx, d)
	switch {
	case err == nil && digest.FromBytes(data) == d:
		c.fetched = append(c.fetched, d)
		return data, nil
	case c.offline:
		return nil, fmt.Errorf("read %s from the device: %w", d, fault.ErrNotFound)
	}
	return nil, nil
}

// passed notes what the source brought, and keeps it.
func (c *fetcher) passed(ctx context.Context, d ocispec.Descriptor, data []byte, keep bool) error {
	if keep {
		if err := c.keep(ctx, d, data); err != nil {
			return err
		}
	}
	c.fetched = append(c.fetched, d.Digest)
	return nil
}

func (c *fetcher) keep(ctx context.Context, d ocispec.Descriptor, data []byte) error {
	if err := c.in.o.Content.Stage(ctx, d, data); err != nil {
		return fmt.Errorf("keep %s %w: %w", d.Digest, errLocal, err)
	}
	return nil
}

// sync makes durable what was kept: in one go, because a disk needs as long for one file as for all.
func (in *Intake) sync(ctx context.Context) error {
	if err := in.o.Content.Sync(ctx); err != nil {
		err = fmt.Errorf("keep documents %w: %w", errLocal, err)
		return codes.Wrap(codes.Of(err), err)
	}
	return nil
}

// has reports whether content is on the device.
func (c *fetcher) has(ctx context.Context, d digest.Digest) bool {
	_, err := c.in.o.Content.Get(ctx, d)
	return err == nil
}

// hashable refuses names that bytes cannot be held against here: everything on the device is named by its sha256.
func hashable(d digest.Digest) error {
	if err := d.Validate(); err != nil {
		return fmt.Errorf("digest %q: %w: %w", d, fault.ErrUnsupported, err)
	}
	if d.Algorithm() != digest.SHA256 {
		return fmt.Errorf("digest algorithm %s, this device knows sha256 only: %w", d.Algorithm(), fault.ErrUnsupported)
	}
	return nil
}

// checkBytes holds bytes against their name, which is [hashable].
func checkBytes(d digest.Digest, data []byte, limit int64) error {
	if int64(len(data)) > limit {
		return fmt.Errorf("%d bytes, at most %d: %w", len(data), limit, fault.ErrTooLarge)
	}
	if got := digest.FromBytes(data); got != d {
		return fmt.Errorf("got %s: %w", got, fault.ErrDigestMismatch)
	}
	return nil
}

// fetchError is what came of asking the source. Whatever it says, it judges nothing that was signed: a proxy that answers
// 400, a registry that hides behind a login page and an overlong answer all pass. Only bytes that hash to their digest can
// be refused for good.
type fetchError struct{ err error }

func (e *fetchError) Error() string { return e.err.Error() }
func (e *fetchError) Unwrap() error { return e.err }

// errLocal marks what went wrong on the device itself, not at the source.
var errLocal = errors.New("on this device")
