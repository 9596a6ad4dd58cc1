package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// oneDevice writes a fleet of one device that runs components, each as a deployment of its own.
func (s *shell) oneDevice(dir string, components ...string) {
	s.t.Helper()
	var apps, deployments strings.Builder
	for _, c := range components {
		fmt.Fprintf(&apps, "  %s: {component: components/%s, version: 1.4.0}\n", c, c)
		fmt.Fprintf(&deployments, "  %s: {application: %s, select: \"*\"}\n", c, c)
	}
	s.write(dir+"/fleet.yaml", fmt.Sprintf("fleet: one\nregistry: %s/plant\nstates: one\napplications:\n%sdeployments:\n%sdevices:\n  - {id: press-07}\n", host, &apps, &deployments))
}

// refuses runs a command line that a check before publishing must end, with words of each reason.
func (s *shell) refuses(code int, words []string, args ...string) {
	s.t.Helper()
	s.server.Faults.Forget()
	got, stdout, stderr := s.try(args...)
	stderr += stdout
	if got != code {
		s.t.Errorf("longshore %s: exit %d, want %d\n%s", strings.Join(args, " "), got, code, stderr)
	}
	for _, w := range words {
		if !strings.Contains(stderr, w) {
			s.t.Errorf("longshore %s: not told: %q\n%s", strings.Join(args, " "), w, stderr)
		}
	}
	if n := len(s.server.Faults.Requests(http.MethodPut, "")) + len(s.server.Faults.Requests(http.MethodPost, "")); n > 0 {
		s.t.Errorf("longshore %s wrote %d times", strings.Join(args, " "), n)
	}
}

// Everything that keeps a device from what it is to get is told before anything is pushed, all of it at once.
func TestContentIsLookedAt(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	mirror := testenv.Registry(t, testenv.Lax)
	s.oneDevice("one", "line-monitor", "sensor")
	s.do(outcome.OK, "fleet", "check", "one")
	publish := []string{"fleet", "publish", "--key", "release.key", "one"}
	at := func(more ...string) []string {
		return append(append([]string{"fleet", "publish", "--key", "release.key"}, more...), "one")
	}

	// A mirror that has nothing of it: components and images are named, once each.
	s.refuses(outcome.Refused, []string{
		"press-07", "components/line-monitor@", "components/sensor@", "it is not at the mirror " + mirror.Host,
	}, at("--mirror", host+"="+mirror.URL)...)
	s.refuses(outcome.Refused, []string{"it is not at the mirror " + mirror.Host}, "fleet", "check", "--mirror", host+"="+mirror.URL, "one")
	s.refuses(outcome.Misused, []string{"hosts.toml has no mirror"}, at("--mirror", host)...)
	s.refuses(outcome.Misused, []string{"is not HOST=ENDPOINT"}, at("--mirror", "=x")...)
	down := testenv.Registry(t, testenv.Lax)
	down.Down()
	s.refuses(outcome.Temporary, []string{"mirror " + down.Host}, at("--mirror", host+"="+down.URL)...)

	// The mirror of hosts.toml has all.
	s.write("certs.d/"+host+"/hosts.toml", fmt.Sprintf("server = %q\n[host.%q]\ncapabilities = [\"pull\"]\n", s.server.URL, s.server.URL))
	s.do(outcome.OK, "fleet", "check", "--mirror", host, "one")
	s.write("certs.d/"+host+"/hosts.toml", fmt.Sprintf("server = %q\n", s.server.URL))

	// A layer of an image is gone.
	s.server.Faults.Add(testenv.Rule{Method: http.MethodHead, Path: "/library/nats/blobs/", Effect: testenv.Status(http.StatusNotFound, 0)})
	s.refuses(outcome.Refused, []string{"image " + host + "/library/nats:2.12@sha256:", "of it is not at " + strings.TrimPrefix(s.server.URL, "http://")}, publish...)
	s.refuses(outcome.Refused, []string{"image " + host + "/library/nats:2.12@sha256:"}, "fleet", "plan", "one")
	s.server.Faults.Clear()
	s.server.Faults.Add(testenv.Rule{Method: http.MethodGet, Path: "/library/nats/manifests/sha256", Effect: testenv.Status(http.StatusNotFound, 0)})
	s.refuses(outcome.Refused, []string{"image " + host + "/library/nats:2.12@sha256:", "it is not at "}, publish...)
	s.server.Faults.Clear()
	// Its registry lets nobody look: that is told, and need not keep devices from it.
	s.server.Faults.Add(testenv.Rule{Path: "/library/nats/", Effect: testenv.Status(http.StatusForbidden, 0)})
	if out := s.do(outcome.OK, "fleet", "check", "one"); !strings.Contains(out, "could not be checked") {
		t.Errorf("nobody is told that an image could not be checked\n%s", out)
	}
	s.server.Faults.Clear()

	s.do(outcome.OK, publish...)
	s.do(outcome.OK, publish...)
}

