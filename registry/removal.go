package registry

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Removed is a manifest that was removed from a repository, with everything that is needed to restore it.
type Removed struct {
	repo      *Repository
	subject   kept
	tags      []string
	referrers []kept // its referrers, each before its own referrers
	legacy    map[string]kept
}

// Referrers is the number of manifests that were removed with it.
func (r *Removed) Referrers() int { return len(r.referrers) + len(r.legacy) }

// TagsOf lists the tags that name a manifest at the registry itself, without those that begin with sha256-, sorted. tags are those of the
// repository: of several manifests what all of them name is read once.
func (r *Repository) TagsOf(ctx context.Context, d digest.Digest, tags *TagList) ([]string, error) {
	all, err := tags.naming(ctx, d, func(ctx context.Context, tag string) (digest.Digest, error) {
		if strings.HasPrefix(tag, "sha256-") && !strings.HasSuffix(tag, ".att") && !strings.HasSuffix(tag, ".sbom") { // TagList.release needs only these of them
			return "", nil
		}
		return r.ResolveUpstream(ctx, tag)
	})
	return slices.DeleteFunc(all, func(tag string) bool { return strings.HasPrefix(tag, "sha256-") }), err
}

// RemoveWithReferrers removes a manifest with all tags that name it and everything that refers to it; tags are those of the repository, as
// for [Repository.TagsOf]. The registry's garbage collection removes blobs. A missing manifest is not an error. The result is also valid with
// an error; nil: nothing was removed.
func (r *Repository) RemoveWithReferrers(ctx context.Context, d digest.Digest, tags *TagList) (*Removed, error) {
	out := &Removed{repo: r, legacy: map[string]kept{}}
	desc, data, err := r.ManifestLimit(ctx, d, MaxForeignManifest)
	if errors.Is(err, fault.ErrNotFound) && !fault.Retryable(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	out.subject = kept{desc, data}
	if err := out.collect(ctx, desc, maxNested); err != nil {
		return nil, err
	}
	list, err := r.TagsOf(ctx, d, tags)
	if err != nil {
		return nil, err
	}
	for _, tag := range list {
		named, err := r.ResolveUpstream(ctx, tag) // it may have been moved meanwhile
		if err != nil {
			return nil, err
		}
		if named == d {
			out.tags = append(out.tags, tag)
		}
	}
	if err := out.collectTagged(ctx, d, tags, maxNested); err != nil {
		return nil, err
	}
	if err := r.RemoveManifest(ctx, d, out.tags...); err != nil {
		return out, err
	}
	_, err = r.RemoveReferrers(context.WithoutCancel(ctx), d, tags)
	return out, err
}

// collect reads the referrers of a manifest.
func (r *Removed) collect(ctx context.Context, subject ocispec.Descriptor, depth int) error {
	if depth == 0 {
		return nil
	}
	list, err := r.repo.Referrers(ctx, subject)
	if err != nil {
		return err
	}
	for _, d := range list {
		desc, data, err := r.repo.ManifestLimit(ctx, d.Digest, MaxForeignManifest)
		if errors.Is(err, fault.ErrNotFound) && !fault.Retryable(err) {
			continue
		}
		if err != nil {
			return err
		}
		if of, err := subjectOf(data); err != nil || of.Digest != subject.Digest {
			continue //nolint:nilerr // listed by mistake
		}
		r.referrers = append(r.referrers, kept{desc, data})
		if err := r.collect(ctx, desc, depth-1); err != nil {
			return err
		}
	}
	return nil
}

// collectTagged reads what older cosign's tags name of a manifest, with what refers to it.
func (r *Removed) collectTagged(ctx context.Context, subject digest.Digest, tags *TagList, depth int) error {
	if depth == 0 {
		return nil
	}
	for _, suffix := range legacyTags {
		tag := fallbackTag(subject) + suffix
		if !tags.tags[tag] {
			continue
		}
		named, err := r.repo.ResolveUpstream(ctx, tag)
		if err != nil {
			return err
		}
		if named == "" {
			continue
		}
		desc, data, err := r.repo.ManifestLimit(ctx, named, MaxForeignManifest)
		if err == nil {
			r.legacy[tag] = kept{desc, data}
			err = r.collect(ctx, desc, depth-1)
		}
		if err == nil {
			err = r.collectTagged(ctx, named, tags, depth-1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Restore restores the removed content, as long as the registry has not collected its blobs.
func (r *Removed) Restore(ctx context.Context) error {
	if err := r.repo.PushManifest(ctx, r.subject.desc, r.subject.data, ""); err != nil {
		return err
	}
	for _, one := range r.referrers {
		if err := r.repo.PushReferrer(ctx, one.desc, one.data); err != nil {
			return err
		}
	}
	for tag, one := range r.legacy {
		if err := r.repo.PushManifest(ctx, one.desc, one.data, tag); err != nil {
			return err
		}
	}
	for _, tag := range r.tags {
		if err := r.repo.PushManifest(ctx, r.subject.desc, r.subject.data, tag); err != nil {
			return err
		}
	}
	return nil
}
