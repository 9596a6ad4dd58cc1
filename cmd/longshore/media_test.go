package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// A difference has the bytes of the blobs that the site lacks, and at most 2 % more, however many devices the site has.
func TestDifferenceBytes(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.large(8 << 20)
	s.stock()
	s.site(testenv.Distribution)
	devices, fresh := testenv.Rounds(25, 100), 10
	s.waves(devices, "")
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "waves")
	s.mirrored()
	s.do(outcome.OK, "site", "inventory", "--file", "graz.json", states, siteHost)
	export := func(dir string) (made exportResult) {
		t.Helper()
		if err := json.Unmarshal([]byte(s.do(outcome.OK, "export", "-o", "json", releaseKeyPublic, "--since", "graz.json", states, dir)), &made); err != nil {
			t.Fatal(err)
		}
		return made
	}
	if made := export("nothing"); made.Carried > 8<<10 || made.Bytes != 0 || made.Omitted < 8<<20 {
		t.Errorf("with nothing new: %+v %+v", made, made.Mirrored)
	}
	s.do(outcome.OK, "import", releaseKeyPublic, "nothing", siteHost)

	s.large(16 << 20)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.1")
	for n := range fresh {
		s.do(outcome.OK, "state", "push", "-q", "--replace", "-d", fmt.Sprintf("press-%04d", n), "--key", "release.key", "--component", monitor+":1.4.1", states)
	}
	made := export("stick")
	code, out, stderr := s.try("import", "-o", "json", releaseKeyPublic, "stick", siteHost)
	var imported importResult
	if err := json.Unmarshal([]byte(out), &imported); err != nil || code != outcome.OK {
		t.Fatalf("exit %d, %v\n%s", code, err, stderr)
	}
	missing := imported.Bytes
	t.Logf("%d devices, %d new states: %d bytes carried, %d missing in blobs: %.2f %% more", devices, fresh, made.Carried, missing, 100*float64(made.Carried-missing)/float64(missing))
	if missing < 16<<20 || made.Carried < missing || made.Carried > missing+missing/50 {
		t.Errorf("%d bytes are carried, %d are missing", made.Carried, missing)
	}
	if len(imported.Devices) != fresh || imported.Verified.States != fresh {
		t.Errorf("tags of %d devices moved, %d states were verified, want %d", len(imported.Devices), imported.Verified.States, fresh)
	}
	if again := s.mirrored(); again.Sent+again.Manifests+again.Tags != 0 {
		t.Errorf("a mirror sends what the import did not: %+v", again.Mirrored)
	}

	// Another signature of a component that the site has: it is carried with the states that lead to it.
	s.do(outcome.OK, "site", "inventory", "--file", "graz.json", states, siteHost)
	s.do(outcome.OK, "sign", "--key", "release.key", "--signature-format", "legacy", monitor+":1.4.0")
	if made := export("signature"); made.Bytes == 0 || made.Carried > 1<<20 {
		t.Errorf("a signature: %+v %+v", made, made.Mirrored)
	}
	s.do(outcome.OK, "import", releaseKeyPublic, "signature", siteHost)
	if again := s.mirrored(); again.Sent+again.Manifests+again.Tags != 0 {
		t.Errorf("a mirror sends what the import did not: %+v", again.Mirrored)
	}
}

