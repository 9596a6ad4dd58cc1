package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/site"
	"github.com/longshore-dev/longshore/testenv"
)

const linePackage = "plant/apps/line"

// release pushes a version of the application line, and publishes it to press-07 with a parameter of its own.
func (s *shell) release(version string, poll int, sign ...string) digest.Digest {
	s.t.Helper()
	margo := regexp.MustCompile(`(?m)^  version: .*$`).ReplaceAllString(string(mustRead(s.t, "app/margo.yaml")), "  version: "+version)
	s.write("app/margo.yaml", margo)
	s.write("line/fleet.yaml", fmt.Sprintf("fleet: acme-line\nregistry: %s/plant\napplications: {line: {package: apps/line, version: %s}}\n"+
		"deployments: {line: {application: line, select: \"*\", parameters: {poll: %d, place: Graz}}}\ndevices: [{id: press-07, capabilities: unchecked}]\n", host, version, poll))
	s.do(outcome.OK, append([]string{"app", "push", "-q", "./app", host + "/" + linePackage}, sign...)...)
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "line")
	d, err := opened(s.t, s.server.Reference(linePackage)).Resolve(s.t.Context(), version)
	if err != nil {
		s.t.Fatal(err)
	}
	return d.Digest
}

// The packages that states were made of are copied with their signatures in both formats, which real cosign verifies at the site;
// later signatures follow; a prune removes what only old generations name.
func TestSitePackages(t *testing.T) {
	for _, kinds := range [][2]testenv.Kind{
		{testenv.Distribution, testenv.Distribution}, {testenv.Referrers, testenv.Distribution}, {testenv.Distribution, testenv.Referrers}, {testenv.Distribution, testenv.Lax},
	} {
		t.Run(fmt.Sprint(kinds), func(t *testing.T) {
			s := newShell(t, kinds[0])
			s.stock()
			there := s.site(kinds[1])
			signed := map[string]string{ // the format of cosign 2 and that of 3
				"cosign2": linePackage + "@" + s.release("1.4.0", 5, "--key", "release.key", "--signature-format", "legacy").String(),
				"cosign3": linePackage + "@" + s.release("1.4.1", 6, "--key", "release.key", "--signature-format", "bundle").String(),
			}
			if r := s.mirrored("--history", "5"); r.Artifacts != 7 || len(r.Notes) > 0 { // two images, their component, two packages, two states
				t.Errorf("mirror: %+v, want 7 artifacts", r)
			}
			if again := s.mirrored("--history", "5"); again.Sent+again.Mounted+again.Manifests+again.Tags != 0 {
				t.Errorf("again: %+v, want that nothing was sent", again.Mirrored)
			}
			if out := s.do(outcome.OK, "site", "plan", "--history", "5", states, siteHost); strings.Count(out, "package  ") != 2 || !strings.Contains(out, " 0 B to copy") {
				t.Errorf("plan of a site that has both packages:\n%s", out)
			}
			for program, one := range signed {
				for _, at := range []*testenv.RegistryServer{s.server, there} {
					for key, good := range map[string]bool{"release.pub": true, "other.pub": false} {
						out, err := s.cosign(program, "verify", "--key", key, "--insecure-ignore-tlog", at.Reference(one))
						if (err == nil) != good {
							t.Errorf("%s verify --key %s %s at the %s registry: %v\n%s", program, key, one, at.Kind, err, out)
						}
					}
				}
			}
			s.do(outcome.OK, "sign", "-q", "--key", "root.key", host+"/"+signed["cosign3"])
			if r := s.mirrored(); r.Referrers != 1 || r.Tags != 0 {
				t.Errorf("a new signature of a package: %+v, want that it alone is copied", r.Mirrored)
			}
			s.do(outcome.OK, "verify", "-q", "--key", "root.pub", "--no-recurse", siteHost+"/"+linePackage+":1.4.1")
			if kinds[1] == testenv.Lax {
				return
			}
			s.release("1.4.1", 7)
			s.mirrored()
			if r := s.sitePruned(); r.Removed.States != 1 || len(r.Artifacts) != 1 || r.Artifacts[0].Key() != host+"/"+signed["cosign2"] || r.Removed.Referrers == 0 {
				t.Errorf("prune: %+v, %v, want the first generation and its package", r.Removed, r.Artifacts)
			}
			s.do(outcome.NotFound, "inspect", siteHost+"/"+signed["cosign2"])
			s.do(outcome.OK, "verify", "-q", "--key", "release.pub", "--no-recurse", siteHost+"/"+signed["cosign3"])
		})
	}
}

