package composefile_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/sirupsen/logrus"

	"github.com/longshore-dev/longshore/artifacts/composefile"
)

// A project's files are those that compose-go, which docker compose is made of, finds in the same directory.
func TestProjectFiles(t *testing.T) {
	t.Parallel()
	logrus.SetOutput(io.Discard) // compose-go warns there
	for _, there := range [][]string{
		{},
		{"compose.yaml"},
		{"compose.yml"},
		{"docker-compose.yaml"},
		{"docker-compose.yml", "docker-compose.yaml"},
		{"docker-compose.yml", "compose.yaml"},
		{"docker-compose.yml", "docker-compose.override.yml"},
		{"docker-compose.yml", "compose.override.yaml"},
		{"compose.yaml", "compose.override.yaml", "compose.override.yml"},
		{"compose.override.yaml"},
	} {
		dir := t.TempDir()
		for _, name := range there {
			if err := os.WriteFile(filepath.Join(dir, name), []byte("services: {}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		o, err := cli.NewProjectOptions(nil, cli.WithWorkingDirectory(dir))
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		if err = cli.WithDefaultConfigPath(o); err == nil { // an error says that there is none
			for _, name := range o.ConfigPaths {
				want = append(want, filepath.Base(name))
			}
		}
		if got := composefile.ProjectFiles(os.DirFS(dir)); !slices.Equal(got, want) {
			t.Errorf("%v: %v, want %v", there, got, want)
		}
	}
}

// An override is merged, and what was merged or left out without being asked for is told.
func TestPackTakesTheOverride(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"docker-compose.yml":          "services: {web: {image: caddy:2, environment: {A: a, B: b}, volumes: [./site:/site:ro]}}\n",
		"docker-compose.override.yml": "services: {web: {environment: {B: over}}}\n",
		"docker-compose.yaml":         "services: {other: {image: x}}\n",
		"site/index.html":             "hello",
	}
	for _, c := range []struct {
		names   []string
		has     string
		notices []string
	}{
		{nil, "over", []string{
			"docker-compose.override.yml: merged over docker-compose.yml",
			"docker-compose.yaml: not read: docker-compose.yml is",
		}},
		{[]string{"docker-compose.yml"}, "B: b", nil},
		{[]string{"docker-compose.yaml"}, "other", nil},
	} {
		packed, err := composefile.Pack("line", project(files), c.names...)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(packed.Compose), c.has) {
			t.Errorf("%v: %s, want %q in it", c.names, packed.Compose, c.has)
		}
		var got []string
		for _, n := range packed.Notices() {
			got = append(got, strings.TrimPrefix(n.File, "line/")+": "+n.Message)
		}
		if !slices.EqualFunc(got, c.notices, strings.HasPrefix) {
			t.Errorf("%v: notices %q, want %q", c.names, got, c.notices)
		}
	}
}

// project is a directory of a developer's machine.
func project(files map[string]string) fstest.MapFS {
	out := fstest.MapFS{}
	for name, text := range files {
		out[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return out
}
