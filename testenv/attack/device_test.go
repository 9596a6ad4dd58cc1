package attack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing/sign/remotekey/remotekeytest"
	"github.com/longshore-dev/longshore/testenv"
)

func TestMain(m *testing.M) {
	testenv.SideBySide(6) // devices are attacked at a time, whatever the machine has: they mostly wait
	goleak.VerifyTestMain(m, testenv.LeakOptions()...)
}

const (
	settleLimit = 90 * time.Second // for an update; the machine is small and busy
	tellLimit   = 2 * time.Minute  // for a refusal to be reported; freshness lasts for a minute at least
	password    = "correct horse"
)

// plant is what devices share: programs and a containerd. Each device has a namespace of its own in it.
type plant struct {
	box        *testenv.Box
	bin        string
	containerd *testenv.Daemon
	vault      *remotekeytest.Vault // signs: the password of a key file costs a tenth of a second each time, and would be checked hundreds of times
}

// newPlant builds our programs and starts containerd. It needs root.
func newPlant(t *testing.T) *plant {
	t.Helper()
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "needs root")
	}
	p := newOffice(t)
	p.vault = remotekeytest.Transit(t, password)
	var err error
	if p.containerd, err = testenv.StartContainerd(t.Context(), testenv.DaemonOptions{Box: p.box}); err != nil {
		testenv.Unavailable(t, "%v", err)
	}
	return p
}

// newOffice builds our programs, for people who publish: a plant without containerd.
func newOffice(t *testing.T) *plant {
	t.Helper()
	p := &plant{box: testenv.NewBox(t)}
	var err error
	if p.bin, err = p.box.Folder("bin"); err != nil {
		t.Fatal(err)
	}
	if err := testenv.BuildOwn(t.Context(), p.bin, "longshore", "longshore-agent"); err != nil {
		t.Fatal(err)
	}
	return p
}

// device is a real agent with real containers, and the registry that it believes in, which an attacker owns.
type device struct {
	*plant
	n        int    // which of the plant's
	dir      string // everything of it, and of the people who publish for it
	id       artifacts.DeviceID
	registry *testenv.RegistryServer
	proxy    *Proxy
	second   *Proxy // an honest mirror behind the attacker's; nil: there is none
	host     string // what references say: the proxy's, unless the attacker is but a mirror
	agent    *testenv.Process
	control  *control.Client
	url      string            // of the application
	versions map[string]string // of applications' components, the newest
	also     []string          // keys that sign beside release
	pulse    string            // how long freshness statements last; "": none
	seals    *seals            // keyless signer of each state; nil: none
	key      string            // that signs states
	lacks    []string          // what component leaves out: component, image, provenance
	images   int
	forged   int
	pushed   int            // states, and so the newest generation
	before   *status.Status // when the attack began
	customer *customer      // of the application, since then
}

const pool = "10.%d.0.0/16"

// setup is how a device differs from others.
type setup struct {
	mirror bool                   // the attacker is but a mirror
	second bool                   // another mirror, after the attacker's, is honest
	policy func(d *device) string // trust.yaml; nil: states signed by release
	also   []string               // keys that sign each state beside release; components and images are signed, too
	keys   []string               // others that there are
	seals  *seals                 // each state is signed by an identity besides
	pulse  string                 // how long the freshness statements last that key pulse makes; "": none
}

// newPublisher sets up a registry behind an attacker's proxy, and keys to publish there.
func newPublisher(t *testing.T, p *plant, n int, server *testenv.RegistryServer, o setup) *device {
	t.Helper()
	d := &device{plant: p, n: n, id: artifacts.DeviceID(fmt.Sprintf("press-%02d", n)), registry: server, versions: map[string]string{}, also: o.also, pulse: o.pulse, seals: o.seals, key: "release"}
	d.proxy = Start(server)
	t.Cleanup(d.proxy.Close)
	if o.second {
		d.second = Start(server)
		t.Cleanup(d.second.Close)
	}
	d.host = d.proxy.Host
	if o.mirror {
		d.host = server.Host
	}
	var err error
	if d.dir, err = p.box.Folder("d"); err != nil {
		t.Fatal(err)
	}
	if d.url, err = testenv.FreeAddress(); err != nil {
		t.Fatal(err)
	}
	d.control = control.NewClient(d.path("run/agent.sock"))
	for _, key := range slices.Concat([]string{"release", "stranger"}, o.also, o.keys) {
		d.generate(t, key)
	}
	d.login(t)
	return d
}

