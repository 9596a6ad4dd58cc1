package attack

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

// TestFullDevice: a workload has written until the device's only disk was full. The state that removes it and needs room for a new
// image still gets through: what the agent has to write has its room already.
func TestFullDevice(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "needs root")
	}
	box := testenv.NewBox(t)
	disk, err := box.NewDisk(t.Context(), 96<<20)
	if err != nil {
		testenv.Unavailable(t, "%v", err)
	}
	daemon, err := testenv.StartContainerd(t.Context(), testenv.DaemonOptions{Box: box, Root: filepath.Join(disk.Dir, "containerd")})
	if err != nil {
		testenv.Unavailable(t, "%v", err)
	}
	w, err := world.New(t.Context(), world.Options{Box: box, Name: "full", Pool: "10.218.0.0/16", Containerd: daemon})
	if err != nil {
		t.Fatal(err)
	}
	first, err := testenv.SoftwareImage(t.Context(), os.Stderr, "toolbox", testenv.HostPlatform())
	must(t, "image", err)
	data := make([]byte, 2<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data) // does not fail
	second, err := testenv.AppendLayers(first, []testenv.File{{Path: "grown", Data: data}})
	must(t, "image", err)
	for n, img := range []v1.Image{first, second} {
		_, err := w.Registry.Push(t.Context(), fmt.Sprintf("plant/toolbox:%d", n+1), img)
		must(t, "push", err)
	}
	component := func(name, version string) string {
		reference, err := w.Component(t.Context(), name, version+".0.0", fmt.Sprintf("services: {main: {image: %s, command: [serve, \"8080\", hello]}}\n", w.Registry.Reference("plant/toolbox:"+version)))
		must(t, "component", err)
		return reference
	}
	_, err = w.Run(t.Context(), "longshore", "key", "generate", "release")
	must(t, "key", err)
	must(t, "state 1", w.Release(t.Context(), component("press", "1")))
	must(t, "state 2", w.Release(t.Context(), component("filler", "1")))
	must(t, "init", w.Init(t.Context(), "--data-dir", filepath.Join(disk.Dir, "data")))
	must(t, "boot", w.Boot(t.Context()))
	must(t, "the workloads run", w.Settled(t.Context(), 2, settleLimit))

	said, err := w.Control(t.Context(), "exec", "filler/main", "--", "/toolbox", "touch-mib", "/filled", "1024")
	if err != nil || !strings.Contains(said, "no space left") {
		t.Fatalf("filling the disk: %q, %v", said, err)
	}
	must(t, "the full disk is a problem", testenv.Await(t.Context(), tellLimit, func() error {
		s, err := w.Status(t.Context())
		if err == nil && !slices.ContainsFunc(s.Problems, func(p status.Problem) bool { return p.Code == codes.DiskLow }) {
			err = fmt.Errorf("problems %+v", s.Problems)
		}
		return err
	}))
	must(t, "the last bytes", fill(filepath.Join(disk.Dir, "rest")))
	must(t, "state 3", w.Release(t.Context(), component("press", "2"), "--replace"))
	if err := w.Settled(t.Context(), 3, tellLimit); err != nil {
		log, _ := os.ReadFile(w.Agent.LogFile)
		t.Fatalf("the state that frees the disk: %v\n%s", err, log[max(0, len(log)-6000):])
	}
	s, err := w.Status(t.Context())
	must(t, "status", err)
	if n := len(world.Processes(s)); n != 1 {
		t.Errorf("%d containers, want 1", n)
	}
}

