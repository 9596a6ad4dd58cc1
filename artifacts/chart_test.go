package artifacts_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

const chartYAML = `apiVersion: v2
name: line
version: 1.4.0+build.3
appVersion: 2.1
description: Watches a line.
home: https://acme.example
sources: [https://git.acme.example/line]
type: application
kubeVersion: ">=1.28"
annotations: {acme.example/team: lines}
maintainers: [{name: Anna, email: anna@acme.example}]
dependencies:
  - {name: broker, version: 1.x, repository: "https://charts.acme.example", condition: broker.enabled}
`

func chartFiles() fstest.MapFS {
	return fstest.MapFS{
		"Chart.yaml": {Data: []byte(chartYAML)}, "values.yaml": {Data: []byte("poll: 30\n")},
		"templates/web.yaml": {Data: []byte("kind: Pod\n")}, "templates/.swp": {Data: []byte("x")}, "templates/_h.tpl": {Data: []byte("y")},
		"charts/broker/Chart.yaml": {Data: []byte("apiVersion: v2\nname: broker\nversion: 1.0.0\n")},
		".helmignore":              {Data: []byte("# what stays here\n*.bak\n/ci/\ndocs/*.md\n.helmignore\n")},
		"a.bak":                    {Data: []byte("x")}, "sub/b.bak": {Data: []byte("x")}, "ci/values.yaml": {Data: []byte("x")}, "sub/ci/values.yaml": {Data: []byte("x")},
		"docs/a.md": {Data: []byte("x")}, "docs/more/a.md": {Data: []byte("x")},
	}
}

