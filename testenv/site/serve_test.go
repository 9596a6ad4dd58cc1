package site

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

// served is a medium that longshore serve answers from, with TLS, inside the site.
type served struct {
	*testenv.Process
	url, ca string
}

// serve starts longshore serve at the site.
func (s *site) serve(port int, medium string) *served {
	s.Helper()
	ca, cert, key := testenv.ServerPair(s, "127.0.0.1")
	address := fmt.Sprintf("127.0.0.1:%d", port) // inside the namespace, which has no other listener
	p, err := s.box.Start(fmt.Sprintf("serve-%d", port), s.desk.Environment(), "nsenter", "--net="+s.island.Network,
		filepath.Join(s.desk.Bin, "longshore"), "serve", "--debug", "--listen", address, "--tls-cert", cert, "--tls-key", key, medium)
	if err != nil {
		s.Fatal(err)
	}
	testenv.Eventually(s, settled, "longshore serve", func() error {
		if !strings.Contains(p.Log(100), "https://"+address) {
			return p.Running()
		}
		return nil
	})
	return &served{p, "https://" + address, ca}
}

// away does something while the medium is not at the site.
func (s *served) away(t *testing.T, do func()) {
	t.Helper()
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	do()
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
}

// bytesOf is what the files of a medium have, by name.
func (s *site) bytesOf(medium string) (sum int64) {
	s.Helper()
	err := filepath.WalkDir(medium, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			sum += info.Size()
		}
		return err
	})
	if err != nil {
		s.Fatal(err)
	}
	return sum
}

// A site without a registry: longshore serve answers from a stick, over TLS, and brings empty devices up. For one of them it is the
// registry, for the other a mirror of it; states name the centre's registry, which the site cannot reach. Updates come on the
// same stick, and as a difference on another one. The site's policy decides.
func TestServedSite(t *testing.T) {
	s := open(t)
	export := func(stick string, flags ...string) string {
		t.Helper()
		dir := filepath.Join(s.box.Dir(), stick)
		s.does(s.centre, append(append([]string{"export"}, flags...), states, dir)...)
		return dir
	}
	stick := export("stick", "--policy", s.policy)
	first := s.serve(5000, stick)
	s.hosts(s.devices[0], fmt.Sprintf("server = %q\nca = %q\n", first.url, first.ca))
	s.hosts(s.devices[1], fmt.Sprintf("server = \"https://%s\"\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n  ca = %q\n", host, first.url, first.ca))
	s.boot(s.devices[0])
	s.settle(1, s.devices[0])
	if n := s.island.Strays(t); n != 0 {
		t.Errorf("%d packets wanted to leave the site", n)
	}
	s.boot(s.devices[1]) // it tries the registry itself, too, where a mirror has no more signatures
	s.settle(1, s.devices[1])

	// The stick goes home, gets what it lacks, and comes back.
	before := s.bytesOf(stick)
	s.component("1.1.0", "two")
	s.publish("1.1.0", "release")
	first.away(t, func() { export("stick", "--policy", s.policy) })
	if more := s.bytesOf(stick) - before; more > 64<<10 {
		t.Errorf("%d bytes were written onto the stick again", more)
	}
	s.settle(2, s.devices...)

	// A difference on another stick: what it leaves out is on the first one.
	s.desk.Registry = &testenv.RegistryServer{CAFile: first.ca}
	inventory := filepath.Join(s.box.Dir(), "inventory.json")
	s.does(s.desk, "site", "inventory", "--file", inventory, states, strings.TrimPrefix(first.url, "https://"), "--trust", trust)
	s.component("1.2.0", "three")
	s.publish("1.2.0", "release")
	second := s.serve(5001, export("difference", "--policy", s.policy, "--since", inventory))
	if size := s.bytesOf(filepath.Join(s.box.Dir(), "difference")); size > 64<<10 {
		t.Errorf("the difference has %d bytes", size)
	}
	for _, d := range s.devices {
		s.hosts(d, fmt.Sprintf("server = %q\nca = %q\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n  ca = %q\n", first.url, first.ca, second.url, second.ca))
		s.restart(d)
	}
	s.settle(3, s.devices...)

	// What another key signed is served, and refused; without the sticks everything runs on.
	running := world.Processes(s.status(s.devices[0]))
	s.publish("1.0.0", "release-b", "--verify-key", s.centre.Path("release.pub"))
	first.away(t, func() { export("stick", "--no-verify") })
	second.away(t, func() { export("difference", "--no-verify", "--since", inventory) })
	s.refuse(codes.SignatureInvalid, 3)
	for _, server := range []*served{first, second} {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
		if log := server.Log(1 << 20); strings.Contains(log, "level=ERROR") {
			t.Errorf("log of %s:\n%s", server.url, log)
		}
	}
	if now := world.Processes(s.status(s.devices[0])); fmt.Sprint(now) != fmt.Sprint(running) || len(now) == 0 {
		t.Errorf("containers changed: %v, before %v", now, running)
	}
}

// restart ends a device's agent and starts it again: it reads hosts.toml at its start.
func (s *site) restart(d *world.World) {
	s.Helper()
	if err := d.Agent.Stop(); err != nil {
		s.Fatal(err)
	}
	if err := d.Boot(s.Context()); err != nil {
		s.Fatal(err)
	}
}
