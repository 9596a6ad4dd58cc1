package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

// pushing is oras-go's view of the registry itself, which does the uploading of blobs.
func (p *remotePlace) pushing() *remote.Repository {
	a := p.upstream()
	return &remote.Repository{Client: &uploader{a}, Reference: p.reference(a), PlainHTTP: a.scheme == "http"}
}

// uploader lets oras-go's requests through our endpoint: with its path, and with every status that says "taken" made the
// one that oras-go knows.
type uploader struct{ a *access }

func (u *uploader) Do(r *http.Request) (*http.Response, error) {
	// The first request goes to "/v2/…" and may have to go elsewhere; the locations that follow are the registry's own.
	if u.a.path != "/v2" && r.Method == http.MethodPost {
		r.URL.Path = u.a.path + strings.TrimPrefix(r.URL.Path, "/v2")
	}
	resp, err := u.a.auth.Do(r)
	if err != nil {
		return nil, err
	}
	if r.Method == http.MethodPut && taken(resp.StatusCode) {
		resp.StatusCode = http.StatusCreated
	}
	return resp, nil
}

// taken tells whether a registry accepted something: they differ in how they say it.
func taken(status int) bool {
	return status == http.StatusOK || status == http.StatusCreated || status == http.StatusAccepted || status == http.StatusNoContent
}

// pushBlob sends a blob unless it is there; a small one also when that takes fewer requests than to find out.
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
	err = p.upload(ctx, desc, data)
	if errors.Is(err, fault.ErrUnauthenticated) {
		// The token ended between opening the upload and sending it; a second start brings a new one.
		err = p.upload(ctx, desc, data)
	}
	return err == nil, err
}

func (p *remotePlace) upload(ctx context.Context, desc ocispec.Descriptor, data []byte) error {
	return p.oras(ctx, p.pushing().Blobs().Push(ctx, desc, bytes.NewReader(data)))
}

// mount asks the registry to share a blob of another of its repositories, and sends it where that does not work.
func (p *remotePlace) mount(ctx context.Context, desc ocispec.Descriptor, from string, data []byte) (bool, error) {
	if r := (Reference{Scheme: SchemeOCI, Registry: p.host, Repository: from}); validRepository(r) != nil {
		return false, fmt.Errorf("mount from %q: no repository: %w", from, fault.ErrInvalid)
	}
	ctx = p.writing(ctx)
	if there, err := p.existsAt(ctx, p.upstream(), desc); err != nil || there {
		return false, err
	}
	asked := false
	err := p.oras(ctx, p.pushing().Mount(ctx, desc, from, func() (io.ReadCloser, error) {
		asked = true
		return io.NopCloser(bytes.NewReader(data)), nil
	}))
	switch {
	case err == nil:
		return !asked, nil
	case ctx.Err() != nil, errors.Is(err, fault.ErrTemporary):
		return false, err
	}
	// Not allowed to read there, not known there, no such call there: no reason not to send it.
	_, err = p.pushBlob(ctx, desc, data)
	return false, err
}

// holds tells whether another repository of the registry is known to have a blob. Not allowed to ask is no.
func (p *remotePlace) holds(ctx context.Context, repository string, desc ocispec.Descriptor) bool {
	a := p.upstream()
	ref := p.reference(a)
	ref.Repository = repository
	resp, err := a.do(auth.AppendRepositoryScope(ctx, ref, auth.ActionPull), request{
		method: http.MethodHead, suffix: repository + "/blobs/" + desc.Digest.String(),
	})
	if err != nil {
		return false
	}
	return resp.Body.Close() == nil
}

func validRepository(r Reference) error {
	_, err := ParseReference(r.Name())
	return err
}

// oras brings an error of oras-go into our classes.
func (p *remotePlace) oras(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	return p.upstream().transportError(ctx, err)
}

func (p *remotePlace) pushManifest(ctx context.Context, desc ocispec.Descriptor, data []byte, tag string) error {
	if tag != "" {
		return p.setTag(ctx, desc, data, tag, nil)
	}
	_, err := p.putManifest(p.writing(ctx), desc, data, desc.Digest.String())
	return err
}

// errMoved ends the tries to set a tag that somebody else has set meanwhile.
var errMoved = fault.WithHint(fmt.Errorf("it names something else now: %w", fault.ErrConflict),
	"somebody else set it meanwhile: look at it, and decide again")

// setTag puts a manifest under a tag. Before it tries again it looks: what was sent may have been done and its answer lost,
// and a tag that somebody else has set while this one waited is theirs, errMoved. Sent again without a look it would go over
// what they were told had held. was is what the tag names until now ("": nothing); nil: what it names after the first try.
func (p *remotePlace) setTag(ctx context.Context, desc ocispec.Descriptor, data []byte, tag string, was *digest.Digest) error {
	for tries := p.upstream().budget.Tries(); ; {
		_, err := p.putManifest(wire.Once(p.writing(ctx)), desc, data, tag)
		if err == nil || ctx.Err() != nil || errors.Is(err, fault.ErrDigestMismatch) || errors.Is(err, fault.ErrUnauthenticated) {
			return err
		}
		again := wire.Passing(statusOf(err)) || statusOf(err) == 0 && errors.Is(err, fault.ErrTemporary)
		if again && was == nil {
			there, lookErr := p.named(ctx, tag)
			if lookErr != nil {
				return err
			}
			was = &there
		}
		if again {
			after, asked := fault.RetryAfter(err)
			if after, again = tries.Next(after, asked); again {
				if err := sleep(ctx, after); err != nil {
					return err
				}
			}
		}
		there, lookErr := p.named(ctx, tag)
		switch {
		case lookErr != nil:
			return err
		case there == desc.Digest:
			return nil // also where a tag that is there is never set again
		case !again:
			return err
		case there != *was:
			return errMoved
		}
	}
}

// named is what a tag names at the registry itself; "": nothing.
func (p *remotePlace) named(ctx context.Context, tag string) (digest.Digest, error) {
	a := p.upstream()
	return orNothing(p.resolveAt(p.reading(ctx, a), a, tag))
}

// orNothing takes a tag that is not there for one that names nothing, and also one of a lax registry that keeps what a
// killed publisher left half sent.
func orNothing(d ocispec.Descriptor, err error) (digest.Digest, error) {
	if errors.Is(err, fault.ErrNotFound) || errors.Is(err, fault.ErrInvalid) {
		return "", nil
	}
	return d.Digest, err
}

// emptyConfig is how a manifest names the empty config, which most artifacts have.
var emptyConfig = []byte(ocispec.DescriptorEmptyJSON.Digest)

// again makes everything count as unknown that was concluded of blobs.
func (p *remotePlace) again() { p.hasEmpty.Store(false) }

// putManifest sends a manifest and returns the answer's headers.
func (p *remotePlace) putManifest(ctx context.Context, desc ocispec.Descriptor, data []byte, target string) (http.Header, error) {
	resp, err := p.upstream().do(ctx, request{
		method: http.MethodPut, suffix: p.name + "/manifests/" + target, body: data,
		header: http.Header{"Content-Type": {desc.MediaType}},
		accept: []int{http.StatusCreated, http.StatusAccepted, http.StatusNoContent},
	})
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
