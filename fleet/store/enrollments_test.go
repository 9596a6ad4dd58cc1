package store_test

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/store"
)

// asks is a request of a key at a minute.
func asks(key string, at int) store.EnrollmentRequest {
	return store.EnrollmentRequest{Key: key, Device: "press-07", Address: "192.0.2.1", About: []byte(`{"hostname":"a"}`), At: minute(at)}
}

func request(t *testing.T, s store.Store, r store.EnrollmentRequest, want store.EnrollmentState) store.Enrollment {
	t.Helper()
	e, err := s.RequestEnrollment(t.Context(), r)
	if err != nil || e.State != want {
		t.Fatalf("RequestEnrollment(%s) = %s, %v, want %s", r.Key, e.State, err, want)
	}
	return e
}

func approve(t *testing.T, s store.Store, a store.Approval) error {
	t.Helper()
	a.At = minute(5)
	_, err := s.ApproveEnrollment(t.Context(), a)
	return err
}

func enrollments(t *testing.T, s store.Store) {
	ctx := t.Context()
	got := request(t, s, asks("a", 0), store.EnrollmentPending)
	want := store.Enrollment{Key: "a", State: store.EnrollmentPending, Device: "press-07", First: minute(0), Asked: minute(0), Address: "192.0.2.1", About: []byte(`{"hostname":"a"}`)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("a new key (-want +got):\n%s", diff)
	}
	if got = request(t, s, asks("a", 2), store.EnrollmentPending); !got.First.Equal(minute(0)) || !got.Asked.Equal(minute(2)) {
		t.Errorf("a key that asks again: first %s, asked %s", got.First, got.Asked)
	}
	request(t, s, asks("b", 2), store.EnrollmentPending)
	wantErr(t, "approve a key that has not asked", approve(t, s, store.Approval{Key: "c", Device: "press-07"}), fault.ErrNotFound)
	if err := approve(t, s, store.Approval{Key: "a", Device: "press-07"}); err != nil {
		t.Fatal(err)
	}
	if err := approve(t, s, store.Approval{Key: "a", Device: "press-07"}); err != nil {
		t.Errorf("approve again: %v", err)
	}
	wantErr(t, "approve a second key for an id", approve(t, s, store.Approval{Key: "b", Device: "press-07"}), fault.ErrConflict)
	wantErr(t, "expect a second key for an id", approve(t, s, store.Approval{Key: "c", Device: "press-07", Ahead: true}), fault.ErrConflict)
	wantErr(t, "approve a key for a second id", approve(t, s, store.Approval{Key: "a", Device: "press-08"}), fault.ErrConflict)
	request(t, s, asks("a", 3), store.EnrollmentApproved)
	request(t, s, asks("b", 3), store.EnrollmentPending)
	wantErr(t, "deny an enrolled key", s.DenyEnrollment(ctx, "a", "", minute(6)), fault.ErrConflict)
	wantErr(t, "deny a key that has not asked", s.DenyEnrollment(ctx, "c", "", minute(6)), fault.ErrNotFound)
	if err := s.DenyEnrollment(ctx, "b", "not ours", minute(6)); err != nil {
		t.Fatal(err)
	}
	if e := request(t, s, asks("b", 7), store.EnrollmentDenied); e.Reason != "not ours" {
		t.Errorf("reason of a denied key = %q", e.Reason)
	}
	wantErr(t, "a grant to a denied key", s.NoteGrant(ctx, "b", "x", minute(9)), fault.ErrConflict)
	if err := s.NoteGrant(ctx, "a", "harbor:x", minute(9)); err != nil {
		t.Fatal(err)
	}
	removal(t, s)
}

