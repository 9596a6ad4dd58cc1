package agenttest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

const (
	startFirst = "    deploy: {update_config: {order: start-first}}\n"
	checked    = "    healthcheck: {test: [CMD, check], interval: 5s, retries: 2, timeout: 1s}\n"
)

// front is an application of one service without volumes, in a version.
func front(web, extra string) agenttest.App {
	version, ok := strings.CutPrefix(web, "web:")
	if !ok {
		version = "9"
	}
	return agenttest.App{ID: 3, Name: "front", Components: []agenttest.Comp{{Name: "front", Version: "1.0." + version, Services: []agenttest.Service{
		{Name: "web", Image: web, Extra: "    restart: always\n" + extra},
	}}}}
}

// revisions is a device on which containers of images "crash:…" exit with code 3, and probes of "sick:…" fail.
func revisions(t *testing.T, f func(t *testing.T, w *agenttest.World, m *runtimetest.Memory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		var rt *runtimetest.Memory
		w := agenttest.NewWorld(t, memoryEnv(func(m *runtimetest.Memory) {
			rt = m
			m.Running = func(o workload.Observation) int {
				if isOf(o, "crash:1", "crash:2") {
					return 3
				}
				return -1
			}
			m.Probing = func(_ context.Context, o workload.Observation, _ workload.Probe) error {
				if isOf(o, "sick:1") {
					return errors.New("connection refused")
				}
				return nil
			}
		})(t))
		w.Patience = time.Hour
		f(t, w, rt)
	})
}

// isOf reports whether a container is of one of the images.
func isOf(o workload.Observation, names ...string) bool {
	for _, n := range names {
		if strings.HasSuffix(o.Image, digest.FromString(n).String()) {
			return true
		}
	}
	return false
}

