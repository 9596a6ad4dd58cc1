package reported_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/reported"
	"github.com/longshore-dev/longshore/fleet/rollout"
)

var now = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

func report(id artifacts.DeviceID, at time.Time) *artifacts.CurrentState {
	g := &artifacts.CurrentGeneration{Generation: 3, Digest: digest.FromString("3")}
	return &artifacts.CurrentState{
		Device: id, Time: at, Every: 3600, Accepted: g, Running: g, Committed: g,
		Deployments:  []artifacts.CurrentDeployment{{ID: "d", Generation: 3, State: margo.StateFailed, Error: &margo.StatusError{Code: "exited", Message: "it ended"}}},
		Capabilities: json.RawMessage(`{"x-longshore-extensions":{"agentVersion":"1.2.3","progress":{"phase":"applying","generation":3},"decisions":[{"at":"soon"},{"verdict":"approved"}]}}`),
	}
}

func TestLook(t *testing.T) {
	f, err := fleet.Read(fstest.MapFS{
		"fleet.yaml":    {Data: []byte("fleet: f\nregistry: r.example/p\nreports: {keys: keys, repository: \"reports/{labels.site}\"}\ndevices: [{id: a, labels: {site: GRAZ}}, {id: b, labels: {site: x}}, {id: c, labels: {site: x}}, {id: d, labels: {site: x}}, {id: e}]\n")},
		"keys/a.pub":    {Data: []byte("the key of a")},
		"keys/other.pu": {Data: []byte("not one")},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := f.ReportRepository(f.Device("a")) + " " + string(f.Device("a").ReportKey) + string(f.Device("b").ReportKey) + f.ReportRepository(f.Device("e")); got != "r.example/p/reports/graz the key of a" {
		t.Errorf("where and with which key: %q", got)
	}
	var down error
	s := &reported.Source{Fleet: f, Now: func() time.Time { return now }, Read: func(_ context.Context, d *fleet.Device) (*artifacts.CurrentState, error) {
		switch d.ID {
		case "a":
			return report("a", now.Add(-time.Minute)), down
		case "b":
			return report("b", now.Add(-4*time.Hour)), nil
		case "c":
			return report("a", now), nil // another device's
		case "d":
			return nil, fmt.Errorf("signed by nobody: %w", fault.ErrBadSignature)
		}
		return nil, fault.ErrNotFound
	}}
	ids := []artifacts.DeviceID{"a", "b", "c", "d", "e", "stranger"}
	seen, err := s.Look(t.Context(), ids)
	if err != nil || len(seen) != 2 {
		t.Fatalf("Look = %v, %v", seen, err)
	}
	a := seen["a"]
	if a.Accepted != 3 || a.Committed != 3 || a.Digest != digest.FromString("3") || a.Agent != "1.2.3" || a.Ago != time.Minute || !a.OfflineSince.IsZero() || a.Deployments[0].Error != "exited: it ended" || a.Progress.String() != "generation 3: applying" || len(a.Waits.Decisions) != 1 {
		t.Errorf("a = %+v", a)
	}
	if fate, why := a.Of(artifacts.RolloutTarget{Generation: 3, Digest: digest.FromString("3")}); fate != rollout.Failed || !strings.Contains(why, "it ended") {
		t.Errorf("a is %s: %s", fate, why)
	}
	if seen["b"].OfflineSince.IsZero() {
		t.Error("b is not offline after four of its intervals")
	}
	for id, want := range map[artifacts.DeviceID]string{"a": "", "c": "report of device a", "d": "signed by nobody", "e": ""} {
		if got := s.Unverified(id); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("Unverified(%s) = %q", id, got)
		}
	}
	if caps, err := s.Capabilities(t.Context(), ids); err != nil || len(caps) != 2 {
		t.Errorf("Capabilities = %v, %v", caps, err)
	}
	down = fmt.Errorf("no route: %w", fault.ErrTemporary)
	if seen, err := s.Look(t.Context(), ids); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("without the registry: %v, %v", seen, err)
	}
}

