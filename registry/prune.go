package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// RemoveReferrer takes a manifest out of the referrers of its subject. Gone is no error; a registry that lets nobody delete,
// or not the caller, is fault.ErrUnsupported or fault.ErrDenied.
//
// Where the registry keeps no list of referrers itself, the manifest is only taken out of the list under the fallback tag: a
// list that another writer brings back at the same moment may not name what is gone. The registry collects it, as it does
// all that has no tag.
func (r *Repository) RemoveReferrer(ctx context.Context, subject ocispec.Descriptor, d digest.Digest) error {
	err := checkDigest(d)
	if err == nil {
		err = checkDigest(subject.Digest)
	}
	if err == nil {
		err = r.removeReferrer(ctx, subject, d)
	}
	return r.fail("remove referrer", d.String(), err)
}

func (p *remotePlace) removeReferrer(ctx context.Context, subject ocispec.Descriptor, d digest.Digest) error {
	a := p.upstream()
	list, err := p.referrersByAPI(p.reading(ctx, a), a, subject.Digest)
	api := err == nil
	if err != nil && !errors.Is(err, errNoAPI) {
		return err
	}
	if err := p.dropFallback(p.writing(ctx), subject, d); err != nil {
		return err
	}
	if !api || !lists(list, d) {
		return nil
	}
	ctx = auth.AppendRepositoryScope(ctx, p.reference(a), auth.ActionPull, auth.ActionPush, auth.ActionDelete)
	resp, err := a.do(ctx, request{
		method: http.MethodDelete, suffix: p.name + "/manifests/" + d.String(),
		accept: []int{http.StatusOK, http.StatusAccepted, http.StatusNoContent},
	})
	switch statusOf(err) {
	case http.StatusNotFound:
		return nil
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		return fmt.Errorf("%w: %w", fault.ErrUnsupported, err)
	}
	if err != nil {
		return err
	}
	resp.Body.Close()
	return nil
}

// dropFallback takes an entry out of the list under the fallback tag, if there is one.
func (p *remotePlace) dropFallback(ctx context.Context, subject ocispec.Descriptor, d digest.Digest) error {
	tag := fallbackTag(subject.Digest)
	unlock, err := p.c.locks.lock(ctx, p.host+"/"+p.name+":"+tag)
	if err != nil {
		return err
	}
	defer unlock()
	desc, data, err := p.manifestAt(ctx, p.upstream(), tag, maxIndex)
	list, err := fallbackList(desc, data, err, subject.Digest)
	if err != nil || !lists(list, d) {
		return err
	}
	list = slices.DeleteFunc(list, func(o ocispec.Descriptor) bool { return o.Digest == d })
	index, data, err := referrersIndex(list)
	if err != nil {
		return err
	}
	_, err = p.putManifest(ctx, index, data, tag)
	return err
}

func (p *layoutPlace) removeReferrer(context.Context, ocispec.Descriptor, digest.Digest) error {
	return fmt.Errorf("a layout keeps what is in it: %w", fault.ErrUnsupported)
}

// Upstream is the same repository at the registry itself, without its mirrors: what a mirror shows may be older.
func (r *Repository) Upstream() *Repository {
	p, ok := r.place.(*remotePlace)
	if !ok || len(p.at) == 1 {
		return r
	}
	return &Repository{ref: r.ref, concurrency: r.concurrency, place: &remotePlace{
		c: p.c, host: p.host, name: p.name, at: p.at[len(p.at)-1:], tagged: map[string]entityTag{},
	}}
}
