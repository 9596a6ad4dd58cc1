package status_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
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

// full is a store that takes no more than some statuses.
type full struct {
	store.Store
	left int
}

func (f *full) PutStatus(ctx context.Context, r store.Status) (store.Outcome, error) {
	if f.left--; f.left < 0 {
		return 0, fault.ErrTemporary
	}
	return f.Store.PutStatus(ctx, r)
}

// What an error left out of a report is stored when the same report is taken again, and then it changes nothing any more.
func TestCollectAgainAfterAnError(t *testing.T) {
	s := start(t, nil)
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	c := &artifacts.CurrentState{
		Device: press, Epoch: epoch, Counter: 4, Sequence: 9, Time: noon, Every: 3600, Repository: "r.example/state",
		Capabilities: json.RawMessage(caps(press, "")),
	}
	for _, id := range []string{"a3e2f5dc-912e-494f-8395-52cf3769bc00", "a3e2f5dc-912e-494f-8395-52cf3769bc01"} {
		c.Deployments = append(c.Deployments, artifacts.CurrentDeployment{ID: id, Generation: 1, State: margo.StateInstalled, Since: noon, Components: []artifacts.CurrentComponent{}})
	}
	if changed, err := status.Collect(t.Context(), &full{s.store, 1}, c, noon); !errors.Is(err, fault.ErrTemporary) || changed {
		t.Errorf("a store that fails: %v, %v", changed, err)
	}
	for _, want := range []bool{true, false} {
		if changed, err := status.Collect(t.Context(), s.store, c, noon); err != nil || changed != want {
			t.Errorf("again: %v, %v, want %v", changed, err, want)
		}
		list, _, err := s.store.Deployments(t.Context(), store.DeploymentQuery{Device: press, Limit: 10})
		if err != nil || len(list) != 2 {
			t.Errorf("%+v, %v, want two deployments", list, err)
		}
	}
}
