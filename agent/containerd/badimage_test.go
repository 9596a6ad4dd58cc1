package containerd_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/images"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

// crafted is an image made of raw bytes, as only somebody with bad intentions or a broken tool makes one.
type crafted struct {
	layers   []layer
	config   any // nil: a good one of layers
	manifest func(m *ocispec.Manifest)
	raw      []byte // in place of the manifest
	missing  int    // layer that the registry does not have, from 1; 0: it has all
}

// layer is a blob and what the image says about it.
type layer struct {
	data   []byte
	diffID digest.Digest
	media  string // "": gzip
	size   int64  // as said; 0: the truth
}

// tarred makes a layer of tar entries.
func tarred(t testing.TB, entries ...entry) layer {
	t.Helper()
	var plain, packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	w := tar.NewWriter(io.MultiWriter(&plain, z))
	for _, e := range entries {
		h := e.Header
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		h.Size = int64(len(e.data))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(e.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return layer{data: packed.Bytes(), diffID: digest.FromBytes(plain.Bytes())}
}

type entry struct {
	tar.Header
	data []byte
}

// bomb is a layer of one file of zeros: size bytes, and a thousandth of that in the registry.
func bomb(t testing.TB, size int64) layer {
	t.Helper()
	const chunk = 64 << 20
	var head, zeros, out bytes.Buffer
	w := tar.NewWriter(&head)
	if err := w.WriteHeader(&tar.Header{Name: "sparse", Mode: 0o644, Size: size}); err != nil {
		t.Fatal(err)
	}
	pack := func(into *bytes.Buffer, data []byte) { // gzip streams may follow each other
		z := gzip.NewWriter(into)
		if _, err := z.Write(data); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
	}
	pack(&out, head.Bytes())
	pack(&zeros, make([]byte, chunk))
	for range size / chunk {
		out.Write(zeros.Bytes())
	}
	pack(&out, make([]byte, 1024))
	return layer{data: out.Bytes(), diffID: digest.FromString("never computed")}
}

// craft puts the image into the registry.
func (r *rig) craft(name string, c crafted) workload.Image {
	r.t.Helper()
	var ids []digest.Digest
	m := ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
	for n, l := range c.layers {
		if l.media == "" {
			l.media = ocispec.MediaTypeImageLayerGzip
		}
		d := ocispec.Descriptor{MediaType: l.media, Digest: digest.FromBytes(l.data), Size: int64(len(l.data))}
		if n+1 == c.missing {
			r.registry().Faults.Add(testenv.Rule{Path: "/blobs/" + d.Digest.String(), Effect: testenv.Status(http.StatusNotFound, 0)})
		}
		r.put(name, "blobs", d, l.data)
		if l.size != 0 {
			d.Size = l.size
		}
		m.Layers, ids = append(m.Layers, d), append(ids, l.diffID)
	}
	config := c.config
	if config == nil {
		config = ocispec.Image{
			Platform: ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH},
			Config:   ocispec.ImageConfig{Entrypoint: []string{"/toolbox"}, Env: []string{"PATH=/"}},
			RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: ids},
		}
	}
	data, ok := config.([]byte)
	if !ok {
		var err error
		if data, err = json.Marshal(config); err != nil {
			r.t.Fatal(err)
		}
	}
	m.Config = ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(data), Size: int64(len(data))}
	r.put(name, "blobs", m.Config, data)
	if c.manifest != nil {
		c.manifest(&m)
	}
	raw := c.raw
	if raw == nil {
		var err error
		if raw, err = json.Marshal(m); err != nil {
			r.t.Fatal(err)
		}
	}
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(raw), Size: int64(len(raw))}
	r.put(name, "manifests", d, raw)
	return workload.Image{Repository: r.reg.Host + "/" + name, Digest: d.Digest}
}

// put has the registry answer with bytes that no registry would have taken.
func (r *rig) put(name, kind string, d ocispec.Descriptor, data []byte) {
	r.t.Helper()
	r.registry().Faults.Add(testenv.Rule{
		Path: "^/v2/" + name + "/" + kind + "/" + d.Digest.String() + "$",
		Effect: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Content-Type", d.MediaType)
			w.Header().Set("Content-Length", fmt.Sprint(len(data)))
			w.Header().Set("Docker-Content-Digest", d.Digest.String())
			_, _ = w.Write(data)
		},
	})
}

// program is the toolbox as a layer.
func (r *rig) program() layer {
	r.t.Helper()
	img := r.toolbox(nil)
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		r.t.Fatalf("toolbox has %d layers, %v", len(layers), err)
	}
	rc, err := layers[0].Compressed()
	if err != nil {
		r.t.Fatal(err)
	}
	defer rc.Close()
	data, err := io.ReadAll(rc)
	if err != nil {
		r.t.Fatal(err)
	}
	id, err := layers[0].DiffID()
	if err != nil {
		r.t.Fatal(err)
	}
	return layer{data: data, diffID: digest.Digest(id.String())}
}

