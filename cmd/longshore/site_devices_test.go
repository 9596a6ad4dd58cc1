package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// A site gets the devices of a fleet, or of a part of it that a selector names; a device without a state is no error. Prune leaves
// the others alone.
func TestSiteOfAFleet(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	there := s.site(testenv.Distribution)
	s.write("plant/fleet.yaml", "fleet: acme\nregistry: "+host+"/plant\n"+
		"applications: {monitor: {component: components/line-monitor, version: 1.4.0}}\n"+
		"deployments: {monitor: {application: monitor, select: \"*\", parameters: {POLL_SECONDS: 5}}}\n"+
		"groups: {line-a: {select: line=a}, line-b: {select: line=b}}\n"+
		"devices:\n  - {id: press-01, labels: {line: a, site: graz}}\n  - {id: press-02, labels: {line: a, site: linz}}\n  - {id: press-03, labels: {line: b, site: graz}}\n")
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "plant")
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-99", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.change("plant/fleet.yaml", "devices:\n", "devices:\n  - {id: press-04, labels: {line: a, site: graz}}\n") // was not published yet
	devices := func(r *mirrorResult) string { return strings.Join(r.Devices, " ") }
	if r := s.mirrored("--fleet", "plant", "--select", "group=line-a, site=graz"); devices(&r) != "press-01" ||
		!slices.Contains(r.Notes, "press-04 is left out: nothing was published for it") {
		t.Errorf("of a group: %+v", r.Mirrored)
	}
	if r := s.mirrored("--fleet", "plant"); devices(&r) != "press-02 press-03" {
		t.Errorf("of the fleet: %+v", r.Mirrored)
	}
	graz := []string{"--fleet", "plant", "--select", "site=graz"}
	if out := s.do(outcome.OK, append(append([]string{"site", "plan"}, graz...), states, siteHost)...); strings.Contains(out, "press-02") || !strings.Contains(out, " 0 B to copy") {
		t.Errorf("plan:\n%s", out)
	}
	if out := s.do(outcome.OK, append(append([]string{"site", "inventory"}, graz...), states, siteHost)...); !strings.Contains(out, s.digestOf("press-03")) || strings.Contains(out, s.digestOf("press-02")) {
		t.Errorf("inventory:\n%s", out)
	}
	s.do(outcome.OK, append(append([]string{"export", "-q", releaseKeyPublic}, graz...), states, "stick")...)
	s.do(outcome.OK, "import", "-q", releaseKeyPublic, "stick", siteHost)
	if receipt := string(mustRead(t, "stick/receipt.json")); !strings.Contains(receipt, "press-03") || strings.Contains(receipt, "press-02") {
		t.Errorf("an export has\n%s", receipt)
	}
	for i, poll := range []string{"5", "6"} {
		s.change("plant/fleet.yaml", "POLL_SECONDS: "+poll, "POLL_SECONDS: "+[]string{"6", "7"}[i])
		s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "plant")
	}
	s.mirrored("--fleet", "plant", "--history", "5")
	if r := s.sitePruned(graz...); r.Removed.States != 2 {
		t.Errorf("prune: %+v, want one generation of each device in Graz", r)
	}
	tags, err := opened(t, there.Reference("plant/state")).Tags(t.Context())
	if err != nil || slices.Contains(tags, "press-03.v1") || !slices.Contains(tags, "press-02.v1") {
		t.Errorf("after the prune: %v, %v", tags, err)
	}
	s.refuses(outcome.Misused, []string{"--fleet"}, "site", "plan", "--select", "site=graz", states, siteHost)
	s.refuses(outcome.Misused, []string{"--device"}, "site", "plan", "--fleet", "plant", "-d", "press-01", states, siteHost)
	s.refuses(outcome.NotFound, []string{"no chosen device"}, "site", "plan", "--fleet", "plant", "--select", "site=wien", states, siteHost)
	s.refuses(outcome.NotFound, []string{"chosen devices"}, "site", "prune", "-d", "press-70", states, siteHost)
}