// An export carries packages; a difference carries the new one alone; a site that has everything gets none.
func TestExportPackages(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.stock()
	s.site(testenv.Distribution)
	first := s.release("1.4.0", 5, "--key", "release.key")
	s.do(outcome.OK, "export", releaseKeyPublic, states, "whole")
	s.do(outcome.OK, "import", releaseKeyPublic, "whole", siteHost)
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", "--no-recurse", siteHost+"/"+linePackage+":1.4.0")
	inventory := func() (has site.Inventory) {
		t.Helper()
		s.write("graz.json", s.do(outcome.OK, "site", "inventory", "--history", "5", states, siteHost))
		if err := json.Unmarshal(mustRead(t, "graz.json"), &has); err != nil {
			t.Fatal(err)
		}
		return has
	}
	has := inventory()
	if !slices.Contains(has.Content[host+"/"+linePackage], first) {
		t.Fatalf("the inventory lacks package %s: %v", first, has.Content)
	}
	second := s.release("1.4.1", 6, "--key", "release.key", "--signature-format", "legacy")
	s.do(outcome.OK, "export", releaseKeyPublic, "--history", "5", "--since", "graz.json", states, "stick")
	carried := blobs(t, "stick")
	if carried[second] == 0 {
		t.Errorf("package %s is not carried: %v", second, carried)
	}
	for _, d := range has.Content[host+"/"+linePackage] {
		if carried[d] > 0 && d != ocispec.DescriptorEmptyJSON.Digest {
			t.Errorf("%s is carried, although the site has it:\n%s", d, mustRead(t, filepath.Join("stick", "blobs", "sha256", d.Encoded())))
		}
	}
	s.do(outcome.OK, "import", releaseKeyPublic, "stick", siteHost)
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", "--no-recurse", siteHost+"/"+linePackage+":1.4.1")
	if has = inventory(); !slices.Contains(has.Content[host+"/"+linePackage], second) {
		t.Errorf("the inventory lacks package %s", second)
	}
	s.do(outcome.OK, "export", releaseKeyPublic, "--history", "5", "--since", "graz.json", states, "nothing")
	if carried := blobs(t, "nothing"); carried[first]+carried[second] > 0 {
		t.Errorf("packages are carried, although the site has them: %v", carried)
	}
}

