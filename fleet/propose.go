package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/release"
)

// proposed finds the proposal that One.Proposal asks for, makes it the next generation, and reads its deployments. It is one
// that follows the newest generation, or the newest generation itself: its publication may have been interrupted.
func (x *onePlan) proposed(ctx context.Context, from Registries) ([]artifacts.Deployment, error) {
	tag := x.one.Device.Tag()
	n, err := x.proposalNumber(ctx, from, tag)
	if err != nil {
		return nil, err
	}
	at := artifacts.ProposalTag(tag, n)
	there, err := from.Resolve(ctx, x.a.Repository, at)
	if err != nil {
		return nil, err
	}
	if x.one.Digest != "" && x.one.Digest != there.Digest {
		return nil, fault.WithHint(fmt.Errorf("%s:%s is %s now, and not %s: %w", x.a.Repository, at, there.Digest, x.one.Digest, fault.ErrConflict),
			"look at what is proposed now: longshore state proposals "+x.a.Repository)
	}
	p, err := x.read(ctx, x.a, there.Digest)
	if err != nil {
		return nil, err
	}
	newest := x.s.Current != nil && x.s.Current.Digest == p.digest
	switch {
	case p.index.Generation != n:
		return nil, fmt.Errorf("%s:%s is generation %d: %w", x.a.Repository, at, p.index.Generation, fault.ErrConflict)
	case !newest && (n <= x.s.Number() || p.index.Previous != x.s.base.is()):
		return nil, x.overtaken(p)
	}
	if !newest && n > x.s.Next { // the proposal chooses the number, and devices accept nothing below it afterwards
		x.notes = append(x.notes, fmt.Sprintf("it is generation %d, although %d is the next one: devices never take the numbers between again", n, x.s.Next))
	}
	x.proposal = p
	return x.deployments(ctx, x.a, p)
}

// proposalNumber is the generation of the proposal: of the digest that is asked for, of the only one above the newest
// generation, or the newest generation.
func (x *onePlan) proposalNumber(ctx context.Context, from Registries, tag string) (uint64, error) {
	if x.one.Digest != "" {
		p, err := x.read(ctx, x.a, x.one.Digest)
		if err != nil {
			return 0, err
		}
		return p.index.Generation, nil
	}
	tags, err := from.TagsWithPrefix(ctx, x.a.Repository, tag+".v")
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		return 0, err
	}
	var open []uint64
	newest := false
	for _, n := range release.Proposals(tags)[tag] {
		if n > x.s.Number() {
			open = append(open, n)
		}
		newest = newest || n == x.s.Number()
	}
	switch {
	case len(open) == 1:
		return open[0], nil
	case len(open) > 1:
		return 0, fault.WithHint(fmt.Errorf("%s: generations %s are proposed: %w", x.one.Device, strings.Trim(fmt.Sprint(open), "[]"), fault.ErrConflict),
			"say which one by its digest, "+x.a.Repository+"@sha256:…; longshore state proposals lists them")
	case newest:
		return x.s.Number(), nil
	}
	return 0, fault.WithHint(fmt.Errorf("nothing is proposed for %s in %s: %w", x.one.Device, x.a.Repository, fault.ErrNotFound),
		"propose a state with: longshore state push --propose")
}

// overtaken refuses a proposal that does not follow the newest generation.
func (x *onePlan) overtaken(p *published) error {
	return fault.WithHint(fmt.Errorf("generation %d of %s was proposed as %s, and generation %d has been published since, which it does not follow: %w",
		p.index.Generation, x.one.Device, p.digest, x.s.Number(), fault.ErrConflict),
		"propose it again with longshore state push: the signatures of the old proposal do not count")
}

// adopt makes the proposal the published artifact.
func (x *onePlan) adopt(n *Next) {
	p := x.proposal
	n.Action, n.Generation, n.Previous, n.Digest, n.Repeats = Publish, p.index.Generation, p.index.Previous, p.digest, p.index.Repeats
	n.Expires, n.Content = p.index.Expires, artifacts.WithoutOrigin(p.manifest)
	n.artifact = &artifacts.Artifact{
		Descriptor: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, ArtifactType: artifacts.TypeState, Digest: p.digest, Size: int64(len(p.manifest))},
		Manifest:   p.manifest,
	}
}
