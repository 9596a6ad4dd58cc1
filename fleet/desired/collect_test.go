package desired_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet/status"
)

// What is collected is nobody's: everything that clients are served stays, also of those that have not asked since the start.
func TestCollect(t *testing.T) {
	w := newWorld(t)
	const line = "press-07,press-08"
	first, err := artifacts.OpenState(w.publish("press-07", 1, "web").Manifest)
	if err != nil {
		t.Fatal(err)
	}
	w.publish("press-08", 1, "web")
	w.manifest("press-07", 1)
	w.manifest(line, 1)
	for generation := uint64(2); generation <= 3; generation++ {
		w.publish("press-07", generation, "web", "db")
		w.later()
		w.manifest("press-07", generation)
		w.manifest(line, generation)
	}
	w.away(errAway)
	var kept []digest.Digest
	for _, restart := range []bool{false, true} {
		if restart {
			w.start()
		}
		if !w.view.Collect(t.Context()) {
			t.Fatal("nothing was collected")
		}
		if _, there := w.disk.data[first.Bundle.Digest]; there {
			t.Error("the bundle of generation 1 is still on disk")
		}
		w.complete("press-07", w.manifest("press-07", 3))
		w.complete(line, w.manifest(line, 3))
		w.later()
		for d := range w.disk.data {
			kept = append(kept, d)
		}
	}
	if slices.Contains(kept, first.Bundle.Digest) {
		t.Error("it came back")
	}
	w.away(nil)
	w.publish("press-08", 2, "web")
	w.later()
	w.complete(line, w.manifest(line, 4))
}

// Clients that ask while states change and are collected get whole manifests.
func TestManyAskWhileStatesChange(t *testing.T) {
	w := newWorld(t)
	w.publish("press-07", 1, "web")
	m := w.manifest("press-07", 1)
	ctx, cancel := context.WithCancel(t.Context())
	var g sync.WaitGroup
	for range 8 {
		g.Go(func() {
			for ctx.Err() == nil {
				err := w.view.Bundle(ctx, status.DeviceClient("press-07"), m.Bundle.Digest)
				if err != nil && ctx.Err() == nil && !errors.Is(err, fault.ErrNotFound) {
					t.Error(err)
				}
			}
		})
	}
	for generation := uint64(2); generation < 30; generation++ {
		w.publish("press-07", generation, "web")
		w.later()
		w.complete("press-07", w.manifest("press-07", generation))
		w.view.Collect(t.Context())
	}
	cancel()
	g.Wait()
}
