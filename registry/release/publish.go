package release

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
)

// Signer signs an artifact before its publication. The signature must be listed when it returns.
type Signer interface {
	Sign(ctx context.Context, repo *registry.Repository, subject ocispec.Descriptor) error
}

// FreshSigner is a [Signer] that can skip the check for existing signatures.
type FreshSigner interface {
	Signer
	// SignFresh is Sign of a subject that was not in the repository a moment ago.
	SignFresh(ctx context.Context, repo *registry.Repository, subject ocispec.Descriptor) error
}

// PublishOptions configure a publication.
type PublishOptions struct {
	Signer     Signer          // nil: not signed
	HistoryTag string          // immutable tag, set before Tags; "" for none. If it names another digest: fault.ErrConflict
	Tags       []string        // moving tags, set last, in this order
	MountFrom  []string        // as of registry.PushOptions
	Held       []digest.Digest // as of registry.PushOptions

	// Precondition makes the publication the next generation of a chain: of Tags[0], whose history has HistoryTag. nil: no chain.
	Precondition *Precondition
}

// Precondition is the condition for the publication of a generation.
type Precondition struct {
	Tagged digest.Digest // previous digest of the moving tag; "": none
	// New: the artifact did not exist when it was planned, so that it cannot be signed yet. If a killed publisher
	// has signed it, it is signed once more.
	New bool
	// Verify returns an error if a generation of another publisher must not be followed: such a generation never gets the moving
	// tag or the history tag of this one. That error is [Unfit]; any other error means that the query failed,
	// and ends the publication. nil: every generation may be followed.
	Verify func(ctx context.Context, d digest.Digest) error
}

// Publish pushes an artifact so that readers always get the old one or the new one, complete and signed: blobs,
// manifest by digest, signature, history tag, moving tags; and it reads the artifact back, before the first tag or, for
// a generation, together with its tags: see commit. The manifest of a new generation is put with its history tag alone: a signature may
// exist before its subject. It may be repeated after any interruption.
func Publish(ctx context.Context, repo *registry.Repository, a *artifacts.Artifact, o PublishOptions) (ocispec.Descriptor, error) {
	repo = repo.Upstream()
	desc := ocispec.Descriptor{MediaType: a.Descriptor.MediaType, Digest: a.Descriptor.Digest, Size: a.Descriptor.Size}
	for _, t := range append([]string{o.HistoryTag}, o.Tags...) {
		if t != "" && !registry.ValidTag(t) {
			return desc, fmt.Errorf("publish %s:%s: no tag: %w", repo.Name(), t, fault.ErrInvalid)
		}
	}
	p := &publication{repo: repo, desc: desc, manifest: a.Manifest, o: o}
	if o.Precondition == nil && o.HistoryTag != "" { // if it exists, the rest is pointless; for a chain this was planned
		if _, err := p.free(ctx); err != nil {
			return desc, err
		}
	}
	if o.Precondition != nil {
		err := p.next(ctx, a, o.Precondition.New)
		if o.Precondition.New && !errors.Is(err, fault.ErrConflict) && (errors.Is(err, fault.ErrNotFound) || errors.Is(err, fault.ErrInvalid)) {
			err = p.next(ctx, a, false) // the registry has lost a blob of Held, or accepts no signature before its subject
		}
		return desc, err
	}
	if err := p.push(ctx, a, false); err != nil {
		return desc, err
	}
	if err := p.readBack(ctx); err != nil {
		return desc, err
	}
	if o.HistoryTag != "" {
		free, err := p.free(ctx)
		if err == nil && free {
			err = p.setHistory(ctx)
		}
		if err != nil {
			return desc, err
		}
	}
	for _, tag := range o.Tags {
		if err := repo.PushManifest(ctx, desc, a.Manifest, tag); err != nil {
			return desc, err
		}
	}
	return desc, nil
}

// publication is the publication of one artifact.
type publication struct {
	repo     *registry.Repository // at the registry itself
	desc     ocispec.Descriptor
	manifest []byte
	o        PublishOptions
}

// next publishes a generation. fresh: it cannot be signed yet, and its manifest is put only with its history tag.
func (p *publication) next(ctx context.Context, a *artifacts.Artifact, fresh bool) error {
	if err := p.push(ctx, a, fresh); err != nil {
		return err
	}
	return p.commit(ctx)
}

// push pushes everything that is needed before a tag may be set.
func (p *publication) push(ctx context.Context, a *artifacts.Artifact, fresh bool) error {
	looked := p.o.Precondition != nil && p.o.Precondition.New
	signer, tells := p.o.Signer.(FreshSigner)
	_, absent, err := p.repo.Push(ctx, a, registry.PushOptions{
		MountFrom: p.o.MountFrom, Held: p.o.Held, Absent: tells && !looked, BlobsOnly: fresh,
	})
	switch {
	case err != nil || p.o.Signer == nil:
		return err
	case tells && (fresh || absent):
		return signer.SignFresh(ctx, p.repo, p.desc)
	}
	return p.o.Signer.Sign(ctx, p.repo, p.desc)
}

// readBack checks that the registry has the accepted artifact.
func (p *publication) readBack(ctx context.Context) error {
	_, back, err := p.repo.ManifestLimit(ctx, p.desc.Digest, registry.MaxForeignManifest)
	if err == nil && !bytes.Equal(back, p.manifest) {
		err = p.fail("read back", p.desc.Digest.String(), fmt.Errorf("another manifest: %w", fault.ErrDigestMismatch))
	}
	return err
}

// free reports whether the history tag still has to be set. If it names another digest, it is not changed.
func (p *publication) free(ctx context.Context) (bool, error) {
	there, err := p.repo.ResolveUpstream(ctx, p.o.HistoryTag)
	if err == nil && there != "" && there != p.desc.Digest {
		err = p.conflict(p.o.HistoryTag, there)
	}
	return there == "", err
}

// setHistory sets the free history tag. A rejection is a conflict if the tag now names another digest: registries
// with immutable tags use different errors.
func (p *publication) setHistory(ctx context.Context) error {
	err := p.setTag(ctx, p.desc, p.manifest, p.o.HistoryTag, "")
	if err != nil && !errors.Is(err, fault.ErrTemporary) {
		if there, lookErr := p.repo.ResolveUpstream(ctx, p.o.HistoryTag); lookErr == nil && there != "" && there != p.desc.Digest {
			return p.conflict(p.o.HistoryTag, there)
		}
	}
	return err
}

// setTag is SetTag with one more read of the tag if the result of its last try is unknown: the tag may name the manifest, and may have
// replaced that of another publisher after its check; the following reads detect this.
func (p *publication) setTag(ctx context.Context, desc ocispec.Descriptor, manifest []byte, tag string, was digest.Digest) error {
	err := p.repo.SetTag(ctx, desc, manifest, tag, was)
	if !errors.Is(err, fault.ErrTemporary) || ctx.Err() != nil {
		return err
	}
	there, lookErr := p.repo.ResolveUpstream(ctx, tag)
	switch {
	case lookErr != nil || there == was:
		return err
	case there == desc.Digest:
		return nil
	}
	return registry.ErrMoved
}

func (p *publication) conflict(tag string, there digest.Digest) error {
	return fault.WithHint(p.fail("publish", tag, fmt.Errorf("it names %s already: %w", there, fault.ErrConflict)),
		"look at what is there, and publish what follows it")
}

func (p *publication) fail(what, target string, err error) error {
	sign := ":"
	if digest.Digest(target).Validate() == nil {
		sign = "@"
	}
	return fmt.Errorf("%s %s%s%s: %w", what, p.repo.Name(), sign, target, err)
}
