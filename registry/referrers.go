package registry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

const (
	maxReferrers     = 4096 // of one subject; a device reads few
	maxReferrerPages = 64
	maxIndex         = 4 << 20  // bytes of one page of a list, or of a fallback index: the limit of registries
	maxInline        = 32 << 10 // of a fallback index with the manifests in it: one keyless signature, or several with keys

	// Writing the fallback index races with other writers and no registry offers a compare-and-swap. Each round reads,
	// merges, writes, waits as [Repository.CompareAndSetTag] does and reads again: a writer that read before our write has written by then,
	// and a writer whose entry is missing repeats.
	mergeRounds   = 12
	listingRounds = 8 // for a registry with the API that updates its list with a delay
)

// errMore: the response of a mirror is not sufficient.
var errMore = fmt.Errorf("the mirror does not have enough of it: %w", fault.ErrNotFound)

// referrers returns the first list that is not empty; only the registry itself can confirm that there are none.
func (p *remotePlace) referrers(ctx context.Context, subject ocispec.Descriptor) (list []ocispec.Descriptor, err error) {
	err = p.each(ctx, pulls, func(ctx context.Context, a *access) (err error) {
		list, err = p.referrersAt(ctx, a, subject)
		if a.mirror && len(list) == 0 {
			return cmp.Or(err, errMore)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

func (p *remotePlace) eachReferrers(ctx context.Context, subject ocispec.Descriptor, enough func([]ocispec.Descriptor) bool) error {
	return p.each(ctx, pulls, func(ctx context.Context, a *access) error {
		done := false
		ask := func(list []ocispec.Descriptor) bool {
			done = enough(list)
			return done
		}
		var err error
		if p.snap == nil {
			err = p.referrersUntil(ctx, a, subject.Digest, ask)
		} else { // what it has read is known
			var list []ocispec.Descriptor
			if list, err = p.referrersAt(ctx, a, subject); err == nil {
				ask(list)
			}
		}
		if err == nil && a.mirror && !done {
			return errMore
		}
		return err
	})
}

func (p *remotePlace) eachResolve(ctx context.Context, tag string, enough func(ocispec.Descriptor) bool) error {
	return p.each(ctx, resolves, func(ctx context.Context, a *access) error {
		desc, err := p.resolveAt(ctx, a, tag)
		if err == nil && !enough(desc) && a.mirror {
			return errMore
		}
		return err
	})
}

// referrersAt returns the entries of the API and of the fallback tag: entries from before a registry supported the API, or by a client
// without support for it, are only under the tag, and may include the only valid signature. At a mirror that may not resolve tags only
// the API is used.
func (p *remotePlace) referrersAt(ctx context.Context, a *access, subject ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	return p.snap.list(subject.Digest, func() (all []ocispec.Descriptor, err error) {
		err = p.referrersUntil(ctx, a, subject.Digest, func(list []ocispec.Descriptor) bool {
			all = list
			return false
		})
		for i := range all {
			all[i].Data = nil // a snapshot keeps manifests only once
		}
		return all, err
	})
}

// referrersUntil gives enough the entries of the API, then with them those of the fallback tag, until it reports true: most registries have
// all entries in one of the two. The tag is first at a registry without the API. enough is called at least once, and again only for more
// entries.
func (p *remotePlace) referrersUntil(ctx context.Context, a *access, subject digest.Digest, enough func([]ocispec.Descriptor) bool) error {
	api := func() (list []ocispec.Descriptor, err error) {
		err = p.snap.askAPI(func() (err error) {
			list, err = p.referrersByAPI(ctx, a, subject)
			return err
		})
		if a.lacksAPI.Store(errors.Is(err, errNoAPI)); errors.Is(err, errNoAPI) {
			return nil, nil
		}
		return list, err
	}
	tag := func() ([]ocispec.Descriptor, error) {
		if !a.resolve || !p.snap.mayHave(fallbackTag(subject)) {
			return nil, nil
		}
		return p.referrersByTag(ctx, a, subject)
	}
	sources := []func() ([]ocispec.Descriptor, error){api, tag}
	if a.lacksAPI.Load() {
		slices.Reverse(sources)
	}
	var list []ocispec.Descriptor
	asked := -1 // entries that enough was called with
	for i, read := range sources {
		more, err := read()
		if err != nil {
			return err
		}
		for _, d := range more {
			if !lists(list, d.Digest) {
				list = append(list, d)
			}
		}
		if last := i == len(sources)-1; len(list) > max(asked, 0) || last && asked < 0 {
			if asked = len(list); enough(slices.Clone(list)) {
				return nil
			}
		}
	}
	return nil
}

// referrersByAPI queries only the API; errNoAPI if there is none.
func (p *remotePlace) referrersByAPI(ctx context.Context, a *access, subject digest.Digest) ([]ocispec.Descriptor, error) {
	var out []ocispec.Descriptor
	err := a.repo.Referrers(listing(ctx, listReferrers), ocispec.Descriptor{Digest: subject}, "", func(page []ocispec.Descriptor) error {
		if out = append(out, page...); len(out) > maxReferrers {
			return fmt.Errorf("more than %d referrers: %w", maxReferrers, fault.ErrTooLarge)
		}
		return nil
	})
	switch statusOf(err) {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusBadRequest, http.StatusNotAcceptable:
		return nil, errNoAPI
	}
	if err != nil {
		return nil, a.answer(ctx, err)
	}
	return out, nil
}

// unfetchable reports whether an entry of a list cannot be fetched.
func unfetchable(d ocispec.Descriptor) bool {
	return checkDescriptor(d) != nil || d.Size > MaxForeignManifest
}

// readAtMost reads and closes a body.
func readAtMost(resp *http.Response, limit int64) ([]byte, error) {
	defer resp.Body.Close()
	data, err := bounded.Read(resp.Body, limit)
	if err != nil {
		return nil, broken(err)
	}
	return data, nil
}

// referrerEntries are the fetchable entries of an index of referrers.
type referrerEntries struct {
	list    []ocispec.Descriptor
	raw     [][]byte // of list, as they arrived
	skipped int      // entries that were left out
}

// parseReferrers reads an index of referrers. Malformed entries are left out: anyone with push rights can add one, and it
// must not hide the signatures of others.
func parseReferrers(data []byte) (e referrerEntries, err error) {
	var index struct {
		Manifests []json.RawMessage `json:"manifests"`
	}
	if err := json.Unmarshal(data, &index); err != nil {
		return e, errNoList
	}
	if len(index.Manifests) > maxReferrers {
		return e, fmt.Errorf("more than %d referrers: %w", maxReferrers, fault.ErrTooLarge)
	}
	for _, raw := range index.Manifests {
		var d ocispec.Descriptor
		if json.Unmarshal(raw, &d) != nil || unfetchable(d) {
			e.skipped++
			continue
		}
		e.list, e.raw = append(e.list, d), append(e.raw, raw)
	}
	return e, nil
}

// fallbackTag is the tag of the list of referrers without the API: the digest with "-" for ":", shortened as specified.
func fallbackTag(d digest.Digest) string {
	algorithm, encoded := d.Algorithm().String(), d.Encoded()
	return algorithm[:min(len(algorithm), 32)] + "-" + encoded[:min(len(encoded), 64)]
}

func (p *remotePlace) referrersByTag(ctx context.Context, a *access, subject digest.Digest) ([]ocispec.Descriptor, error) {
	desc, data, err := p.manifestAt(ctx, a, fallbackTag(subject), maxIndex)
	e, err := fallbackEntries(desc, data, err, subject)
	a.logSkipped(ctx, e.skipped)
	return e.list, err
}

// fallbackEntries returns none for a missing tag, also if the tag does not name a list: cosign's copy stores the
// image itself there, and some registries answer with the subject.
func fallbackEntries(desc ocispec.Descriptor, data []byte, err error, subject digest.Digest) (referrerEntries, error) {
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return referrerEntries{}, nil
	case err != nil:
		return referrerEntries{}, err
	case desc.MediaType != ocispec.MediaTypeImageIndex, desc.Digest == subject:
		return referrerEntries{}, nil
	}
	return parseReferrers(data)
}

// pushReferrer puts the manifest and returns when it is listed.
func (p *remotePlace) pushReferrer(ctx context.Context, subject, desc ocispec.Descriptor, data []byte) error {
	ctx = p.writing(ctx)
	a := p.upstream()
	defer p.snap.forget(subject.Digest)
	header, err := p.putManifest(ctx, desc, data, desc.Digest.String())
	if err != nil {
		return err
	}
	known := header.Get("OCI-Subject") == subject.Digest.String()
	if !known && p.noAPI.Load() { // true a moment ago; readers check each time
		return p.mergeFallback(ctx, subject, desc, data)
	}
	for round := range listingRounds {
		list, err := p.referrersByAPI(ctx, a, subject.Digest)
		if errors.Is(err, errNoAPI) {
			p.noAPI.Store(!known)
			return p.mergeFallback(ctx, subject, desc, data)
		}
		if err != nil {
			return err
		}
		if lists(list, desc.Digest) {
			return nil
		}
		if !known && round == listingRounds/2 {
			// The registry answers like one with the API but did not confirm the entry; the tag works with every client.
			return p.mergeFallback(ctx, subject, desc, data)
		}
		if err := delay.For(ctx, wire.Backoff(round)/2); err != nil {
			return err
		}
	}
	return fmt.Errorf("the registry took the manifest and does not list it among the subject's referrers: %w", fault.ErrTemporary)
}

func lists(list []ocispec.Descriptor, d digest.Digest) bool {
	return slices.ContainsFunc(list, func(one ocispec.Descriptor) bool { return one.Digest == d })
}

// listed is the entry of a referrer in a list: with its artifact type and annotations, as specified.
func listed(desc ocispec.Descriptor, data []byte) ocispec.Descriptor {
	var m struct {
		ArtifactType string `json:"artifactType"`
		Config       struct {
			MediaType string `json:"mediaType"`
		} `json:"config"`
		Annotations map[string]string `json:"annotations"`
	}
	_ = json.Unmarshal(data, &m) // subjectOf has read it before
	return ocispec.Descriptor{
		MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size,
		ArtifactType: cmp.Or(m.ArtifactType, m.Config.MediaType), Annotations: m.Annotations,
	}
}

// mergeFallback adds a manifest to the list under the fallback tag, and returns after it has read it back a moment later.
// Nothing is deleted: the registry's garbage collection removes replaced lists, and deletion needs a separate right.
func (p *remotePlace) mergeFallback(ctx context.Context, subject, desc ocispec.Descriptor, manifest []byte) error {
	tag, entry := fallbackTag(subject.Digest), listed(desc, manifest)
	entry.Data = manifest
	unlock, err := p.c.tags.Lock(ctx, p.host+"/"+p.name+":"+tag)
	if err != nil {
		return err
	}
	defer unlock()
	a, seen := p.upstream(), 0
	for round := range mergeRounds {
		desc, data, err := p.manifestAt(ctx, a, tag, maxIndex)
		e, err := fallbackEntries(desc, data, err, subject.Digest)
		list := e.list
		if err != nil {
			return err
		}
		if lists(list, entry.Digest) {
			// On a new list one check is enough; with other writers there are two.
			if seen++; (round > 0 && len(list) == 1) || seen == 2 {
				return nil
			}
		} else {
			if seen = 0; len(list) >= maxReferrers {
				return fmt.Errorf("%d referrers already: %w", len(list), fault.ErrTooLarge)
			}
			index, data, err := referrersIndex(append(list, entry))
			if err != nil {
				return err
			}
			if err := p.setTag(ctx, index, data, tag, &desc.Digest); err != nil && !errors.Is(err, ErrMoved) {
				if fault.Retryable(err) || errors.Is(err, fault.ErrUnauthenticated) {
					return err
				}
				return fault.WithHint(err, "tags that begin with sha256- have to stay mutable on a registry without the referrers API")
			}
		}
		if err := p.waitForRival(ctx, round); err != nil {
			return err
		}
	}
	return errRewritten
}

var errRewritten = fmt.Errorf("the list of referrers is rewritten by others all the time: %w", fault.ErrTemporary)

// referrersIndex is the index of a list. It has the manifests in their descriptors, so that a reader needs no further request, unless it becomes
// larger than maxInline.
func referrersIndex(list []ocispec.Descriptor) (ocispec.Descriptor, []byte, error) {
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: list}
	data, err := json.Marshal(index)
	if len(data) > maxInline {
		for i := range list {
			list[i].Data = nil
		}
		data, err = json.Marshal(index)
	}
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	if len(data) > maxIndex {
		return ocispec.Descriptor{}, nil, fmt.Errorf("a list of %d bytes: %w", len(data), fault.ErrTooLarge)
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromBytes(data), Size: int64(len(data))}, data, nil
}

// subjectOf reads the subject of a referrer.
func subjectOf(manifest []byte) (ocispec.Descriptor, error) {
	var m struct {
		Subject *ocispec.Descriptor `json:"subject"`
	}
	if err := json.Unmarshal(manifest, &m); err != nil {
		return ocispec.Descriptor{}, fmt.Errorf("a manifest that is not JSON: %w", fault.ErrInvalid)
	}
	if m.Subject == nil {
		return ocispec.Descriptor{}, fmt.Errorf("a manifest without a subject: %w", fault.ErrInvalid)
	}
	return *m.Subject, checkDescriptor(*m.Subject)
}
