package registry

import (
	"bytes"
	"context"
	"errors"

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

// tellsMissing reports whether blobs that are sent from now on had not been there; a POST with the content does not say it.
func (p *remotePlace) tellsMissing() bool {
	how := taking(p.upstream().takes.Load())
	return how == takesMount || how == takesAsked
}

// pushSmall sends a small blob. done is false where the registry has to be asked in the ordinary way.
func (p *remotePlace) pushSmall(ctx context.Context, desc ocispec.Descriptor, data []byte) (done, sent bool, err error) {
	a := p.upstream()
	opened := true // an upload, which took the content with a further request
	switch how := taking(a.takes.Load()); how {
	case takesAsked:
		return false, false, nil
	case takesMount:
		opened, err = p.mountFrom(ctx, desc, p.name, func() ([]byte, error) { return data, nil })
		sent = opened
	default:
		sent = true
		err = (&uploader{access: a, data: data, whole: desc.Digest}).repository().Blobs().Push(ctx, desc, bytes.NewReader(data))
		if !errors.Is(err, errWhole) {
			break
		}
		opened, err = false, nil
		if how == takesUnknown {
			// Not every registry that says "created" has looked at the content.
			there, err := p.existsAt(ctx, a, desc)
			if err != nil || !there {
				return p.otherwise(ctx, a, errors.Join(err, fault.ErrUnsupported))
			}
			a.takes.Store(int32(takesPost))
		}
	}
	if err != nil {
		return p.otherwise(ctx, a, a.answer(ctx, err))
	}
	if opened {
		a.takes.Store(int32(takesMount))
	}
	return true, sent, nil
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
