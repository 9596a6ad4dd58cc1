package agent_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// saved opens the store of an agent that does not run.
func saved(t *testing.T, w *agenttest.World, f func(*store.Tx) error) {
	t.Helper()
	s, err := store.Open(store.Options{Path: w.Path, Device: string(agenttest.Device)})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Update(f), s.Close()); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedDocumentsAreFetchedWhateverTheTagSays(t *testing.T) {
	for name, move := range map[string]func(*testing.T, *agenttest.World){
		"refused": func(t *testing.T, w *agenttest.World) { w.Publish(t, 4, anApp(1, "web:2")) },
		"refused before": func(t *testing.T, w *agenttest.World) {
			w.Publish(t, 4, anApp(1, "web:2"))
			r := w.Start(t)
			w.Sync(t, r)
			r.Stop(t)
		},
		"deleted": func(_ *testing.T, w *agenttest.World) {
			w.Registry.Fail(func(q string) error {
				if strings.HasPrefix(q, "resolve") {
					return fault.ErrNotFound
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
				w.Publish(t, 5, anApp(1, "web:1"))
				r := w.Start(t)
				w.Sync(t, r)
				r.Stop(t)
				move(t, w)
				w.Content.Damage(nil)
				r = w.Start(t)
				time.Sleep(2 * time.Minute)
				if hasProblem(r.Status(), codes.ContentDamaged) {
					t.Error("the documents of the accepted state are still missing")
				}
				s := r.Status().Deployments[0].Components[0].Services
				if len(s) != 1 || s[0].Status != workload.Running {
					t.Errorf("services %+v", s)
				}
			})
		})
	}
}

func TestALostPinIsNotReplacedByATag(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		a := anApp(1, "web:1")
		a.Components[0].NoLock = true
		w.Registry.Tag("registry.example/images/web", "1", ocispec.Descriptor{Digest: digest.FromString("one")})
		w.Publish(t, 1, a)
		r := w.Start(t)
		w.Sync(t, r)
		r.Stop(t)
		saved(t, w, func(tx *store.Tx) error { return tx.RetainPins() })
		w.Registry.Tag("registry.example/images/web", "1", ocispec.Descriptor{Digest: digest.FromString("two")})
		m.Reboot()
		r = w.Start(t)
		w.Sync(t, r)
		time.Sleep(5 * time.Minute)
		if got := w.Observe(t)["app-1/web"].Image; !strings.HasSuffix(got, digest.FromString("one").String()) {
			t.Errorf("image %s", got)
		}
		if slices.ContainsFunc(m.Pulled(), func(i string) bool { return strings.Contains(i, digest.FromString("two").String()) }) {
			t.Errorf("images %v: a tag took the place of a pin", m.Pulled())
		}
		if !hasProblem(r.Status(), codes.ContentDamaged) {
			t.Errorf("problems %+v", r.Status().Problems)
		}
		w.Publish(t, 2, anApp(1, "web:2")) // the way out
		if res := w.Sync(t, r); res.Outcome != status.SyncInstalled || len(r.Status().Problems) != 0 {
			t.Errorf("sync = %+v, problems %+v", res, r.Status().Problems)
		}
	})
}

func TestWhatCannotBeReadIsNotTidiedAway(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		a := anApp(1, "web:1")
		a.Components[0].NoLock = true
		w.Registry.Tag("registry.example/images/web", "1", ocispec.Descriptor{Digest: digest.FromString("one")})
		first := w.Publish(t, 1, a)
		r := w.Start(t)
		w.Sync(t, r)
		time.Sleep(time.Minute)
		before, damaged := w.Content.Len(), 0
		w.Content.Damage(func(d digest.Digest, _ string) bool { damaged++; return d != first && damaged > 1 })
		w.Publish(t, 2, anApp(2, "web:2"))
		w.Sync(t, r)
		time.Sleep(time.Minute)
		if n := w.Content.Len(); n <= before {
			t.Errorf("%d blobs are kept, there were %d before generation 2", n, before)
		}
		r.Stop(t)
		saved(t, w, func(tx *store.Tx) error {
			pins, err := tx.Pins(first)
			if len(pins) != 1 {
				t.Errorf("pins %v of the last good generation, want 1", pins)
			}
			return err
		})
	})
}