func TestPackChart(t *testing.T) {
	a, c, err := artifacts.PackChart(chartFiles(), artifacts.ChartOptions{})
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := artifacts.PackChart(chartFiles(), artifacts.ChartOptions{})
	if err != nil || again.Descriptor.Digest != a.Descriptor.Digest {
		t.Errorf("packed again %s, %v, want %s", again.Descriptor.Digest, err, a.Descriptor.Digest)
	}
	if c.Name != "line" || c.Tag() != "1.4.0_build.3" || c.AppVersion != "2.1" {
		t.Errorf("chart %+v", c)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(a.Manifest, &m); err != nil {
		t.Fatal(err)
	}
	if m.ArtifactType != "" || m.Config.MediaType != artifacts.TypeChartConfig || len(m.Layers) != 1 || m.Layers[0].MediaType != artifacts.TypeChart {
		t.Errorf("manifest %s, want Helm's", a.Manifest)
	}
	want := map[string]string{
		"acme.example/team": "lines", ocispec.AnnotationTitle: "line", ocispec.AnnotationVersion: "1.4.0+build.3", ocispec.AnnotationDescription: "Watches a line.",
		ocispec.AnnotationURL: "https://acme.example", ocispec.AnnotationSource: "https://git.acme.example/line", ocispec.AnnotationAuthors: "Anna (anna@acme.example)",
	}
	if diff := cmp.Diff(want, m.Annotations); diff != "" {
		t.Error(diff)
	}
	files := []string{
		"line/Chart.yaml", "line/charts/broker/Chart.yaml", "line/docs/more/a.md", "line/sub/ci/values.yaml", "line/templates/_h.tpl", "line/templates/web.yaml", "line/values.yaml",
	}
	if got := tarred(t, a.Blobs[1].Data); !slices.Equal(got, files) {
		t.Errorf("files %q, want %q", got, files)
	}
	x, err := artifacts.OpenChart(a.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	read, err := x.Read(func(ocispec.Descriptor) ([]byte, error) { return a.Blobs[1].Data, nil })
	if err != nil || !cmp.Equal(read, c) {
		t.Errorf("read %+v, %v, want %+v", read, err, c)
	}
	if o, err := artifacts.ReadOutline(a.Manifest); err != nil || o.ArtifactType != artifacts.TypeChartConfig {
		t.Errorf("outline %+v, %v", o, err)
	}
	// What helm package made keeps its bytes, with its provenance.
	packed, _, err := artifacts.PackChartArchive(a.Blobs[1].Data, artifacts.ChartOptions{Provenance: []byte("signed")})
	if err != nil || !bytes.Equal(packed.Blobs[1].Data, a.Blobs[1].Data) {
		t.Fatal(err)
	}
	if x, err = artifacts.OpenChart(packed.Manifest); err != nil || x.Provenance == nil {
		t.Errorf("provenance %+v, %v", x, err)
	}
}

func tarred(t *testing.T, data []byte) (names []string) {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
}

func TestPackChartRefuses(t *testing.T) {
	edit := func(from, to string) func(fstest.MapFS) {
		return func(f fstest.MapFS) {
			text := strings.Replace(chartYAML, from, to, 1)
			if text == chartYAML {
				t.Fatalf("Chart.yaml has no %q", from)
			}
			f["Chart.yaml"] = &fstest.MapFile{Data: []byte(text)}
		}
	}
	for name, c := range map[string]struct {
		do   func(fstest.MapFS)
		want string // in the error, with its place
	}{
		"no chart":             {func(f fstest.MapFS) { delete(f, "Chart.yaml") }, "there is no Chart.yaml"},
		"v1":                   {edit("apiVersion: v2", "apiVersion: v1"), "Chart.yaml:1:13: apiVersion: must be v2"},
		"no version":           {edit("version: 1.4.0+build.3\n", ""), "version"},
		"no SemVer":            {edit("1.4.0+build.3", "v1.4"), "Chart.yaml:3:10: version: must be a SemVer version"},
		"name":                 {edit("name: line", "name: Line"), "Chart.yaml:2:7: name: must be lower-case"},
		"library":              {edit("type: application", "type: library"), "type: must be application"},
		"unknown member":       {edit("home:", "hoem:"), `Chart.yaml:6:1: hoem: unknown key, did you mean "home"?`},
		"dependency not there": {func(f fstest.MapFS) { delete(f, "charts/broker/Chart.yaml") }, "the dependency broker is not in charts/"},
		"pattern":              {func(f fstest.MapFS) { f[".helmignore"] = &fstest.MapFile{Data: []byte("a/**\n")} }, ".helmignore:1"},
		"ignores itself":       {func(f fstest.MapFS) { f[".helmignore"] = &fstest.MapFile{Data: []byte("!*.md\n")} }, "there is no Chart.yaml"},
	} {
		t.Run(name, func(t *testing.T) {
			files := chartFiles()
			c.do(files)
			_, _, err := artifacts.PackChart(files, artifacts.ChartOptions{})
			if err == nil {
				t.Fatal("packed")
			}
			text := err.Error()
			var document *strict.Error
			if errors.As(err, &document) {
				text = document.Error()
			}
			if !strings.Contains(text, c.want) {
				t.Errorf("%q, want %q", text, c.want)
			}
		})
	}
	if _, _, err := artifacts.PackChartArchive([]byte("no archive"), artifacts.ChartOptions{}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("no archive: %v", err)
	}
	component, err := artifacts.PackComponent(fstest.MapFS{"compose.yaml": {Data: []byte("services: {web: {image: a}}\n")}}, artifacts.ComponentOptions{Name: "web", Version: "1.0.0"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := artifacts.OpenChart(component.Manifest); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("a Compose component is a chart: %v", err)
	}
}

func FuzzParseChart(f *testing.F) {
	f.Add([]byte(chartYAML))
	f.Add([]byte("apiVersion: v2\nname: 1\nversion: 1.0.0\ndependencies: [1, {name: a}]\nmaintainers: {}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := artifacts.ParseChart("Chart.yaml", data)
		if (c == nil) == (err == nil) && err == nil {
			t.Error("neither chart nor error")
		}
	})
}
