package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// The next export to a stick with files that have changed replaces them when it is asked to read everything, and what an interrupted one
// wrote in part in any case.
func TestExportRepairsAStick(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.large(3 << 20)
	s.stock()
	s.site(testenv.Distribution)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "stick")
	state := s.digestAt(states + ":press-07")
	layer, _ := largest(t, "stick")
	for _, d := range []digest.Digest{layer, state} {
		file := filepath.Join("stick/blobs/sha256", d.Encoded())
		data := mustRead(t, file)
		if err := os.Chmod(file, 0o600); err != nil {
			t.Fatal(err)
		}
		s.write(file, "x"+string(data[1:]))
		s.refuses(outcome.Verification, []string{"hint: ", "--check-media"}, "import", "-q", releaseKeyPublic, "stick", siteHost)
		s.do(outcome.OK, "export", "-q", "--check-media", releaseKeyPublic, states, "stick")
		if digest.FromBytes(mustRead(t, file)) != d {
			t.Errorf("%s is still damaged", d)
		}
	}
	for _, document := range []string{"index.json", "oci-layout"} {
		s.write(filepath.Join("stick", document), string(mustRead(t, filepath.Join("stick", document))[:10]))
		s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "stick")
	}
	s.do(outcome.OK, "import", "-q", releaseKeyPublic, "stick", siteHost)
}
