package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/site"
	"github.com/longshore-dev/longshore/testenv"
)

// What gets another tag between the plan and the removal stays.
func TestSitePruneOfWhatIsTaggedMeanwhile(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	there := s.site(testenv.Distribution)
	s.probe()
	for _, what := range [][]string{{"--component", host + "/plant/components/probe:1.0.0"}, {"--empty"}, {"--component", sensor}} {
		s.do(outcome.OK, append(append([]string{"state", "push", "-q", "-d", "press-07", "--key", "release.key"}, what...), states)...)
	}
	s.mirrored("--history", "5")
	plan, err := site.PlanPrune(t.Context(), site.Mapped(func(_ context.Context, name string) (*registry.Repository, error) {
		_, path, _ := strings.Cut(name, "/")
		return opened(t, there.Reference(path)), nil
	}), map[string][]artifacts.DeviceID{states: nil}, 0, nil)
	if err != nil || len(plan.Artifacts) != 3 {
		t.Fatalf("%+v, %v", plan, err)
	}
	kept := opened(t, there.Reference("library/kept"))
	tags, err := kept.Tags(t.Context())
	if err != nil || len(tags) != 1 {
		t.Fatalf("library/kept has %v, %v", tags, err)
	}
	d, err := kept.Resolve(t.Context(), tags[0])
	if err == nil {
		err = kept.Tag(t.Context(), d, "mine")
	}
	if err != nil {
		t.Fatal(err)
	}
	gone, err := plan.Remove(t.Context())
	if err != nil || gone.Artifacts != 2 || gone.Restored != 0 {
		t.Errorf("%+v, %v, want two artifacts removed", gone, err)
	}
	if _, err := kept.Resolve(t.Context(), "mine"); err != nil {
		t.Error(err)
	}
}

// sitePruned runs site prune and returns its result.
func (s *shell) sitePruned(args ...string) (r sitePruneResult) {
	s.t.Helper()
	out := s.do(outcome.OK, append(append([]string{"site", "prune", "-o", "json"}, args...), states, siteHost)...)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		s.t.Fatal(err)
	}
	return r
}

// A site loses what its devices do not need any more, and nothing else: what stays verifies, what somebody else tagged stays,
// and a second run removes nothing.
func TestSitePrune(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	s.stock()
	there := s.site(testenv.Distribution)
	s.probe()
	probe, sensor := host+"/plant/components/probe:1.0.0", host+"/plant/components/sensor:1.4.0"
	push := func(device string, what ...string) {
		s.do(outcome.OK, append(append([]string{"state", "push", "-q", "-d", device, "--key", "release.key"}, what...), states)...)
	}
	push("press-07", "--component", probe)
	push("press-07", "--empty")
	push("press-08", "--component", sensor)
	s.mirrored("--history", "5")
	s.log.Reset()
	s.do(outcome.OK, "site", "prune", states, siteHost) // the generation before the current one is the first
	push("press-07", "--component", sensor)
	s.mirrored("--history", "5")
	kept := opened(t, there.Reference("library/kept"))
	tags, err := kept.Tags(t.Context())
	if err != nil || len(tags) != 1 || !strings.HasPrefix(tags[0], "digest-") {
		t.Fatalf("library/kept has %v, %v", tags, err)
	}
	d, err := kept.Resolve(t.Context(), tags[0])
	if err == nil {
		err = kept.Tag(t.Context(), d, "mine")
	}
	if err != nil {
		t.Fatal(err)
	}
	s.do(outcome.OK, "site", "prune", "--dry-run", states, siteHost)
	there.Faults.Add(testenv.Rule{Method: http.MethodDelete, Effect: testenv.Status(http.StatusMethodNotAllowed, 0)})
	s.do(outcome.Misused, "site", "prune", states, siteHost)
	there.Faults.Clear()
	s.do(outcome.OK, "site", "prune", "-o", "json", states, siteHost)
	s.do(outcome.OK, "site", "prune", states, siteHost)
	if r := s.sitePruned("--history", "0"); r.Removed.States+r.Removed.Artifacts != 0 {
		t.Errorf("again: %+v, want nothing: the generation before stays", r)
	}
	s.mask(`("bytes": )[0-9]+`, "${1}BYTES") // signatures are not all of one size
	s.golden(golden)
	s.write("certs.d/"+host+"/hosts.toml", "server = \""+there.URL+"\"\n") // the site's registry is all that there is
	for _, tag := range []string{"press-07", "press-07.v2", "press-08"} {
		s.do(outcome.OK, "verify", "-q", "--key", "release.pub", states+":"+tag)
	}
	s.do(outcome.NotFound, "inspect", probe)
	s.do(outcome.NotFound, "inspect", states+":press-07.v1")
	s.do(outcome.OK, "inspect", host+"/library/kept:mine")
	probes := opened(t, there.Reference("library/probe"))
	if tags, err := probes.Tags(t.Context()); err == nil && len(tags) > 0 {
		t.Errorf("library/probe has %v, want no tag", tags)
	}
}

