package registry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/cache"
	"github.com/longshore-dev/longshore/testenv"
)

// largeSize of a blob is several chunks and a rest.
const largeSize = 9*registry.ChunkSize + 12345

// carriage copies one artifact with a large blob from one registry to another.
type carriage struct {
	t              *testing.T
	source, target *testenv.RegistryServer
	uploads        string
	subject        digest.Digest
	data           []byte
}

func newCarriage(t *testing.T, kind testenv.Kind, o ...testenv.RegistryOption) *carriage {
	c := &carriage{t: t, source: testenv.Registry(t, testenv.Distribution), target: testenv.Registry(t, kind, o...), uploads: filepath.Join(t.TempDir(), "uploads"), data: randomBytes(largeSize)}
	desc, _ := put(t, openName(t, clientFor(t, c.source), c.source.Host+"/images/line"), string(c.data), nil, "1.4.1")
	c.subject = desc.Digest
	return c
}

// run is one run of a program that remembers uploads.
func (c *carriage) run(ctx context.Context) error {
	client := newClient(c.t, registry.Options{CAFile: c.target.CAFile, Username: c.target.Username, Password: c.target.Password, Uploads: cache.Folder(c.uploads)})
	_, err := openName(c.t, client, c.target.Host+"/images/line").CopyFrom(ctx, openName(c.t, clientFor(c.t, c.source), c.source.Host+"/images/line"), c.subject, "1.4.1")
	return err
}

// killed is a run that ends when the target has received so many bytes.
func (c *carriage) killed(after int64) {
	c.t.Helper()
	ctx, kill := context.WithCancel(c.t.Context())
	defer kill()
	c.target.Faults.Add(testenv.Rule{Method: http.MethodPatch, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		r.Body = &dying{r.Body, &after, kill}
		next.ServeHTTP(w, r)
	}})
	if err := c.run(ctx); !errors.Is(err, context.Canceled) {
		c.t.Fatalf("a run that is killed: %v", err)
	}
	c.target.Faults.Clear()
	c.target.Faults.Settle() // the registry keeps what arrived
}

// dying is a request's body that ends with its program.
type dying struct {
	io.ReadCloser
	left *int64 // bytes until then
	kill func()
}

func (d *dying) Read(p []byte) (int, error) {
	if *d.left <= 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := d.ReadCloser.Read(p)
	if *d.left -= int64(n); *d.left <= 0 {
		d.kill()
	}
	return n, err
}

// whole checks what is at the target.
func (c *carriage) whole() {
	c.t.Helper()
	to := openName(c.t, clientFor(c.t, c.target), c.target.Host+"/images/line")
	if data, err := to.Blob(c.t.Context(), blobOf(c.data), 1<<30); err != nil || !bytes.Equal(data, c.data) {
		c.t.Errorf("at the target: %d bytes, %v", len(data), err)
	}
	if left, err := os.ReadDir(c.uploads); err != nil || len(left) != 0 {
		c.t.Errorf("uploads that are remembered still: %v, %v", left, err)
	}
}

func (c *carriage) received() int64 {
	_, n := c.target.Faults.Bytes("", "/blobs/uploads/")
	return n
}

// patched are the bytes of chunks.
func (c *carriage) patched() int64 {
	_, n := c.target.Faults.Bytes(http.MethodPatch, "/blobs/uploads/")
	return n
}

