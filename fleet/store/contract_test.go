package store_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/store"
)

// opener opens the store that lives at a place; the same place gives the same content. The contract closes it.
type opener func(t *testing.T, place string) store.Store

// holdToContract runs what every [store.Store] must pass.
func holdToContract(t *testing.T, open opener) {
	for _, c := range []struct {
		name  string
		check func(*testing.T, store.Store)
	}{
		{"devices", devices},
		{"children", children},
		{"deployments", deployments},
		{"unregistered", unregistered},
		{"repeated reports", repeated},
		{"epochs", epochs},
		{"reports without order", unordered},
		{"pages", pages},
		{"summary", summary},
		{"bounded lists", bounded},
		{"counts", counts},
		{"quota of deployments", deploymentQuota},
		{"quota of children", childQuota},
		{"quota of bytes", byteQuota},
		{"heard over a quota", heardOverQuota},
		{"silence", silence},
		{"a clock that was ahead", clockAhead},
		{"tokens", tokens},
		{"changes of tokens", tokenChanges},
		{"manifests", manifests},
		{"enrollments", enrollments},
		{"expected keys", expected},
		{"removals", removals},
		{"bounded requests", pendingBound},
		{"join tokens", joinTokens},
		{"changes of enrollments", enrollmentChanges},
		{"registered children", registeredChildren},
		{"together", together},
		{"bytes", verbatim},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t, t.TempDir())
			c.check(t, s)
			if err := s.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
	t.Run("reopen", func(t *testing.T) { reopen(t, open) })
	t.Run("closed", func(t *testing.T) { closed(t, open) })
}

// noon is the time of the reports.
func noon(seconds int) time.Time {
	return time.Date(2026, 11, 20, 12, 0, seconds, 0, time.UTC)
}

func caps(id string) store.Capabilities {
	return store.Capabilities{Device: id, By: id, Body: []byte(`{"id":"` + id + `"}`), At: noon(0)}
}

func status(device, id string, state margo.State) store.Status {
	return store.Status{Device: device, By: device, Deployment: id, State: state, Body: []byte(`{"state":"` + string(state) + `"}`), At: noon(0)}
}

func put(t *testing.T, s store.Store, report any, want store.Outcome) {
	t.Helper()
	var got store.Outcome
	var err error
	switch r := report.(type) {
	case store.Capabilities:
		got, err = s.PutCapabilities(t.Context(), r)
	case store.Status:
		got, err = s.PutStatus(t.Context(), r)
	}
	if err != nil || got != want {
		t.Fatalf("report %+v = %v, %v, want %v", report, got, err, want)
	}
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func devices(t *testing.T, s store.Store) {
	put(t, s, caps("a"), store.Created)
	later := caps("a")
	later.Body, later.Alarm, later.At = []byte(`{}`), true, noon(5)
	put(t, s, later, store.Updated)
	got, err := s.Device(t.Context(), "a")
	want := store.Device{ID: "a", Registered: true, Capabilities: []byte(`{}`), Alarm: true, FirstHeard: noon(0), LastHeard: noon(5)}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Device: %v (-want +got):\n%s", err, diff)
	}
	_, err = s.Device(t.Context(), "b")
	wantErr(t, "Device(b)", err, fault.ErrNotFound)
	put(t, s, status("a", "d", margo.StateInstalled), store.Created)
	if err := s.DeleteDevice(t.Context(), "a"); err != nil {
		t.Errorf("DeleteDevice: %v", err)
	}
	wantErr(t, "DeleteDevice again", s.DeleteDevice(t.Context(), "a"), fault.ErrNotFound)
	if left, _, err := s.Deployments(t.Context(), store.DeploymentQuery{Limit: 10}); err != nil || len(left) > 0 {
		t.Errorf("deployments of a removed device: %v, %v", left, err)
	}
	put(t, s, caps("a"), store.Created)
}