// probe pushes a component with images that no other has.
func (s *shell) probe() {
	s.t.Helper()
	for _, name := range []string{"library/probe:1", "library/kept:1"} {
		s.pushImage(name, "linux/amd64", "linux/arm64")
	}
	s.copyProject("probe", "9090:80")
	s.change("probe/compose.yaml", host+"/library/caddy:2.10", host+"/library/probe:1")
	s.change("probe/compose.yaml", host+"/library/nats:2.12", host+"/library/kept:1")
	s.do(outcome.OK, "component", "push", "-q", "--name", "probe", "./probe", host+"/plant/components/probe:1.0.0")
}

// What the tags of a repository name is read once for all versions that are removed.
func TestSitePruneOfManyVersions(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	there := s.site(testenv.Distribution)
	const versions = 12
	for n := range versions {
		name := fmt.Sprintf("many-%d", n)
		s.copyProject(name, fmt.Sprintf("%d:80", 9000+n))
		at := fmt.Sprintf(host+"/plant/components/many:1.0.%d", n)
		s.do(outcome.OK, "component", "push", "-q", "--name", "many", "./"+name, at)
		s.do(outcome.OK, "state", "push", "-q", "--replace", "-d", "press-07", "--key", "release.key", "--component", at, states)
	}
	s.mirrored("--history", "20")
	there.Faults.Forget()
	if r := s.sitePruned("--history", "0"); r.Removed.Artifacts != versions-2 {
		t.Errorf("%+v, want that all but the last two are removed", r.Removed)
	}
	asked := len(there.Faults.Requests(http.MethodHead, "/plant/components/many/manifests/"))
	t.Logf("%d requests of what a tag names", asked)
	if asked > 6*versions {
		t.Errorf("%d requests of what a tag names, for %d tags", asked, versions)
	}
}

// What a mirror publishes while a prune removes what it needs is whole in the end.
func TestSitePruneBesideMirror(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		t.Run(string(kind), func(t *testing.T) {
			s := newShell(t, testenv.Distribution)
			s.stock()
			s.probe()
			there := s.site(kind)
			probe := host + "/plant/components/probe:1.0.0"
			s.do(outcome.OK, "sign", "-q", "--key", "release.key", "--signature-format", "both", probe)
			s.do(outcome.OK, "state", "push", "-q", "-d", "press-08", "--key", "release.key", "--component", probe, states)
			s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", probe, states)
			s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--empty", states)
			s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", host+"/plant/components/sensor:1.4.0", states)
			s.mirrored("--history", "5")
			at := opened(t, there.Reference("plant/state"))
			state, manifest, err := at.Tagged(t.Context(), "press-08")
			if err == nil {
				err = at.RemoveManifest(t.Context(), state.Digest, "press-08", "press-08.v1")
			}
			if err != nil {
				t.Fatal(err)
			}
			var once sync.Once
			there.Faults.Add(testenv.Rule{Method: http.MethodDelete, Path: "/library/", Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				once.Do(func() {
					for _, tag := range []string{"press-08.v1", "press-08"} {
						if err := at.PushManifest(t.Context(), state, manifest, tag); err != nil {
							t.Error(err)
						}
					}
				})
				next.ServeHTTP(w, r)
			}})
			r := s.sitePruned("--history", "0")
			if r.Removed.States == 0 || r.Removed.Artifacts == 0 || r.Removed.Restored != r.Removed.Artifacts {
				t.Errorf("%+v, want that all artifacts were put back", r.Removed)
			}
			there.Faults.Clear()
			s.write("certs.d/"+host+"/hosts.toml", "server = \""+there.URL+"\"\n")
			s.do(outcome.OK, "verify", "-q", "--key", "release.pub", states+":press-08")
			s.do(outcome.OK, "verify", "-q", "--key", "release.pub", probe)
		})
	}
}

