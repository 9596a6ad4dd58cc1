// Package enroll enrolls devices with the real programs, as docs/enroll.md says: a manager, a registry with TLS and a password, and
// devices on containerd that have nothing but their program. What an enrolled device runs, and what is left of one that was removed, is
// seen from outside.
package enroll

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/bcrypt"

	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.LeakOptions()...) }

const settled = 3 * time.Minute

// plant is the manager's side: who publishes, and who decides about devices.
type plant struct {
	*world.World
	t           *testing.T
	url         string // of the manager, by mutual TLS
	open        string // its other address
	fingerprint string // that it logs
	manager     *testenv.Process
}

func openPlant(t *testing.T) *plant {
	t.Helper()
	ctx := t.Context()
	box := testenv.NewBox(t)
	p := &plant{t: t}
	var err error
	if p.World, err = world.New(ctx, world.Options{Box: box, Name: "plant", Pool: "10.204.0.0/16", Secure: true}); err != nil {
		t.Fatal(err)
	}
	image, err := testenv.SoftwareImage(ctx, os.Stderr, "toolbox", testenv.HostPlatform())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Registry.Push(ctx, "plant/toolbox:1", image); err != nil {
		t.Fatal(err)
	}
	if err := p.Login(ctx); err != nil {
		t.Fatal(err)
	}
	p.run("longshore", "key", "generate", p.Path("release"))
	p.write("trust.yaml", "rules: [{scope: %s/plant/**, keys: [{name: release, file: release.pub}]}]\n", p.Host)
	p.write("robot.password", "%s\n", p.Registry.Password)
	p.serve()
	return p
}

