package agenttest_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/manager"
	"github.com/longshore-dev/longshore/agent/status"
	foreign "github.com/longshore-dev/longshore/testenv/manager"
)

// register reports the capabilities of a device that hosts nothing, as another program of the same client does.
func register(t *testing.T, w *agenttest.World, device string) int {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/api/v1/capabilities/"+device, strings.NewReader(fmt.Sprintf(
		`{"properties": {"id": %q, "vendor": "v", "modelNumber": "m", "serialNumber": "s"}}`, device)))
	r.Header.Set("Authorization", "Bearer secret")
	rec := httptest.NewRecorder()
	w.Manager.ServeHTTP(rec, r)
	return rec.Code
}

// reported are the last reports of the deployments of a manager.
func reported(w *agenttest.World) map[string]foreign.Status {
	out := map[string]foreign.Status{}
	for _, s := range w.Manager.Statuses() {
		out[s.Deployment] = s
	}
	return out
}

// Deployments for devices behind this one, known to the manager or not, are reported by Margo's codes, and keep nothing else from running.
func TestChildrenOfADeviceThatIsNoGateway(t *testing.T) {
	managed(t, func(t *testing.T, w *agenttest.World) {
		w.Edit = func(o *agent.Options) { o.Reporter = w.Client() }
		child, unknown, any := app(2, web("web:1")), app(3, web("web:1")), app(4, web("web:1"))
		child.DeviceID, unknown.DeviceID, any.DeviceID = "press-07/sensor-1", "press-07/sensor-2", "press-07/*"
		w.Publish(t, 1, app(1, web("web:1")), child, unknown, any)
		r := w.Start(t)
		w.Wait(t, "the gateway is registered", func() bool { return len(w.Manager.Devices()) == 1 })
		if code := register(t, w, "press-07/sensor-1"); code != http.StatusCreated {
			t.Fatalf("PUT of the child = %d", code)
		}
		if res := w.Sync(t, r); res.Outcome != status.SyncFailed || res.Code != codes.UnknownChild {
			t.Errorf("sync = %+v", res)
		}
		w.Wait(t, "a device that runs what is its own", func() bool { s := r.Status(); return s.Phase == status.PhaseDegraded && s.Committed != nil })
		w.Wait(t, "reports", func() bool { return r.Status().Outbox.Depth == 0 })
		if got := w.Observe(t); len(got) != 1 {
			t.Errorf("containers %v, want the device's own", got)
		}
		last := reported(w)
		for _, tc := range []struct {
			app          agenttest.App
			device, code string
		}{{child, "press-07/sensor-1", "101"}, {unknown, "press-07/sensor-2", "101"}, {any, "press-07", "103"}} {
			s := last[tc.app.DeploymentID()]
			if s.Device != tc.device || s.State != "failed" || s.Error["code"] != tc.code || s.Error["source"] != "press-07" || len(s.Components) != 1 {
				t.Errorf("%s: reported %+v", tc.app.Name, s)
			}
		}
		if s := last[app(1).DeploymentID()]; s.State != "installed" || s.Device != "" && s.Device != "press-07" {
			t.Errorf("the device's own: reported %+v", s)
		}
		w.Publish(t, 2, app(1, web("web:1")))
		installed(t, w, r, 2)
		w.Wait(t, "reports", func() bool { return r.Status().Outbox.Depth == 0 })
		if s := r.Status(); len(s.Deployments) != 1 || s.Phase != status.PhaseInSync {
			t.Errorf("deployments %+v, phase %s", s.Deployments, s.Phase)
		}
	})
}

// A device behind a gateway runs what the manager has for it from the start. The manager takes its capabilities once the gateway is
// registered, and each report says which device it is about.
func TestChildOfAGateway(t *testing.T) {
	const child = "gateway-1/press-07"
	synctest.Test(t, func(t *testing.T) {
		w := agenttest.NewWorld(t, memoryEnv(nil)(t))
		w.Patience = time.Hour
		w.Manage(t, func(o *manager.Options) { o.Device = child })
		w.Edit = func(o *agent.Options) {
			o.Device, o.Capabilities.Properties.ID, o.Reporter = child, child, w.Client()
		}
		own := app(1, web("web:1"))
		own.DeviceID = child
		set := func(version uint64, all ...foreign.Deployment) {
			w.Verifier.Sign(digest.Digest(w.Manager.Set(string(agenttest.Device), version, all...)))
		}
		set(1, foreign.Deployment{ID: own.DeploymentID(), YAML: w.Deployment(t, own)})
		r := w.Start(t)
		installed(t, w, r, 1)
		w.Wait(t, "its capabilities are answered 404", func() bool {
			return slices.Contains(w.Manager.Requests(), "PUT /api/v1/capabilities/"+child+" 404")
		})
		if known := w.Manager.Devices(); len(known) != 0 {
			t.Errorf("before its gateway the manager knows %+v", known)
		}
		if code := register(t, w, "gateway-1"); code != http.StatusCreated {
			t.Fatalf("PUT of the gateway = %d", code)
		}
		w.Wait(t, "reports", func() bool { return r.Status().Outbox.Depth == 0 })
		if known := w.Manager.Devices(); known[child].Client != "press-07" {
			t.Errorf("the manager knows %+v", known)
		}
		if s := reported(w)[own.DeploymentID()]; s.Device != child || s.State != "installed" {
			t.Errorf("reported %+v", s)
		}
		set(2)
		installed(t, w, r, 2)
		w.Wait(t, "reports", func() bool { return r.Status().Outbox.Depth == 0 })
		if s := reported(w)[own.DeploymentID()]; s.Device != child || s.State != "removed" || s.Adopted != 2 {
			t.Errorf("reported %+v", s)
		}
	})
}

// The text of the specification has deployments of type custom, and constraints for architectures that capabilities cannot name. They
// are read; what this device cannot run is told by name, and does not stop what runs.
func TestManagerByTheText(t *testing.T) {
	managed(t, func(t *testing.T, w *agenttest.World) {
		cores := func(architectures string) string {
			return "    deviceConstraints: {capacityRequirements: {cpu: {cores: 1, architectures: [" + architectures + "]}, memory: 1Mi, storage: 1Mi}}\n"
		}
		fits, custom, riscv, other := app(1, web("web:1")), app(2, web("web:1")), app(3, web("web:1")), app(4, web("web:1"))
		fits.Extra, custom.Type, riscv.Extra, other.Extra = cores("riscv64, other, amd64"), "custom", cores("riscv64"), cores("other")
		w.Publish(t, 1, fits)
		r := w.Start(t)
		installed(t, w, r, 1)
		before := w.Observe(t)
		for i, tc := range []struct {
			app  agenttest.App
			code codes.Code
			says string
		}{{custom, codes.ComponentUnsupported, "custom"}, {riscv, codes.DeviceUnfit, "riscv64"}, {other, codes.DeviceUnfit, "other"}} {
			w.Publish(t, uint64(i)+2, fits, tc.app)
			if res := w.Sync(t, r); res.Code != tc.code || !strings.Contains(res.Message, tc.app.Name) || !strings.Contains(res.Message, tc.says) {
				t.Errorf("sync to %s = %+v", tc.says, res)
			}
			w.Same(t, before)
		}
	})
}