// What a prune removes before it can see the tag of a new state is there again when the mirror ends.
func TestMirrorBesideSitePrune(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		t.Run(string(kind), func(t *testing.T) {
			s := newShell(t, testenv.Distribution)
			s.probe()
			there := s.site(kind)
			probe := host + "/plant/components/probe:1.0.0"
			s.do(outcome.OK, "sign", "-q", "--key", "release.key", "--signature-format", "both", probe)
			s.do(outcome.OK, "state", "push", "-q", "-d", "press-08", "--key", "release.key", "--component", probe, states)
			removed := 0
			there.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: "/manifests/press-08$", Times: 1, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				for name, tag := range map[string]string{"plant/components/probe": "1.0.0", "library/kept": ""} {
					at := opened(t, there.Reference(name))
					tags, err := at.Tags(r.Context())
					if tag == "" && err == nil {
						tag = tags[0]
					}
					d, err := at.Resolve(r.Context(), tag)
					if err == nil {
						_, err = at.RemoveWithReferrers(r.Context(), d.Digest, registry.NewTagList(tags))
					}
					if err != nil {
						t.Error(err)
					}
					removed++
				}
				next.ServeHTTP(w, r)
			}})
			s.mirrored()
			if removed != 2 {
				t.Fatalf("%d artifacts were removed, want 2", removed)
			}
			s.write("certs.d/"+host+"/hosts.toml", "server = \""+there.URL+"\"\n")
			s.do(outcome.OK, "verify", "-q", "--key", "release.pub", states+":press-08")
			s.do(outcome.OK, "verify", "-q", "--key", "release.pub", probe)
		})
	}
}

// An image that a kept image index names stays, although an old state named it by itself.
func TestSitePruneKeepsImagesOfIndexes(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.probe()
	there := s.site(testenv.Distribution)
	index := opened(t, s.server.Reference("library/probe"))
	d, err := index.Resolve(t.Context(), "1")
	if err != nil {
		t.Fatal(err)
	}
	images, err := index.Below(t.Context(), d.Digest)
	if err != nil || len(images) != 2 {
		t.Fatalf("%v, %v", images, err)
	}
	s.copyProject("alone", "9091:80")
	s.change("alone/compose.yaml", host+"/library/caddy:2.10", host+"/library/probe@"+images[0].Digest.String())
	s.do(outcome.OK, "component", "push", "-q", "--name", "alone", "./alone", host+"/plant/components/alone:1.0.0")
	for _, what := range [][]string{{"--component", host + "/plant/components/alone:1.0.0"}, {"--empty"}, {"--component", host + "/plant/components/probe:1.0.0"}} {
		s.do(outcome.OK, append(append([]string{"state", "push", "-q", "-d", "press-07", "--key", "release.key"}, what...), states)...)
	}
	s.mirrored("--history", "5")
	if r := s.sitePruned(); r.Removed.States != 1 {
		t.Errorf("removed: %+v", r.Removed)
	}
	site := opened(t, there.Reference("library/probe"))
	for _, x := range images {
		if ok, err := site.Exists(t.Context(), x); !ok || err != nil {
			t.Errorf("%s, which a kept index names, is there: %v, %v", x.Digest, ok, err)
		}
	}
}

// What a state needs that this version cannot read is not known: nothing is removed.
func TestSitePruneUnknownState(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.probe()
	there := s.site(testenv.Distribution)
	probe := host + "/plant/components/probe:1.0.0"
	push := func(device string, what ...string) {
		s.do(outcome.OK, append(append([]string{"state", "push", "-q", "-d", device, "--key", "release.key"}, what...), states)...)
	}
	push("press-07", "--component", probe)
	push("press-07", "--empty")
	push("press-07", "--component", host+"/plant/components/sensor:1.4.0")
	push("press-08", "--component", probe)
	s.mirrored("--history", "5")
	at := opened(t, there.Reference("plant/state"))
	desc, manifest, err := at.Tagged(t.Context(), "press-08")
	if err != nil {
		t.Fatal(err)
	}
	later := []byte(strings.ReplaceAll(string(manifest), "application/vnd.margo.manifest.v1+json", "application/vnd.margo.manifest.v9+json"))
	desc.Digest, desc.Size = digest.FromBytes(later), int64(len(later))
	if err := at.RemoveManifest(t.Context(), digest.FromBytes(manifest), "press-08", "press-08.v1"); err != nil {
		t.Fatal(err)
	}
	for _, tag := range []string{"press-08.v1", "press-08"} {
		if err := at.PushManifest(t.Context(), desc, later, tag); err != nil {
			t.Fatal(err)
		}
	}
	s.refuses(outcome.Refused, []string{"press-08"}, "site", "prune", states, siteHost)
	if tags, err := opened(t, there.Reference("plant/components/probe")).Tags(t.Context()); err != nil || len(tags) == 0 {
		t.Errorf("the component that press-08 needs has %v, %v", tags, err)
	}
}
