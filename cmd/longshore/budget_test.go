package main

import (
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// pushLayers replaces an image by one with layers of these sizes, which no compression makes smaller.
func (s *shell) pushLayers(reference string, sizes ...int) {
	s.t.Helper()
	random := rand.NewChaCha8([32]byte{byte(len(sizes))})
	image, err := testenv.BuildImage("linux/amd64", v1.Config{}, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	for i, size := range sizes {
		data := make([]byte, size)
		_, _ = random.Read(data) // it does not fail
		more, err := testenv.BuildImage("linux/amd64", v1.Config{}, []testenv.File{{Path: "data" + string(rune('a'+i)), Data: data}})
		if err != nil {
			s.t.Fatal(err)
		}
		layers, err := more.Layers()
		if err == nil {
			image, err = mutate.AppendLayers(image, layers...)
		}
		if err != nil {
			s.t.Fatal(err)
		}
	}
	if _, err := s.server.Push(s.t.Context(), reference, image); err != nil {
		s.t.Fatal(err)
	}
}

// A run ends when its bytes are used up, says what is left, moves no tag, and the next ones come to the end without sending again
// what arrived.
func TestMaxBytes(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	// What a server has sent may be in buffers of the kernel still when its client stops reading.
	const layer, total, slack, buffers = 300_000, 1_000_000, 200_000, 3 << 20
	s.pushLayers("library/caddy:2.10", layer, layer, layer, layer, layer, layer, layer, layer)
	s.stock()
	there := s.site(testenv.Distribution)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "whole")
	for name, args := range map[string][]string{
		"mirror": {"mirror", releaseKeyPublic, states, siteHost},
		"export": {"export", releaseKeyPublic, states, "stick"},
		"import": {"import", releaseKeyPublic, "--host-paths", "whole", siteHost},
	} {
		t.Run(name, func(t *testing.T) {
			s.refuses(outcome.Temporary, []string{"used up", "larger --max-bytes"}, append(args, "--max-bytes", "2kB")...)
			there.Faults.Forget()
			s.server.Faults.Forget()
			runs, to, from := 0, int64(0), int64(0)
			for code := outcome.Temporary; code == outcome.Temporary; {
				var stderr string
				code, _, stderr = s.try(append(args, "--max-bytes", "1MB")...)
				runs++
				// Counted since the first run: what a server reads of a broken connection it may tell late.
				from, _ = s.server.Faults.Bytes("", "")
				if _, to = there.Faults.Bytes("", ""); to > int64(runs*(total+slack)) || from > int64(runs*(total+buffers)) {
					t.Errorf("%d runs: %d bytes to the site and %d from the source, want %d of each run", runs, to, from, total)
				}
				if code != outcome.OK && (code != outcome.Temporary || !strings.Contains(stderr, "are left") || !strings.Contains(stderr, "it continues")) {
					t.Fatalf("run %d: exit %d, %s", runs, code, stderr)
				}
				if seen, _, _ := s.try("inspect", siteHost+"/plant/state:press-07"); name == "mirror" && code != outcome.OK && seen != outcome.NotFound {
					t.Errorf("run %d: the device's tag is there: exit %d", runs, seen)
				}
				if _, err := os.Stat(filepath.Join("stick", "longshore-export.json")); name == "export" && code != outcome.OK && err == nil {
					t.Errorf("run %d: the export says that it is whole", runs)
				}
			}
			if runs < 3 || to > int64(8*layer+runs*(3*layer+slack)) {
				t.Errorf("%d runs with %d bytes", runs, to)
			}
		})
	}
	s.do(outcome.OK, "verify", "--key", "release.pub", "--no-recurse", siteHost+"/plant/state:press-07")
}

// No more requests are under way than --concurrency says.
func TestConcurrency(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.pushLayers("library/caddy:2.10", 3000, 3000, 3000, 3000, 3000, 3000)
	s.stock()
	there := s.site(testenv.Distribution)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	for _, most := range []int32{1, 2} {
		var now, seen atomic.Int32
		var first sync.Once
		together := make(chan struct{})
		there.Faults.Add(testenv.Rule{Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			n := now.Add(1)
			defer now.Add(-1)
			for old := seen.Load(); n > old && !seen.CompareAndSwap(old, n); old = seen.Load() {
			}
			if n == most {
				first.Do(func() { close(together) })
			}
			if strings.Contains(r.URL.Path, "/library/caddy/blobs/uploads/") { // several may be sent at once: each waits for another one
				select {
				case <-together:
				case <-time.After(time.Second): // the first one of a run may be alone
				}
			}
			next.ServeHTTP(w, r)
		}})
		s.do(outcome.OK, "mirror", releaseKeyPublic, "--concurrency", string('0'+most), "--host-paths", states, siteHost+"/"+string('a'+most))
		there.Faults.Clear()
		if seen.Load() != most {
			t.Errorf("--concurrency %d: %d requests at once", most, seen.Load())
		}
	}
}

// Flags of limits that cannot be meant.
func TestBudgetFlags(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	for _, c := range [][]string{
		{"--max-rate", "fast"}, {"--max-rate", "0"}, {"--max-bytes", "-1"}, {"--max-bytes", "99999999TB"}, {"--window", "22-06"}, {"--no-wait"},
	} {
		s.refuses(outcome.Misused, []string{c[0], "hint:"}, append([]string{"mirror", releaseKeyPublic, states, siteHost}, c...)...)
	}
}