// Who signed components and images is asked before, by the policy that devices have.
func TestContentHasToBeSigned(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.stock()
	s.oneDevice("one", "line-monitor", "sensor")
	s.write("strict.yaml", "rules:\n  - {scope: "+host+"/plant/**, artifacts: [state, component], keys: [{name: release, file: release.pub}]}\n")
	publish := []string{"fleet", "publish", "--key", "release.key", "--policy", "strict.yaml", "one"}
	s.refuses(outcome.Refused, []string{"press-07", "components/line-monitor@", "components/sensor@", "not signed"}, publish...)
	s.refuses(outcome.Refused, []string{"components/sensor@"}, "fleet", "check", "--policy", "strict.yaml", "one")
	s.do(outcome.OK, "sign", "--key", "release.key", monitor+":1.4.0")
	s.refuses(outcome.Refused, []string{"components/sensor@"}, publish...)
	s.do(outcome.OK, "sign", "--key", "release.key", host+"/plant/components/sensor:1.4.0")
	s.do(outcome.OK, "fleet", "check", "--policy", "strict.yaml", "one")
	s.do(outcome.OK, publish...)
	// Each digest once, however many devices.
	var devices strings.Builder
	for i := range 20 {
		fmt.Fprintf(&devices, "  - {id: press-%d}\n", 20+i)
	}
	s.write("one/fleet.yaml", string(mustRead(t, "one/fleet.yaml"))+devices.String())
	s.server.Faults.Forget()
	s.do(outcome.Differs, "fleet", "plan", "--policy", "strict.yaml", "one")
	if n := len(s.server.Faults.Requests("", "/components/sensor/referrers/")); n != 1 {
		t.Errorf("the signatures of a component were asked for %d times, want once", n)
	}
	s.write("images.yaml", "rules:\n  - {scope: "+host+"/**, artifacts: [state, image], keys: [{name: release, file: release.pub}]}\n")
	s.refuses(outcome.Refused, []string{"image " + host + "/library/caddy:2.10@", "image " + host + "/library/nats:2.12@", "not signed"}, "fleet", "publish", "--key", "release.key", "--policy", "images.yaml", "one")
}

// Two deployments that want one port of the device are told before the device has to refuse them.
func TestContentClashes(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.copyProject("twin", "8080:8081")
	s.do(outcome.OK, "component", "push", "-q", "./twin", host+"/plant/components/twin:1.4.0")
	s.copyProject("local", "127.0.0.1:8081:80")
	s.do(outcome.OK, "component", "push", "-q", "./local", host+"/plant/components/local:1.4.0")
	s.oneDevice("one", "line-monitor", "twin", "sensor", "local")
	s.refuses(outcome.Refused, []string{
		"press-07", "port 8080/tcp is used by service web of line-monitor and by service web of twin",
		"port 8081/tcp is used by service web of sensor and by service web of local",
	}, "fleet", "publish", "--key", "release.key", "one")
	s.refuses(outcome.Refused, []string{"port 8080/tcp"}, "fleet", "check", "one")
	if err := os.RemoveAll("one"); err != nil {
		t.Fatal(err)
	}
	s.oneDevice("one", "line-monitor", "sensor")
	s.do(outcome.OK, "fleet", "publish", "--key", "release.key", "one")
}
