package main

import (
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// resumeChunk is registry's chunk.
const resumeChunk = 2 << 20

// countedBody tells how many bytes were read.
type countedBody struct {
	io.ReadCloser
	seen func(n int64)
}

func (b countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.seen(int64(n))
	return n, err
}

// killed runs a command in a process of its own and kills it with SIGKILL when the site's registry has had so many requests or bytes. It
// reports whether the command came to its end before.
func (s *shell) killed(there *testenv.RegistryServer, requests, bytes int64, args ...string) (ended bool) {
	s.t.Helper()
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.CommandContext(s.t.Context(), self, args...)
	cmd.Env = []string{processVariable + "=1", "PATH=" + os.Getenv("PATH")}
	for k, v := range s.env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	var asked, got atomic.Int64
	kill := make(chan struct{}, 1)
	strike := func() {
		if asked.Load() >= requests || got.Load() >= bytes {
			select {
			case kill <- struct{}{}:
			default:
			}
		}
	}
	there.Faults.Add(testenv.Rule{Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		asked.Add(1)
		strike()
		r.Body = countedBody{r.Body, func(n int64) { got.Add(n); strike() }}
		next.ServeHTTP(w, r)
	}})
	defer there.Faults.Clear()
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	defer there.Faults.Settle() // what it has sent is in the storage
	select {
	case err = <-done:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			s.t.Fatal(err)
		}
		return err == nil
	case <-kill:
		_ = cmd.Process.Kill() // it may have ended meanwhile
		return <-done == nil
	}
}

// An import and a mirror that are killed at random points, 50 times in a nightly run, come to their end, and nothing of a large blob that
// arrived is sent again.
func TestKilledAnywhere(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		for _, command := range []string{"mirror", "import"} {
			t.Run(string(kind)+", "+command, func(t *testing.T) {
				s := newShell(t, testenv.Distribution)
				const layer, layers = 5*resumeChunk + 777, 4
				s.pushLayers("library/caddy:2.10", layer, layer, layer, layer)
				s.stock()
				there := s.site(kind)
				s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
				args := []string{"mirror", releaseKeyPublic, "-q", "--concurrency", "1", "--host-paths", states}
				if command == "import" {
					s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "stick")
					args = []string{"import", releaseKeyPublic, "-q", "--concurrency", "1", "--host-paths", "stick"}
				}
				seed := rand.Uint64()
				if v := os.Getenv("LONGSHORE_SEED"); v != "" {
					seed, _ = strconv.ParseUint(v, 10, 64)
				}
				t.Logf("LONGSHORE_SEED=%d", seed)
				random := rand.New(rand.NewPCG(seed, 1))
				const content = layers*layer + 256<<10
				for kills, site := 0, 0; kills < testenv.Rounds(10, 50); site++ {
					to := siteHost + "/" + strconv.Itoa(site)
					there.Faults.Forget()
					before := kills
					for ended := false; !ended; {
						requests, bytes := int64(1<<30), random.Int64N(3*resumeChunk)
						if random.IntN(3) == 0 {
							requests, bytes = random.Int64N(60), 1<<40
						}
						if kills >= testenv.Rounds(10, 50) {
							requests, bytes = 1<<30, 1<<40
						}
						if ended = s.killed(there, requests, bytes, append(args, to)...); !ended {
							kills++
						}
						if kills > before+200 {
							t.Fatal("it does not come to its end")
						}
					}
					s.do(outcome.OK, "verify", "--key", "release.pub", "--no-recurse", to+"/"+host+"/plant/state:press-07")
					n := int64(kills - before)
					_, sent := there.Faults.Bytes("", "")
					from, _ := s.server.Faults.Bytes(http.MethodGet, "/blobs/")
					t.Logf("%d kills: %d bytes arrived at the site, of %d; the source sent %d in all", n, sent, content, from)
					if again := n * (64 << 10); sent > content+again { // small blobs and manifests
						t.Errorf("%d bytes arrived at the site after %d kills, want at most %d", sent, n, content+again)
					}
				}
			})
		}
	}
}

// Two mirrors of one user at once, such as one that a timer starts while another is still running, both come to their end, and neither writes
// to the other's upload.
func TestMirrorsAtOnce(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		t.Run(string(kind), func(t *testing.T) {
			s := newShell(t, testenv.Distribution)
			s.large(12 << 20)
			s.stock()
			there := s.site(kind)
			s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
			begun := make(chan struct{})
			var once sync.Once
			there.Faults.Add(testenv.Rule{Method: http.MethodPatch, Skip: 1, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				once.Do(func() { close(begun) })
				next.ServeHTTP(w, r)
			}})
			args := []string{"mirror", "-q", "--max-rate", "3MB", releaseKeyPublic, states, siteHost}
			var wait sync.WaitGroup
			run := func() {
				if code, out := s.process(args...); code != outcome.OK {
					t.Errorf("exit %d\n%s", code, out)
				}
			}
			wait.Go(run)
			<-begun
			wait.Go(run)
			wait.Wait()
			_, sent := there.Faults.Bytes(http.MethodPatch, "")
			if t.Logf("%d bytes of %d arrived", sent, 12<<20); sent > 25<<20 {
				t.Errorf("%d bytes arrived, want at most the blob from each", sent)
			}
			s.do(outcome.OK, "verify", "-q", "--key", "release.pub", "--no-recurse", siteHost+"/plant/state:press-07")
		})
	}
}
