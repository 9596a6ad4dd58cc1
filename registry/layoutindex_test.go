package registry_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
)

// layoutIndex reads index.json: digests by name, and how many entries have none.
func layoutIndex(t *testing.T, dir string) (names map[string]string, unnamed int) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "index.json"))
	var index ocispec.Index
	if err == nil {
		err = json.Unmarshal(data, &index)
	}
	if err != nil {
		t.Fatal(err)
	}
	names = map[string]string{}
	for _, d := range index.Manifests {
		if name := d.Annotations[ocispec.AnnotationRefName]; name != "" {
			names[name] = d.Digest.String()
		} else {
			unnamed++
		}
	}
	return names, unnamed
}

// The index of a layout is written with each manifest, unless it is held: then rarely, and at the end. It is replaced, never written in
// place.
func TestLayoutIndex(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "layout")
	client := newClient(t, registry.Options{})
	repo := openName(t, client, "oci-layout:"+dir)
	push := func(name string) ocispec.Descriptor {
		t.Helper()
		blob := []byte(name + " of the layout")
		desc, data := manifestOf(t, blobOf(blob), nil)
		err := errors.Join(repo.PushBlob(t.Context(), empty(), []byte("{}")), repo.PushBlob(t.Context(), blobOf(blob), blob))
		if err == nil {
			err = repo.PushManifest(t.Context(), desc, data, name)
		}
		if err != nil {
			t.Fatal(err)
		}
		return desc
	}
	first := push("first")
	before, err := os.Open(filepath.Join(dir, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	defer before.Close()
	push("second")
	if names, _ := layoutIndex(t, dir); len(names) != 2 || names["first"] != first.Digest.String() {
		t.Errorf("the index has %v", names)
	}
	var old ocispec.Index
	if err := json.NewDecoder(before).Decode(&old); err != nil || len(old.Manifests) != 1 {
		t.Errorf("a reader of the former index reads %d entries, %v", len(old.Manifests), err)
	}
	save, err := client.HoldIndex(dir)
	if err != nil {
		t.Fatal(err)
	}
	const more = 500
	writes, last := 0, 0
	for n := range more {
		push(fmt.Sprintf("held-%03d", n))
		if names, _ := layoutIndex(t, dir); len(names) != last {
			writes, last = writes+1, len(names)
		}
	}
	if writes < 2 || writes > 20 {
		t.Errorf("a held index was written %d times for %d names", writes, more)
	}
	if d, err := repo.Resolve(t.Context(), "held-499"); err != nil || d.Size == 0 {
		t.Errorf("a name that is not written yet: %v", err)
	}
	if err := save(); err != nil {
		t.Fatal(err)
	}
	if names, unnamed := layoutIndex(t, dir); len(names) != more+2 || unnamed != 0 {
		t.Errorf("in the end the index has %d names and %d entries without one", len(names), unnamed)
	}
	again := openName(t, newClient(t, registry.Options{}), "oci-layout:"+dir)
	if err := again.Tag(t.Context(), first, "second"); err != nil { // what it named stays
		t.Fatal(err)
	}
	if names, unnamed := layoutIndex(t, dir); names["second"] != first.Digest.String() || unnamed != 1 {
		t.Errorf("after a move: %s, %d entries without a name", names["second"], unnamed)
	}
	// docker save gives several images one name: a push keeps all of them.
	index := filepath.Join(dir, "index.json")
	data, err := os.ReadFile(index)
	if err == nil {
		err = os.WriteFile(index, bytes.ReplaceAll(data, []byte(`"held-001"`), []byte(`"held-000"`)), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	push("new")
	if names, unnamed := layoutIndex(t, dir); len(names) != more+2 || unnamed != 2 {
		t.Errorf("of two entries with one name: %d names and %d entries without one", len(names), unnamed)
	}
	if _, err := again.Resolve(t.Context(), "third"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("a name that was never set: %v", err)
	}
}
