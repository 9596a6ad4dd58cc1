package containerd_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

// TestASlowPullHoldsNothingUp: beside a pull that brings nothing, another image is pulled, an image is repaired, and what is not
// needed is collected.
func TestASlowPullHoldsNothingUp(t *testing.T) {
	r := newRig(t)
	mine, unused := r.pulled(nil), r.push(r.heavy(2, 1<<20), "plant/unused")
	if _, err := r.Pull(t.Context(), unused, nil); err != nil {
		t.Fatal(err)
	}
	slow, quick := r.push(r.heavy(1, 4<<20), "plant/slow"), r.push(r.heavy(3, 1<<20), "plant/quick")
	r.reg.Faults.Add(testenv.Rule{Method: "GET", Path: "/plant/slow/blobs/", Skip: 1, Effect: r.reg.Faults.Stall(1 << 20)})
	ctx, cancel := context.WithCancel(t.Context())
	began, ended := make(chan struct{}), make(chan error, 1)
	begin := func(int64, int64) {
		select {
		case <-began:
		default:
			close(began)
		}
	}
	go func() {
		_, err := r.Pull(ctx, slow, begin)
		ended <- err
	}()
	defer func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the slow pull = %v, want it to last until it is ended", err)
		}
	}()
	select {
	case <-began:
	case err := <-ended:
		t.Fatalf("the slow pull ended: %v", err)
	}
	if err := r.journal.Unpacking(mine.Name()); err != nil { // it has to be repaired
		t.Fatal(err)
	}
	limited, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	p := project("beside", server(mine))
	if err := errors.Join(r.Prepare(limited, p), r.Create(limited, p, p.Containers()[0])); err != nil {
		t.Errorf("a container beside a slow pull: %v", err)
	}
	p = project("waits", server(slow))
	err := errors.Join(r.Prepare(limited, p), r.Create(limited, p, p.Containers()[0]))
	if !errors.Is(err, workload.ErrImageGone) || !fault.Retryable(err) { // it is created when the pull ends
		t.Errorf("a container of the image that is being pulled = %v, want %v, for now", err, workload.ErrImageGone)
	}
	if _, err := r.Pull(limited, quick, nil); err != nil {
		t.Errorf("a pull beside a slow one: %v", err)
	}
	if err := r.Collect(limited, []workload.Image{mine, quick}); err != nil {
		t.Errorf("Collect beside a slow pull: %v", err)
	}
	if ok, _ := r.journal.IsDurable(unused.Name()); ok {
		t.Error("the unused image stayed")
	}
	if lease, err := r.daemon.Ctr(limited, "-n", r.o.Namespace, "leases", "list", "-q"); err != nil || lease == "" {
		t.Errorf("leases = %q, %v, want that of the pull in progress", lease, err)
	}
}

// TestARepairOutlivesItsCaller: one that takes longer than a step may take comes to its end.
func TestARepairOutlivesItsCaller(t *testing.T) {
	r := newRig(t)
	img := r.push(r.heavy(3, 8<<20), "plant/heavy")
	if _, err := r.Pull(t.Context(), img, nil); err != nil {
		t.Fatal(err)
	}
	if err := r.journal.Unpacking(img.Name()); err != nil {
		t.Fatal(err)
	}
	r.reg.Down()
	rt := r.reopened(r.o)
	p := project("patient", server(img))
	if err := rt.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := rt.Ready(short, img); err != nil && !fault.Retryable(err) {
		t.Errorf("a call that does not wait = %v, want %v", err, fault.ErrTemporary)
	}
	testenv.Eventually(t, time.Minute, "the image is durable without another call", func() error {
		if ok, _ := r.journal.IsDurable(img.Name()); !ok {
			return errors.New("it is not")
		}
		return nil
	})
	if err := rt.Create(t.Context(), p, p.Containers()[0]); err != nil {
		t.Error(err)
	}
}

// TestALostLayerIsUnpackedAgain: a start that fails for the files of its image has the image unpacked again from what is on the
// device. Nothing is written below a container that runs.
func TestALostLayerIsUnpackedAgain(t *testing.T) {
	r := ownRig(t)
	img := r.pulled(nil)
	c := r.created(project("sick", server(img)))[0]
	if err := os.RemoveAll(filepath.Dir(r.upper("toolbox"))); err != nil { // a repair of the file system moved it away
		t.Fatal(err)
	}
	r.reg.Down()
	rt, p := r.reopened(r.o), r.made[c.ID] // as after a power cut
	if err := rt.Start(t.Context(), p, c); !fault.Retryable(err) {
		t.Fatalf("Start without the layer = %v, want %v", err, fault.ErrTemporary)
	}
	if err := errors.Join(rt.Create(t.Context(), p, c), rt.Start(t.Context(), p, c)); err != nil {
		t.Fatalf("after the repair: %v", err)
	}
	r.serving(c.ID)
}

