package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Media types of Docker's manifests, which registries still serve for most images.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerIndex    = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// manifestTypes are accepted in every request for a manifest: a registry without an acceptable type answers "not found".
var manifestTypes = []string{ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageIndex, dockerManifest, dockerIndex}

func acceptManifests() http.Header { return http.Header{"Accept": {strings.Join(manifestTypes, ", ")}} }

// remotePlace is a repository of a registry: the registry itself, last in at, and its mirrors before it.
type remotePlace struct {
	c    *Client
	host string // as in references
	name string // the repository's path
	at   []*access

	hasEmpty atomic.Bool // a manifest with the empty config was accepted, so that blob exists
	noAPI    atomic.Bool // a referrer that was pushed here was not listed by the registry itself
	snap     *snapshot   // known content of this run; nil: it is read each time

	mu     sync.Mutex
	tagged map[string]entityTag // by endpoint and tag, for registries that need GET
}

// entityTag is a response for If-None-Match.
type entityTag struct {
	tag  string
	desc ocispec.Descriptor
}

func (p *remotePlace) upstream() *access { return p.at[len(p.at)-1] }

// reading requests a token for reading. Mirrors request their own scopes: their repositories may have other names.
func (p *remotePlace) reading(ctx context.Context, a *access) context.Context {
	if a.mirror {
		return ctx
	}
	return auth.AppendRepositoryScope(ctx, a.repo.Reference, auth.ActionPull)
}

func (p *remotePlace) writing(ctx context.Context) context.Context {
	return auth.AppendRepositoryScope(ctx, p.upstream().repo.Reference, auth.ActionPull, auth.ActionPush)
}

// each tries the endpoints in order until one succeeds. The registry itself is the last, and its error is
// returned.
func (p *remotePlace) each(ctx context.Context, may func(*access) bool, try func(context.Context, *access) error) error {
	var last error
	for _, a := range p.at {
		if !may(a) {
			continue
		}
		if last = try(p.reading(ctx, a), a); last == nil || ctx.Err() != nil {
			return last
		}
		p.passedOver(ctx, a, last)
	}
	return last
}

// passedOver logs why a mirror was not used, and reports wrong bytes.
func (p *remotePlace) passedOver(ctx context.Context, a *access, err error) {
	if !a.mirror {
		return
	}
	p.c.o.Logger.DebugContext(ctx, "mirror passed over", "mirror", a.host, "repository", p.name, "error", err)
	if errors.Is(err, fault.ErrDigestMismatch) {
		p.mismatched(a, err)
	}
}

func pulls(a *access) bool    { return a.pull }
func resolves(a *access) bool { return a.resolve }

func (p *remotePlace) resolve(ctx context.Context, target string) (desc ocispec.Descriptor, err error) {
	may := pulls
	if checkDigest(digest.Digest(target)) != nil {
		if may = resolves; !p.snap.mayHave(target) {
			return desc, fault.ErrNotFound
		}
	}
	err = p.each(ctx, may, func(ctx context.Context, a *access) error {
		var err error
		desc, err = p.resolveAt(ctx, a, target)
		return err
	})
	return desc, err
}

// resolveAt uses HEAD, and GET if the registry does not support that or omits needed headers.
func (p *remotePlace) resolveAt(ctx context.Context, a *access, target string) (ocispec.Descriptor, error) {
	desc, err := a.repo.Resolve(ctx, target)
	switch statusOf(err) {
	case 0:
		switch {
		case err == nil && desc.Size > 0 && checkDigest(desc.Digest) == nil:
			return desc, nil
		case err != nil && (classified(err) || mismatched(err)):
			return ocispec.Descriptor{}, a.answer(ctx, err)
		}
	case http.StatusMethodNotAllowed, http.StatusBadRequest, http.StatusNotAcceptable, http.StatusNotImplemented:
	default:
		return ocispec.Descriptor{}, err
	}
	return p.resolveByGet(ctx, a, target)
}

func (p *remotePlace) resolveByGet(ctx context.Context, a *access, target string) (ocispec.Descriptor, error) {
	key := a.host + a.path + " " + target
	p.mu.Lock()
	known := p.tagged[key]
	p.mu.Unlock()
	header := acceptManifests()
	if known.tag != "" {
		header.Set("If-None-Match", known.tag)
	}
	resp, err := a.call(ctx, http.MethodGet, "manifests/"+target, header, nil)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusNotModified {
		return known.desc, nil
	}
	desc, _, err := readManifest(resp, target, MaxForeignManifest)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	if tag := resp.Header.Get("ETag"); tag != "" {
		p.mu.Lock()
		if len(p.tagged) >= maxOpen {
			clear(p.tagged)
		}
		p.tagged[key] = entityTag{tag, desc}
		p.mu.Unlock()
	}
	return desc, nil
}

func (p *remotePlace) manifest(ctx context.Context, target string, limit int64) (ocispec.Descriptor, []byte, error) {
	return p.snap.manifest(target, limit, func() (ocispec.Descriptor, []byte, error) { return p.readManifest(ctx, target, limit) })
}

func (p *remotePlace) readManifest(ctx context.Context, target string, limit int64) (desc ocispec.Descriptor, data []byte, err error) {
	may, exact := pulls, checkDigest(digest.Digest(target)) == nil
	if !exact {
		may = resolves
	}
	large := map[*access]error{} // mirrors whose response exceeded the limit, as the correct one may
	err = p.each(ctx, may, func(ctx context.Context, a *access) error {
		var err error
		desc, data, err = p.manifestAt(ctx, a, target, limit)
		if exact && errors.Is(err, fault.ErrTooLarge) {
			large[a] = err
		}
		return err
	})
	if err == nil {
		for mirror, err := range large {
			p.mismatched(mirror, err)
		}
	}
	return desc, data, err
}