// What arrived of a blob before a run was killed is not sent again, at registries of each kind: not a byte where
// the registry keeps what arrived of a broken chunk.
func TestUploadIsContinued(t *testing.T) {
	for _, kind := range testenv.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			var o []testenv.RegistryOption
			if kind == testenv.Distribution {
				o = append(o, testenv.WithStorage(t.TempDir())) // others are in memory
			}
			c := newCarriage(t, kind, o...)
			const kills = 3
			asked := kind == testenv.Distribution || kind == testenv.Referrers
			var kept, from int64
			for range kills {
				c.killed(1 + rand.Int64N(2*registry.ChunkSize))
				if asked {
					testenv.Eventually(t, time.Minute, "the registry keeps what arrived", func() error {
						if kept = c.kept(); kept != c.patched() {
							return fmt.Errorf("%d of %d bytes", kept, c.patched())
						}
						return nil
					})
				}
			}
			if err := c.run(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.whole()
			n, reads := c.patched(), c.source.Faults.Requests(http.MethodGet, "/blobs/"+blobOf(c.data).Digest.String())
			_, _ = fmt.Sscanf(reads[len(reads)-1].Range, "bytes=%d-", &from)
			t.Logf("%d bytes were sent of %d in %d runs; the registry had %d before the last one, which read from %d", n, largeSize, kills+1, kept, from)
			switch {
			case asked && n != largeSize:
				t.Error("want that each byte was sent once")
			case kind != testenv.Lax && n > largeSize+registry.ChunkSize: // lax does not say what it has of an upload
				t.Errorf("want at most %d", largeSize+registry.ChunkSize)
			}
			if most := int64(registry.Growth * registry.MarkEvery); asked && from < kept-most {
				t.Errorf("want that at most %d bytes were read again", most)
			}
		})
	}
}

// A run that is killed in its first chunk, again and again, leaves as many states of the hash as the first one that was.
func TestUploadIsKilledInEachFirstChunk(t *testing.T) {
	c := newCarriage(t, testenv.Distribution, testenv.WithStorage(t.TempDir()))
	for range 4 {
		c.killed(registry.ChunkSize - 64<<10)
		testenv.Eventually(t, time.Minute, "the registry keeps what arrives", func() error {
			if kept := c.kept(); kept != c.patched() {
				return fmt.Errorf("%d of %d bytes", kept, c.patched())
			}
			return nil
		})
	}
	kept, from := c.kept(), int64(0)
	if err := c.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.whole()
	reads := c.source.Faults.Requests(http.MethodGet, "/blobs/"+blobOf(c.data).Digest.String())
	_, _ = fmt.Sscanf(reads[len(reads)-1].Range, "bytes=%d-", &from)
	if most := int64(registry.MarkEvery + 64<<10); from < kept-most {
		t.Errorf("the last run reads from %d on, and the registry had %d: want at most %d bytes again", from, kept, most)
	}
}

// kept is how many bytes the target has of the upload.
func (c *carriage) kept() int64 {
	c.t.Helper()
	var location string
	c.edit(func(s map[string]any) { location, _ = s["location"].(string) })
	resp, err := http.Get(location)
	if err != nil {
		c.t.Fatal(err)
	}
	resp.Body.Close()
	n, ok := registry.Received(resp.Header.Get("Range"))
	if !ok {
		c.t.Fatalf("GET %s: %s", location, resp.Status)
	}
	return n
}

