package registry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

func TestUnchangedPollIsOneRequest(t *testing.T) {
	t.Parallel()
	for _, kind := range testenv.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			s := testenv.Registry(t, kind)
			c := clientFor(t, s)
			name := s.Reference("line/state")
			want, _ := put(t, openName(t, c, name), "state", nil, "press-07")
			poll := func() {
				t.Helper()
				if got, err := c.Resolve(t.Context(), name, "press-07"); err != nil || got.Digest != want.Digest {
					t.Fatalf("Resolve = %v, %v, want %v", got.Digest, err, want.Digest)
				}
			}
			poll() // where tokens have scopes, the first poll asks for one that may read
			s.Faults.Forget()
			for n := range 5 {
				poll()
				if all := s.Faults.Requests("", ""); len(all) != n+1 || all[n].Method != http.MethodHead || all[n].Sent != 0 {
					t.Fatalf("after %d polls: %+v, want one HEAD each", n+1, all)
				}
			}
		})
	}
}

func BenchmarkUnchangedPoll(b *testing.B) {
	s := testenv.Registry(b, testenv.Distribution)
	c := clientFor(b, s)
	name := s.Reference("line/state")
	put(b, openName(b, c, name), "state", nil, "press-07")
	s.Faults.Forget()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Resolve(b.Context(), name, "press-07"); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(s.Faults.Requests("", "")))/float64(b.N), "requests/op")
}

// BenchmarkUnchangedPollClient is the client's part alone: what answers allocates nothing.
func BenchmarkUnchangedPollClient(b *testing.B) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed below
			}
			answerPolls(conn)
		}
	}()
	c := newClient(b, registry.Options{})
	b.Cleanup(func() {
		_ = l.Close()
		c.Close() // ends the connection
		<-done
	})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := c.Resolve(b.Context(), l.Addr().String()+"/line/state", "press-07"); err != nil {
			b.Fatal(err)
		}
	}
}

// answerPolls answers every HEAD with the same, until the client closes.
func answerPolls(conn net.Conn) {
	defer conn.Close()
	answer := []byte("HTTP/1.1 200 OK\r\nContent-Type: application/vnd.oci.image.manifest.v1+json\r\nContent-Length: 25302\r\n" +
		"Docker-Content-Digest: " + someDigest + "\r\n\r\n")
	request := make([]byte, 4096)
	for n := 0; ; {
		more, err := conn.Read(request[n:])
		if err != nil || n+more == len(request) {
			return
		}
		if n += more; bytes.HasSuffix(request[:n], []byte("\r\n\r\n")) {
			if _, err := conn.Write(answer); err != nil {
				return
			}
			n = 0
		}
	}
}

func TestResolveWhereHeadIsNotAnswered(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		kind  testenv.Kind
		fault testenv.Effect
	}{
		"405":                    {testenv.Distribution, testenv.Status(405, 0)},
		"400":                    {testenv.Distribution, testenv.Status(400, 0)},
		"without a digest":       {testenv.Referrers, testenv.Header("Docker-Content-Digest", "")},
		"with half a digest":     {testenv.Lax, testenv.Header("Docker-Content-Digest", "sha256:12")},
		"with a foreign digest":  {testenv.Lax, testenv.Header("Docker-Content-Digest", "md5:d41d8cd98f00b204e9800998ecf8427e")},
		"without a length":       {testenv.Distribution, withoutLength},
		"with a length of zero":  {testenv.Lax, zeroLength},
		"without a content type": {testenv.Distribution, testenv.Header("Content-Type", "")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := testenv.Registry(t, tt.kind)
			r := openName(t, clientFor(t, s), s.Reference("line/state"))
			want, _ := put(t, r, "state", nil, "press-07")
			s.Faults.Add(testenv.Rule{Method: http.MethodHead, Effect: tt.fault})
			for range 2 {
				got, err := r.Resolve(t.Context(), "press-07")
				if err != nil || got.Digest != want.Digest || got.Size != want.Size {
					t.Fatalf("Resolve = %+v, %v, want %+v", got, err, want)
				}
			}
			if tt.kind != testenv.Distribution || name == "without a content type" {
				return
			}
			// distribution sends an ETag: the second GET brings nothing.
			gets := s.Faults.Requests(http.MethodGet, "press-07")
			if len(gets) != 2 || gets[1].Status != http.StatusNotModified || gets[1].Sent != 0 {
				t.Errorf("requests = %+v, want a second one that answers 304", gets)
			}
		})
	}
}

