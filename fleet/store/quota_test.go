package store_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/store"
)

// over wants a report refused because of a quota.
func over(t *testing.T, what string, err error) {
	t.Helper()
	var q *store.QuotaError
	if !errors.As(err, &q) || !errors.Is(err, fault.ErrFull) || q.Most == 0 {
		t.Errorf("%s: %v, want a QuotaError", what, err)
	}
}

func limit(t *testing.T, s store.Store, q store.Quota) {
	t.Helper()
	s.(interface{ SetQuota(q store.Quota) }).SetQuota(q)
}

func deploymentQuota(t *testing.T, s store.Store) {
	limit(t, s, store.Quota{Deployments: 3, Children: 9, Bytes: 1 << 20})
	for i := range 3 {
		r := status("a", fmt.Sprint(i), margo.StateInstalled)
		r.At = noon(i)
		put(t, s, r, store.Created)
	}
	_, err := s.PutStatus(t.Context(), status("a", "3", margo.StateInstalled))
	over(t, "a fourth", err)
	put(t, s, status("b", "0", margo.StateInstalled), store.Created)  // another device's
	put(t, s, status("a", "0", margo.StateInstalling), store.Updated) // what is there
	for _, id := range []string{"2", "1"} {                           // 1 is removed last
		r := status("a", id, margo.StateRemoved)
		r.At = noon(20 - len(id))
		if id == "1" {
			r.At = noon(30)
		}
		put(t, s, r, store.Updated)
	}
	put(t, s, status("a", "3", margo.StateInstalled), store.Created)
	left, _, err := s.Deployments(t.Context(), store.DeploymentQuery{Device: "a", Limit: 9})
	if err != nil || len(left) != 3 || left[0].ID != "0" || left[1].ID != "1" || left[2].ID != "3" {
		t.Errorf("%v, %v: the one that was removed first should be forgotten", left, err)
	}
	if err := s.DeleteDevice(t.Context(), "b"); !errors.Is(err, fault.ErrNotFound) {
		t.Error(err)
	}
}

func childQuota(t *testing.T, s store.Store) {
	limit(t, s, store.Quota{Deployments: 9, Children: 2, Bytes: 1 << 20})
	for _, id := range []string{"gw", "gw/a", "gw/a/x", "gw-2"} {
		put(t, s, caps(id), store.Created)
	}
	_, err := s.PutCapabilities(t.Context(), caps("gw/b"))
	over(t, "a third child", err)
	put(t, s, caps("gw/a"), store.Updated)
	put(t, s, caps("gw-2/a"), store.Created)
	if err := s.DeleteDevice(t.Context(), "gw/a"); err != nil { // and gw/a/x
		t.Fatal(err)
	}
	put(t, s, caps("gw/b"), store.Created)
	put(t, s, caps("gw/c"), store.Created)
	_, err = s.PutCapabilities(t.Context(), caps("gw/d"))
	over(t, "a third child again", err)
	_, err = s.PutStatus(t.Context(), status("gw/e", "d", margo.StateInstalled)) // with a token of its own
	over(t, "a third child by a status", err)

	limit(t, s, store.Quota{Deployments: 9, Children: 16, Bytes: 1 << 20}) // 2 behind one device behind a gateway
	for _, id := range []string{"gw-3", "gw-3/a", "gw-3/a/1", "gw-3/a/2"} {
		put(t, s, caps(id), store.Created)
	}
	_, err = s.PutCapabilities(t.Context(), caps("gw-3/a/3"))
	over(t, "a third one behind gw-3/a", err)
	put(t, s, caps("gw-3/b"), store.Created)
}

