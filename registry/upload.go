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
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/cache"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

// Uploads in chunks, "Pushing a blob in chunks" of the distribution specification.
const (
	// chunkSize is the size of the first chunk. A registry that stores only complete chunks gets an interrupted one again; others keep what
	// has arrived of it. Each chunk costs the registry a request and a sync of its disk: after one that took less than chunkTime the next is
	// growth times as large, otherwise as much smaller, so that on a steady link none takes longer than growth*chunkTime or than chunkSize
	// needs. After an interrupted one all are smaller: a proxy may limit the size of requests. The limit is kept for other blobs if it says so.
	chunkSize = 2 << 20
	chunkTime = 4 * time.Second
	growth    = 4
	largest   = 128 << 20 // that a fast link gets: a link may become slow within it
	heldChunk = 8 << 20   // of a file, in memory; those of a registry are not held
	marks     = 4         // times that the state of the hash is stored in a chunk, so that little is read again
	// maxChunk bounds the smallest chunk that a registry may require.
	maxChunk = 64 << 20
	// maxUploadTries bounds consecutive interruptions of an upload without progress.
	maxUploadTries = 5
	// maxRestarts bounds the restarts of an upload that the registry has lost, or that has wrong bytes.
	maxRestarts = 2
)

var (
	// errNoChunks: the registry accepts a blob only in one request.
	errNoChunks = fmt.Errorf("no upload in chunks: %w", fault.ErrUnsupported)
	// errRestart: the bytes sent in this upload are useless.
	errRestart = fmt.Errorf("the upload has to begin anew: %w", fault.ErrTemporary)
)

// opener opens a blob from a byte on. Its caller checks the digest.
type opener func(ctx context.Context, off int64) (io.ReadCloser, error)

// upload is the upload of one blob in chunks. It hashes the sent bytes and stores the state of the hash
// with the session, so that the digest of the whole blob is checked here too, also over several runs; the registry checks it again when the
// upload is closed.
type upload struct {
	p        *remotePlace
	a        *access
	desc     ocispec.Descriptor
	open     opener
	recalled bool // the session is of an earlier run
	folder   cache.Folder
	file     string // in it, with the session
	off      int64  // bytes that the registry has
	hash     hash.Hash
	hashed   int64 // bytes that were hashed
	least    int64 // of a chunk
	next     int64 // size of the next chunk, if least and most allow it
	most     int64 // of a chunk

	mu       sync.Mutex  // a chunk is read by the transport
	location *url.URL    // set by move
	states   []hashState // as stored
	kept     time.Time   // when they were
}

// pushChunks sends a blob in chunks. The session of an earlier run is continued. errNoChunks: nothing was sent.
func (p *remotePlace) pushChunks(ctx context.Context, a *access, desc ocispec.Descriptor, open opener) (err error) {
	u := &upload{p: p, a: a, desc: desc, open: open, folder: p.c.o.Uploads, file: sessionFile(a, desc.Digest), least: chunkSize, next: chunkSize, most: desc.Size}
	unlock, ok := u.folder.Lock(u.file)
	defer unlock()
	if !ok {
		u.folder = "" // another process sends the blob: two would write to one session
	}
	defer func() {
		if errors.Is(err, errNoChunks) {
			u.forget()
		}
	}()
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
			if !errors.Is(err, fault.ErrTemporary) || tries > maxUploadTries || errors.Is(err, syscall.EIO) { // error of the source medium
				return err
			}
			if late := delay.For(ctx, wire.Backoff(tries)); late != nil {
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
	if err == nil && least > u.least {
		u.least = least
	}
	u.recalled = false
	u.move(nil)
	u.off, u.hashed, u.hash = 0, 0, u.desc.Digest.Algorithm().Hash()
	if err := u.follow(resp); err != nil || u.location == nil || u.least > maxChunk {
		return errNoChunks
	}
	u.remember()
	if !u.kept.IsZero() {
		u.folder.RemoveOlder(u.kept.Add(-sessionAge))
	}
	return nil
}

// move sets the address of the session's next request. A chunk that is read still stores it.
func (u *upload) move(to *url.URL) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.location = to
}

