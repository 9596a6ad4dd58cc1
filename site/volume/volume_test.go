package volume_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/site/volume"
)

var documents = []string{"longshore-export.json", "oci-layout", "index.json"}

// layout has blobs of these sizes.
func layout(index string, sizes ...int) fstest.MapFS {
	random := rand.NewChaCha8([32]byte{1})
	out := fstest.MapFS{"oci-layout": {Data: []byte("{}")}, "index.json": {Data: []byte(index)}, "longshore-export.json": {Data: []byte("{}")}}
	for _, n := range sizes {
		data := make([]byte, n)
		_, _ = random.Read(data) // it does not fail
		out["blobs/sha256/"+digest.FromBytes(data).Encoded()] = &fstest.MapFile{Data: data}
	}
	return out
}

func write(t *testing.T, from fs.FS, size int64) (dir string, names []string) {
	t.Helper()
	dir = t.TempDir()
	names, err := volume.Write(t.Context(), from, documents, dir, size)
	if err != nil {
		t.Fatal(err)
	}
	return dir, names
}

// What was written is read back from volumes none of which is too large, in any order; sha256sum and tar know them too.
func TestVolumes(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	for name, sizes := range map[string][]int{
		"one volume":      {100, 0, 511, 512, 513},
		"several":         {700_000, 700_000, 200_000, 1},
		"larger than one": {100, 3<<20 + 17, 900_000, 2 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			from := layout(`{"manifests":[]}`, sizes...)
			dir, names := write(t, from, size)
			for _, name := range names {
				if info, err := os.Stat(name); err != nil || info.Size() > size {
					t.Errorf("%s: %v, %d bytes, at most %d", name, err, info.Size(), size)
				}
			}
			check := exec.CommandContext(t.Context(), "sha256sum", "--quiet", "--strict", "-c", volume.SumsFile)
			check.Dir = dir
			if out, err := check.CombinedOutput(); err != nil {
				t.Errorf("sha256sum: %v\n%s", err, out)
			}
			slices.Reverse(names)
			set, err := volume.Open(t.Context(), names)
			if err != nil {
				t.Fatal(err)
			}
			defer set.Close()
			for name, f := range from {
				got, err := fs.ReadFile(set, name)
				if err != nil || !bytes.Equal(got, f.Data) {
					t.Errorf("%s: %d bytes of %d, %v", name, len(got), len(f.Data), err)
				}
			}
			if _, err := set.Open("blobs/sha256/none"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("what is not there: %v", err)
			}
			into := t.TempDir()
			for _, name := range slices.Sorted(slices.Values(names)) {
				if out, err := exec.CommandContext(t.Context(), "tar", "-x", "-C", into, "-f", name).CombinedOutput(); err != nil {
					t.Errorf("tar: %v\n%s", err, out)
				}
			}
			for name, f := range from {
				parts, _ := filepath.Glob(filepath.Join(into, name+"*")) // a good pattern
				var got []byte
				for _, part := range parts {
					data, err := os.ReadFile(part)
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, data...)
				}
				if !bytes.Equal(got, f.Data) {
					t.Errorf("extracted %s: %d bytes of %d", name, len(got), len(f.Data))
				}
			}
		})
	}
}

// A reader can be moved anywhere in a blob of several volumes.
func TestSeek(t *testing.T) {
	t.Parallel()
	from := layout("{}", 3<<20)
	_, names := write(t, from, 1<<20)
	set, err := volume.Open(t.Context(), names)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	for name, want := range from {
		if len(want.Data) < 1<<20 {
			continue
		}
		f, err := set.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, offset := range []int64{0, 1, 1<<20 - 5000, 1 << 20, 2<<20 + 3, 3<<20 - 1, 3 << 20} {
			if _, err := f.(io.Seeker).Seek(offset, io.SeekStart); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, want.Data[offset:]) {
				t.Errorf("from %d: %d bytes, %v", offset, len(got), err)
			}
		}
	}
}

// A volume that is missing, is there twice, is of another export, or is damaged, is named.
func TestBadVolumes(t *testing.T) {
	t.Parallel()
	dir, names := write(t, layout("{}", 900_000, 3<<20, 900_000), 1<<20)
	_, others := write(t, layout(`{"manifests":[]}`, 900_000, 3<<20, 900_000), 1<<20)
	if len(names) < 4 {
		t.Fatalf("%d volumes", len(names))
	}
	second, err := os.ReadFile(names[1])
	if err != nil {
		t.Fatal(err)
	}
	altered := func(data []byte) string {
		name := filepath.Join(t.TempDir(), "altered.tar")
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	with := func(name string) []string { return slices.Concat(names[:1], []string{name}, names[2:]) }
	flipped := bytes.Clone(second)
	flipped[len(flipped)/2] ^= 1
	document := bytes.Replace(second, []byte("oci-layout"), []byte("oci-layouT"), 1)
	for _, c := range []struct {
		name  string
		files []string
		kind  error
		tell  string
	}{
		{"missing", slices.Concat(names[:1], names[2:]), fault.ErrNotFound, "1 of " + fmt.Sprint(len(names)) + " volumes are missing: longshore-export-002.tar"},
		{"twice", append(slices.Clone(names), altered(second)), fault.ErrConflict, "are both volume 2"},
		{"of another export", with(others[1]), fault.ErrConflict, others[1]},
		{"of another bit", with(altered(flipped)), fault.ErrDigestMismatch, ""},
		{"cut off", with(altered(second[:len(second)/2])), fault.ErrDigestMismatch, "altered.tar"},
		{"with another header", with(altered(document)), fault.ErrDigestMismatch, "altered.tar"},
		{"empty", with(altered(nil)), fault.ErrDigestMismatch, "altered.tar"},
		{"no tar", with(altered(bytes.Repeat([]byte("no tar "), 1000))), fault.ErrDigestMismatch, "altered.tar"},
		{"gone", with(filepath.Join(dir, "gone.tar")), fs.ErrNotExist, "gone.tar"},
	} {
		set, err := volume.Open(t.Context(), c.files)
		if err == nil {
			t.Errorf("%s: it was taken", c.name)
			_ = set.Close()
			continue
		}
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.tell) {
			t.Errorf("%s: %v, want %v and %q", c.name, err, c.kind, c.tell)
		}
	}
}

