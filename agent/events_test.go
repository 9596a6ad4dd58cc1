package agent_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func eventsOf(t *testing.T, a *agent.Agent, r status.EventRequest) []status.Event {
	t.Helper()
	var out []status.Event
	if err := a.Events(t.Context(), r, func(e status.Event) error { out = append(out, e); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

func kinds(events []status.Event) []status.EventKind {
	var out []status.EventKind
	for _, e := range events {
		out = append(out, e.Kind)
	}
	return out
}

func TestEventsTellALife(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		app := anApp(1, "web:1")
		app.Components[0].Services[0].Extra = "    restart: always\n"
		w.Publish(t, 1, app)
		r := w.Start(t)
		w.Sync(t, r)
		want := []status.EventKind{
			status.EventAccepted, status.EventPulled, status.EventCreated, status.EventStarted, status.EventCommitted,
		}
		first := slices.DeleteFunc(eventsOf(t, r.Agent, status.EventRequest{}), func(e status.Event) bool {
			return e.Kind == status.EventDeployment || e.Kind == status.EventPhase
		})
		if got := kinds(first); !slices.Equal(got, want) {
			t.Errorf("events = %v, want %v", got, want)
		}
		c := r.Containers()[0]
		if e := first[3]; e.Deployment != "app-1" || e.Service != "web" || e.Replica != 1 || e.Container != c.ID || e.Component == "" {
			t.Errorf("started = %+v", e)
		}
		time.Sleep(time.Second)
		since := time.Now()
		if err := m.Exit(c.ID, 3); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		second := eventsOf(t, r.Agent, status.EventRequest{Since: since})
		if got := kinds(second); len(got) < 2 || got[0] != status.EventExited || !slices.Contains(got, status.EventRestarted) {
			t.Errorf("after an exit: %v", got)
		} else if code := second[0].ExitCode; code == nil || *code != 3 {
			t.Errorf("exit code = %v, want 3", code)
		}
		since = time.Now()
		w.Publish(t, 2, anApp(1, "web:2"))
		w.Sync(t, r)
		got := kinds(eventsOf(t, r.Agent, status.EventRequest{Since: since}))
		for _, k := range []status.EventKind{status.EventAccepted, status.EventStopped, status.EventRemoved, status.EventStarted, status.EventCommitted} {
			if !slices.Contains(got, k) {
				t.Errorf("an update tells %v, without %s", got, k)
			}
		}
		if slices.Contains(got, status.EventExited) {
			t.Errorf("what the agent stopped is told to have exited: %v", got)
		}
		if n := r.Counts(); n.Polls < 2 || n.Events[status.EventCommitted] != 2 {
			t.Errorf("counts = %+v", n)
		}
	})
}

func TestEventsAreBoundedAndFollowed(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		r := w.Start(t)
		for range 2500 {
			r.Emit(status.Event{Kind: status.EventOOM})
		}
		all := eventsOf(t, r.Agent, status.EventRequest{})
		if len(all) != 1000 || all[999].Sequence-all[0].Sequence != 999 {
			t.Fatalf("%d events are kept, %d to %d", len(all), all[0].Sequence, all[len(all)-1].Sequence)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		seen, done := 0, make(chan error)
		go func() {
			done <- r.Events(ctx, status.EventRequest{Follow: true, Since: time.Now()}, func(e status.Event) error {
				if seen++; e.Kind == status.EventSwitched {
					cancel()
				}
				return nil
			})
		}()
		synctest.Wait()
		before := seen
		r.Emit(status.Event{Kind: status.EventSwitched})
		if err := <-done; err != nil || seen != before+1 {
			t.Errorf("a follower saw %d events more, %v, want one", seen-before, err)
		}
		stop := errors.New("enough")
		if err := r.Events(t.Context(), status.EventRequest{Follow: true}, func(status.Event) error { return stop }); !errors.Is(err, stop) {
			t.Errorf("Events = %v, want what tell said", err)
		}
	})
}

func TestSelect(t *testing.T) {
	box := func(deployment, component, service string, replica int) status.Container {
		c := status.Container{
			Deployment: deployment, DeploymentID: "id-" + deployment, Component: component, Project: component + "-x", Service: service, Replica: replica,
			State: workload.Running, Active: true,
		}
		c.ID = workload.ContainerID(c.Project, service, replica, "0123456789abcdef")
		return c
	}
	next := box("shop", "front", "web", 1)
	next.ID, next.Active = "front-x-web-1-ffffffff", false
	job := box("shop", "front", "job", 1)
	job.State = workload.Exited
	all := []status.Container{
		box("line", "line", "web", 1), box("line", "line", "web", 2), box("line", "line", "broker", 1),
		box("shop", "front", "web", 1), next, box("shop", "back", "db", 1), box("shop", "back", "cache", 1), box("shop", "front", "cache", 1),
		job,
	}
	for _, tc := range []struct {
		target string
		want   int // containers; 0: not found, -1: ambiguous
		one    int // as for want: 1, 0: not found, -1: ambiguous, -2: does not run
	}{
		{"broker", 1, 1},
		{"web", -1, -1},
		{"line/web", 2, -1},
		{"line/web-2", 1, 1},
		{"shop/web", 2, 1}, // two revisions of one replica
		{"shop/web-1", 2, 1},
		{"id-shop/web-1", 2, 1},
		{"db-1", 1, 1},
		{"cache", -1, -1},
		{"shop/cache", -1, -1},
		{"shop/front/cache", 1, 1},
		{"shop", 6, -1},
		{"line", 3, -1},
		{"shop/front", 4, -1},
		{"front-x-web-1-ffffffff", 1, 1},
		{"front-x-web-1-f", 1, 1},
		{"front", 0, 0}, // too short for an id
		{"none", 0, 0},
		{"", 0, 0},
		{"line/none", 0, 0},
		{"job", 1, -2},
	} {
		t.Run(tc.target, func(t *testing.T) {
			found, err := status.Select(all, tc.target)
			if got := len(found); tc.want > 0 && (got != tc.want || err != nil) || tc.want == 0 && !errors.Is(err, fault.ErrNotFound) ||
				tc.want < 0 && (!errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "") {
				t.Errorf("Select = %d containers, %v, want %d", got, err, tc.want)
			}
			c, err := status.One(all, tc.target)
			switch {
			case tc.one == 1 && (err != nil || !c.Active && tc.target[len(tc.target)-1] != 'f'),
				tc.one == 0 && !errors.Is(err, fault.ErrNotFound),
				tc.one == -1 && !errors.Is(err, fault.ErrInvalid),
				tc.one == -2 && !errors.Is(err, fault.ErrConflict):
				t.Errorf("One = %s, %v", c.ID, err)
			}
		})
	}
	_, err := status.Select(all, "cache")
	if want := `"cache" is ambiguous: shop/back/cache-1, shop/front/cache-1: invalid`; err == nil || err.Error() != want {
		t.Errorf("Select(cache) = %v, want %s", err, want)
	}
}
