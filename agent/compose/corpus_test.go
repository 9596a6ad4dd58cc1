package compose_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Files of a corpus project that are not part of what is packed.
const (
	corpusWant       = "want"       // the expected outcome, always the first section of a project
	corpusParameters = "parameters" // NAME=value lines: values of the release and of the deployment
)

// corpusProjects is how many projects the corpus must hold.
const corpusProjects = 200

// section is one file of an archive in the txtar format: a line "-- NAME --", then its text.
type section struct{ name, text string }

// TestCorpus packs, releases and loads the projects of testdata/corpus, which have the shape of those in public collections.
// Each archive holds several projects; a file is named PROJECT/PATH. Outcomes are compared with the project's "want" file:
//
//	valid: SERVICES on the device [mounts N] [ports N] [notices…]
//	refused: each fault with its position, as "longshore check" and "longshore component push" print it
//
// UPDATE_GOLDEN=1 rewrites the "want" files.
func TestCorpus(t *testing.T) {
	archives, err := filepath.Glob(filepath.Join("testdata", "corpus", "*.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, file := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			for _, project := range corpusSplit(t, string(data)) {
				total++
				name, files, want := corpusFiles(t, project)
				got := corpusOutcome(t.Context(), files)
				if diff := cmp.Diff(want, got); diff != "" && os.Getenv("UPDATE_GOLDEN") != "1" {
					t.Errorf("%s (-want +got):\n%s\nUPDATE_GOLDEN=1 writes it", name, diff)
				}
				fmt.Fprintf(&out, "-- %s/%s --\n%s", name, corpusWant, got)
				for _, s := range project {
					if path.Base(s.name) != corpusWant {
						fmt.Fprintf(&out, "-- %s --\n%s", s.name, s.text)
					}
				}
			}
			if os.Getenv("UPDATE_GOLDEN") == "1" {
				if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	if total < corpusProjects {
		t.Errorf("the corpus holds %d projects, want at least %d", total, corpusProjects)
	}
}

// corpusSplit reads an archive as its projects, in order.
func corpusSplit(t *testing.T, text string) (projects [][]section) {
	t.Helper()
	var all []section
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "-- "); ok && strings.HasSuffix(name, " --") {
			all = append(all, section{name: strings.TrimSuffix(name, " --")})
			continue
		}
		if len(all) == 0 {
			t.Fatalf("text before the first file: %q", line)
		}
		all[len(all)-1].text += line
	}
	seen := map[string]bool{}
	last := ""
	for _, s := range all {
		name, _, _ := strings.Cut(s.name, "/")
		if name != last {
			if seen[name] {
				t.Fatalf("project %s is there twice", name)
			}
			seen[name], last = true, name
			projects = append(projects, nil)
		}
		projects[len(projects)-1] = append(projects[len(projects)-1], s)
	}
	return projects
}

// corpusFiles are a project's name, its directory with the parameters, and its expected outcome.
func corpusFiles(t *testing.T, project []section) (name string, files fstest.MapFS, want string) {
	t.Helper()
	files = fstest.MapFS{}
	for _, s := range project {
		dir, file, _ := strings.Cut(s.name, "/")
		name = dir
		if file == corpusWant {
			want = s.text
			continue
		}
		files[file] = &fstest.MapFile{Data: []byte(s.text)}
	}
	if files[composefile.Name] == nil {
		t.Fatalf("%s: there is no %s", name, composefile.Name)
	}
	return name, files, want
}

// corpusValues takes the values of a project out of its files.
func corpusValues(files fstest.MapFS) map[string]string {
	parameters := map[string]string{}
	if p := files[corpusParameters]; p != nil {
		for line := range strings.Lines(string(p.Data)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			parameters[key] = value
		}
		delete(files, corpusParameters)
	}
	return parameters
}

// corpusOutcome packs a project, pushes nothing, and loads what was packed as a device does.
func corpusOutcome(ctx context.Context, files fstest.MapFS) string {
	parameters := corpusValues(files)
	packed, err := compose.Pack(ctx, "", files)
	if err == nil {
		_, err = packed.Images(parameters)
	}
	if err != nil {
		return "refused:\n" + corpusError(err)
	}
	archive, err := corpusArchive(packed)
	if err != nil {
		return "refused:\n" + corpusError(err)
	}
	p, err := compose.Load(ctx, archive, compose.Options{Deployment: "d", Component: "c", Environment: parameters, AllowUnpinned: true})
	if err != nil {
		return "refused by the device:\n" + corpusError(err)
	}
	var services []string
	mounts, ports := 0, 0
	for _, s := range p.Services {
		services = append(services, s.Name)
		mounts += len(s.Mounts) + len(s.Files)
		ports += len(s.Ports)
	}
	out := "valid: " + strings.Join(services, " ")
	for _, n := range []struct {
		what  string
		count int
	}{{"mounts", mounts}, {"ports", ports}} {
		if n.count > 0 {
			out += fmt.Sprintf(", %s %d", n.what, n.count)
		}
	}
	out += "\n"
	for _, n := range packed.Notices {
		at := n.File
		if at == "" {
			at = composefile.Name
		}
		out += fmt.Sprintf("notice: %s:%d:%d: %s: %s\n", at, n.Line, n.Column, n.Path, n.Text())
	}
	return out
}

// corpusError are the lines of an error, without hints, which are a second sentence of the program.
func corpusError(err error) string {
	var faults *strict.Error
	if !errors.As(err, &faults) {
		return err.Error() + "\n"
	}
	return faults.Error() + "\n"
}

// corpusArchive makes the Compose Archive of a packed project and reads it back.
func corpusArchive(packed *compose.Packed) (*artifacts.Archive, error) {
	a, err := artifacts.PackComponent(packed.Files, artifacts.ComponentOptions{Name: "corpus", Version: "1.0.0"})
	if err != nil {
		return nil, err
	}
	return artifacts.ReadArchive(a.Blobs[1].Data) // after the config
}
