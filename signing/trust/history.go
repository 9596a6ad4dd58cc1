package trust

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Past is one version of a policy as a repository has it, and whether a device would have gone on to it.
type Past struct {
	Version  uint64
	Tag      string
	Digest   digest.Digest // "": it could not be read
	Proposal bool          // not published
	Policy   *Policy       // nil: it could not be read
	Changes  []string      // against the version before, as [Difference] says them
	Created  time.Time     // as it says itself; zero: not told
	Revision string        // of its source files, by its annotation; "": unknown
	Old, New *Tally        // nil: there are no signers to be asked
	Err      error         // why a device does not take it; nil of a proposal that only lacks signatures
}

// History goes through the chain of a repository as a device does: each version must follow the one before. The first one
// that is there is believed to be what devices were given by hand; anchor, if not nil, is that policy in its place. At the
// end is what is proposed. An error says that the repository could not be read; what is wrong with one version is in its Err.
func History(ctx context.Context, now time.Time, at Place, anchor *Policy) ([]Past, error) {
	all, proposals, err := versions(ctx, at)
	if err != nil {
		return nil, err
	}
	var out []Past
	before := anchor
	for _, v := range all {
		if anchor != nil && v <= anchor.Version {
			continue
		}
		p := Past{Version: v, Tag: artifacts.TrustTag(v)}
		if err := p.look(ctx, now, at, before); err != nil {
			return out, err
		}
		if p.Err == nil {
			before = p.Policy
		}
		out = append(out, p)
	}
	if n := len(proposals); n > 0 && (before == nil || proposals[n-1] == before.Version+1) && !slices.Contains(all, proposals[n-1]) {
		p := Past{Version: proposals[n-1], Tag: artifacts.TrustProposalTag(proposals[n-1]), Proposal: true}
		if err := p.look(ctx, now, at, before); err != nil {
			return out, err
		}
		out = append(out, p)
	}
	return out, nil
}

// Signed is when the newest of the signatures that count was made, as its signer says; zero: none says.
func (p *Past) Signed() (at time.Time) {
	for _, t := range []*Tally{p.Old, p.New} {
		if t == nil {
			continue
		}
		for _, s := range t.Signers {
			if s.State == StateCounted && s.Signatures[0].Time.After(at) {
				at = s.Signatures[0].Time
			}
		}
	}
	return at
}

// look reads one version; its error is that of the repository, not of the version.
func (p *Past) look(ctx context.Context, now time.Time, at Place, before *Policy) error {
	d, err := at.Resolve(ctx, p.Tag)
	if err != nil {
		return err
	}
	p.Digest = d.Digest
	c, err := Fetch(ctx, at, d.Digest)
	if err == nil {
		p.Policy, err = c.Parse()
		if t, wrong := time.Parse(time.RFC3339, c.Index.Annotations[ocispec.AnnotationCreated]); wrong == nil {
			p.Created = t.UTC()
		}
		p.Revision = c.Index.Annotations[ocispec.AnnotationRevision]
	}
	if err == nil {
		p.Changes = Difference(before, p.Policy)
	}
	lacking := false
	if err == nil && p.Policy.Trust != nil {
		p.New = p.Policy.Endorsements(ctx, now, at, c.Descriptor)
		lacking = !p.New.Holds()
	}
	if err == nil && before != nil && before.Trust != nil {
		p.Old = before.Endorsements(ctx, now, at, c.Descriptor)
		lacking = lacking || !p.Old.Holds()
	}
	if err == nil && !(p.Proposal && lacking) {
		if before != nil {
			_, err = before.Follow(ctx, now, at, d.Digest)
		} else {
			_, err = Begin(ctx, now, at, d.Digest)
		}
	}
	if errors.Is(err, fault.ErrTemporary) || ctx.Err() != nil {
		return err
	}
	p.Err = err
	return nil
}

// Former reads the version before p in the same repository; nil: it is not there.
func (p *Published) Former(ctx context.Context, at Place) (*Published, error) {
	if p.Index.Version < 2 {
		return nil, nil
	}
	former, err := published(ctx, at, p.Index.Version-1)
	if errors.Is(err, fault.ErrNotFound) {
		return nil, nil
	}
	return former, err
}

// Look reads the policy under a tag or a digest: "" is the newest that is published, else the newest that is proposed.
func Look(ctx context.Context, at Place, target string) (*Published, error) {
	if target == "" {
		all, proposals, err := versions(ctx, at)
		switch {
		case err != nil:
			return nil, err
		case len(all) > 0:
			target = artifacts.TrustTag(all[len(all)-1])
		case len(proposals) > 0:
			target = artifacts.TrustProposalTag(proposals[len(proposals)-1])
		default:
			return nil, fmt.Errorf("%s: no trust policy is there: %w", at.Name(), fault.ErrNotFound)
		}
	}
	return open(ctx, at, target)
}
