package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

// A blob's connection may break this often without resumeProgress new bytes since the last time.
const (
	maxResumes     = 5
	resumeProgress = 64 << 10
)

// blob reads a whole blob. If a mirror's bytes are wrong, the next place is used.
func (p *remotePlace) blob(ctx context.Context, desc ocispec.Descriptor) ([]byte, error) {
	return p.snap.blob(desc, func() ([]byte, error) { return p.readBlob(ctx, desc) })
}

func (p *remotePlace) readBlob(ctx context.Context, desc ocispec.Descriptor) ([]byte, error) {
	var last error
	for from := 0; from < len(p.at); from++ {
		b := &blobReader{ctx: ctx, p: p, desc: desc, at: from, hash: desc.Digest.Verifier()}
		data, err := b.all()
		if err == nil && b.at == from {
			p.at[from].mismatches.match()
		}
		if err == nil || ctx.Err() != nil {
			return data, err
		}
		if b.at == from {
			p.passedOver(ctx, p.at[b.at], err)
		}
		if last = err; b.at > from {
			from = b.at - 1 // a part came from another place; this place may be correct
		}
	}
	return nil, last
}

func (p *remotePlace) openBlob(ctx context.Context, desc ocispec.Descriptor, off int64, check bool) (io.ReadCloser, error) {
	b := &blobReader{ctx: ctx, p: p, desc: desc, off: off, mark: off}
	if check {
		b.hash = desc.Digest.Verifier()
	}
	if err := b.open(); err != nil {
		return nil, err
	}
	return b, nil
}

// blobReader streams one blob from the first place that has it, and resumes after a broken connection, which oras-go's reader
// does not do: it requests another range only after a Seek.
type blobReader struct {
	ctx   context.Context
	p     *remotePlace
	desc  ocispec.Descriptor
	at    int             // index of the current place
	hash  digest.Verifier // nil: the caller checks
	body  io.ReadCloser
	off   int64
	tries int   // resumes since mark
	mark  int64 // off at the last counted resume
	err   error // result of every further Read
}

func (b *blobReader) all() ([]byte, error) {
	defer b.Close()
	data := make([]byte, b.desc.Size)
	if _, err := io.ReadFull(b, data); err != nil {
		return nil, broken(err)
	}
	// One more read reaches the end, where the digest is checked.
	if _, err := b.Read(make([]byte, 1)); err != io.EOF {
		return nil, err
	}
	return data, nil
}

// Read returns io.EOF only if all bytes were read and match the digest.
func (b *blobReader) Read(buf []byte) (int, error) {
	for b.err == nil {
		if b.off == b.desc.Size {
			b.finish()
			break
		}
		if len(buf) == 0 {
			return 0, nil
		}
		if b.body == nil {
			if err := b.open(); err != nil {
				b.err = err
				break
			}
		}
		n, err := b.body.Read(buf[:min(int64(len(buf)), b.desc.Size-b.off)])
		if n > 0 {
			b.off += int64(n)
			if b.hash != nil {
				_, _ = b.hash.Write(buf[:n]) // a hash does not fail
			}
			return n, nil // an error is returned again by the next Read
		}
		if err != nil {
			b.interrupted(err)
		}
	}
	return 0, b.err
}

func (b *blobReader) finish() {
	b.drop()
	b.err = io.EOF
	if b.hash != nil && !b.hash.Verified() {
		b.err = fmt.Errorf("%d bytes with another digest arrived: %w", b.off, fault.ErrDigestMismatch)
	}
}

// interrupted decides whether to resume after a body ended too early.
func (b *blobReader) interrupted(err error) {
	b.drop()
	if cause := context.Cause(b.ctx); cause != nil {
		b.err = cause
		return
	}
	if b.off-b.mark >= resumeProgress {
		b.tries = 0
	}
	b.tries, b.mark = b.tries+1, b.off
	if b.tries > maxResumes {
		b.err = fmt.Errorf("cut off at byte %d of %d again and again: %w", b.off, b.desc.Size, broken(err))
		return
	}
	if b.tries > 1 {
		b.err = delay.For(b.ctx, wire.Backoff(b.tries-2))
	}
}

