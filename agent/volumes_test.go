package agent_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// withVolume is an application with a volume "data".
func withVolume(id int) agenttest.App {
	app := anApp(id, "web:1")
	app.Components[0].Services[0].Extra = "    volumes:\n      - data:/data\n"
	return app
}

// The volume of a removed application is told, stays until a person removes it, and cannot be removed before.
func TestKeptVolumes(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Publish(t, 1, withVolume(1), withVolume(2))
		r := w.Start(t)
		w.Sync(t, r)
		name := withVolume(1).Project("app-1") + "/data"
		if err := m.Write(name, "orders"); err != nil {
			t.Fatal(err)
		}
		if _, err := r.RemoveVolume(t.Context(), "app-1/data"); !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), "in use by app-1") || fault.Hint(err) == "" {
			t.Errorf("a volume in use: %v, hint %q", err, fault.Hint(err))
		}
		if _, err := r.RemoveVolume(t.Context(), "data"); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("the name of two volumes: %v", err)
		}
		time.Sleep(time.Minute)
		if kept := r.Status().KeptVolumes; len(kept) > 0 {
			t.Errorf("kept while both run: %+v", kept)
		}

		w.Publish(t, 2, withVolume(2))
		w.Sync(t, r)
		time.Sleep(time.Minute)
		want := status.Volume{Name: name, Volume: "data", Project: withVolume(1).Project("app-1"), Deployment: "app-1", DeploymentID: withVolume(1).DeploymentID(), Component: "app-1"}
		told := func(r *agenttest.Running) {
			t.Helper()
			if kept := r.Status().KeptVolumes; len(kept) != 1 || kept[0] != want {
				t.Errorf("kept %+v, want %+v", kept, want)
			}
		}
		told(r)
		events := eventsOf(t, r.Agent, status.EventRequest{Kind: status.EventKept})
		if len(events) != 1 || events[0].Deployment != "app-1" || !strings.HasPrefix(events[0].Message, "volumes data stay on the disk") {
			t.Errorf("events %+v", events)
		}
		r.Stop(t)
		r = w.Start(t)
		time.Sleep(time.Minute)
		told(r)

		all, err := r.Volumes(t.Context())
		want.Bytes = int64(len("orders"))
		if err != nil || len(all) != 2 || all[0] != want || !all[1].InUse || all[1].Deployment != "app-2" {
			t.Errorf("Volumes: %+v, %v", all, err)
		}
		if v, err := r.RemoveVolume(t.Context(), "app-1/data"); err != nil || v != want {
			t.Errorf("RemoveVolume = %+v, %v", v, err)
		}
		if _, err := r.RemoveVolume(t.Context(), "app-1/data"); !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("removed twice: %v", err)
		}
		time.Sleep(time.Minute)
		if kept := r.Status().KeptVolumes; len(kept) > 0 || len(m.Volumes()) != 1 {
			t.Errorf("after the removal: kept %+v, there are %v", kept, m.Volumes())
		}

		// The application comes back: its volume is a new one, in use again.
		w.Publish(t, 3, withVolume(1), withVolume(2))
		w.Sync(t, r)
		if _, err := r.RemoveVolume(t.Context(), name); !errors.Is(err, fault.ErrConflict) {
			t.Errorf("a volume in use again: %v", err)
		}
	})
}

// impatient is a runtime whose caller gives up as soon as it knows how large a volume is.
type impatient struct {
	agent.Runtime
	giveUp func()
}

func (i impatient) VolumeSize(ctx context.Context, project, name string) (int64, error) {
	defer i.giveUp()
	return i.Runtime.VolumeSize(ctx, project, name)
}

// Data is not deleted for a caller that has gone.
func TestRemovalThatWasGivenUp(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		ctx, cancel := context.WithCancel(t.Context())
		w.Edit = func(o *agent.Options) { o.Runtime = impatient{o.Runtime, cancel} }
		w.Publish(t, 1, withVolume(1))
		r := w.Start(t)
		w.Sync(t, r)
		w.Publish(t, 2)
		w.Sync(t, r)
		time.Sleep(time.Minute)
		if _, err := r.RemoveVolume(ctx, "app-1/data"); !errors.Is(err, context.Canceled) || len(m.Volumes()) != 1 {
			t.Errorf("RemoveVolume = %v, there are %v; want %v and the volume", err, m.Volumes(), context.Canceled)
		}
	})
}
