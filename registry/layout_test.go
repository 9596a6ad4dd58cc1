package registry_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"
	"oras.land/oras-go/v2/content/oci"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
)

func openLayout(t testing.TB, dir string) *registry.Layout {
	t.Helper()
	l, err := registry.OpenLayout(dir)
	if err != nil {
		t.Fatalf("OpenLayout = %v", err)
	}
	return l
}

func blobFile(dir string, d digest.Digest) string {
	return filepath.Join(dir, "blobs", "sha256", d.Encoded())
}

func TestLayoutKeepsContent(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "content")
	l := openLayout(t, dir)
	ctx := t.Context()
	contents := []string{"", "one", string(randomBytes(300_000))}
	for _, content := range contents {
		desc := blobOf([]byte(content))
		if _, err := l.Get(ctx, desc.Digest); !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("Get before Put = %v, want fault.ErrNotFound", err)
		}
		for range 2 {
			if err := l.Put(ctx, desc, []byte(content)); err != nil {
				t.Fatalf("Put = %v", err)
			}
		}
	}
	for range 2 { // now and after a restart
		for _, content := range contents {
			got, err := l.Get(ctx, digest.FromString(content))
			if err != nil || string(got) != content {
				t.Errorf("Get = %d bytes, %v, want %d", len(got), err, len(content))
			}
		}
		l = openLayout(t, dir)
	}
	if _, err := oci.NewWithContext(ctx, dir); err != nil {
		t.Errorf("oras-go does not take it for a layout: %v", err)
	}
}

// TestLayoutStages: content that is staged can be read, and lasts once it is synced.
func TestLayoutStages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, ctx := openLayout(t, dir), t.Context()
	stage := func(content string) digest.Digest {
		t.Helper()
		desc := blobOf([]byte(content))
		for range 2 {
			if err := l.Stage(ctx, desc, []byte(content)); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := l.Get(ctx, desc.Digest); err != nil || string(got) != content {
			t.Errorf("Get of what is staged = %q, %v", got, err)
		}
		return desc.Digest
	}
	dropped, kept := stage("dropped"), stage("kept")
	if err := l.Retain(ctx, []digest.Digest{kept}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := l.Sync(ctx); err != nil {
			t.Fatal(err)
		}
	}
	late := stage("late")
	for range 2 { // now and after a restart
		for d, want := range map[digest.Digest]error{dropped: fault.ErrNotFound, kept: nil} {
			if _, err := l.Get(ctx, d); !errors.Is(err, want) {
				t.Errorf("Get of %s = %v, want %v", d, err, want)
			}
		}
		l = openLayout(t, dir)
	}
	if _, err := l.Get(ctx, late); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("Get of what was not synced before a restart = %v, want fault.ErrNotFound", err)
	}
}

func TestLayoutRetain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, ctx := openLayout(t, dir), t.Context()
	keep, drop := blobOf([]byte("keep")), blobOf([]byte("drop"))
	for _, content := range []string{"keep", "drop"} {
		if err := l.Put(ctx, blobOf([]byte(content)), []byte(content)); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, "x", dir, "blobs", "sha256", "left by another program")
	for range 2 {
		if err := l.Retain(ctx, []digest.Digest{keep.Digest, "sha256:../../oci-layout", "", drop.Digest[:10]}); err != nil {
			t.Errorf("Retain = %v", err)
		}
	}
	if _, err := l.Get(ctx, keep.Digest); err != nil {
		t.Errorf("Get of what was kept = %v", err)
	}
	if _, err := l.Get(ctx, drop.Digest); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("Get of what was dropped = %v, want fault.ErrNotFound", err)
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "blobs", "sha256")); err != nil || len(entries) != 1 {
		t.Errorf("%d files are left, %v, want 1", len(entries), err)
	}
	if err := l.Retain(ctx, nil); err != nil {
		t.Errorf("Retain(nothing) = %v", err)
	}
}

