package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

// siteHost is what the site's registry is called here; hosts.toml says where it really is.
const siteHost = "registry.graz.example"

// site starts a site's registry.
func (s *shell) site(kind testenv.Kind, opts ...testenv.RegistryOption) *testenv.RegistryServer {
	s.t.Helper()
	r := testenv.Registry(s.t, kind, opts...)
	s.write("certs.d/"+siteHost+"/hosts.toml", "server = \""+r.URL+"\"\n")
	return r
}

// mirrored runs mirror and returns its result.
func (s *shell) mirrored(args ...string) (r mirrorResult) {
	s.t.Helper()
	out := s.do(outcome.OK, append([]string{"mirror", "-o", "json", releaseKeyPublic}, append(args, states, siteHost)...)...)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		s.t.Fatal(err)
	}
	return r
}

const releaseKeyPublic = "--key=release.pub"

// A site's registry has all that its devices need, with signatures that verify there; the second run sends nothing; a device's
// tag never goes back.
func TestMirror(t *testing.T) {
	for _, kinds := range [][2]testenv.Kind{{testenv.Distribution, testenv.Distribution}, {testenv.Referrers, testenv.Lax}, {testenv.Distribution, testenv.Referrers}} {
		t.Run(fmt.Sprint(kinds), func(t *testing.T) {
			s := newShell(t, kinds[0])
			s.stock()
			there := s.site(kinds[1])
			push := func(device, poll string, more ...string) {
				s.do(outcome.OK, append([]string{"state", "push", "-q", "-d", device, "--key", "release.key", "--component", monitor + ":1.4.0", "--set", "POLL_SECONDS=" + poll}, append(more, states)...)...)
			}
			push("press-07", "5")
			push("press-07", "6")
			push("press-08", "5", "--signature-format", "both")
			plan := s.do(outcome.OK, "site", "plan", "--history", "1", states, siteHost)
			for _, want := range []string{"image", "library/caddy", "component", "line-monitor:1.4.0", "press-07,press-07.v2", "press-07.v1", "press-08", "to copy"} {
				if !strings.Contains(plan, want) {
					t.Errorf("the plan does not tell %q:\n%s", want, plan)
				}
			}
			first := s.mirrored("--history", "1")
			if first.Artifacts != 6 || strings.Join(first.Devices, " ") != "press-07 press-08" || first.Bytes == 0 {
				t.Errorf("first: %+v, want 6 artifacts and both devices", first)
			}
			if again := s.mirrored("--history", "1"); again.Sent+again.Mounted+again.Manifests+again.Tags != 0 {
				t.Errorf("again: %+v, want that nothing was sent", again.Mirrored)
			}
			if out := s.do(outcome.OK, "site", "plan", "--history", "1", states, siteHost); !strings.Contains(out, " 0 B to copy") {
				t.Errorf("the site has everything:\n%s", out)
			}
			for _, tag := range []string{"press-07", "press-07.v1", "press-08"} {
				s.do(outcome.OK, "verify", "--key", "release.pub", "--no-recurse", siteHost+"/plant/state:"+tag)
			}
			// A device that only has the mirror finds everything: its registry is not there any more.
			s.write("certs.d/"+host+"/hosts.toml", "server = \""+there.URL+"\"\n")
			s.do(outcome.OK, "verify", "--key", "release.pub", states+":press-07")
			s.write("certs.d/"+host+"/hosts.toml", "server = \""+s.server.URL+"\"\n")
			// Somebody at the site published what is newer.
			s.do(outcome.OK, "component", "push", "-q", "./sensor", siteHost+"/plant/components/sensor:2.0.0")
			for n := 3; n < 5; n++ {
				s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", siteHost+"/plant/components/sensor:2.0.0", "--generation", fmt.Sprint(n), siteHost+"/plant/state")
			}
			push("press-07", "7")
			push("press-08", "7")
			s.refuses(outcome.Refused, []string{"press-07 is generation 4, and generation 3"}, "mirror", releaseKeyPublic, states, siteHost)
			if r := s.mirrored("-d", "press-08"); strings.Join(r.Devices, " ") != "press-08" {
				t.Errorf("press-08 alone: %+v", r.Mirrored)
			}
		})
	}
}

