package registry

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/certsd"
)

// At is the same repository at one other address that serves the registry's content, and only there: a mirror, in the
// form of hosts.toml, "https://mirror.example.com" or with a path. Credentials are those stored for its host.
func (r *Repository) At(address string) (*Repository, error) {
	p, ok := r.place.(*remotePlace)
	if !ok {
		return nil, r.fail("open a copy of", "", fmt.Errorf("a layout has none: %w", fault.ErrUnsupported))
	}
	if name, _, _ := strings.Cut(address, "/"); !strings.Contains(address, "://") && p.c.o.plain(name) {
		address = "http://" + address
	}
	host, err := certsd.Address(address)
	if err != nil {
		return nil, fmt.Errorf("mirror %q: %w", address, err)
	}
	e, err := p.c.mirrorAt(p.host, host)
	if err != nil {
		return nil, fmt.Errorf("mirror %q: %w", address, err)
	}
	return r.alone(p, e), nil
}

// Mirrors are the same repository at each mirror that hosts.toml names for its registry, in order, one Repository per mirror.
func (r *Repository) Mirrors() []*Repository {
	p, ok := r.place.(*remotePlace)
	if !ok {
		return nil
	}
	var out []*Repository
	for _, a := range p.at {
		if a.mirror && a.pull {
			out = append(out, r.alone(p, a.endpoint))
		}
	}
	return out
}

// alone is the repository at one address only.
func (r *Repository) alone(p *remotePlace, e *endpoint) *Repository {
	return &Repository{ref: r.ref, concurrency: r.concurrency, place: p.c.newRemote(Reference{Scheme: SchemeOCI, Registry: p.host, Repository: p.name}, []*endpoint{e})}
}

// mirrorAt is the endpoint of a mirror that the caller names; each is created once.
func (c *Client) mirrorAt(registry string, h certsd.Host) (*endpoint, error) {
	key := registry + " " + h.Scheme + "://" + h.Host + h.Path
	c.mu.Lock()
	defer c.mu.Unlock()
	if found := c.byHost[key]; found != nil {
		return found[0], nil
	}
	e, err := c.newEndpoint(h, true)
	if err != nil {
		return nil, err
	}
	e.pull, e.resolve, e.ns = true, true, registry
	c.byHost[key] = []*endpoint{e}
	return e, nil
}

// Where is the address of what the repository reads from first: "harbor.example", "mirror.example/v2/proxy".
func (r *Repository) Where() string {
	p, ok := r.place.(*remotePlace)
	if !ok {
		return r.Name()
	}
	a := p.at[0]
	if a.path == "/v2" {
		return a.host
	}
	return a.host + a.path
}

// Missing lists the missing ones of a manifest and the blobs that it names; a missing manifest is listed alone. Of an
// index only the index itself is checked, because not all of its images may be needed.
func (r *Repository) Missing(ctx context.Context, d digest.Digest) ([]ocispec.Descriptor, error) {
	desc, data, err := r.ManifestLimit(ctx, d, MaxForeignManifest)
	if missing(err) {
		return []ocispec.Descriptor{{MediaType: ocispec.MediaTypeImageManifest, Digest: d}}, nil
	}
	if err != nil || isIndex(desc.MediaType) {
		return nil, err
	}
	blobs, _, err := parts(data)
	if err != nil {
		return nil, r.fail(opRead, d.String(), err)
	}
	var out []ocispec.Descriptor
	asked := map[digest.Digest]bool{}
	for _, b := range blobs {
		if asked[b.Digest] || len(b.URLs) > 0 { // the registry need not have content with other URLs
			continue
		}
		asked[b.Digest] = true
		there, err := r.Exists(ctx, ocispec.Descriptor{MediaType: "", Digest: b.Digest, Size: b.Size})
		if err != nil && !missing(err) {
			return nil, err
		}
		if !there {
			out = append(out, b)
		}
	}
	return out, nil
}

// Content lists a manifest and everything that it names, each once: of an index also its manifests, for some platforms or for all.
func (r *Repository) Content(ctx context.Context, d digest.Digest, only ...string) ([]ocispec.Descriptor, error) {
	l := &contents{r: r, only: only, seen: map[digest.Digest]bool{}}
	err := l.visit(ctx, ocispec.Descriptor{Digest: d}, maxNested)
	return l.out, err
}

// Everything lists the content that [Repository.CopyFrom] copies, each once: the content of a manifest and everything that refers to it. A missing
// manifest that is named is listed too, without its content; a missing d is fault.ErrNotFound.
func (r *Repository) Everything(ctx context.Context, d digest.Digest, only ...string) ([]ocispec.Descriptor, error) {
	l := &contents{r: r, only: only, referrers: true, seen: map[digest.Digest]bool{}}
	err := l.visit(ctx, ocispec.Descriptor{Digest: d}, maxNested)
	return l.out, err
}

// contents lists the content of manifests.
type contents struct {
	r         *Repository
	only      Platforms
	referrers bool // are listed too
	seen      map[digest.Digest]bool
	out       []ocispec.Descriptor
}

func (l *contents) add(d ocispec.Descriptor) (fresh bool) {
	fresh = !l.seen[d.Digest]
	if l.seen[d.Digest] = true; fresh {
		l.out = append(l.out, ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size})
	}
	return fresh
}

func (l *contents) visit(ctx context.Context, d ocispec.Descriptor, depth int) error {
	desc, data, err := l.r.ManifestLimit(ctx, d.Digest, MaxForeignManifest)
	if l.referrers && len(l.out) > 0 && missing(err) {
		l.add(d)
		return nil
	}
	if err != nil || !l.add(desc) {
		return err
	}
	blobs, manifests, err := parts(data)
	if err == nil && len(manifests) > 0 && depth <= 0 && !l.referrers {
		err = fmt.Errorf("indexes of indexes: %w", fault.ErrTooLarge)
	}
	if err == nil {
		manifests, err = l.only.of(manifests)
	}
	if err != nil {
		return l.r.fail(opRead, d.Digest.String(), err)
	}
	for _, b := range blobs {
		l.add(b)
	}
	if depth <= 0 { // the depth of CopyFrom
		return nil
	}
	for _, m := range manifests {
		if err := l.visit(ctx, m, depth-1); err != nil {
			return err
		}
	}
	if !l.referrers {
		return nil
	}
	return l.about(ctx, desc, depth)
}

// about lists the referrers of a manifest, in each format.
func (l *contents) about(ctx context.Context, subject ocispec.Descriptor, depth int) error {
	list, err := l.r.Referrers(ctx, subject)
	if err != nil {
		return err
	}
	for _, suffix := range legacyTags {
		tag := fallbackTag(subject.Digest) + suffix
		if !l.r.MayHave(tag) {
			continue
		}
		d, err := l.r.Resolve(ctx, tag)
		if err == nil {
			list = append(list, d)
		} else if !missing(err) {
			return err
		}
	}
	for _, one := range list {
		if err := l.visit(ctx, one, depth-1); err != nil {
			return err
		}
	}
	return nil
}

// missing reports whether an error means that something does not exist, not that a query failed.
func missing(err error) bool {
	return errors.Is(err, fault.ErrNotFound) && !errors.Is(err, fault.ErrTemporary)
}
