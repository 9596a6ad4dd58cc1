// Package site carries releases to a site without a network connection, and reports back, with the real programs.
package site

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.LeakOptions()...) }

const (
	host   = "harbor.acme.example" // as every reference names the centre's registry; no name server knows it
	states = host + "/plant/state"
	trust  = host + "/plant/trust"
	pool   = "10.%d.0.0/16"

	settled = 3 * time.Minute
)

// site is what the test has: a centre, and a site that no route leads to.
type site struct {
	*testing.T
	box     *testenv.Box
	island  *testenv.Island
	centre  *world.World
	desk    *world.World   // who imports at the site
	devices []*world.World // of the site
	server  *testenv.RegistryServer
	policy  string // file of the trust policy
}

// serves lets a world find the centre's registry at an address.
func (s *site) serves(w *world.World, url string) { s.hosts(w, fmt.Sprintf("server = %q\n", url)) }

// hosts writes a world's hosts.toml for the centre's registry.
func (s *site) hosts(w *world.World, text string) {
	s.Helper()
	dir := w.Path("certs.d/" + host)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/hosts.toml", []byte(text), 0o644)); err != nil {
		s.Fatal(err)
	}
}

// person is a world without a device: a person with our programs.
func (s *site) person(name, network string) *world.World {
	s.Helper()
	dir := filepath.Join(s.box.Dir(), name)
	w := &world.World{Options: world.Options{
		Box: s.box, Name: name, Dir: dir, Bin: filepath.Join(s.box.Dir(), "bin"), Host: host, Network: network,
		Registry: &testenv.RegistryServer{}, Env: []string{"LONGSHORE_CERTS_DIR=" + filepath.Join(dir, "certs.d")},
	}}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		s.Fatal(err)
	}
	return w
}

// does runs longshore.
func (s *site) does(w *world.World, args ...string) string {
	s.Helper()
	out, err := w.Run(s.Context(), "longshore", args...)
	if err != nil {
		s.Fatal(err)
	}
	return out
}

// open builds both sides: a centre that has published a first generation, and empty devices. No way leads from one to the other, and the
// site has no registry.
func open(t *testing.T) *site {
	t.Helper()
	ctx := t.Context()
	s := &site{T: t, island: testenv.NewIsland(t, "127.0.0.1", "10.234.0.0/15")}
	s.box = testenv.NewBox(t)
	if err := testenv.BuildOwn(ctx, filepath.Join(s.box.Dir(), "bin"), testenv.OwnPrograms()...); err != nil {
		t.Fatal(err)
	}
	s.centre, s.desk = s.person("centre", ""), s.person("desk", s.island.Network)
	s.centre.Registry = testenv.Registry(t, testenv.Distribution, testenv.WithStorage(s.centre.Path("registry")))
	s.serves(s.centre, s.centre.Registry.URL)
	daemon, err := testenv.StartContainerd(ctx, testenv.DaemonOptions{Box: s.box}) // agents pull for it: it needs no network
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"press-07", "press-08"} {
		w := s.person(name, s.island.Network)
		w.Device, w.Pool, w.Poll = name, fmt.Sprintf(pool, 234+i), time.Second
		w.Containerd, w.Namespace = daemon, daemon.Namespace+"-"+name
		w.Name = fmt.Sprintf("s%d", i)
		s.devices = append(s.devices, w)
	}
	image, err := testenv.SoftwareImage(ctx, os.Stderr, "toolbox", testenv.HostPlatform())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.centre.Registry.Push(ctx, "plant/toolbox:1", image); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"root", "release", "release-b"} {
		s.does(s.centre, "key", "generate", s.centre.Path(name))
	}
	s.policy = s.centre.Path("trust.yaml")
	s.does(s.centre, "trust", "init", "--signer", s.centre.Path("root.pub"), "--key", s.centre.Path("release.pub"), "--file", s.policy, trust)
	s.does(s.centre, "trust", "push", "--key", s.centre.Path("root.key"), s.policy, trust)
	s.component("1.0.0", "one")
	s.publish("1.0.0", "release")
	return s
}

// boot sets a device up and starts it.
func (s *site) boot(d *world.World, flags ...string) {
	s.Helper()
	if err := d.Init(s.Context(), append([]string{"--policy", s.policy}, flags...)...); err != nil {
		s.Fatal(err)
	}
	s.certs(d)
	if err := d.Boot(s.Context()); err != nil {
		s.Fatal(err)
	}
}