// TestStartFindsWhatItNeedsGone: an image that is needed again at each start, and the container's own layer.
func TestStartFindsWhatItNeedsGone(t *testing.T) {
	r := newRig(t, func(o *containerd.Options) { o.AllowPrivileged = true })
	img := r.pulled(nil)
	s := server(img)
	s.Security = &workload.Security{Privileged: true} // its specification is made at each start
	c := r.created(project("gone", s))[0]
	if _, err := r.daemon.Ctr(t.Context(), "-n", r.o.Namespace, "images", "rm", "--sync", img.Name()); err != nil {
		t.Fatal(err)
	}
	rt := r.reopened(r.o) // one that has not read the image
	if err := rt.Start(t.Context(), r.made[c.ID], c); !errors.Is(err, workload.ErrImageGone) {
		t.Errorf("Start without the image = %v, want %v", err, workload.ErrImageGone)
	}
	if _, err := rt.Pull(t.Context(), img, nil); err != nil {
		t.Fatal(err)
	}
	if err := rt.Start(t.Context(), r.made[c.ID], c); err != nil {
		t.Errorf("Start with the image: %v", err)
	}

	other := r.created(project("bare", server(img)))[0]
	if _, err := r.daemon.Ctr(t.Context(), "-n", r.o.Namespace, "snapshots", "rm", other.ID); err != nil {
		t.Fatal(err)
	}
	if err := r.start(other); !fault.Retryable(err) {
		t.Errorf("Start without its layer = %v, want %v", err, fault.ErrTemporary)
	}
	if err := errors.Join(r.Create(t.Context(), r.made[other.ID], other), r.start(other)); err != nil {
		t.Errorf("after it was created anew: %v", err)
	}
}

// TestLostWriteBack: a disk that took what was unpacked and could not write it. The kernel reports that once, to whoever asks first.
func TestLostWriteBack(t *testing.T) {
	r := ownRig(t)
	img := r.push(r.heavy(1, 1<<20), "plant/web")
	r.daemon.Kill()
	disk := newFlakyDisk(t, r.daemon.Root)
	if err := r.daemon.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	o := r.o
	o.Journal = losing{r.journal, disk}
	if _, err := r.reopened(o).Pull(t.Context(), img, nil); !fault.Retryable(err) {
		t.Errorf("Pull onto a disk that loses writes = %v, want %v", err, fault.ErrTemporary)
	}
	if ok, _ := r.journal.IsDurable(img.Name()); ok {
		t.Error("the image is durable")
	}
	if _, err := r.Pull(t.Context(), img, nil); err != nil {
		t.Errorf("Pull when the disk writes again: %v", err)
	}
	if ok, _ := r.journal.IsDurable(img.Name()); !ok {
		t.Error("the image is not durable")
	}
}

// losing is a journal that has the disk lose a write while the image is unpacked, and another program notice.
type losing struct {
	*testenv.Journal
	disk *flakyDisk
}

func (j losing) Unpacking(image string) error {
	return errors.Join(j.Journal.Unpacking(image), j.disk.lose())
}

// TestFootprint: what a container writes into its layer is what its removal gives back.
func TestFootprint(t *testing.T) {
	r := newRig(t)
	p := project("footprint", server(r.pulled(nil)))
	c := r.up(p)[0]
	r.serving(c.ID)
	before, err := r.Footprint(t.Context(), p.Name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join("/proc", itoa(r.seen(c.ID).PID), "root/big"), noise(1, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	after, err := r.Footprint(t.Context(), p.Name)
	if got := after - before; err != nil || got < 3<<20 || got > 4<<20 {
		t.Errorf("the footprint rose by %d, %v, want 3 MiB", got, err)
	}
	spaces, err := r.Space(t.Context())
	if err != nil || len(spaces) == 0 || spaces[0].Free <= 0 || spaces[0].Keep <= 0 || spaces[0].Size < spaces[0].Free {
		t.Errorf("Space = %+v, %v", spaces, err)
	}
}
