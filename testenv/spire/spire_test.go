package spire

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.LeakOptions()...) }

const (
	domain  = "plant.acme.example"
	manager = "spiffe://" + domain + "/margo/wfm/main"
	node    = "spiffe://" + domain + "/node"
	settled = 3 * time.Minute
	svidTTL = time.Minute // SPIRE's agent renews at half of it, looking every five seconds
)

const serverConfig = `
server {
  bind_address = "127.0.0.1"
  bind_port = "%d"
  trust_domain = "` + domain + `"
  data_dir = "%[2]s/server"
  socket_path = "%[2]s/server.sock"
  default_x509_svid_ttl = "%[3]s"
}
plugins {
  DataStore "sql" {
    plugin_data {
      database_type = "sqlite3"
      connection_string = "%[2]s/server/datastore.sqlite3"
    }
  }
  NodeAttestor "join_token" { plugin_data {} }
  KeyManager "memory" { plugin_data {} }
}
`

const agentConfig = `
agent {
  data_dir = "%[2]s/agent"
  server_address = "127.0.0.1"
  server_port = "%[1]d"
  socket_path = "%[2]s/agent.sock"
  trust_bundle_path = "%[2]s/bundle.pem"
  trust_domain = "` + domain + `"
}
plugins {
  NodeAttestor "join_token" { plugin_data {} }
  KeyManager "memory" { plugin_data {} }
  WorkloadAttestor "unix" {
    plugin_data { discover_workload_path = true }
  }
}
`

// site is a machine where SPIRE, a manager and a device run.
type site struct {
	*world.World
	t      *testing.T
	server string // SPIRE's program
	api    string // address of the Workload API
	url    string // of the manager, by mutual TLS
	open   string // its other address
	main   *testenv.Process
}