// removal goes on where enrollments is: a is press-07.
func removal(t *testing.T, s store.Store) {
	ctx := t.Context()
	if err := s.PutManifest(ctx, store.Manifest{Client: "press-07", Version: 3, Digest: "sha256:1"}); err != nil {
		t.Fatal(err)
	}
	shared := []store.Token{
		{ID: "y", Devices: []string{"press-07", "press-071"}, Hash: []byte{2}},
		{ID: "z", Devices: []string{"a", "press-07", "b"}, Hash: []byte{3}},
		{ID: "w", Devices: []string{"press-071", "a"}, Hash: []byte{4}},
	}
	if err := s.AddTokens(ctx, append(shared, store.Token{ID: "x", Devices: []string{"press-07"}, Hash: []byte{1}, Created: minute(0)})...); err != nil {
		t.Fatal(err)
	}
	_, err := s.RemoveDevice(ctx, "press-08", false, minute(8))
	wantErr(t, "remove a device that is not enrolled", err, fault.ErrNotFound)
	if e, err := s.RemoveDevice(ctx, "press-07", true, minute(8)); err != nil || e.Key != "a" || e.Credential != "harbor:x" {
		t.Fatalf("RemoveDevice = %+v, %v", e, err)
	}
	if e := request(t, s, asks("a", 9), store.EnrollmentRemoved); !e.Wipe {
		t.Error("a removed key is not asked to wipe")
	}
	_, err = s.Manifest(ctx, "press-07")
	wantErr(t, "manifest of a removed device", err, fault.ErrNotFound)
	_, err = s.Token(ctx, "x")
	wantErr(t, "token of a removed device", err, fault.ErrNotFound)
	for id, want := range map[string]string{"y": "[press-071]", "z": "[a b]", "w": "[press-071 a]"} {
		if token, err := s.Token(ctx, id); err != nil || fmt.Sprint(token.Devices) != want {
			t.Errorf("token %s of several devices: %v, %v, want %s", id, token.Devices, err, want)
		}
	}
	due, err := s.ListEnrollments(ctx, store.EnrollmentQuery{Withdraw: true})
	if err != nil || len(due) != 1 || due[0].Key != "a" {
		t.Errorf("credentials to withdraw: %+v, %v", due, err)
	}
	if err := s.NoteWithdrawal(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if due, err = s.ListEnrollments(ctx, store.EnrollmentQuery{Withdraw: true}); err != nil || len(due) != 0 {
		t.Errorf("credentials to withdraw after that: %+v, %v", due, err)
	}
	// The id is free for another key, and the old key stays out.
	if err := approve(t, s, store.Approval{Key: "d", Device: "press-07", Ahead: true}); err != nil {
		t.Fatal(err)
	}
	request(t, s, asks("a", 11), store.EnrollmentRemoved)
	request(t, s, asks("d", 11), store.EnrollmentApproved)
	wantErr(t, "approve the old key again", approve(t, s, store.Approval{Key: "a", Device: "press-07"}), fault.ErrConflict)
	if err := approve(t, s, store.Approval{Key: "a", Device: "press-09"}); err != nil {
		t.Errorf("approve a removed key for another id: %v", err)
	}
	if e := request(t, s, asks("a", 13), store.EnrollmentApproved); e.Wipe || e.Device != "press-09" {
		t.Errorf("a key that is approved again: %+v", e)
	}
}

func expected(t *testing.T, s store.Store) {
	if err := approve(t, s, store.Approval{Key: "a", Device: "press-07", Ahead: true, Expires: minute(10)}); err != nil {
		t.Fatal(err)
	}
	if e := request(t, s, asks("a", 11), store.EnrollmentPending); e.Device != "press-07" {
		t.Errorf("after the approval has expired: %+v", e)
	}
	if err := approve(t, s, store.Approval{Key: "a", Device: "press-07", Ahead: true, Expires: minute(10)}); err != nil {
		t.Fatal(err)
	}
	request(t, s, asks("a", 13), store.EnrollmentApproved) // it had asked: nothing has to wait
	if err := approve(t, s, store.Approval{Key: "b", Device: "press-08", Ahead: true, Expires: minute(20)}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.RemoveDevice(t.Context(), "press-08", false, minute(14)); err != nil {
		t.Fatal(err)
	}
	request(t, s, asks("b", 15), store.EnrollmentPending)
}

// A device that has a token, or has reported, need not be enrolled to be removed.
func removals(t *testing.T, s store.Store) {
	ctx := t.Context()
	if err := s.AddTokens(ctx, store.Token{ID: "x", Devices: []string{"quiet"}, Hash: []byte{1}, Created: minute(0)}); err != nil {
		t.Fatal(err)
	}
	put(t, s, caps("gw"), store.Created)
	put(t, s, caps("gw/a"), store.Created)
	put(t, s, status("gw/a", "d", margo.StateFailed), store.Created)
	put(t, s, status("strange", "d", margo.StateFailed), store.Created) // it reports no capabilities
	_, err := s.RemoveDevice(ctx, "gw", true, minute(1))
	wantErr(t, "ask a device that is not enrolled to delete its data", err, fault.ErrNotFound)
	for _, device := range []string{"quiet", "gw", "strange"} {
		if e, err := s.RemoveDevice(ctx, device, false, minute(1)); err != nil || e.Key != "" {
			t.Errorf("remove %s: %+v, %v", device, e, err)
		}
		_, err := s.RemoveDevice(ctx, device, false, minute(1))
		wantErr(t, "remove "+device+" again", err, fault.ErrNotFound)
	}
	_, err = s.Token(ctx, "x")
	wantErr(t, "token of a removed device", err, fault.ErrNotFound)
	left, _, err := s.Devices(ctx, store.DeviceQuery{Limit: 9})
	failed, _, failure := s.Deployments(ctx, store.DeploymentQuery{Limit: 9})
	if err := errors.Join(err, failure); err != nil || len(left)+len(failed) > 0 {
		t.Errorf("reports of removed devices: %v, %v, %v", left, failed, err)
	}
	request(t, s, asks("a", 0), store.EnrollmentPending)
	if err := approve(t, s, store.Approval{Key: "a", Device: "press-07"}); err != nil {
		t.Fatal(err)
	}
	put(t, s, caps("press-07"), store.Created)
	if e, err := s.RemoveDevice(ctx, "press-07", true, minute(6)); err != nil || e.Key != "a" {
		t.Errorf("remove an enrolled device: %+v, %v", e, err)
	}
	_, err = s.Device(ctx, "press-07")
	wantErr(t, "reports of a removed device", err, fault.ErrNotFound)
}

func pendingBound(t *testing.T, s store.Store) {
	ctx := t.Context()
	r := asks("", 0)
	for i := range store.MaxPending + 2*store.MaxPendingAddress {
		r.Key, r.Address = fmt.Sprint("key ", i), fmt.Sprint("192.0.2.", i/(store.MaxPendingAddress+1))
		_, err := s.RequestEnrollment(ctx, r)
		if full := errors.Is(err, fault.ErrFull); err != nil && !full || full != (i%(store.MaxPendingAddress+1) == store.MaxPendingAddress || i >= store.MaxPending+store.MaxPending/store.MaxPendingAddress-1) {
			t.Fatalf("request %d: %v", i, err)
		}
	}
	// Those that know a device before it asks, or that have a token, need no room.
	if err := approve(t, s, store.Approval{Key: "known", Device: "press-08", Ahead: true}); err != nil {
		t.Fatal(err)
	}
	request(t, s, asks("known", 1), store.EnrollmentApproved)
	r.Key, r.At = "later", minute(0).Add(store.PendingAge+time.Minute)
	request(t, s, r, store.EnrollmentPending)
	if all, err := s.ListEnrollments(ctx, store.EnrollmentQuery{State: store.EnrollmentPending}); err != nil || len(all) != 1 {
		t.Errorf("pending after %s: %d, %v", store.PendingAge, len(all), err)
	}
}

func joinTokens(t *testing.T, s store.Store) {
	ctx := t.Context()
	one := store.JoinToken{ID: "one", Device: "press-07", Hash: []byte{1}, Created: minute(0), Expires: minute(10)}
	anyone := store.JoinToken{ID: "any", Hash: []byte{2}, Created: minute(0), Expires: minute(10)}
	gone := store.JoinToken{ID: "gone", Hash: []byte{3}, Created: minute(0), Expires: minute(10)}
	if err := s.AddJoinTokens(ctx, one, anyone, gone); err != nil {
		t.Fatal(err)
	}
	if err := s.RevokeJoinToken(ctx, "gone", minute(1)); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "revoke a token that is not there", s.RevokeJoinToken(ctx, "none", minute(1)), fault.ErrNotFound)
	try := func(key, device, id string, hash byte, at int) error {
		r := asks(key, at)
		r.Device, r.Token = device, &store.JoinProof{ID: id, Hash: []byte{hash}}
		_, err := s.RequestEnrollment(ctx, r)
		return err
	}
	wantErr(t, "another secret", try("a", "press-07", "one", 2, 2), fault.ErrDenied)
	wantErr(t, "a token that is not there", try("a", "press-07", "none", 1, 2), fault.ErrDenied)
	wantErr(t, "a revoked token", try("a", "press-07", "gone", 3, 2), fault.ErrDenied)
	wantErr(t, "an expired token", try("a", "press-07", "one", 1, 11), fault.ErrDenied)
	wantErr(t, "a token of another device", try("a", "press-08", "one", 1, 2), fault.ErrDenied)
	wantErr(t, "a device without an id", try("a", "", "any", 2, 2), fault.ErrInvalid)
	if all, err := s.ListEnrollments(ctx, store.EnrollmentQuery{}); err != nil || len(all) != 0 {
		t.Errorf("after bad tokens: %+v, %v", all, err)
	}
	// Many keys present one token at once.
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		wg.Go(func() { errs[i] = try(fmt.Sprint("key ", i), "", "one", 1, 3) })
	}
	wg.Wait()
	won := ""
	for i, err := range errs {
		if err == nil && won == "" {
			won = fmt.Sprint("key ", i)
		} else {
			wantErr(t, "a used token", err, fault.ErrDenied)
		}
	}
	if err := try(won, "", "one", 1, 4); err != nil {
		t.Errorf("the device that used it, again: %v", err)
	}
	wantErr(t, "a token for an id that another key has", try("b", "press-07", "any", 2, 4), fault.ErrConflict)
	if err := try("b", "press-08", "any", 2, 4); err != nil {
		t.Errorf("a token that is not used up by the attempt before: %v", err)
	}
	all, err := s.ListJoinTokens(ctx)
	if err != nil || len(all) != 3 || all[2].Key != won || !all[2].Used.Equal(minute(3)) || all[1].Revoked.IsZero() {
		t.Errorf("ListJoinTokens = %+v, %v", all, err)
	}
	if err := s.DenyEnrollment(ctx, "b", "", minute(5)); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("deny the device of a token: %v", err)
	}
}

func enrollmentChanges(t *testing.T, s store.Store) {
	last := int64(-1)
	changed := func(what string, want bool) {
		t.Helper()
		n, err := s.EnrollmentChanges(t.Context())
		if err != nil || (n != last) != want {
			t.Errorf("EnrollmentChanges after %s = %d, %v, want another number than %d: %v", what, n, err, last, want)
		}
		last = n
	}
	changed("nothing", true)
	request(t, s, asks("a", 0), store.EnrollmentPending)
	changed("a request", false)
	if err := approve(t, s, store.Approval{Key: "a", Device: "press-07"}); err != nil {
		t.Fatal(err)
	}
	changed("an approval", true)
	request(t, s, asks("a", 7), store.EnrollmentApproved)
	changed("a request of an enrolled key", false)
	if _, err := s.RemoveDevice(t.Context(), "press-07", false, minute(8)); err != nil {
		t.Fatal(err)
	}
	changed("a removal", true)
	if err := s.AddTokens(t.Context(), store.Token{ID: "x", Devices: []string{"a"}, Hash: []byte{1}, Created: minute(0)}); err != nil {
		t.Fatal(err)
	}
	changed("a bearer token", false)
}

// minute is the time of decisions.
func minute(n int) time.Time { return noon(60 * n) }
