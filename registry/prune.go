package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// RemoveReferrer removes a manifest from the referrers of its subject. A missing one is not an error; a registry without deletion
// is fault.ErrUnsupported, a caller without the right fault.ErrDenied.
//
// If the registry has no list of referrers itself, the manifest is only removed from the list under the fallback tag, because a
// list that another writer restores at the same moment must not name a deleted manifest. The registry's garbage collection removes
// it like all untagged manifests.
func (r *Repository) RemoveReferrer(ctx context.Context, subject ocispec.Descriptor, d digest.Digest) error {
	p, err := r.removable(d)
	if err == nil {
		err = checkDigest(subject.Digest)
	}
	if err == nil {
		err = p.removeReferrer(ctx, subject, d)
	}
	return r.fail("remove referrer", d.String(), err)
}

func (p *remotePlace) removeReferrer(ctx context.Context, subject ocispec.Descriptor, d digest.Digest) error {
	a := p.upstream()
	list, err := p.referrersByAPI(p.reading(ctx, a), a, subject.Digest)
	api := err == nil
	if err != nil && !errors.Is(err, errNoAPI) {
		return err
	}
	if err := p.dropFallback(p.writing(ctx), subject, d); err != nil {
		return err
	}
	if !api || !lists(list, d) {
		return nil
	}
	return p.remove(ctx, d.String())
}

// dropFallback removes an entry from the list under the fallback tag, if it is there.
func (p *remotePlace) dropFallback(ctx context.Context, subject ocispec.Descriptor, d digest.Digest) error {
	tag := fallbackTag(subject.Digest)
	unlock, err := p.c.tags.Lock(ctx, p.host+"/"+p.name+":"+tag)
	if err != nil {
		return err
	}
	defer unlock()
	for range mergeRounds {
		desc, data, err := p.manifestAt(ctx, p.upstream(), tag, maxIndex)
		e, err := fallbackEntries(desc, data, err, subject.Digest)
		if err != nil || !lists(e.list, d) {
			return err
		}
		index, data, err := referrersIndex(slices.DeleteFunc(e.list, func(o ocispec.Descriptor) bool { return o.Digest == d }))
		if err != nil {
			return err
		}
		if err := p.setTag(ctx, index, data, tag, &desc.Digest); !errors.Is(err, ErrMoved) {
			return err
		}
	}
	return errRewritten
}

