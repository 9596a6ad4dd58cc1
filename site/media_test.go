package site_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/site"
)

func FuzzInventory(f *testing.F) {
	f.Add([]byte(`{"version":1,"states":"harbor.acme.example/plant/state","content":{"harbor.acme.example/plant/state":["sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"]}}`))
	f.Add([]byte(`{"version":1,"content":{"x":["y"]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		i, err := site.ParseInventory("graz.json", data, "harbor.acme.example/plant/state")
		if err != nil {
			return
		}
		for name, all := range i.Content {
			for _, d := range all {
				if d.Validate() != nil || !i.Parts(&site.Closure{})[name][d] {
					t.Errorf("%s: %q", name, d)
				}
			}
		}
	})
}

// An export into a folder of another program leaves its files, also an index.json that is no JSON.
func TestExportIntoAnotherFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	index := filepath.Join(dir, "index.json")
	if err := errors.Join(os.WriteFile(index, []byte("// pages\n{}"), 0o644), os.WriteFile(filepath.Join(dir, "index.html"), nil, 0o644)); err != nil {
		t.Fatal(err)
	}
	_, _ = site.Begin(t.Context(), dir, site.Form{States: "harbor.acme.example/plant/state"}) // the first write would return an error
	if _, err := os.Stat(index); err != nil {
		t.Error(err)
	}
}

// An export is whole when its document is there.
func TestExportDocument(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := site.ReadExport(dir); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("nothing is there: %v", err)
	}
	want := site.Export{States: "harbor.acme.example/plant/state", Trust: []string{"harbor.acme.example/plant/trust"}, Difference: true}
	if err := want.Write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := site.ReadExport(dir)
	if err != nil || got.States != want.States || len(got.Trust) != 1 || !got.Difference {
		t.Errorf("%+v, %v", got, err)
	}
	for text, kind := range map[string]error{"{": fault.ErrInvalid, `{"version": 2}`: fault.ErrUnsupported} {
		if err := os.WriteFile(filepath.Join(dir, site.ExportFile), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := site.ReadExport(dir); !errors.Is(err, kind) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
