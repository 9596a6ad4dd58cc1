package agent_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
)

// mender answers what a test says.
type mender struct {
	calls  atomic.Int64
	broken atomic.Bool
	hang   atomic.Bool

	repaired atomic.Pointer[[]string] // what the next call says
}

func (m *mender) Repair(ctx context.Context) ([]string, error) {
	m.calls.Add(1)
	if m.hang.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if m.broken.Load() {
		return nil, errors.New("table longshore is gone")
	}
	if things := m.repaired.Swap(nil); things != nil {
		return *things, nil
	}
	return nil, nil
}

// losing is a runtime whose events can be lost.
type losing struct {
	*runtimetest.Memory
	lost chan workload.Event
}

func (l *losing) Events(ctx context.Context) (<-chan workload.Event, error) {
	out := make(chan workload.Event)
	go func() {
		defer close(out)
		select {
		case <-ctx.Done():
		case e := <-l.lost:
			select {
			case out <- e:
			case <-ctx.Done():
			}
		}
	}()
	return out, nil
}

// watcher notices by itself.
type watcher struct {
	mender
	told chan struct{}
}

func (w *watcher) Watch(context.Context) (<-chan struct{}, error) { return w.told, nil }

func TestMender(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var log bytes.Buffer
		w.Log = slog.New(slog.NewTextHandler(&log, nil))
		rt, x := &losing{Memory: m, lost: make(chan workload.Event)}, &watcher{told: make(chan struct{})}
		w.Env.Runtime = func(*testing.T) agent.Runtime { return rt }
		w.Edit = func(o *agent.Options) { o.Repairer = x }
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Sync(t, r)
		synctest.Wait()
		if x.calls.Load() == 0 {
			t.Error("nothing was looked at when the agent started")
		}
		x.calls.Store(0)
		time.Sleep(time.Hour)
		if n := x.calls.Load(); n < 57 || n > 63 {
			t.Errorf("%d calls in an hour, want one in a minute", n)
		}
		synctest.Wait()
		n := x.calls.Load()
		rt.lost <- workload.Event{Kind: workload.EventLost}
		synctest.Wait()
		if x.calls.Load() != n+1 {
			t.Error("lost events do not have it look at once")
		}
		x.told <- struct{}{}
		synctest.Wait()
		if x.calls.Load() != n+2 {
			t.Error("what it noticed itself does not have it look at once")
		}
		var told []string
		x.repaired.Store(&[]string{"table longshore was gone", "1", "2", "3", "4", "5", "6"})
		x.told <- struct{}{}
		synctest.Wait()
		for _, e := range eventsOf(t, r.Agent, status.EventRequest{}) {
			if e.Kind == status.EventRepaired {
				told = append(told, e.Message)
			}
		}
		if want := []string{"table longshore was gone; 1; 2; 3; 4; 2 more"}; !slices.Equal(told, want) {
			t.Errorf("repairs told: %q, want %q", told, want)
		}
		close(x.told)
		synctest.Wait()
		x.calls.Store(0)
		time.Sleep(time.Hour)
		if n := x.calls.Load(); n < 57 || n > 63 {
			t.Errorf("%d calls in an hour after the watch ended, want one in a minute", n)
		}
		x.broken.Store(true)
		time.Sleep(10 * time.Minute)
		p := r.Status().Problems
		if len(p) != 1 || p[0].Code != codes.Runtime || !strings.Contains(p[0].Message, "table longshore is gone") || p[0].Hint == "" || p[0].Since.IsZero() {
			t.Errorf("problems %+v", p)
		}
		x.broken.Store(false)
		time.Sleep(10 * time.Minute)
		if p := r.Status().Problems; len(p) != 0 {
			t.Errorf("problems %+v", p)
		}
		synctest.Wait()
		if n := strings.Count(log.String(), "not whole"); n != 1 || strings.Count(log.String(), "whole again") != 1 {
			t.Errorf("%d lines about it:\n%s", n, log.String())
		}
		x.hang.Store(true)
		time.Sleep(10 * time.Minute)
		if !hasProblem(r.Status(), codes.Runtime) {
			t.Error("a mender that hangs is no problem")
		}
		r.Stop(t)
	})
}