func (s *site) write(name, format string, args ...any) {
	s.t.Helper()
	if err := os.WriteFile(s.Path(name), fmt.Appendf(nil, format, args...), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) start(name string, argv ...string) *testenv.Process {
	s.t.Helper()
	p, err := s.Box.Start(name, s.Environment(), argv...)
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// do runs a command of SPIRE's server, again until the server answers.
func (s *site) do(args ...string) (out string) {
	s.t.Helper()
	args = append([]string{s.server}, append(args, "-socketPath", s.Path("spire/server.sock"))...)
	testenv.Eventually(s.t, settled, strings.Join(args[1:3], " "), func() (err error) {
		out, err = s.Box.Output(s.t.Context(), s.Environment(), args...)
		return err
	})
	return out
}

func (s *site) port() uint16 {
	s.t.Helper()
	port, err := testenv.FreePort()
	if err != nil {
		s.t.Fatal(err)
	}
	return port
}

func open(t *testing.T) *site {
	t.Helper()
	box := testenv.NewBox(t)
	s := &site{t: t, server: testenv.Program(t, "spire-server")}
	agent := testenv.Program(t, "spire-agent")
	var err error
	if s.World, err = world.New(t.Context(), world.Options{Box: box, Name: "spire", Pool: "10.207.0.0/16"}); err != nil {
		t.Fatal(err)
	}
	home, port := s.Path("spire"), s.port()
	for _, dir := range []string{"spire", "spire/server", "spire/agent"} {
		if err := os.MkdirAll(s.Path(dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	s.write("spire/server.conf", serverConfig, port, home, svidTTL)
	s.write("spire/agent.conf", agentConfig, port, home)
	s.start("spire-server", s.server, "run", "-config", s.Path("spire/server.conf"))
	s.write("spire/bundle.pem", "%s", s.do("bundle", "show"))
	token := strings.TrimSpace(strings.TrimPrefix(s.do("token", "generate", "-spiffeID", node), "Token: "))
	for program, id := range map[string]string{"longshore-fleet": manager, "longshore-agent": manager + "/client/" + s.Device} {
		s.do("entry", "create", "-parentID", node, "-spiffeID", id, "-selector", "unix:path:"+filepath.Join(s.Bin, program))
	}
	s.start("spire-agent", agent, "run", "-config", s.Path("spire/agent.conf"), "-joinToken", token)
	s.api = "unix://" + s.Path("spire/agent.sock")
	return s
}

// serve starts the manager, and again until SPIRE's agent knows of its entry, as systemd does.
func (s *site) serve() {
	s.t.Helper()
	secure, plain := fmt.Sprintf("127.0.0.1:%d", s.port()), fmt.Sprintf("127.0.0.1:%d", s.port())
	s.url, s.open = "https://"+secure, "http://"+plain
	s.write("clients.yaml", "accept: [%s]\n", s.Device)
	s.main = s.start("longshore-fleet", filepath.Join(s.Bin, "longshore-fleet"), "serve", "--database", s.Path("fleet.db"), "--listen", plain, "--mtls-listen", secure,
		"--workload-api", s.api, "--clients", s.Path("clients.yaml"), "--state", s.Reference("plant/state"), "--state-interval", "1s")
	testenv.Eventually(s.t, settled, "the manager answers", func() error {
		if err := s.main.Running(); err != nil {
			return errors.Join(err, s.main.Start(), errors.New(s.main.Log(5)))
		}
		_, err := testenv.Get(s.t.Context(), s.open+"/healthz")
		return err
	})
}

// certificates are the expiry dates of those that a program had from the Workload API, as it logs them.
func (s *site) certificates(p *testenv.Process) map[string]bool {
	s.t.Helper()
	log, err := os.ReadFile(p.LogFile)
	if err != nil {
		s.t.Fatal(err)
	}
	out := map[string]bool{}
	for _, m := range regexp.MustCompile(`certificate received[^\n]*notAfter=(\S+)`).FindAllSubmatch(log, -1) {
		out[string(m[1])] = true
	}
	return out
}

// Manager and device have their identities from SPIRE, each from the one socket by what program it is: the device runs what the manager
// names, and reports. It goes on when SPIRE has renewed both certificates.
func TestWorkloadAPI(t *testing.T) {
	if !testenv.Nightly() {
		t.Skip("SPIRE takes minutes to build: LONGSHORE_NIGHTLY=1 runs it")
	}
	s := open(t)
	image, err := testenv.SoftwareImage(t.Context(), os.Stderr, "toolbox", testenv.HostPlatform())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Registry.Push(t.Context(), "plant/toolbox:1", image); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Run(t.Context(), "longshore", "key", "generate", s.Path("release")); err != nil {
		t.Fatal(err)
	}
	publish := func(version string) {
		t.Helper()
		component, err := s.Component(t.Context(), "web", version, fmt.Sprintf("services: {web: {image: %s/plant/toolbox:1, command: [serve, '8080', '%s']}}\n", s.Host, version))
		if err == nil {
			err = s.Release(t.Context(), component)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	publish("1.0.0")
	s.serve()
	if err := errors.Join(s.Init(t.Context(), "--margo", s.url, "--margo-workload-api", s.api), s.Boot(t.Context())); err != nil {
		t.Fatal(err)
	}
	settle := func(generation uint64) {
		t.Helper()
		if err := s.Settled(t.Context(), generation, settled); err != nil {
			t.Fatalf("%v\n%s\nmanager:\n%s", err, s.Logs(), s.main.Log(20))
		}
	}
	settle(1)
	testenv.Eventually(t, settled, "the manager has the device's report", func() error {
		body, err := testenv.Get(t.Context(), s.open+"/fleet/v1/deployments?device="+s.Device)
		if err == nil && !strings.Contains(string(body), `"installed"`) {
			err = fmt.Errorf("deployments:\n%s", body)
		}
		return err
	})
	testenv.Eventually(t, 3*svidTTL, "SPIRE renews both certificates", func() error {
		if m, d := s.certificates(s.main), s.certificates(s.Agent); len(m) < 3 || len(d) < 3 {
			return fmt.Errorf("the manager had %v, the device %v", m, d)
		}
		return nil
	})
	publish("1.1.0")
	settle(2)
	if out, err := s.Control(t.Context(), "check-config"); err != nil {
		t.Errorf("check-config: %v\n%s", err, out)
	}
}