// A layout that was edited by hand is named, and no device's tag moves.
func TestEditedMedia(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.site(testenv.Distribution)
	for _, c := range []struct{ device, component string }{{"press-07", monitor + ":1.4.0"}, {"press-08", host + "/plant/components/sensor:1.4.0"}} {
		s.do(outcome.OK, "state", "push", "-q", "-d", c.device, "--key", "release.key", "--component", c.component, states)
	}
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-09", "--unsigned", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, "-d", "press-07", "-d", "press-08", states, "stick")
	s.do(outcome.OK, "export", "-q", "--no-verify", "-d", "press-09", states, "unsigned")
	index := string(mustRead(t, "stick/index.json"))
	named := func(text, tag string) (digest, sized string) {
		t.Helper()
		var i struct {
			Manifests []struct {
				Digest      string
				Size        int
				Annotations map[string]string
			}
		}
		if err := json.Unmarshal([]byte(text), &i); err != nil {
			t.Fatal(err)
		}
		for _, m := range i.Manifests {
			if m.Annotations["org.opencontainers.image.ref.name"] == states+":"+tag {
				return m.Digest, fmt.Sprintf(`"digest":%q,"size":%d,`, m.Digest, m.Size)
			}
		}
		t.Fatalf("no %s in %s", tag, text)
		return "", ""
	}
	seven, ofSeven := named(index, "press-07")
	_, ofEight := named(index, "press-08")
	manifest := filepath.Join("stick/blobs/sha256", strings.TrimPrefix(seven, "sha256:"))
	good := string(mustRead(t, manifest))
	for name, c := range map[string]struct {
		index, manifest string
		code            int
		tell            string
	}{
		"tags exchanged":             {strings.NewReplacer(":press-07\"", ":press-08\"", ":press-08\"", ":press-07\"").Replace(index), good, outcome.Refused, "names a state of device"},
		"a manifest replaced":        {index, strings.Replace(good, "press-07", "press-70", 1), outcome.Verification, "/stick: "},
		"another state under a tag":  {strings.ReplaceAll(index, ofSeven, ofEight), good, outcome.Refused, "names a state of device"},
		"a history tag moved":        {strings.ReplaceAll(index, ":press-07.v1\"", ":press-07.v7\""), good, outcome.Refused, "names generation 1"},
		"no JSON":                    {index[:len(index)/2], good, outcome.Misused, "/stick: "},
		"a tag of what is not there": {strings.ReplaceAll(index, seven, sum("nothing")), good, outcome.NotFound, "/stick: "},
	} {
		s.write("stick/index.json", c.index)
		if err := os.Chmod(manifest, 0o600); err != nil {
			t.Fatal(err)
		}
		s.write(manifest, c.manifest)
		if code, out, stderr := s.try("import", releaseKeyPublic, "stick", siteHost); code != c.code || !strings.Contains(stderr, c.tell) {
			t.Errorf("%s: exit %d, want %d with %q\n%s%s", name, code, c.code, c.tell, out, stderr)
		}
		for _, tag := range []string{"press-07", "press-08"} {
			if code, _, _ := s.try("inspect", siteHost+"/plant/state:"+tag); code != outcome.NotFound {
				t.Errorf("%s: %s is there: exit %d", name, tag, code)
			}
		}
	}
	s.write(manifest, good)
	s.write("stick/index.json", index)
	s.write("stick/blobs/sha256/readme.txt", "more")
	s.write("stick/holiday.jpg", "more")
	s.do(outcome.OK, "import", releaseKeyPublic, "stick", siteHost)
	s.refuses(outcome.Verification, []string{"press-09"}, "import", releaseKeyPublic, "unsigned", siteHost)
}

