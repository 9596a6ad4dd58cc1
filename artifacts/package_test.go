package artifacts_test

import (
	"errors"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func application() fstest.MapFS {
	return fstest.MapFS{
		"margo.yaml": {Data: []byte(`apiVersion: v1
id: line-monitor
metadata:
  name: Line monitor
  version: 1.4.0
  catalog:
    application: {icon: ./resources/logo.PNG, releaseNotes: notes.md, licenseFile: https://example.com/license}
    organization: [{name: Acme}]
deploymentProfiles:
  - {type: compose, id: compose, components: [{name: web, properties: {repository: oci://registry.example/web, revision: 1.4.0}}]}
`)},
		"resources/logo.PNG": {Data: []byte("png")},
		"notes.md":           {Data: []byte("# 1.4.0\n")},
		"unrelated":          {Data: []byte("stays")},
	}
}

func TestPackage(t *testing.T) {
	a, d, err := artifacts.PackPackage(application(), artifacts.PackageOptions{Created: time.Unix(1700000000, 0)})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "package", show(t, a))
	x, err := artifacts.OpenPackage(a.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	if d.Metadata.Version != "1.4.0" || len(x.Resources) != 2 || x.Resources[artifacts.ResourceIcon].MediaType != "application/vnd.margo.app.icon.v1+png" {
		t.Errorf("OpenPackage = %+v of version %s", x, d.Metadata.Version)
	}
	if d, err := x.Read(from(a, nil)); err != nil || d.ID != "line-monitor" {
		t.Errorf("Read = %+v, %v", d, err)
	}
	m := string(a.Manifest)
	icon := m[strings.Index(m, `{"mediaType":"application/vnd.margo.app.icon`):strings.Index(m, `,{"mediaType":"application/vnd.margo.app.releaseNotes`)]
	for name, tt := range map[string]struct {
		old, new, want string
		is             error
	}{
		"artifact type":      {`"artifactType":"`, `"artifactType":"x`, "artifact type", fault.ErrUnsupported},
		"foreign layer":      {`"mediaType":"application/vnd.margo.app.icon`, `"mediaType":"image/png`, "does not begin with", fault.ErrUnsupported},
		"no description":     {artifacts.TypeDescription, "application/vnd.margo.app.x", "has no annotation org.margo.app.resource", fault.ErrInvalid},
		"two icons":          {icon, icon + "," + icon, "a second icon", fault.ErrInvalid},
		"two descriptions":   {"application/vnd.margo.app.icon.v1+png", artifacts.TypeDescription, "a second description", fault.ErrInvalid},
		"large description":  {`"size":`, `"size":9`, "more than", fault.ErrInvalid},
		"description absent": {`{"mediaType":"application/vnd.margo.app.description.v1+yaml"`, `{"annotations":{"org.margo.app.resource":"x"},"mediaType":"application/vnd.margo.app.x.v1+y"`, "duplicate key", fault.ErrInvalid},
	} {
		edited := strings.Replace(m, tt.old, tt.new, 1)
		if name == "large description" {
			edited, tt.is = strings.Replace(m, `description.v1+yaml","digest":"`+x.Description.Digest.String()+`","size":`, `description.v1+yaml","digest":"`+x.Description.Digest.String()+`","size":99999`, 1), fault.ErrTooLarge
		}
		if _, err := artifacts.OpenPackage([]byte(edited)); !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: OpenPackage = %v, want %v with %q", name, err, tt.is, tt.want)
		}
	}
}

func TestPackPackageRefuses(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(fstest.MapFS)
		want   string
		is     error
	}{
		"no margo.yaml": {func(f fstest.MapFS) { delete(f, "margo.yaml") }, "there is no margo.yaml", fault.ErrNotFound},
		"empty":         {func(f fstest.MapFS) { f["margo.yaml"] = &fstest.MapFile{} }, "margo.yaml: is empty", fault.ErrInvalid},
		"too large":     {func(f fstest.MapFS) { f["margo.yaml"] = &fstest.MapFile{Data: make([]byte, 2<<20)} }, "margo.yaml has more than 1048576 bytes", fault.ErrTooLarge},
		"directory":     {func(f fstest.MapFS) { delete(f, "margo.yaml"); f["margo.yaml/x"] = &fstest.MapFile{} }, "margo.yaml is a directory", fault.ErrInvalid},
		"no icon":       {func(f fstest.MapFS) { delete(f, "resources/logo.PNG") }, "metadata.catalog.application.icon: there is no resources/logo.PNG", fault.ErrNotFound},
		"icon outside": {func(f fstest.MapFS) {
			f["margo.yaml"].Data = []byte(strings.Replace(string(f["margo.yaml"].Data), "./resources", "../resources", 1))
		}, `"../resources/logo.PNG" leaves the package`, fault.ErrInvalid},
		"no format": {func(f fstest.MapFS) {
			f["margo.yaml"].Data = []byte(strings.Replace(string(f["margo.yaml"].Data), "notes.md", "unrelated", 1))
		}, "unrelated has no ending", fault.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			f := application()
			tt.change(f)
			if _, _, err := artifacts.PackPackage(f, artifacts.PackageOptions{}); !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("PackPackage = %v, want %v with %q", err, tt.is, tt.want)
			}
		})
	}
}
