package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

// scenes are the demo, in order.
func scenes() []scene {
	return []scene{
		{"A plant: a device with containerd, a registry, a fleet endpoint", setUp},
		{"A release, from a Compose project to a running device", release},
		{"What happens to devices", trouble},
		{"Updates without an interruption", updates},
		{"Attacks: each is rejected, and the application answers meanwhile", attacks},
	}
}

// step is one line of a scene.
type step struct {
	what string
	do   func(ctx context.Context) (shown string, err error)
}

func (w *show) steps(ctx context.Context, steps []step) error {
	for _, s := range steps {
		if err := w.Step(ctx, s.what, s.do); err != nil {
			w.tellLogs()
			return err
		}
	}
	return nil
}

func setUp(ctx context.Context, w *show) error {
	if err := w.startWorld(ctx, world.Options{Name: "demo", Pool: "10.219.0.0/16"}); err != nil {
		return err
	}
	return w.steps(ctx, []step{{"images of the application", w.pushImages}, {"fleet endpoint", w.startFleet}})
}

// startWorld starts containerd and a registry with TLS and a password.
func (w *show) startWorld(ctx context.Context, o world.Options) (err error) {
	o.Box, o.Out, o.Step, o.Secure = w.Stage.Box, w.out, w.Stage.Step, true
	w.World, err = world.New(ctx, o)
	return err
}

func release(ctx context.Context, w *show) error {
	return w.steps(ctx, []step{
		{"release 1.0.0 is pushed, locked, signed and assigned", w.publishFirst},
		{"the device installs it and HTTP answers", w.install},
		{"the fleet endpoint has the report", w.fleetKnows},
		{"release 1.1.0 replaces one service, the others run on", w.update},
	})
}

func trouble(ctx context.Context, w *show) error {
	return w.steps(ctx, []step{
		{"the registry stops and starts again", w.registryAway},
		{"the firewall is flushed", w.flushed},
		{"the agent is killed in the middle of an update and converges", w.killed},
	})
}

func updates(ctx context.Context, w *show) error {
	return w.steps(ctx, []step{
		{"release 1.2.0 starts its front before the old one stops", w.gapless},
		{"release 1.3.0 never becomes healthy and is rolled back", w.goesBack},
	})
}

func removal(ctx context.Context, w *show) error {
	return w.steps(ctx, []step{{"the application is removed", w.remove}})
}

func (w *show) pushImages(ctx context.Context) (string, error) {
	for version := 1; version <= 2; version++ {
		if _, err := testenv.LineMonitor(ctx, w.out, w.Registry, w.project(version), version); err != nil {
			return "", err
		}
	}
	_, received := w.Registry.Faults.Bytes("", "")
	return fmt.Sprintf("%.1f MB", float64(received)/1e6), nil
}

func (w *show) startFleet(ctx context.Context) (string, error) {
	err := w.StartFleet(ctx)
	return w.FleetURL, err
}

func (w *show) publishFirst(ctx context.Context) (string, error) {
	port, err := testenv.FreePort()
	if err != nil {
		return "", err
	}
	w.webURL = fmt.Sprintf("http://127.0.0.1:%d", port)
	if err := w.Login(ctx); err != nil {
		return "", err
	}
	if _, err := w.Run(ctx, "longshore", "key", "generate", "release"); err != nil {
		return "", err
	}
	component, err := w.pushComponent(ctx, 1, "1.0.0")
	if err != nil {
		return "", err
	}
	state, err := w.pushState(ctx, "1.0.0")
	return fmt.Sprintf("component %s, state %s", shortDigest(component), shortDigest(state)), err
}

func (w *show) pushComponent(ctx context.Context, project int, version string) (string, error) {
	return digestOf(w.Run(ctx, "longshore", "component", "push", "-o", "json", w.project(project), w.Reference("plant/components/line-monitor:"+version)))
}

func (w *show) pushState(ctx context.Context, version string, more ...string) (string, error) {
	args := []string{
		"state", "push", "-o", "json", "--device", device, "--key", "release.key", "--set", "WEB_PORT=" + strings.TrimPrefix(w.webURL, "http://"),
		"--component", "oci://" + w.Reference("plant/components/line-monitor:"+version),
	}
	return digestOf(w.Run(ctx, "longshore", append(append(args, more...), w.Reference("plant/state"))...))
}

