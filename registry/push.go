package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

// uploader sends oras-go's requests for one blob through our endpoint, with a body that can be sent again.
type uploader struct {
	*access
	data  []byte
	open  func() (io.ReadCloser, error) // opens the content, size bytes, again for each try; nil: it is data
	size  int64
	whole digest.Digest // of data, which goes with the first request too: a registry may accept that as the whole blob; "": not sent
}

// repository is oras-go's client for uploads. It completes an upload only at the same host: a Location on another host, or
// without TLS, is an error.
func (u *uploader) repository() *remote.Repository {
	return &remote.Repository{Client: u, Reference: u.repo.Reference, PlainHTTP: u.repo.PlainHTTP}
}

// errWhole ends a push if its first request was sufficient.
var errWhole = errors.New("the blob was taken with the first request")

func (u *uploader) Do(r *http.Request) (*http.Response, error) {
	opens := r.Method == http.MethodPost
	switch {
	case opens && u.whole != "":
		r.URL.RawQuery = url.Values{"digest": {u.whole.String()}}.Encode()
		r.Header.Set("Content-Type", "application/octet-stream")
		u.fill(r)
	case r.Method == http.MethodPut && u.open != nil:
		body, err := u.open()
		if err != nil {
			return nil, err
		}
		r.ContentLength, r.Body, r.GetBody = u.size, body, u.open
	case r.Method == http.MethodPut:
		u.fill(r)
	}
	resp, err := u.access.Do(r)
	if err == nil && opens && u.whole != "" && resp.StatusCode == http.StatusCreated {
		return nil, errors.Join(errWhole, resp.Body.Close())
	}
	return resp, err
}

// fill sets the blob as the body of a request.
func (u *uploader) fill(r *http.Request) {
	r.ContentLength = int64(len(u.data))
	r.Body, r.GetBody = http.NoBody, nil // a length of 0 with another body means an unknown length
	if len(u.data) > 0 {
		r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(u.data)), nil }
		r.Body = io.NopCloser(bytes.NewReader(u.data))
	}
}

// pushBlob sends a blob unless it exists; a small one is sent without a check if that takes fewer requests.
func (p *remotePlace) pushBlob(ctx context.Context, desc ocispec.Descriptor, data []byte) (sent bool, err error) {
	ctx = p.writing(ctx)
	if p.hasEmpty.Load() && desc.Digest == ocispec.DescriptorEmptyJSON.Digest {
		return false, nil
	}
	if desc.Size <= smallBlob {
		if done, sent, err := p.pushSmall(ctx, desc, data); done {
			return sent, err
		}
	}
	if there, err := p.existsAt(ctx, p.upstream(), desc); err != nil || there {
		return false, err
	}
	err = p.upstream().answer(ctx, (&uploader{access: p.upstream(), data: data}).repository().Blobs().Push(ctx, desc, bytes.NewReader(data)))
	return err == nil, err
}

