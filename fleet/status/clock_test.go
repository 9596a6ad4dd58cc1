package status_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
)

// What devices report while the endpoint's clock is ahead keeps nothing from being stored, and no device from being offline, when it is right again.
func TestTheClockWasAhead(t *testing.T) {
	var up time.Duration
	var v *status.Viewer
	s := start(t, func(o *status.Options) {
		v = &status.Viewer{Now: o.Now, Up: func() time.Duration { return up }, OfflineAfter: time.Minute, Logger: o.Logger}
	})
	v.View = s.store
	s.clock.Store(10 * 365 * 24 * 3600)
	s.want(put(press, caps(press)).with(status.HeaderEpoch, epoch, status.HeaderSequence, "7"), 201)
	s.want(put("press-08", caps("press-08")).by("press-08"), 201)
	s.clock.Store(600)
	up = 5 * time.Minute
	s.want(put(press, caps(press, `,"x-longshore-extensions":{"acceptedGeneration":9}`)).with(status.HeaderEpoch, epoch2, status.HeaderSequence, "1"), 200)
	var d status.Device
	if err := json.Unmarshal(s.want(request{method: "GET", path: "/fleet/v1/devices/" + press}, 200), &d); err != nil || d.AcceptedGeneration != 9 || !d.LastHeard.Equal(v.Now()) {
		t.Errorf("the report of a new database: %+v, %v", d, err)
	}
	since := v.Now().Add(-up)
	up += 500*time.Millisecond - 50*time.Nanosecond // the rounded time is on the edge of the next second
	for range 2 {                                   // the time is the same at each read, however the two clocks are read
		silence := v.Silence()
		list, _, err := v.Devices(t.Context(), store.DeviceQuery{Limit: 9, Offline: &silence})
		if err != nil || len(list) != 1 || list[0].ID != "press-08" || !list[0].OfflineSince.Equal(since) {
			t.Errorf("offline: %+v, %v, want press-08 since %v", list, err, since)
		}
		up += 80 * time.Nanosecond
	}
}

// An endpoint that starts before its clock is set counts no device as silent for the time before.
func TestTheClockIsSetAfterTheStart(t *testing.T) {
	up := time.Second
	var v *status.Viewer
	s := start(t, func(o *status.Options) {
		v = &status.Viewer{Now: o.Now, Up: func() time.Duration { return up }, OfflineAfter: time.Hour, Logger: o.Logger}
	})
	v.View = s.store
	s.want(put(press, caps(press)), 201)
	offline := func(want int) {
		t.Helper()
		silence := v.Silence()
		if list, _, err := v.Devices(t.Context(), store.DeviceQuery{Limit: 9, Offline: &silence}); err != nil || len(list) != want {
			t.Errorf("%d devices are offline, want %d; %v", len(list), want, err)
		}
	}
	s.clock.Store(-40 * 365 * 24 * 3600) // the endpoint starts again
	offline(0)
	s.clock.Store(7200)
	up = time.Minute
	offline(0)
	s.clock.Add(3600)
	up += time.Hour
	offline(1)
}