func withoutLength(w http.ResponseWriter, r *http.Request, next http.Handler) {
	next.ServeHTTP(&headerDropper{w, "Content-Length"}, r)
}

func zeroLength(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
	w.Header().Set("Content-Length", "0")
	w.Header().Set("Docker-Content-Digest", someDigest)
}

type headerDropper struct {
	http.ResponseWriter
	name string
}

func (h *headerDropper) WriteHeader(status int) {
	h.Header().Del(h.name)
	h.Header().Set("Transfer-Encoding", "chunked")
	h.ResponseWriter.WriteHeader(status)
}

func TestLyingRegistryIsFoundOut(t *testing.T) {
	t.Parallel()
	other := []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{},"layers":[]}`)
	page := []byte("<html>please log in</html>")
	tests := map[string]struct {
		fault testenv.Effect
		is    error
	}{
		"bit flipped":           {testenv.Corrupt(), fault.ErrDigestMismatch},
		"shortened":             {testenv.Truncate(20), fault.ErrDigestMismatch},
		"swapped":               {testenv.Swap(other), fault.ErrDigestMismatch},
		"swapped, header fits":  {testenv.SwapAs(other, ocispec.MediaTypeImageManifest, digest.FromBytes(other).String()), fault.ErrDigestMismatch},
		"over the limit":        {testenv.Swap(bytes.Repeat([]byte(" "), 2<<20)), fault.ErrTooLarge},
		"over it, without size": {endless, fault.ErrTooLarge},
		"a login page":          {testenv.SwapAs(page, "text/html; charset=utf-8", ""), fault.ErrTemporary},
		"empty":                 {testenv.Swap(nil), fault.ErrDigestMismatch},
		"not found":             {testenv.Status(404, 0), fault.ErrNotFound},
		"forbidden":             {testenv.Status(403, 0), fault.ErrDenied},
		"teapot":                {testenv.Status(418, 0), fault.ErrUnsupported},
	}
	s := testenv.Registry(t, testenv.Distribution)
	r := openName(t, clientFor(t, s), s.Reference("line/state"))
	desc, _ := put(t, r, "state", nil, "press-07")
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: "/manifests/", Effect: tt.fault})
			defer s.Faults.Clear()
			if _, data, err := r.Manifest(t.Context(), desc.Digest); !errors.Is(err, tt.is) || data != nil {
				t.Errorf("Manifest = %q, %v, want %v", data, err, tt.is)
			}
		})
	}
	t.Run("digest header of HEAD", func(t *testing.T) {
		s.Faults.Add(testenv.Rule{Method: http.MethodHead, Effect: testenv.WrongDigest()})
		defer s.Faults.Clear()
		if _, err := r.Resolve(t.Context(), desc.Digest.String()); !errors.Is(err, fault.ErrDigestMismatch) {
			t.Errorf("Resolve by digest = %v, want fault.ErrDigestMismatch", err)
		}
		got, err := r.Resolve(t.Context(), "press-07")
		if err != nil {
			t.Fatalf("Resolve = %v", err)
		}
		// What a tag points at is a claim; fetching it by digest is what finds the lie.
		if _, _, err := r.Manifest(t.Context(), got.Digest); !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("Manifest of a made-up digest = %v, want fault.ErrNotFound", err)
		}
	})
}

func endless(w http.ResponseWriter, r *http.Request, _ http.Handler) {
	w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
	for r.Context().Err() == nil {
		if _, err := w.Write(bytes.Repeat([]byte(" "), 64<<10)); err != nil {
			return
		}
	}
}

func randomBytes(n int) []byte {
	out, source := make([]byte, n), rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(out)
	return out
}

func TestBlobResumesWhereItWasCut(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	data := randomBytes(size)
	desc := blobOf(data)
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers, testenv.Lax} {
		t.Run(string(kind), func(t *testing.T) {
			s := testenv.Registry(t, kind)
			r := openName(t, clientFor(t, s), s.Reference("line/blob"))
			if err := r.PushBlob(t.Context(), desc, data); err != nil {
				t.Fatal(err)
			}
			s.Faults.Forget()
			s.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: "/blobs/", Times: 2, Effect: testenv.Cut(size / 3)})
			got, err := r.Blob(t.Context(), desc, size)
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("Blob = %d bytes, %v", len(got), err)
			}
			gets := requests(t, s, http.MethodGet, "/blobs/", 3)
			if len(gets) != 3 || gets[0].Range != "" || gets[1].Range == "" || gets[2].Range == "" {
				t.Fatalf("requests = %+v, want one and two that resume", gets)
			}
			for _, g := range gets[1:] {
				if !strings.HasSuffix(g.Range, "-1048575") {
					t.Errorf("Range: %s, want one that is closed at both ends", g.Range)
				}
			}
			if sent, _ := s.Faults.Bytes(http.MethodGet, "/blobs/"); sent > size*105/100 {
				t.Errorf("%d bytes for a blob of %d, want at most 1.05 times", sent, size)
			}
		})
	}
}

func TestBlobWhereRangesAreIgnored(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.Distribution)
	r := openName(t, clientFor(t, s), s.Reference("line/blob"))
	data := randomBytes(200_000)
	desc := blobOf(data)
	if err := r.PushBlob(t.Context(), desc, data); err != nil {
		t.Fatal(err)
	}
	s.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: "/blobs/", Times: 1, Effect: testenv.Cut(100_000)})
	s.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: "/blobs/", Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		r.Header.Del("Range")
		next.ServeHTTP(w, r)
	}})
	if got, err := r.Blob(t.Context(), desc, desc.Size); err != nil || !bytes.Equal(got, data) {
		t.Errorf("Blob = %d bytes, %v, want all", len(got), err)
	}
}

func TestBlobStream(t *testing.T) {
	t.Parallel()
	data := randomBytes(100_000)
	desc := blobOf(data)
	tests := map[string]struct {
		fault testenv.Effect
		times int
		is    error
	}{
		"bit flipped":           {testenv.Corrupt(), 0, fault.ErrDigestMismatch},
		"shortened":             {testenv.Truncate(50_000), 0, fault.ErrDigestMismatch},
		"cut for ever":          {testenv.Cut(100), 0, fault.ErrTemporary},
		"cut before anything":   {testenv.Cut(0), 0, fault.ErrTemporary},
		"login page":            {testenv.SwapAs([]byte("<html>"), "text/html", ""), 0, fault.ErrTemporary},
		"gone in the middle":    {testenv.Cut(50_000), 1, nil},
		"reset before answer":   {testenv.Reset(), 2, nil},
		"temporary 503":         {testenv.Status(503, 0), 2, nil},
		"temporary 429 and 0 s": {testenv.Status(429, 0), 1, nil},
	}
	s := testenv.Registry(t, testenv.Distribution)
	c := newClient(t, registry.Options{RetryBudget: 3 * time.Second})
	r := openName(t, c, s.Reference("line/blob"))
	if err := r.PushBlob(t.Context(), desc, data); err != nil {
		t.Fatal(err)
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: "/blobs/", Times: tt.times, Effect: tt.fault})
			defer s.Faults.Clear()
			body, err := r.OpenBlob(t.Context(), desc)
			var got []byte
			if err == nil {
				got, err = io.ReadAll(body)
				defer body.Close()
			}
			if !errors.Is(err, tt.is) || tt.is == nil && !bytes.Equal(got, data) {
				t.Errorf("read %d bytes, %v, want %v", len(got), err, tt.is)
			}
		})
	}
}

func TestStalledBodyIsResumed(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.Distribution)
	data := randomBytes(100_000)
	desc := blobOf(data)
	if err := openName(t, clientFor(t, s), s.Reference("line/blob")).PushBlob(t.Context(), desc, data); err != nil {
		t.Fatal(err)
	}
	r := openName(t, newClient(t, registry.Options{StallTimeout: 2 * time.Second}), s.Reference("line/blob"))
	s.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: "/blobs/", Times: 1, Effect: s.Faults.Stall(40_000)})
	if got, err := r.Blob(t.Context(), desc, desc.Size); err != nil || !bytes.Equal(got, data) {
		t.Errorf("Blob = %d bytes, %v, want all", len(got), err)
	}
}

func TestCallerEndsAStream(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.Distribution)
	r := openName(t, clientFor(t, s), s.Reference("line/blob"))
	data := randomBytes(100_000)
	desc := blobOf(data)
	if err := r.PushBlob(t.Context(), desc, data); err != nil {
		t.Fatal(err)
	}
	s.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: "/blobs/", Effect: s.Faults.Stall(10)})
	ctx, cancel := context.WithCancel(t.Context())
	body, err := r.OpenBlob(ctx, desc)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := io.ReadAll(body); !errors.Is(err, context.Canceled) || errors.Is(err, fault.ErrTemporary) {
		t.Errorf("ReadAll = %v, want context.Canceled alone", err)
	}
	if err := body.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := r.Blob(ctx, desc, desc.Size); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("Blob = %v, want context.DeadlineExceeded and fault.ErrTemporary", err)
	}
}

func TestRateLimits(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.Distribution)
	c := newClient(t, registry.Options{RetryBudget: 2 * time.Second})
	r := openName(t, c, s.Reference("line/state"))
	put(t, r, "state", nil, "press-07")
	t.Run("short: waited for", func(t *testing.T) {
		s.Faults.Add(testenv.Rule{Method: http.MethodHead, Times: 1, Effect: testenv.Status(429, time.Second)})
		defer s.Faults.Clear()
		start := time.Now()
		if _, err := r.Resolve(t.Context(), "press-07"); err != nil {
			t.Errorf("Resolve = %v", err)
		}
		if took := time.Since(start); took < time.Second {
			t.Errorf("came back after %v, want one second", took)
		}
	})
	t.Run("long: told to the caller", func(t *testing.T) {
		s.Faults.Add(testenv.Rule{Method: http.MethodHead, Effect: testenv.Status(429, time.Hour)})
		defer s.Faults.Clear()
		s.Faults.Forget()
		_, err := r.Resolve(t.Context(), "press-07")
		if after, ok := fault.RetryAfter(err); !errors.Is(err, fault.ErrTemporary) || !ok || after != time.Hour {
			t.Errorf("Resolve = %v with %v, want fault.ErrTemporary and an hour", err, after)
		}
		if n := len(s.Faults.Requests("", "")); n != 1 {
			t.Errorf("%d requests, want 1", n)
		}
	})
}

func TestUnreachableIsTemporary(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.Distribution)
	c := newClient(t, registry.Options{RetryBudget: time.Millisecond})
	r := openName(t, c, s.Reference("line/state"))
	desc, _ := put(t, r, "state", nil, "press-07")
	s.Down()
	_, resolve := r.Resolve(t.Context(), "press-07")
	_, _, manifest := r.Manifest(t.Context(), desc.Digest)
	_, blob := r.Blob(t.Context(), desc, 1<<20)
	_, referrers := r.Referrers(t.Context(), desc)
	_, exists := r.Exists(t.Context(), desc)
	_, tags := r.Tags(t.Context())
	push := r.PushBlob(t.Context(), blobOf([]byte("new")), []byte("new"))
	_, name := c.Resolve(t.Context(), "no-such-host.invalid/x", "t")
	for op, err := range map[string]error{
		"Resolve": resolve, "Manifest": manifest, "Blob": blob, "Referrers": referrers, "Exists": exists, "Tags": tags,
		"PushBlob": push, "unknown host": name,
	} {
		var e *registry.Error
		if !errors.Is(err, fault.ErrTemporary) || !errors.As(err, &e) || e.Op == "" || e.Reference == "" {
			t.Errorf("%s = %v, want a *registry.Error that is fault.ErrTemporary", op, err)
		}
	}
	if err := s.Up(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Resolve(t.Context(), "press-07"); err != nil {
		t.Errorf("Resolve once it is back = %v", err)
	}
}