// pushBlobFrom sends a blob of any size unless it exists: a large one in chunks, which a later try or run continues. Only the transfer
// takes a slot.
func (p *remotePlace) pushBlobFrom(ctx context.Context, desc ocispec.Descriptor, open opener) (sent bool, err error) {
	ctx = p.writing(ctx)
	a := p.upstream()
	unlock, err := p.c.uploads.Lock(ctx, sessionFile(a, desc.Digest))
	if err != nil {
		return false, err
	}
	defer unlock()
	if there, err := p.existsAt(ctx, a, desc); err != nil || there {
		return false, err
	}
	done, err := p.turn(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	if desc.Size > chunkSize && !a.whole.Load() {
		if err := p.pushChunks(ctx, a, desc, open); !errors.Is(err, errNoChunks) {
			return err == nil, err
		}
		a.whole.Store(true)
	}
	u := &uploader{access: a, open: func() (io.ReadCloser, error) { return verified(ctx, desc, open) }, size: desc.Size}
	err = a.answer(ctx, u.repository().Blobs().Push(ctx, desc, struct{ io.Reader }{http.NoBody})) // the uploader sets the content of the request
	return err == nil, err
}

// mountFrom requests a mount of a blob from another repository of the registry, and sends the result of get if the registry opens an
// upload instead. err is oras-go's.
func (p *remotePlace) mountFrom(ctx context.Context, desc ocispec.Descriptor, from string, get func() ([]byte, error)) (sent bool, err error) {
	u := &uploader{access: p.upstream()}
	err = u.repository().Mount(ctx, desc, from, func() (io.ReadCloser, error) {
		var err error
		u.data, err = get()
		sent = true
		return io.NopCloser(bytes.NewReader(u.data)), err
	})
	return sent, err
}

// mount requests a mount of a blob from another repository of the registry, and sends the result of get if that fails.
// It reports whether no bytes were sent.
func (p *remotePlace) mount(ctx context.Context, desc ocispec.Descriptor, from string, get func() ([]byte, error)) (bool, error) {
	if _, err := ParseReference(p.host + "/" + from); err != nil {
		return false, fmt.Errorf("mount from %q: no repository: %w", from, fault.ErrInvalid)
	}
	ctx = p.writing(ctx)
	var failed error
	sent, err := p.mountFrom(ctx, desc, from, func() (data []byte, err error) {
		data, failed = get()
		return data, failed
	})
	err = p.upstream().answer(ctx, err)
	switch {
	case failed != nil:
		return false, failed
	case err == nil:
		return !sent, nil
	case ctx.Err() != nil, errors.Is(err, fault.ErrTemporary):
		return false, err
	}
	data, err := get() // denied, not found or not supported: then it is sent
	if err != nil {
		return false, err
	}
	_, err = p.pushBlob(ctx, desc, data)
	return false, err
}

// holds reports whether another repository of the registry is known to have a blob. A denied request means false.
func (p *remotePlace) holds(ctx context.Context, repository string, desc ocispec.Descriptor) bool {
	a := p.upstream()
	other := &access{endpoint: a.endpoint, auth: a.auth, registry: a.registry, withheld: a.withheld}
	ref := a.repo.Reference
	ref.Repository = repository
	other.repo = &remote.Repository{Client: other, Reference: ref, PlainHTTP: a.repo.PlainHTTP}
	there, err := other.repo.Blobs().Exists(ctx, desc)
	return there && err == nil
}

func (p *remotePlace) pushManifest(ctx context.Context, desc ocispec.Descriptor, data []byte, tag string) error {
	if tag != "" {
		defer p.snap.set(tag)
		return p.setTag(ctx, desc, data, tag, nil)
	}
	_, err := p.putManifest(p.writing(ctx), desc, data, desc.Digest.String())
	return err
}

// setTag puts a manifest under a tag. Before each further try it reads the tag: the request may have succeeded although its response was lost,
// and a tag that another writer has set in the meantime is not overwritten (ErrMoved), because that writer may already have been
// successful. was is the previous digest of the tag ("": none); nil: its digest after the first try.
func (p *remotePlace) setTag(ctx context.Context, desc ocispec.Descriptor, data []byte, tag string, was *digest.Digest) error {
	for tries := p.upstream().budget.Tries(); ; {
		_, err := p.putManifest(wire.Once(p.writing(ctx)), desc, data, tag)
		if err == nil || ctx.Err() != nil || errors.Is(err, fault.ErrDigestMismatch) || errors.Is(err, fault.ErrUnauthenticated) {
			return err
		}
		again := wire.Passing(statusOf(err)) || statusOf(err) == 0 && errors.Is(err, fault.ErrTemporary)
		if again && was == nil {
			there, lookErr := p.resolveUpstream(ctx, tag)
			if lookErr != nil {
				return err
			}
			was = &there
		}
		if again {
			after, asked := fault.RetryAfter(err)
			if after, again = tries.Next(after, asked); again {
				if err := delay.For(ctx, after); err != nil {
					return err
				}
			}
		}
		there, lookErr := p.resolveUpstream(ctx, tag)
		switch {
		case lookErr != nil:
			return err
		case there == desc.Digest:
			return nil // also if existing tags are immutable
		case !again:
			return err
		case there != *was:
			return ErrMoved
		}
	}
}

// resolveUpstream is the digest of a tag at the registry itself; "": the tag does not exist.
func (p *remotePlace) resolveUpstream(ctx context.Context, tag string) (digest.Digest, error) {
	a := p.upstream()
	return orNothing(p.resolveAt(p.reading(ctx, a), a, tag))
}

// orNothing returns "" for a missing tag, and for a truncated manifest of a killed publisher that a lax registry has
// stored.
func orNothing(d ocispec.Descriptor, err error) (digest.Digest, error) {
	if errors.Is(err, fault.ErrNotFound) || errors.Is(err, fault.ErrInvalid) {
		return "", nil
	}
	return d.Digest, err
}

// emptyConfig is the descriptor of the empty config, which most artifacts have.
var emptyConfig = []byte(ocispec.DescriptorEmptyJSON.Digest)

// forgetExisting drops all conclusions about existing blobs.
func (p *remotePlace) forgetExisting() { p.hasEmpty.Store(false) }

// putManifest sends a manifest and returns the response's headers.
func (p *remotePlace) putManifest(ctx context.Context, desc ocispec.Descriptor, data []byte, target string) (http.Header, error) {
	resp, err := p.upstream().call(ctx, http.MethodPut, "manifests/"+target, http.Header{"Content-Type": {desc.MediaType}}, data)
	if err != nil {
		return nil, err
	}
	resp.Body.Close()
	if d := digest.Digest(resp.Header.Get("Docker-Content-Digest")); checkDigest(d) == nil && d != desc.Digest && d.Algorithm() == desc.Digest.Algorithm() {
		return nil, fmt.Errorf("it stored %s instead: %w", d, fault.ErrDigestMismatch)
	}
	if bytes.Contains(data, emptyConfig) {
		p.hasEmpty.Store(true)
	}
	return resp.Header, nil
}