// manifestAt does not use oras-go's FetchReference, which does not hash the content, and sends another request if a
// response has no length.
func (p *remotePlace) manifestAt(ctx context.Context, a *access, target string, limit int64) (ocispec.Descriptor, []byte, error) {
	resp, err := a.call(ctx, http.MethodGet, "manifests/"+target, acceptManifests(), nil)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	defer resp.Body.Close()
	desc, data, err := readManifest(resp, target, limit)
	if err == nil && checkDigest(digest.Digest(target)) == nil {
		a.mismatches.match()
	}
	return desc, data, err
}

// readManifest reads a bounded manifest and hashes it itself; the response's headers must match.
func readManifest(resp *http.Response, target string, limit int64) (ocispec.Descriptor, []byte, error) {
	if resp.ContentLength > limit {
		return ocispec.Descriptor{}, nil, fmt.Errorf("%d bytes, %d are allowed: %w", resp.ContentLength, limit, fault.ErrTooLarge)
	}
	data, err := bounded.Read(resp.Body, limit)
	if err != nil {
		return ocispec.Descriptor{}, nil, broken(err)
	}
	if isPage(resp, data) {
		return ocispec.Descriptor{}, nil, errPage
	}
	wanted := digest.Digest(target)
	if checkDigest(wanted) != nil {
		wanted = digest.Digest(resp.Header.Get("Docker-Content-Digest"))
	}
	d := digest.FromBytes(data)
	if checkDigest(wanted) == nil {
		if d = wanted.Algorithm().FromBytes(data); d != wanted {
			return ocispec.Descriptor{}, nil, fmt.Errorf("%d bytes with digest %s arrived: %w", len(data), d, fault.ErrDigestMismatch)
		}
	}
	media, err := manifestType(data, mediaType(resp))
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	return ocispec.Descriptor{MediaType: media, Digest: d, Size: int64(len(data))}, data, nil
}

// errPage is the error for a web page instead of a registry's response, such as a login page or a proxy's error.
var errPage = fault.WithHint(fmt.Errorf("a web page came instead of an answer: %w", fault.ErrTemporary),
	"is there a proxy or a login page between here and the registry?")

func isPage(resp *http.Response, data []byte) bool {
	head := strings.TrimSpace(string(data[:min(len(data), 64)]))
	return mediaType(resp) == "text/html" || strings.HasPrefix(head, "<")
}

// mediaType is the response's content type without parameters.
func mediaType(resp *http.Response) string {
	t, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}

// manifestType is the media type of a manifest. The one in the manifest has precedence over the header's, because the digest covers it.
func manifestType(data []byte, header string) (string, error) {
	var m struct {
		MediaType string          `json:"mediaType"`
		Config    json.RawMessage `json:"config"`
		Layers    json.RawMessage `json:"layers"`
		Manifests json.RawMessage `json:"manifests"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return "", fmt.Errorf("a manifest that is not JSON: %w", fault.ErrInvalid)
	}
	if m.Manifests != nil && (m.Layers != nil || m.Config != nil) {
		return "", fmt.Errorf("a manifest that is an index and an image at once: %w", fault.ErrInvalid)
	}
	for _, t := range []string{m.MediaType, header} {
		switch t {
		case ocispec.MediaTypeImageManifest, dockerManifest, ocispec.MediaTypeImageIndex, dockerIndex:
			if isIndex(t) == (m.Manifests != nil) {
				return t, nil
			}
			return "", fmt.Errorf("a manifest that says %s and is none: %w", t, fault.ErrInvalid)
		}
		if t != "" && m.MediaType != "" {
			return "", fmt.Errorf("manifest of type %q: %w", t, fault.ErrUnsupported)
		}
	}
	switch {
	case m.Manifests != nil:
		return ocispec.MediaTypeImageIndex, nil
	case m.Layers != nil && m.Config != nil:
		return ocispec.MediaTypeImageManifest, nil
	}
	return "", fmt.Errorf("neither an image manifest nor an index: %w", fault.ErrUnsupported)
}

func isIndex(media string) bool { return media == ocispec.MediaTypeImageIndex || media == dockerIndex }

// IsManifest reports whether a media type is one of the OCI image manifest, the OCI index and Docker's two.
func IsManifest(media string) bool {
	return isIndex(media) || media == ocispec.MediaTypeImageManifest || media == dockerManifest
}

// broken is the error of a response that ended early or timed out.
func broken(err error) error {
	if classified(err) {
		return err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fmt.Errorf("the answer was cut off: %w", fault.ErrTemporary)
	}
	return classify(err)
}

func (p *remotePlace) exists(ctx context.Context, desc ocispec.Descriptor) (found bool, err error) {
	err = p.each(ctx, pulls, func(ctx context.Context, a *access) error {
		var err error
		found, err = p.existsAt(ctx, a, desc)
		if err == nil && !found && a.mirror {
			return fault.ErrNotFound // the next place may have it
		}
		return err
	})
	return found, err
}

func (p *remotePlace) existsAt(ctx context.Context, a *access, desc ocispec.Descriptor) (bool, error) {
	kind := "blobs/"
	if IsManifest(desc.MediaType) {
		kind = "manifests/"
	}
	resp, err := a.call(ctx, http.MethodHead, kind+desc.Digest.String(), acceptManifests(), nil)
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	}
	resp.Body.Close()
	// A wrong length means a damaged copy, which must be sent again.
	return resp.ContentLength < 0 || desc.Size == 0 || resp.ContentLength == desc.Size, nil
}
