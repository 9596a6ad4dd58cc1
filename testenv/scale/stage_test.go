package scale

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

// capabilities of every device.
const capabilities = `{"properties": {"id": "press", "vendor": "Acme", "modelNumber": "P4", "serialNumber": "1",
"cpus": [{"cores": 4, "architecture": "amd64"}], "memory": "4Gi", "storage": "64Gi", "peripherals": [], "interfaces": [{"type": "ethernet"}],
"otelCollector": true, "supportedRuntimes": ["oci"], "supportedDeploymentTypes": ["compose"]}}`

// description is the application that every device runs.
const description = `apiVersion: v1
id: acme-line
metadata: {name: Line monitor, version: 1.4.0, catalog: {organization: [{name: Acme}]}}
deploymentProfiles:
  - type: compose
    id: gateway
    components: [{name: line, properties: {repository: "oci://HOST/plant/components/line", revision: 1.4.0}}]
    deviceConstraints: {capacityRequirements: {memory: 512Mi, cpu: {cores: 1, architectures: [amd64, arm64]}}}
parameters:
  poll: {value: 30, targets: [{pointer: POLL, components: [line]}]}
  place: {targets: [{pointer: PLACE, components: [line]}]}
configuration:
  sections: [{name: All, settings: [{parameter: poll, name: Poll, schema: seconds}, {parameter: place, name: Place, schema: place}]}]
  schema:
    - {name: seconds, dataType: integer, minValue: 1, maxValue: 3600}
    - {name: place, dataType: string, maxLength: 40}
`

const project = "services:\n  web:\n    image: HOST/plant/web:1\n    environment: {POLL: \"${POLL:-1}\", PLACE: \"${PLACE:-}\"}\n  broker:\n    image: HOST/plant/broker:1\n"

// write writes the files of a fleet, an application and a Compose project into dir.
func write(dir, host string, devices, groups int) error {
	files := map[string]string{
		"app/margo.yaml": strings.ReplaceAll(description, "HOST", host), "line/compose.yaml": strings.ReplaceAll(project, "HOST", host),
		"fleet/capabilities.json": capabilities,
	}
	var b strings.Builder
	fmt.Fprintf(&b, "fleet: acme\nregistry: %s/plant\ninclude: [devices/*.yaml]\napplications: {line: {package: apps/line, version: ~1.4}}\n", host)
	fmt.Fprint(&b, "deployments:\n  line: {application: line, select: \"*\", parameters: {place: Graz}}\ngroups:\n")
	for g := range groups {
		fmt.Fprintf(&b, "  line-%02d: {select: \"line=l%02d\", capabilities: capabilities.json, parameters: {line: {poll: %d}}}\n", g, g, 10+g)
		var d strings.Builder
		fmt.Fprintln(&d, "devices:")
		for i := g; i < devices; i += groups {
			fmt.Fprintf(&d, "  - {id: press-%05d, labels: {line: l%02d}}\n", i, g)
		}
		files[fmt.Sprintf("fleet/devices/line-%02d.yaml", g)] = d.String()
	}
	files["fleet/fleet.yaml"] = b.String()
	for name, text := range files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Stage is a large fleet, its registry, and the program that publishes it.
type Stage struct {
	dir, program string
	server       *testenv.RegistryServer
	devices      int
	put          atomic.Int64 // manifests of raw
	left         atomic.Int64 // moving tags that the registry sets before it waits
}

// build makes the program; it is the same for every stage of a run.
func build(ctx context.Context, dir string) (string, error) {
	return filepath.Join(dir, "longshore"), testenv.BuildOwn(ctx, dir, "longshore")
}

// open writes a fleet for a registry, and pushes what it runs.
func open(ctx context.Context, dir, program string, server *testenv.RegistryServer, devices, groups int) (*Stage, error) {
	s := &Stage{dir: dir, program: program, server: server, devices: devices}
	s.left.Store(math.MaxInt64)
	server.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: "/manifests/", Effect: s.setManifest})
	if err := write(dir, server.Host, devices, groups); err != nil {
		return nil, err
	}
	for _, name := range []string{"web", "broker"} {
		image, err := testenv.BuildImage("linux/amd64", v1.Config{}, []testenv.File{{Path: "app", Data: []byte(name)}})
		if err != nil {
			return nil, err
		}
		if _, err := server.Push(ctx, "plant/"+name+":1", image); err != nil {
			return nil, err
		}
	}
	for _, args := range [][]string{
		{"key", "generate", "release"},
		{"component", "push", "line", server.Host + "/plant/components/line:1.4.0"},
		{"app", "push", "app", server.Host + "/plant/apps/line"},
	} {
		if r, err := s.run(ctx, args...); err != nil || r.code != 0 {
			return nil, errors.Join(err, fmt.Errorf("longshore %s: exit %d\n%s", strings.Join(args, " "), r.code, r.output))
		}
	}
	return s, nil
}