// restart ends a session and opens another.
func (u *upload) restart(ctx context.Context) error {
	u.forget()
	if resp, err := u.request(ctx, http.MethodDelete, u.location, nil); err == nil { // otherwise the registry removes it later
		resp.Body.Close()
	}
	return u.begin(ctx)
}

// follow takes the address of the session's next request from a response. It must be at the same registry.
func (u *upload) follow(resp *http.Response) error {
	said := resp.Header.Get("Location")
	if said == "" {
		return nil
	}
	next, err := resp.Request.URL.Parse(said)
	if err != nil || !wire.SameOrigin(next, resp.Request.URL) {
		return fmt.Errorf("its upload goes on at another address: %w", fault.ErrUnsupported)
	}
	u.move(next)
	return nil
}

type uploadKey struct{}

// request sends one request of the session, once: after an error the registry's offset is queried. prepare may add to it.
func (u *upload) request(ctx context.Context, method string, to *url.URL, prepare func(*http.Request)) (*http.Response, error) {
	ctx = context.WithValue(ctx, uploadKey{}, true)
	if method != http.MethodGet {
		ctx = wire.Once(ctx)
	}
	r, err := http.NewRequestWithContext(ctx, method, to.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("the address of an upload is none: %w", fault.ErrInvalid) // it may contain secrets
	}
	if method == http.MethodPatch || method == http.MethodPut {
		r.Header.Set("Content-Type", "application/octet-stream")
	}
	if prepare != nil {
		prepare(r)
	}
	return u.a.send(r)
}

// ask queries the registry's offset.
func (u *upload) ask(ctx context.Context) error {
	resp, err := u.request(ctx, http.MethodGet, u.location, nil)
	if err != nil {
		return err
	}
	resp.Body.Close()
	off, ok := received(resp.Header.Get("Range"))
	if !ok || off > u.desc.Size || off < u.hashed {
		return fmt.Errorf("it does not say what it has of an upload: %w", fault.ErrUnsupported)
	}
	u.off = off
	u.skip()
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

// send sends the missing bytes and closes the upload.
func (u *upload) send(ctx context.Context) error {
	var content io.ReadCloser // from u.hashed on; nil: not open
	drop := func() {
		if content != nil {
			content.Close()
			content = nil
		}
	}
	defer func() { drop() }()
	for u.off < u.desc.Size || u.hashed < u.desc.Size {
		var err error
		if content == nil {
			if content, err = u.open(ctx, u.hashed); err != nil {
				return err
			}
		}
		if u.hashed < u.off { // the registry has it already
			n, err := io.CopyN(u.hash, content, u.off-u.hashed)
			if u.hashed += n; err != nil {
				return broken(err)
			}
			continue
		}
		goes, err := u.patch(ctx, content)
		if err != nil {
			return err
		}
		if !goes {
			drop()
		}
	}
	return u.finish(ctx)
}

// patch sends a chunk of content. goes: content is positioned after the sent bytes.
func (u *upload) patch(ctx context.Context, content io.Reader) (goes bool, err error) {
	n := min(max(u.least, min(u.next, u.most, u.a.largest.Load())), u.desc.Size-u.off)
	open := u.open
	if _, disk := content.(*fileReader); disk {
		// A worn medium may return wrong bytes right before an unreadable one: nothing is sent before the whole chunk was read.
		n = min(n, max(u.least, heldChunk))
		data := make([]byte, n)
		if _, err := io.ReadFull(content, data); err != nil {
			return false, broken(err)
		}
		content = bytes.NewReader(data)
		open = func(context.Context, int64) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(data)), nil }
	}
	u.continues()
	first := u.chunk(content, n)
	sent := first
	var slow atomic.Bool
	timer := time.AfterFunc(chunkTime, func() { slow.Store(true) })
	defer timer.Stop()
	resp, err := u.request(ctx, http.MethodPatch, u.location, func(r *http.Request) {
		r.Header.Set("Content-Range", fmt.Sprintf("%d-%d", u.off, u.off+n-1))
		r.Body, r.ContentLength = first, n
		r.GetBody = func() (io.ReadCloser, error) { // for a request with a new token
			again, err := open(ctx, u.off)
			if err != nil {
				return nil, err
			}
			sent.stop() // the transport may still read it
			sent = u.chunk(again, n)
			sent.end = again.Close
			return sent, nil
		}
	})
	hash, left, failed := sent.stop()
	switch {
	case failed != nil:
		if err == nil {
			resp.Body.Close()
		}
		return false, broken(failed)
	case err != nil:
		if u.most = n / growth; statusOf(err) == http.StatusRequestEntityTooLarge {
			u.a.largest.Store(min(u.most, u.a.largest.Load()))
		}
		return false, u.meant(err, n)
	}
	resp.Body.Close()
	has, ok := received(resp.Header.Get("Range"))
	if !ok {
		has = u.off + n
	}
	if has <= u.off || has > u.off+n || has == u.off+n && left > 0 {
		return false, errRestart
	}
	whole := has == u.off+n
	if u.off = has; whole { // otherwise the bytes that it has are skipped
		u.hash, u.hashed = hash, has
	}
	if err := u.follow(resp); err != nil {
		return false, err
	}
	if whole {
		u.remember()
	}
	if u.next = n * growth; slow.Load() {
		u.next = n / growth
	}
	return whole && sent == first, nil
}