// What these commands say.
func TestSite(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.site(testenv.Distribution)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-08", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.log.Reset()
	for _, format := range []string{"text", "json"} {
		s.do(outcome.OK, "site", "plan", "-o", format, states, siteHost)
	}
	s.do(outcome.OK, "mirror", releaseKeyPublic, states, siteHost)
	s.do(outcome.OK, "mirror", "-o", "json", releaseKeyPublic, states, siteHost)
	s.do(outcome.OK, "site", "plan", states, siteHost)
	s.write("graz.json", s.do(outcome.OK, "site", "inventory", states, siteHost))
	s.do(outcome.OK, "site", "inventory", "-o", "json", states, siteHost)
	s.do(outcome.OK, "site", "inventory", "--site", "graz", "--key", "root.key", "--file", "graz.json", states, siteHost)
	s.do(outcome.OK, "export", releaseKeyPublic, states, "stick")
	s.do(outcome.OK, "export", "-o", "json", "--since", "graz.json", releaseKeyPublic, states, "stick2")
	s.do(outcome.OK, "export", "--since", "graz.json", "--site", "graz", "--inventory-key", "root.pub", releaseKeyPublic, states, "stick4")
	s.do(outcome.OK, "export", "--volume-size", "4GB", releaseKeyPublic, states, "stick3")
	s.do(outcome.OK, "import", releaseKeyPublic, "stick", siteHost)
	s.do(outcome.OK, "import", "-o", "json", releaseKeyPublic, "stick2", siteHost)
	s.mask(`("bytes": |"lacks": |blobs?, )[0-9.]+( KiB| B)?`, "${1}BYTES", `(to carry +|the site has |\d of )[0-9.]+( KiB| B)`, "${1}BYTES", `(BYTES of )[0-9.]+ KiB`, "${1}BYTES", `("(?:carried|omitted)": )\d+`, "${1}BYTES", // signatures are not all of one size
		`20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ`, "TIME")
	s.mask(`\d+ blobs sent`, "BLOBS sent")                        // what two artifacts copied at the same time have in common is sent once or twice
	s.mask(`\[\n( +"sha256:[0-9a-f]{64}",?\n)+ +\]`, "[DIGESTS]") // signatures are never the same
	s.golden(golden)
}

// What is not signed as it must be is not copied; what cannot be found is told; both before anything is sent.
func TestMirrorRefuses(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	there := s.site(testenv.Distribution)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	there.Faults.Forget()
	s.refuses(outcome.Verification, []string{"press-07"}, "mirror", "--key=other.pub", states, siteHost)
	s.refuses(outcome.Misused, []string{"--key"}, "mirror", states, siteHost)
	s.refuses(outcome.Misused, []string{"oci-layout:stick is no registry", "longshore export"}, "mirror", releaseKeyPublic, states, "oci-layout:stick")
	s.refuses(outcome.NotFound, []string{"press-70"}, "mirror", releaseKeyPublic, "-d", "press-70", states, siteHost)
	s.refuses(outcome.NotFound, []string{"no device has a state there"}, "site", "plan", host+"/plant/components/line-monitor", siteHost)
	for _, r := range there.Faults.Requests("", "") {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			t.Errorf("%s %s was sent", r.Method, r.Path)
		}
	}
}

// An old generation whose content was removed is left out of a history, and the result has a note.
func TestMirrorOfAHistoryWithAGap(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.site(testenv.Distribution)
	for _, component := range []string{monitor + ":1.4.0", host + "/plant/components/sensor:1.4.0"} {
		s.do(outcome.OK, "state", "push", "-q", "--replace", "-d", "press-07", "--key", "release.key", "--component", component, states)
	}
	at := opened(t, s.server.Reference("plant/components/line-monitor"))
	d, err := at.Resolve(t.Context(), "1.4.0")
	if err == nil {
		err = at.RemoveManifest(t.Context(), d.Digest, "1.4.0")
	}
	if err != nil {
		t.Fatal(err)
	}
	r := s.mirrored("--history", "1")
	if len(r.Devices) != 1 || len(r.Notes) != 1 || !strings.HasPrefix(r.Notes[0], "an old generation is left out: "+states+":press-07.v1: component "+monitor) {
		t.Errorf("devices %v, notes %q, want that generation 1 is left out", r.Devices, r.Notes)
	}
	if code, _, errs := s.try("mirror", "--no-verify", "--history", "1", states, siteHost+"/unverified"); code != outcome.NotFound || !strings.Contains(errs, "line-monitor") {
		t.Errorf("without verification: exit %d, %s", code, errs)
	}
}