// What registries do with uploads that are continued, and what becomes of it.
func TestUploadEnds(t *testing.T) {
	gone := testenv.Status(http.StatusNotFound, 0)
	tests := map[string]struct {
		before func(c *carriage) // after a run that was killed
		most   int64             // bytes that are sent by the run after, and by a chunk of the killed one, which may be told late
	}{
		"nothing happened": {func(*carriage) {}, 8*registry.ChunkSize + 12345},
		"the session is gone": {func(c *carriage) {
			c.target.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: "/blobs/uploads/", Times: 1, Effect: gone})
		}, largeSize},
		"nobody answers for it": {func(c *carriage) {
			c.target.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: "/blobs/uploads/", Effect: testenv.Status(http.StatusMethodNotAllowed, 0)})
		}, largeSize},
		"no chunks any more": {func(c *carriage) {
			c.target.Faults.Add(testenv.Rule{Method: http.MethodPatch, Effect: testenv.Status(http.StatusMethodNotAllowed, 0)})
		}, largeSize + registry.ChunkSize},
		"a source without ranges": {func(c *carriage) {
			c.source.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: "/blobs/", Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				r.Header.Del("Range")
				next.ServeHTTP(w, r)
			}})
		}, 8*registry.ChunkSize + 12345},
		"an answer is lost, and a chunk cut": {func(c *carriage) {
			c.target.Faults.Add(testenv.Rule{Method: http.MethodPatch, Skip: 1, Times: 1, Effect: testenv.LoseAnswer()})
			c.target.Faults.Add(testenv.Rule{Method: http.MethodPatch, Times: 1, Effect: testenv.CutUpload(registry.ChunkSize / 2)})
		}, 9*registry.ChunkSize + 12345},
		"the last answer is lost": {func(c *carriage) {
			c.target.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: "/blobs/uploads/", Times: 1, Effect: testenv.LoseAnswer()})
		}, 8*registry.ChunkSize + 12345},
		"what is remembered is of other bytes": {func(c *carriage) {
			c.edit(func(s map[string]any) {
				h := digest.SHA256.Hash()
				_, _ = h.Write(make([]byte, registry.ChunkSize))
				s["states"] = []map[string]any{{"hashed": registry.ChunkSize, "hash": registry.HashState(h)}}
			})
		}, 2*largeSize + registry.ChunkSize},
		"what is remembered cannot be read": {func(c *carriage) {
			c.edit(func(s map[string]any) { s["states"] = []map[string]any{{"hashed": 1, "hash": "AAAA"}} })
		}, largeSize},
		"the blob is there already": {func(c *carriage) {
			to := openName(c.t, clientFor(c.t, c.target), c.target.Host+"/images/line")
			if err := to.PushBlob(c.t.Context(), blobOf(c.data), c.data); err != nil {
				c.t.Fatal(err)
			}
			c.target.Faults.Forget()
			if err := os.RemoveAll(c.uploads); err == nil {
				err = os.Mkdir(c.uploads, 0o700)
				if err != nil {
					c.t.Fatal(err)
				}
			}
		}, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCarriage(t, testenv.Distribution)
			c.killed(registry.ChunkSize + registry.ChunkSize/2)
			c.target.Faults.Forget()
			tt.before(c)
			if err := c.run(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.target.Faults.Clear()
			c.whole()
			if n := c.received(); n > tt.most+registry.ChunkSize+1000 {
				t.Errorf("%d bytes were sent, want at most %d", n, tt.most)
			}
		})
	}
}

// Chunks grow, so that a fast link needs few, up to what a proxy before the registry accepts in one request.
func TestUploadGrows(t *testing.T) {
	for name, tt := range map[string]struct {
		limit           int64
		refused, chunks int
	}{
		"no limit": {1 << 30, 0, 9}, // 3, where each takes less than the time
		"a limit":  {registry.ChunkSize, 1, 10},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCarriage(t, testenv.Distribution)
			c.target.Faults.Add(chunksUpTo(tt.limit))
			if err := c.run(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.whole()
			refused, taken := 0, 0
			for _, r := range c.target.Faults.Requests(http.MethodPatch, "") {
				if r.Status == http.StatusRequestEntityTooLarge {
					refused++
				} else {
					taken++
				}
			}
			if refused != tt.refused || taken > tt.chunks {
				t.Errorf("%d chunks, and %d were refused, want %d and %d", taken, refused, tt.chunks, tt.refused)
			}
		})
	}
}

// edit changes the file that remembers the upload.
func (c *carriage) edit(change func(map[string]any)) {
	c.t.Helper()
	files, err := filepath.Glob(filepath.Join(c.uploads, "*.json"))
	if err != nil || len(files) != 1 {
		c.t.Fatalf("files %v, %v, want one", files, err)
	}
	data, err := os.ReadFile(files[0])
	s := map[string]any{}
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	change(s)
	if data, err = json.Marshal(s); err != nil {
		c.t.Fatal(err)
	}
	writeFile(c.t, string(data), files[0])
}