func children(t *testing.T, s store.Store) {
	_, err := s.PutCapabilities(t.Context(), caps("gw/a"))
	wantErr(t, "child without gateway", err, fault.ErrNotFound)
	put(t, s, caps("gw"), store.Created)
	child := caps("gw/a")
	child.By, child.At = "gw", noon(7)
	put(t, s, child, store.Created)
	if gw, err := s.Device(t.Context(), "gw"); err != nil || !gw.LastHeard.Equal(noon(7)) {
		t.Errorf("gateway last heard %v, %v, want %v: it spoke for its child", gw.LastHeard, err, noon(7))
	}
	_, err = s.PutCapabilities(t.Context(), caps("gw/b/c"))
	wantErr(t, "grandchild without parent", err, fault.ErrNotFound)
	put(t, s, caps("gw/a/x"), store.Created)
	put(t, s, caps("gw-2"), store.Created) // sorts near gw/
	put(t, s, caps("gw0"), store.Created)
	put(t, s, status("gw/a/x", "d", margo.StateFailed), store.Created)
	if err := s.DeleteDevice(t.Context(), "gw"); err != nil {
		t.Fatal(err)
	}
	left, _, err := s.Devices(t.Context(), store.DeviceQuery{Limit: 10})
	if err != nil || len(left) != 2 || left[0].ID != "gw-2" || left[1].ID != "gw0" {
		t.Errorf("after the gateway is gone: %v, %v, want gw-2 and gw0", left, err)
	}
}

func deployments(t *testing.T, s store.Store) {
	put(t, s, caps("a"), store.Created)
	put(t, s, status("a", "d1", margo.StatePending), store.Created)
	for i, state := range []margo.State{margo.StateInstalling, margo.StateInstalling, margo.StateInstalled} {
		r := status("a", "d1", state)
		r.At = noon(10 * (i + 1))
		put(t, s, r, store.Updated)
	}
	r := status("a", "d1", margo.StateInstalled)
	r.At, r.Body = noon(90), []byte(`{"again":1}`)
	put(t, s, r, store.Updated)
	got, _, err := s.Deployments(t.Context(), store.DeploymentQuery{Device: "a", Limit: 10})
	want := []store.Deployment{{Device: "a", ID: "d1", State: margo.StateInstalled, Body: []byte(`{"again":1}`), Since: noon(30), Reported: noon(90)}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Deployments: %v (-want +got):\n%s", err, diff)
	}
}

func unregistered(t *testing.T, s store.Store) {
	r := status("a", "d", margo.StatePending)
	r.Registered = true
	_, err := s.PutStatus(t.Context(), r)
	wantErr(t, "status of an unregistered child", err, fault.ErrNotFound)
	r.Registered = false
	put(t, s, r, store.Created)
	if d, err := s.Device(t.Context(), "a"); err != nil || d.Capabilities != nil {
		t.Errorf("Device = %+v, %v, want one without capabilities", d, err)
	}
	wantErr(t, "DeleteDevice", s.DeleteDevice(t.Context(), "a"), fault.ErrNotFound)
	put(t, s, caps("a"), store.Created)
}

func repeated(t *testing.T, s store.Store) {
	r := caps("a")
	r.Stamp = store.Stamp{Epoch: "e1", Sequence: 1}
	put(t, s, r, store.Created)
	put(t, s, r, store.Repeated)
	one := status("a", "d", margo.StateInstalling)
	one.Stamp = store.Stamp{Epoch: "e1", Sequence: 2}
	two := status("a", "d", margo.StateInstalled)
	two.Stamp = store.Stamp{Epoch: "e1", Sequence: math.MaxUint64} // more than an int64 holds
	put(t, s, one, store.Created)
	put(t, s, two, store.Updated)
	one.At = noon(50)
	put(t, s, one, store.Repeated)
	put(t, s, two, store.Repeated)
	if got := state(t, s, "a", "d"); got != margo.StateInstalled {
		t.Errorf("state = %s after an old report came again", got)
	}
	if d, err := s.Device(t.Context(), "a"); err != nil || !d.LastHeard.Equal(noon(50)) {
		t.Errorf("last heard %v, %v, want %v: a repeated report is a sign of life", d.LastHeard, err, noon(50))
	}
}

func state(t *testing.T, s store.Store, device, id string) margo.State {
	t.Helper()
	all, _, err := s.Deployments(t.Context(), store.DeploymentQuery{Device: device, Limit: 100})
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(d store.Deployment) bool { return d.ID == id })
	if i < 0 {
		t.Fatalf("no deployment %s", id)
	}
	return all[i].State
}

