package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

// warnings keeps what is logged as a warning.
type warnings struct {
	slog.Handler
	mu  sync.Mutex
	all []string
}

func (w *warnings) Enabled(context.Context, slog.Level) bool { return true }

func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		return nil
	}
	text := r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, text)
	return nil
}

// Whatever the first mirror does, the next one is used, with its CA and client certificate; the registry itself is not needed. That a
// mirror sends other bytes than were asked for is told once.
func TestNextMirrorIsUsed(t *testing.T) {
	t.Parallel()
	data := randomBytes(100_000)
	for name, c := range map[string]struct {
		effect testenv.Effect
		lies   bool
	}{
		"not found": {testenv.Status(404, 0), false}, "throttled": {testenv.Status(429, time.Hour), false}, "resets": {testenv.Reset(), false},
		"asks for a password": {testenv.Status(401, 0), false}, "cuts": {testenv.Cut(10), false}, "shows a page": {answer("text/html", []byte("<html>")), false},
		"spoils": {testenv.Corrupt(), true}, "shortens": {testenv.Truncate(30), true}, "swaps": {testenv.Swap([]byte("{}")), true},
		"sends too much": {answer("application/octet-stream", make([]byte, 8<<20)), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			upstream, first := testenv.Registry(t, testenv.Distribution), testenv.Registry(t, testenv.Distribution)
			second := testenv.Registry(t, testenv.Distribution, testenv.WithClientCert())
			certs := t.TempDir()
			writeFile(t, fmt.Sprintf("[host.%q]\n[host.%q]\nca = %q\nclient = [[%q, %q]]\n", first.URL, second.URL, second.CAFile, second.CertFile, second.KeyFile), certs, upstream.Host, "hosts.toml")
			desc, manifest := put(t, openName(t, clientFor(t, first), first.Reference("line/state")), string(data), nil, "press-07")
			put(t, openName(t, clientFor(t, second), second.Reference("line/state")), string(data), nil, "press-07")
			upstream.Down()
			log := &warnings{}
			var lies []string
			client, err := registry.New(registry.Options{
				CertsDir: certs, RetryBudget: 50 * time.Millisecond, Logger: slog.New(log),
				Mismatch: func(repository string, err error) { lies = append(lies, repository+": "+err.Error()) },
			})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(client.Close)
			repo := openName(t, client, upstream.Reference("line/state"))
			first.Faults.Add(testenv.Rule{Method: http.MethodGet, Effect: c.effect})
			for range 2 {
				if _, got, err := repo.Manifest(t.Context(), desc.Digest); err != nil || !bytes.Equal(got, manifest) {
					t.Errorf("Manifest = %v", err)
				}
				if got, err := repo.Blob(t.Context(), blobOf(data), 1<<20); err != nil || !bytes.Equal(got, data) {
					t.Errorf("Blob = %d bytes, %v", len(got), err)
				}
			}
			if first.Faults.Hits() == 0 {
				t.Error("the first mirror was not asked")
			}
			want := 0
			if c.lies {
				want = 1
			}
			if text := strings.Join(log.all, "\n"); len(log.all) != want || c.lies && !strings.Contains(text, first.Host) {
				t.Errorf("warnings %q, want %d", text, want)
			}
			if text := strings.Join(lies, "\n"); len(lies) != want || c.lies && !strings.HasPrefix(text, upstream.Host+"/line/state: mirror "+first.Host+": ") {
				t.Errorf("lies %q, want %d", lies, want)
			}
		})
	}
}

// A mirror may be behind: that its tag names something larger than is read is no lie.
func TestMirrorWithAnotherManifestIsNoLiar(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	desc, _ := put(t, s.direct, "state", nil, "press-07")
	config := blobOf([]byte("{}"))
	if err := s.atMirror.PushBlob(t.Context(), config, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	larger := []byte(fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"config":{"mediaType":"application/vnd.oci.empty.v1+json","digest":%q,"size":2},"layers":[],"annotations":{"a":%q}}`,
		ocispec.MediaTypeImageManifest, config.Digest, strings.Repeat("a", registry.MaxManifest)))
	old := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(larger), Size: int64(len(larger))}
	if err := s.atMirror.PushManifest(t.Context(), old, larger, "press-07"); err != nil {
		t.Fatal(err)
	}
	client := newClient(t, registry.Options{CertsDir: s.certs, Mismatch: func(repository string, err error) { t.Errorf("%s: %v", repository, err) }})
	got, _, err := openName(t, client, s.upstream.Reference("line/state")).Tagged(t.Context(), "press-07")
	if err != nil || got.Digest != desc.Digest {
		t.Errorf("Tagged = %v, %v", got.Digest, err)
	}
	// A request is counted when its answer has ended, which may be later.
	if err := testenv.Await(t.Context(), time.Minute, func() error {
		if len(s.mirror.Faults.Requests(http.MethodGet, "/manifests/press-07")) == 0 {
			return errors.New("the mirror was not asked")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// A large blob is taken from each mirror as far as it brings it.
func TestMirrorsShareABlob(t *testing.T) {
	t.Parallel()
	data := randomBytes(300_000)
	upstream := testenv.Registry(t, testenv.Distribution)
	var hosts strings.Builder
	var mirrors []*testenv.RegistryServer
	for range 2 {
		m := testenv.Registry(t, testenv.Distribution)
		put(t, openName(t, clientFor(t, m), m.Reference("line/state")), string(data), nil, "press-07")
		fmt.Fprintf(&hosts, "[host.%q]\ncapabilities = [\"pull\"]\n", m.URL)
		mirrors = append(mirrors, m)
	}
	certs := t.TempDir()
	if err := os.MkdirAll(filepath.Join(certs, upstream.Host), 0o755); err != nil {
		t.Fatal(err)
	}
	writeFile(t, hosts.String(), certs, upstream.Host, "hosts.toml")
	upstream.Down()
	mirrors[0].Faults.Add(testenv.Rule{Method: http.MethodGet, Path: "/blobs/", Times: 1, Effect: testenv.Cut(200_000)})
	mirrors[0].Faults.Add(testenv.Rule{Method: http.MethodGet, Path: "/blobs/", Effect: testenv.Status(404, 0)})
	repo := openName(t, newClient(t, registry.Options{CertsDir: certs, RetryBudget: 50 * time.Millisecond}), upstream.Reference("line/state"))
	if got, err := repo.Blob(t.Context(), blobOf(data), 1<<20); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("Blob = %d bytes, %v", len(got), err)
	}
	if sent, _ := mirrors[1].Faults.Bytes(http.MethodGet, "/blobs/"); sent != 100_000 {
		t.Errorf("the second mirror sent %d bytes, want the 100,000 that the first did not", sent)
	}
}
