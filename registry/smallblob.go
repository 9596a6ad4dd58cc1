package registry

import (
	"bytes"
	"context"
	"errors"
	"net/http"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// smallBlob is the largest blob, in bytes, that is sent without a check whether it exists, because the check costs as much.
const smallBlob = 8 << 10

// smallPush is the way in which a registry accepts a small blob with the fewest requests, learned from its responses. The zero value: unknown.
type smallPush int32

const (
	smallUnknown smallPush = iota
	smallPost              // one POST with the content and its digest
	smallMount             // a mount from the repository itself: the blob exists, or an upload that one PUT completes
	smallAsk               // neither: HEAD, and an upload if the blob does not exist
)

// tellsMissing reports whether a sent blob is known not to have existed; a POST with the content does not show it.
func (p *remotePlace) tellsMissing() bool {
	how := smallPush(p.upstream().small.Load())
	return how == smallMount || how == smallAsk
}

// pushSmall sends a small blob. done is false if the ordinary requests are needed.
func (p *remotePlace) pushSmall(ctx context.Context, desc ocispec.Descriptor, data []byte) (done, sent bool, err error) {
	a := p.upstream()
	opened := true // an upload, which needed a further request for the content
	switch how := smallPush(a.small.Load()); how {
	case smallAsk:
		return false, false, nil
	case smallMount:
		opened, err = p.mountFrom(ctx, desc, p.name, func() ([]byte, error) { return data, nil })
		sent = opened
	default:
		sent = true
		err = (&uploader{access: a, data: data, whole: desc.Digest}).repository().Blobs().Push(ctx, desc, bytes.NewReader(data))
		if !errors.Is(err, errWhole) {
			break
		}
		opened, err = false, nil
		if how == smallUnknown {
			// Some registries answer "created" without reading the content.
			there, err := p.existsAt(ctx, a, desc)
			if err != nil || !there {
				return p.fallBack(ctx, a, errors.Join(err, fault.ErrUnsupported))
			}
			a.small.Store(int32(smallPost))
		}
	}
	if err != nil {
		return p.fallBack(ctx, a, a.answer(ctx, err))
	}
	if opened {
		a.small.Store(int32(smallMount))
	}
	return true, sent, nil
}

// fallBack handles the error of an unusual request: an error that is temporary, or the same for any other request,
// is returned; otherwise ordinary requests are used from now on.
func (p *remotePlace) fallBack(ctx context.Context, a *access, err error) (done, sent bool, _ error) {
	for _, kind := range []error{fault.ErrTemporary, fault.ErrUnauthenticated, fault.ErrDenied} {
		if ctx.Err() != nil || errors.Is(err, kind) && statusOf(err) != http.StatusMethodNotAllowed {
			return true, false, err
		}
	}
	a.small.Store(int32(smallAsk))
	return false, false, nil
}