// A mirror that is killed at any request leaves no device's tag at what is not whole, and the next one ends it.
func TestMirrorIsTakenUp(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	there := s.site(testenv.Distribution)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	for n := 1; ; n += 3 {
		there.Faults.Clear()
		there.Faults.Add(testenv.Rule{Method: http.MethodPut, Skip: n, Effect: testenv.Status(http.StatusForbidden, 0)})
		code, _, _ := s.try("mirror", "-q", releaseKeyPublic, states, siteHost)
		there.Faults.Clear()
		if code == outcome.OK {
			break
		}
		if code, _, _ := s.try("inspect", siteHost+"/plant/state:press-07"); code == outcome.OK {
			s.do(outcome.OK, "verify", "--key", "release.pub", siteHost+"/plant/state:press-07")
		}
	}
	s.do(outcome.OK, "verify", "--key", "release.pub", "--no-recurse", siteHost+"/plant/state:press-07")
}

// A site of 125 devices, 500 in a nightly run, that has everything: the tags alone cost one request for each manifest of what the site needs, both
// registries together; to look for new signatures too costs one at each, from the first run after the copy on. Without what the copy kept
// the source is asked no more: each state's bundle, which names its components, is then read from the site.
func TestMirrorOfManyUpToDate(t *testing.T) {
	devices := testenv.Rounds(125, 500)
	s := newShell(t, testenv.Distribution)
	there := s.site(testenv.Distribution)
	s.env["XDG_CACHE_HOME"] = t.TempDir()
	platforms := []string{"linux/amd64", "linux/arm64", "linux/arm/v7", "linux/riscv64"}
	s.pushImage("library/caddy:2.10", platforms...)
	s.pushImage("library/nats:2.12", platforms...)
	s.waves(devices, "")
	s.attached(s.real(monitor + ":1.4.0"))
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "waves")
	var first mirrorResult
	// Whether all is signed is not what is counted here: that takes most of the time.
	if err := json.Unmarshal([]byte(s.do(outcome.OK, "mirror", "-o", "json", "--no-verify", states, siteHost)), &first); err != nil {
		t.Fatal(err)
	}
	// The states with their signatures, a component with its SBOM and its attestation, and two images with four platforms each.
	if want := 2*devices + 13; len(first.Devices) != devices || first.Manifests != want {
		t.Fatalf("first: %+v, want %d devices and %d manifests", first.Mirrored, devices, want)
	}
	all := first.Manifests
	for _, c := range []struct {
		name, check                string
		atSource, atSite, together int
	}{{"tags", "tags", devices + 10, devices + 10, all}, {"signatures", "signatures", all, all, 2 * all}, {"without a cache", "signatures", all, all + devices, 2*all + devices}} {
		if c.name == "without a cache" {
			s.env["XDG_CACHE_HOME"] = t.TempDir()
		}
		s.server.Faults.Forget()
		there.Faults.Forget()
		again := s.mirrored("--check", c.check)
		if again.Sent+again.Mounted+again.Manifests+again.Tags != 0 {
			t.Errorf("%s: %+v, want that nothing was sent", c.name, again.Mirrored)
		}
		source, site := len(s.server.Faults.Requests("", "")), len(there.Faults.Requests("", ""))
		t.Logf("%d manifests; %s: %d requests at the source, %d at the site", all, c.name, source, site)
		if source > c.atSource || site > c.atSite || source+site > c.together {
			t.Errorf("%s: %d requests at the source, %d at the site, want at most %d, %d and %d together", c.name, source, site, c.atSource, c.atSite, c.together)
		}
	}
}

// What the run that copied kept of states is not read again; changed files are read again, from the site, and from the source where the
// site has lost them. Nothing is carried less.
func TestMirrorKeepsWhatItRead(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.env["XDG_CACHE_HOME"] = t.TempDir()
	noise := make([]byte, 32<<10) // so that the archive is not in the manifest
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	s.write("line-monitor/config/line.json", string(noise))
	s.stock()
	there := s.site(testenv.Distribution)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	blobs := func() string {
		t.Helper()
		s.server.Faults.Forget()
		there.Faults.Forget()
		s.mirrored()
		return fmt.Sprintf("%d at the source, %d at the site", len(s.server.Faults.Requests(http.MethodGet, "/blobs/")), len(there.Faults.Requests(http.MethodGet, "/blobs/")))
	}
	const none = "0 at the source, 0 at the site"
	s.mirrored()
	if n := blobs(); n != none {
		t.Errorf("the run after the copy read blobs: %s", n)
	}
	s.do(outcome.OK, "sign", "-q", "--key", "root.key", monitor+":1.4.0")
	if r := s.mirrored(); r.Referrers != 1 {
		t.Errorf("a new signature: %+v, want that it is copied", r.Mirrored)
	}
	if n := blobs(); n != none {
		t.Errorf("blobs were read again: %s", n)
	}
	files, err := filepath.Glob(filepath.Join(s.env["XDG_CACHE_HOME"], "longshore", "states", "*"))
	if err != nil || len(files) != 2 {
		t.Fatalf("kept: %q, %v", files, err)
	}
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v, want it for its user alone", f, info, err)
		}
		s.write(f, "changed")
	}
	if n := blobs(); n != "0 at the source, 2 at the site" {
		t.Errorf("files were changed: %s, want both from the site", n)
	}
	for _, f := range files {
		s.write(f, "changed")
	}
	there.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: "/blobs/", Effect: testenv.Status(http.StatusNotFound, 0)})
	if n := blobs(); !strings.HasPrefix(n, "2 at the source") {
		t.Errorf("the site has lost them: %s, want both from the source", n)
	}
	there.Faults.Clear()
	old := time.Now().AddDate(0, 0, -31)
	left := filepath.Join(filepath.Dir(files[0]), strings.Repeat("0", 64))
	s.write(left, "of long ago")
	if err := os.Chtimes(left, old, old); err != nil {
		t.Fatal(err)
	}
	if n := blobs(); n != none {
		t.Errorf("blobs were read again: %s", n)
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("a file that was not used for 31 days: %v, want it removed", err)
	}
}

