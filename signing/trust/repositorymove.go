package trust

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Moves is what it takes to publish a version in a second repository: the one that it says the next version comes from, where
// that is not the one that it follows another version in. Devices look there next, so it has to hold this version before
// anyone takes it over: a typing error would keep every later version from them.
type Moves interface {
	// Open opens a repository by its name.
	Open(ctx context.Context, repository string) (Place, error)
	// Copy brings a manifest, all that it names and its signatures from one place to another, and sets no tag.
	Copy(ctx context.Context, from, to Place, d digest.Digest) error
}

// moves reports whether the version after p comes from another repository than at.
func (p *Policy) moves(at Place) bool { return p.Trust != nil && p.Trust.Repository != at.Name() }

// arrived returns the repository that the version after p comes from; nil when that is at. An error wraps ErrMissing when d is
// there neither as version p.Version nor as the proposal of it.
func (p *Policy) arrived(ctx context.Context, at Place, m Moves, d digest.Digest) (Place, error) {
	if !p.moves(at) {
		return nil, nil
	}
	next, err := openNext(ctx, m, p.Trust.Repository)
	if err != nil {
		return nil, err
	}
	for _, tag := range []string{artifacts.TrustTag(p.Version), artifacts.TrustProposalTag(p.Version)} {
		switch there, err := next.Resolve(ctx, tag); {
		case errors.Is(err, fault.ErrNotFound):
		case err != nil:
			return nil, err
		case there.Digest == d:
			return next, nil
		}
	}
	err = fmt.Errorf("%strust.repository: the next version comes from %s, and version %d is not there: %w: %w", p.Trust.at, p.Trust.Repository, p.Version, ErrMissing, fault.ErrRejected)
	return nil, fault.WithHint(err, "is the name right? Devices look there next. If the policy is to move there, say so: longshore trust push --move")
}

func openNext(ctx context.Context, m Moves, repository string) (Place, error) {
	if m == nil {
		return nil, fmt.Errorf("trust.repository: %s cannot be opened from here: %w", repository, fault.ErrUnsupported)
	}
	return m.Open(ctx, repository)
}

// announce puts a proposal into the repository that it moves to.
func announce(ctx context.Context, at Place, m Moves, repository string, subject ocispec.Descriptor, manifest []byte, tag string, replace bool) error {
	next, err := openNext(ctx, m, repository)
	if err == nil {
		err = m.Copy(ctx, at, next, subject.Digest)
	}
	if err == nil {
		err = put(ctx, next, subject, manifest, tag, replace)
	}
	if err != nil {
		return fmt.Errorf("move to %s: %w", repository, err)
	}
	return nil
}

// moveFirst makes sure that the repository that the next version comes from has p, with its signatures, before devices take p over.
func (p *Proposal) moveFirst(ctx context.Context, now time.Time, at Place, m Moves, before *Published) error {
	next, err := p.Policy.arrived(ctx, at, m, p.Descriptor.Digest)
	if next == nil || err != nil {
		return err
	}
	err = m.Copy(ctx, at, next, p.Descriptor.Digest)
	if err == nil {
		_, err = before.admits(ctx, now, next, p.Descriptor.Digest)
	}
	if err == nil {
		err = put(ctx, next, p.Descriptor, p.Manifest, artifacts.TrustTag(p.Index.Version), false)
	}
	if err != nil {
		return fmt.Errorf("move to %s: %w", next.Name(), err)
	}
	return nil
}

// settled reports whether the repository that b names for the version after it has b. Where it does not, or does not answer,
// devices go on asking where b is, and so that is where what is wrong can be put right.
func (b *Published) settled(ctx context.Context, m Moves) bool {
	next, err := openNext(ctx, m, b.Policy.Trust.Repository)
	if err != nil {
		return errors.Is(err, fault.ErrUnsupported)
	}
	there, err := next.Resolve(ctx, artifacts.TrustTag(b.Index.Version))
	return err == nil && there.Digest == b.Descriptor.Digest
}

// Successor reports what the repository that p names for the version after it has: the highest version, 0 when there is none.
// An error wraps ErrMissing when neither p nor the version before it can be there, so that devices would look in vain.
func (p *Policy) Successor(ctx context.Context, m Moves) (uint64, error) {
	next, err := openNext(ctx, m, p.Trust.Repository)
	if err != nil {
		return 0, err
	}
	all, _, err := versions(ctx, next)
	if err != nil {
		return 0, err
	}
	var newest uint64
	if len(all) > 0 {
		newest = all[len(all)-1]
	}
	if p.Version > newest+1 {
		err = fmt.Errorf("%strust.repository: %s has no version %d for version %d to follow: %w: %w", p.Trust.at, p.Trust.Repository, p.Version-1, p.Version, ErrMissing, fault.ErrRejected)
		return newest, fault.WithHint(err, "is the name right? Devices look there next. If the policy is to move there, publish it with: longshore trust push --move")
	}
	return newest, nil
}
