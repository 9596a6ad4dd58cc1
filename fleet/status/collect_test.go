package status_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/fleet/status"
)

// A report from the registry says how often there is one: then the device is due, and after three of these intervals it is offline,
// since the time of the report, however often that is read again.
func TestSilenceOfADeviceThatReportsThroughTheRegistry(t *testing.T) {
	s := start(t, nil)
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	c := &artifacts.CurrentState{
		Device: press, Epoch: "1b9c9a4e-5df4-4a34-8a0c-0f5c1f1f8e11", Counter: 4, Sequence: 9, Time: noon.Add(-time.Minute), Every: 3600, Repository: "r.example/state",
		Deployments: []artifacts.CurrentDeployment{}, Capabilities: json.RawMessage(caps(press, "")),
	}
	for _, tc := range []struct {
		after   time.Duration
		offline bool
	}{{0, false}, {2 * time.Hour, false}, {3*time.Hour + time.Minute, true}} {
		s.clock.Store(int64(tc.after / time.Second))
		if _, err := status.Collect(t.Context(), s.store, c, noon.Add(tc.after)); err != nil {
			t.Fatal(err)
		}
		_, body := s.do(request{method: "GET", path: "/fleet/v1/devices", noToken: true})
		var got struct{ Devices []status.Device }
		if err := json.Unmarshal(body, &got); err != nil || len(got.Devices) != 1 {
			t.Fatalf("%s: %v", body, err)
		}
		d := got.Devices[0]
		if due := c.Time.Add(time.Hour); !d.NextDue.Equal(due) || !c.Due().Equal(due) {
			t.Errorf("after %v: due at %v and %v, want %v", tc.after, d.NextDue, c.Due(), due)
		}
		if tc.offline != d.OfflineSince.Equal(c.Time) || !tc.offline && !d.OfflineSince.IsZero() {
			t.Errorf("after %v: offline since %v", tc.after, d.OfflineSince)
		}
	}
}