func epochs(t *testing.T, s store.Store) {
	report := func(epoch string, n uint64, state margo.State, want store.Outcome) {
		t.Helper()
		r := status("a", "d", state)
		r.Stamp = store.Stamp{Epoch: epoch, Sequence: n}
		put(t, s, r, want)
	}
	report("e1", 100, margo.StateInstalled, store.Created)
	report("e2", 1, margo.StateInstalling, store.Updated) // the device's disk was replaced
	report("e1", 101, margo.StateFailed, store.Repeated)
	report("e2", 2, margo.StateInstalled, store.Updated)
	for i := range 40 {
		report(fmt.Sprint("more", i), 1, margo.StateInstalled, store.Updated)
	}
	report("more39", 1, margo.StateFailed, store.Repeated)
	report("more38", 9, margo.StateFailed, store.Repeated)

	register := func(epoch string, seconds int, want store.Outcome) {
		t.Helper()
		r := caps("b")
		r.Stamp, r.At = store.Stamp{Epoch: epoch, Sequence: 1}, noon(seconds)
		put(t, s, r, want)
	}
	register("e2", 20, store.Created)
	register("e1", 10, store.Older) // of a database before the first report here
	register("e3", 30, store.Updated)
	register("e1", 40, store.Updated)
	if d, err := s.Device(t.Context(), "b"); err != nil || d.Stamp != (store.Stamp{Epoch: "e1", Sequence: 1}) {
		t.Errorf("b reported %+v, %v", d.Stamp, err)
	}
}

func unordered(t *testing.T, s store.Store) {
	put(t, s, status("a", "d", margo.StateInstalled), store.Created)
	put(t, s, status("a", "d", margo.StatePending), store.Updated)
	if got := state(t, s, "a", "d"); got != margo.StatePending {
		t.Errorf("state = %s, want the last one", got)
	}
}

func pages(t *testing.T, s store.Store) {
	for i := range 9 {
		id := fmt.Sprintf("dev-%d", i)
		c := caps(id)
		c.Alarm = i%4 == 0
		put(t, s, c, store.Created)
		for _, d := range []string{"x", "y"} {
			state := margo.StateInstalled
			if i == 5 && d == "y" {
				state = margo.StateFailed
			}
			put(t, s, status(id, d, state), store.Created)
		}
	}
	var ids []string
	for after := ""; ; {
		page, _, err := s.Devices(t.Context(), store.DeviceQuery{After: after, Limit: 4})
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, d := range page {
			ids = append(ids, d.ID)
		}
		after = page[len(page)-1].ID
	}
	if len(ids) != 9 || !slices.IsSorted(ids) {
		t.Errorf("pages of devices: %v", ids)
	}
	if alarms, _, err := s.Devices(t.Context(), store.DeviceQuery{Alarm: true, Limit: 10}); err != nil || len(alarms) != 3 {
		t.Errorf("alarms: %v, %v, want 3", alarms, err)
	}
	count := func(q store.DeploymentQuery, want int) {
		t.Helper()
		q.Limit = 100
		if got, _, err := s.Deployments(t.Context(), q); err != nil || len(got) != want {
			t.Errorf("Deployments(%+v) = %d, %v, want %d", q, len(got), err, want)
		}
	}
	count(store.DeploymentQuery{}, 18)
	count(store.DeploymentQuery{State: margo.StateFailed}, 1)
	count(store.DeploymentQuery{Device: "dev-5", State: margo.StateInstalled}, 1)
	count(store.DeploymentQuery{After: [2]string{"dev-7", "x"}}, 3)
	count(store.DeploymentQuery{Device: "nobody"}, 0)
}

func summary(t *testing.T, s store.Store) {
	c := caps("a")
	c.Alarm = true
	put(t, s, c, store.Created)
	put(t, s, caps("b"), store.Created)
	put(t, s, status("a", "1", margo.StateInstalled), store.Created)
	put(t, s, status("b", "1", margo.StateInstalled), store.Created)
	put(t, s, status("b", "2", margo.StateFailed), store.Created)
	got, err := s.Summary(t.Context(), store.Silence{Now: noon(0)})
	want := store.Summary{Devices: 2, Alarms: 1, Deployments: map[margo.State]int{margo.StateInstalled: 2, margo.StateFailed: 1}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Summary: %v (-want +got):\n%s", err, diff)
	}
}

