package registry

import (
	"context"
	"net/http"
	"net/url"
	"path/filepath"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/semaphore"

	"github.com/longshore-dev/longshore/artifacts/locks"
	"github.com/longshore-dev/longshore/registry/internal/auths"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

// maxOpen bounds the repositories whose tokens and entity tags a client keeps; above it everything is dropped, which
// costs a few requests.
const maxOpen = 1024

// Client reaches registries and layouts with one set of options. It is safe for concurrent use. Close it when done.
type Client struct {
	o         Options
	files     auths.Files
	proxy     func(*http.Request) (*url.URL, error)
	tags      locks.Table         // by reference: those that this process is changing
	uploads   locks.Table         // by [sessionFile]: two uploads of a blob would write to one session
	transfers *semaphore.Weighted // one for each blob that CopyFrom moves at a time

	mu      sync.Mutex
	byHost  map[string][]*endpoint
	opened  map[string]*remotePlace // by "host/path"
	layouts map[string]*layoutPlace // by absolute path
	given   map[string]bool         // hosts that the user named, which may have the credentials of Options
}

// New checks the options; it does not connect and reads no file.
func New(o Options) (*Client, error) {
	o = o.withDefaults()
	if err := o.check(); err != nil {
		return nil, err
	}
	files := auths.Find(o.AuthFile, o.Getenv)
	files.Limit = o.StallTimeout
	return &Client{
		o: o, files: files, proxy: wire.Proxy(o.Getenv), transfers: semaphore.NewWeighted(int64(o.Concurrency)),
		byHost: map[string][]*endpoint{}, opened: map[string]*remotePlace{}, layouts: map[string]*layoutPlace{},
		given: map[string]bool{},
	}, nil
}

// Close closes idle connections. Calls in progress continue, and the client stays usable.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, all := range c.byHost {
		for _, e := range all {
			e.transport.CloseIdleConnections()
		}
	}
}

// Open opens a place that the user named, on a command line: without Options.Host the credentials of Options may go to ref's
// host from now on. Names from a file or a document are opened with [Client.OpenName] or [Client.OpenNamed]. It does
// not connect; the first write creates a layout's folder.
func (c *Client) Open(_ context.Context, ref Reference) (*Repository, error) {
	if ref.Scheme != SchemeLayout {
		c.mu.Lock()
		c.given[ref.Registry] = true
		c.mu.Unlock()
	}
	return c.OpenNamed(ref)
}

// OpenNamed is [Client.OpenName] by reference.
func (c *Client) OpenNamed(ref Reference) (*Repository, error) {
	r := &Repository{ref: ref, concurrency: c.o.Concurrency}
	if ref.Scheme == SchemeLayout {
		path, err := filepath.Abs(ref.Repository)
		if err != nil {
			return nil, newError("open", ref.String(), err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.layouts[path] == nil {
			c.layouts[path] = &layoutPlace{path: path}
		}
		r.place = c.layouts[path]
		return r, nil
	}
	all, err := c.endpoints(ref.Registry)
	if err != nil {
		return nil, newError("open", ref.String(), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.opened[ref.Name()]
	if p == nil {
		if len(c.opened) >= maxOpen {
			clear(c.opened)
		}
		p = c.newRemote(ref, all)
		c.opened[ref.Name()] = p
	}
	r.place = p
	return r, nil
}

func (c *Client) newRemote(ref Reference, all []*endpoint) *remotePlace {
	p := &remotePlace{c: c, host: ref.Registry, name: ref.Repository, tagged: map[string]entityTag{}}
	for _, e := range all {
		p.at = append(p.at, c.newAccess(e, ref))
	}
	return p
}

// isFor reports whether the credentials of Options may go to a registry.
func (c *Client) isFor(host string) bool {
	if c.o.Host != "" {
		return c.o.Host == host
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.given[host]
}

// OpenName opens a place that a file or a document names, by "host/path", or a layout by "oci-layout:PATH". The credentials
// of Options are sent there only if they are for its host.
func (c *Client) OpenName(_ context.Context, name string) (*Repository, error) { return c.named(name) }

// in calls do with a repository that a document names, as [Client.OpenName] opens it.
func in[T any](c *Client, repository string, do func(*Repository) (T, error)) (out T, err error) {
	r, err := c.named(repository)
	if err == nil {
		out, err = do(r)
	}
	return out, err
}

func (c *Client) named(name string) (*Repository, error) {
	ref, err := ParseReference(name)
	if err != nil {
		return nil, err
	}
	return c.OpenNamed(ref)
}

// Resolve is [Repository.Resolve] on a repository that a document names.
func (c *Client) Resolve(ctx context.Context, repository, tag string) (ocispec.Descriptor, error) {
	return in(c, repository, func(r *Repository) (ocispec.Descriptor, error) { return r.Resolve(ctx, tag) })
}

// EachResolve is [Repository.EachResolve] on a repository that a document names.
func (c *Client) EachResolve(ctx context.Context, repository, tag string, enough func(ocispec.Descriptor) bool) error {
	r, err := c.named(repository)
	if err != nil {
		return err
	}
	return r.EachResolve(ctx, tag, enough)
}

// Upstream is a client that resolves tags only at the registries themselves, as publishers must: a mirror may show an
// older state, and a successor of that would be a conflict. Content is still read by digest from any place.
type Upstream struct{ *Client }

// Resolve is Client.Resolve at the registry itself.
func (u Upstream) Resolve(ctx context.Context, repository, tag string) (ocispec.Descriptor, error) {
	return in(u.Client, repository, func(r *Repository) (ocispec.Descriptor, error) { return r.here(ctx, tag) })
}

// Tagged is [Repository.Tagged] at the registry itself.
func (u Upstream) Tagged(ctx context.Context, repository, tag string) (ocispec.Descriptor, []byte, error) {
	r, err := u.named(repository)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	return r.Upstream().Tagged(ctx, tag)
}

// TagsWithPrefix is [Repository.TagsWithPrefix] at the registry itself.
func (u Upstream) TagsWithPrefix(ctx context.Context, repository, prefix string) ([]string, error) {
	return in(u.Client, repository, func(r *Repository) ([]string, error) { return r.Upstream().TagsWithPrefix(ctx, prefix) })
}

// Tags is [Repository.Tags] on a repository that a document names.
func (c *Client) Tags(ctx context.Context, repository string) ([]string, error) {
	return in(c, repository, func(r *Repository) ([]string, error) { return r.Tags(ctx) })
}

// Manifest is [Repository.Manifest] on a repository that a document names.
func (c *Client) Manifest(ctx context.Context, repository string, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	r, err := c.named(repository)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	return r.Manifest(ctx, d)
}

// Blob is [Repository.Blob] on a repository that a document names.
func (c *Client) Blob(ctx context.Context, repository string, desc ocispec.Descriptor, limit int64) ([]byte, error) {
	return in(c, repository, func(r *Repository) ([]byte, error) { return r.Blob(ctx, desc, limit) })
}