func TestADeviceThatNeverSettlesIsTidied(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		m.Running = func(workload.Observation) int { return 3 }
		r := w.Start(t)
		for g := range uint64(6) {
			w.Publish(t, g+1, anApp(1, "web:"+string(rune('1'+g))))
			w.Sync(t, r)
			time.Sleep(5 * time.Minute)
		}
		if got := m.Pulled(); len(got) > 2 || len(got) == 0 {
			t.Errorf("images %v, want that of the target", got)
		}
		if r.Status().Committed != nil {
			t.Error("it settled")
		}
	})
}

// collector is a runtime whose Collect does what a test says.
type collector struct {
	*runtimetest.Memory
	calls   atomic.Int64
	collect func(context.Context) error
}

func (c *collector) Collect(ctx context.Context, keep []workload.Image) error {
	c.calls.Add(1)
	if err := c.collect(ctx); err != nil {
		return err
	}
	return c.Memory.Collect(ctx, keep)
}

func TestTidyingIsTriedAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var broken atomic.Bool
		c := &collector{Memory: m, collect: func(context.Context) error {
			if broken.Load() {
				return errors.New("busy")
			}
			return nil
		}}
		w.Env.Runtime = func(*testing.T) agent.Runtime { return c }
		r := w.Start(t)
		for g := range uint64(3) {
			broken.Store(g == 2)
			w.Publish(t, g+1, anApp(1, "web:"+string(rune('1'+g))))
			w.Sync(t, r)
			time.Sleep(5 * time.Minute)
		}
		c.calls.Store(0)
		time.Sleep(2 * time.Hour)
		if n := c.calls.Load(); n < 5 || n > 14 {
			t.Errorf("tidied %d times in two hours, want a pause between the tries", n)
		}
		broken.Store(false)
		time.Sleep(15 * time.Minute)
		if got := m.Pulled(); len(got) != 2 {
			t.Errorf("images %v", got)
		}
	})
}

// TestAFullDiskIsTidiedForAPull: an agent that cannot load what it is to run, because of what nobody needs, does not wait for
// somebody to remove that, nor for a check that brings something else.
func TestAFullDiskIsTidiedForAPull(t *testing.T) {
	for _, anew := range []bool{false, true} {
		t.Run(map[bool]string{false: "while it runs", true: "when it starts"}[anew], func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
				const room = 3
				var away atomic.Bool
				m.Images = func(i workload.Image) error {
					switch have := m.Pulled(); {
					case away.Load():
						return fault.ErrTemporary
					case len(have) >= room && !slices.Contains(have, i.Name()):
						return syscall.ENOSPC
					}
					return nil
				}
				w.Publish(t, 1, anApp(1, "web:1"))
				r := w.Start(t)
				w.Sync(t, r)
				time.Sleep(time.Minute)
				for _, old := range []string{"a", "b"} {
					if _, err := m.Pull(t.Context(), workload.Image{Repository: "registry.example/images/old", Digest: digest.FromString(old)}, nil); err != nil {
						t.Fatal(err)
					}
				}
				away.Store(anew)
				w.Publish(t, 2, anApp(1, "web:2"))
				if anew {
					w.Wait(t, "generation 2", func() bool { s := r.Status(); return s.Accepted != nil && s.Accepted.Generation == 2 })
					r.Stop(t)
					away.Store(false)
					r = w.Start(t)
				}
				kept := w.Content.Len()
				w.Wait(t, "generation 2 to run", func() bool { s := r.Status(); return s.Running != nil && s.Running.Generation == 2 && s.Loading == nil })
				if n := w.Content.Len(); n < kept {
					t.Errorf("%d documents are kept, there were %d", n, kept)
				}

				w.Publish(t, 3, anApp(1, "web:3"), anApp(2, "web:4"), anApp(3, "web:5"), anApp(4, "web:6")) // what never fits
				time.Sleep(time.Hour)
				if s := r.Status(); s.Running.Generation != 2 {
					t.Errorf("running %+v, want generation 2", s.Running)
				}
				if have := m.Pulled(); !slices.ContainsFunc(have, func(i string) bool { return strings.HasSuffix(i, digest.FromString("web:2").String()) }) {
					t.Errorf("images %v: what runs was removed", have)
				}
			})
		})
	}
}

func TestTidyingThatHangsDoesNotStopPolls(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		c := &collector{Memory: m, collect: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }}
		w.Env.Runtime = func(*testing.T) agent.Runtime { return c }
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Wait(t, "collecting", func() bool { return c.calls.Load() > 0 })
		w.Publish(t, 2, anApp(1, "web:2"))
		time.Sleep(25 * time.Minute)
		if s := r.Status(); s.Accepted == nil || s.Accepted.Generation != 2 {
			t.Errorf("accepted %+v, want generation 2", s.Accepted)
		}
	})
}