// chunk is the body of a request that sends n bytes of a blob. A transport may still read it after it has returned a response.
type chunk struct {
	mu   sync.Mutex
	from io.Reader
	hash hash.Hash // including the bytes sent before
	left int64     // bytes
	err  error     // of from
	end  func() error
	mark func(read int64) // called after each step bytes
	step int64
	read int64
}

func (u *upload) chunk(from io.Reader, n int64) *chunk {
	h, err := u.hash.(hash.Cloner).Clone() // supported by all digest algorithms
	off := u.off
	return &chunk{from: from, hash: h, left: n, err: err, step: max(n/marks, 1), mark: func(read int64) { u.mark(off+read, h) }}
}

func (c *chunk) Read(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	if c.left == 0 {
		return 0, io.EOF
	}
	n, err := c.from.Read(b[:min(int64(len(b)), c.left)])
	_, _ = c.hash.Write(b[:n]) // a hash does not fail
	c.left -= int64(n)
	before := c.read
	if c.read += int64(n); c.read/c.step > before/c.step {
		c.mark(c.read)
	}
	switch {
	case err == io.EOF && c.left > 0:
		c.err = io.ErrUnexpectedEOF
	case err != nil && err != io.EOF:
		c.err = err
	}
	return n, c.err
}

// stop ends the chunk: nothing more is read for it. failed is the read error of from.
func (c *chunk) stop() (h hash.Hash, left int64, failed error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	h, left, failed = c.hash, c.left, c.err
	if c.err == nil {
		c.err = errors.New("the request has ended")
	}
	return h, left, failed
}

func (c *chunk) Close() error {
	if c.end == nil {
		return nil // the next chunk goes on there
	}
	return c.end()
}

// meant classifies a registry's error about a chunk of n bytes.
func (u *upload) meant(err error, n int64) error {
	switch status := statusOf(err); {
	case status == http.StatusRequestEntityTooLarge && n > u.least:
		return fmt.Errorf("%w: %w", err, fault.ErrTemporary) // a smaller one may be accepted
	case status == http.StatusRequestedRangeNotSatisfiable, status == http.StatusConflict:
		return fmt.Errorf("%w: %w", err, fault.ErrTemporary) // its offset differs: it is queried
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
		if u.recalled { // the stored state of an earlier run may be wrong after a power cut
			return errRestart
		}
		return fmt.Errorf("%d bytes with another digest arrived: %w", u.off, fault.ErrDigestMismatch)
	}
	to := *u.location
	query := to.Query()
	query.Set("digest", u.desc.Digest.String())
	to.RawQuery = query.Encode()
	resp, err := u.request(ctx, http.MethodPut, &to, nil)
	if err == nil {
		resp.Body.Close()
		return nil
	}
	there, lookErr := u.p.existsAt(ctx, u.a, u.desc) // the response may be lost, or another client was faster
	switch {
	case lookErr == nil && there:
		return nil
	case errors.Is(err, fault.ErrTemporary), errors.Is(err, fault.ErrDenied), errors.Is(err, fault.ErrUnauthenticated):
		return err
	}
	return fmt.Errorf("%w: %w", errRestart, err)
}

// state is the state of a hash; nil: it cannot be encoded.
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
