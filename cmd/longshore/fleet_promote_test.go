package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// From staging to a production with a registry of its own: what was tried is what goes there, with its signatures.
func TestFleetPromote(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	other := testenv.Registry(t, testenv.Referrers)
	s.write("certs.d/prod.acme.example/hosts.toml", "server = \""+other.URL+"\"\n")
	s.do(outcome.OK, "component", "push", "-q", "--key", "release.key", "./line-monitor", monitor+":1.4.0")
	s.do(outcome.OK, "component", "push", "-q", "./sensor", host+"/plant/components/sensor:1.4.0")
	s.do(outcome.OK, "app", "push", "-q", "--key", "release.key", "--channel", "stable", "./app", host+"/plant/apps/line")
	s.change("plant/fleet.yaml", `version: "~1.4"`, "channel: stable")
	if err := os.CopyFS("prod", os.DirFS("plant")); err != nil {
		t.Fatal(err)
	}
	s.change("prod/fleet.yaml", "registry: harbor.acme.example/plant", "registry: prod.acme.example/line")
	s.change("prod/fleet.yaml", "fleet: acme-plant", "fleet: production")
	s.do(outcome.NotFound, "fleet", "promote", "plant", "prod") // nothing is published in staging
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "plant")
	// A new version, to which the channel moves: it was not tried.
	s.change("app/margo.yaml", "version: 1.4.0", "version: 1.5.0")
	s.do(outcome.OK, "app", "push", "-q", "--channel", "stable", "./app", host+"/plant/apps/line")
	s.do(outcome.OK, "fleet", "promote", "--dry-run", "--verify-key", "release.pub", "plant", "prod")
	s.do(outcome.Verification, "fleet", "promote", "--verify-key", "other.pub", "plant", "prod")
	s.do(outcome.NotFound, "fleet", "promote", "--application", "lime", "plant", "prod")
	s.do(outcome.OK, "fleet", "promote", "--verify-key", "release.pub", "plant", "prod")
	s.log.WriteString(string(mustRead(t, "prod/fleet.lock")))
	s.do(outcome.OK, "fleet", "promote", "--verify-key", "release.pub", "-o", "json", "plant", "prod") // again
	s.do(outcome.OK, "fleet", "check", "prod")
	s.do(outcome.Differs, "fleet", "plan", "--select", "device=press-09", "prod")
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "prod")
	s.do(outcome.OK, "verify", "-q", "--no-recurse", "--key", "release.pub", "prod.acme.example/line/apps/line:1.4.0")
	s.do(outcome.OK, "verify", "-q", "--no-recurse", "--key", "release.pub", "prod.acme.example/line/components/line-monitor:1.4.0")
	if shown := s.do(outcome.OK, "state", "show", "-d", "press-09", "prod.acme.example/line/state"); !strings.Contains(shown, "prod.acme.example/line/components/line-monitor:1.4.0") {
		t.Error("press-09 does not get its component where it was copied to")
	}
	// Somebody pushes the version anew where it was promoted to.
	s.write("app/resources/about.md", "another one")
	s.change("app/margo.yaml", "version: 1.5.0", "version: 1.4.0")
	s.do(outcome.OK, "app", "push", "-q", "--overwrite", "./app", "prod.acme.example/line/apps/line")
	s.do(outcome.Misused, "fleet", "plan", "prod")
	s.do(outcome.Refused, "fleet", "promote", "plant", "prod")
	s.do(outcome.OK, "help", "fleet", "promote")
	s.golden(golden)
}

// With the fleet endpoint only what devices run is promoted: neither what they have not got yet nor what fails there.
func TestFleetPromoteWhatRuns(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	f := newFloor(t, s, s.waves(2, ""))
	if err := os.CopyFS("prod", os.DirFS("waves")); err != nil {
		t.Fatal(err)
	}
	s.change("prod/fleet.yaml", "fleet: acme-plant", "fleet: production")
	promote := []string{"fleet", "promote", "--verify-key", "release.pub", "--endpoint", f.url, "waves", "prod"}
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "waves")
	f.settled(time.Minute)
	s.do(outcome.OK, promote...)
	s.change("waves/fleet.yaml", "POLL_SECONDS: 5", "POLL_SECONDS: 666")
	s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "waves")
	before := string(mustRead(t, "prod/fleet.lock"))
	code, _, stderr := s.try(promote...)
	if code != outcome.Refused || !strings.Contains(stderr, "monitor: deployment monitor does not run as it is published: conflict: press-0000: ") || !strings.Contains(stderr, "press-0001: ") {
		t.Errorf("what fails: exit %d\n%s", code, stderr)
	}
	if now := string(mustRead(t, "prod/fleet.lock")); now != before {
		t.Errorf("the lock is another one:\n%s", now)
	}
	s.do(outcome.OK, "fleet", "promote", "--verify-key", "release.pub", "waves", "prod") // what is published, whatever runs
	s.do(outcome.Temporary, "fleet", "promote", "--endpoint", "http://127.0.0.1:1", "waves", "prod")
}
