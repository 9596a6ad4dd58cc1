package main

import (
	"os"
	"path/filepath"
	"testing"

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
