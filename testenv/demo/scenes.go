package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/testenv"
)

// scenes are the demo, in order.
func scenes() []scene {
	return []scene{
		{"A plant: a device with containerd, a registry, a fleet endpoint", setUp},
		{"A release, from a Compose project to a running device", release},
		{"What happens to devices", trouble},
		{"Updates that nobody notices", updates},
		{"What is not right is refused, and the application answers meanwhile", attacks},
		{"The end", removal},
	}
}

// step is one line of a scene.
type step struct {
	what string
	do   func(ctx context.Context) (shown string, err error)
}

func (w *world) steps(ctx context.Context, steps []step) error {
	for _, s := range steps {
		if err := w.Step(ctx, s.what, s.do); err != nil {
			w.tellLogs()
			return err
		}
	}
	return nil
}

func setUp(ctx context.Context, w *world) error {
	return w.steps(ctx, []step{{"our programs are built", w.build}, {"containerd", w.startContainerd}, {"registry", w.startRegistry}, {"fleet endpoint", w.startFleet}})
}

func release(ctx context.Context, w *world) error {
	return w.steps(ctx, []step{
		{"release 1.0.0 is pushed, locked, signed and assigned", w.publishFirst},
		{"the device takes it and HTTP answers", w.install},
		{"the fleet endpoint knows", w.fleetKnows},
		{"release 1.1.0 replaces one service, the others run on", w.update},
	})
}

func trouble(ctx context.Context, w *world) error {
	return w.steps(ctx, []step{
		{"the registry goes away and comes back", w.registryAway},
		{"somebody flushes the firewall", w.flushed},
		{"the agent is killed in the middle of an update and converges", w.killed},
	})
}

func updates(ctx context.Context, w *world) error {
	return w.steps(ctx, []step{
		{"release 1.2.0 starts its front before the old one stops", w.gapless},
		{"release 1.3.0 never gets healthy and goes back by itself", w.goesBack},
	})
}

func removal(ctx context.Context, w *world) error {
	return w.steps(ctx, []step{{"the application is removed", w.remove}})
}

func (w *world) build(ctx context.Context) (string, error) {
	return "longshore, longshore-agent, longshore-fleet", w.Build(ctx, "longshore", "longshore-agent", "longshore-fleet")
}

func (w *world) startContainerd(ctx context.Context) (shown string, err error) {
	if w.containerd, err = testenv.StartContainerd(ctx, testenv.DaemonOptions{Box: w.Box, Out: w.out}); err != nil {
		return "", err
	}
	return fmt.Sprintf("process %d", w.containerd.PID()), nil
}

func (w *world) startRegistry(ctx context.Context) (string, error) {
	dir, err := w.Box.Folder("registry")
	if err != nil {
		return "", err
	}
	if w.registry, err = testenv.StartRegistry(dir, testenv.DistributionHtpasswd, testenv.WithTLS()); err != nil {
		return "", err
	}
	w.Box.Add("registry", w.registry.Close)
	for version := 1; version <= 2; version++ {
		if _, err := testenv.LineMonitor(ctx, w.out, w.registry, w.project(version), version); err != nil {
			return "", err
		}
	}
	_, received := w.registry.Faults.Bytes("", "")
	return fmt.Sprintf("CNCF distribution with TLS and passwords on %s, %.1f MB of images", w.registry.Host, float64(received)/1e6), nil
}

func (w *world) startFleet(ctx context.Context) (string, error) {
	address, err := freeAddress()
	if err != nil {
		return "", err
	}
	w.fleetURL = "http://" + address
	token, err := w.longshore(ctx, "longshore-fleet", "token", "create", "--database", w.path("fleet.db"), "--device", device)
	if err != nil {
		return "", err
	}
	if err := errors.Join(os.MkdirAll(w.path("etc"), 0o755), os.WriteFile(w.path("etc/token"), []byte(token), 0o600)); err != nil {
		return "", err
	}
	if _, err := w.Box.Start("longshore-fleet", nil, filepath.Join(w.Bin, "longshore-fleet"), "serve", "--database", w.path("fleet.db"), "--listen", address); err != nil {
		return "", err
	}
	return w.fleetURL, testenv.Await(ctx, 10*time.Second, func() error {
		_, err := fetch(ctx, w.fleetURL+"/healthz")
		return err
	})
}

func (w *world) publishFirst(ctx context.Context) (string, error) {
	address, err := freeAddress()
	if err != nil {
		return "", err
	}
	w.webURL = "http://" + address
	password := w.path("password")
	if err := os.WriteFile(password, []byte(w.registry.Password), 0o600); err != nil {
		return "", err
	}
	if _, err := w.sh(ctx, `longshore login --username "$1" --password-stdin "$2" <"$3"`, w.registry.Username, w.registry.Host, password); err != nil {
		return "", err
	}
	if _, err := w.longshore(ctx, "longshore", "key", "generate", "release"); err != nil {
		return "", err
	}
	component, err := w.pushComponent(ctx, 1, "1.0.0")
	if err != nil {
		return "", err
	}
	state, err := w.pushState(ctx, "1.0.0")
	return fmt.Sprintf("component %s, state %s", shortDigest(component), shortDigest(state)), err
}