// remove deletes a manifest by its digest, or a tag. A missing one is not an error.
func (p *remotePlace) remove(ctx context.Context, target string) error {
	a := p.upstream()
	ctx = auth.AppendRepositoryScope(ctx, a.repo.Reference, auth.ActionPull, auth.ActionPush, auth.ActionDelete)
	resp, err := a.call(ctx, http.MethodDelete, "manifests/"+target, nil, nil)
	switch statusOf(err) {
	case http.StatusNotFound:
		return nil
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return fault.WithHint(fmt.Errorf("%w: %v", fault.ErrUnsupported, err), "the registry does not allow deletion by its API: allow it there, or use its own retention rules")
	}
	if errors.Is(err, fault.ErrConflict) {
		return fault.WithHint(err, "its tags are immutable: exempt those that may be removed, or clean up by the registry's own rules")
	}
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// RemoveManifest removes a manifest from the repository, and then those of tags that still exist, because not all registries
// remove tags with their manifest. A missing one is not an error. A registry without deletion is fault.ErrUnsupported, a
// missing right fault.ErrDenied, immutable tags fault.ErrConflict. The registry's garbage collection removes
// blobs. Every other tag of the manifest may be removed as well.
func (r *Repository) RemoveManifest(ctx context.Context, d digest.Digest, tags ...string) error {
	p, err := r.removable(d)
	if err == nil {
		err = p.remove(ctx, d.String())
	}
	for _, t := range tags {
		if err == nil {
			err = p.removeTag(ctx, t, d)
		}
	}
	return r.fail("remove", d.String(), err)
}

// removeTag removes a tag that names d, unless it was removed with the manifest.
func (p *remotePlace) removeTag(ctx context.Context, tag string, d digest.Digest) error {
	err := p.remove(ctx, tag)
	if !errors.Is(err, fault.ErrUnsupported) && !errors.Is(err, fault.ErrInvalid) {
		return err
	}
	a := p.upstream()
	there, lookErr := p.resolveAt(p.reading(ctx, a), a, tag) // some registries delete no tags
	if lookErr == nil && there.Digest == d {
		return err
	}
	return nil
}

// removable returns the place from which d may be removed.
func (r *Repository) removable(d digest.Digest) (*remotePlace, error) {
	p, ok := r.place.(*remotePlace)
	if !ok {
		return nil, fmt.Errorf("a layout keeps what is in it: %w", fault.ErrUnsupported)
	}
	return p, checkDigest(d)
}

// Depth of referrers of referrers, and suffixes of older cosign's tags. A signature is of one subject. An attestation may be about
// several, and an SBOM does not name its subject: other tags may name the same one.
const maxNested = 4

const signatureTag = ".sig"

var legacyTags = []string{signatureTag, ".att", ".sbom"}

// RemoveReferrers removes everything that refers to a digest, which itself may be removed already: signatures, attestations,
// statements, and their referrers; the list under the fallback tag, and artifacts under cosign's older tags. tags are
// those of the repository; nil: they are listed. It returns how many manifests were removed; errors are as of
// RemoveManifest.
func (r *Repository) RemoveReferrers(ctx context.Context, subject digest.Digest, tags *TagList) (int, error) {
	p, err := r.removable(subject)
	n := 0
	if err == nil && tags == nil {
		var list []string
		list, err = r.Tags(ctx)
		tags = NewTagList(list)
	}
	if err == nil {
		n, err = p.removeReferrers(ctx, subject, tags, maxNested)
	}
	return n, r.fail("remove referrers of", subject.String(), err)
}

func (p *remotePlace) removeReferrers(ctx context.Context, subject digest.Digest, tags *TagList, depth int) (n int, err error) {
	a := p.upstream()
	list, err := p.referrersAt(p.reading(ctx, a), a, ocispec.Descriptor{Digest: subject})
	if err != nil {
		return 0, err
	}
	for _, d := range list {
		_, data, err := p.manifestAt(p.reading(ctx, a), a, d.Digest.String(), MaxForeignManifest)
		if errors.Is(err, fault.ErrNotFound) {
			continue
		}
		if err != nil {
			return n, err
		}
		if of, err := subjectOf(data); err != nil || of.Digest != subject {
			continue // listed by mistake: it may have another subject
		}
		if depth > 1 {
			more, err := p.removeReferrers(ctx, d.Digest, tags, depth-1)
			if n += more; err != nil {
				return n, err
			}
		}
		if err := p.remove(ctx, d.Digest.String()); err != nil {
			return n, err
		}
		n++
	}
	fallback := fallbackTag(subject)
	for _, suffix := range append([]string{""}, legacyTags...) {
		tag := fallback + suffix
		if !tags.tags[tag] {
			continue
		}
		there, err := p.resolveAt(p.reading(ctx, a), a, tag)
		if errors.Is(err, fault.ErrNotFound) || err == nil && there.Digest == subject {
			continue
		}
		shared := false
		if err == nil && suffix != "" && suffix != signatureTag {
			shared, err = p.release(ctx, there.Digest, tag, tags)
		}
		if shared && err == nil {
			continue
		}
		if err == nil && suffix != "" && depth > 1 { // such as the signature of an attestation
			var more int
			more, err = p.removeReferrers(ctx, there.Digest, tags, depth-1)
			n += more
		}
		if err == nil {
			err = p.remove(ctx, there.Digest.String())
		}
		if err == nil {
			err = p.removeTag(ctx, tag, there.Digest)
		}
		if err != nil {
			return n, err
		}
		if suffix != "" {
			n++
		}
	}
	return n, nil
}

// release reports whether an attestation or SBOM is also of something else: another tag names it, or it refers to a manifest by itself.
// Then it removes the tag alone.
func (p *remotePlace) release(ctx context.Context, d digest.Digest, tag string, tags *TagList) (bool, error) {
	a := p.upstream()
	drop := func() error {
		err := p.remove(ctx, tag)
		if errors.Is(err, fault.ErrUnsupported) || errors.Is(err, fault.ErrInvalid) { // some registries delete no tags
			return nil
		}
		return err
	}
	_, data, err := p.manifestAt(p.reading(ctx, a), a, d.String(), MaxForeignManifest)
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		return false, err
	}
	if _, err := subjectOf(data); err == nil {
		return true, drop()
	}
	return tags.release(ctx, d, tag, func(ctx context.Context, other string) (digest.Digest, error) {
		if strings.HasSuffix(other, signatureTag) {
			return "", nil
		}
		there, err := p.resolveAt(p.reading(ctx, a), a, other)
		return there.Digest, err
	}, drop)
}

// Upstream is the same repository at the registry itself, without its mirrors, which may be outdated.
func (r *Repository) Upstream() *Repository {
	p, ok := r.place.(*remotePlace)
	if !ok || len(p.at) == 1 {
		return r
	}
	return &Repository{ref: r.ref, concurrency: r.concurrency, place: &remotePlace{
		c: p.c, host: p.host, name: p.name, at: p.at[len(p.at)-1:], tagged: map[string]entityTag{},
	}}
}
