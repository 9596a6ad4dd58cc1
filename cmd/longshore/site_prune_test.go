package main

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

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
						_, err = at.Take(r.Context(), d.Digest)
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