func TestRollbackIsRemembered(t *testing.T) {
	for _, tc := range []struct {
		name, image, extra string
		code               codes.Code
		says               string
	}{
		{"exits", "crash:1", "", codes.ContainerExited, "exited with code 3"},
		{"exits, start-first", "crash:1", startFirst, codes.ContainerExited, "exited with code 3"},
		{"unhealthy", "sick:1", checked, codes.Unhealthy, "connection refused"},
		{"unhealthy, start-first", "sick:1", checked + startFirst, codes.Unhealthy, "connection refused"},
		{"cannot be unpacked", "broken:1", "", codes.ImagePull, "not a tar archive"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			revisions(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
				other := agenttest.App{ID: 4, Name: "other", Components: []agenttest.Comp{
					{Name: "other", Services: []agenttest.Service{{Name: "sensor", Image: "sensor:1"}}},
				}}
				w.Publish(t, 1, front("web:1", tc.extra), agenttest.Line("1"), other)
				r := w.Start(t)
				w.Sync(t, r)
				before := w.Observe(t)
				bad := front(tc.image, tc.extra)
				w.Publish(t, 2, bad, agenttest.Line("2"), other)
				if res := w.Sync(t, r); res.Outcome != status.SyncFailed || res.Code != tc.code || !strings.Contains(res.Message, tc.says) {
					t.Errorf("sync = %+v, want failed with %s", res, tc.code)
				}
				rebooted := false
				rolledBack := func(r *agenttest.Running) {
					t.Helper()
					w.Wait(t, "the way back", func() bool {
						for _, d := range r.Status().Deployments {
							if d.Name == "front" {
								return d.Error != nil && strings.Contains(d.Error.Message, "rolled back to generation 1")
							}
						}
						return false
					})
					w.Wait(t, "the others' update", func() bool {
						return isOf(w.Observe(t)["line-monitor/web"], "web:2")
					})
					for _, d := range r.Status().Deployments {
						if d.Name == "line-monitor" {
							w.Wait(t, "installed", func() bool {
								return d.State == margo.StateInstalled || stateOf(r, "line-monitor") == margo.StateInstalled
							})
						}
						if d.Name != "front" {
							continue
						}
						if d.Refused == nil || d.Refused.Code != tc.code || d.Refused.Generation != 2 || d.Refused.RunningGeneration != 1 || d.Error.Source != "front" {
							t.Errorf("deployment %+v, refused %+v", d, d.Refused)
						}
					}
					got := w.Observe(t)["front/web"]
					if got.Status != workload.Running || got.ID != before["front/web"].ID {
						t.Errorf("front runs %+v, want %+v", got, before["front/web"])
					}
					if !rebooted && strings.Contains(tc.name, "start-first") && got.PID != before["front/web"].PID {
						t.Error("the old container was restarted although the new one never took over")
					}
				}
				rolledBack(r)
				w.Wait(t, "reports", func() bool { return r.Status().Outbox.Depth == 0 })
				r.Stop(t)
				calls := len(m.Calls())
				r = w.Start(t) // another process
				w.Sync(t, r)
				rolledBack(r)
				time.Sleep(time.Hour)
				r.Stop(t)
				m.Reboot()
				rebooted = true
				r = w.Start(t) // after a reboot
				rolledBack(r)
				for _, c := range m.Calls()[calls:] {
					if strings.HasPrefix(c, "create") || strings.Contains(c, digest.FromString(tc.image).String()) {
						t.Errorf("tried again: %s", c)
					}
				}
				w.Publish(t, 3, front("web:2", tc.extra), agenttest.Line("2"), other)
				if res := w.Sync(t, r); res.Outcome != status.SyncInstalled || res.Generation != 3 {
					t.Errorf("sync to a good revision = %+v", res)
				}
				if p := r.Status().Problems; len(p) != 0 {
					t.Errorf("problems left: %+v", p)
				}
				w.Wait(t, "reports", func() bool { return r.Status().Outbox.Depth == 0 })
				got := w.States(t, front("web:1", "").DeploymentID())
				want := []string{"pending@1", "installing@1", "installed@1", "pending@2", "installing@2", "failed@2", "pending@3", "installing@3", "installed@3"}
				if tc.code == codes.ImagePull {
					want = append(want[:4:4], want[5:]...)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("states (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func stateOf(r *agenttest.Running, name string) margo.State {
	for _, d := range r.Status().Deployments {
		if d.Name == name {
			return d.State
		}
	}
	return ""
}

// What a last good revision needs outlives every tidying: two generations later it is still gone back to, offline.
func TestTheLastGoodRevisionIsKept(t *testing.T) {
	revisions(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Publish(t, 1, front("web:1", ""))
		r := w.Start(t)
		w.Sync(t, r)
		for g, image := range []string{"crash:1", "crash:2", "crash:1"} {
			w.Publish(t, uint64(g+2), front(image, ""))
			w.Sync(t, r)
			w.Wait(t, "the way back", func() bool {
				d := r.Status().Deployments[0]
				return d.Generation == uint64(g+2) && d.Error != nil && strings.Contains(d.Error.Message, "rolled back to generation 1")
			})
			time.Sleep(20 * time.Minute)
			r.Stop(t)
			m.Reboot()
			r = w.Start(t)
		}
		w.Wait(t, "the first revision", func() bool {
			c := w.Observe(t)["front/web"]
			return c.Status == workload.Running && isOf(c, "web:1")
		})
		if err := m.Delete(w.Observe(t)["front/web"].ID); err != nil {
			t.Fatal(err)
		}
		w.Registry.Fail(func(string) error { return fault.ErrTemporary })
		w.Wait(t, "it is made anew", func() bool { return w.Observe(t)["front/web"].Status == workload.Running })
	})
}

// A first installation has nothing to go back to: it is tried on, and others do not wait for it.
func TestAFirstInstallationThatFails(t *testing.T) {
	for _, image := range []string{"crash:1", "broken:1"} {
		t.Run(image, func(t *testing.T) {
			revisions(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
				w.Publish(t, 1, front(image, ""), agenttest.Line("1"))
				r := w.Start(t)
				if res := w.Sync(t, r); res.Outcome != status.SyncFailed {
					t.Errorf("sync = %+v, want failed", res)
				}
				w.Wait(t, "the other application", func() bool { return stateOf(r, "line-monitor") == margo.StateInstalled })
				for _, d := range r.Status().Deployments {
					if d.Name == "front" && (d.State != margo.StateFailed || d.Refused != nil) {
						t.Errorf("front is %s, refused %+v", d.State, d.Refused)
					}
				}
				time.Sleep(10 * time.Minute)
				w.Publish(t, 2, front("web:1", ""), agenttest.Line("1"))
				if res := w.Sync(t, r); res.Outcome != status.SyncInstalled {
					t.Errorf("sync = %+v, want installed", res)
				}
			})
		})
	}
}

// When the last good revision does not run either, both reasons are told, and it is tried on.
func TestARollbackThatFails(t *testing.T) {
	revisions(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var broken atomic.Bool
		m.Running = func(o workload.Observation) int {
			if broken.Load() && o.Service == "web" {
				return 3
			}
			return -1
		}
		w.Publish(t, 1, front("web:1", ""))
		r := w.Start(t)
		w.Sync(t, r)
		broken.Store(true)
		w.Publish(t, 2, front("web:2", ""))
		w.Sync(t, r)
		w.Wait(t, "both reasons", func() bool {
			d := r.Status().Deployments[0]
			return d.Error != nil && strings.Count(d.Error.Message, "exited with code 3") == 2 && strings.Contains(d.Error.Message, "generation 1, which does not run either")
		})
		broken.Store(false)
		w.Wait(t, "the first revision runs", func() bool {
			d := r.Status().Deployments[0]
			return isOf(w.Observe(t)["front/web"], "web:1") && w.Observe(t)["front/web"].Status == workload.Running &&
				d.State == margo.StateFailed && !strings.Contains(d.Error.Message, "either")
		})
	})
}

func TestLastWordsAreReported(t *testing.T) {
	revisions(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Publish(t, 1, front("crash:1", ""))
		r := w.Start(t)
		res := w.Sync(t, r)
		if !strings.Contains(res.Message, "exited with code 3; its last output:\n  ") {
			t.Errorf("sync = %+v, want what it wrote last", res)
		}
	})
}

func TestImageHealthcheckCounts(t *testing.T) {
	revisions(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		m.Inspect = func(workload.Image) workload.ImageInfo {
			return workload.ImageInfo{Health: &workload.Health{
				Probe: workload.Probe{Exec: []string{"check"}}, Interval: 10 * time.Second, Timeout: time.Second, Retries: 3,
			}}
		}
		w.Publish(t, 1, front("web:1", ""))
		r := w.Start(t)
		w.Sync(t, r)
		if h := r.Status().Deployments[0].Components[0].Services[0].Health; h != plan.HealthHealthy {
			t.Errorf("health %q, want healthy", h)
		}
		w.Publish(t, 2, front("sick:1", ""))
		if res := w.Sync(t, r); res.Code != codes.Unhealthy {
			t.Errorf("sync = %+v, want unhealthy", res)
		}
		w.Publish(t, 3, front("sick:1", "    healthcheck: {disable: true}\n"))
		if res := w.Sync(t, r); res.Outcome != status.SyncInstalled {
			t.Errorf("sync without the check = %+v", res)
		}
	})
}