// chunksUpTo answers 413 to larger chunks, as a proxy with a limit does.
func chunksUpTo(limit int64) testenv.Rule {
	return testenv.Rule{Method: http.MethodPatch, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.ContentLength > limit {
			testenv.Status(http.StatusRequestEntityTooLarge, 0)(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	}}
}

// What a registry accepts in one request is learned once, not for each blob.
func TestUploadLearnsALimitOnce(t *testing.T) {
	source, target := testenv.Registry(t, testenv.Distribution), testenv.Registry(t, testenv.Distribution)
	from, to := openName(t, clientFor(t, source), source.Host+"/images/line"), openName(t, clientFor(t, target), target.Host+"/images/line")
	target.Faults.Add(chunksUpTo(registry.ChunkSize))
	for i := range 2 {
		desc, _ := put(t, from, string(randomBytes(3*registry.ChunkSize+i)), nil, "")
		if _, err := to.CopyFrom(t.Context(), from, desc.Digest, ""); err != nil {
			t.Fatal(err)
		}
	}
	refused := slices.DeleteFunc(target.Faults.Requests(http.MethodPatch, ""), func(r testenv.Request) bool { return r.Status != http.StatusRequestEntityTooLarge })
	if len(refused) != 1 {
		t.Errorf("%d chunks were refused, want the first that was too large", len(refused))
	}
}

// The file is for its user alone and has no credentials; an address elsewhere in it is not used.
func TestUploadFile(t *testing.T) {
	c := newCarriage(t, testenv.DistributionToken)
	c.killed(registry.ChunkSize + 1)
	elsewhere := testenv.Registry(t, testenv.Distribution)
	c.edit(func(s map[string]any) {
		location, _ := s["location"].(string)
		if u, err := url.Parse(location); err != nil || u.Host != c.target.Host {
			t.Errorf("location %q", location)
		}
		if len(s) != 2 || strings.Contains(location, url.QueryEscape(c.target.Password)) || strings.Contains(location, "eyJ0eX") {
			t.Errorf("the file has %v", s)
		}
		s["location"] = elsewhere.URL + "/v2/images/line/blobs/uploads/x"
	})
	files, _ := filepath.Glob(filepath.Join(c.uploads, "*"))
	for _, f := range append(files, c.uploads) {
		if info, err := os.Stat(f); err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v", f, info.Mode(), err)
		}
	}
	if err := c.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.whole()
	if all := elsewhere.Faults.Requests("", ""); len(all) != 0 {
		t.Errorf("%d requests elsewhere", len(all))
	}
}

// A registry may reject a token while it still receives a chunk: the chunk is sent again with a new token.
func TestUploadWithATokenThatExpires(t *testing.T) {
	c := newCarriage(t, testenv.DistributionToken)
	for skip := range 3 {
		c.target.Faults.Add(testenv.Rule{Method: http.MethodPatch, Skip: 2 * skip, Times: 1, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			duplex := http.NewResponseController(w)
			if err := duplex.EnableFullDuplex(); err != nil {
				t.Error(err)
			}
			_, _ = io.CopyN(io.Discard, r.Body, registry.MarkEvery+1)
			again := r.Clone(r.Context())
			again.Body, again.ContentLength = http.NoBody, 0
			again.Header.Del("Authorization")
			next.ServeHTTP(w, again)
			if err := duplex.Flush(); err != nil {
				t.Error(err)
			}
			_, _ = io.Copy(io.Discard, r.Body)
		}})
	}
	if err := c.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.whole()
}

