package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// Links that somebody left on media lead no writer to the files of the machine.
func TestMediaLinks(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.site(testenv.Distribution)
	s.stock()
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.write("victim", "a file of this machine")
	link := func(name string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("../victim", name); err != nil {
			t.Fatal(err)
		}
	}
	unchanged := func(what string) {
		t.Helper()
		if got := string(mustRead(t, "victim")); got != "a file of this machine" {
			t.Errorf("%s wrote %q into a file outside of the media", what, got)
		}
		s.write("victim", "a file of this machine")
	}
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "stick")
	link("stick/longshore-export.json.part")
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "stick")
	unchanged("export")
	link("volumes/longshore-export-001.tar.part")
	s.do(outcome.OK, "export", "-q", "--tar", releaseKeyPublic, states, "volumes")
	unchanged("export --tar")
	link("stick/receipt.json.part")
	s.do(outcome.OK, "import", "-q", releaseKeyPublic, "stick", siteHost)
	unchanged("import")
}

// Whoever prepared the media chose what its names are: a writer follows no link in the layout, and a pipe in place of a file, which would
// wait for a writer, is an error.
func TestMediaOfOthers(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.site(testenv.Distribution)
	s.stock()
	s.large(2 << 20)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.1")
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.1", states)
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "whole")
	var large string
	for d, size := range blobs(t, "whole") {
		if size > 2<<20 {
			large = d.Encoded()
		}
	}
	for name, target := range map[string]string{
		"index.json": "../victim", "oci-layout": "../victim", "ingest": "../victims", "blobs": "../victims", "blobs/sha256": "../../victims",
		"ingest/" + large + ".part": "../../victim",
	} {
		t.Run("link "+name, func(t *testing.T) {
			for _, dir := range []string{"stick", "victim", "victims"} {
				if err := os.RemoveAll(dir); err != nil {
					t.Fatal(err)
				}
			}
			for _, dir := range []string{"victims", filepath.Dir(filepath.Join("stick", name))} {
				if err := os.MkdirAll(dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			for _, document := range []string{"index.json", "oci-layout"} {
				if document != name {
					s.write(filepath.Join("stick", document), string(mustRead(t, filepath.Join("whole", document))))
				}
			}
			if err := os.Symlink(target, filepath.Join("stick", name)); err != nil {
				t.Fatal(err)
			}
			code, _, stderr := s.try("export", "-q", releaseKeyPublic, states, "stick")
			if code != outcome.OK && !strings.Contains(stderr, name) {
				t.Errorf("exit %d, want that %s is named\n%s", code, name, stderr)
			}
			left, err := filepath.Glob("victims/*")
			if err != nil || len(left) > 0 {
				t.Errorf("written into a folder outside of the media: %q, %v", left, err)
			}
			if _, err := os.Lstat("victim"); !os.IsNotExist(err) {
				t.Errorf("a file outside of the media was written: %v", err)
			}
		})
	}
	s.write("whole/ingest/"+strings.Repeat("0", 64)+".part", "half of a blob of an earlier export")
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "whole")
	if left, err := filepath.Glob("whole/ingest/*"); err != nil || len(left) > 0 {
		t.Errorf("left on the media: %q, %v", left, err)
	}
	for _, name := range []string{"longshore-export.json", "index.json", "oci-layout", "blobs/sha256/" + large} {
		t.Run("pipe "+name, func(t *testing.T) {
			file := filepath.Join("whole", name)
			if err := os.Rename(file, "kept"); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mkfifo(file, 0o600); err != nil {
				t.Fatal(err)
			}
			var code int
			var output string
			done := make(chan struct{})
			go func() {
				defer close(done)
				code, output = s.process("import", "-q", releaseKeyPublic, "whole", siteHost)
			}()
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Fatal("it waits for somebody who writes into the pipe")
			}
			if code == outcome.OK || !strings.Contains(output, filepath.Base(name)) {
				t.Errorf("exit %d, want that %s is named\n%s", code, name, output)
			}
			if err := os.Rename("kept", file); err != nil {
				t.Fatal(err)
			}
		})
	}
}