func byteQuota(t *testing.T, s store.Store) {
	limit(t, s, store.Quota{Deployments: 99, Children: 99, Bytes: 256 << 10}) // 32 KiB of one device behind a gateway
	large := func(r store.Status) store.Status { r.Body = make([]byte, 20<<10); return r }
	for _, id := range []string{"gw", "gw/a", "gw/b"} {
		put(t, s, caps(id), store.Created)
	}
	put(t, s, large(status("gw/a", "1", margo.StateInstalled)), store.Created)
	_, err := s.PutStatus(t.Context(), large(status("gw/a", "2", margo.StateInstalled)))
	over(t, "40 KiB of gw/a", err)
	_, err = s.PutStatus(t.Context(), large(status("gw/a/x", "1", margo.StateInstalled)))
	over(t, "20 KiB behind gw/a", err)
	big := caps("gw/a")
	big.Body = make([]byte, 25<<10)
	_, err = s.PutCapabilities(t.Context(), big)
	over(t, "capabilities", err)
	put(t, s, large(status("gw/b", "1", margo.StateInstalled)), store.Created) // a sibling's
	for i := range 10 {
		put(t, s, large(status("gw", fmt.Sprint(i), margo.StateInstalled)), store.Created)
	}
	_, err = s.PutStatus(t.Context(), large(status("gw", "10", margo.StateInstalled)))
	over(t, "more than 256 KiB", err)
	put(t, s, large(status("other", "1", margo.StateInstalled)), store.Created)

	put(t, s, large(status("gw/a", "1", margo.StateRemoved)), store.Updated)
	put(t, s, large(status("gw/a", "2", margo.StateInstalled)), store.Created) // in its place
	put(t, s, status("gw/a", "3", margo.StateInstalled), store.Created)
	put(t, s, large(status("gw/a", "2", margo.StateRemoved)), store.Updated)
	put(t, s, large(status("gw/a", "3", margo.StateInstalled)), store.Updated) // what is known grows into its place
	put(t, s, large(status("gw/a", "3", margo.StateRemoved)), store.Updated)
	put(t, s, status("gw", "0", margo.StateInstalled), store.Updated) // the gateway is full no more
	put(t, s, big, store.Updated)                                     // so do capabilities
	put(t, s, status("gw/a", "4", margo.StateRemoved), store.Created)
	_, err = s.PutStatus(t.Context(), large(status("gw/a", "4", margo.StateInstalled)))
	over(t, "what is removed, again", err)
	list, _, err := s.Deployments(t.Context(), store.DeploymentQuery{Device: "gw/a", Limit: 9})
	if err != nil || len(list) != 1 || list[0].ID != "4" || list[0].State != margo.StateRemoved {
		t.Errorf("%v, %v", list, err)
	}

	if err := s.DeleteDevice(t.Context(), "gw/a"); err != nil {
		t.Fatal(err)
	}
	put(t, s, large(status("gw", "11", margo.StateInstalled)), store.Created)
	put(t, s, status("gw", "11", margo.StateInstalled), store.Updated) // small again
	put(t, s, large(status("gw", "12", margo.StateInstalled)), store.Created)
	if err := s.DeleteDevice(t.Context(), "gw"); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"gw", "gw/a"} {
		put(t, s, caps(id), store.Created)
		put(t, s, large(status(id, "1", margo.StateInstalled)), store.Created)
	}
}

// A device whose reports are over a quota is there: it does not become offline by that.
func heardOverQuota(t *testing.T, s store.Store) {
	limit(t, s, store.Quota{Deployments: 1, Children: 9, Bytes: 64 << 10})
	for _, id := range []string{"gw", "gw/a"} {
		put(t, s, caps(id), store.Created)
		put(t, s, status(id, "1", margo.StateInstalled), store.Created)
	}
	r := status("gw/a", "2", margo.StateInstalled)
	r.By, r.At = "gw", noon(10)
	_, err := s.PutStatus(t.Context(), r)
	over(t, "a second deployment", err)
	c := caps("gw/a")
	c.Body, c.By, c.At = make([]byte, 99<<10), "gw", noon(20)
	for _, id := range []string{"gw/a", "gw"} {
		if d, err := s.Device(t.Context(), id); err != nil || !d.LastHeard.Equal(noon(10)) {
			t.Errorf("%s was heard at %v, want %v; %v", id, d.LastHeard, noon(10), err)
		}
	}
	_, err = s.PutCapabilities(t.Context(), c)
	over(t, "capabilities", err)
	if d, err := s.Device(t.Context(), "gw/a"); err != nil || !d.LastHeard.Equal(noon(20)) {
		t.Errorf("heard at %v, want %v; %v", d.LastHeard, noon(20), err)
	}
}