// component publishes a version of the application at the centre.
func (s *site) component(version, text string) {
	s.Helper()
	dir := s.centre.Path("line")
	compose := fmt.Sprintf("services: {web: {image: %s/plant/toolbox:1, command: [serve, '8080', %q]}}\n", host, text)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/compose.yaml", []byte(compose), 0o644)); err != nil {
		s.Fatal(err)
	}
	s.does(s.centre, "component", "push", dir, host+"/plant/components/line:"+version)
}

// publish signs a generation for each device at the centre.
func (s *site) publish(version, key string, flags ...string) {
	s.Helper()
	for _, d := range s.devices {
		s.does(s.centre, append([]string{
			"state", "push", "--device", d.Device, "--key", s.centre.Path(key + ".key"),
			"--component", host + "/plant/components/line:" + version, states,
		}, flags...)...)
	}
}

// carry exports at the centre what the site lacks, and imports it at the site.
func (s *site) carry(stick string) {
	s.Helper()
	inventory := s.box.Dir() + "/" + stick + ".json"
	if err := os.WriteFile(inventory, []byte(s.does(s.desk, "site", "inventory", states, s.server.Host, "--plain-http", "--trust", trust)), 0o644); err != nil {
		s.Fatal(err)
	}
	dir := filepath.Join(s.box.Dir(), stick)
	s.does(s.centre, "export", "--policy", s.centre.Path("trust.yaml"), "--since", inventory, states, dir)
	s.does(s.desk, "import", "--policy", s.centre.Path("trust.yaml"), "--plain-http", dir, s.server.Host)
}

// run waits until every device runs a generation. None has asked for an address elsewhere.
func (s *site) run(generation uint64) {
	s.Helper()
	s.settle(generation, s.devices...)
	if n := s.island.Strays(s); n != 0 {
		s.Errorf("%d packets wanted to leave the site", n)
	}
}

// refuse waits until every device reports that it refuses a signature, and still runs the same.
func (s *site) refuse(code codes.Code, running uint64) {
	s.Helper()
	for _, d := range s.devices {
		testenv.Eventually(s, settled, d.Device+" refuses what is wrongly signed", func() error {
			st := s.status(d)
			told := slices.ContainsFunc(st.Problems, func(p status.Problem) bool { return p.Code == code })
			if !told || st.Committed.Generation != running {
				return fmt.Errorf("generation %d, problems %+v", st.Committed.Generation, st.Problems)
			}
			return nil
		})
	}
}

// settle waits until devices run a generation.
func (s *site) settle(generation uint64, devices ...*world.World) {
	s.Helper()
	for _, d := range devices {
		if err := d.Settled(s.Context(), generation, settled); err != nil {
			s.Fatalf("%s: %v\n%s", d.Device, err, d.Logs())
		}
	}
}

