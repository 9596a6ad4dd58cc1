// Package fleettest has what tests of publishing a fleet stand on: a registry of maps, and a fleet of as many devices as wanted.
package fleettest

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
)

// Registry is a registry of maps. It implements [fleet.Registries] and [fleet.Publisher].
type Registry struct {
	sync.Mutex // for the fields, while others use them

	Named     map[string]digest.Digest // by "host/path:tag"
	Manifests map[digest.Digest][]byte
	Blobs     map[digest.Digest][]byte
	Asked     map[string]int  // calls by kind: tags, resolve, manifest, blob, publish
	Err       error           // what every call answers; nil: none
	Published []string        // the moving tags of what was published, in that order
	Refused   map[string]bool // tags that cannot be published
	Torn      string          // "host/path:tag" under which half of a manifest is
	Away      map[string]int  // how many calls of a kind find it away
	Before    func()          // is called before something is published; nil: nothing is
	// Cut is called before each write of a publication, with the tag that it sets ("": blobs and manifest), and after the last
	// one, with "above " and the history tag. Its error ends the publication there. nil: all are done.
	Cut func(repository, tag string) error
}

// New makes an empty one.
func New() *Registry {
	return &Registry{
		Named: map[string]digest.Digest{}, Manifests: map[digest.Digest][]byte{}, Blobs: map[digest.Digest][]byte{}, Asked: map[string]int{},
		Refused: map[string]bool{},
	}
}

// Push puts an artifact there; tag may be "".
func (r *Registry) Push(repository, tag string, a *artifacts.Artifact) digest.Digest {
	r.Lock()
	defer r.Unlock()
	for _, b := range a.Blobs {
		r.Blobs[b.Descriptor.Digest] = b.Data
	}
	r.Manifests[a.Descriptor.Digest] = a.Manifest
	if tag != "" {
		r.Named[repository+":"+tag] = a.Descriptor.Digest
	}
	return a.Descriptor.Digest
}

// Uncarry has the manifest of a state carry no content, as that of a large state. Its digest stays.
func (r *Registry) Uncarry(d digest.Digest) {
	r.Lock()
	defer r.Unlock()
	r.Manifests[d] = carried.ReplaceAll(r.Manifests[d], nil)
}

var carried = regexp.MustCompile(`,"data":"[^"]*"`)

// Ask counts a call of a kind, and is its error.
func (r *Registry) Ask(what string) error {
	r.Lock()
	defer r.Unlock()
	r.Asked[what]++
	if r.Away[what] > 0 {
		r.Away[what]--
		return fmt.Errorf("%s: connection refused: %w", what, fault.ErrTemporary)
	}
	return r.Err
}

// Leave lets so many calls of a kind find the registry away.
func (r *Registry) Leave(what string, calls int) {
	r.Lock()
	defer r.Unlock()
	r.Away = map[string]int{what: calls}
}

// Tags implements [fleet.Registry].
func (r *Registry) Tags(ctx context.Context, repository string) ([]string, error) {
	return r.TagsWithPrefix(ctx, repository, "")
}

// TagsWithPrefix implements [fleet.Registries].
func (r *Registry) TagsWithPrefix(_ context.Context, repository, prefix string) ([]string, error) {
	if err := r.Ask("tags"); err != nil {
		return nil, err
	}
	r.Lock()
	defer r.Unlock()
	var out []string
	for t := range r.Named {
		if tag, ok := strings.CutPrefix(t, repository+":"); ok {
			out = append(out, tag)
		}
	}
	if out == nil {
		return nil, fmt.Errorf("list tags of %s: %w", repository, fault.ErrNotFound)
	}
	slices.Sort(out)
	return slices.DeleteFunc(out, func(tag string) bool { return !strings.HasPrefix(tag, prefix) }), nil
}

// Resolve implements [fleet.Registry].
func (r *Registry) Resolve(_ context.Context, repository, tag string) (ocispec.Descriptor, error) {
	if err := r.Ask("resolve"); err != nil {
		return ocispec.Descriptor{}, err
	}
	r.Lock()
	defer r.Unlock()
	d, ok := r.Named[repository+":"+tag]
	if r.Torn == repository+":"+tag {
		return ocispec.Descriptor{}, fmt.Errorf("resolve %s:%s: %w", repository, tag, fault.ErrInvalid)
	}
	if !ok {
		return ocispec.Descriptor{}, fmt.Errorf("resolve %s:%s: %w", repository, tag, fault.ErrNotFound)
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: int64(len(r.Manifests[d]))}, nil
}

