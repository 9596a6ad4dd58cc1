package agenttest_test

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
)

// TestAFilledDisk: a workload has written until containerd's disk was full. That is a problem before anything is to be loaded, and a
// state that removes the workload gets through, although its other application needs an image for which there is no room. The agent's
// own files are on another disk.
func TestAFilledDisk(t *testing.T) {
	e := cramped(t)
	var ahead atomic.Int64 // of the device's clock, which says when disks are measured again
	e.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	w := agenttest.NewWorld(t, e)
	press := func(web string) agenttest.App {
		return agenttest.App{ID: 1, Name: "press", Components: []agenttest.Comp{{Name: "press", Version: "1.0." + web, Services: []agenttest.Service{
			{Name: "broker", Image: "broker:1"}, {Name: "web", Image: "grown:" + web},
		}}}}
	}
	filler := agenttest.App{ID: 2, Name: "filler", Components: []agenttest.Comp{{Name: "filler", Services: []agenttest.Service{{Name: "fill", Image: "filler:1"}}}}}
	w.Publish(t, 1, press("1"), filler)
	r := w.Start(t)
	w.Committed(t, r, 1)
	if hasProblem(r, codes.DiskLow) {
		t.Error("a disk with room is a problem")
	}
	before := w.Observe(t)

	var said bytes.Buffer
	code, err := r.Exec(t.Context(), before["filler/fill"].ID, agent.ExecOptions{Argv: []string{"/toolbox", "touch-mib", "/filled", "1024"}, Stdout: &said})
	if err != nil || code != 0 || !strings.Contains(said.String(), "no space left") {
		t.Fatalf("filling the disk ended with %d: %q, %v", code, said.String(), err)
	}
	ahead.Store(int64(2 * time.Minute))
	w.Sync(t, r)
	w.Wait(t, "little room is a problem", func() bool { return hasProblem(r, codes.DiskLow) })

	w.Publish(t, 2, press("2"))
	ctx, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	asking.Go(func() { _, _ = r.Sync(ctx) }) // looks at once
	defer asking.Wait()
	defer cancel()
	w.Committed(t, r, 2)
	after := w.Observe(t)
	if a, b := before["press/broker"], after["press/broker"]; a.ID != b.ID || a.PID != b.PID || b.Status != workload.Running {
		t.Errorf("the broker = %+v, was %+v", b, a)
	}
	if web := after["press/web"]; web.ID == before["press/web"].ID || web.Status != workload.Running || len(after) != 2 {
		t.Errorf("containers %+v", after)
	}
	ahead.Add(int64(2 * time.Minute))
	w.Sync(t, r)
	w.Wait(t, "there is room", func() bool { return !hasProblem(r, codes.DiskLow) })
	var told []string
	err = r.Events(t.Context(), status.EventRequest{Kind: status.EventRemoved}, func(e status.Event) error {
		if e.Code == codes.DiskFull {
			told = append(told, e.Message)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if len(told) != 1 || !strings.Contains(told[0], "filler, which it removes, goes first") {
		t.Errorf("events %q", told)
	}
}

func hasProblem(r *agenttest.Running, code codes.Code) bool {
	return slices.ContainsFunc(r.Status().Problems, func(p status.Problem) bool { return p.Code == code })
}