// What was heard while the endpoint's clock was years ahead is no obstacle once it is right again.
func clockAhead(t *testing.T, s store.Store) {
	report := func(id, epoch string, at time.Time, want store.Outcome) {
		t.Helper()
		r := caps(id)
		r.Stamp, r.At, r.Interval = store.Stamp{Epoch: epoch, Sequence: 1}, at, time.Minute
		put(t, s, r, want)
	}
	ahead := noon(0).AddDate(10, 0, 0)
	for _, id := range []string{"heard", "new", "silent"} {
		report(id, "e1", ahead, store.Created)
	}
	installed := status("heard", "x", margo.StateInstalled)
	installed.At = ahead
	put(t, s, installed, store.Created)
	report("heard", "e1", noon(600), store.Repeated)
	installed.At = noon(600)
	put(t, s, installed, store.Updated)
	if list, _, err := s.Deployments(t.Context(), store.DeploymentQuery{Limit: 9}); err != nil || len(list) != 1 || !list[0].Since.Equal(noon(600)) {
		t.Errorf("deployments %+v, %v", list, err)
	}
	report("new", "e2", noon(600), store.Updated) // its database was replaced
	r := caps("heard")                            // signed earlier, and brought later
	r.Stamp, r.At, r.Now = store.Stamp{Epoch: "e1", Sequence: 2}, noon(300), noon(610)
	put(t, s, r, store.Updated)
	for id, want := range map[string]time.Time{"heard": noon(600), "new": noon(600), "silent": ahead} {
		if d, err := s.Device(t.Context(), id); err != nil || !d.FirstHeard.Equal(want) || !d.LastHeard.Equal(want) {
			t.Errorf("%s was heard %v to %v, %v; want %v", id, d.FirstHeard, d.LastHeard, err, want)
		}
	}
	for now, want := range map[time.Time][]string{noon(620): {"silent"}, noon(600 + 181): {"heard", "new", "silent"}, ahead.Add(time.Minute): {"heard", "new"}} {
		silence := store.Silence{Now: now, Since: noon(0), After: time.Minute}
		list, _, err := s.Devices(t.Context(), store.DeviceQuery{Limit: 9, Offline: &silence})
		var got []string
		for _, d := range list {
			if got = append(got, d.ID); !silence.Offline(d) {
				t.Errorf("%s is not offline at %v", d.ID, now)
			}
		}
		if sum, err2 := s.Summary(t.Context(), silence); !slices.Equal(got, want) || sum.Offline != len(want) || err != nil || err2 != nil {
			t.Errorf("offline at %v: %v, %d counted, want %v; %v, %v", now, got, sum.Offline, want, err, err2)
		}
	}
}

func tokens(t *testing.T, s store.Store) {
	one := store.Token{ID: "t1", Devices: []string{"a"}, Hash: []byte{1, 2, 3}, Created: noon(1)}
	two := store.Token{ID: "t2", Devices: []string{"b"}, Hash: []byte{4}, Created: noon(2)}
	if err := s.AddTokens(t.Context(), one, two); err != nil {
		t.Fatal(err)
	}
	other := store.Token{ID: "t0", Devices: []string{"c"}, Hash: []byte{5}}
	wantErr(t, "AddTokens, one of them twice", s.AddTokens(t.Context(), other, one), fault.ErrConflict)
	got, err := s.Token(t.Context(), "t1")
	if diff := cmp.Diff(one, got); err != nil || diff != "" {
		t.Errorf("Token: %v (-want +got):\n%s", err, diff)
	}
	for range 2 {
		if err := s.RevokeToken(t.Context(), "t1", noon(9)); err != nil {
			t.Errorf("RevokeToken: %v", err)
		}
	}
	wantErr(t, "RevokeToken(t3)", s.RevokeToken(t.Context(), "t3", noon(9)), fault.ErrNotFound)
	_, err = s.Token(t.Context(), "t1")
	wantErr(t, "revoked token", err, fault.ErrNotFound)
	one.Revoked = noon(9)
	all, err := s.ListTokens(t.Context(), "")
	if diff := cmp.Diff([]store.Token{one, two}, all); err != nil || diff != "" {
		t.Errorf("ListTokens: %v (-want +got):\n%s", err, diff)
	}
	if of, err := s.ListTokens(t.Context(), "b"); err != nil || len(of) != 1 {
		t.Errorf("ListTokens(b) = %v, %v", of, err)
	}
	three := store.Token{ID: "t3", Devices: []string{"b", "a_c", "d/e"}, Hash: []byte{6}, Created: noon(3)}
	if err := s.AddTokens(t.Context(), three); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Token(t.Context(), "t3"); err != nil || !cmp.Equal(three, got) {
		t.Errorf("a token of several devices: %+v, %v", got, err)
	}
	for device, want := range map[string]int{"b": 2, "a_c": 1, "d/e": 1, "abc": 0, "e": 0} {
		if of, err := s.ListTokens(t.Context(), device); err != nil || len(of) != want {
			t.Errorf("ListTokens(%s) = %v, %v, want %d", device, of, err, want)
		}
	}
}

