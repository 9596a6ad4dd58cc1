package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Carried describes content that belongs to a layout of several repositories but is not in it.
type Carried struct {
	Had    map[digest.Digest]bool // content of the destination: it counts as present and is not written, unless a tag is set; nil: none
	Sparse bool                   // accept an index without all of its manifests: the others are for unwanted platforms
	// Omitted is called for each blob that is not written because of Had, possibly more than once; nil: not called.
	Omitted func(ocispec.Descriptor)
	// Below opens the repository from which missing content is read; nil: none.
	Below func(ctx context.Context) (*Repository, error)
}

// OpenCarried opens the part of an OCI image layout that has a repository, "host/path": names in its index are
// "host/path:tag", as containerd and skopeo write them.
func (c *Client) OpenCarried(path, repository string, o Carried) (*Repository, error) {
	ref, err := ParseReference(repository)
	if err != nil {
		return nil, err
	}
	layout, err := c.OpenNamed(Reference{Scheme: SchemeLayout, Repository: path})
	if err != nil {
		return nil, err
	}
	return &Repository{ref: ref, concurrency: layout.concurrency, place: &carriedPlace{layout.place.(*layoutPlace), ref.Name() + ":", o}}, nil
}

// ReadLayout makes the layout of a path read from files, such as those of an archive; it is then read-only. It must be called before
// the layout is opened.
func (c *Client) ReadLayout(path string, files fs.FS) error {
	full, err := filepath.Abs(path)
	if err != nil {
		return newError("open", path, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.layouts[full] = &layoutPlace{path: full, files: files}
	return nil
}

// carriedPlace is one repository of a layout with several.
type carriedPlace struct {
	*layoutPlace
	prefix string // of its names in the index
	Carried
}

// name is the name of a tag or a digest in the index.
func (p *carriedPlace) name(target string) string {
	if digest.Digest(target).Validate() == nil {
		return target
	}
	return p.prefix + target
}

// in adds the layout to an error, because the repository's name does not show it.
func (p *carriedPlace) in(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("in %s: %w", p.path, err)
}

// or reads from below content that is not in the layout.
func or[T any](ctx context.Context, p *carriedPlace, value T, err error, read func(*Repository) (T, error)) (T, error) {
	if p.Below == nil || !errors.Is(err, fault.ErrNotFound) {
		return value, err
	}
	below, failed := p.Below(ctx)
	if failed != nil {
		return value, failed
	}
	return read(below)
}

func (p *carriedPlace) resolve(ctx context.Context, target string) (ocispec.Descriptor, error) {
	desc, err := p.layoutPlace.resolve(ctx, p.name(target))
	return or(ctx, p, desc, p.in(err), func(r *Repository) (ocispec.Descriptor, error) { return r.Resolve(ctx, target) })
}

func (p *carriedPlace) manifest(ctx context.Context, target string, limit int64) (desc ocispec.Descriptor, data []byte, err error) {
	desc, data, err = p.layoutPlace.manifest(ctx, p.name(target), limit)
	data, err = or(ctx, p, data, p.in(err), func(r *Repository) (below []byte, err error) {
		desc, below, err = r.manifest(ctx, target, limit)
		return below, r.fail(opManifest, target, err)
	})
	return desc, data, err
}

// referrers are those in the layout and those below.
func (p *carriedPlace) referrers(ctx context.Context, subject ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	if p.Below == nil {
		return p.layoutPlace.referrers(ctx, subject)
	}
	// The subject of the layout's list may be only in below, and the list is stored under its full descriptor.
	full, _, err := p.manifest(ctx, subject.Digest.String(), MaxForeignManifest)
	if errors.Is(err, fault.ErrNotFound) && !errors.Is(err, fault.ErrTemporary) {
		full, err = subject, nil
	}
	if err != nil {
		return nil, err
	}
	out, err := p.layoutPlace.referrers(ctx, full)
	if err != nil {
		return nil, p.in(err)
	}
	below, err := p.Below(ctx)
	if err != nil {
		return nil, err
	}
	more, err := below.Referrers(ctx, subject)
	for _, d := range more {
		if !lists(out, d.Digest) {
			out = append(out, d)
		}
	}
	return out, err
}

func (p *carriedPlace) blob(ctx context.Context, desc ocispec.Descriptor) ([]byte, error) {
	data, err := p.layoutPlace.blob(ctx, desc)
	return or(ctx, p, data, p.in(err), func(r *Repository) ([]byte, error) { return r.Blob(ctx, desc, desc.Size) })
}

func (p *carriedPlace) openBlob(ctx context.Context, desc ocispec.Descriptor, off int64, check bool) (io.ReadCloser, error) {
	f, err := p.layoutPlace.openBlob(ctx, desc, off, check)
	return or(ctx, p, f, p.in(err), func(r *Repository) (io.ReadCloser, error) { return r.openBlob(ctx, desc, off, check) })
}

func (p *carriedPlace) exists(ctx context.Context, desc ocispec.Descriptor) (bool, error) {
	if p.Had[desc.Digest] {
		if p.Omitted != nil && !IsManifest(desc.MediaType) {
			p.Omitted(desc)
		}
		return true, nil
	}
	return p.layoutPlace.exists(ctx, desc)
}

// omits reports whether a referrer is left out because the destination has it.
func (r *Repository) omits(d digest.Digest) bool {
	p, ok := r.place.(*carriedPlace)
	return ok && p.Had[d]
}

func (p *carriedPlace) tags(ctx context.Context, _ string) ([]string, error) {
	all, err := p.names(ctx, func(name string) (string, bool) {
		tag, ok := strings.CutPrefix(name, p.prefix)
		return tag, ok && ValidTag(tag)
	})
	return all, p.in(err)
}

func (p *carriedPlace) pushManifest(ctx context.Context, desc ocispec.Descriptor, data []byte, tag string) error {
	if tag != "" {
		tag = p.name(tag)
	}
	had := p.Had
	if _, manifests, err := parts(data); p.Sparse && err == nil && len(manifests) > 0 {
		had = maps.Clone(p.Had)
		if had == nil {
			had = map[digest.Digest]bool{}
		}
		for _, m := range manifests {
			had[m.Digest] = true
		}
	}
	return p.put(ctx, desc, data, tag, had)
}

func (p *carriedPlace) pushReferrer(ctx context.Context, _, desc ocispec.Descriptor, data []byte) error {
	return p.pushManifest(ctx, desc, data, "")
}

// CarriedRepositories lists the repositories in a layout, "host/path", sorted. plain reports whether it has tags without a
// repository, which are read by opening the layout itself.
func (c *Client) CarriedRepositories(ctx context.Context, path string) (names []string, plain bool, err error) {
	layout, err := c.OpenNamed(Reference{Scheme: SchemeLayout, Repository: path})
	if err != nil {
		return nil, false, err
	}
	all, err := layout.place.(*layoutPlace).names(ctx, func(name string) (string, bool) {
		if ValidTag(name) {
			plain = true
			return "", false
		}
		ref, err := ParseReference(name)
		return ref.Name(), err == nil && ref.Scheme == SchemeOCI && ref.Tag != ""
	})
	slices.Sort(all)
	return slices.Compact(all), plain, layout.fail("list repositories", "", err)
}
