package images

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// maxAborts is how many attempts to drop a partial blob there are.
	maxAborts = 5
	// progressStep is how many bytes pass between two calls of a progress function.
	progressStep = 256 << 10
)

// Endpoint is one server of a repository's content: a mirror, or the registry itself. Its errors are of artifacts/fault.
type Endpoint interface {
	Host() string // with its port
	// Manifest reads a manifest of at most limit bytes, which match its digest.
	Manifest(ctx context.Context, d digest.Digest, limit int64) (ocispec.Descriptor, []byte, error)
	// OpenBlob reads a blob from byte off on, and resumes where a connection breaks. Its digest is not checked.
	OpenBlob(ctx context.Context, d ocispec.Descriptor, off int64) (io.ReadCloser, error)
	// Outcome takes the result of what was read: nil, fault.ErrDigestMismatch, or another error.
	Outcome(error)
}

// EndpointsOf makes the endpoints that a registry client finds those of [Options].
func EndpointsOf[E Endpoint](find func(repository string) ([]E, error)) func(repository string) ([]Endpoint, error) {
	return func(repository string) ([]Endpoint, error) {
		found, err := find(repository)
		out := make([]Endpoint, len(found))
		for i, e := range found {
			out[i] = e
		}
		return out, err
	}
}

// fetcher downloads blobs of one image into containerd's store, from the first endpoint that has the right bytes.
type fetcher struct {
	r         *Store
	ref       string     // repository@digest
	endpoints []Endpoint // none: only content on the device is used

	mu       sync.Mutex
	progress func(done, total int64)
	done     int64
	reported int64
	total    int64
}

// document returns the bytes of a small blob; it is downloaded if the store does not have it. A descriptor with only a digest is of a manifest.
func (f *fetcher) document(ctx context.Context, d *ocispec.Descriptor) ([]byte, error) {
	if err := f.r.dropDamaged(ctx, d.Digest); err != nil {
		return nil, err
	}
	data, err := f.r.readDocument(ctx, d)
	if err == nil || !errors.Is(err, fault.ErrNotFound) || len(f.endpoints) == 0 {
		return data, err
	}
	if d.Size > maxDocument {
		return nil, fmt.Errorf("%s has %d bytes, over %d: %w", d.Digest, d.Size, maxDocument, fault.ErrTooLarge)
	}
	if d.Size == 0 || images.IsManifestType(d.MediaType) || images.IsIndexType(d.MediaType) {
		err = f.eachEndpoint(ctx, d.Digest, func(e Endpoint) error { return f.manifest(ctx, e, *d) })
	} else {
		err = f.blob(ctx, *d)
	}
	if err != nil {
		return nil, err
	}
	return f.r.readDocument(ctx, d)
}

// manifest copies a manifest from an endpoint into the store.
func (f *fetcher) manifest(ctx context.Context, e Endpoint, d ocispec.Descriptor) error {
	found, data, err := e.Manifest(ctx, d.Digest, maxDocument)
	if err != nil {
		return err
	}
	if d.Size > 0 && d.Size != found.Size {
		return fmt.Errorf("%s has %d bytes, not %d: %w", d.Digest, found.Size, d.Size, fault.ErrInvalid)
	}
	store, ref := f.r.client.ContentStore(), remotes.MakeRefKey(ctx, found)
	if err = content.WriteBlob(ctx, store, ref, bytes.NewReader(data), found); errdefs.IsFailedPrecondition(err) { // the first bytes are of an attempt before a power cut
		if err = f.r.abort(ctx, ref); err == nil {
			err = content.WriteBlob(ctx, store, ref, bytes.NewReader(data), found)
		}
	}
	return err
}

// blob downloads one blob into the store, unless it is there.
func (f *fetcher) blob(ctx context.Context, d ocispec.Descriptor) error {
	if len(f.endpoints) == 0 {
		if _, err := f.r.client.ContentStore().Info(ctx, d.Digest); err != nil {
			return fmt.Errorf("%s is not on this device: %w", d.Digest, failure.Classify(err))
		}
		f.add(d.Size)
		return nil
	}
	return f.eachEndpoint(ctx, d.Digest, func(e Endpoint) error { return f.from(ctx, e, d) })
}

// eachEndpoint tries the endpoints in order. The error is that of the last one, the registry itself; but a digest mismatch of any
// endpoint is returned instead: that endpoint is faulty or attacked. Only the end of ctx stops it: a timeout of one endpoint, such as that
// of its dial, is context.DeadlineExceeded too.
func (f *fetcher) eachEndpoint(ctx context.Context, d digest.Digest, ask func(Endpoint) error) error {
	var last, lie error
	what := d.String() + " "
	if strings.HasSuffix(f.ref, d.String()) {
		what = "" // the image itself, which the caller names
	}
	for _, e := range f.endpoints {
		err := ask(e)
		e.Outcome(err)
		if err == nil || ctx.Err() != nil || failure.DiskFull(err) {
			return failure.Classify(err)
		}
		last = fmt.Errorf("%sfrom %s: %w", what, e.Host(), failure.Classify(err))
		if errors.Is(err, fault.ErrDigestMismatch) {
			lie = last
			f.r.log.Warn("an endpoint served wrong bytes", "endpoint", e.Host(), "image", f.ref, "error", err)
		}
	}
	if lie != nil {
		return lie
	}
	return last
}

