package agent_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/workload"
)

// short is a disk that lacks some bytes.
type short int64

func (s short) Error() string {
	return fmt.Sprintf("%d bytes are lacking: no space left on device", int64(s))
}
func (s short) Short() int64 { return int64(s) }
func (short) Unwrap() error  { return unix.ENOSPC }

// fillsTheDisk is a device whose application 2 has filled the disk, up to what it takes.
func fillsTheDisk(m *runtimetest.Memory, takes int64) (full *atomic.Bool) {
	full = &atomic.Bool{}
	filler := agenttest.App{ID: 2}.Project("app-2")
	there := func() bool {
		o, err := m.Observe(context.Background())
		return err == nil && slices.ContainsFunc(o.Containers, func(c workload.Observation) bool { return c.Project == filler })
	}
	m.Images = func(i workload.Image) error {
		if full.Load() && there() && i.Tag == "2" {
			return short(1000)
		}
		return nil
	}
	m.Taken = func(project string) int64 {
		if project == filler {
			return takes
		}
		return 0
	}
	m.Disks = func() []workload.Space {
		s := workload.Space{Dir: "/var/lib/containerd", Size: 8 << 30, Free: 4 << 30, Keep: 512 << 20}
		if full.Load() && there() {
			s.Free = 1 << 20
		}
		return []workload.Space{s}
	}
	return full
}

// TestWhatIsRemovedMakesRoom: a state that removes the application that filled the disk gets through, and little room is a problem
// before that.
func TestWhatIsRemovedMakesRoom(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		full := fillsTheDisk(m, 5000)
		w.Publish(t, 1, anApp(1, "web:1"), anApp(2, "filler:1"))
		r := w.Start(t)
		w.Committed(t, r, 1)
		if hasProblem(r.Status(), codes.DiskLow) {
			t.Error("a disk with room is a problem")
		}
		full.Store(true)
		w.Wait(t, "little room is a problem", func() bool { return hasProblem(r.Status(), codes.DiskLow) })
		before := w.Observe(t)["app-1/web"]
		w.Publish(t, 2, anApp(1, "web:2"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = r.Sync(ctx) }() // ends with the test
		w.Wait(t, "what fills the disk is gone", func() bool { _, ok := w.Observe(t)["app-2/web"]; return !ok })
		if before.Status != workload.Running {
			t.Errorf("the other application = %+v", before)
		}
		w.Committed(t, r, 2)
		w.Wait(t, "there is room", func() bool { return !hasProblem(r.Status(), codes.DiskLow) })
	})
}

// TestWhatWouldNotMakeRoomStays: nothing is stopped for nothing, and the advice says so; also after a restart of the agent.
func TestWhatWouldNotMakeRoomStays(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		full := fillsTheDisk(m, 10)
		w.Publish(t, 1, anApp(1, "web:1"), anApp(2, "filler:1"))
		r := w.Start(t)
		w.Committed(t, r, 1)
		full.Store(true)
		w.Publish(t, 2, anApp(1, "web:2"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = r.Sync(ctx) }() // ends with the test
		w.Wait(t, "the disk is full", func() bool {
			return hasProblem(r.Status(), codes.DiskFull) && hasProblem(r.Status(), codes.DiskLow)
		})
		for range 2 {
			time.Sleep(20 * time.Minute)
			if o := w.Observe(t)["app-2/web"]; o.Status != workload.Running {
				t.Errorf("what would not give enough = %+v, want it to run on", o)
			}
			r.Stop(t)
			r = w.Start(t)
		}
		full.Store(false)
		w.Committed(t, r, 2)
	})
}
