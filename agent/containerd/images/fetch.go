package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// maxReopens is how often an interrupted blob is continued from one endpoint while each attempt brings bytes.
	maxReopens = 16
	// maxAborts is how many attempts to drop a partial blob there are.
	maxAborts = 5
	// stallLimit is the time without a byte of a blob after which the next endpoint is tried.
	stallLimit = time.Minute
	// progressStep is how many bytes pass between two calls of a progress function.
	progressStep = 256 << 10
)

// fetcher downloads blobs of one image into containerd's store, from the first endpoint that has the right bytes.
type fetcher struct {
	r       *Store
	ref     string // repository@digest
	sources []source

	mu       sync.Mutex
	progress func(done, total int64)
	done     int64
	reported int64
	total    int64
}

type source struct {
	name     string
	resolver remotes.Resolver
	fetcher  remotes.Fetcher
	outcome  func(error)
}

// newFetcher uses only content on the device when endpoints is nil.
func (r *Store) newFetcher(ctx context.Context, ref string, endpoints []Endpoint, progress func(done, total int64)) (*fetcher, error) {
	f := &fetcher{r: r, ref: ref, progress: progress}
	for _, e := range endpoints {
		host := docker.RegistryHost{
			Client: e.Client, Host: e.Host, Scheme: e.Scheme, Path: e.Path,
			Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve,
		}
		if host.Path == "" {
			host.Path = "/v2"
		}
		if host.Client == nil {
			return nil, fmt.Errorf("endpoint %s has no HTTP client: %w", e.Host, fault.ErrInvalid)
		}
		// No Authorizer: the library's sends passwords to any realm that a challenge names. The HTTP client authenticates.
		res := docker.NewResolver(docker.ResolverOptions{
			Hosts: func(string) ([]docker.RegistryHost, error) { return []docker.RegistryHost{host}, nil },
		})
		get, err := res.Fetcher(ctx, ref)
		if err != nil {
			return nil, fmt.Errorf("reference %s: %w", ref, failure.As(fault.ErrInvalid, err))
		}
		f.sources = append(f.sources, source{e.Host, res, get, e.Outcome})
	}
	return f, nil
}

// document downloads a small blob and returns its bytes. A descriptor with only a digest is resolved first.
func (f *fetcher) document(ctx context.Context, d *ocispec.Descriptor) ([]byte, error) {
	if err := f.r.dropDamaged(ctx, d.Digest); err != nil {
		return nil, err
	}
	data, err := f.r.readDocument(ctx, d)
	if err == nil || !errors.Is(err, fault.ErrNotFound) || len(f.sources) == 0 {
		return data, err
	}
	if d.Size > maxDocument {
		return nil, fmt.Errorf("%s has %d bytes, over %d: %w", d.Digest, d.Size, maxDocument, fault.ErrTooLarge)
	}
	if d.Size > 0 {
		err = f.blob(ctx, *d)
	} else {
		err = f.eachSource(ctx, func(s source) error {
			_, found, err := s.resolve(ctx, f.ref)
			if err != nil {
				return err
			}
			if found.Size > maxDocument {
				return fmt.Errorf("%s has %d bytes, over %d: %w", d.Digest, found.Size, maxDocument, fault.ErrTooLarge)
			}
			found.Digest = d.Digest
			return f.from(ctx, s, found)
		})
	}
	if err != nil {
		return nil, err
	}
	return f.r.readDocument(ctx, d)
}

// blob downloads one blob into the store, unless it is there.
func (f *fetcher) blob(ctx context.Context, d ocispec.Descriptor) error {
	if len(f.sources) == 0 {
		if _, err := f.r.client.ContentStore().Info(ctx, d.Digest); err != nil {
			return fmt.Errorf("%s is not on this device: %w", d.Digest, failure.Classify(err))
		}
		f.add(d.Size)
		return nil
	}
	return f.eachSource(ctx, func(s source) error { return f.from(ctx, s, d) })
}

// eachSource tries the endpoints in order. The error is that of the last one, the registry itself; but a digest mismatch of any
// endpoint is returned instead: that endpoint is faulty or attacked. Only the end of ctx stops it: a timeout of one endpoint, such as that
// of its dial, is context.DeadlineExceeded too.
func (f *fetcher) eachSource(ctx context.Context, ask func(source) error) error {
	var last, lie error
	for _, s := range f.sources {
		err := ask(s)
		if s.outcome != nil {
			s.outcome(err)
		}
		if err == nil || ctx.Err() != nil || failure.DiskFull(err) {
			return failure.Classify(err)
		}
		last = fmt.Errorf("from %s: %w", s.name, failure.ClassifyRemote(err))
		if errors.Is(err, fault.ErrDigestMismatch) {
			lie = last
			f.r.log.Warn("an endpoint served wrong bytes", "endpoint", s.name, "image", f.ref, "error", err)
		}
	}
	if lie != nil {
		return lie
	}
	return last
}

