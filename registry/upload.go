package registry

import (
	"bytes"
	"context"
	"encoding"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/cache"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

// Uploads in chunks, "Pushing a blob in chunks" of the distribution specification.
const (
	// chunkSize is what an interrupted upload may have to send again: ten seconds of a link of 2 Mbit/s. Later chunks are an
	// eighth of what was sent before, up to mostChunk: each costs the registry a request, and some time to take up its hash.
	chunkSize = 2 << 20
	mostChunk = 8 << 20
	// maxChunk bounds what a registry may ask for as its smallest chunk: chunks are in memory.
	maxChunk = 64 << 20
	// maxUploadTries is how often in a row an upload may break without progress.
	maxUploadTries = 5
	// maxRestarts is how often an upload begins anew that the registry has lost, or that has other bytes.
	maxRestarts = 2
)

var (
	// errNoChunks: the registry takes a blob in one piece only.
	errNoChunks = fmt.Errorf("no upload in chunks: %w", fault.ErrUnsupported)
	// errRestart: what was sent in this upload is of no use.
	errRestart = fmt.Errorf("the upload has to begin anew: %w", fault.ErrTemporary)
)

// opener opens a blob from a byte on. From 0 on the reader checks the digest, else its caller does.
type opener func(ctx context.Context, off int64) (io.ReadCloser, error)

// upload is the upload of one blob in chunks. It hashes what it sends and remembers the state of the hash with the session, so that
// the digest of the whole is checked here too, whatever was sent before; the registry checks it again when the upload is closed.
type upload struct {
	p        *remotePlace
	a        *access
	desc     ocispec.Descriptor
	open     opener
	recalled bool // the session is of an earlier run
	folder   cache.Folder
	file     string // in it, that remembers the session
	location *url.URL
	off      int64 // what the registry has
	hash     hash.Hash
	hashed   int64 // bytes that the hash has seen
	chunk    int64
}

// pushChunks sends a blob in chunks. A session that an earlier run left is continued. errNoChunks: nothing was sent.
func (p *remotePlace) pushChunks(ctx context.Context, a *access, desc ocispec.Descriptor, open opener) error {
	u := &upload{p: p, a: a, desc: desc, open: open, folder: p.c.o.Uploads, file: sessionFile(a, desc.Digest), chunk: chunkSize}
	if !u.recall(ctx) {
		if err := u.begin(ctx); err != nil {
			return err
		}
	}
	tries, restarts := 0, 0
	for {
		before := u.off
		err := u.send(ctx)
		if err == nil {
			u.forget()
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if errors.Is(err, errRestart) {
			if restarts++; restarts > maxRestarts {
				u.forget()
				return err
			}
			err = u.restart(ctx)
		} else if tries++; u.off > before {
			tries = 0
		}
		if err != nil {
			if !errors.Is(err, fault.ErrTemporary) || tries > maxUploadTries || errors.Is(err, syscall.EIO) { // of the medium that is read
				return err
			}
			if late := sleep(ctx, wire.Backoff(tries)); late != nil {
				return late
			}
			if err := u.ask(ctx); err != nil && !errors.Is(err, fault.ErrTemporary) {
				if err := u.restart(ctx); err != nil {
					return err
				}
			}
		}
	}
}

// begin opens a session.
func (u *upload) begin(ctx context.Context) error {
	resp, err := u.a.call(ctx, http.MethodPost, "blobs/uploads/", nil, nil)
	if err != nil {
		return err
	}
	resp.Body.Close()
	least, err := strconv.ParseInt(resp.Header.Get("OCI-Chunk-Min-Length"), 10, 64)
	if err == nil && least > u.chunk {
		u.chunk = least
	}
	u.recalled = false
	u.location, u.off, u.hashed, u.hash = nil, 0, 0, u.desc.Digest.Algorithm().Hash()
	if err := u.follow(resp); err != nil || u.location == nil || u.chunk > maxChunk {
		return errNoChunks
	}
	return nil
}

// restart ends a session and opens another.
func (u *upload) restart(ctx context.Context) error {
	u.forget()
	if resp, err := u.request(ctx, http.MethodDelete, u.location, nil, nil); err == nil { // registries remove it at some time anyway
		resp.Body.Close()
	}
	return u.begin(ctx)
}

// follow takes the address of the session's next request from an answer. It has to be at the same registry.
func (u *upload) follow(resp *http.Response) error {
	said := resp.Header.Get("Location")
	if said == "" {
		return nil
	}
	next, err := resp.Request.URL.Parse(said)
	if err != nil || !wire.SameOrigin(next, resp.Request.URL) {
		return fmt.Errorf("its upload goes on at another address: %w", fault.ErrUnsupported)
	}
	u.location = next
	return nil
}

type uploadKey struct{}

// request sends one request of the session, once: after an error the registry is asked what it has.
func (u *upload) request(ctx context.Context, method string, to *url.URL, header http.Header, body []byte) (*http.Response, error) {
	ctx = context.WithValue(ctx, uploadKey{}, true)
	if method != http.MethodGet {
		ctx = wire.Once(ctx)
	}
	r, err := http.NewRequestWithContext(ctx, method, to.String(), bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("the address of an upload is none: %w", fault.ErrInvalid) // it may hold secrets
	}
	if header != nil {
		r.Header = header
	}
	return u.a.send(r)
}

// ask finds out what the registry has.
func (u *upload) ask(ctx context.Context) error {
	resp, err := u.request(ctx, http.MethodGet, u.location, nil, nil)
	if err != nil {
		return err
	}
	resp.Body.Close()
	off, ok := received(resp.Header.Get("Range"))
	if !ok || off > u.desc.Size || off < u.hashed {
		return fmt.Errorf("it does not say what it has of an upload: %w", fault.ErrUnsupported)
	}
	u.off = off
	return u.follow(resp)
}

// received reads how many bytes a registry has from the header Range: "0-9", with "bytes=" before it at some. "0-0" is none.
func received(s string) (int64, bool) {
	first, last, ok := strings.Cut(strings.TrimPrefix(s, "bytes="), "-")
	n, err := strconv.ParseInt(last, 10, 64)
	switch {
	case !ok || first != "0" || err != nil || n < 0 || n == 1<<63-1:
		return 0, false
	case n == 0:
		return 0, true
	}
	return n + 1, true
}

// send sends what the registry lacks and closes the upload. The next chunk is read while one is sent.
func (u *upload) send(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	chunks := make(chan []byte)
	read, inner := errgroup.WithContext(ctx)
	from, skip := u.hashed, u.off-u.hashed
	if from < u.desc.Size {
		read.Go(func() error {
			defer close(chunks)
			return u.read(inner, from, skip, chunks)
		})
	} else {
		close(chunks)
	}
	var err error
	for chunk := range chunks {
		if skip > 0 { // the first chunk is what the registry has already
			_, _ = u.hash.Write(chunk) // a hash does not fail
			u.hashed += int64(len(chunk))
			skip -= int64(len(chunk))
			continue
		}
		if err = u.patch(ctx, chunk); err != nil {
			cancel()
			break
		}
	}
	if late := read.Wait(); err == nil {
		err = late
	}
	if err != nil {
		return err
	}
	return u.finish(ctx)
}

// read reads the blob from a byte on, first the bytes that the registry has already.
func (u *upload) read(ctx context.Context, from, skip int64, chunks chan<- []byte) error {
	content, err := u.open(ctx, from)
	if err != nil {
		return err
	}
	defer content.Close()
	for left := u.desc.Size - from; left > 0; {
		n := min(max(u.chunk, min((u.desc.Size-left)/8, mostChunk)), left)
		if skip > 0 {
			n = min(n, skip)
			skip -= n
		}
		chunk := make([]byte, n)
		if _, err := io.ReadFull(content, chunk); err != nil {
			return broken(err)
		}
		select {
		case chunks <- chunk:
			left -= n
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// patch sends a chunk.
func (u *upload) patch(ctx context.Context, chunk []byte) error {
	for len(chunk) > 0 {
		resp, err := u.request(ctx, http.MethodPatch, u.location, http.Header{
			"Content-Type": {"application/octet-stream"}, "Content-Range": {fmt.Sprintf("%d-%d", u.off, u.off+int64(len(chunk))-1)},
		}, chunk)
		if err != nil {
			return u.meant(err)
		}
		resp.Body.Close()
		n := int64(len(chunk))
		if has, ok := received(resp.Header.Get("Range")); ok {
			n = has - u.off
		}
		if n <= 0 || n > int64(len(chunk)) {
			return errRestart
		}
		_, _ = u.hash.Write(chunk[:n]) // a hash does not fail
		u.off += n
		u.hashed = u.off
		if err := u.follow(resp); err != nil {
			return err
		}
		u.remember()
		chunk = chunk[n:]
	}
	return nil
}

// meant classifies what a registry says of a chunk.
func (u *upload) meant(err error) error {
	switch status := statusOf(err); {
	case status == http.StatusRequestedRangeNotSatisfiable, status == http.StatusConflict:
		return fmt.Errorf("%w: %w", err, fault.ErrTemporary) // it has other bytes than was thought: it is asked
	case status == http.StatusNotFound && u.off > 0, status == http.StatusGone:
		return errRestart
	case status == 0, errors.Is(err, fault.ErrTemporary), errors.Is(err, fault.ErrUnauthenticated), errors.Is(err, fault.ErrDenied):
		return err
	case u.off == 0:
		return errNoChunks
	}
	return errRestart
}

// finish closes the upload.
func (u *upload) finish(ctx context.Context) error {
	if got := fmt.Sprintf("%x", u.hash.Sum(nil)); got != u.desc.Digest.Encoded() {
		u.forget()
		if u.recalled { // what an earlier run remembered may be wrong, after a power cut
			return errRestart
		}
		return fmt.Errorf("%d bytes with another digest arrived: %w", u.off, fault.ErrDigestMismatch)
	}
	to := *u.location
	query := to.Query()
	query.Set("digest", u.desc.Digest.String())
	to.RawQuery = query.Encode()
	resp, err := u.request(ctx, http.MethodPut, &to, http.Header{"Content-Type": {"application/octet-stream"}}, nil)
	if err == nil {
		resp.Body.Close()
		return nil
	}
	there, lookErr := u.p.existsAt(ctx, u.a, u.desc) // the answer may be lost, or somebody else was faster
	switch {
	case lookErr == nil && there:
		return nil
	case errors.Is(err, fault.ErrTemporary), errors.Is(err, fault.ErrDenied), errors.Is(err, fault.ErrUnauthenticated):
		return err
	}
	return fmt.Errorf("%w: %w", errRestart, err)
}

// state is the state of a hash; nil: it has none that can be written down.
func state(h hash.Hash) []byte {
	m, ok := h.(encoding.BinaryMarshaler)
	if !ok {
		return nil
	}
	data, err := m.MarshalBinary()
	if err != nil {
		return nil
	}
	return data
}