// A package that cannot be had is told by every command, and stops none: devices do not need it. When it is there again it follows.
func TestSitePackageMissing(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.site(testenv.Distribution)
	d := s.release("1.4.0", 5)
	s.log.Reset()
	s.do(outcome.OK, "site", "plan", states, siteHost)
	if err := opened(t, s.server.Reference(linePackage)).RemoveManifest(t.Context(), d, "1.4.0"); err != nil {
		t.Fatal(err)
	}
	s.do(outcome.OK, "site", "plan", states, siteHost)
	s.do(outcome.OK, "site", "plan", "-o", "json", states, siteHost)
	s.do(outcome.OK, "export", releaseKeyPublic, states, "stick")
	s.do(outcome.OK, "import", releaseKeyPublic, "stick", siteHost)
	s.do(outcome.OK, "mirror", releaseKeyPublic, states, siteHost)
	s.mask(`("bytes": |"lacks": |blobs?, )[0-9.]+( KiB| B)?`, "${1}BYTES", `(to carry +|in all +)[0-9.]+( KiB| B)`, "${1}BYTES", `[0-9.]+ KiB`, "BYTES", `in /\S+/stick`, "in DIRECTORY/stick") // signatures are not all of one size
	s.golden(golden)
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", "--no-recurse", siteHost+"/plant/state:press-07")
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/"+linePackage)
	s.server.Faults.Add(testenv.Rule{Path: "/" + linePackage + "/", Effect: testenv.Status(http.StatusForbidden, 0)})
	if r := s.mirrored(); len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "line:1.4.0 is left out, devices do not need it") {
		t.Errorf("who may not read the package is told %q", r.Notes)
	}
	s.server.Faults.Clear()
	s.server.Faults.Add(testenv.Rule{Path: "/" + linePackage + "/", Effect: testenv.Status(http.StatusServiceUnavailable, 0)})
	s.do(outcome.Temporary, "mirror", "-q", releaseKeyPublic, states, siteHost)
	s.server.Faults.Clear()
	if r := s.mirrored(); r.Manifests != 1 || len(r.Notes) > 0 {
		t.Errorf("the package is there again: %+v, want it alone", r.Mirrored)
	}
	s.do(outcome.OK, "inspect", siteHost+"/"+linePackage+":1.4.0")
	// The source loses it again: the site keeps it.
	if err := opened(t, s.server.Reference(linePackage)).RemoveManifest(t.Context(), d, "1.4.0"); err != nil {
		t.Fatal(err)
	}
	if r := s.mirrored("--check", "all"); r.Manifests+r.Sent != 0 || len(r.Notes) != 1 {
		t.Errorf("the site has what the source lost: %+v", r.Mirrored)
	}
	s.do(outcome.OK, "inspect", siteHost+"/"+linePackage+":1.4.0")
}

// A state that does not say where its package is has none as far as a site knows; what is called a package and is none is left out.
func TestSitePackageOfOthers(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.site(testenv.Distribution)
	component, err := opened(t, s.server.Reference("plant/components/line-monitor")).Resolve(t.Context(), "1.4.0")
	if err != nil {
		t.Fatal(err)
	}
	repo := opened(t, s.server.Reference("plant/state"))
	push := func(device string, a artifacts.ApplicationVersion) {
		t.Helper()
		state, err := artifacts.PackState(artifacts.StateOptions{Device: artifacts.DeviceID(device), Generation: 1, Applications: map[string]artifacts.ApplicationVersion{"line": a}})
		if err == nil {
			_, _, err = repo.Push(t.Context(), state, registry.PushOptions{})
		}
		for _, tag := range []string{device + ".v1", device} {
			if err == nil {
				err = repo.PushManifest(t.Context(), state.Descriptor, state.Manifest, tag)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	push("press-07", artifacts.ApplicationVersion{Version: "1.4.0", Digest: component.Digest})
	if out := s.do(outcome.OK, "site", "plan", states, siteHost); strings.Contains(out, "package") || strings.Contains(out, "missing") {
		t.Errorf("a state that does not say where:\n%s", out)
	}
	push("press-08", artifacts.ApplicationVersion{Repository: host + "/plant/components/line-monitor", Version: "1.4.0", Digest: component.Digest})
	if out := s.do(outcome.OK, "site", "plan", states, siteHost); strings.Contains(out, "├─ package") || !strings.Contains(out, "missing   package "+host+"/plant/components/line-monitor:1.4.0 is left out") || !strings.Contains(out, "artifact type") {
		t.Errorf("a state that calls a component its package:\n%s", out)
	}
	s.do(outcome.OK, "mirror", "--no-verify", states, siteHost)
	if tags, err := opened(t, s.server.Reference("plant/components/line-monitor")).Tags(t.Context()); err != nil || len(tags) == 0 {
		t.Errorf("%v, %v", tags, err)
	}
	s.do(outcome.NotFound, "inspect", siteHost+"/plant/components/line-monitor:1.4.0")
}