// Drift is found by an event, long before the next look.
func TestDriftIsFoundAtOnce(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(m *runtimetest.Memory, id string) error
	}{
		{"deleted", (*runtimetest.Memory).Delete},
		{"paused", (*runtimetest.Memory).Pause},
		{"killed", func(m *runtimetest.Memory, id string) error { return m.Exit(id, 137) }},
		{"edited", func(m *runtimetest.Memory, id string) error {
			return m.Edit(id, func(o *workload.Observation) { o.Hash = "ff" })
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			revisions(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
				w.Publish(t, 1, front("web:1", ""))
				r := w.Start(t)
				w.Sync(t, r)
				c := w.Observe(t)["front/web"]
				synctest.Wait()
				begin := time.Now()
				if err := tc.do(m, c.ID); err != nil {
					t.Fatal(err)
				}
				w.Wait(t, "repair", func() bool {
					x := w.Observe(t)["front/web"]
					return x.Status == workload.Running && x.Hash == c.Hash
				})
				if took := time.Since(begin); took > 5*time.Second {
					t.Errorf("repaired after %v", took)
				}
				r.Stop(t)
			})
		})
	}
}

// What would clash is not begun: what runs of it runs on, the others go on, and it is tried again when there may be room.
func TestAdmission(t *testing.T) {
	revisions(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var taken atomic.Bool
		taken.Store(true)
		m.Admitting = func(projects []*workload.Project) error {
			var cs workload.Conflicts
			for _, p := range projects {
				if taken.Load() && p.Component == "front" && isImage(p, "web:2") {
					cs = append(cs, workload.NewConflict(p, "web", "ports", fault.ErrConflict, "port 80 is held by nginx (4711)", "stop it"))
				}
			}
			if cs == nil {
				return nil
			}
			return cs
		}
		w.Publish(t, 1, front("web:1", ""), agenttest.Line("1"))
		r := w.Start(t)
		w.Sync(t, r)
		before := w.Observe(t)
		w.Publish(t, 2, front("web:2", ""), agenttest.Line("2"))
		res := w.Sync(t, r)
		if res.Outcome != status.SyncFailed || res.Code != codes.Admission || !strings.Contains(res.Message, "held by nginx") || !strings.Contains(res.Message, "generation 1 runs on") {
			t.Errorf("sync = %+v, want a clash", res)
		}
		w.Wait(t, "the other application", func() bool {
			return isOf(w.Observe(t)["line-monitor/web"], "web:2") && stateOf(r, "line-monitor") == margo.StateInstalled
		})
		for range 2 {
			if got := w.Observe(t)["front/web"]; got.PID != before["front/web"].PID || got.ID != before["front/web"].ID {
				t.Errorf("front was touched: %+v, was %+v", got, before["front/web"])
			}
			d := r.Status().Deployments[0]
			if d.Refused == nil || !d.Refused.Waiting || d.Refused.RunningGeneration != 1 {
				t.Errorf("refused %+v", d.Refused)
			}
			r.Stop(t)
			r = w.Start(t)
			w.Sync(t, r)
		}
		taken.Store(false)
		w.Wait(t, "room", func() bool { return isOf(w.Observe(t)["front/web"], "web:2") })
		w.Committed(t, r, 2)
	})
}

func isImage(p *workload.Project, name string) bool {
	for _, s := range p.Services {
		if s.Image.Digest == digest.FromString(name) {
			return true
		}
	}
	return false
}

func TestAdmissionThatCannotTellIsAskedAgain(t *testing.T) {
	revisions(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		asked := 0
		m.Admitting = func([]*workload.Project) error {
			if asked++; asked < 4 {
				return fmt.Errorf("list ports: %w", fault.ErrTemporary)
			}
			return nil
		}
		w.Publish(t, 1, front("web:1", ""))
		r := w.Start(t)
		if res := w.Sync(t, r); res.Outcome != status.SyncInstalled || asked != 4 {
			t.Errorf("sync = %+v after %d questions, want installed after 4", res, asked)
		}
	})
}