// from downloads a blob from one endpoint, continuing earlier attempts.
func (f *fetcher) from(ctx context.Context, s source, d ocispec.Descriptor) error {
	if err := d.Digest.Validate(); err != nil {
		return failure.As(fault.ErrInvalid, err)
	}
	if d.Size <= 0 {
		return fmt.Errorf("blob %s of %d bytes: %w", d.Digest, d.Size, fault.ErrInvalid)
	}
	restarted := false
	for reopened := 0; ; {
		before, after, err := f.attempt(ctx, s, d)
		if err == nil {
			f.r.verified.Store(d.Digest.String(), true)
			return nil
		}
		spoiled := errors.Is(err, fault.ErrDigestMismatch) || unsatisfiable(err)
		switch {
		case spoiled:
			// The partial bytes are useless, also for the next attempt or endpoint.
			f.add(-after)
			if aerr := f.r.abort(ctx, remotes.MakeRefKey(ctx, d)); aerr != nil {
				return failure.Classify(aerr)
			}
			if before == 0 || restarted {
				return err
			}
			restarted = true // bytes of an earlier attempt may have been wrong, or ranges are not supported
		case after > before && reopened < maxReopens && ctx.Err() == nil && errors.Is(failure.ClassifyRemote(err), fault.ErrTemporary) && !failure.DiskFull(err):
			f.add(-after)
			reopened++
		default:
			f.add(-after)
			return err
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

// errStalled is the error of an endpoint that accepts a request and then sends nothing.
var errStalled = fmt.Errorf("nothing came for %v: %w", stallLimit, fault.ErrTemporary)

// resolve asks for the descriptor of an image.
func (s source) resolve(ctx context.Context, ref string) (string, ocispec.Descriptor, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, stallLimit, errStalled)
	defer cancel()
	name, d, err := s.resolver.Resolve(ctx, ref)
	return name, d, stalled(ctx, err)
}

// stalled returns errStalled in place of err if a stall ended ctx.
func stalled(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return errStalled
	}
	return err
}

// attempt copies once, and returns the size of the partial blob before and after.
func (f *fetcher) attempt(ctx context.Context, s source, d ocispec.Descriptor) (before, after int64, err error) {
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
	body := &countedBody{f: f}
	if before < d.Size {
		fetching, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		idle := time.AfterFunc(stallLimit, func() { cancel(errStalled) })
		defer idle.Stop()
		rc, err := s.fetcher.Fetch(fetching, d)
		if err != nil {
			return before, before, stalled(fetching, err)
		}
		defer rc.Close()
		body.rc, body.idle = rc, idle
		err = content.Copy(ctx, w, body, d.Size, d.Digest)
		return before, before + body.n, wrongBytes(stalled(fetching, err))
	}
	if err := w.Commit(ctx, d.Size, d.Digest); err != nil && !errdefs.IsAlreadyExists(err) {
		return before, before, wrongBytes(err)
	}
	return before, before, nil
}

// wrongBytes turns the store's error about bytes of another digest into fault.ErrDigestMismatch.
func wrongBytes(err error) error {
	if errdefs.IsFailedPrecondition(err) {
		return failure.As(fault.ErrDigestMismatch, err)
	}
	return err
}

// unsatisfiable reports whether a registry cannot serve the rest of a blob.
func unsatisfiable(err error) bool {
	var status remoteerrors.ErrUnexpectedStatus
	return errors.As(err, &status) && status.StatusCode == http.StatusRequestedRangeNotSatisfiable ||
		err != nil && strings.Contains(err.Error(), "unhandled content range")
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

// countedBody counts the bytes of a response, and can seek if the response can.
type countedBody struct {
	rc   io.ReadCloser
	f    *fetcher
	idle *time.Timer // ends a download that stalls
	n    int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	b.idle.Reset(stallLimit)
	n, err := b.rc.Read(p)
	b.idle.Stop() // the disk may be slow
	b.n += int64(n)
	b.f.add(int64(n))
	return n, err
}

func (b *countedBody) Seek(offset int64, whence int) (int64, error) {
	s, ok := b.rc.(io.Seeker)
	if !ok {
		return 0, fmt.Errorf("seek in a download: %w", errors.ErrUnsupported)
	}
	return s.Seek(offset, whence)
}