// movingTag is the path of a device's moving tag.
var movingTag = regexp.MustCompile(`/plant/state/manifests/press-\d+$`)

// setManifest lets only requests through that arrived completely: go-containerregistry's server would keep half of a manifest whose sender
// was killed. When no tag is left to set, it waits until the sender is gone.
func (s *Stage) setManifest(w http.ResponseWriter, r *http.Request, next http.Handler) {
	data, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if movingTag.MatchString(r.URL.Path) && s.left.Add(-1) < 0 {
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	}
	r.Body = io.NopCloser(bytes.NewReader(data))
	next.ServeHTTP(w, r)
}

// result is what became of a process.
type result struct {
	code   int
	took   time.Duration
	rss    int64 // most memory that it had, bytes
	output string
}

// command prepares the program on the stage.
func (s *Stage) command(ctx context.Context, out *bytes.Buffer, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.program, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "HOME="+s.dir, "LONGSHORE_KEY_PASSWORD=scale", "SOURCE_DATE_EPOCH=1763654400")
	cmd.Stdout, cmd.Stderr = out, out
	return cmd
}

// run runs the program to its end, whatever its exit code is.
func (s *Stage) run(ctx context.Context, args ...string) (result, error) {
	var out bytes.Buffer
	cmd := s.command(ctx, &out, args...)
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return result{}, err
	}
	memory := watch(cmd.Process.Pid)
	err := cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = nil
	}
	return result{code: cmd.ProcessState.ExitCode(), took: time.Since(begin), output: out.String(), rss: memory()}, err
}

// watch reads the high-water mark of a process's memory until the result is asked for. The kernel's figure of an ended
// child begins with its parent's memory, and here that holds the registry.
func watch(pid int) func() int64 {
	stop, done := make(chan struct{}), make(chan int64)
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		most := int64(0)
		for {
			if peak, err := testenv.PeakMemory(pid); err == nil {
				most = max(most, peak)
			}
			select {
			case <-tick.C:
			case <-stop:
				done <- most
				return
			}
		}
	}()
	return func() int64 {
		close(stop)
		return <-done
	}
}

// Figures are what was measured.
type Figures struct {
	Check, Plan time.Duration // of the whole fleet; of one parameter of one group
	Publish     time.Duration // of the run after the kill, of the other half
	Published   int           // states in the measured run
	Requests    int           // of the measured run that are about states, without those that found out what is there
	Rate        float64       // requests a second while publishing
	Raw         float64       // manifests a second that one client puts, with as many connections, right before and after
	RSS         int64         // most of any publishing process
	PlanRSS     int64
}

// Measure checks, publishes with a kill at half, plans, publishes again and looks whether all is right. Raw is measured,
// which takes seconds, where besideRaw says so.
func (s *Stage) Measure(ctx context.Context, besideRaw bool) (Figures, error) {
	var f Figures
	raw := func() (float64, error) {
		if !besideRaw {
			return 0, nil
		}
		return s.raw(ctx)
	}
	fail := func(what string, r result, err error) (Figures, error) {
		return f, fmt.Errorf("%s: exit %d, %w\n%s", what, r.code, errors.Join(err, errors.New("not as it should be")), tail(r.output))
	}
	r, err := s.run(ctx, "fleet", "check", "fleet")
	if f.Check = r.took; err != nil || r.code != 0 {
		return fail("check", r, err)
	}
	killed, err := s.killAtHalf(ctx)
	if err != nil {
		return f, err
	}
	f.RSS = killed.rss
	before, err := raw()
	if err != nil {
		return f, err
	}
	s.server.Faults.Forget()
	if r, err = s.run(ctx, "fleet", "publish", "--key", "release.key", "fleet"); err != nil || r.code != 0 {
		return fail("publish", r, err)
	}
	f.Publish, f.RSS, f.Published = r.took, max(f.RSS, r.rss), s.states()
	all := s.server.Faults.Requests("", "")
	f.Rate, f.Requests = float64(len(all))/r.took.Seconds(), publishing(all, s.devices-f.Published)
	after, err := raw()
	if err != nil {
		return f, err
	}
	f.Raw = 2 / (1/before + 1/after) // other work on the machine comes and goes
	if f.Published == 0 || f.Published >= s.devices {
		return f, fmt.Errorf("after the kill %d of %d states were published: nothing was taken up", f.Published, s.devices)
	}
	if err := s.check(ctx); err != nil {
		return f, err
	}
	s.server.Faults.Forget()
	if r, err = s.run(ctx, "fleet", "publish", "--key", "release.key", "fleet"); err != nil || r.code != 0 {
		return fail("publish again", r, err)
	}
	if n := len(s.server.Faults.Requests("PUT", "")) + len(s.server.Faults.Requests("POST", "")); n > 0 {
		return f, fmt.Errorf("the second run wrote %d times", n)
	}
	if err := replace(filepath.Join(s.dir, "fleet", "fleet.yaml"), "poll: 11", "poll: 12"); err != nil {
		return f, err
	}
	r, err = s.run(ctx, "fleet", "plan", "fleet")
	if f.Plan, f.PlanRSS = r.took, r.rss; err != nil || r.code != 1 || !strings.Contains(r.output, "parameter poll: 11 → 12") {
		return fail("plan", r, err)
	}
	return f, nil
}

