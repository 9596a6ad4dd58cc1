package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"time"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

const (
	maxReferrers     = 4096 // of one subject; a device reads a handful
	maxReferrerPages = 64
	maxIndex         = 4 << 20 // what registries accept for a fallback index

	// Writing the fallback index races with other writers and no registry offers a compare-and-swap. Each round reads,
	// merges, writes, waits a moment and reads again: whoever read before our write has written by then, and who lost
	// repeats. The wait has to be longer than the other's time between reading and writing.
	mergeRounds   = 12
	mergeWait     = 120 * time.Millisecond
	listingRounds = 8 // of a registry with the API that lists a moment later
)

// referrers asks for the list at each place. A mirror's list counts when there is something in it; that there is nothing
// only the registry itself can say.
func (p *remotePlace) referrers(ctx context.Context, subject ocispec.Descriptor) (list []ocispec.Descriptor, err error) {
	err = p.each(ctx, pulls, func(ctx context.Context, a *access) error {
		var err error
		list, err = p.referrersAt(ctx, a, subject)
		if err == nil && len(list) == 0 && a.mirror {
			return fault.ErrNotFound
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// referrersAt asks the API and reads the fallback tag, and gives what either lists: what was written before a registry
// learned the API, or by a client that does not know it, stays under the tag alone, and may be the one good signature.
func (p *remotePlace) referrersAt(ctx context.Context, a *access, subject ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	list, err := p.referrersByAPI(ctx, a, subject.Digest)
	if err != nil && !errors.Is(err, errNoAPI) {
		return nil, err
	}
	more, err := p.referrersByTag(ctx, a, subject.Digest)
	if err != nil {
		return nil, err
	}
	for _, d := range more {
		if !lists(list, d.Digest) {
			list = append(list, d)
		}
	}
	return list, nil
}

// errNoAPI: the registry answered, and does not know the referrers API.
var errNoAPI = errors.New("no referrers API")

func (p *remotePlace) referrersByAPI(ctx context.Context, a *access, subject digest.Digest) ([]ocispec.Descriptor, error) {
	var (
		out  []ocispec.Descriptor
		next *url.URL
	)
	for range maxReferrerPages {
		resp, err := a.do(ctx, request{
			method: http.MethodGet, suffix: p.name + "/referrers/" + subject.String(), page: next,
			header: http.Header{"Accept": {ocispec.MediaTypeImageIndex}},
		})
		if err != nil {
			switch statusOf(err) {
			case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusBadRequest, http.StatusNotAcceptable:
				return nil, errNoAPI
			}
			return nil, err
		}
		data, err := readAtMost(resp, maxIndex)
		if err != nil {
			return nil, err
		}
		if mediaType(resp) != ocispec.MediaTypeImageIndex {
			return nil, errNoAPI
		}
		page, err := parseReferrers(data)
		if err != nil {
			return nil, err
		}
		if out = append(out, page...); len(out) > maxReferrers {
			return nil, fmt.Errorf("more than %d referrers: %w", maxReferrers, fault.ErrTooLarge)
		}
		var more bool
		if next, more = wire.Next(resp); !more {
			return out, nil
		}
	}
	return nil, fmt.Errorf("more than %d pages of referrers: %w", maxReferrerPages, fault.ErrTooLarge)
}

// readAtMost reads and closes a body.
func readAtMost(resp *http.Response, limit int64) ([]byte, error) {
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	if err != nil {
		return nil, broken(err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("more than %d bytes: %w", limit, fault.ErrTooLarge)
	}
	return data, nil
}

// parseReferrers reads an index of referrers. Entries that name nothing fetchable are left out: one bad entry may not hide
// another's signature.
func parseReferrers(data []byte) ([]ocispec.Descriptor, error) {
	var index struct {
		Manifests []json.RawMessage `json:"manifests"`
	}
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, fmt.Errorf("a list of referrers that is not JSON: %w", fault.ErrInvalid)
	}
	if len(index.Manifests) > maxReferrers {
		return nil, fmt.Errorf("more than %d referrers: %w", maxReferrers, fault.ErrTooLarge)
	}
	var out []ocispec.Descriptor
	for _, raw := range index.Manifests {
		var d ocispec.Descriptor
		if json.Unmarshal(raw, &d) == nil && checkDescriptor(d) == nil && d.Size <= MaxForeignManifest {
			out = append(out, d)
		}
	}
	return out, nil
}

// fallbackTag is where referrers are listed without the API: the digest with "-" for ":", shortened as specified.
func fallbackTag(d digest.Digest) string {
	algorithm, encoded := d.Algorithm().String(), d.Encoded()
	return algorithm[:min(len(algorithm), 32)] + "-" + encoded[:min(len(encoded), 64)]
}

func (p *remotePlace) referrersByTag(ctx context.Context, a *access, subject digest.Digest) ([]ocispec.Descriptor, error) {
	desc, data, err := p.manifestAt(ctx, a, fallbackTag(subject), maxIndex)
	return fallbackList(desc, data, err, subject)
}

// fallbackList takes "nothing there" for none, also when the tag names something else than a list: cosign's copy puts the
// image itself there, and some registries answer with the subject.
func fallbackList(desc ocispec.Descriptor, data []byte, err error, subject digest.Digest) ([]ocispec.Descriptor, error) {
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case desc.MediaType != ocispec.MediaTypeImageIndex, desc.Digest == subject:
		return nil, nil
	}
	return parseReferrers(data)
}

// pushReferrer puts the manifest and returns when it is listed.
func (p *remotePlace) pushReferrer(ctx context.Context, subject, desc ocispec.Descriptor, data []byte) error {
	ctx = p.writing(ctx)
	a := p.upstream()
	header, err := p.putManifest(ctx, desc, data, desc.Digest.String())
	if err != nil {
		return err
	}
	known := header.Get("OCI-Subject") == subject.Digest.String()
	if !known && p.noAPI.Load() { // so it was a moment ago; who reads asks each time
		return p.mergeFallback(ctx, subject, listed(desc, data))
	}
	for round := range listingRounds {
		list, err := p.referrersByAPI(ctx, a, subject.Digest)
		if errors.Is(err, errNoAPI) {
			p.noAPI.Store(!known)
			return p.mergeFallback(ctx, subject, listed(desc, data))
		}
		if err != nil {
			return err
		}
		if lists(list, desc.Digest) {
			return nil
		}
		if !known && round == listingRounds/2 {
			// It answers like one with the API, and never said that it took note: the tag works with every client.
			return p.mergeFallback(ctx, subject, listed(desc, data))
		}
		if err := sleep(ctx, wire.Backoff(round)/2); err != nil {
			return err
		}
	}
	return fmt.Errorf("the registry took the manifest and does not list it among the subject's referrers: %w", fault.ErrTemporary)
}

func lists(list []ocispec.Descriptor, d digest.Digest) bool {
	for _, one := range list {
		if one.Digest == d {
			return true
		}
	}
	return false
}

// listed is the entry of a referrer in a list: with its artifact type and annotations, as the specification asks.
func listed(desc ocispec.Descriptor, data []byte) ocispec.Descriptor {
	var m struct {
		ArtifactType string `json:"artifactType"`
		Config       struct {
			MediaType string `json:"mediaType"`
		} `json:"config"`
		Annotations map[string]string `json:"annotations"`
	}
	_ = json.Unmarshal(data, &m) // subjectOf has read it before
	entry := ocispec.Descriptor{
		MediaType: desc.MediaType, Digest: desc.Digest, Size: desc.Size, ArtifactType: m.ArtifactType, Annotations: m.Annotations,
	}
	if entry.ArtifactType == "" {
		entry.ArtifactType = m.Config.MediaType
	}
	return entry
}

// mergeFallback brings entry into the list under the fallback tag, and stays until it has been seen there a moment later.
// Nothing is deleted: the lists that are replaced are the registry's to collect, and deleting needs rights of its own.
func (p *remotePlace) mergeFallback(ctx context.Context, subject, entry ocispec.Descriptor) error {
	tag := fallbackTag(subject.Digest)
	unlock, err := p.c.locks.lock(ctx, p.host+"/"+p.name+":"+tag)
	if err != nil {
		return err
	}
	defer unlock()
	a, seen := p.upstream(), 0
	for round := range mergeRounds {
		desc, data, err := p.manifestAt(ctx, a, tag, maxIndex)
		list, err := fallbackList(desc, data, err, subject.Digest)
		if err != nil {
			return err
		}
		if lists(list, entry.Digest) {
			// Alone on a fresh list once is enough; where others write, look twice.
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
			if err := p.setTag(ctx, index, data, tag, &desc.Digest); err != nil && !errors.Is(err, errMoved) {
				if fault.Retryable(err) || errors.Is(err, fault.ErrUnauthenticated) {
					return err
				}
				return fault.WithHint(err, "tags that begin with sha256- have to stay mutable on a registry without the referrers API")
			}
		}
		if err := sleep(ctx, mergeWait+rand.N(mergeWait*time.Duration(1+min(round, 4)))); err != nil {
			return err
		}
	}
	return errRewritten
}

var errRewritten = fmt.Errorf("the list of referrers is rewritten by others all the time: %w", fault.ErrTemporary)

func referrersIndex(list []ocispec.Descriptor) (ocispec.Descriptor, []byte, error) {
	data, err := json.Marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: list,
	})
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	if len(data) > maxIndex {
		return ocispec.Descriptor{}, nil, fmt.Errorf("a list of %d bytes: %w", len(data), fault.ErrTooLarge)
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromBytes(data), Size: int64(len(data))}, data, nil
}

// subjectOf reads what a referrer refers to.
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
