package containerd_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/containerd/images"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

// noise is content that does not compress.
func noise(seed uint64, size int) []byte {
	out := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(out) // never fails
	return out
}

// heavy is an image with layers of a given size beside the program.
func (r *rig) heavy(layers, size int) v1.Image {
	var extra [][]testenv.File
	for n := range layers {
		extra = append(extra, []testenv.File{{Path: fmt.Sprintf("heavy/%d", n), Data: noise(uint64(n+1), size)}})
	}
	return r.toolbox(nil, extra...)
}

// weight is the number of bytes of an image in a registry.
func weight(t testing.TB, img v1.Image) int64 {
	t.Helper()
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	size, err := img.Size()
	if err != nil {
		t.Fatal(err)
	}
	size += m.Config.Size
	for _, l := range m.Layers {
		size += l.Size
	}
	return size
}

func manifestSize(t testing.TB, img v1.Image) int64 {
	t.Helper()
	n, err := img.Size()
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestPullIsDurableAndThenCostsNothing(t *testing.T) {
	r := newRig(t)
	other, err := testenv.BuildImage("linux/s390x", v1.Config{}, []testenv.File{{Path: "x", Data: []byte("x")}})
	if err != nil {
		t.Fatal(err)
	}
	mine := r.heavy(2, 1<<20)
	p, err := r.registry().Push(t.Context(), "plant/multi:1", other, mine)
	if err != nil {
		t.Fatal(err)
	}
	img := workload.Image{Repository: p.Repository, Digest: digest.Digest(p.Digest)}
	var (
		mu    sync.Mutex
		calls [][2]int64
	)
	progress := func(done, total int64) {
		mu.Lock()
		defer mu.Unlock()
		calls = append(calls, [2]int64{done, total})
	}
	if _, err := r.Pull(t.Context(), img, progress); err != nil {
		t.Fatal(err)
	}
	if want := []string{"unpacking", "durable"}; !slices.Equal(r.journal.Notes(), want) {
		t.Errorf("journal = %v, want %v", r.journal.Notes(), want)
	}
	last := calls[len(calls)-1]
	if last[0] != last[1] || last[1] < weight(t, mine) || last[1] > weight(t, mine)+4096 {
		t.Errorf("progress ended at %v, want all of about %d", last, weight(t, mine))
	}
	if !slices.IsSortedFunc(calls, func(a, b [2]int64) int { return int(a[0] - b[0]) }) {
		t.Errorf("progress went back: %v", calls)
	}
	requests := len(r.reg.Faults.Requests("", ""))
	again := r.open()
	defer again.Close()
	for _, rt := range []*containerd.Runtime{r.Runtime, again} {
		if _, err := rt.Pull(t.Context(), img, progress); err != nil {
			t.Error(err)
		}
	}
	if n := len(r.reg.Faults.Requests("", "")); n != requests {
		t.Errorf("pulling a durable image made %d requests", n-requests)
	}
	r.up(project("multi", server(img)))
}

// TestPullForSeveralPlatforms: one index, two platforms of it, side by side and through a collection.
func TestPullForSeveralPlatforms(t *testing.T) {
	r := newRig(t)
	foreign, err := testenv.BuildImage("linux/s390x", v1.Config{}, []testenv.File{{Path: "mainframe", Data: noise(5, 4096)}})
	if err != nil {
		t.Fatal(err)
	}
	p, err := r.registry().Push(t.Context(), "plant/both:1", r.toolbox(nil), foreign)
	if err != nil {
		t.Fatal(err)
	}
	mine := workload.Image{Repository: p.Repository, Digest: digest.Digest(p.Digest)}
	other := mine
	other.Platform = "linux/s390x"
	for _, i := range []workload.Image{mine, other} {
		if _, err := r.Pull(t.Context(), i, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Collect(t.Context(), []workload.Image{mine, other}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(r.upper("mainframe")); err != nil {
		t.Error(err)
	}
	r.reg.Faults.Forget()
	again := r.reopened(r.o)
	for _, i := range []workload.Image{mine, other} {
		if _, err := again.Pull(t.Context(), i, nil); err != nil {
			t.Error(err)
		}
	}
	if n := len(r.reg.Faults.Requests("", "")); n > 0 {
		t.Errorf("%d requests for what is there", n)
	}
	r.up(project("mine", server(mine)))
}

// continuedAt is the furthest byte of a blob that was asked for since the requests were forgotten. It tells that a pull went
// on where one had ended; the bytes that left the registry do not, as what filled the sockets' buffers of a broken
// connection is counted there and never arrived.
func (r *rig) continuedAt() (from int) {
	for _, q := range r.reg.Faults.Requests("GET", "/blobs/") {
		var n int
		if _, err := fmt.Sscanf(q.Range, "bytes=%d-", &n); err == nil {
			from = max(from, n)
		}
	}
	return from
}

func TestPullIsContinued(t *testing.T) {
	r := ownRig(t)
	built := r.heavy(3, 4<<20)
	img := r.push(built, "plant/heavy")
	size := weight(t, built)
	r.reg.Faults.Forget()
	// Two connections are cut in the middle of a layer; then the registry is gone for the rest of the attempt.
	m, err := built.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	var layers []string // the large ones: a cut behind the end of a small blob is none
	for _, l := range m.Layers[len(m.Layers)-3:] {
		layers = append(layers, l.Digest.Hex)
	}
	path := "/blobs/sha256:(" + strings.Join(layers, "|") + ")"
	r.reg.Faults.Add(testenv.Rule{Method: "GET", Path: path, Times: 2, Effect: testenv.Cut(2 << 20)})
	r.reg.Faults.Add(testenv.Rule{Method: "GET", Path: path, Skip: 2, Effect: testenv.Status(http.StatusServiceUnavailable, 0)})
	if _, err := r.Pull(t.Context(), img, nil); !fault.Retryable(err) {
		t.Fatalf("Pull = %v, want %v", err, fault.ErrTemporary)
	}
	if ok, _ := r.journal.IsDurable(img.Name()); ok {
		t.Error("half an image is durable")
	}
	// The agent and containerd are both killed meanwhile.
	r.daemon.Kill()
	if err := r.daemon.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.reg.Faults.Clear()
	first, _ := r.reg.Faults.Bytes("GET", "")
	from := r.continuedAt()
	r.reg.Faults.Forget()
	again := r.open()
	defer again.Close()
	if _, err := again.Pull(t.Context(), img, nil); err != nil {
		t.Fatal(err)
	}
	if from = max(from, r.continuedAt()); from < 1<<20 {
		t.Errorf("no layer was continued beyond byte %d, want over 1 MiB", from)
	}
	sent, _ := r.reg.Faults.Bytes("GET", "")
	t.Logf("%d bytes left the registry for an image of %d: %.3f", first+sent, size, float64(first+sent)/float64(size))
	if sent >= size*95/100 { // most was there before the kill
		t.Errorf("%d bytes of %d were asked for again after the cut", sent, size)
	}
	r.up(project("heavy", server(img)))
}

func TestPullKilledAtHalf(t *testing.T) {
	r := newRig(t)
	built := r.heavy(1, 12<<20)
	img := r.push(built, "plant/one")
	r.reg.Faults.Forget()
	r.reg.Faults.Add(testenv.Rule{Method: "GET", Path: "/blobs/", Skip: 2, Times: 1, Effect: r.reg.Faults.Stall(6 << 20)})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	progress := func(done, total int64) {
		if done > total*2/5 {
			cancel()
		}
	}
	if _, err := r.Pull(ctx, img, progress); !errors.Is(err, context.Canceled) {
		t.Fatalf("Pull = %v, want %v", err, context.Canceled)
	}
	r.reg.Faults.Clear()
	if _, err := r.Pull(t.Context(), img, nil); err != nil {
		t.Fatal(err)
	}
	from := r.continuedAt()
	if from < 1<<20 {
		t.Errorf("the layer was continued at byte %d, want over 1 MiB", from)
	}
}

// A power cut can leave the beginning of a manifest with other bytes than were written.
func TestPullAfterADamagedManifest(t *testing.T) {
	r := newRig(t)
	img := r.push(r.toolbox(nil), "plant/web")
	c, err := client.New(r.o.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w, err := c.ContentStore().Writer(namespaces.WithNamespace(t.Context(), r.o.Namespace), content.WithRef("manifest-"+img.Digest.String()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if _, err := r.Pull(t.Context(), img, nil); err != nil {
		t.Error(err)
	}
}

func TestPullFromARegistryWithoutRanges(t *testing.T) {
	r := newRig(t)
	img := r.push(r.heavy(1, 2<<20), "plant/norange")
	cut := testenv.Rule{Method: "GET", Path: "/blobs/", Skip: 2, Times: 1, Effect: testenv.Cut(1 << 20)}
	r.reg.Faults.Add(cut)
	refuse := func(w http.ResponseWriter, q *http.Request, next http.Handler) {
		if q.Header.Get("Range") != "" {
			w.WriteHeader(http.StatusRequestedRangeNotSatisfiable)
			return
		}
		next.ServeHTTP(w, q)
	}
	r.reg.Faults.Add(testenv.Rule{Method: "GET", Path: "/blobs/", Effect: refuse})
	if _, err := r.Pull(t.Context(), img, nil); err != nil {
		t.Error(err)
	}
}

func TestPullRefusesWrongBytes(t *testing.T) {
	r := newRig(t)
	img := r.push(r.heavy(1, 1<<20), "plant/liar")
	for name, rule := range map[string]testenv.Rule{
		"a layer":    {Method: "GET", Path: "/blobs/", Skip: 1, Effect: testenv.Corrupt()},
		"everything": {Method: "GET", Path: "/(blobs|manifests)/", Effect: testenv.Corrupt()},
	} {
		r.reg.Faults.Add(rule)
		if _, err := r.Pull(t.Context(), img, nil); !errors.Is(err, fault.ErrDigestMismatch) {
			t.Errorf("%s: Pull = %v, want %v", name, err, fault.ErrDigestMismatch)
		}
		r.reg.Faults.Clear()
	}
	if ok, _ := r.journal.IsDurable(img.Name()); ok {
		t.Error("an image of wrong bytes is durable")
	}
	if _, err := r.Pull(t.Context(), img, nil); err != nil {
		t.Errorf("Pull after the registry stopped lying: %v", err)
	}
}

func TestPullSurvivesALyingMirror(t *testing.T) {
	r := newRig(t)
	built := r.heavy(1, 1<<20)
	img := r.push(built, "plant/web")
	mirror := testenv.Registry(t, testenv.Distribution)
	if _, err := mirror.Push(t.Context(), "plant/web:1", built); err != nil {
		t.Fatal(err)
	}
	mirror.Faults.Add(testenv.Rule{Method: "GET", Path: "/blobs/", Effect: testenv.Corrupt()})
	certs := mirrors(t, r.reg.Host, "http://127.0.0.1:1", mirror.URL) // the first does not answer
	r.o.Endpoints = throughClient(t, registry.Options{CertsDir: certs})
	rt := r.open()
	defer rt.Close()
	if _, err := rt.Pull(t.Context(), img, nil); err != nil {
		t.Error(err)
	}
	if n := len(mirror.Faults.Requests("GET", "/blobs/")); n == 0 {
		t.Error("the mirror was not asked")
	}
}

// A mirror whose answer is of another length, such as a page of a proxy, does not cost what the registry has sent before.
func TestPullIsContinuedBehindALyingMirror(t *testing.T) {
	r := newRig(t)
	built := r.toolbox(nil, []testenv.File{{Path: "own", Data: noise(212, 4<<20)}})
	img := r.push(built, "plant/web")
	mirror := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/manifests/") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = w.Write([]byte("{}"))
	}))
	t.Cleanup(mirror.Close)
	path := "/blobs/" + lastLayer(t, built)
	r.reg.Faults.Add(testenv.Rule{Method: "GET", Path: path, Times: 1, Effect: testenv.Cut(2 << 20)})
	r.reg.Faults.Add(testenv.Rule{Method: "GET", Path: path, Effect: testenv.Status(http.StatusServiceUnavailable, 0)})
	if _, err := r.Pull(t.Context(), img, nil); !fault.Retryable(err) {
		t.Fatalf("Pull = %v, want %v", err, fault.ErrTemporary)
	}
	r.reg.Faults.Clear()
	r.reg.Faults.Forget()
	r.o.Endpoints = throughClient(t, registry.Options{CertsDir: mirrors(t, r.reg.Host, mirror.URL)})
	rt := r.open()
	defer rt.Close()
	if _, err := rt.Pull(t.Context(), img, nil); err != nil {
		t.Fatal(err)
	}
	if from := r.continuedAt(); from < 1<<20 {
		t.Errorf("the layer was continued at byte %d, want over 1 MiB", from)
	}
}

// The error about a layer that the registry lacks names it: the image itself is there.
func TestPullNamesTheMissingLayer(t *testing.T) {
	r := newRig(t)
	built := r.toolbox(nil, []testenv.File{{Path: "own", Data: noise(211, 1<<10)}})
	img := r.push(built, "plant/web")
	missing := lastLayer(t, built)
	r.reg.Faults.Add(testenv.Rule{Method: "GET", Path: "/blobs/" + missing, Effect: testenv.Status(http.StatusNotFound, 0)})
	if _, err := r.Pull(t.Context(), img, nil); !errors.Is(err, fault.ErrNotFound) || !strings.Contains(err.Error(), img.Name()+": "+missing+" from "+r.reg.Host) {
		t.Errorf("Pull = %v, want that %s is not there", err, missing)
	}
}

func lastLayer(t *testing.T, built v1.Image) string {
	t.Helper()
	m, err := built.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	return m.Layers[len(m.Layers)-1].Digest.String()
}

// mirrors writes a folder with a registry's mirrors, in their order.
func mirrors(t testing.TB, registry string, urls ...string) string {
	t.Helper()
	certs := t.TempDir()
	var hosts strings.Builder
	for _, u := range urls {
		fmt.Fprintf(&hosts, "[host.%q]\n", u)
	}
	if err := errors.Join(os.Mkdir(filepath.Join(certs, registry), 0o700), os.WriteFile(filepath.Join(certs, registry, "hosts.toml"), []byte(hosts.String()), 0o600)); err != nil {
		t.Fatal(err)
	}
	return certs
}

// throughClient lets images come through the registry client, as the agent does.
func throughClient(t testing.TB, o registry.Options) func(repository string) ([]images.Endpoint, error) {
	t.Helper()
	o.RetryBudget = -1
	c, err := registry.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return images.EndpointsOf(c.Endpoints)
}

// A mirror that takes connections and answers nothing is one that does not answer: the registry behind it is asked.
func TestPullSurvivesASilentMirror(t *testing.T) {
	r := newRig(t)
	img := r.push(r.toolbox(nil), "plant/web")
	asked := make(chan struct{}, 16)
	mirror := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	}))
	t.Cleanup(mirror.Close)
	certs := mirrors(t, r.reg.Host, mirror.URL)
	r.o.Endpoints = throughClient(t, registry.Options{CertsDir: certs, StallTimeout: time.Second})
	rt := r.open()
	defer rt.Close()
	if _, err := rt.Pull(t.Context(), img, nil); err != nil {
		t.Error(err)
	}
	if len(asked) == 0 {
		t.Error("the mirror was not asked")
	}
}

func TestPullWithCredentialsAndCA(t *testing.T) {
	t.Parallel()
	for _, kind := range []testenv.Kind{testenv.DistributionTLS, testenv.DistributionHtpasswd, testenv.DistributionToken, testenv.Referrers, testenv.Lax} {
		t.Run(string(kind), func(t *testing.T) {
			r := newRig(t)
			r.reg = testenv.Registry(t, kind)
			img := r.push(r.toolbox(nil), "plant/secret")
			o := registry.Options{Host: r.reg.Host, CAFile: r.reg.CAFile, Username: r.reg.Username, Password: r.reg.Password}
			if r.reg.Username != "" {
				o := o
				o.Password = "hunter2"
				r.o.Endpoints = throughClient(t, o)
				rt := r.open()
				defer rt.Close()
				_, err := rt.Pull(t.Context(), img, nil)
				if !errors.Is(err, fault.ErrUnauthenticated) && !errors.Is(err, fault.ErrDenied) {
					t.Errorf("Pull with a wrong password = %v, want %v", err, fault.ErrUnauthenticated)
				}
				if strings.Contains(fmt.Sprint(err), "hunter2") {
					t.Errorf("the secret is in the error: %v", err)
				}
			}
			r.o.Endpoints = throughClient(t, o)
			rt := r.open()
			defer rt.Close()
			if _, err := rt.Pull(t.Context(), img, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// A registry, or whoever answers in its place, names a token server without TLS: it is not asked, and told nothing.
func TestPullTellsNoTokenServerWithoutTLS(t *testing.T) {
	r := newRig(t)
	r.reg = testenv.Registry(t, testenv.DistributionHtpasswd, testenv.WithTLS())
	img := r.push(r.toolbox(nil), "plant/secret")
	var asked []string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.String()+" "+r.Header.Get("Authorization"))
		http.Error(w, "{}", http.StatusUnauthorized)
	}))
	t.Cleanup(elsewhere.Close)
	r.reg.Faults.Add(testenv.Rule{Effect: func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		w.Header().Set("Www-Authenticate", `Bearer realm="`+elsewhere.URL+`/token",service="x",scope="repository:plant/secret:pull"`)
		w.WriteHeader(http.StatusUnauthorized)
	}})
	r.o.Endpoints = throughClient(t, registry.Options{Host: r.reg.Host, CAFile: r.reg.CAFile, Username: r.reg.Username, Password: r.reg.Password})
	rt := r.open()
	defer rt.Close()
	if _, err := rt.Pull(t.Context(), img, nil); !errors.Is(err, fault.ErrUnauthenticated) || strings.Contains(err.Error(), r.reg.Password) {
		t.Errorf("Pull = %v, want fault.ErrUnauthenticated", err)
	}
	if len(asked) > 0 {
		t.Errorf("the token server without TLS was asked %q", asked)
	}
}

// A registry that asks to be left alone is not asked again at once, and whoever pulls learns for how long.
func TestPullKnowsWhenToComeBack(t *testing.T) {
	r := newRig(t)
	img := r.push(r.toolbox(nil), "plant/busy")
	r.o.Endpoints = throughClient(t, registry.Options{})
	rt := r.open()
	defer rt.Close()
	r.reg.Faults.Forget()
	r.reg.Faults.Add(testenv.Rule{Effect: testenv.Status(http.StatusTooManyRequests, 90*time.Second)})
	_, err := rt.Pull(t.Context(), img, nil)
	if after, ok := fault.RetryAfter(err); !errors.Is(err, fault.ErrTemporary) || !ok || after != 90*time.Second {
		t.Errorf("Pull = %v, to come back in %v, want fault.ErrTemporary and 90 s", err, after)
	}
	if n := len(r.reg.Faults.Requests("", "")); n > 2 { // a digest may be a manifest's or a blob's
		t.Errorf("%d requests, want one for each thing that the digest may name", n)
	}
}

func TestPullRefusals(t *testing.T) {
	r := newRig(t)
	foreign, err := testenv.BuildImage("linux/s390x", v1.Config{}, []testenv.File{{Path: "x", Data: []byte("x")}})
	if err != nil {
		t.Fatal(err)
	}
	single := r.push(foreign, "plant/foreign")
	p, err := r.registry().Push(t.Context(), "plant/foreigners:1", foreign, foreign)
	if err != nil {
		t.Fatal(err)
	}
	missing := single
	missing.Digest = digest.FromString("nothing")
	unpinned := single
	unpinned.Digest = ""
	platform := single
	platform.Platform = "linux/amd64/v1/x/y"
	for name, tc := range map[string]struct {
		image workload.Image
		want  error
	}{
		"another platform":       {single, fault.ErrUnfit},
		"an index without ours":  {workload.Image{Repository: p.Repository, Digest: digest.Digest(p.Digest)}, fault.ErrUnfit},
		"not there":              {missing, fault.ErrNotFound},
		"without a digest":       {unpinned, fault.ErrInvalid},
		"a platform that is not": {platform, fault.ErrInvalid},
	} {
		if _, err := r.Pull(t.Context(), tc.image, nil); !errors.Is(err, tc.want) {
			t.Errorf("%s: Pull = %v, want %v", name, err, tc.want)
		}
	}
	web := project("nope", server(single))
	if err := r.Prepare(t.Context(), web); err != nil {
		t.Fatal(err)
	}
	if err := r.Create(t.Context(), web, web.Containers()[0]); !errors.Is(err, fault.ErrNotFound) && !errors.Is(err, fault.ErrUnfit) {
		t.Errorf("Create without the image = %v, want %v", err, fault.ErrNotFound)
	}
	r.reg.Down()
	missing.Digest = digest.FromString("other")
	if _, err := r.Pull(t.Context(), missing, nil); !fault.Retryable(err) {
		t.Errorf("Pull without a registry = %v, want %v", err, fault.ErrTemporary)
	}
}

func TestPullOnAFullDisk(t *testing.T) {
	r := ownRig(t)
	img := r.push(r.heavy(2, 4<<20), "plant/big")
	blobs := filepath.Join(r.daemon.Root, "io.containerd.content.v1.content")
	if err := os.MkdirAll(blobs, 0o755); err != nil { // containerd 1.7 makes it when it needs it
		t.Fatal(err)
	}
	unmount := testenv.SmallDisk(t, blobs, 6<<20)
	for _, d := range []string{"blobs/sha256", "ingest"} {
		if err := os.MkdirAll(filepath.Join(blobs, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	_, err := r.Pull(t.Context(), img, nil)
	if !fault.Retryable(err) || !errors.Is(err, unix.ENOSPC) || fault.Hint(err) == "" || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("Pull on a full disk = %v (hint %q), want a temporary error that says so", err, fault.Hint(err))
	}
	out, err := r.daemon.Ctr(t.Context(), "-n", r.o.Namespace, "leases", "list", "-q")
	if err != nil || strings.Contains(out, "longshore-pull") {
		t.Errorf("leases = %q, %v, want none that keeps the partial image", out, err)
	}
	var st unix.Statfs_t
	testenv.Eventually(t, time.Minute, "the space comes back", func() error {
		if err := unix.Statfs(blobs, &st); err != nil || st.Bfree*10 < st.Blocks*9 {
			return fmt.Errorf("%d of %d blocks free, %w", st.Bfree, st.Blocks, err)
		}
		return nil
	})
	unmount()
	if err := os.MkdirAll(filepath.Join(blobs, "ingest"), 0o700); err != nil { // containerd made it once, at its start
		t.Fatal(err)
	}
	if _, err := r.Pull(t.Context(), img, nil); err != nil {
		t.Errorf("Pull after space was made: %v", err)
	}
}

// upper finds a file of an unpacked image on the host.
func (r *rig) upper(path string) string {
	r.t.Helper()
	m, err := filepath.Glob(filepath.Join(r.daemon.Root, "io.containerd.snapshotter.v1.overlayfs", "snapshots", "*", "fs", path))
	if err != nil || len(m) != 1 {
		r.t.Fatalf("%s is at %v, %v, want it once", path, m, err)
	}
	return m[0]
}

func (r *rig) blob(d digest.Digest) string {
	return filepath.Join(r.daemon.Root, "io.containerd.content.v1.content", "blobs", "sha256", d.Encoded())
}

func TestDamagedLayersAreRepairedFromLocalContent(t *testing.T) {
	r := ownRig(t)
	base := r.pulled(nil)
	top := r.push(r.toolbox(nil, []testenv.File{{Path: "app", Data: noise(9, 4096)}}), "plant/app")
	if _, err := r.Pull(t.Context(), top, nil); err != nil {
		t.Fatal(err)
	}
	running := r.up(project("base", server(base)))[0]
	r.serving(running.ID)
	// The power was cut before the upper image was durable: its file is there and empty.
	if err := os.Truncate(r.upper("app"), 0); err != nil {
		t.Fatal(err)
	}
	if err := r.journal.Unpacking(top.Name()); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(r.upper("toolbox"))
	if err != nil {
		t.Fatal(err)
	}
	r.reg.Down()
	rt := r.open()
	defer rt.Close()
	p := project("app", server(top))
	if err := errors.Join(rt.Prepare(t.Context(), p), rt.Create(t.Context(), p, p.Containers()[0])); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(r.upper("app")); err != nil || !slices.Equal(got, noise(9, 4096)) {
		t.Errorf("the file has %d bytes, %v, want it whole", len(got), err)
	}
	if now, err := os.Stat(r.upper("toolbox")); err != nil || !os.SameFile(before, now) {
		t.Errorf("the layer of a durable image was unpacked again: %v", err)
	}
	if ok, _ := r.journal.IsDurable(top.Name()); !ok {
		t.Error("the image is not durable after its repair")
	}
	r.serving(running.ID)
}

func TestLostJournalNeedsNoNetwork(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	c := r.up(project("lost", server(img)))[0]
	r.serving(c.ID)
	pid := r.seen(c.ID).PID
	if err := r.journal.Forget(img.Name()); err != nil { // with everything else that the agent's store held
		t.Fatal(err)
	}
	r.reg.Down()
	rt := r.reopened(r.o)
	if _, err := rt.Pull(t.Context(), img, nil); err != nil {
		t.Errorf("Pull of what is there, without a registry: %v", err)
	}
	if ok, _ := r.journal.IsDurable(img.Name()); !ok {
		t.Error("the image is not durable again")
	}
	if o := r.seen(c.ID); o.Status != workload.Running || o.PID != pid {
		t.Errorf("the container = %+v, want running as %d", o, pid)
	}
}

func TestDamagedBlobsAreFetchedAgain(t *testing.T) {
	r := ownRig(t)
	built := r.heavy(2, 1<<20)
	img := r.push(built, "plant/broken")
	if _, err := r.Pull(t.Context(), img, nil); err != nil {
		t.Fatal(err)
	}
	m, err := built.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		blob  digest.Digest
		bytes int64
	}{
		"layer":    {digest.Digest(m.Layers[1].Digest.String()), m.Layers[1].Size},
		"config":   {digest.Digest(m.Config.Digest.String()), m.Config.Size},
		"manifest": {img.Digest, weight(t, built) - manifestSize(t, built)}, // nothing names the rest any more: it goes too
	} {
		t.Run(name, func(t *testing.T) {
			file := r.blob(tc.blob)
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			clear(data[len(data)/2:])
			if err := errors.Join(os.Chmod(file, 0o600), os.WriteFile(file, data, 0o600)); err != nil {
				t.Fatal(err)
			}
			if err := r.journal.Unpacking(img.Name()); err != nil {
				t.Fatal(err)
			}
			rt := r.open()
			defer rt.Close()
			p := project("broken", server(img))
			if err := rt.Create(t.Context(), p, p.Containers()[0]); !errors.Is(err, fault.ErrNotFound) {
				t.Errorf("Create on a damaged image = %v, want %v: it has to be pulled", err, fault.ErrNotFound)
			}
			r.reg.Faults.Forget()
			if _, err := rt.Pull(t.Context(), img, nil); err != nil {
				t.Fatal(err)
			}
			if sent, _ := r.reg.Faults.Bytes("GET", "/blobs/"); sent != tc.bytes {
				t.Errorf("%d bytes of blobs travelled, want %d", sent, tc.bytes)
			}
		})
	}
	r.up(project("broken", server(img)))
}

func TestCollectKeepsWhatIsAskedFor(t *testing.T) {
	r := newRig(t)
	base := r.pulled(nil)
	old := r.push(r.toolbox(nil, []testenv.File{{Path: "old", Data: noise(3, 1<<16)}}), "plant/old")
	next := r.push(r.toolbox(nil, []testenv.File{{Path: "next", Data: noise(4, 1<<16)}}), "plant/next")
	half := r.push(r.heavy(1, 1<<20), "plant/half")
	for _, i := range []workload.Image{old, next} {
		if _, err := r.Pull(t.Context(), i, nil); err != nil {
			t.Fatal(err)
		}
	}
	r.reg.Faults.Add(testenv.Rule{Method: "GET", Path: "/blobs/", Skip: 1, Effect: testenv.Status(http.StatusServiceUnavailable, 0)})
	if _, err := r.Pull(t.Context(), half, nil); err == nil {
		t.Fatal("Pull succeeded, want half an image")
	}
	r.reg.Faults.Clear()
	if _, err := r.daemon.Ctr(t.Context(), "-n", r.o.Namespace, "images", "tag", base.Name(), "somebody/else:1"); err != nil {
		t.Fatal(err)
	}
	running := r.up(project("old", server(old)))[0]
	r.serving(running.ID)
	if err := r.Collect(t.Context(), []workload.Image{next}); err != nil {
		t.Fatal(err)
	}
	images, err := r.daemon.Ctr(t.Context(), "-n", r.o.Namespace, "images", "list", "-q")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{next.Name(): true, "somebody/else:1": true, old.Name(): false, base.Name(): false} {
		if got := strings.Contains(images, name); got != want {
			t.Errorf("image %s is there: %v, want %v", name, got, want)
		}
	}
	if ok, _ := r.journal.IsDurable(old.Name()); ok {
		t.Error("the journal still knows a dropped image")
	}
	// The running container keeps its layers, also over a restart of its process.
	if err := errors.Join(r.Stop(t.Context(), running.ID), r.start(running)); err != nil {
		t.Fatal(err)
	}
	r.serving(running.ID)
	r.reg.Faults.Forget()
	if _, err := r.Pull(t.Context(), next, nil); err != nil || len(r.reg.Faults.Requests("", "")) != 0 {
		t.Errorf("Pull of a kept image = %v and %d requests", err, len(r.reg.Faults.Requests("", "")))
	}
	if _, err := r.daemon.Ctr(t.Context(), "-n", r.o.Namespace, "images", "rm", "somebody/else:1"); err != nil {
		t.Fatal(err)
	}
}
