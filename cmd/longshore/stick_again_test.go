package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

const sensor = host + "/plant/components/sensor:1.4.0"

// A stick is used for one update after the other: an import takes the generations of the last export, and neither one whose content the
// site has removed since, nor all that were on the stick before.
func TestStickIsUsedAgain(t *testing.T) {
	for _, difference := range []bool{true, false} {
		t.Run(fmt.Sprint("difference ", difference), func(t *testing.T) {
			s := newShell(t, testenv.Distribution)
			s.stock()
			there := s.site(testenv.Distribution)
			carry := func(component, poll string) {
				t.Helper()
				s.do(outcome.OK, "state", "push", "-q", "--replace", "-d", "press-07", "--key", "release.key", "--component", component, "--set", "POLL_SECONDS="+poll, states)
				export := []string{"export", "-q", releaseKeyPublic}
				if difference {
					s.do(outcome.OK, "site", "inventory", "--file", "graz.json", states, siteHost)
					export = append(export, "--since", "graz.json")
				}
				s.do(outcome.OK, append(export, states, "stick")...)
				s.do(outcome.OK, "import", "-q", releaseKeyPublic, "stick", siteHost)
			}
			s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
			s.mirrored()
			for _, poll := range []string{"6", "7"} {
				carry(monitor+":1.4.0", poll)
			}
			for _, poll := range []string{"8", "9"} {
				carry(sensor, poll)
			}
			if r := s.sitePruned("--history", "0"); r.Removed.Artifacts == 0 {
				t.Fatalf("the prune leaves everything: %+v", r.Removed)
			}
			carry(sensor, "10")
			tags, err := opened(t, there.Reference("plant/state")).Tags(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(tags, " "); strings.Contains(got, "press-07.v2 ") || !strings.Contains(got, "press-07.v6") {
				t.Errorf("the site has %s, want nothing that was removed", got)
			}
			s.do(outcome.OK, "export", "-q", releaseKeyPublic, "--history", "4", states, "stick")
			s.do(outcome.OK, "import", "-q", releaseKeyPublic, "stick", siteHost)
			s.do(outcome.OK, "verify", "-q", "--key", "release.pub", "--no-recurse", siteHost+"/plant/state:press-07.v2")
		})
	}
}

// An export never hides another one that the media have: of another repository, or in another form.
func TestExportBesideAnother(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.site(testenv.Distribution)
	const lab = host + "/lab/state"
	for _, at := range []string{states, lab} {
		s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", at)
	}
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "stick")
	s.refuses(outcome.Refused, []string{"stick", states, "hint: "}, "export", "-q", releaseKeyPublic, lab, "stick")
	s.do(outcome.OK, "import", "-q", releaseKeyPublic, "stick", siteHost)
	s.refuses(outcome.Refused, []string{"stick", states, "hint: "}, "export", "-q", releaseKeyPublic, "--tar", lab, "stick")
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, "--tar", states, "stick")
	s.refuses(outcome.Refused, []string{"stick", states, "hint: "}, "export", "-q", releaseKeyPublic, "--tar", lab, "stick")
	s.do(outcome.OK, "state", "push", "-q", "--replace", "-d", "press-07", "--key", "release.key", "--component", sensor, states)
	s.refuses(outcome.Refused, []string{"stick", "longshore-export-001.tar", "hint: "}, "export", "-q", releaseKeyPublic, states, "stick")
	if err := os.Remove("stick/longshore-export-001.tar"); err != nil {
		t.Fatal(err)
	}
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "stick")
	s.do(outcome.OK, "import", "-q", releaseKeyPublic, "stick", siteHost)
	if now, want := s.digestAt(siteHost+"/plant/state:press-07"), s.digestAt(states+":press-07"); now != want {
		t.Errorf("the site has %s, want %s", now, want)
	}
}