// breakRecord damages the records in agent.db that hold text.
func breakRecord(t *testing.T, w *agenttest.World, text string) {
	t.Helper()
	data, err := os.ReadFile(w.Path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(data, []byte(text)) {
		t.Fatalf("no record holds %s", text)
	}
	if err := os.WriteFile(w.Path, bytes.ReplaceAll(data, []byte(text), []byte("x"+text[1:])), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedRecordsDoNotKeepTheAgentFromStarting(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		w.Publish(t, 5, anApp(1, "web:1"))
		r := w.Start(t)
		w.Sync(t, r)
		w.Publish(t, 4, anApp(1, "web:1"))
		w.Sync(t, r)
		w.Fleet.Fail(func(store.Report) error { return fault.ErrTemporary })
		w.Publish(t, 3, anApp(1, "web:1"))
		w.Sync(t, r)
		before := w.Observe(t)
		r.Stop(t)
		for _, start := range []string{`{"deploymentId":`, `{"digest":"` + string(w.Publish(t, 3, anApp(1, "web:1"))), `{"sequence":`} {
			breakRecord(t, w, start)
		}
		w.Fleet.Fail(nil)
		r = w.Start(t)
		if res := w.Sync(t, r); res.Code != codes.Rollback {
			t.Errorf("sync = %+v, want the refusal found again", res)
		}
		if s := r.Status(); len(s.Deployments) != 1 || s.Accepted.Generation != 5 {
			t.Errorf("accepted %+v, deployments %+v", s.Accepted, s.Deployments)
		}
		if after := w.Observe(t); after["app-1/web"].PID != before["app-1/web"].PID {
			t.Error("what runs was touched")
		}
		w.Wait(t, "the reports", func() bool { return r.Status().Outbox.Depth == 0 })
	})
}

func TestDamagedMarksAreFatal(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		s := w.Publish(t, 5, anApp(1, "web:1"))
		r := w.Start(t)
		w.Sync(t, r)
		r.Stop(t)
		breakRecord(t, w, `{"digest":"`+string(s))
		breakRecord(t, w, `{"deploymentId":`)
		o := w.Options(t)
		st, err := store.Open(store.Options{Path: w.Path, Device: string(agenttest.Device)})
		if err != nil {
			t.Fatal(err)
		}
		defer st.Close()
		o.Store = st
		a, err := agent.New(o)
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Run(t.Context()); err == nil || !strings.Contains(fault.Hint(err), "protection") {
			t.Errorf("Run = %v, hint %q", err, fault.Hint(err))
		}
		if err := st.View(func(tx *store.Tx) error {
			if n := len(tx.Damaged()); n == 0 {
				t.Error("a damaged record was dropped")
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	})
}

// TestNothingIsReportedRemovedUnseen: a deployment was leaving when the agent ended; the next agent has never seen the
// runtime when it accepts a generation, and must not take that for "gone".
func TestNothingIsReportedRemovedUnseen(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		rt := &away{Memory: m}
		w.Env.Runtime = func(*testing.T) agent.Runtime { return rt }
		first, second := anApp(1, "web:1"), anApp(2, "web:2")
		w.Publish(t, 1, first)
		r := w.Start(t)
		w.Sync(t, r)
		r.Stop(t)
		saved(t, w, func(tx *store.Tx) error {
			return tx.SetStatus(store.Status{DeploymentID: second.DeploymentID(), Name: "app-2", Generation: 1, State: margo.StateRemoving, Components: []store.Component{
				{Name: "app-2", Revision: "1", Identity: "i", State: margo.StateRemoving},
			}})
		})
		rt.gone.Store(true)
		w.Publish(t, 2, first)
		r = w.Start(t)
		w.Wait(t, "generation 2", func() bool { s := r.Status(); return s.Accepted != nil && s.Accepted.Generation == 2 })
		time.Sleep(time.Minute)
		if got := w.States(t, second.DeploymentID()); strings.Contains(strings.Join(got, " "), "removed") {
			t.Errorf("states %v, and nobody has looked", got)
		}
		rt.gone.Store(false)
		w.Wait(t, "removed", func() bool { return slices.Contains(w.States(t, second.DeploymentID()), "removed@2") })
	})
}