// publishing counts requests about states, but for the three by which each state that was there already was found to be.
func publishing(all []testenv.Request, there int) int {
	n := -3 * there
	for _, r := range all {
		if strings.Contains(r.Path, "/plant/state/") {
			n++
		}
	}
	return n
}

// killAtHalf begins to publish, and kills the process when half of the states are there.
func (s *Stage) killAtHalf(ctx context.Context) (result, error) {
	s.left.Store(int64(s.devices / 2))
	defer s.left.Store(math.MaxInt64)
	var out bytes.Buffer
	cmd := s.command(ctx, &out, "fleet", "publish", "--key", "release.key", "fleet")
	if err := cmd.Start(); err != nil {
		return result{}, err
	}
	memory := watch(cmd.Process.Pid)
	half := testenv.Await(ctx, 15*time.Minute, func() error {
		if n := s.states(); n < s.devices/2 {
			return fmt.Errorf("%d states", n)
		}
		return nil
	})
	kill := cmd.Process.Kill()
	_ = cmd.Wait() // it was killed
	return result{output: out.String(), rss: memory()}, errors.Join(half, kill)
}

// states counts the moving tags that were set.
func (s *Stage) states() int {
	seen := map[string]bool{}
	for _, r := range s.server.Faults.Requests("PUT", movingTag.String()) {
		if r.Status/100 == 2 {
			seen[r.Path] = true
		}
	}
	return len(seen)
}

// check looks at every state as a device would: generation 1, its own, tag and history agree, and a signature is there.
func (s *Stage) check(ctx context.Context) error {
	client, err := registry.New(registry.Options{})
	if err != nil {
		return err
	}
	defer client.Close()
	repo, err := client.OpenName(ctx, s.server.Host+"/plant/state")
	if err != nil {
		return err
	}
	for i := range s.devices {
		id := artifacts.DeviceID(fmt.Sprintf("press-%05d", i))
		d, err := repo.Resolve(ctx, id.Tag())
		if err != nil {
			return err
		}
		history, err := repo.Resolve(ctx, artifacts.HistoryTag(id.Tag(), 1))
		if err != nil {
			return err
		}
		_, manifest, err := repo.Manifest(ctx, d.Digest)
		if err != nil {
			return err
		}
		x, err := artifacts.OpenState(manifest)
		if err != nil {
			return err
		}
		if x.Device != id || x.Generation != 1 || history.Digest != d.Digest || len(x.Deployments) != 1 {
			return fmt.Errorf("%s: %+v, history %s", id, x, history.Digest)
		}
		if _, err := repo.Resolve(ctx, artifacts.HistoryTag(id.Tag(), 2)); err == nil {
			return fmt.Errorf("%s was published twice", id)
		}
		signatures, err := repo.Referrers(ctx, d)
		if err != nil {
			return err
		}
		if n := len(signatures); n < 1 || n > 2 { // what was signed when the publisher was killed, but had no tag yet, is signed again
			return fmt.Errorf("%s has %d signatures", id, n)
		}
	}
	return nil
}

func replace(file, from, to string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !bytes.Contains(data, []byte(from)) {
		return fmt.Errorf("%s has no %q", file, from)
	}
	return os.WriteFile(file, bytes.Replace(data, []byte(from), []byte(to), 1), 0o644)
}

func tail(s string) string {
	const most = 3000
	if len(s) > most {
		return "…" + s[len(s)-most:]
	}
	return s
}