// A hold that cannot be read is one all the same, and hides nothing else.
func TestLookAtWhatCannotBeRead(t *testing.T) {
	f, err := fleet.Read(fstest.MapFS{"fleet.yaml": {Data: []byte("fleet: f\nregistry: r.example/p\nreports: {keys: keys}\ndevices: [{id: a}]\n")}})
	if err != nil {
		t.Fatal(err)
	}
	for member, want := range map[string]string{
		`"hold":{"generation":"seven"}`:      "an unknown person (the report of it cannot be read) keeps it at generation 0",
		`"waiting":[{"name":7}]`:             "changes: the report of them cannot be read (unreadable)",
		`"refused":7,"decisions":[{"at":1}]`: "",
	} {
		s := &reported.Source{Fleet: f, Now: func() time.Time { return now }, Read: func(context.Context, *fleet.Device) (*artifacts.CurrentState, error) {
			c := report("a", now.Add(-time.Minute))
			c.Deployments, c.Committed = nil, nil
			c.Capabilities = json.RawMessage(`{"x-longshore-extensions":{"agentVersion":"1.2.3","progress":{"phase":"applying","generation":3},` + member + `}}`)
			return c, nil
		}}
		seen, err := s.Look(t.Context(), []artifacts.DeviceID{"a"})
		if err != nil || seen["a"] == nil || seen["a"].Agent != "1.2.3" || seen["a"].Progress.String() != "generation 3: applying" {
			t.Fatalf("%s: Look = %+v, %v", member, seen["a"], err)
		}
		if fate, why := seen["a"].Of(artifacts.RolloutTarget{Generation: 3, Digest: digest.FromString("3")}); why != want || (fate == rollout.Waiting) != (want != "") {
			t.Errorf("%s: it is %s: %s", member, fate, why)
		}
	}
}

// posted is an endpoint with fixed answers.
type posted map[artifacts.DeviceID]*rollout.DeviceReport

func (p posted) Look(context.Context, []artifacts.DeviceID) (map[artifacts.DeviceID]*rollout.DeviceReport, error) {
	out := map[artifacts.DeviceID]*rollout.DeviceReport{}
	for id, s := range p {
		out[id] = s
	}
	return out, nil
}

func (p posted) Capabilities(context.Context, []artifacts.DeviceID) (map[artifacts.DeviceID][]byte, error) {
	return map[artifacts.DeviceID][]byte{"a": []byte("posted")}, nil
}

// The newer of the two counts.
func TestBoth(t *testing.T) {
	f, err := fleet.Read(fstest.MapFS{"fleet.yaml": {Data: []byte("fleet: f\nregistry: r.example/p\nreports: {keys: keys}\ndevices: [{id: a}, {id: b}, {id: c}]\n")}})
	if err != nil {
		t.Fatal(err)
	}
	s := &reported.Source{Fleet: f, Now: func() time.Time { return now }, Read: func(_ context.Context, d *fleet.Device) (*artifacts.CurrentState, error) {
		return report(d.ID, now.Add(-time.Hour)), nil
	}}
	both := reported.Both{Registry: s, Endpoint: posted{"a": {Heard: now, Accepted: 9}, "b": {Heard: now.Add(-2 * time.Hour), Accepted: 1}}}
	ids := []artifacts.DeviceID{"a", "b", "c"}
	seen, err := both.Look(t.Context(), ids)
	if err != nil || seen["a"].Accepted != 9 || seen["b"].Accepted != 3 || seen["c"].Accepted != 3 {
		t.Errorf("Look = %+v %+v %+v, %v", seen["a"], seen["b"], seen["c"], err)
	}
	// A device's clock that is ahead says nothing about how old its report is: what the endpoint has heard counts, unless that is silent.
	s.Read = func(_ context.Context, d *fleet.Device) (*artifacts.CurrentState, error) {
		return report(d.ID, now.Add(time.Hour)), nil
	}
	both.Endpoint = posted{"a": {Heard: now.Add(-time.Minute), Accepted: 9}, "b": {Heard: now.Add(-2 * time.Hour), OfflineSince: now.Add(-2 * time.Hour), Accepted: 1}}
	if seen, err = both.Look(t.Context(), ids); err != nil || seen["a"].Accepted != 9 || seen["b"].Accepted != 3 || seen["c"].Accepted != 3 {
		t.Errorf("Look with clocks ahead = %+v %+v %+v, %v", seen["a"], seen["b"], seen["c"], err)
	}
	caps, err := both.Capabilities(t.Context(), ids)
	if err != nil || string(caps["a"]) != "posted" || len(caps) != 3 {
		t.Errorf("Capabilities = %q, %v", caps, err)
	}
}