func (s *site) status(d *world.World) *status.Status {
	s.Helper()
	st, err := d.Status(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return st
}

// Between centre and site there is a thin link at first, and then a stick that is carried. The site is set up, updated, rolled
// back, and follows a change of keys; its devices verify everything, and nothing at the site ever asks for an address elsewhere.
func TestCarriedSite(t *testing.T) {
	s := open(t)
	s.server = testenv.Registry(t, testenv.Distribution, testenv.WithStorage(s.desk.Path("registry")), testenv.WithNetwork(s.island.Network))
	policy := s.policy

	// The thin link: the desk at the site reaches the centre's registry, at 8 MB a second.
	link := newThinLink(t, s.island.Address+":0", s.centre.Registry.Host, 8<<20, time.Millisecond)
	s.serves(s.desk, "http://"+link.Address)
	s.does(s.desk, "mirror", "--policy", policy, "--plain-http", states, s.server.Host)
	t.Logf("set-up: %d bytes came over the link, %d went", link.Down.Load(), link.Up.Load())
	before := link.Down.Load()
	s.does(s.desk, "mirror", "--policy", policy, "--plain-http", states, s.server.Host)
	t.Logf("again: %d bytes came over the link", link.Down.Load()-before)
	link.Cut()
	s.centre.Registry.Faults.Forget()
	for _, d := range s.devices {
		s.serves(d, s.server.URL)
		s.boot(d, "--report-registry")
	}
	s.run(1)

	// An update, and back again, on sticks.
	s.component("1.1.0", "two")
	s.publish("1.1.0", "release")
	s.carry("update")
	s.run(2)
	for _, d := range s.devices {
		s.does(s.centre, "state", "rollback", "--device", d.Device, "--to", "1", "--key", s.centre.Path("release.key"), states)
	}
	s.carry("rollback")
	s.run(3)

	// The release key is stolen. The new policy and what the new key signs travel together.
	s.does(s.centre, "trust", "revoke", "--key", s.centre.Path("root.key"), "--reason", "stolen", "--successor", s.centre.Path("release-b.pub"), "release", trust)
	s.publish("1.1.0", "release-b", "--verify-key", s.centre.Path("release.pub"))
	s.carry("rotation")
	s.run(4)
	for _, d := range s.devices {
		if st := s.status(d); st.Trust.Source != status.TrustFromRegistry || st.Trust.Version != 2 {
			t.Errorf("%s decides by %+v", d.Device, st.Trust)
		}
	}

	s.reportsReturn()

	// What the thief signs gets onto no stick, and one that was made without verification brings it to no device.
	running := world.Processes(s.status(s.devices[0]))
	s.publish("1.0.0", "release", "--replace", "--verify-key", s.centre.Path("release-b.pub"))
	stolen := filepath.Join(s.box.Dir(), "stolen")
	if _, err := s.centre.Run(t.Context(), "longshore", "export", "--policy", policy, states, stolen); err == nil || !strings.Contains(err.Error(), "which the policy has revoked") {
		t.Errorf("export: %v", err)
	}
	s.does(s.centre, "export", "--no-verify", states, stolen)
	if _, err := s.desk.Run(t.Context(), "longshore", "import", "--policy", policy, "--plain-http", stolen, s.server.Host); err == nil || !strings.Contains(err.Error(), "which the policy has revoked") {
		t.Errorf("import: %v", err)
	}
	s.does(s.desk, "import", "--no-verify", "--plain-http", stolen, s.server.Host)
	s.refuse(codes.KeyRevoked, 4)
	if now := world.Processes(s.status(s.devices[0])); fmt.Sprint(now) != fmt.Sprint(running) {
		t.Errorf("containers changed: %v, before %v", now, running)
	}
	if n := s.island.Strays(t); n != 0 {
		t.Errorf("%d packets wanted to leave the site", n)
	}
	for _, r := range s.centre.Registry.Faults.Requests("", "") {
		if strings.HasPrefix(r.Agent, "longshore-agent") {
			t.Errorf("a device asked the centre: %+v", r)
		}
	}
}

// reportsReturn carries what the devices signed to the centre: what runs where is proven there.
func (s *site) reportsReturn() {
	s.Helper()
	stick, keys := filepath.Join(s.box.Dir(), "reports"), s.centre.Path("keys")
	if err := os.Mkdir(keys, 0o755); err != nil {
		s.Fatal(err)
	}
	for _, d := range s.devices {
		key, err := d.Run(s.Context(), "longshore-agent", "key", "--config", d.Path("etc/agent.yaml"))
		if err != nil {
			s.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(keys, d.Device+".pub"), []byte(key), 0o644); err != nil {
			s.Fatal(err)
		}
		testenv.Eventually(s, settled, d.Device+" has told generation 4", func() error {
			out, err := s.desk.Run(s.Context(), "longshore", "verify", "device", "--key", filepath.Join(keys, d.Device+".pub"), "--plain-http",
				s.server.Host+"/plant/state:"+d.Device)
			if err == nil && (!strings.Contains(out, "generation 4") || !strings.Contains(out, "installed since")) {
				err = errors.New(out)
			}
			return err
		})
	}
	s.does(s.desk, "export", "--reports", "--plain-http", s.server.Host+"/plant/state", stick)
	s.does(s.centre, "import", "--reports", "--device-keys", keys, stick, states)
	for _, d := range s.devices {
		out := s.does(s.centre, "verify", "device", "--key", filepath.Join(keys, d.Device+".pub"), "--state-key", s.centre.Path("release-b.pub"), states+":"+d.Device)
		if !strings.Contains(out, "generation 4") {
			s.Errorf("at the centre %s runs:\n%s", d.Device, out)
		}
	}
	s.endpointHears(stick, keys)
}

// endpointHears hands the reports in to a fleet endpoint, and collects them from the stick into another one. Both then have every
// transition of each device, also those of generations that no report was carried of.
func (s *site) endpointHears(stick, keys string) {
	s.Helper()
	serve := func(name string) (url string) {
		port, err := testenv.FreePort()
		if err != nil {
			s.Fatal(err)
		}
		at := fmt.Sprintf("127.0.0.1:%d", port)
		process, err := s.box.Start("longshore-fleet-"+name, nil, filepath.Join(s.box.Dir(), "bin", "longshore-fleet"), "serve", "--database", s.centre.Path(name+".db"), "--listen", at, "--report-keys", keys)
		if err != nil {
			s.Fatal(err)
		}
		testenv.Eventually(s, settled, "longshore-fleet answers", func() error {
			res, err := http.Get("http://" + at + "/healthz")
			if err != nil {
				log, _ := os.ReadFile(process.LogFile)
				return fmt.Errorf("%w\n%s", err, log)
			}
			return res.Body.Close()
		})
		return "http://" + at
	}
	s.Cleanup(http.DefaultClient.CloseIdleConnections)
	handed := serve("handed")
	for _, want := range []string{"carried", "there"} {
		var told struct {
			Reports []struct{ Outcome, Note string }
		}
		out := s.does(s.centre, "import", "-o", "json", "--reports", "--endpoint", handed, stick)
		if err := json.Unmarshal([]byte(out), &told); err != nil || len(told.Reports) != len(s.devices) {
			s.Fatalf("%v\n%s", err, out)
		}
		for _, r := range told.Reports {
			if r.Outcome != want || r.Note != "" {
				s.Errorf("handed in: %+v, want %s", r, want)
			}
		}
	}
	if out, err := s.centre.Run(s.Context(), "longshore-fleet", "collect", "--keys", keys, "--database", s.centre.Path("collected.db"), "oci-layout:"+filepath.Join(stick, "reports")); err != nil {
		s.Fatalf("%v\n%s", err, out)
	}
	for _, url := range []string{handed, serve("collected")} {
		for _, d := range s.devices {
			s.hasHistory(url, d.Device)
		}
	}
}

// hasHistory checks what an endpoint knows of a device that has run four generations of one application.
func (s *site) hasHistory(url, device string) {
	s.Helper()
	var got struct {
		Capabilities json.RawMessage
		Deployments  []struct {
			State string
			Since time.Time
		} `json:"deploymentDetails"`
	}
	res, err := http.Get(url + "/fleet/v1/devices/" + device)
	if err == nil {
		err = errors.Join(json.NewDecoder(res.Body).Decode(&got), res.Body.Close())
	}
	if err != nil || len(got.Deployments) != 1 {
		s.Fatalf("%s at %s: %+v, %v", device, url, got, err)
	}
	list := (&artifacts.CurrentState{Sequence: math.MaxUint64, Capabilities: got.Capabilities}).Transitions().List
	var installed []uint64
	for _, x := range list {
		if was := len(installed); x.State == margo.StateInstalled && (was == 0 || installed[was-1] != x.Generation) {
			installed = append(installed, x.Generation)
		}
	}
	now := got.Deployments[0]
	if fmt.Sprint(installed) != "[1 2 3 4]" || now.State != "installed" || !slices.ContainsFunc(list, func(x artifacts.CurrentTransition) bool {
		return x.State == margo.StateInstalled && x.At.Truncate(time.Millisecond).Equal(now.Since)
	}) {
		s.Errorf("%s at %s: %+v, and %+v", device, url, now, list)
	}
}

// certs configures the folder of hosts.toml in the device's agent.
func (s *site) certs(d *world.World) {
	s.Helper()
	file := d.Path("etc/agent.yaml")
	data, err := os.ReadFile(file)
	if err != nil {
		s.Fatal(err)
	}
	text := strings.Replace(string(data), "registry:\n", "registry:\n  certsDir: "+d.Path("certs.d")+"\n", 1)
	if text == string(data) {
		text += "registry:\n  certsDir: " + d.Path("certs.d") + "\n"
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		s.Fatal(err)
	}
}
