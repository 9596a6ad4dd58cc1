package volumes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/agent/workload"
)

// A removal that was killed half-way is listed and is ended by the next one; a volume made anew meanwhile stays.
func TestTakeIsRepeated(t *testing.T) {
	r := New(Options{DataDir: t.TempDir()})
	p := &workload.Project{Name: "line-1", Deployment: "d1", Application: "line", Component: "line"}
	own := workload.VolumeOwner{Deployment: "d1", Application: "line", Component: "line"}
	data := func(v workload.Volume) string {
		t.Helper()
		if err := r.Ensure(p, v); err != nil {
			t.Fatal(err)
		}
		dir, err := r.rootOf(p.Name, v)
		if err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, volumeData)
	}
	list := func(want ...workload.StoredVolume) {
		t.Helper()
		got, err := r.Stored()
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("stored: %v (-want +got):\n%s", err, d)
		}
	}
	orders, shared := data(workload.Volume{Name: "orders"}), data(workload.Volume{Name: "x", Shared: "common"})
	list() // they have no data yet
	for _, dir := range []string{orders, shared} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(orders, "file"), []byte(strings.Repeat("x", 64<<10)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(orders, "file"), filepath.Join(orders, "again")); err != nil {
		t.Fatal(err)
	}
	first, common := workload.StoredVolume{Project: "line-1", Name: "orders", VolumeOwner: own}, workload.StoredVolume{Name: "common", VolumeOwner: own}
	list(common, first)
	if n, err := r.Size(t.Context(), "line-1", "orders"); err != nil || n < 64<<10 || n > 100<<10 {
		t.Errorf("size %d, %v; want that of one file of 64 KiB", n, err)
	}

	if _, err := r.Take(t.Context(), "line-1", "orders"); err != nil { // and the kill
		t.Fatal(err)
	}
	list(common, first)
	if err := os.Mkdir(orders, 0o755); err != nil {
		t.Fatal(err)
	}
	take := func(project, name string) {
		t.Helper()
		free, err := r.Take(t.Context(), project, name)
		if err == nil {
			err = free(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	free, err := r.Take(t.Context(), "line-1", "orders")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(orders, 0o755); err != nil { // made anew before the old data is deleted
		t.Fatal(err)
	}
	if err := free(t.Context()); err != nil {
		t.Fatal(err)
	}
	list(common, first)
	if n, err := r.Size(t.Context(), "line-1", "orders"); err != nil || n > 32<<10 {
		t.Errorf("size %d, %v; want that of an empty volume", n, err)
	}
	take("line-1", "orders")
	list(common)
	take("", "common")
	list()
	for _, dir := range []string{filepath.Dir(filepath.Dir(orders)), filepath.Dir(shared)} {
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s is left", dir)
		}
	}
}