// TestBadImagesAreRefused: each is refused by name, what runs is not touched, and nothing of it stays.
func TestBadImagesAreRefused(t *testing.T) {
	r := newRig(t)
	running := r.up(project("good", server(r.pulled(nil))))[0]
	r.serving(running.ID)
	before := r.seen(running.ID)
	good := r.program()
	fresh := func(name string) layer { // nobody else's layer: what is on the device already is not unpacked again
		return tarred(t, entry{tar.Header{Name: name}, noise(uint64(len(name)), 4096)})
	}
	deep := func() []byte { // indexes inside indexes
		inner := []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`)
		for range 5 {
			d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageIndex, Digest: digest.FromBytes(inner), Size: int64(len(inner))}
			r.put("bad/indexes-without-an-end", "manifests", d, inner)
			inner, _ = json.Marshal(ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Versioned: specs.Versioned{SchemaVersion: 2}, Manifests: []ocispec.Descriptor{d}})
		}
		return inner
	}
	wrong, short, garbage, shrunk, huge := fresh("wrong"), fresh("short"), fresh("garbage"), fresh("shrunk"), fresh("huge")
	wrong.diffID = digest.FromString("something else")
	short.data, garbage.data = short.data[:len(short.data)/2], noise(3, 4096)
	shrunk.size, huge.size = int64(len(shrunk.data))-10, 1<<40
	for name, tc := range map[string]struct {
		image crafted
		want  error
		says  string
	}{
		"without a configuration":      {crafted{layers: []layer{good}, manifest: func(m *ocispec.Manifest) { m.Config = ocispec.Descriptor{} }}, fault.ErrUnsupported, "configuration of type"},
		"an empty configuration":       {crafted{layers: []layer{good}, config: []byte("{}")}, fault.ErrInvalid, "1 layers and names 0"},
		"a configuration that is none": {crafted{layers: []layer{good}, config: []byte("nonsense")}, fault.ErrInvalid, "read image configuration"},
		"an artifact":                  {crafted{layers: []layer{good}, manifest: func(m *ocispec.Manifest) { m.Config.MediaType = ocispec.MediaTypeEmptyJSON }}, fault.ErrUnsupported, "not a container image"},
		"a missing layer":              {crafted{layers: []layer{good, fresh("missing")}, missing: 2}, fault.ErrNotFound, "not found"},
		"another diff id":              {crafted{layers: []layer{good, wrong}}, fault.ErrInvalid, "wrong diff id"},
		"half a layer":                 {crafted{layers: []layer{good, short}}, fault.ErrInvalid, "unexpected EOF"},
		"a layer of garbage":           {crafted{layers: []layer{good, garbage}}, fault.ErrInvalid, ""},
		"a layer that is longer":       {crafted{layers: []layer{good, shrunk}}, fault.ErrDigestMismatch, ""},
		"a layer of no bytes":          {crafted{layers: []layer{good, {diffID: digest.FromString("")}}}, fault.ErrInvalid, "of 0 bytes"},
		"indexes without an end":       {crafted{raw: deep()}, fault.ErrUnsupported, "inside each other"},
		"a huge manifest":              {crafted{raw: bytes.Repeat([]byte(" "), 5<<20)}, fault.ErrTooLarge, "4194304 are allowed"},
		"a manifest of text":           {crafted{raw: []byte("hello")}, fault.ErrInvalid, "not JSON"},
		"too many layers":              {crafted{layers: repeated(fresh("many"), 600)}, fault.ErrUnsupported, "600 layers"},
		"a layer of a terabyte":        {crafted{layers: []layer{good, huge}}, fault.ErrTemporary, "no space left"},
	} {
		t.Run(name, func(t *testing.T) {
			img := r.craft("bad/"+strings.ReplaceAll(name, " ", "-"), tc.image)
			_, err := r.Pull(t.Context(), img, nil)
			if !errors.Is(err, tc.want) || !strings.Contains(fmt.Sprint(err), tc.says) || !strings.Contains(fmt.Sprint(err), img.Name()) {
				t.Errorf("Pull = %v, want %v that says %q and names the image", err, tc.want, tc.says)
			}
			if ok, _ := r.journal.IsDurable(img.Name()); ok {
				t.Error("it is durable")
			}
		})
	}
	if now := r.seen(running.ID); now.PID != before.PID || now.Status != workload.Running {
		t.Errorf("the running container = %+v, was %+v", now, before)
	}
	r.serving(running.ID)
}

func repeated(l layer, n int) []layer {
	all := make([]layer, n)
	for i := range all {
		all[i] = l
	}
	return all
}

// TestSparseBomb: ten gigabytes that weigh ten megabytes are stopped on the way, once, and leave nothing.
func TestSparseBomb(t *testing.T) {
	r := ownRig(t)
	img := r.craft("bad/sparse", crafted{layers: []layer{r.program(), bomb(t, 10<<30)}})
	peak := func() int64 { return diskUse(t, r.daemon.Root) }
	_, err := r.Pull(t.Context(), img, nil)
	if !errors.Is(err, fault.ErrTooLarge) || !strings.Contains(fmt.Sprint(err), "MiB of files") {
		t.Errorf("Pull = %v, want %v", err, fault.ErrTooLarge)
	}
	if n := peak(); n > 256<<20 {
		t.Errorf("%d bytes are left on the disk", n)
	}
	r.reg.Faults.Forget()
	if _, err := r.Pull(t.Context(), img, nil); !errors.Is(err, fault.ErrTooLarge) || len(r.reg.Faults.Requests("", "")) > 0 {
		t.Errorf("a second Pull = %v and %d requests, want the same answer for nothing", err, len(r.reg.Faults.Requests("", "")))
	}
}

// diskUse is what the files below a folder take.
func diskUse(t *testing.T, dir string) (sum int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // removed meanwhile
		}
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(dir, e.Name()), &st) == nil && e.Type().IsRegular() {
			sum += st.Blocks * 512
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// TestOddImagesAreContained: what is in their layers stays in their layers, and in the container's own permissions.
func TestOddImagesAreContained(t *testing.T) {
	r := newRig(t)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(outside))
	evil := "evil-" + hex.EncodeToString(sum[:6])
	up := strings.Repeat("../", 40)
	for name, tc := range map[string]struct {
		layers []layer
		run    []string // command; nil: serve
		want   string   // of its output
		fails  bool     // the pull or the start may fail instead
	}{
		"files above the root": {
			layers: []layer{tarred(t, entry{tar.Header{Name: up + "tmp/" + evil}, []byte("x")}, entry{tar.Header{Name: "/tmp/" + evil + "2"}, []byte("x")})},
		},
		"a hard link to the host's file": {
			layers: []layer{tarred(t, entry{tar.Header{Name: "stolen", Typeflag: tar.TypeLink, Linkname: up + outside}, nil})}, fails: true,
		},
		"a file through a symbolic link": {
			layers: []layer{tarred(t, entry{tar.Header{Name: "way", Typeflag: tar.TypeSymlink, Linkname: "/tmp"}, nil}, entry{tar.Header{Name: "way/" + evil}, []byte("x")})}, fails: true,
		},
		"a file through a symbolic link of another layer": {
			layers: []layer{
				tarred(t, entry{tar.Header{Name: "way", Typeflag: tar.TypeSymlink, Linkname: up + "tmp"}, nil}),
				tarred(t, entry{tar.Header{Name: "way/" + evil}, []byte("x")}),
			}, fails: true,
		},
		"many whiteouts": {layers: []layer{whiteouts(t, 20000)}},
		"whiteouts of what is above the root": {
			layers: []layer{tarred(t, entry{tar.Header{Name: up + filepath.Dir(outside) + "/.wh.outside"}, nil})}, fails: true,
		},
		"everything hidden": {layers: []layer{tarred(t, entry{tar.Header{Name: ".wh..wh..opq"}, nil})}, fails: true},
		"a disk of the host as a device node": {
			layers: []layer{tarred(t, entry{tar.Header{Name: "disk", Typeflag: tar.TypeBlock, Mode: 0o666, Devmajor: 254, Devminor: 0}, nil})},
			run:    []string{"cat", "/disk"}, want: "operation not permitted",
		},
		"a set-uid file": {
			layers: []layer{tarred(t, entry{tar.Header{Name: "su", Mode: 0o4755}, []byte("x")})},
		},
	} {
		t.Run(name, func(t *testing.T) {
			img := r.craft("odd/"+strings.ReplaceAll(name, " ", "-"), crafted{layers: append([]layer{r.program()}, tc.layers...)})
			_, err := r.Pull(t.Context(), img, nil)
			if err != nil && (!tc.fails || !strings.Contains(err.Error(), img.Name())) {
				t.Fatalf("Pull = %v", err)
			}
			if err == nil {
				r.runOdd(t, img, tc.run, tc.want, tc.fails)
			}
			for _, f := range []string{"/tmp/" + evil, "/tmp/" + evil + "2"} {
				if _, err := os.Lstat(f); err == nil {
					t.Errorf("%s is on the host", f)
				}
			}
			if b, err := os.ReadFile(outside); string(b) != "secret" {
				t.Errorf("the host's file holds %q, %v", b, err)
			}
			if st, err := os.Stat(outside); err != nil || linkCount(st) != 1 {
				t.Errorf("the host's file has other links than its own: %v", err)
			}
		})
	}
	if st, err := os.Stat(r.upper("su")); err != nil || st.Mode()&fs.ModeSetuid == 0 {
		t.Errorf("the set-uid file has mode %v, %v", st.Mode(), err)
	}
}

func (r *rig) runOdd(t *testing.T, img workload.Image, run []string, want string, fails bool) {
	t.Helper()
	s := server(img)
	if run != nil {
		s.Command = run
	}
	c := r.created(project("odd", s))[0]
	defer func() {
		if err := errors.Join(r.Stop(t.Context(), c.ID), r.Remove(t.Context(), c.ID), r.Teardown(t.Context(), "odd")); err != nil {
			t.Error(err)
		}
	}()
	if err := r.start(c); err != nil {
		if !fails {
			t.Errorf("Start = %v", err)
		}
		return
	}
	if run == nil {
		r.serving(c.ID)
		return
	}
	r.exited(c.ID)
	testenv.Eventually(t, time.Minute, "what it wrote arrives", func() error { // the shim may still be copying it
		if out := r.output(c.ID); !strings.Contains(out, want) {
			return fmt.Errorf("output = %q, want %q", out, want)
		}
		return nil
	})
}

func linkCount(st fs.FileInfo) uint64 { return uint64(st.Sys().(*syscall.Stat_t).Nlink) }

func whiteouts(t testing.TB, n int) layer {
	var all []entry
	for i := range n {
		all = append(all, entry{tar.Header{Name: fmt.Sprintf("d/.wh.f%d", i)}, nil})
	}
	return tarred(t, all...)
}

// TestNoRoomForAnImage: refused before a layer is fetched; half-way leftovers of others and unused images go first.
func TestNoRoomForAnImage(t *testing.T) {
	r := ownRig(t)
	var st unix.Statfs_t
	if err := unix.Statfs(r.daemon.Root, &st); err != nil {
		t.Fatal(err)
	}
	unused, used := r.push(r.heavy(1, 1<<20), "plant/unused"), r.pulled(nil)
	if _, err := r.Pull(t.Context(), unused, nil); err != nil {
		t.Fatal(err)
	}
	half := r.push(r.heavy(2, 2<<20), "plant/half")
	r.reg.Faults.Add(testenv.Rule{Method: "GET", Path: "/plant/half/blobs/", Skip: 2, Effect: testenv.Status(http.StatusServiceUnavailable, 0)})
	if _, err := r.Pull(t.Context(), half, nil); err == nil {
		t.Fatal("Pull succeeded, want half an image")
	}
	r.reg.Faults.Clear()
	const ballast = 64 << 20 // used in any case, and more than the images need: the disk is too full, and not too small
	if err := os.WriteFile(filepath.Join(r.daemon.Root, "ballast"), make([]byte, ballast), 0o600); err != nil {
		t.Fatal(err)
	}
	o := r.o
	o.MinFree = images.Space{Bytes: int64(st.Blocks)*int64(st.Bsize) - ballast}
	rt := r.reopened(o)
	if err := rt.Collect(t.Context(), []workload.Image{used, unused, half}); err != nil { // what a device says that needs all
		t.Fatal(err)
	}
	next := r.push(r.heavy(3, 1<<20), "plant/next")
	r.reg.Faults.Forget()
	_, err := rt.Pull(t.Context(), next, nil)
	var full *images.FullError
	if !errors.As(err, &full) || !errors.Is(err, unix.ENOSPC) || !fault.Retryable(err) || fault.Hint(err) == "" {
		t.Errorf("Pull = %v (hint %q), want a full disk", err, fault.Hint(err))
	}
	if n := len(r.reg.Faults.Requests("GET", "/plant/next/blobs/")); n > 1 { // the configuration
		t.Errorf("%d blobs were fetched, want the configuration alone", n)
	}
	leases, err := r.daemon.Ctr(t.Context(), "-n", r.o.Namespace, "leases", "list", "-q")
	if err != nil || strings.Contains(leases, "longshore-pull") {
		t.Errorf("leases = %q, %v, want the half image dropped", leases, err)
	}
	for _, i := range []workload.Image{used, unused} {
		if ok, _ := r.journal.IsDurable(i.Name()); !ok {
			t.Errorf("%s was dropped, and is needed", i.Name())
		}
	}
	// What is to run is repaired all the same.
	if err := r.journal.Unpacking(used.Name()); err != nil {
		t.Fatal(err)
	}
	repairing, p := r.reopened(o), project("repair", server(used))
	if err := errors.Join(repairing.Prepare(t.Context(), p), repairing.Create(t.Context(), p, p.Containers()[0])); err != nil {
		t.Error(err)
	}
	if _, err := r.Pull(t.Context(), next, nil); err != nil { // by a device with room
		t.Error(err)
	}
}