func digestOf(out string, err error) (string, error) {
	if err != nil {
		return "", err
	}
	var result struct{ Digest string }
	if err := json.Unmarshal([]byte(out), &result); err != nil || result.Digest == "" {
		return "", fmt.Errorf("no digest in %q: %w", out, err)
	}
	return result.Digest, nil
}

func (w *show) install(ctx context.Context) (string, error) {
	if err := w.Init(ctx); err != nil {
		return "", err
	}
	if err := w.boot(ctx); err != nil {
		return "", err
	}
	if err := w.Settled(ctx, 1, time.Minute); err != nil {
		return "", err
	}
	body, err := w.answers(ctx)
	return "GET " + w.webURL + "/readings: " + clip(body, 70), err
}

func (w *show) fleetKnows(ctx context.Context) (string, error) {
	return "installed; the page is " + w.FleetURL + "/", w.fleetSays(ctx, margo.StateInstalled)
}

func (w *show) fleetSays(ctx context.Context, want margo.State) error {
	return testenv.Await(ctx, time.Minute, func() error {
		body, err := testenv.Get(ctx, w.FleetURL+"/fleet/v1/deployments")
		if err == nil && !strings.Contains(strings.ReplaceAll(string(body), " ", ""), `"state":"`+string(want)+`"`) {
			err = fmt.Errorf("no deployment is %s: %s", want, clip(string(body), 300))
		}
		return err
	})
}

// maxUpdate bounds what release 1.1.0 may cost: documents, signatures and one small layer. The image has megabytes.
const maxUpdate = 64 << 10