// A registry that sends an upload elsewhere gets nothing there, and a source that lies brings nothing.
func TestUploadOfLies(t *testing.T) {
	c := newCarriage(t, testenv.Distribution)
	c.source.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: "/blobs/" + blobOf(c.data).Digest.String(), Effect: testenv.Corrupt()})
	if err := c.run(t.Context()); !errors.Is(err, fault.ErrDigestMismatch) {
		t.Errorf("of a source that lies: %v, want fault.ErrDigestMismatch", err)
	}
	c.source.Faults.Clear()
	to := openName(t, clientFor(t, c.target), c.target.Host+"/images/line")
	if there, err := to.Exists(t.Context(), blobOf(c.data)); there || err != nil {
		t.Errorf("Exists = %v, %v", there, err)
	}
	elsewhere := testenv.Registry(t, testenv.Distribution)
	c.target.Faults.Add(testenv.Rule{Method: http.MethodPost, Effect: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Location", elsewhere.URL+"/v2/images/line/blobs/uploads/x")
		w.WriteHeader(http.StatusAccepted)
	}})
	if err := c.run(t.Context()); err == nil {
		t.Error("an upload that goes on elsewhere: no error")
	}
	if all := elsewhere.Faults.Requests("", ""); len(all) != 0 {
		t.Errorf("%d requests elsewhere", len(all))
	}
}

// A layout is continued where a run was killed; what was damaged meanwhile is written again.
func TestLayoutIsContinued(t *testing.T) {
	for name, damage := range map[string]func(part string){
		"as it was": func(string) {},
		"damaged": func(part string) {
			f, err := os.OpenFile(part, os.O_WRONLY, 0)
			if err == nil {
				_, err = f.WriteAt([]byte("xyz"), 100)
				err = errors.Join(err, f.Close())
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		"longer": func(part string) {
			if err := os.Truncate(part, largeSize+1); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCarriage(t, testenv.Distribution)
			dir := t.TempDir()
			path := blobOf(c.data).Digest
			run := func() error {
				client := newClient(t, registry.Options{})
				disk, err := client.Open(t.Context(), mustParse(t, "oci-layout:"+dir))
				if err == nil {
					_, err = disk.CopyFrom(t.Context(), openName(t, client, c.source.Host+"/images/line"), c.subject, "1.4.1")
				}
				return err
			}
			const cut = 2*registry.ChunkSize + 1
			c.source.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: path.String(), Times: 1, Effect: testenv.Cut(cut)})
			c.source.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: path.String(), Effect: testenv.Status(http.StatusForbidden, 0)})
			if err := run(); err == nil {
				t.Fatal("a run that is killed: no error")
			}
			c.source.Faults.Clear()
			c.source.Faults.Forget()
			damage(filepath.Join(dir, "ingest", path.Encoded()+".part"))
			if err := run(); err != nil {
				t.Fatal(err)
			}
			if data, err := os.ReadFile(blobFile(dir, path)); err != nil || !bytes.Equal(data, c.data) {
				t.Errorf("%d bytes, %v", len(data), err)
			}
			if sent, _ := c.source.Faults.Bytes(http.MethodGet, path.String()); name == "as it was" && sent > largeSize-cut {
				t.Errorf("%d bytes were read, want the %d that were lacking", sent, largeSize-cut)
			}
		})
	}
}

func FuzzSession(f *testing.F) {
	f.Add([]byte(`{"location":"https://registry.example/v2/x/blobs/uploads/1?_state=2","states":[{"hashed":1,"hash":""}]}`))
	at := &url.URL{Scheme: "https", Host: "registry.example"}
	f.Fuzz(func(t *testing.T, data []byte) {
		location, first, last, err := registry.ParseSession(data, at, digest.FromString("x"), 100)
		if err == nil && (location.Host != at.Host && location.Host != at.Host+":443" || first < 0 || last < first || last > 100) {
			t.Errorf("%s, %d to %d", location, first, last)
		}
	})
}

func FuzzReceived(f *testing.F) {
	for _, s := range []string{"0-0", "0-9", "bytes=0-9", "0-9223372036854775807", "1-2", "0--1", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, ok := registry.Received(s); ok && n < 0 || !ok && n != 0 {
			t.Errorf("received(%q) = %d, %v", s, n, ok)
		}
	})
}