// A stick that is pulled out while it is read, and a registry that refuses an artifact type, are named; what arrived is used by the next
// import, and until then no device's tag is at the site.
func TestImportIsCutOff(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.large(3 << 20)
	s.stock()
	there := s.site(testenv.Distribution)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "stick")
	s.do(outcome.OK, "export", "-q", "--tar", releaseKeyPublic, states, "tar")
	absent := func(name string) {
		t.Helper()
		if code, _, _ := s.try("inspect", siteHost+"/plant/state:press-07"); code != outcome.NotFound {
			t.Errorf("%s: the device's tag is there: exit %d", name, code)
		}
	}
	// At the first upload the stick goes.
	there.Faults.Add(testenv.Rule{Method: http.MethodPost, Times: 1, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if err := os.Rename("stick", "pulled"); err != nil {
			t.Error(err)
		}
		next.ServeHTTP(w, r)
	}})
	code, _, stderr := s.try("import", releaseKeyPublic, "stick", siteHost)
	if code == outcome.OK || !strings.Contains(stderr, "longshore: stick can no longer be read") || !strings.Contains(stderr, "hint: insert it") {
		t.Errorf("a stick that was pulled out: exit %d, %s", code, stderr)
	}
	absent("pulled out")
	there.Faults.Clear()
	// The registry does not take signatures: what they are named by is in their manifests.
	refuse := testenv.Rule{Method: http.MethodPut, Path: "/plant/state/manifests/", Effect: testenv.Status(http.StatusBadRequest, 0)}
	there.Faults.Add(refuse)
	code, _, stderr = s.try("import", releaseKeyPublic, "pulled", siteHost)
	if code == outcome.OK || !strings.Contains(stderr, siteHost+"/plant/state") || !strings.Contains(stderr, "400") {
		t.Errorf("a registry that refuses manifests: exit %d, %s", code, stderr)
	}
	absent("refused")
	there.Faults.Clear()
	there.Faults.Forget()
	s.do(outcome.OK, "import", releaseKeyPublic, "tar", siteHost)
	for _, r := range there.Faults.Requests(http.MethodPost, "/library/") {
		t.Errorf("what had arrived was sent again: %s %s", r.Method, r.Path)
	}
	s.do(outcome.OK, "verify", "--key", "release.pub", "--no-recurse", siteHost+"/plant/state:press-07")
}

// An export to a disk without room says so, and is no export; with more room the next one ends it.
func TestExportOnAFullDisk(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.large(5 << 20)
	s.stock()
	s.site(testenv.Distribution)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	for _, c := range []struct {
		name  string
		small int64 // bytes in which it fails
		more  []string
	}{
		{"layout", 4 << 20, nil},
		{"a tar has no room for its layout", 4 << 20, []string{"--tar"}},
		{"volumes have no room", 7 << 20, []string{"--volume-size", "2MB"}},
	} {
		dir := filepath.Join(t.TempDir(), "stick")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		testenv.SmallDisk(t, dir, c.small)
		export := append(append([]string{"export", "-q", releaseKeyPublic}, c.more...), states, dir)
		s.refuses(outcome.Other, []string{"no space left on device", "hint: make room there"}, export...)
		s.refuses(outcome.NotFound, nil, "import", releaseKeyPublic, dir, siteHost)
		testenv.GrowDisk(t, dir, 32<<20)
		s.do(outcome.OK, export...)
		s.do(outcome.OK, "import", releaseKeyPublic, dir, siteHost)
	}
	s.do(outcome.OK, "verify", "--key", "release.pub", "--no-recurse", siteHost+"/plant/state:press-07")
}

// Media that take no writes, or no large file, are named, with what to do.
func TestMediaTakeNoFile(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.large(9 << 20)
	s.stock()
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -f 4096; exec "$0" "$@"`, self, "export", "-q", releaseKeyPublic, states, "small")
	cmd.Env = []string{processVariable + "=1", "PATH=" + os.Getenv("PATH")}
	for k, v := range s.env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	out, err := cmd.CombinedOutput()
	if code := cmd.ProcessState.ExitCode(); code != outcome.Other || !strings.Contains(string(out), "file too large") || !strings.Contains(string(out), "--volume-size") {
		t.Errorf("exit %d, %v\n%s", code, err, out)
	}
	for _, dir := range []string{"empty", "small"} {
		if err := errors.Join(os.MkdirAll(dir, 0o755), unix.Mount(dir, dir, "", unix.MS_BIND, "")); err != nil {
			testenv.Unavailable(t, "mount: %v", err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		s.refuses(outcome.Other, []string{dir, "read-only file system", "hint: "}, "export", "-q", releaseKeyPublic, states, dir)
	}
	if _, err := os.Stat("small/longshore-export.json"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
}