// Tagged implements [fleet.Registry].
func (r *Registry) Tagged(ctx context.Context, repository, tag string) (ocispec.Descriptor, []byte, error) {
	d, err := r.Resolve(ctx, repository, tag)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	return r.Manifest(ctx, repository, d.Digest)
}

// Manifest implements [fleet.Registry].
func (r *Registry) Manifest(_ context.Context, repository string, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	if err := r.Ask("manifest"); err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	r.Lock()
	defer r.Unlock()
	data, ok := r.Manifests[d]
	if !ok {
		return ocispec.Descriptor{}, nil, fmt.Errorf("fetch %s@%s: %w", repository, d, fault.ErrNotFound)
	}
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: int64(len(data))}, data, nil
}

// Blob implements [fleet.Registry].
func (r *Registry) Blob(_ context.Context, repository string, d ocispec.Descriptor, _ int64) ([]byte, error) {
	if err := r.Ask("blob"); err != nil {
		return nil, err
	}
	r.Lock()
	defer r.Unlock()
	data, ok := r.Blobs[d.Digest]
	if !ok {
		return nil, fmt.Errorf("fetch %s@%s: %w", repository, d.Digest, fault.ErrNotFound)
	}
	return data, nil
}

// Publish is the part of the registry's that plans rely on: tags last, and only where the moving tag names what was planned upon.
// The history tag is looked at only if there was no moving tag; otherwise a plan has.
func (r *Registry) Publish(ctx context.Context, repository string, a *artifacts.Artifact, p fleet.Publication) error {
	if err := r.Ask("publish"); err != nil {
		return err
	}
	r.Lock()
	if r.Before != nil {
		r.Before()
	}
	if err := ctx.Err(); err != nil {
		r.Unlock()
		return err
	}
	tagged := r.Named[repository+":"+p.Tag]
	if p.Tagged == "" {
		tagged = r.Named[repository+":"+p.HistoryTag]
	}
	conflict := r.Refused[p.Tag]
	r.Published = append(r.Published, p.Tag)
	r.Unlock()
	if conflict || tagged != p.Tagged && tagged != a.Descriptor.Digest {
		return fmt.Errorf("publish %s:%s: %w", repository, p.HistoryTag, fault.ErrConflict)
	}
	for _, tag := range []string{"", p.HistoryTag, p.Tag} {
		if err := r.write(repository, tag); err != nil {
			return err
		}
		r.Push(repository, tag, a)
	}
	return r.write(repository, "above "+p.HistoryTag)
}

func (r *Registry) write(repository, tag string) error {
	if r.Cut == nil {
		return nil
	}
	return r.Cut(repository, tag)
}

// Repository is one repository of a registry, which it calls by its own name.
type Repository struct {
	*Registry
	name string
}

// At is the repository of a name.
func (r *Registry) At(name string) Repository { return Repository{r, name} }

// Name implements [release.Repository].
func (r Repository) Name() string { return r.name }

// Resolve implements [release.Repository].
func (r Repository) Resolve(ctx context.Context, tag string) (ocispec.Descriptor, error) {
	return r.Registry.Resolve(ctx, r.name, tag)
}

// Tagged implements [release.Repository].
func (r Repository) Tagged(ctx context.Context, tag string) (ocispec.Descriptor, []byte, error) {
	return r.Registry.Tagged(ctx, r.name, tag)
}

// Manifest implements [release.Repository].
func (r Repository) Manifest(ctx context.Context, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	return r.Registry.Manifest(ctx, r.name, d)
}

// Blob implements [release.Repository].
func (r Repository) Blob(ctx context.Context, d ocispec.Descriptor, limit int64) ([]byte, error) {
	return r.Registry.Blob(ctx, r.name, d, limit)
}

// Tags implements [release.Repository].
func (r Repository) Tags(ctx context.Context) ([]string, error) { return r.Registry.Tags(ctx, r.name) }

// TagsWithPrefix implements [release.Repository].
func (r Repository) TagsWithPrefix(ctx context.Context, prefix string) ([]string, error) {
	return r.Registry.TagsWithPrefix(ctx, r.name, prefix)
}