// generate makes a pair of keys: in the plant's vault, or in files as people have them.
func (d *device) generate(t *testing.T, name string) {
	t.Helper()
	if d.vault == nil {
		d.must(t, "longshore", "key", "generate", d.path(name))
		return
	}
	if err := os.WriteFile(d.path(name+".pub"), d.vault.Add(t, string(d.id)+"-"+name), 0o644); err != nil {
		t.Fatal(err)
	}
}

// signer is the --key of the private part.
func (d *device) signer(name string) string {
	if d.vault == nil {
		return d.path(name + ".key")
	}
	return "hashivault://" + string(d.id) + "-" + name
}

// newDevice is [newPublisher] with a device that runs what it publishes.
func newDevice(t *testing.T, p *plant, n int, server *testenv.RegistryServer, o setup) *device {
	t.Helper()
	ctx := t.Context()
	d := newPublisher(t, p, n, server, o)
	d.release(t, "audit", true)
	d.release(t, "line", true)
	table := fmt.Sprintf("lsatk%d-%d", os.Getpid()%100000, n)
	if err := p.box.OwnTable(ctx, io.Discard, table); err != nil {
		t.Fatal(err)
	}
	d.must(t, "longshore-agent", "init", "--config-dir", d.path("etc"), "--device", string(d.id), "--state", "oci://"+d.host+"/plant/state",
		"--key", d.path("release.pub"), "--poll", "1s", "--data-dir", d.path("data"), "--run-dir", d.path("run"),
		"--ca-file", server.CAFile, "--registry-config", d.path("home/.docker/config.json"),
		"--network-pool", fmt.Sprintf(pool, 220+n), "--network-table", table,
		"--containerd", p.containerd.Address, "--containerd-namespace", d.namespace())
	more := "  timeout: 2s\n"
	if o.mirror {
		more += "  certsDir: " + d.path("certs.d") + "\n"
		d.mirrors(t)
	}
	d.configure(t, more)
	if o.policy != nil {
		d.trust(t, o.policy(d))
	}
	var err error
	d.agent, err = p.box.Start("agent-"+string(d.id), d.environment(), filepath.Join(p.bin, "longshore-agent"), "run", "--config", d.path("etc/agent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of the log of %s:\n%s", d.id, d.agent.Log(40))
		}
	})
	d.settled(t, 2)
	return d
}