// Only what a run has kept is removed: the folder of the cache may be another one, by a link or by XDG_CACHE_HOME.
func TestMirrorRemovesOnlyWhatItKept(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	cache := t.TempDir()
	s.env["XDG_CACHE_HOME"] = cache
	s.stock()
	s.large(4 << 20)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.1")
	s.site(testenv.Distribution)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.1", states)
	old := time.Now().AddDate(0, 0, -31)
	for _, name := range []string{"states", "uploads"} {
		of := t.TempDir()
		if err := os.MkdirAll(filepath.Join(cache, "longshore"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(of, filepath.Join(cache, "longshore", name)); err != nil {
			t.Fatal(err)
		}
		kept := filepath.Join(of, "shadow") // not named as a kept file
		s.write(kept, "a file of somebody")
		if err := os.Chtimes(kept, old, old); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if _, err := os.Stat(kept); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}()
	}
	s.mirrored()
	s.mirrored()
}

// Signatures of what the site has already arrive there, whatever they are of; with --check tags they do not. What the site's
// registry has lost comes again: images and components at once, blobs with --check all.
func TestMirrorBringsWhatIsNew(t *testing.T) {
	for _, kinds := range [][2]testenv.Kind{{testenv.Distribution, testenv.Distribution}, {testenv.Referrers, testenv.Distribution}, {testenv.Distribution, testenv.Referrers}} {
		t.Run(fmt.Sprint(kinds), func(t *testing.T) {
			s := newShell(t, kinds[0])
			s.stock()
			there := s.site(kinds[1])
			s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
			s.mirrored()
			caddy := opened(t, s.server.Reference("library/caddy"))
			index, err := caddy.Resolve(t.Context(), "2.10")
			if err != nil {
				t.Fatal(err)
			}
			children, err := caddy.Below(t.Context(), index.Digest)
			if err != nil || len(children) != 2 {
				t.Fatalf("the index has %v, %v", children, err)
			}
			for _, of := range [][]string{
				{states + ":press-07"},
				{monitor + ":1.4.0"},
				{host + "/library/caddy:2.10"},
				{host + "/library/caddy@" + children[1].Digest.String()},
				{"--signature-format", "legacy", monitor + ":1.4.0"},
			} {
				s.do(outcome.OK, append([]string{"sign", "-q", "--key", "root.key"}, of...)...)
				if r := s.mirrored("--check", "tags"); r.Manifests != 0 {
					t.Errorf("%s, --check tags: %+v, want nothing", of, r.Mirrored)
				}
				if r := s.mirrored(); r.Referrers != 1 || r.Tags != 0 {
					t.Errorf("%s: %+v, want one signature", of, r.Mirrored)
				}
				if r := s.mirrored(); r.Manifests+r.Sent != 0 {
					t.Errorf("%s again: %+v, want nothing", of, r.Mirrored)
				}
			}
			// Another signature under cosign's older tag, which moves.
			s.do(outcome.OK, "sign", "-q", "--key", "release.key", "--signature-format", "legacy", monitor+":1.4.0")
			if r := s.mirrored(); r.Referrers != 1 {
				t.Errorf("a second signature under the tag: %+v", r.Mirrored)
			}
			s.do(outcome.OK, "verify", "-q", "--key", "release.pub", "--no-recurse", siteHost+"/plant/components/line-monitor:1.4.0")
			if kinds[1] != testenv.Distribution {
				return // in-memory registries need no repair
			}
			lost := opened(t, there.Reference("library/caddy"))
			if err := lost.RemoveManifest(t.Context(), index.Digest); err != nil {
				t.Fatal(err)
			}
			if r := s.mirrored("--check", "tags"); r.Manifests != 0 {
				t.Errorf("a lost image, --check tags: %+v, want nothing", r.Mirrored)
			}
			if r := s.mirrored(); r.Manifests == 0 {
				t.Errorf("a lost image: %+v, want it again", r.Mirrored)
			}
			s.do(outcome.OK, "verify", "-q", "--key", "root.pub", "--no-recurse", siteHost+"/library/caddy@"+index.Digest.String())
			if err := lost.RemoveManifest(t.Context(), children[0].Digest); err != nil {
				t.Fatal(err)
			}
			if r := s.mirrored("--check", "all"); r.Manifests == 0 {
				t.Errorf("a lost part of an image, --check all: %+v, want it again", r.Mirrored)
			}
		})
	}
}

// opened opens a repository as somebody who may write there.
func opened(t *testing.T, name string) *registry.Repository {
	t.Helper()
	client, err := registry.New(registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	repo, err := client.OpenName(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return repo
}

// Of an image index only the images of some platforms are copied; the index keeps its digest. A registry that takes an index
// only whole is told of with what to do. Later the other platforms come too.
func TestMirrorPlatforms(t *testing.T) {
	for name, c := range map[string]struct {
		kind   testenv.Kind
		opts   []testenv.RegistryOption
		refuse bool
	}{
		"distribution":       {testenv.Distribution, nil, true},
		"distribution, none": {testenv.Distribution, []testenv.RegistryOption{testenv.WithSparseIndexes()}, false},
		"ociregistry":        {testenv.Referrers, nil, true},
		"lax":                {testenv.Lax, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShell(t, testenv.Distribution)
			s.stock()
			there := s.site(c.kind, c.opts...)
			s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
			s.refuses(outcome.Misused, []string{"no platform"}, "mirror", releaseKeyPublic, "--platform", "arm64", states, siteHost)
			s.refuses(outcome.Refused, []string{"linux/amd64, linux/arm64, not for linux/riscv64\n"}, "mirror", releaseKeyPublic, "--platform", "linux/riscv64", states, siteHost)
			some := []string{releaseKeyPublic, "--platform", "linux/arm64", states}
			s.do(outcome.OK, append(append([]string{"export"}, some...), "stick")...)
			if c.refuse {
				for _, line := range [][]string{append(append([]string{"mirror"}, some...), siteHost), {"import", releaseKeyPublic, "stick", siteHost}} {
					_, _, stderr := s.try(line...)
					if !strings.Contains(stderr, "hint: the registry may take an image index only with the images of all platforms") {
						t.Errorf("%s: %s", line[0], stderr)
					}
				}
				return
			}
			plan := s.do(outcome.OK, append(append([]string{"site", "plan"}, some[1:]...), siteHost)...)
			s.do(outcome.OK, "import", releaseKeyPublic, "stick", siteHost)
			if again := s.do(outcome.OK, append(append([]string{"site", "plan"}, some[1:]...), siteHost)...); !strings.Contains(again, " 0 B to copy") {
				t.Errorf("after the import, before it:\n%s\n%s", again, plan)
			}
			if r := s.mirrored("--platform", "linux/arm64"); r.Manifests+r.Sent != 0 {
				t.Errorf("after the import: %+v, want nothing", r.Mirrored)
			}
			caddy := opened(t, s.server.Reference("library/caddy"))
			index, err := caddy.Resolve(t.Context(), "2.10")
			if err != nil {
				t.Fatal(err)
			}
			at := opened(t, there.Reference("library/caddy"))
			has := func(platform string) bool {
				children, err := at.Below(t.Context(), index.Digest, platform)
				if err != nil || len(children) != 1 {
					t.Fatalf("the index at the site has %v for %s, %v", children, platform, err)
				}
				found, err := at.Exists(t.Context(), children[0])
				if err != nil {
					t.Fatal(err)
				}
				return found
			}
			if !has("linux/arm64") || has("linux/amd64") {
				t.Errorf("arm64 is there: %v, amd64: %v; want arm64 alone", has("linux/arm64"), has("linux/amd64"))
			}
			if r := s.mirrored(); r.Manifests == 0 || !has("linux/amd64") {
				t.Errorf("all platforms: %+v, want those of amd64", r.Mirrored)
			}
		})
	}
}