func (w *world) pushComponent(ctx context.Context, project int, version string) (string, error) {
	return digestOf(w.longshore(ctx, "longshore", "component", "push", "-o", "json", w.project(project), w.registry.Reference("plant/components/line-monitor:"+version)))
}

func (w *world) pushState(ctx context.Context, version string, more ...string) (string, error) {
	args := []string{
		"state", "push", "-o", "json", "--device", device, "--key", "release.key", "--set", "WEB_PORT=" + strings.TrimPrefix(w.webURL, "http://"),
		"--component", "oci://" + w.registry.Reference("plant/components/line-monitor:"+version),
	}
	return digestOf(w.longshore(ctx, "longshore", append(append(args, more...), w.registry.Reference("plant/state"))...))
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

func (w *world) install(ctx context.Context) (string, error) {
	if err := w.configure(ctx); err != nil {
		return "", err
	}
	if err := w.boot(ctx); err != nil {
		return "", err
	}
	if err := w.settled(ctx, 1); err != nil {
		return "", err
	}
	body, err := w.answers(ctx)
	return "GET " + w.webURL + "/readings: " + clip(body, 70), err
}

func (w *world) fleetKnows(ctx context.Context) (string, error) {
	return "installed; the page is " + w.fleetURL + "/", w.fleetSays(ctx, margo.StateInstalled)
}

func (w *world) fleetSays(ctx context.Context, want margo.State) error {
	return testenv.Await(ctx, 20*time.Second, func() error {
		body, err := fetch(ctx, w.fleetURL+"/fleet/v1/deployments")
		if err == nil && !strings.Contains(strings.ReplaceAll(string(body), " ", ""), `"state":"`+string(want)+`"`) {
			err = fmt.Errorf("no deployment is %s: %s", want, clip(string(body), 300))
		}
		return err
	})
}

// maxUpdate bounds what release 1.1.0 may cost: documents, signatures and one small layer. The image has megabytes.
const maxUpdate = 64 << 10

func (w *world) update(ctx context.Context) (string, error) {
	before, err := w.status(ctx)
	if err != nil {
		return "", err
	}
	if _, err := w.pushComponent(ctx, 2, "1.1.0"); err != nil {
		return "", err
	}
	w.registry.Faults.Forget()
	if _, err := w.pushState(ctx, "1.1.0"); err != nil {
		return "", err
	}
	if err := w.settled(ctx, 2); err != nil {
		return "", err
	}
	after, err := w.status(ctx)
	if err != nil {
		return "", err
	}
	was, is := processes(before), processes(after)
	if is["web"] == was["web"] || is["broker"] != was["broker"] || is["sensor"] != was["sensor"] || is["broker"] == 0 {
		return "", fmt.Errorf("processes were %v and are %v: only web should have changed", was, is)
	}
	// Only web's image changed, and of it only the layer with its title: everything else is on the device already.
	sent := int64(0)
	for _, r := range w.registry.Faults.Requests("GET", "") {
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

func (w *world) registryAway(ctx context.Context) (string, error) {
	customer := startWatch(ctx, w.webURL+"/readings")
	w.registry.Down()
	err := testenv.Await(ctx, 30*time.Second, func() error { return w.hasProblem(ctx, codes.SourceUnreachable) })
	if err = errors.Join(err, w.registry.Up()); err == nil {
		err = testenv.Await(ctx, 60*time.Second, func() error {
			if w.hasProblem(ctx, codes.SourceUnreachable) == nil {
				return errors.New("the agent still thinks that the registry is away")
			}
			return nil
		})
	}
	seen, lost := customer.end()
	return "told as " + string(codes.SourceUnreachable) + ", then checked again; " + seen, errors.Join(err, lost)
}

// flushed empties the device's nftables table, as a reload of a firewall does, and waits until it is whole again.
func (w *world) flushed(ctx context.Context) (string, error) {
	if _, err := w.sh(ctx, `nft flush table ip "$1"`, w.table()); err != nil {
		return "", err
	}
	start := time.Now()
	if err := testenv.Await(ctx, 60*time.Second, func() error {
		_, err := fetch(ctx, w.webURL+"/readings")
		return err
	}); err != nil {
		return "", err
	}
	shown := fmt.Sprintf("published again after %.1f s", time.Since(start).Seconds())
	return shown + ", and told as an event", testenv.Await(ctx, 60*time.Second, func() error {
		events, err := w.longshore(ctx, "longshore-agent", "events", "--config", w.path("etc/agent.yaml"))
		if err == nil && !strings.Contains(events, string(status.EventRepaired)) {
			err = fmt.Errorf("no repair is told:\n%s", clip(events, 2000))
		}
		return err
	})
}

// killed goes back to the files of 1.0.0 in a new generation, and kills the agent three times: when it has taken the old
// front away, and twice more on its way to the new one.
func (w *world) killed(ctx context.Context) (string, error) {
	const kills = 3
	before, err := w.status(ctx)
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
		w.agent.Kill()
		if err := w.boot(ctx); err != nil {
			return "", err
		}
	}
	if err := w.settled(ctx, 3); err != nil {
		return "", err
	}
	after, err := w.status(ctx)
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

func (w *world) remove(ctx context.Context) (string, error) {
	if _, err := w.longshore(ctx, "longshore", "state", "push", "--device", device, "--key", "release.key", "--empty", w.registry.Reference("plant/state")); err != nil {
		return "", err
	}
	err := testenv.Await(ctx, 60*time.Second, func() error {
		s, err := w.status(ctx)
		if err == nil && (len(s.Deployments) > 0 || s.Phase != status.PhaseInSync) {
			err = fmt.Errorf("device is %q with %d deployments", s.Phase, len(s.Deployments))
		}
		return err
	})
	if err != nil {
		return "", err
	}
	containers, err := w.containerd.Ctr(ctx, "-n", w.containerd.Namespace, "containers", "ls", "-q")
	if err != nil {
		return "", err
	}
	if left := strings.TrimSpace(containers); left != "" {
		return "", fmt.Errorf("containers are left: %s", left)
	}
	return "no container is left; the fleet endpoint knows", w.fleetSays(ctx, margo.StateRemoved)
}

// environment of the engineer and the device: nothing of the caller's home is read or written.
func (w *world) environment() []string {
	return []string{
		"HOME=" + w.path("home"), "DOCKER_CONFIG=" + w.path("home/.docker"), "PATH=" + w.Bin + ":" + os.Getenv("PATH"),
		"LONGSHORE_CA_FILE=" + w.registry.CAFile, "LONGSHORE_KEY_PASSWORD=demo", "NO_COLOR=1",
	}
}

// longshore runs one of our programs and returns what it prints.
func (w *world) longshore(ctx context.Context, program string, args ...string) (string, error) {
	r, err := w.Must(ctx, w.environment(), program, args...)
	return r.Stdout, err
}

// sh types a line into a shell, for what needs one.
func (w *world) sh(ctx context.Context, line string, args ...string) (string, error) {
	r, err := w.Must(ctx, w.environment(), "/bin/sh", append([]string{"-c", line, "sh"}, args...)...)
	return r.Stdout, err
}

// path of something in the demo's folder.
func (w *world) path(name string) string { return filepath.Join(w.Box.Dir(), name) }

// project is the folder of a version's Compose project.
func (w *world) project(version int) string { return w.path(fmt.Sprintf("line-monitor-%d", version)) }

// tellLogs shows what the programs said last, when a step did not show what it promised.
func (w *world) tellLogs() {
	for _, name := range []string{"longshore-agent.log", "longshore-fleet.log"} {
		data, err := os.ReadFile(w.path(name))
		if err != nil {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		fmt.Fprintf(w.out, "\nlast lines of %s:\n%s\n", name, strings.Join(lines[max(0, len(lines)-25):], "\n"))
	}
}

// howToLook tells what a person can do while the demo stays.
func (w *world) howToLook() {
	w.Chapter("Everything runs on. Ctrl-C ends and removes it. Meanwhile:")
	w.Say("%s --address %s -n %s containers list", filepath.Join(w.containerd.Bin, "ctr"), w.containerd.Address, w.containerd.Namespace)
	if w.agent != nil {
		w.Say("%s/longshore-agent status --config %s", w.Bin, w.path("etc/agent.yaml"))
		w.Say("HOME=%s LONGSHORE_CA_FILE=%s %s/longshore state show --device %s %s", w.path("home"), w.registry.CAFile, w.Bin, device, w.registry.Reference("plant/state"))
		w.Say("look at %s/ and %s/", w.fleetURL, w.webURL)
	}
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

func shortDigest(d string) string { return clip(d, len("sha256:")+12) }

func clip(s string, n int) string {
	if s = strings.TrimSpace(s); len(s) > n {
		return s[:n] + "…"
	}
	return s
}

// Up starts containerd and a registry with the application's images, says where they are, and stays until ctx ends.
func Up(ctx context.Context, out io.Writer) error {
	return run(ctx, Options{Out: out, Keep: true}, []scene{{"containerd and a registry", func(ctx context.Context, w *world) error {
		return w.steps(ctx, []step{{"containerd", w.startContainerd}, {"registry", w.startRegistry}})
	}}})
}