func (w *show) update(ctx context.Context) (string, error) {
	before, err := w.Status(ctx)
	if err != nil {
		return "", err
	}
	if _, err := w.pushComponent(ctx, 2, "1.1.0"); err != nil {
		return "", err
	}
	w.Registry.Faults.Forget()
	if _, err := w.pushState(ctx, "1.1.0"); err != nil {
		return "", err
	}
	if err := w.Settled(ctx, 2, time.Minute); err != nil {
		return "", err
	}
	after, err := w.Status(ctx)
	if err != nil {
		return "", err
	}
	was, is := processes(before), processes(after)
	if is["web"] == was["web"] || is["broker"] != was["broker"] || is["sensor"] != was["sensor"] || is["broker"] == 0 {
		return "", fmt.Errorf("processes were %v and are %v: only web should have changed", was, is)
	}
	// Only web's image changed, and of it only the layer with its title: everything else is on the device already.
	sent := int64(0)
	for _, r := range w.Registry.Faults.Requests("GET", "") {
		if !strings.HasPrefix(r.Agent, "longshore-agent/") { // the publisher looks whether all images are at the registry
			continue
		}
		for _, image := range []string{"nats", "sensor"} {
			if strings.Contains(r.Path, "/plant/"+image+"/") {
				return "", fmt.Errorf("%s did not change, and the device asked for it: %s", image, r.Path)
			}
		}
		sent += r.Sent
	}
	if sent == 0 {
		return "", errors.New("the device asked for nothing")
	}
	if sent > maxUpdate {
		return "", fmt.Errorf("%d bytes travelled for an update of a title, want at most %d", sent, maxUpdate)
	}
	if _, err := w.answers(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%.1f kB travelled; broker and sensor keep process ids %d and %d", float64(sent)/1e3, is["broker"], is["sensor"]), nil
}

func (w *show) registryAway(ctx context.Context) (string, error) {
	customer := startWatch(ctx, w.webURL+"/readings")
	w.Registry.Down()
	err := testenv.Await(ctx, 30*time.Second, func() error { return w.hasProblem(ctx, codes.SourceUnreachable) })
	if err = errors.Join(err, w.Registry.Up()); err == nil {
		err = testenv.Await(ctx, 60*time.Second, func() error {
			if w.hasProblem(ctx, codes.SourceUnreachable) == nil {
				return errors.New("the agent still thinks that the registry is away")
			}
			return nil
		})
	}
	seen, lost := customer.end()
	return "reported as " + string(codes.SourceUnreachable) + ", then checked again; " + seen, errors.Join(err, lost)
}

// flushed empties the device's nftables table, as a reload of a firewall does, and waits until it is whole again.
func (w *show) flushed(ctx context.Context) (string, error) {
	if _, err := w.Stage.Box.Output(ctx, nil, "nft", "flush", "table", "ip", w.Table()); err != nil {
		return "", err
	}
	start := time.Now()
	if err := testenv.Await(ctx, 60*time.Second, func() error {
		_, err := testenv.Get(ctx, w.webURL+"/readings")
		return err
	}); err != nil {
		return "", err
	}
	shown := fmt.Sprintf("published again after %.1f s", time.Since(start).Seconds())
	return shown + ", and reported as an event", testenv.Await(ctx, 60*time.Second, func() error {
		events, err := w.Run(ctx, "longshore-agent", "events", "--config", w.Path("etc/agent.yaml"))
		if err == nil && !strings.Contains(events, string(status.EventRepaired)) {
			err = fmt.Errorf("no repair is told:\n%s", clip(events, 2000))
		}
		return err
	})
}

// killed goes back to the files of 1.0.0 in a new generation, and kills the agent three times: when it has taken the old
// front away, and twice more on its way to the new one.
func (w *show) killed(ctx context.Context) (string, error) {
	const kills = 3
	before, err := w.Status(ctx)
	if err != nil {
		return "", err
	}
	if _, err := w.pushState(ctx, "1.0.0"); err != nil {
		return "", err
	}
	front := fmt.Sprintf("/proc/%d", processes(before)["web"])
	if err := testenv.Await(ctx, 30*time.Second, func() error {
		if _, err := os.Stat(front); err == nil {
			return errors.New("the update has not begun")
		}
		return nil
	}); err != nil {
		return "", err
	}
	for range kills {
		w.Agent.Kill()
		if err := w.boot(ctx); err != nil {
			return "", err
		}
	}
	if err := w.Settled(ctx, 3, time.Minute); err != nil {
		return "", err
	}
	after, err := w.Status(ctx)
	if err != nil {
		return "", err
	}
	was, is := processes(before), processes(after)
	if is["broker"] != was["broker"] || is["sensor"] != was["sensor"] || is["web"] == was["web"] {
		return "", fmt.Errorf("processes were %v and are %v: broker and sensor should have run on", was, is)
	}
	if _, err := w.answers(ctx); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d × SIGKILL, generation 3 runs, broker and sensor never stopped", kills), w.fleetSays(ctx, margo.StateInstalled)
}

func (w *show) remove(ctx context.Context) (string, error) {
	if _, err := w.Run(ctx, "longshore", "state", "push", "--device", device, "--key", "release.key", "--empty", w.Reference("plant/state")); err != nil {
		return "", err
	}
	err := testenv.Await(ctx, 60*time.Second, func() error {
		s, err := w.Status(ctx)
		if err == nil && (len(s.Deployments) > 0 || s.Phase != status.PhaseInSync) {
			err = fmt.Errorf("device is %q with %d deployments", s.Phase, len(s.Deployments))
		}
		return err
	})
	if err != nil {
		return "", err
	}
	containers, err := w.Containerd.Ctr(ctx, "-n", w.Containerd.Namespace, "containers", "ls", "-q")
	if err != nil {
		return "", err
	}
	if left := strings.TrimSpace(containers); left != "" {
		return "", fmt.Errorf("containers are left: %s", left)
	}
	return "no container is left; the fleet endpoint has the report", w.fleetSays(ctx, margo.StateRemoved)
}

// project is the folder of a version's Compose project.
func (w *show) project(version int) string { return w.Path(fmt.Sprintf("line-monitor-%d", version)) }

// tellLogs shows what the programs said last, when a step did not show what it promised.
func (w *show) tellLogs() {
	if w.World != nil {
		fmt.Fprintf(w.out, "\n%s\n", w.Logs())
	}
}

// howToLook prints what a person can do while the demo stays.
func (w *show) howToLook() {
	w.Chapter("Everything runs on. Ctrl-C ends and removes it. Meanwhile:")
	w.Say("%s --address %s -n %s containers list", filepath.Join(w.Containerd.Bin, "ctr"), w.Containerd.Address, w.Namespace)
	w.Say("%s/longshore-agent status --config %s", w.Bin, w.Path("etc/agent.yaml"))
	w.Say("HOME=%s LONGSHORE_CA_FILE=%s %s/longshore state show --device %s %s", w.Path("home"), w.Registry.CAFile, w.Bin, device, w.Reference("plant/state"))
	w.Say("look at %s/ and %s/", w.FleetURL, w.webURL)
}

func shortDigest(d string) string { return clip(d, len("sha256:")+12) }

func clip(s string, n int) string {
	if s = strings.TrimSpace(s); len(s) > n {
		return s[:n] + "…"
	}
	return s
}
