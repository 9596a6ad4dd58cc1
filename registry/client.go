package registry

import (
	"context"
	"net/http"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Client reaches registries and layouts with one set of options. It is safe for concurrent use. Close it when done.
type Client struct {
	o Options
}

// New checks the options; it connects to nothing.
func New(o Options) (*Client, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	return &Client{o: o.withDefaults()}, nil
}

// Close drops idle connections. Calls that are under way are not ended.
func (c *Client) Close() {}

// Open gives the place that ref names. It connects to nothing; a layout's folder is made by the first write.
func (c *Client) Open(ctx context.Context, ref Reference) (*Repository, error) {
	panic("not yet")
}

// OpenName opens a repository by "host/path", or a layout by "oci-layout:PATH".
func (c *Client) OpenName(ctx context.Context, name string) (*Repository, error) {
	ref, err := ParseReference(name)
	if err != nil {
		return nil, err
	}
	return c.Open(ctx, ref)
}

// Resolve is Repository.Resolve on a repository given by name.
func (c *Client) Resolve(ctx context.Context, repository, tag string) (ocispec.Descriptor, error) {
	r, err := c.OpenName(ctx, repository)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	return r.Resolve(ctx, tag)
}

// Manifest is Repository.Manifest on a repository given by name.
func (c *Client) Manifest(ctx context.Context, repository string, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	r, err := c.OpenName(ctx, repository)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	return r.Manifest(ctx, d)
}

// Blob is Repository.Blob on a repository given by name.
func (c *Client) Blob(ctx context.Context, repository string, desc ocispec.Descriptor, limit int64) ([]byte, error) {
	r, err := c.OpenName(ctx, repository)
	if err != nil {
		return nil, err
	}
	return r.Blob(ctx, desc, limit)
}

// Endpoint is one place where a host's images may be asked for, for a container runtime that does its own requests.
type Endpoint struct {
	Scheme string       // "https" or "http"
	Host   string       // host[:port] to connect to
	Path   string       // what stands before the repository: "/v2"
	Client *http.Client // with this endpoint's certificates, proxy and retries; without credentials
	// Credentials gives what the endpoint's host may be told; both empty: nothing. An empty user with a secret is an
	// identity (refresh) token.
	Credentials func(ctx context.Context, host string) (user, secret string, err error)
}

// Endpoints lists where host's content may be read, in order: mirrors, then the registry itself.
func (c *Client) Endpoints(host string) ([]Endpoint, error) { panic("not yet") }
