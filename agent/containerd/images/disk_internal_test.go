package images

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/leases"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// wholes is a journal of the images that are durable.
type wholes struct {
	Journal
	names []string
}

func (w wholes) IsDurable(name string) (bool, error) { return slices.Contains(w.names, name), nil }

// heldLeases is as much of containerd's leases as the tests ask.
type heldLeases struct {
	leases.Manager
	held     []leases.Lease
	deleting func(leases.Lease) // called before a lease is deleted
}

func (l *heldLeases) Delete(_ context.Context, gone leases.Lease, _ ...leases.DeleteOpt) error {
	l.deleting(gone)
	l.held = slices.DeleteFunc(l.held, func(have leases.Lease) bool { return have.ID == gone.ID })
	return nil
}

// oneRoot keeps everything in one folder.
type oneRoot string

func (oneRoot) Capabilities(context.Context) ([]string, error) { return nil, nil }
func (o oneRoot) Roots(context.Context) (blobs, files string, err error) {
	return string(o), string(o), nil
}

// store is one on a containerd that has leases and nothing else.
func store(t *testing.T, held leases.Manager) *Store {
	t.Helper()
	c, err := client.New("", client.WithServices(client.WithLeasesService(held)))
	if err != nil {
		t.Fatal(err)
	}
	return New(t.Context(), c, Options{Host: oneRoot(t.TempDir()), Logger: slog.New(slog.DiscardHandler)})
}

// A pull that begins while room is made for another one keeps its bytes: its image's key is asked for at each lease, and held over
// the deletion.
func TestRoomIsNotMadeOfAPullInProgress(t *testing.T) {
	held := &heldLeases{}
	r := store(t, held)
	r.o.Journal = wholes{names: []string{"whole"}}
	held.deleting = func(l leases.Lease) {
		if _, ok := r.inProgress.Try(l.Labels[labelImage]); ok {
			t.Errorf("a pull of %s could begin while its lease is deleted", l.ID)
		}
	}
	for _, name := range []string{"", "whole", "pulled", "half"} {
		held.held = append(held.held, leases.Lease{ID: "of " + name, Labels: map[string]string{labelImage: name}})
	}
	unlock, err := r.inProgress.Lock(t.Context(), "pulled")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	for _, l := range slices.Clone(held.held) {
		gone, err := r.dropPartial(t.Context(), l, workload.Image{})
		if want := l.ID == "of half"; err != nil || gone != want {
			t.Errorf("dropPartial(%s) = %v, %v, want %v", l.ID, gone, err, want)
		}
	}
	if len(held.held) != 3 {
		t.Errorf("leases = %v, want three", held.held)
	}
}

// A pull begins while another one waits for the disk. A write-back error that is counted after that spoils it.
func TestAPullBeginsBesideASlowSync(t *testing.T) {
	r := store(t, nil)
	r.verified.Store("layer", true)
	r.syncs.turn.Lock() // as a sync holds it
	disk, err := r.openSnapshotSync(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer disk.close()
	r.syncs.n.Add(1)
	r.syncs.turn.Unlock()
	if err := disk.sync(); !errors.Is(err, fault.ErrTemporary) || r.isVerified("layer") {
		t.Errorf("sync = %v, want what another pull lost to count, and no layer to be trusted", err)
	}
}
