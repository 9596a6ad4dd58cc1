package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// largest is the largest blob of a layout.
func largest(t *testing.T, dir string) (d digest.Digest, size int64) {
	t.Helper()
	for name, n := range blobs(t, dir) {
		if n > size {
			d, size = name, n
		}
	}
	return d, size
}

// A stick that cannot be read in the middle of a blob: the file is named, no tag is set, what arrived is not sent again, and what serve
// cannot read to its end is no whole answer.
func TestWornStick(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.large(9 << 20)
	s.stock()
	there := s.site(testenv.Distribution)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "stick")
	s.do(outcome.OK, "export", "-q", "--volume-size", "2MiB", releaseKeyPublic, states, "volumes")
	worn, d, size := testenv.NewStick(t, 64<<20, 0), digest.Digest(""), int64(0)
	if err := os.CopyFS(worn.Dir, os.DirFS("stick")); err != nil {
		t.Fatal(err)
	}
	d, size = largest(t, worn.Dir)
	file := filepath.Join(worn.Dir, "blobs/sha256", d.Encoded())
	worn.Wear(t, file, size/2)

	words := []string{file, "input/output error", "hint: the disk or stick is damaged, or was removed"}
	s.refuses(outcome.Other, words, "import", releaseKeyPublic, worn.Dir, siteHost)
	if code, _, _ := s.try("inspect", siteHost+"/plant/state:press-07"); code != outcome.NotFound {
		t.Errorf("the device's tag is there: exit %d", code)
	}
	var arrived int64
	for _, r := range there.Faults.Requests(http.MethodPatch, "/library/caddy/") {
		arrived += r.Received
	}
	if arrived < size/5 {
		t.Errorf("%d bytes of %d arrived", arrived, size)
	}
	there.Faults.Forget()
	s.do(outcome.OK, "import", releaseKeyPublic, "stick", siteHost)
	var sent int64
	for _, r := range there.Faults.Requests(http.MethodPatch, "") {
		sent += r.Received
	}
	if sent > size-arrived {
		t.Errorf("%d bytes of %d were sent again", sent, size-arrived)
	}

	server := s.serve(worn.Dir)
	s.write("certs.d/"+host+"/hosts.toml", "server = \""+server.url+"\"\n")
	s.do(outcome.OK, "verify", "--key", "release.pub", states+":press-07")
	for _, part := range []string{"", "bytes=100-"} {
		r := ask(t, http.MethodGet, server.url+"/v2/library/caddy/blobs/"+d.String(), part)
		if got, err := io.ReadAll(r.Body); err == nil || int64(len(got)) >= size {
			t.Errorf("%q: %s, %d bytes, %v", part, r.Status, len(got), err)
		}
	}
	if log := server.stderr.String(); strings.Count(log, "input/output error") != 2 || !strings.Contains(log, file) {
		t.Errorf("log:\n%s", log)
	}

	volume := filepath.Join("volumes", "longshore-export-002.tar")
	data := mustRead(t, volume)
	second := testenv.NewStick(t, 64<<20, 0)
	bad := filepath.Join(second.Dir, filepath.Base(volume))
	if err := os.WriteFile(bad, data, 0o644); err != nil {
		t.Fatal(err)
	}
	second.Wear(t, bad, int64(len(data)/2))
	if err := os.Remove(volume); err != nil {
		t.Fatal(err)
	}
	words[0] = bad
	s.refuses(outcome.Other, words, "import", releaseKeyPublic, "volumes", second.Dir, siteHost)
	s.refuses(outcome.Other, words, "serve", "--listen", "127.0.0.1:0", "volumes", second.Dir)
}

// Reading commands name the file of a worn stick that they cannot read, whichever it is.
func TestWornStickIsNamed(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "stick")
	index := mustRead(t, "stick/index.json")
	var layout ocispec.Index
	if err := json.Unmarshal(index, &layout); err != nil {
		t.Fatal(err)
	}
	var state digest.Digest
	for _, d := range layout.Manifests {
		if strings.HasSuffix(d.Annotations[ocispec.AnnotationRefName], ":press-07") {
			state = d.Digest
		}
	}
	for _, part := range []string{"index.json", filepath.Join("blobs/sha256", state.Encoded())} {
		worn := testenv.NewStick(t, 64<<20, 0)
		if err := os.CopyFS(worn.Dir, os.DirFS("stick")); err != nil {
			t.Fatal(err)
		}
		words := []string{filepath.Join(worn.Dir, part), "input/output error", "hint: the disk or stick is damaged, or was removed"}
		worn.Wear(t, filepath.Join(worn.Dir, part), 0)
		s.refuses(outcome.Other, words, "verify", "--key", "release.pub", "oci-layout:"+worn.Dir+"@"+state.String())
		s.refuses(outcome.Other, words, "inspect", "oci-layout:"+worn.Dir+"@"+state.String())
		s.refuses(outcome.Other, words, "import", releaseKeyPublic, worn.Dir, siteHost)
	}
}

// A stick that is taken away while it is read leaves its folder behind, empty.
func TestStickIsPulledOut(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.large(3 << 20)
	s.stock()
	there := s.site(testenv.Distribution)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	stick := testenv.NewStick(t, 64<<20, 0)
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, stick.Dir)
	there.Faults.Add(testenv.Rule{Method: http.MethodPost, Times: 1, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		stick.Pull(t)
		next.ServeHTTP(w, r)
	}})
	s.refuses(outcome.Other, []string{stick.Dir + " can no longer be read", "hint: insert it"}, "import", releaseKeyPublic, stick.Dir, siteHost)
	if code, _, _ := s.try("inspect", siteHost+"/plant/state:press-07"); code != outcome.NotFound {
		t.Errorf("the device's tag is there: exit %d", code)
	}
}

// What a stick only seems to take is no export: the kernel tells when it is synced. The next export does not take a large blob that is
// only in memory for one on the stick.
func TestStickTakesNoWrites(t *testing.T) {
	for name, c := range map[string]struct {
		layer int
		room  int64
		more  []string
	}{
		"layout":  {9 << 20, 4 << 20, nil},
		"volumes": {9 << 20, 12 << 20, []string{"--volume-size", "2MB"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShell(t, testenv.Distribution)
			s.large(c.layer)
			s.stock()
			s.site(testenv.Distribution)
			s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
			stick := testenv.NewStick(t, 64<<20, c.room)
			export := append(append([]string{"export", "-q", releaseKeyPublic}, c.more...), states, stick.Dir)
			for range 2 {
				s.refuses(outcome.Other, []string{"sync " + stick.Dir}, export...)
				s.refuses(outcome.NotFound, nil, "import", releaseKeyPublic, stick.Dir, siteHost)
			}
			stick.Repair(t, 64<<20)
			s.try(export...) // the kernel may have to tell of earlier writes
			s.do(outcome.OK, export...)
			stick.Remount(t)
			s.do(outcome.OK, "import", releaseKeyPublic, stick.Dir, siteHost)
		})
	}
}