// TestLayoutAfterAPowerCut puts on disk what interrupted writes and failing media leave.
func TestLayoutAfterAPowerCut(t *testing.T) {
	t.Parallel()
	content := []byte("the state of press-07")
	desc := blobOf(content)
	tests := map[string]func(t *testing.T, dir string){
		"file empty":  func(t *testing.T, dir string) { writeFile(t, "", blobFile(dir, desc.Digest)) },
		"file cut":    func(t *testing.T, dir string) { writeFile(t, "the state", blobFile(dir, desc.Digest)) },
		"file longer": func(t *testing.T, dir string) { writeFile(t, string(content)+"\x00\x00", blobFile(dir, desc.Digest)) },
		"bit flipped": func(t *testing.T, dir string) { writeFile(t, "the stAte of press-07", blobFile(dir, desc.Digest)) },
		"half written aside": func(t *testing.T, dir string) {
			writeFile(t, "the", dir, "ingest", "put-1")
			remove(t, blobFile(dir, desc.Digest))
		},
		"layout file empty": func(t *testing.T, dir string) {
			writeFile(t, "", dir, "oci-layout")
			remove(t, blobFile(dir, desc.Digest))
		},
		"index cut": func(t *testing.T, dir string) {
			writeFile(t, `{"schema`, dir, "index.json")
			remove(t, blobFile(dir, desc.Digest))
		},
		"folders gone": func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "blobs")) },
	}
	for name, damage := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := openLayout(t, dir).Put(t.Context(), desc, content); err != nil {
				t.Fatal(err)
			}
			damage(t, dir)
			l := openLayout(t, dir)
			if got, err := l.Get(t.Context(), desc.Digest); !errors.Is(err, fault.ErrNotFound) || got != nil {
				t.Errorf("Get of damaged content = %q, %v, want fault.ErrNotFound", got, err)
			}
			if err := l.Put(t.Context(), desc, content); err != nil {
				t.Fatalf("Put over damaged content = %v", err)
			}
			if got, err := l.Get(t.Context(), desc.Digest); err != nil || string(got) != string(content) {
				t.Errorf("Get after repair = %q, %v", got, err)
			}
			if left, err := os.ReadDir(filepath.Join(dir, "ingest")); err != nil || len(left) != 1 || left[0].Name() != "reserve" {
				t.Errorf("ingest holds %v, %v, want the reserve", left, err)
			}
			if _, err := oci.NewWithContext(t.Context(), dir); err != nil {
				t.Errorf("it is no layout any more: %v", err)
			}
		})
	}
}

func remove(t testing.TB, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

func TestLayoutRefuses(t *testing.T) {
	t.Parallel()
	l := openLayout(t, t.TempDir())
	good := blobOf([]byte("x"))
	large := good
	large.Size = 1 << 40
	for name, tt := range map[string]struct {
		desc ocispec.Descriptor
		is   error
	}{
		"empty":     {ocispec.Descriptor{}, fault.ErrInvalid},
		"traversal": {ocispec.Descriptor{Digest: "sha256:../../../etc/passwd"}, fault.ErrInvalid},
		"sha512":    {ocispec.Descriptor{Digest: digest.SHA512.FromString("x"), Size: 1}, fault.ErrUnsupported},
		"too large": {large, fault.ErrTooLarge},
		"negative":  {ocispec.Descriptor{Digest: good.Digest, Size: -1}, fault.ErrInvalid},
	} {
		if err := l.Put(t.Context(), tt.desc, []byte("x")); !errors.Is(err, tt.is) {
			t.Errorf("%s: Put = %v, want %v", name, err, tt.is)
		}
		is := tt.is
		if tt.desc.Digest == good.Digest { // only its size is wrong
			is = fault.ErrNotFound
		}
		if _, err := l.Get(t.Context(), tt.desc.Digest); !errors.Is(err, is) {
			t.Errorf("%s: Get = %v, want %v", name, err, is)
		}
	}
	if err := l.Put(t.Context(), good, []byte("y")); !errors.Is(err, fault.ErrDigestMismatch) {
		t.Errorf("Put of other bytes = %v, want fault.ErrDigestMismatch", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Put(ended, good, []byte("x")); !errors.Is(err, context.Canceled) {
		t.Errorf("Put with an ended context = %v, want context.Canceled", err)
	}
	if _, err := registry.OpenLayout(filepath.Join(writeFile(t, "x", t.TempDir(), "file"), "sub")); err == nil {
		t.Error("OpenLayout below a file = nil, want an error")
	}
}

func TestLayoutFromManyGoroutines(t *testing.T) {
	t.Parallel()
	l := openLayout(t, t.TempDir())
	var group errgroup.Group
	for i := range 8 {
		content := []byte{byte(i / 2)} // two for each content
		desc := blobOf(content)
		group.Go(func() error {
			for range 5 {
				if err := l.Put(t.Context(), desc, content); err != nil {
					return err
				}
				if _, err := l.Get(t.Context(), desc.Digest); err != nil && !errors.Is(err, fault.ErrNotFound) {
					return err
				}
			}
			return nil
		})
		group.Go(func() error { return l.Retain(t.Context(), []digest.Digest{desc.Digest}) })
	}
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
}

func TestLayoutOpen(t *testing.T) {
	place := t.TempDir()
	l, err := registry.OpenLayout(place)
	if err != nil {
		t.Fatal(err)
	}
	data := []byte("what is served")
	desc := ocispec.Descriptor{Digest: digest.FromBytes(data), Size: int64(len(data))}
	if _, err := l.Open(t.Context(), desc.Digest); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("Open of nothing: %v", err)
	}
	if err := l.Put(t.Context(), desc, data); err != nil {
		t.Fatal(err)
	}
	f, err := l.Open(t.Context(), desc.Digest)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || string(got) != string(data) {
		t.Errorf("Open: %q, %v", got, err)
	}
	blob := filepath.Join(place, "blobs", "sha256", desc.Digest.Encoded())
	if err := os.WriteFile(blob, []byte("what is damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Open(t.Context(), desc.Digest); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("Open of what is damaged: %v", err)
	}
	for _, d := range []digest.Digest{"", "sha256:x", "../../etc/passwd", "sha512:" + digest.Digest(strings.Repeat("0", 128))} {
		if _, err := l.Open(t.Context(), d); err == nil {
			t.Errorf("Open(%q) succeeded", d)
		}
	}
}
