package release

import (
	"context"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
)

// ErrProposed: another artifact waits for signatures under the tag.
var ErrProposed = fmt.Errorf("is proposed already: %w", fault.ErrConflict)

// Propose pushes an artifact for others to sign: blobs, manifest, the signature of o.Signer if there is one, and last a tag of
// proposals. That tag protects the artifact from the registry's garbage collection, and others find it there. Devices do not read
// it: the tags of o are not set. [Publish] of the same artifact sets them when enough signers have signed.
//
// Another proposal under the tag is ErrProposed, unless replace is true. Propose may be repeated after any interruption.
func Propose(ctx context.Context, repo *registry.Repository, a *artifacts.Artifact, tag string, replace bool, o PublishOptions) (ocispec.Descriptor, error) {
	repo = repo.Upstream()
	desc := ocispec.Descriptor{MediaType: a.Descriptor.MediaType, Digest: a.Descriptor.Digest, Size: a.Descriptor.Size}
	if !registry.ValidTag(tag) {
		return desc, fmt.Errorf("propose %s:%s: no tag: %w", repo.Name(), tag, fault.ErrInvalid)
	}
	was, err := repo.ResolveUpstream(ctx, tag)
	if err == nil && was != "" && was != desc.Digest && !replace {
		err = Taken(repo.Name(), tag, was)
	}
	p := &publication{repo: repo, desc: desc, manifest: a.Manifest, o: o}
	p.o.Precondition = nil // it is not published yet, and others may have signed it before
	if err == nil {
		err = p.push(ctx, a, false)
	}
	if err == nil {
		err = p.readBack(ctx)
	}
	if err == nil {
		err = repo.CompareAndSetTag(ctx, desc, a.Manifest, tag, was)
	}
	return desc, err
}

// Taken is the error about another proposal under a tag. It wraps ErrProposed.
func Taken(repository, tag string, there digest.Digest) error {
	return fault.WithHint(fmt.Errorf("%s:%s (%s) %w", repository, tag, there, ErrProposed),
		"look at it with longshore state show, and sign it, or put yours in its place with --replace-proposal")
}

// Proposals are the numbers of proposed generations among tags, by the moving tag, the newest first.
func Proposals(tags []string) map[string][]uint64 {
	var histories []string
	for _, t := range tags {
		if h, ok := artifacts.CutProposal(t); ok {
			histories = append(histories, h)
		}
	}
	return Generations(histories)
}