// mirrors has the device ask the attacker first, for everything, then the second mirror.
func (d *device) mirrors(t *testing.T) {
	t.Helper()
	dir := d.path("certs.d/" + d.host)
	var text string
	for _, p := range []*Proxy{d.proxy, d.second} {
		if p != nil {
			text += fmt.Sprintf("[host.\"http://%s\"]\n  capabilities = [\"pull\", \"resolve\"]\n", p.Host)
		}
	}
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/hosts.toml", []byte(text), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// login gives the publisher and the device the registry's password, where it has one.
func (d *device) login(t *testing.T) {
	t.Helper()
	if err := os.MkdirAll(d.path("home/.docker"), 0o700); err != nil {
		t.Fatal(err)
	}
	text := "{}"
	if d.registry.Username != "" {
		auth, err := json.Marshal(map[string]any{"auths": map[string]any{d.host: map[string]string{
			"username": d.registry.Username, "password": d.registry.Password,
		}}})
		if err != nil {
			t.Fatal(err)
		}
		text = string(auth)
	}
	if err := os.WriteFile(d.path("home/.docker/config.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// configure adds to the registry section of agent.yaml.
func (d *device) configure(t *testing.T, more string) {
	t.Helper()
	file := d.path("etc/agent.yaml")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Replace(string(data), "registry:\n", "registry:\n"+more, 1)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// trust puts a policy in place, whole.
func (d *device) trust(t *testing.T, policy string) {
	t.Helper()
	file := d.path("etc/trust.yaml")
	if err := errors.Join(os.WriteFile(file+".new", []byte(policy), 0o644), os.Rename(file+".new", file)); err != nil {
		t.Fatal(err)
	}
}

func (d *device) namespace() string { return fmt.Sprintf("%s-%d", d.containerd.Namespace, d.n) }

func (d *device) path(name string) string { return filepath.Join(d.dir, name) }

func (d *device) environment() []string {
	env := []string{
		"HOME=" + d.path("home"), "DOCKER_CONFIG=" + d.path("home/.docker"), "LONGSHORE_KEY_PASSWORD=" + password, "COSIGN_PASSWORD=" + password,
		"LONGSHORE_CA_FILE=" + d.registry.CAFile, "NO_COLOR=1", "PATH=" + d.path("bin") + ":" + os.Getenv("PATH"),
	}
	if d.vault != nil {
		env = append(env, "VAULT_ADDR="+d.vault.URL, "VAULT_TOKEN="+password)
	}
	return env
}

// run runs one of our programs to its end.
func (d *device) run(ctx context.Context, program string, args ...string) (string, error) {
	return d.box.Output(ctx, d.environment(), append([]string{filepath.Join(d.bin, program)}, args...)...)
}

func (d *device) must(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := d.run(t.Context(), program, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// applications of a device: the front answers on a port, audit only runs.
var applications = map[string]string{
	"line": `services:
  press:
    image: %s
    command: [serve, "8080"]
    environment: {TEXT: "${TEXT:-0}", PAD: "${PAD:-}"}
    ports: ["%s:8080"]
    restart: always
    stop_grace_period: 1s
    deploy: {update_config: {monitor: 300ms}}
`,
	"audit": `services:
  audit:
    image: %s
    command: [sleep]
    environment: {TEXT: "${TEXT:-0}", PAD: "${PAD:-}", FRONT: "%s"}
    restart: always
    stop_grace_period: 1s
    deploy: {update_config: {monitor: 300ms}}
`,
}

// pad makes a deployment so large that the manifest of its state does not carry it: it can be attacked by itself.
var pad = strings.Repeat("x", 9<<10)

// release publishes a change of an application, as the next generation: other parameters, or also a new image, and with it
// a new component.
func (d *device) release(t *testing.T, app string, image bool, flags ...string) {
	t.Helper()
	if image {
		d.component(t, app)
	}
	d.must(t, "longshore", append([]string{
		"state", "push", "--device", string(d.id), "--key", d.signer(d.key), "--name", app,
		"--component", "oci://" + d.host + "/plant/components/" + app + ":" + d.versions[app], "--set", fmt.Sprintf("TEXT=%d", d.pushed+1), "--set", "PAD=" + pad, d.host + "/plant/state",
	}, flags...)...)
	for _, key := range d.also {
		d.sign(t, key, d.current(t))
	}
	if d.seals != nil {
		d.seal(t, d.seals.now.Keyless(t, issuer, subject, good), d.current(t))
	}
	if d.pulse != "" {
		d.freshen(t, "pulse", d.pulse)
	}
	d.pushed++
}

// component pushes a new image, and the application on it.
func (d *device) component(t *testing.T, app string) {
	t.Helper()
	ctx := t.Context()
	base, err := testenv.SoftwareImage(ctx, os.Stderr, "toolbox", testenv.HostPlatform())
	if err != nil {
		testenv.Unavailable(t, "%v", err)
	}
	img, err := testenv.AppendLayers(base, []testenv.File{{Path: "release", Data: fmt.Appendf(nil, "%s %d of %s\n", app, d.images, d.id)}})
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("plant/%s:%d", app, d.images)
	if _, err := d.registry.Push(ctx, name, img); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(d.path(app), 0o755); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(applications[app], d.host+"/"+name, d.url)
	if err := os.WriteFile(d.path(app+"/compose.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	d.images++
	d.versions[app] = fmt.Sprintf("1.0.%d", d.images)
	d.must(t, "longshore", "component", "push", d.path(app), d.componentOf(app))
	if len(d.also) == 0 {
		return
	}
	for _, what := range []string{"component", "image", "provenance"} {
		if !slices.Contains(d.lacks, what) {
			d.vouch(t, app, what)
		}
	}
}

// componentOf is the newest component of an application.
func (d *device) componentOf(app string) string {
	return d.host + "/plant/components/" + app + ":" + d.versions[app]
}

// vouch signs what belongs to the newest component of an application, as those do whose business it is.
func (d *device) vouch(t *testing.T, app string, what ...string) {
	t.Helper()
	for _, w := range what {
		switch w {
		case "component":
			d.must(t, "longshore", "sign", "--key", d.signer("release"), d.componentOf(app))
		case "image":
			d.must(t, "longshore", "sign", "--key", d.signer("release"), fmt.Sprintf("%s/plant/%s:%d", d.host, app, d.images-1))
		case "provenance":
			d.attest(t, "builder", provenance, d.componentOf(app))
		}
	}
}

// attest says something about an artifact, by a key.
func (d *device) attest(t *testing.T, key, predicate, reference string) {
	t.Helper()
	file := d.path("said.json")
	if err := os.WriteFile(file, []byte(`{"buildType": "https://example.com/by-hand"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	d.must(t, "longshore", "attest", "--key", d.signer(key), "--type", predicate, "--predicate", file, reference)
}

// open is a repository of the registry, with write access.
func (d *device) open(t *testing.T, repository string) *registry.Repository {
	t.Helper()
	c, err := registry.New(registry.Options{
		Host: d.registry.Host, Username: d.registry.Username, Password: d.registry.Password, CAFile: d.registry.CAFile, UserAgent: "longshore/attacker",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	repo, err := c.OpenName(t.Context(), d.registry.Reference(repository))
	if err != nil {
		t.Fatal(err)
	}
	return repo
}

func (d *device) status(t *testing.T) *status.Status {
	t.Helper()
	var s *status.Status
	testenv.Eventually(t, tellLimit, "status", func() (err error) {
		s, err = d.control.Status(t.Context())
		return err
	})
	return s
}

// settled waits until a generation runs completely, and nothing is wrong.
func (d *device) settled(t *testing.T, generation uint64) {
	t.Helper()
	testenv.Eventually(t, settleLimit, fmt.Sprintf("generation %d", generation), func() error {
		if err := d.agent.Running(); err != nil {
			return err
		}
		s, err := d.control.Status(t.Context())
		if err != nil {
			return err
		}
		if s.Committed == nil || s.Committed.Generation != generation || s.Phase != status.PhaseInSync || len(s.Problems) > 0 {
			_, _ = d.sync(t.Context())
			return fmt.Errorf("device is %q, committed %+v; problems %+v", s.Phase, s.Committed, s.Problems)
		}
		return nil
	})
}

// sync has the agent look now, and does not wait for long.
func (d *device) sync(ctx context.Context) (status.SyncResult, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return d.control.Sync(ctx)
}

// tells waits until the device reports one of the codes, and returns the problem.
func (d *device) tells(t *testing.T, codes ...codes.Code) status.Problem {
	t.Helper()
	var found status.Problem
	testenv.Eventually(t, tellLimit, fmt.Sprintf("%v is told", codes), func() error {
		_, _ = d.sync(t.Context())
		s, err := d.control.Status(t.Context())
		if err != nil {
			return err
		}
		for _, p := range s.Problems {
			if slices.Contains(codes, p.Code) {
				found = p
				return nil
			}
		}
		return fmt.Errorf("device is %q, problems %+v", s.Phase, s.Problems)
	})
	return found
}

// processes are the first processes of the containers, by container.
func processes(s *status.Status) map[string]uint32 {
	out := map[string]uint32{}
	for _, x := range s.Deployments {
		for _, c := range x.Components {
			for _, service := range c.Services {
				out[service.Container] = service.PID
			}
		}
	}
	return out
}

// peak is the most memory that the agent ever had, in bytes, since forgetPeak.
func (d *device) peak(t *testing.T) int64 {
	t.Helper()
	n, err := testenv.PeakMemory(d.agent.PID())
	must(t, "measure the agent", err)
	return n
}

// forgetPeak begins to measure anew.
func (d *device) forgetPeak(t *testing.T) {
	t.Helper()
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", d.agent.PID()), []byte("5"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// customer asks the application all the time.
type customer struct {
	stop     context.CancelFunc
	done     sync.WaitGroup
	asked    chan struct{} // closed with the first answer, or the lack of one
	answered int
	lost     int
	last     error
}

// begin notes how the device is, and has a customer ask its application from now on.
func (d *device) begin(t *testing.T) {
	t.Helper()
	d.before = d.status(t)
	if d.customer != nil {
		d.customer.end()
	}
	url := "http://" + d.url + "/"
	testenv.Eventually(t, settleLimit, "the application answers", func() error { // on a busy machine it starts for longer than it is watched
		_, err := testenv.Get(t.Context(), url)
		return err
	})
	d.customer = startCustomer(t.Context(), url)
	d.forgetPeak(t)
}

func startCustomer(ctx context.Context, url string) *customer {
	ctx, stop := context.WithCancel(ctx)
	c := &customer{stop: stop, asked: make(chan struct{})}
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	c.done.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		first := sync.OnceFunc(func() { close(c.asked) })
		defer first()
		for ctx.Err() == nil {
			err := get(ctx, client, url)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				c.lost, c.last = c.lost+1, err
			} else {
				c.answered++
			}
			first()
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	})
	return c
}

func get(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, io.LimitReader(res.Body, 1<<10))
	if res.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("status %s", res.Status))
	}
	return errors.Join(err, res.Body.Close())
}

// end stops asking. It is an error when the application did not answer every time.
func (c *customer) end() error {
	<-c.asked
	c.stop()
	c.done.Wait()
	if c.lost > 0 || c.answered == 0 {
		return fmt.Errorf("the application answered %d times and was silent %d times: %w", c.answered, c.lost, c.last)
	}
	return nil
}
