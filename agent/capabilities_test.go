package agent_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/machine"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// box is a machine where hardware comes and goes.
type box struct {
	mu   sync.Mutex
	have margo.DeviceCapabilities
}

func (b *box) look() margo.DeviceCapabilities {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.have
}

func (b *box) set(edit func(p *margo.DeviceProperties)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	edit(&b.have.Properties)
}

func plugged(w *agenttest.World, b *box) {
	w.Edit = func(o *agent.Options) { b.have, o.Machine = o.Capabilities, b.look }
}

// reportedCapabilities lists, whenever it is called, the bodies of the capabilities reports from now on.
func reportedCapabilities(w *agenttest.World) func() []string {
	var mu sync.Mutex
	var all []string
	w.Fleet.Fail(func(r store.Report) error {
		mu.Lock()
		defer mu.Unlock()
		if r.Kind == store.KindCapabilities {
			all = append(all, string(r.Body))
		}
		return nil
	})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// What is plugged in is reported once, a burst is one report, and what comes and goes between two looks is none.
func TestHardwareThatChangesIsReportedOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		b, shelf := &box{}, &shelf{}
		plugged(w, b)
		edit := w.Edit
		w.Edit = func(o *agent.Options) { edit(o); o.Publisher = shelf }
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Sync(t, r)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		capabilities := reportedCapabilities(w)
		published := len(shelf.published())
		camera := margo.Peripheral{Type: "camera", Manufacturer: "Acme", Model: "Eye 3"}
		for _, tc := range []struct {
			name string
			do   func()
			want int // reports after it
			told string
		}{
			{"nothing", func() {}, 0, ""},
			{"a burst", func() {
				b.set(func(p *margo.DeviceProperties) { p.Peripherals = append(p.Peripherals, camera) })
				time.Sleep(time.Second)
				b.set(func(p *margo.DeviceProperties) { p.Interfaces = append(p.Interfaces, margo.Interface{Type: "canbus"}) })
			}, 1, "new: camera Acme Eye 3; new: interface canbus"},
			{"in and out", func() {
				b.set(func(p *margo.DeviceProperties) { p.Memory = "16Gi" })
				time.Sleep(time.Second)
				b.set(func(p *margo.DeviceProperties) { p.Memory = "8Gi" })
			}, 1, ""},
			{"unplugged", func() { b.set(func(p *margo.DeviceProperties) { p.Peripherals = []margo.Peripheral{} }) }, 2, "gone: camera Acme Eye 3"},
			{"not understood", func() { b.set(func(p *margo.DeviceProperties) { p.Memory = "much" }) }, 2, ""},
		} {
			time.Sleep(time.Second) // off the moment of a look
			tc.do()
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if reports := capabilities(); len(reports) != tc.want || len(shelf.published())-published != tc.want {
				t.Fatalf("%s: %d reports and %d in the registry, want %d: %q", tc.name, len(reports), len(shelf.published())-published, tc.want, reports)
			}
			if tc.told != "" && !slices.ContainsFunc(eventsOf(t, r.Agent, status.EventRequest{Kind: status.EventCapabilities}), func(e status.Event) bool { return e.Message == tc.told }) {
				t.Errorf("%s: no event with %q", tc.name, tc.told)
			}
		}
		if reports := capabilities(); !strings.Contains(reports[0], `"Eye 3"`) || !strings.Contains(reports[0], "canbus") || strings.Contains(reports[1], "Eye 3") {
			t.Errorf("reports %q", reports)
		}

		// A flapping contact: no more than one report a minute.
		for i := range 600 {
			b.set(func(p *margo.DeviceProperties) { p.Memory = []string{"8Gi", "16Gi"}[i/7%2] })
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if n := len(capabilities()) - 2; n > 11 {
			t.Errorf("%d reports in ten minutes", n)
		}
	})
}

// A keyboard that the kernel lists, and does not list any more, is one report each time.
func TestAnInputDeviceIsReportedOnce(t *testing.T) {
	const link, device = "sys/class/input/input3", "sys/devices/usb1/input/input3"
	root := t.TempDir()
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		w.Edit = func(o *agent.Options) {
			id := margo.DeviceProperties{ID: string(o.Device)}
			o.Machine = func() margo.DeviceCapabilities {
				return machine.Read(os.DirFS(root), machine.Place{Data: "/proc", Cores: 1, Architecture: "amd64"}).Capabilities(id, nil)
			}
			o.Capabilities = o.Machine()
		}
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Sync(t, r)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		capabilities := reportedCapabilities(w)
		for i, do := range []func() error{
			func() error {
				return errors.Join(os.MkdirAll(filepath.Join(root, device, "capabilities"), 0o700), os.MkdirAll(filepath.Join(root, filepath.Dir(link)), 0o700),
					os.WriteFile(filepath.Join(root, device, "capabilities/key"), []byte("1000000000007 ff9f207ac14057ff febeffdfffefffff fffffffffffffffe\n"), 0o600),
					os.Symlink("../../usb1", filepath.Join(root, device, "device")), os.Symlink("../../../"+device, filepath.Join(root, link)))
			},
			func() error { return os.Remove(filepath.Join(root, link)) },
		} {
			time.Sleep(time.Second) // off the moment of a look
			if err := do(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if plugged, reports := i == 0, capabilities(); len(reports) != i+1 || strings.Contains(reports[i], `"keyboard"`) != plugged {
				t.Fatalf("plugged in %v: reports %q", plugged, reports)
			}
		}
	})
}

// A state that this device did not fit is accepted when what it needs is plugged in, without a restart.
func TestAStateIsCheckedAgainstWhatIsThereNow(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		b := &box{}
		plugged(w, b)
		app := anApp(1, "web:1")
		app.Extra = "    deviceConstraints:\n      capacityRequirements:\n        memory: 64Gi\n"
		w.Publish(t, 1, app)
		r := w.Start(t)
		w.Sync(t, r)
		time.Sleep(10 * time.Minute)
		if !hasProblem(r.Status(), codes.DeviceUnfit) {
			t.Fatalf("status %+v", r.Status().Problems)
		}
		b.set(func(p *margo.DeviceProperties) { p.Memory = "128Gi" })
		time.Sleep(5 * time.Minute)
		w.Committed(t, r, 1)
		b.set(func(p *margo.DeviceProperties) { p.Memory = "8Gi" }) // what runs is not stopped
		time.Sleep(5 * time.Minute)
		if w.Observe(t)["app-1/web"].Status != workload.Running || len(r.Status().Problems) > 0 {
			t.Errorf("the application does not run any more: %+v", r.Status().Problems)
		}
	})
}