// together has many devices report at once: a report that fails does not affect others.
func together(t *testing.T, s store.Store) {
	const n, each = 40, 10
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			id := fmt.Sprintf("dev-%02d", i)
			for j := range each {
				r := status(id, "d", margo.StateInstalling)
				r.Stamp = store.Stamp{Epoch: "e", Sequence: uint64(j + 1)}
				if _, err := s.PutStatus(t.Context(), r); err != nil {
					t.Errorf("PutStatus: %v", err)
				}
				if _, err := s.PutCapabilities(t.Context(), caps("nobody/"+id)); !errors.Is(err, fault.ErrNotFound) {
					t.Errorf("PutCapabilities: %v, want ErrNotFound", err)
				}
			}
		})
	}
	wg.Wait()
	if got, err := s.Summary(t.Context(), store.Silence{Now: noon(0)}); err != nil || got.Devices != n || got.Deployments[margo.StateInstalling] != n {
		t.Errorf("Summary = %+v, %v, want %d devices", got, err, n)
	}
}

func verbatim(t *testing.T, s store.Store) {
	odd := "a%_'\"\x00;--ü"
	r := status(odd, odd, margo.StateInstalled)
	r.Body = []byte("{\r\n \"x\" : 18446744073709551615 }\n")
	put(t, s, r, store.Created)
	got, _, err := s.Deployments(t.Context(), store.DeploymentQuery{Device: odd, Limit: 1})
	if err != nil || len(got) != 1 || string(got[0].Body) != string(r.Body) || got[0].ID != odd {
		t.Errorf("Deployments = %+v, %v, want the body as it arrived", got, err)
	}
}

func reopen(t *testing.T, open opener) {
	place := t.TempDir()
	s := open(t, place)
	put(t, s, caps("a"), store.Created)
	r := status("a", "d", margo.StateInstalled)
	r.Stamp = store.Stamp{Epoch: "e", Sequence: 4}
	put(t, s, r, store.Created)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, place)
	put(t, s, r, store.Repeated)
	if got := state(t, s, "a", "d"); got != margo.StateInstalled {
		t.Errorf("state = %s", got)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func closed(t *testing.T, open opener) {
	s := open(t, t.TempDir())
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatalf("Close: %v", err)
		}
	}
	_, err := s.PutCapabilities(t.Context(), caps("a"))
	wantErr(t, "after Close", err, fault.ErrTemporary)
	_, _, err = s.Devices(t.Context(), store.DeviceQuery{Limit: 1})
	wantErr(t, "after Close", err, fault.ErrTemporary)
}

