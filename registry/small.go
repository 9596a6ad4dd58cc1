package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// smallBlob is up to how many bytes a blob is sent without asking first whether it is there: to ask costs as much.
const smallBlob = 8 << 10

// taking is how a registry takes a small blob with the fewest requests. Its answers tell; the zero value: not known yet.
type taking int32

const (
	takesUnknown taking = iota
	takesPost           // one POST with the content and its digest
	takesMount          // a mount from the repository itself: "there already", or an upload that one PUT ends
	takesAsked          // neither: HEAD, and an upload where that says no
)

// tellsMissing tells whether blobs that are sent from now on had not been there; a POST with the content does not say it.
func (p *remotePlace) tellsMissing() bool {
	how := taking(p.upstream().takes.Load())
	return how == takesMount || how == takesAsked
}

// pushSmall sends a small blob. done is false where the registry has to be asked in the ordinary way.
func (p *remotePlace) pushSmall(ctx context.Context, desc ocispec.Descriptor, data []byte) (done, sent bool, err error) {
	a := p.upstream()
	how := taking(a.takes.Load())
	query := url.Values{"digest": {desc.Digest.String()}}
	switch how {
	case takesAsked:
		return false, false, nil
	case takesMount:
		query = url.Values{"mount": {desc.Digest.String()}, "from": {p.name}}
	}
	r := request{
		method: http.MethodPost, suffix: p.name + "/blobs/uploads/", query: query, header: http.Header{},
		accept: []int{http.StatusCreated, http.StatusAccepted},
	}
	if how != takesMount {
		r.body, r.header = data, http.Header{"Content-Type": {"application/octet-stream"}}
	}
	resp, err := a.do(ctx, r)
	if err != nil {
		return p.otherwise(ctx, a, err)
	}
	resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusAccepted:
		if err := p.endUpload(ctx, a, resp, desc, data); err != nil {
			return p.otherwise(ctx, a, err)
		}
		a.takes.Store(int32(takesMount))
		return true, true, nil
	case how == takesMount:
		return true, false, nil
	case how == takesUnknown:
		// Not every registry that says "created" has looked at the content.
		there, err := p.existsAt(ctx, a, desc)
		if err != nil || !there {
			return p.otherwise(ctx, a, errors.Join(err, fault.ErrUnsupported))
		}
		a.takes.Store(int32(takesPost))
	}
	return true, true, nil
}

// otherwise decides what an error of an unusual request means: what will pass, or would be the same for any other request,
// is told; else the ordinary way is taken from now on.
func (p *remotePlace) otherwise(ctx context.Context, a *access, err error) (done, sent bool, _ error) {
	for _, kind := range []error{fault.ErrTemporary, fault.ErrUnauthenticated, fault.ErrDenied} {
		if ctx.Err() != nil || errors.Is(err, kind) {
			return true, false, err
		}
	}
	a.takes.Store(int32(takesAsked))
	return false, false, nil
}

// endUpload sends all of a blob into an upload that was opened.
func (p *remotePlace) endUpload(ctx context.Context, a *access, opened *http.Response, desc ocispec.Descriptor, data []byte) error {
	at, err := opened.Location()
	if err != nil {
		return fmt.Errorf("an upload without a place: %w", fault.ErrUnsupported)
	}
	if from := opened.Request.URL; at.Hostname() == from.Hostname() && at.Scheme == from.Scheme {
		at.Host = from.Host // some leave the port out
	}
	more := "digest=" + url.QueryEscape(desc.Digest.String())
	at.RawQuery = strings.TrimPrefix(at.RawQuery+"&"+more, "&")
	resp, err := a.do(ctx, request{
		method: http.MethodPut, page: at, body: data, header: http.Header{"Content-Type": {"application/octet-stream"}},
		accept: []int{http.StatusCreated, http.StatusAccepted, http.StatusNoContent},
	})
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