func must(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// fill writes into a file until its disk has no room for another byte. A full disk is no error.
func fill(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND|os.O_SYNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for piece := 64 << 10; piece > 0; {
		if _, err := f.Write(make([]byte, piece)); errors.Is(err, syscall.ENOSPC) {
			piece /= 2
		} else if err != nil {
			return err
		}
	}
	return nil
}

// TestDeadAgent: a device whose agent is dead, while its containers run on, is offline after three of its intervals: in the lists, on
// the page, in the fleet's status and for a rollout, which does not count it as well. With its agent it is back; when it dies after a
// release, the wave of that release fails.
func TestDeadAgent(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "needs root")
	}
	box := testenv.NewBox(t)
	w, err := world.New(t.Context(), world.Options{Box: box, Name: "dead", Pool: "10.220.0.0/16"})
	if err != nil {
		t.Fatal(err)
	}
	img, err := testenv.SoftwareImage(t.Context(), os.Stderr, "toolbox", testenv.HostPlatform())
	must(t, "image", err)
	_, err = w.Registry.Push(t.Context(), "plant/toolbox:1", img)
	must(t, "push", err)
	_, err = w.Component(t.Context(), "line", "1.0.0", fmt.Sprintf("services: {main: {image: %s, command: [serve, \"8080\", \"${GREETING:-hello}\"]}}\n", w.Registry.Reference("plant/toolbox:1")))
	must(t, "component", err)
	e := startEndpoint(t)
	must(t, "token", os.WriteFile(w.Path("token"), []byte(e.token(t, w.Device)), 0o600))
	fleet := w.Path("fleet/fleet.yaml")
	files := "fleet: plant\nregistry: " + w.Host + "/plant\nendpoint: " + e.url + "\ninclude: [devices.yaml]\n" +
		"applications:\n  line: {component: components/line, version: 1.0.0}\ndeployments:\n  line: {application: line, select: line, parameters: {GREETING: hello}}\n"
	must(t, "fleet", errors.Join(os.MkdirAll(w.Path("fleet"), 0o755), os.WriteFile(fleet, []byte(files), 0o600),
		os.WriteFile(w.Path("fleet/devices.yaml"), []byte("devices:\n  - {id: "+w.Device+", labels: {line: a}}\n"), 0o600)))
	longshore := func(args ...string) string { // what the fleet's status says is not its exit code's matter here
		t.Helper()
		out, _ := w.Run(t.Context(), "longshore", args...)
		return out
	}
	longshore("key", "generate", "release")
	publish := []string{"fleet", "publish", "--no-wait", "--key", w.Path("release.key"), w.Path("fleet")}
	longshore(publish...)

	must(t, "init", w.Init(t.Context(), "--fleet-url", e.url, "--fleet-token-file", w.Path("token")))
	config, err := os.ReadFile(w.Path("etc/agent.yaml"))
	must(t, "configuration", err)
	must(t, "configuration", os.WriteFile(w.Path("etc/agent.yaml"), bytes.Replace(config, []byte("fleet:\n"), []byte("fleet:\n  interval: 1s\n"), 1), 0o600))
	must(t, "boot", w.Boot(t.Context()))
	must(t, "the workload runs", w.Settled(t.Context(), 1, settleLimit))
	reported := func() (state, since string) {
		var s struct {
			Devices []struct {
				Reported struct{ State, OfflineSince string }
			}
		}
		if err := json.Unmarshal([]byte(longshore("fleet", "status", "-o", "json", w.Path("fleet"))), &s); err != nil || len(s.Devices) != 1 {
			t.Fatalf("fleet status: %+v, %v", s, err)
		}
		return s.Devices[0].Reported.State, s.Devices[0].Reported.OfflineSince
	}
	well := func() error {
		if state, since := reported(); state != "well" || since != "" {
			return fmt.Errorf("the device is %s, offline since %q", state, since)
		}
		if text := e.page(t, "/fleet/v1/devices?offline=true"); strings.Contains(text, w.Device) {
			return fmt.Errorf("offline: %s", text)
		}
		return nil
	}
	must(t, "the device is well", testenv.Await(t.Context(), tellLimit, well))
	before, err := w.Status(t.Context())
	must(t, "status", err)

	w.Agent.Kill()
	<-w.Agent.Done()
	must(t, "the device is offline", testenv.Await(t.Context(), tellLimit, func() error {
		if state, since := reported(); state != "offline" || since == "" {
			return fmt.Errorf("the device is %s, offline since %q", state, since)
		}
		return nil
	}))
	if text := longshore("fleet", "status", w.Path("fleet")); !strings.Contains(text, "! "+w.Device+" is offline since ") || !strings.Contains(text, "0 well") {
		t.Errorf("fleet status says\n%s", text)
	}
	if text := e.page(t, "/fleet/v1/devices?offline=true"); !strings.Contains(text, w.Device) {
		t.Errorf("the devices that are offline: %s", text)
	}
	if text := e.page(t, "/"); !strings.Contains(text, "offline since ") {
		t.Errorf("the page does not tell it:\n%s", text)
	}
	files = strings.Replace(files, "GREETING: hello", "GREETING: moin", 1) + "rollout: {waves: [{name: all, percent: 100}]}\n"
	must(t, "fleet", os.WriteFile(fleet, []byte(files), 0o600))
	if text := longshore(publish...); strings.Contains(text, "done") {
		t.Errorf("the rollout is over:\n%s", text)
	}
	show := []string{"fleet", "rollout", "show", "--verify-key", w.Path("release.pub"), w.Path("fleet")}
	if text := longshore(show...); !strings.Contains(text, "offline") {
		t.Errorf("the rollout shows\n%s", text)
	}

	must(t, "boot", w.Boot(t.Context()))
	must(t, "the update runs", w.Settled(t.Context(), 2, settleLimit))
	must(t, "the device is back", testenv.Await(t.Context(), tellLimit, well))
	after, err := w.Status(t.Context())
	must(t, "status", err)
	if a, b := world.Processes(before), world.Processes(after); len(a) != 1 || len(b) != 1 || maps.Equal(a, b) {
		t.Errorf("containers %v, before %v: the update runs in another", b, a)
	}
	if text := longshore(publish...); !strings.Contains(text, "done") {
		t.Errorf("the rollout with the device that is back:\n%s", text)
	}

	// It dies again after the next release reached it, while its wave soaks.
	files = strings.Replace(strings.Replace(files, "GREETING: moin", "GREETING: servus", 1), "percent: 100}", "percent: 100, soak: 1h, deadline: 1s}", 1)
	must(t, "fleet", os.WriteFile(fleet, []byte(files), 0o600))
	longshore(publish...)
	must(t, "the third release runs", w.Settled(t.Context(), 3, settleLimit))
	must(t, "the device is well", testenv.Await(t.Context(), tellLimit, well))
	if text := longshore(show...); !strings.Contains(text, "1 of 1 device well") || strings.Contains(text, "halted") {
		t.Errorf("the wave soaks:\n%s", text)
	}
	w.Agent.Kill()
	<-w.Agent.Done()
	const lost = "wave all: 0 of 1 device well, 1 offline after 1s, 1 must be"
	must(t, "the device that went silent counts against its wave", testenv.Await(t.Context(), tellLimit, func() error {
		longshore(publish...)
		if text := longshore(show...); !strings.Contains(text, "halted: "+lost) {
			return errors.New(text)
		}
		return nil
	}))
}

// page is what the endpoint answers to a browser of this machine.
func (e *endpoint) page(t *testing.T, path string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, e.url+path, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	res, err := e.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, 4<<20))
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", path, res.Status, err)
	}
	return string(text)
}