// bounded holds that a list ends where its bytes or rows do, and says so.
func bounded(t *testing.T, s store.Store) {
	for i := range 5 {
		c := caps(fmt.Sprint("dev-", i))
		c.Summary = make([]byte, 1000)
		put(t, s, c, store.Created)
		r := status(c.Device, "d", margo.StateInstalled)
		r.Body = make([]byte, 1000)
		put(t, s, r, store.Created)
	}
	for _, tt := range []struct{ limit, bytes, want int }{{5, 0, 5}, {3, 0, 3}, {5, 1, 1}, {5, 1500, 2}, {5, 1 << 20, 5}} {
		d, more, err := s.Devices(t.Context(), store.DeviceQuery{Limit: tt.limit, Bytes: tt.bytes})
		if err != nil || len(d) != tt.want || more != (tt.want < 5) || d[0].Capabilities != nil || len(d[0].Summary) != 1000 {
			t.Errorf("%+v: %d devices, more %v, %v", tt, len(d), more, err)
		}
		x, more, err := s.Deployments(t.Context(), store.DeploymentQuery{Limit: tt.limit, Bytes: tt.bytes})
		if err != nil || len(x) != tt.want || more != (tt.want < 5) {
			t.Errorf("%+v: %d deployments, more %v, %v", tt, len(x), more, err)
		}
	}
	if d, _, err := s.Devices(t.Context(), store.DeviceQuery{Limit: 1, Capabilities: true}); err != nil || string(d[0].Capabilities) != `{"id":"dev-0"}` {
		t.Errorf("with capabilities: %+v, %v", d, err)
	}
}

func counts(t *testing.T, s store.Store) {
	for i, state := range []margo.State{margo.StateInstalled, margo.StateInstalled, margo.StateFailed} {
		put(t, s, status("a", fmt.Sprint(i), state), store.Created)
	}
	put(t, s, status("b", "x", margo.StatePending), store.Created)
	put(t, s, status("c", "x", margo.StatePending), store.Created)
	got, err := s.Counts(t.Context(), []string{"a", "b", "nobody"})
	want := map[string]map[margo.State]int{"a": {margo.StateInstalled: 2, margo.StateFailed: 1}, "b": {margo.StatePending: 1}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("Counts: %v (-want +got):\n%s", err, diff)
	}
	worst, _, err := s.Deployments(t.Context(), store.DeploymentQuery{Device: "a", Limit: 1, Worst: true})
	if err != nil || len(worst) != 1 || worst[0].ID != "2" {
		t.Errorf("the worst: %+v, %v", worst, err)
	}
}

func silence(t *testing.T, s store.Store) {
	first := status("hourly", "x", margo.StateInstalled) // the device's capabilities come later, and count from then on
	first.Interval = time.Minute
	put(t, s, first, store.Created)
	if d, _, err := s.Devices(t.Context(), store.DeviceQuery{Limit: 1}); err != nil || len(d) != 1 || d[0].Interval != time.Minute {
		t.Errorf("a device that reported only a deployment: %+v, %v", d, err)
	}
	for id, every := range map[string]time.Duration{"minutely": time.Minute, "hourly": time.Hour, "unknown": 0} {
		c := caps(id)
		c.Interval = every
		put(t, s, c, store.Created)
	}
	heard := noon(0)
	for name, tt := range map[string]struct {
		silence store.Silence
		want    []string
	}{
		"within three intervals": {store.Silence{Now: heard.Add(3 * time.Minute)}, nil},
		"one is too late":        {store.Silence{Now: heard.Add(3*time.Minute + time.Second)}, []string{"minutely"}},
		"two are":                {store.Silence{Now: heard.Add(4 * time.Hour)}, []string{"hourly", "minutely"}},
		"all":                    {store.Silence{Now: heard.Add(4 * time.Hour), After: 2 * time.Hour}, []string{"hourly", "minutely", "unknown"}},
		"nobody could hear":      {store.Silence{Now: heard.Add(4 * time.Hour), Since: heard.Add(4*time.Hour - time.Minute), After: 2 * time.Hour}, nil},
		"heard again since":      {store.Silence{Now: heard.Add(4 * time.Hour), Since: heard.Add(time.Hour), After: 4 * time.Hour}, []string{"minutely"}},
	} {
		list, _, err := s.Devices(t.Context(), store.DeviceQuery{Limit: 9, Offline: &tt.silence})
		var got []string
		for _, d := range list {
			got = append(got, d.ID)
			if !tt.silence.Offline(d) {
				t.Errorf("%s: %s is not offline", name, d.ID)
			}
		}
		sum, err2 := s.Summary(t.Context(), tt.silence)
		if !slices.Equal(got, tt.want) || sum.Offline != len(tt.want) || err != nil || err2 != nil {
			t.Errorf("%s: %v, %d counted, want %v; %v, %v", name, got, sum.Offline, tt.want, err, err2)
		}
	}
}