// from downloads a blob from one endpoint, continuing earlier attempts.
func (f *fetcher) from(ctx context.Context, e Endpoint, d ocispec.Descriptor) error {
	if err := d.Digest.Validate(); err != nil {
		return failure.As(fault.ErrInvalid, err)
	}
	if d.Size <= 0 {
		return fmt.Errorf("blob %s of %d bytes: %w", d.Digest, d.Size, fault.ErrInvalid)
	}
	for again := false; ; again = true {
		before, after, err := f.attempt(ctx, e, d)
		if err == nil {
			f.r.verified.Store(d.Digest.String(), true)
			return nil
		}
		f.add(-after)
		if !errors.Is(err, fault.ErrDigestMismatch) || after == before && before < d.Size {
			return err // and what another endpoint has sent stays
		}
		// The partial bytes are useless, also for the next attempt or endpoint.
		if aerr := f.r.abort(ctx, remotes.MakeRefKey(ctx, d)); aerr != nil {
			return failure.Classify(aerr)
		}
		if before == 0 || again {
			return err // else bytes of an earlier attempt may have been wrong: once more from the beginning
		}
	}
}

// abort drops a partial blob. It retries for a moment: containerd may still be closing the last writer.
func (r *Store) abort(ctx context.Context, ref string) error {
	for try := 1; ; try++ {
		err := r.client.ContentStore().Abort(ctx, ref)
		if err == nil || errdefs.IsNotFound(err) {
			return nil
		}
		if try == maxAborts {
			return err
		}
		if err := delay.For(ctx, time.Duration(try)*10*time.Millisecond); err != nil {
			return err
		}
	}
}

// attempt copies once, and returns the size of the partial blob before and after.
func (f *fetcher) attempt(ctx context.Context, e Endpoint, d ocispec.Descriptor) (before, after int64, err error) {
	w, err := content.OpenWriter(ctx, f.r.client.ContentStore(), content.WithRef(remotes.MakeRefKey(ctx, d)), content.WithDescriptor(d))
	if errdefs.IsAlreadyExists(err) {
		f.add(d.Size)
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	defer w.Close()
	st, err := w.Status()
	if err != nil {
		return 0, 0, err
	}
	before = st.Offset
	f.add(before)
	if before > d.Size {
		return before, before, fmt.Errorf("%d bytes of %d are here: %w", before, d.Size, fault.ErrDigestMismatch)
	}
	if before == d.Size {
		if err := w.Commit(ctx, d.Size, d.Digest); err != nil && !errdefs.IsAlreadyExists(err) {
			return before, before, wrongBytes(err)
		}
		return before, before, nil
	}
	blob, err := e.OpenBlob(ctx, d, before)
	if err != nil {
		return before, before, err
	}
	defer blob.Close()
	body := &countedBody{rest: blob, from: before, f: f}
	err = content.Copy(ctx, w, body, d.Size, d.Digest)
	return before, before + body.n, wrongBytes(err)
}

// wrongBytes turns the store's error about bytes of another digest into fault.ErrDigestMismatch.
func wrongBytes(err error) error {
	if errdefs.IsFailedPrecondition(err) {
		return failure.As(fault.ErrDigestMismatch, err)
	}
	return err
}

// handle is blob as a handler for containerd's unpacker.
func (f *fetcher) handle(ctx context.Context, d ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	if images.IsLayerType(d.MediaType) {
		return nil, f.blob(ctx, d)
	}
	f.add(d.Size) // documents were downloaded before
	return nil, nil
}

func (f *fetcher) expect(total int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done, f.reported, f.total = 0, 0, total
}

// arrived is the number of downloaded bytes.
func (f *fetcher) arrived() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.done
}

// add counts bytes; a negative n reverts what an attempt had counted.
func (f *fetcher) add(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done += n
	if f.progress == nil || f.total == 0 || n <= 0 || f.done-f.reported < progressStep && f.done < f.total {
		return
	}
	f.reported = f.done
	f.progress(min(f.done, f.total), f.total)
}

// countedBody is a blob of which the first bytes are in the store already; it counts the others.
type countedBody struct {
	rest io.Reader
	from int64 // where rest begins
	f    *fetcher
	n    int64 // bytes of rest that were read
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.rest.Read(p)
	b.n += int64(n)
	b.f.add(int64(n))
	return n, err
}

// Seek lets content.Copy begin where the store's part ends.
func (b *countedBody) Seek(offset int64, _ int) (int64, error) {
	if offset != b.from+b.n {
		return 0, fmt.Errorf("seek byte %d of a download: %w", offset, errors.ErrUnsupported)
	}
	return offset, nil
}