// open requests the bytes from off on, from the first place, from at on, that has them.
func (b *blobReader) open() error {
	for {
		a := b.p.at[b.at]
		err := fmt.Errorf("%w", fault.ErrNotFound)
		if a.pull {
			err = b.openAt(a)
		}
		if err == nil || b.ctx.Err() != nil || b.at == len(b.p.at)-1 {
			return err
		}
		b.p.passedOver(b.ctx, a, err)
		b.at++
	}
}

func (b *blobReader) openAt(a *access) error {
	err := b.request(a, b.off > 0)
	if status, ok := errors.AsType[*statusError](err); errors.Is(err, errRange) || ok && status.status == http.StatusRequestedRangeNotSatisfiable {
		return b.request(a, false) // a registry without ranges: what is known already is skipped
	}
	return err
}

// errRange is the error of a registry that answers with another range than the requested one.
var errRange = fmt.Errorf("it resumes at another byte than was asked for: %w", fault.ErrTemporary)

func (b *blobReader) request(a *access, part bool) error {
	header := http.Header{}
	if part {
		// With both ends: some registries support no other form.
		header.Set("Range", fmt.Sprintf("bytes=%d-%d", b.off, b.desc.Size-1))
	}
	resp, err := a.call(b.p.reading(b.ctx, a), http.MethodGet, "blobs/"+b.desc.Digest.String(), header, nil)
	if err != nil {
		return err
	}
	if err := b.accept(resp); err != nil {
		resp.Body.Close()
		return err
	}
	b.body = resp.Body
	return nil
}

// accept checks that the response begins at off, and skips to it if the range was ignored.
func (b *blobReader) accept(resp *http.Response) error {
	rest := b.desc.Size
	if resp.StatusCode == http.StatusPartialContent {
		var first, last int64
		if _, err := fmt.Sscanf(resp.Header.Get("Content-Range"), "bytes %d-%d", &first, &last); err != nil || first != b.off {
			return errRange
		}
		rest -= b.off
	}
	switch {
	case mediaType(resp) == "text/html" && resp.ContentLength != rest:
		return errPage
	case resp.ContentLength >= 0 && resp.ContentLength != rest:
		return fmt.Errorf("%d bytes announced, %d expected: %w", resp.ContentLength, rest, fault.ErrDigestMismatch)
	}
	if resp.StatusCode == http.StatusOK && b.off > 0 {
		if _, err := io.CopyN(io.Discard, resp.Body, b.off); err != nil {
			return broken(err)
		}
	}
	return nil
}

func (b *blobReader) drop() {
	if b.body != nil {
		b.body.Close()
		b.body = nil
	}
}

// Close ends the transfer.
func (b *blobReader) Close() error {
	b.drop()
	if b.err == nil {
		b.err = errors.New("read of a closed blob")
	}
	return nil
}

// verified opens a blob from its beginning so that io.EOF is returned only if the digest matches.
func verified(ctx context.Context, desc ocispec.Descriptor, open opener) (io.ReadCloser, error) {
	body, err := open(ctx, 0)
	if err != nil {
		return nil, err
	}
	return &verifying{body, desc.Digest.Verifier()}, nil
}

type verifying struct {
	io.ReadCloser
	hash digest.Verifier
}

func (v *verifying) Read(b []byte) (int, error) {
	n, err := v.ReadCloser.Read(b)
	_, _ = v.hash.Write(b[:n]) // a hash does not fail
	if err == io.EOF && !v.hash.Verified() {
		err = fmt.Errorf("bytes with another digest arrived: %w", fault.ErrDigestMismatch)
	}
	return n, err
}