// A tar of a layout that somebody else made is one volume.
func TestPlainTar(t *testing.T) {
	t.Parallel()
	from := layout("{}", 1000)
	name := filepath.Join(t.TempDir(), "stick.tar")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	for _, path := range slices.Sorted(maps.Keys(from)) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "./" + path, Size: int64(len(from[path].Data)), Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(from[path].Data); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	set, err := volume.Open(t.Context(), []string{name})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	for path, want := range from {
		if got, err := fs.ReadFile(set, path); err != nil || !bytes.Equal(got, want.Data) {
			t.Errorf("%s: %d bytes, %v", path, len(got), err)
		}
	}
}

// What is verified is what is read later: the bytes of a sparse file in a tar are not in one piece, and documents are held in memory.
func TestTarsThatAreNoVolumes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	hole := make([]byte, 1<<20)
	hole[len(hole)-1] = 1
	name := filepath.Join(dir, "blobs", "sha256", digest.FromBytes(hole).Encoded())
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte{1}, int64(len(hole)-1))
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	sparse := filepath.Join(t.TempDir(), "sparse.tar")
	if out, err := exec.CommandContext(t.Context(), "tar", "-C", dir, "--sparse", "--hole-detection=raw", "--format=posix", "-cf", sparse, "blobs").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	if set, err := volume.Open(t.Context(), []string{sparse}); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("a sparse file: %v", err)
		if err == nil {
			if got, err := fs.ReadFile(set, "blobs/sha256/"+filepath.Base(name)); !bytes.Equal(got, hole) {
				t.Errorf("what is read is not what was verified: %v", err)
			}
			set.Close()
		}
	}

	many := filepath.Join(t.TempDir(), "many.tar")
	if f, err = os.Create(many); err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(f)
	for _, name := range []string{"index.json", "a", "b"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: 24 << 20, Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, 24<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := volume.Open(t.Context(), []string{many}); !errors.Is(err, fault.ErrTooLarge) {
		t.Errorf("documents of 72 MiB: %v", err)
	}
}

// A file system that cannot sync folders, as some of shared folders cannot, is no error.
func TestSyncFolder(t *testing.T) {
	t.Parallel()
	for dir, want := range map[string]error{"/proc/self": nil, t.TempDir(): nil, "/missing": fs.ErrNotExist} { // proc cannot sync
		if err := volume.SyncFolder(dir); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", dir, err, want)
		}
	}
}

// Volumes that were there are replaced, and a size that leaves no room for blobs is refused before.
func TestWriteAgain(t *testing.T) {
	t.Parallel()
	dir, names := write(t, layout("{}", 3<<20), 1<<20)
	if _, err := volume.Write(t.Context(), layout(strings.Repeat(" ", 1<<20), 100), documents, dir, 1<<20); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("no room for blobs: %v", err)
	}
	if _, err := os.Stat(names[3]); err != nil {
		t.Errorf("what is there was removed: %v", err)
	}
	if _, err := volume.Write(t.Context(), layout("{}", 100), documents, dir, 0); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("%v, %v, want a volume and its checksum", left, err)
	}
}

func FuzzOpen(f *testing.F) {
	dir := f.TempDir()
	names, err := volume.Write(f.Context(), layout("{}", 100, 3000), documents, dir, 0)
	if err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(names[0])
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole)
	f.Add(whole[:2000])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		name := filepath.Join(t.TempDir(), "x.tar")
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		set, err := volume.Open(t.Context(), []string{name})
		if err != nil {
			return
		}
		defer set.Close()
		for _, part := range []string{"index.json", "longshore-export.json"} {
			if _, err := fs.ReadFile(set, part); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %v", part, err)
			}
		}
	})
}

// worn cannot read some files.
type worn struct {
	fstest.MapFS
	bad string
}

func (w worn) Open(name string) (fs.File, error) {
	f, err := w.MapFS.Open(name)
	if name == w.bad {
		return unreadable{f}, err
	}
	return f, err
}

type unreadable struct{ fs.File }

func (unreadable) Read([]byte) (int, error) { return 0, &fs.PathError{Op: "read", Err: syscall.EIO} }

// A blob that cannot be read is damaged like one with other bytes, and does not end the check.
func TestDamaged(t *testing.T) {
	t.Parallel()
	l := layout("{}", 100, 200, 300)
	var blobs []string
	for name := range l {
		if strings.HasPrefix(name, "blobs/") {
			blobs = append(blobs, name)
		}
	}
	slices.Sort(blobs)
	l[blobs[2]].Data[0] ^= 1
	done, bytes := 0, int64(0)
	got, err := volume.Damaged(t.Context(), worn{l, blobs[0]}, func(n, all int, read int64) {
		if done, bytes = n, read; all != 3 {
			t.Errorf("%d of %d", n, all)
		}
	})
	if err != nil || !slices.Equal(got, []string{blobs[0], blobs[2]}) || done != 3 || bytes != 600 {
		t.Errorf("Damaged = %v, %v after %d blobs of %d bytes", got, err, done, bytes)
	}
}
