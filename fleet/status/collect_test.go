package status_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
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
		if _, _, err := status.Collect(t.Context(), s.store, c, noon.Add(tc.after)); err != nil {
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

// The interval of a device is that of its last report, which may be longer than before; the shorter one where it posts reports, too. An older
// agent says in its capabilities how often it would post.
func TestIntervalOfADeviceThatReportsThroughTheRegistry(t *testing.T) {
	for name, tc := range map[string]struct {
		body   string
		posted bool
		want   []time.Duration // after a report each hour, one each six hours, and one each minute
	}{
		"an agent that does not post":       {"", false, []time.Duration{time.Hour, 6 * time.Hour, time.Minute}},
		"an older agent":                    {`,"x-longshore-extensions":{"reportIntervalSeconds":300}`, false, []time.Duration{time.Hour, 6 * time.Hour, time.Minute}},
		"a device that posts, too":          {`,"x-longshore-extensions":{"reportIntervalSeconds":300}`, true, []time.Duration{5 * time.Minute, 5 * time.Minute, time.Minute}},
		"a device that does not post again": {"", true, []time.Duration{time.Hour, 6 * time.Hour, time.Minute}},
	} {
		s := start(t, nil)
		noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
		if tc.posted {
			s.want(put(press, caps(press, `,"x-longshore-extensions":{"reportIntervalSeconds":300}`)).with(status.HeaderEpoch, epoch, status.HeaderSequence, "1"), 201)
		}
		for i, every := range []uint64{3600, 6 * 3600, 60} {
			n := uint64(i + 2)
			c := &artifacts.CurrentState{
				Device: press, Epoch: epoch, Counter: n, Sequence: n, Time: noon, Every: every, Repository: "r.example/state",
				Deployments: []artifacts.CurrentDeployment{}, Capabilities: json.RawMessage(caps(press, tc.body)),
			}
			if changed, note, err := status.Collect(t.Context(), s.store, c, noon); err != nil || !changed {
				t.Fatalf("%s: %v, %q, %v", name, changed, note, err)
			}
			if d, err := s.store.Device(t.Context(), press); err != nil || d.Interval != tc.want[i] {
				t.Errorf("%s, a report each %d s: interval %v, %v, want %v", name, every, d.Interval, err, tc.want[i])
			}
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
	if changed, _, err := status.Collect(t.Context(), &full{s.store, 1}, c, noon); !errors.Is(err, fault.ErrTemporary) || changed {
		t.Errorf("a store that fails: %v, %v", changed, err)
	}
	for _, want := range []bool{true, false} {
		if changed, _, err := status.Collect(t.Context(), s.store, c, noon); err != nil || changed != want {
			t.Errorf("again: %v, %v, want %v", changed, err, want)
		}
		list, _, err := s.store.Deployments(t.Context(), store.DeploymentQuery{Device: press, Limit: 10})
		if err != nil || len(list) != 2 {
			t.Errorf("%+v, %v, want two deployments", list, err)
		}
	}
}

// told is a store that notes which statuses it took, in order.
type told struct {
	store.Store
	left  int // it takes so many
	taken []string
}

func (s *told) PutStatus(ctx context.Context, r store.Status) (store.Outcome, error) {
	if s.left--; s.left < 0 {
		return 0, fault.ErrTemporary
	}
	out, err := s.Store.PutStatus(ctx, r)
	if err == nil && out != store.Repeated {
		s.taken = append(s.taken, fmt.Sprintf("%d %s@%s", r.Stamp.Sequence, r.State, r.At.Format("15:04")))
	}
	return out, err
}

// Each transition that a report has is taken in order and once, whatever was lost between two reports, also if the store fails in between;
// it is told when there were more than a report has. An old report changes nothing.
func TestCollectTransitions(t *testing.T) {
	s := start(t, nil)
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	const id = "a3e2f5dc-912e-494f-8395-52cf3769bc00"
	turns := []margo.State{margo.StatePending, margo.StateInstalled, margo.StateFailed, margo.StateInstalled, margo.StateFailed, margo.StateInstalled, margo.StateFailed, margo.StateInstalled, margo.StateFailed, margo.StateInstalled}
	report := func(upTo, after int) *artifacts.CurrentState {
		x := artifacts.CurrentTransitions{After: uint64(after)}
		for i := after; i < upTo; i++ {
			x.List = append(x.List, artifacts.CurrentTransition{Sequence: uint64(10*i + 10), At: noon.Add(time.Duration(i) * time.Minute), Deployment: id, Generation: 1, State: turns[i]})
		}
		x.After *= 10
		list, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		return &artifacts.CurrentState{
			Device: press, Epoch: epoch, Counter: uint64(upTo), Sequence: uint64(10*upTo + 5), Time: noon.Add(time.Duration(upTo) * time.Minute), Repository: "r.example/state",
			Capabilities: json.RawMessage(caps(press, `,"x-longshore-extensions":{"transitions":`+string(list)+"}")),
			Deployments:  []artifacts.CurrentDeployment{{ID: id, Generation: 1, State: turns[upTo-1], Since: noon, Components: []artifacts.CurrentComponent{}}},
		}
	}
	for _, tt := range []struct {
		name    string
		c       *artifacts.CurrentState
		left    int
		want    string
		missing bool
	}{
		{"first", report(2, 1), 99, "20 installed@12:01 25 installed@12:02", false}, // nobody has missed what was before
		{"once more", report(2, 1), 0, "", false},
		{"three later", report(5, 1), 2, "30 failed@12:02 40 installed@12:03", false},
		{"the rest", report(5, 1), 99, "50 failed@12:04 55 failed@12:05", false},
		{"an old one", report(3, 0), 0, "", false},
		{"exactly what it has", report(6, 5), 99, "60 installed@12:05 65 installed@12:06", false},
		{"more than it has", report(8, 7), 99, "80 installed@12:07 85 installed@12:08", true},
		{"once more", report(8, 7), 0, "", false},
		{"more, but it has posted them", report(10, 9), 99, "100 installed@12:09 105 installed@12:10", false},
	} {
		if strings.Contains(tt.name, "posted") {
			posted := store.Status{Device: press, By: press, Deployment: id, State: margo.StateFailed, Body: []byte("{}"), Stamp: store.Stamp{Epoch: epoch, Sequence: 90}, At: noon.Add(8 * time.Minute)}
			if _, err := s.store.PutStatus(t.Context(), posted); err != nil {
				t.Fatal(err)
			}
		}
		x := &told{Store: s.store, left: tt.left}
		_, note, err := status.Collect(t.Context(), x, tt.c, noon.Add(time.Hour))
		if got := strings.Join(x.taken, " "); got != tt.want || (note != "") != tt.missing || err != nil && !errors.Is(err, fault.ErrTemporary) {
			t.Errorf("%s: %q, note %q, %v, want %q", tt.name, got, note, err, tt.want)
		}
	}
	list, _, err := s.store.Deployments(t.Context(), store.DeploymentQuery{Device: press, Limit: 10})
	if err != nil || len(list) != 1 || !list[0].Since.Equal(noon.Add(9*time.Minute)) {
		t.Errorf("%+v, %v, want that it is installed since the last transition", list, err)
	}
	c := report(10, 0)
	c.Epoch, c.Time = "1b9c9a4e-5df4-4a34-8a0c-0f5c1f1f8e11", noon
	if changed, note, err := status.Collect(t.Context(), s.store, c, noon.Add(time.Hour)); err != nil || changed || !strings.Contains(note, "another database") {
		t.Errorf("a database that is not known, from before: %v, %q, %v", changed, note, err)
	}
}

// Who hands in a report learns that transitions are missing also if the report is not stored whole: the next attempt has no note.
func TestCarriedTellsWhatIsMissingWithAnError(t *testing.T) {
	s := start(t, nil)
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	report := func(n int) *artifacts.CurrentState {
		return &artifacts.CurrentState{
			Device: press, Epoch: epoch, Counter: uint64(n), Sequence: uint64(10*n + 5), Time: noon.Add(time.Duration(n) * time.Minute), Repository: "r.example/state",
			Capabilities: json.RawMessage(caps(press, fmt.Sprintf(`,"x-longshore-extensions":{"transitions":{"after":%d,"list":[]}}`, 10*n))),
			Deployments:  []artifacts.CurrentDeployment{{ID: "a3e2f5dc-912e-494f-8395-52cf3769bc00", Generation: 1, State: margo.StateInstalled, Since: noon, Components: []artifacts.CurrentComponent{}}},
		}
	}
	if _, _, err := status.Collect(t.Context(), s.store, report(1), noon.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	for _, missing := range []bool{true, false} {
		o := status.Options{Store: &told{Store: s.store, left: 0}, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return noon.Add(time.Hour) }}
		h := status.CarriedReports(o, func(context.Context, []byte) (*artifacts.CurrentState, error) { return report(4), nil })
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, status.PathCarried, strings.NewReader("{}")))
		if told := strings.Contains(w.Body.String(), "transitions of status are missing before report 4"); w.Code != http.StatusServiceUnavailable || told != missing {
			t.Errorf("%d %s, want that it says what is missing: %v", w.Code, w.Body, missing)
		}
	}
}

// At the quota, what was removed and forgotten does not come back with the next report, and does not keep out what is there.
func TestCollectTransitionsAtTheQuota(t *testing.T) {
	s := start(t, nil)
	s.store.SetQuota(store.Quota{Deployments: 1, Children: 1, Bytes: 1 << 20})
	noon := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	const gone, there = "a3e2f5dc-912e-494f-8395-52cf3769bc00", "b3e2f5dc-912e-494f-8395-52cf3769bc00"
	list, err := json.Marshal(artifacts.CurrentTransitions{List: []artifacts.CurrentTransition{
		{Sequence: 10, At: noon, Deployment: gone, Generation: 1, State: margo.StateInstalled},
		{Sequence: 20, At: noon, Deployment: gone, Generation: 1, State: margo.StateRemoved},
		{Sequence: 30, At: noon, Deployment: there, Generation: 2, State: margo.StateInstalled},
	}})
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range []string{"10 installed@12:00 20 removed@12:00 30 installed@12:00 100 installed@12:00", "101 installed@12:01"} {
		x := &told{Store: s.store, left: 99}
		_, _, err := status.Collect(t.Context(), x, &artifacts.CurrentState{
			Device: press, Epoch: epoch, Counter: uint64(n + 1), Sequence: uint64(100 + n), Time: noon.Add(time.Duration(n) * time.Minute), Repository: "r.example/state",
			Capabilities: json.RawMessage(caps(press, `,"x-longshore-extensions":{"transitions":`+string(list)+"}")),
			Deployments:  []artifacts.CurrentDeployment{{ID: there, Generation: 2, State: margo.StateInstalled, Since: noon, Components: []artifacts.CurrentComponent{}}},
		}, noon.Add(time.Hour))
		if got := strings.Join(x.taken, " "); got != want || err != nil {
			t.Errorf("report %d: %q, %v, want %q", n+1, got, err, want)
		}
	}
}