// serve starts the manager, and reads in its log how devices know it.
func (p *plant) serve() {
	p.t.Helper()
	var at [2]string
	for i := range at {
		port, err := testenv.FreePort()
		if err != nil {
			p.t.Fatal(err)
		}
		at[i] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	p.url, p.open = "https://"+at[0], "http://"+at[1]
	p.settings("trust.yaml", "{registry: oci://"+p.Host+"/plant/state}")
	var err error
	p.manager, err = p.Box.Start("longshore-fleet", p.Environment(), filepath.Join(p.Bin, "longshore-fleet"), "serve", "--database", p.Path("fleet.db"),
		"--listen", at[1], "--mtls-listen", at[0], "--enroll", p.Path("enroll.yaml"), "--state", p.Reference("plant/state"), "--state-interval", "1s", "--ca-file", p.Registry.CAFile)
	if err != nil {
		p.t.Fatal(err)
	}
	p.fingerprint = p.logged(p.manager, `fingerprint=(sha256:[0-9a-f]{64})`)
}

// settings says what the next device receives.
func (p *plant) settings(trust, source string) {
	p.t.Helper()
	p.write("enroll.yaml", "url: %s\ntrust: %s\nlifetime: 1m\nauthority: {trustDomain: plant.acme.example}\nsource: %s\nregistry:\n  caFile: %s\n  login: {host: '%s', username: %s, passwordFile: robot.password}\n",
		p.url, trust, source, p.Registry.CAFile, p.Host, p.Registry.Username)
}

// logged waits until a process has written something, and returns the part of it in parentheses.
func (p *plant) logged(from *testenv.Process, pattern string) (part string) {
	p.t.Helper()
	match := regexp.MustCompile(pattern + "()")
	testenv.Eventually(p.t, settled, "it logs "+pattern, func() error {
		log, err := os.ReadFile(from.LogFile)
		found := match.FindSubmatch(log)
		if err == nil && found == nil {
			err = fmt.Errorf("log:\n%s", log)
		}
		if err == nil {
			part = string(found[1])
		}
		return err
	})
	return part
}

// forget has the manager lose its database.
func (p *plant) forget() {
	p.t.Helper()
	p.manager.Kill()
	for _, name := range []string{"fleet.db", "fleet.db-wal", "fleet.db-shm"} {
		if err := os.RemoveAll(p.Path(name)); err != nil {
			p.t.Fatal(err)
		}
	}
	if err := p.manager.Start(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *plant) run(program string, args ...string) string {
	p.t.Helper()
	out, err := p.World.Run(p.t.Context(), program, args...)
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// fleet runs a command of the manager's operator, beside the server.
func (p *plant) fleet(args ...string) string {
	p.t.Helper()
	return p.run("longshore-fleet", append(args, "--database", p.Path("fleet.db"))...)
}

func (p *plant) write(name, format string, args ...any) {
	p.t.Helper()
	if err := os.WriteFile(p.Path(name), fmt.Appendf(nil, format, args...), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// publish signs a generation for a device: a service that answers text at an address, with a volume, and on the network
// of the device if it has one.
func (p *plant) publish(d *device, version, text string) {
	p.t.Helper()
	networks := ""
	if d.bus {
		networks = "networks: {default: {}, bus: {external: true}}\n"
	}
	reference, err := p.Component(p.t.Context(), "web-"+d.Device, version, fmt.Sprintf(
		"services: {web: {image: %s/plant/toolbox:1, command: [serve, '8080', %s], ports: ['%s:8080'], volumes: ['data:/data']%s}}\nvolumes: {data: {}}\n%s",
		p.Host, text, d.web, map[bool]string{true: ", networks: [default, bus]"}[d.bus], networks))
	if err != nil {
		p.t.Fatal(err)
	}
	p.run("longshore", "state", "push", "--device", d.Device, "--key", p.Path("release.key"), "--component", reference, p.Reference("plant/state"))
}

// password gives the registry another password for the only account, which the manager hands on from now on.
func (p *plant) password(text string) {
	p.t.Helper()
	hash, err := bcrypt.GenerateFromPassword([]byte(text), bcrypt.MinCost)
	if err != nil {
		p.t.Fatal(err)
	}
	p.write("registry1/htpasswd", "%s:%s\n", p.Registry.Username, hash)
	p.Registry.Password = text
	p.write("robot.password", "%s\n", text)
	if err := p.Login(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

// device is one that has containerd and our program, and no credential.
type device struct {
	*world.World
	p   *plant
	web string // address of its application
	bus bool   // it has a network that applications may join
}

func (p *plant) device(name, short, pool string) *device {
	p.t.Helper()
	port, err := testenv.FreePort()
	if err != nil {
		p.t.Fatal(err)
	}
	d := &device{p: p, web: fmt.Sprintf("127.0.0.1:%d", port)}
	home := filepath.Join(p.Dir, name, "home")
	if err := os.MkdirAll(home, 0o755); err != nil {
		p.t.Fatal(err)
	}
	d.World, err = world.New(p.t.Context(), world.Options{
		Box: p.Box, Name: short, Pool: pool, Device: name, Dir: p.Path(name), Bin: p.Bin, Registry: p.Registry,
		Containerd: p.Containerd, Namespace: p.Containerd.Namespace + "-" + name,
		Env: []string{"HOME=" + home, "DOCKER_CONFIG=" + home, "LONGSHORE_CA_FILE="}, // what the operator has is not on the device
	})
	if err == nil {
		err = d.Box.OwnTable(p.t.Context(), d.Out, d.Table())
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return d
}

// enroll starts longshore-agent enroll.
func (d *device) enroll(flags ...string) *testenv.Process {
	d.p.t.Helper()
	argv := append([]string{
		filepath.Join(d.Bin, "longshore-agent"), "enroll", d.p.url, "--report-key", "file", "--config-dir", d.Path("etc"), "--data-dir", d.Path("data"), "--run-dir", d.Path("run"),
		"--network-pool", d.Pool, "--network-table", d.Table(), "--containerd", d.Containerd.Address, "--containerd-namespace", d.Namespace, "--poll", "1s",
	}, flags...)
	e, err := d.Box.Start("enroll-"+d.Device, d.Environment(), argv...)
	if err != nil {
		d.p.t.Fatal(err)
	}
	return e
}

// configure lets the device ask the manager each second, and gives it a network that applications may join.
func (d *device) configure() {
	d.p.t.Helper()
	file := d.Path("etc/agent.yaml")
	data, err := os.ReadFile(file)
	if err != nil {
		d.p.t.Fatal(err)
	}
	text := strings.Replace(string(data), `interval: "5m"`, "interval: 1s", 1)
	shared := strings.Replace(text, "\nnetwork:\n", "\nnetwork:\n  shared: [{name: bus}]\n", 1)
	if text == string(data) || shared == text {
		d.p.t.Fatalf("%s:\n%s", file, data)
	}
	text = shared
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		d.p.t.Fatal(err)
	}
	d.bus = true
}

func (d *device) settle(generation uint64, limit time.Duration) {
	d.p.t.Helper()
	if err := d.Settled(d.p.t.Context(), generation, limit); err != nil {
		d.p.t.Fatalf("%s: %v\n%s", d.Device, err, d.Logs())
	}
}

// answers asks the application.
func (d *device) answers(want string) {
	d.p.t.Helper()
	testenv.Eventually(d.p.t, settled, "the application of "+d.Device+" answers", func() error {
		body, err := testenv.Get(d.p.t.Context(), "http://"+d.web+"/")
		if err == nil && !strings.Contains(string(body), want) {
			err = fmt.Errorf("answer %q, want %q", body, want)
		}
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, d.Logs())
		}
		return err
	})
}

func (d *device) processes() string {
	d.p.t.Helper()
	s, err := d.Status(d.p.t.Context())
	if err != nil {
		d.p.t.Fatal(err)
	}
	return fmt.Sprint(world.Processes(s))
}

// code is what the manager answers an empty report with the device's certificate.
func (d *device) code() (int, error) {
	pair, err := tls.LoadX509KeyPair(d.Path("data/identity/device.crt"), d.Path("etc/device.key"))
	if err != nil {
		return 0, err
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}}, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(d.p.t.Context(), http.MethodPut, d.p.url+"/api/v1/capabilities/"+d.Device, strings.NewReader("{}"))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := (&http.Client{Transport: tr, Timeout: settled}).Do(req)
	if err != nil {
		return 0, err
	}
	return res.StatusCode, res.Body.Close()
}

func (d *device) answered(want int) {
	d.p.t.Helper()
	testenv.Eventually(d.p.t, time.Minute, fmt.Sprintf("the manager answers %s with %d", d.Device, want), func() error {
		got, err := d.code()
		if err == nil && got != want {
			err = fmt.Errorf("answer %d", got)
		}
		return err
	})
}

// left lists what is on the device: files, mounts, what containerd has, and its networks.
func (d *device) left() error {
	var errs []error
	for _, dir := range []string{"etc", "data", "run"} {
		err := filepath.WalkDir(d.Path(dir), func(path string, e fs.DirEntry, err error) error {
			if err == nil && path != d.Path(dir) {
				err = fmt.Errorf("%s is left", path)
			}
			return err
		})
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	for _, what := range []string{"containers", "images", "snapshots", "leases"} {
		out, err := d.Containerd.Ctr(d.p.t.Context(), append([]string{"--namespace", d.Namespace, what}, map[string][]string{
			"containers": {"list", "--quiet"}, "images": {"list", "--quiet"}, "leases": {"list", "--quiet"}, "snapshots": {"list"},
		}[what]...)...)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		if what == "snapshots" {
			lines = append(lines[1:], "")[:max(len(lines)-1, 1)] // without the heading
		}
		if text := strings.Join(lines, "\n"); err != nil || text != "" {
			errs = append(errs, fmt.Errorf("%s: %s, %w", what, text, err))
		}
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || bytes.Contains(mounts, []byte(d.Dir+"/")) {
		errs = append(errs, fmt.Errorf("mounts are left below %s: %w", d.Dir, err))
	}
	links, err := exec.CommandContext(d.p.t.Context(), "ip", "-o", "link").Output()
	if err != nil || bytes.Contains(links, []byte(d.Table())) { // in the alias of each that the agent made
		errs = append(errs, fmt.Errorf("links are left:\n%s, %w", links, err))
	}
	if rules, err := exec.CommandContext(d.p.t.Context(), "nft", "list", "table", "ip", d.Table()).Output(); err == nil && bytes.Contains(rules, []byte(d.web[strings.IndexByte(d.web, ':')+1:])) {
		errs = append(errs, fmt.Errorf("rules are left:\n%s", rules))
	}
	return errors.Join(errs...)
}

// As a new user would: a manager, which makes its authority itself, and devices in one command each.
func TestEnrollment(t *testing.T) {
	p := openPlant(t)
	t.Run("by an operator", func(t *testing.T) { p := *p; p.t = t; p.byOperator() })
	t.Run("by a join token", func(t *testing.T) { p := *p; p.t = t; p.byJoinToken() })
	t.Run("with the state from the manager", func(t *testing.T) { p := *p; p.t = t; p.fromManager() })
	t.Run("with a key in a token", func(t *testing.T) { p := *p; p.t = t; p.inToken() })
}

// The manager is also where the desired state comes from, and the registry has only what that names. Its State Manifest is unsigned, which the
// trust policy accepts by the manager's name, and status shows. What runs needs the manager no more, also after a restart. The manager has it
// wiped.
func (p *plant) fromManager() {
	d := p.device("press-10", "en10", "10.212.0.0/16")
	p.publish(d, "1.0.0", "one")
	p.write("margo.yaml", "rules:\n  - {scope: margo+%s, allowUnsigned: true}\n  - {scope: %s/plant/components/**, allowUnsigned: true}\n", p.url, p.Host)
	p.settings("margo.yaml", "{margo: true}")
	p.write("press-10.join", "%s", p.fleet("join-token", "create", "--device", "press-10", "--trust-bundle", p.Path("ca/bundle.json")))
	d.Agent = d.enroll("--join-token-file", p.Path("press-10.join"), "--allow-wipe", "--run")
	d.answers("one")
	d.settle(1, settled)
	if file, err := os.ReadFile(d.Path("etc/agent.yaml")); err != nil || !bytes.Contains(file, []byte("margo: "+p.url)) || bytes.Contains(file, []byte("plant/state")) {
		p.t.Errorf("agent.yaml, %v:\n%s", err, file)
	}
	p.publish(d, "1.1.0", "two")
	d.settle(2, settled)
	d.answers("two")
	shown := func(want string) {
		p.t.Helper()
		testenv.Eventually(p.t, settled, "status shows "+want, func() error {
			text, err := d.Control(p.t.Context(), "status")
			if err == nil && !strings.Contains(text, want) {
				err = fmt.Errorf("status:\n%s", text)
			}
			return err
		})
	}
	shown("accepted unsigned, as the policy allows: state margo+" + p.url)

	running := d.processes()
	p.manager.Kill()
	shown("source-unreachable")
	if err := d.Agent.Stop(); err != nil {
		p.t.Fatal(err)
	}
	d.configure()
	if err := d.Agent.Start(); err != nil {
		p.t.Fatal(err)
	}
	shown("source-unreachable")
	d.answers("two")
	if now := d.processes(); now != running {
		p.t.Errorf("processes without the manager: %s, before %s", now, running)
	}
	p.publish(d, "1.2.0", "three")
	if err := p.manager.Start(); err != nil {
		p.t.Fatal(err)
	}
	d.settle(3, settled)
	d.answers("three")
	p.fleet("devices", "remove", "press-10", "--wipe")
	p.logged(d.Agent, "the device is wiped")
	if err := errors.Join(d.left(), d.Agent.Stop()); err != nil {
		p.t.Errorf("after the wipe: %v\n%s", err, d.Logs())
	}
	p.settings("trust.yaml", "{registry: oci://"+p.Host+"/plant/state}")
}

// The device's key is in a PKCS#11 token. It is enough for all that the device does: it enrolls, starts again, renews its certificate and
// gets new states. A wrong PIN is told by name.
func (p *plant) inToken() {
	soft := testenv.SoftHSM(p.t)
	d := p.device("press-09", "en9", "10.212.0.0/16")
	d.Env = append(d.Env, "SOFTHSM2_CONF="+os.Getenv("SOFTHSM2_CONF"))
	d.Bin = d.Path("bin")
	if err := testenv.BuildOwnWithC(p.t.Context(), d.Bin, "longshore-agent"); err != nil {
		p.t.Fatal(err)
	}
	p.publish(d, "1.0.0", "one")
	p.write("token.pin", "%s\n", soft.PIN)
	d.Agent = d.enroll("--device", "press-09", "--expect-manager", p.fingerprint, "--run", "--allow-wipe", "--report-key", soft.URI("agent")+"&pin-source="+p.Path("token.pin"))
	approve := p.logged(d.Agent, `longshore-fleet (devices approve press-09 --fingerprint sha256:[0-9a-f]{64})`)
	p.logged(d.Agent, "waiting for approval") // the manager knows it from then on
	p.fleet(strings.Fields(approve)...)
	d.answers("one")
	d.settle(1, settled)
	if err := d.Agent.Stop(); err != nil {
		p.t.Fatal(err)
	}
	d.configure()
	if err := d.Agent.Start(); err != nil {
		p.t.Fatal(err)
	}
	certificate := func() string {
		p.t.Helper()
		data, err := os.ReadFile(d.Path("data/identity/device.crt"))
		if err != nil {
			p.t.Fatal(err)
		}
		return string(data)
	}
	first := certificate()
	testenv.Eventually(p.t, 2*time.Minute, "the certificate is renewed", func() error {
		if certificate() == first {
			return errors.New("it is the first one")
		}
		return nil
	})
	p.publish(d, "1.1.0", "two")
	d.settle(2, settled)
	d.answers("two")
	if _, err := os.Lstat(d.Path("etc/device.key")); !os.IsNotExist(err) {
		p.t.Errorf("there is a key in a file: %v", err)
	}
	p.write("token.pin", "0000\n")
	if out, err := d.Control(p.t.Context(), "check-config"); err == nil || !strings.Contains(err.Error(), "CKR_PIN_INCORRECT") || !strings.Contains(err.Error(), "check the PIN") {
		p.t.Errorf("check-config with a wrong PIN: %s, %v", out, err)
	}
	p.write("token.pin", "%s\n", soft.PIN)
	p.fleet("devices", "remove", "press-09", "--wipe")
	p.logged(d.Agent, "the device is wiped")
	if _, err := os.Lstat(p.Path("token.pin")); !os.IsNotExist(err) {
		p.t.Errorf("after a wipe the PIN is there: %v", err)
	}
	if err := d.Agent.Stop(); err != nil {
		p.t.Error(err)
	}
}

// An operator compares and approves the fingerprint, and the application answers. The device renews, with another pull
// credential, is approved again by a manager that has lost its database, and is removed. It does not permit to be wiped, so it runs on.
func (p *plant) byOperator() {
	d := p.device("press-07", "en7", "10.205.0.0/16")
	p.publish(d, "1.0.0", "one")
	token := "pkcs11:token=device;object=agent?module-path=/usr/lib/token.so&pin-source=/etc/longshore/token.pin"
	if out, err := p.World.Run(p.t.Context(), "longshore-agent", "enroll", "--print-fingerprint", "--config-dir", d.Path("none"), "--report-key", token); err == nil ||
		!strings.Contains(err.Error(), "built without cgo and cannot load PKCS#11 modules") || !strings.Contains(err.Error(), "or keep the device's key in a file or a TPM") {
		p.t.Errorf("a static program and a key in a token: %s, %v", out, err)
	}
	d.Agent = d.enroll("--device", "press-07", "--expect-manager", p.fingerprint, "--run")
	approve := p.logged(d.Agent, `longshore-fleet (devices approve press-07 --fingerprint sha256:[0-9a-f]{64})`)
	key := approve[strings.LastIndexByte(approve, ' ')+1:]
	p.logged(d.Agent, "waiting for approval")
	if out := p.fleet("devices", "pending"); !strings.Contains(out, "press-07") || !strings.Contains(out, key) {
		p.t.Errorf("devices pending lacks %s:\n%s", key, out)
	}
	if _, err := os.Stat(d.Path("etc/agent.yaml")); !os.IsNotExist(err) {
		p.t.Errorf("a device that is not approved has a configuration: %v", err)
	}
	p.fleet(strings.Fields(approve)...)
	d.answers("one")
	d.settle(1, settled)
	testenv.Eventually(p.t, settled, "the manager shows it", func() error {
		body, err := testenv.Get(p.t.Context(), p.open+"/fleet/v1/deployments?device=press-07")
		if err == nil && !strings.Contains(string(body), `"installed"`) {
			err = fmt.Errorf("deployments:\n%s", body)
		}
		return err
	})

	if err := d.Agent.Stop(); err != nil {
		p.t.Fatal(err)
	}
	d.configure()
	if err := d.Agent.Start(); err != nil { // the same command: it is enrolled, and runs
		p.t.Fatal(err)
	}
	p.password("another horse")
	p.publish(d, "1.1.0", "two")
	d.settle(2, 2*time.Minute) // with the certificate's next renewal comes the next credential
	d.answers("two")

	d.answered(http.StatusUnprocessableEntity) // it is let in
	running := d.processes()
	p.forget()
	d.answered(http.StatusForbidden)
	p.logged(d.Agent, "the manager has this device as pending")
	d.answers("two")
	p.fleet(strings.Fields(approve)...) // the same key
	d.answered(http.StatusUnprocessableEntity)
	if now := d.processes(); now != running {
		p.t.Errorf("processes of a device that is approved again: %s, before %s", now, running)
	}
	p.fleet("devices", "remove", "press-07", "--wipe")
	d.answered(http.StatusForbidden)
	p.logged(d.Agent, "the manager has removed this device: it gets nothing new")
	if err := errors.Join(d.Agent.Stop(), d.Agent.Start()); err != nil {
		p.t.Fatal(err)
	}
	d.settle(2, settled)
	d.answers("two")
	if now := d.processes(); now != running {
		p.t.Errorf("processes of a removed device: %s, before %s", now, running)
	}
}

// Nobody is asked. The device permits a wipe: nothing of it is left, also if the wipe is killed.
func (p *plant) byJoinToken() {
	d := p.device("press-08", "en8", "10.211.0.0/16")
	p.publish(d, "1.0.0", "one")
	p.write("press-08.join", "%s", p.fleet("join-token", "create", "--device", "press-08", "--trust-bundle", p.Path("ca/bundle.json")))
	flags := []string{"--join-token-file", p.Path("press-08.join"), "--allow-wipe", "--run"}
	d.Agent = d.enroll(flags...)
	d.settle(1, settled)
	d.answers("one")
	if err := d.Agent.Stop(); err != nil {
		p.t.Fatal(err)
	}
	d.configure()
	if err := d.Agent.Start(); err != nil { // the same command: it is enrolled, and runs
		p.t.Fatal(err)
	}
	p.publish(d, "1.1.0", "two")
	d.settle(2, settled)
	d.answers("two")
	before := fmt.Sprint(d.left())
	for _, what := range []string{"is left", "containers: ", "images: ", "snapshots: ", "mounts are left", "links are left", "the device's network bus", "rules are left"} {
		if !strings.Contains(before, what) {
			p.t.Errorf("of a device that runs, %q is not seen:\n%s", what, before)
		}
	}
	p.fleet("devices", "remove", "press-08", "--wipe")
	p.logged(d.Agent, "asks it to delete everything")
	d.Agent.Kill()
	if _, err := os.Stat(d.Path("etc/agent.yaml")); err == nil { // else it was faster
		if err := d.Agent.Start(); err != nil {
			p.t.Fatal(err)
		}
		p.logged(d.Agent, "the device is wiped")
	}
	if err := d.left(); err != nil {
		p.t.Errorf("after the wipe: %v\n%s", err, d.Logs())
	}
	if _, err := testenv.Get(p.t.Context(), "http://"+d.web+"/"); err == nil {
		p.t.Error("the application of a wiped device answers")
	}
	if err := d.Agent.Stop(); err != nil {
		p.t.Error(err)
	}
}
