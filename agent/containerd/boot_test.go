package containerd_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/testenv"
)

// readBy is how many bytes a process has read so far, from files and from sockets.
func readBy(t *testing.T, pid int) int64 {
	t.Helper()
	fields, err := testenv.Account(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		t.Fatal(err)
	}
	return int64(fields["rchar"])
}

// TestStartLeavesLayersAlone: a runtime that starts reads no image whole and writes into no layer, also where a file of a layer is
// not what the image has. This holds after a reboot, and where the layer's blob is gone. A repair writes into no layer that is
// mounted either.
func TestStartLeavesLayersAlone(t *testing.T) {
	const (
		size = 48 << 20 // of the image, more or less
		most = 12 << 20 // that a start may read
	)
	r := newRigOn(t, releaseOf(t), testenv.ContainerdRelease(t, releaseOf(t))) // alone: it counts what this process reads
	built := r.heavy(1, size)
	img := r.push(built, "plant/heavy")
	if _, err := r.Pull(t.Context(), img, nil); err != nil {
		t.Fatal(err)
	}
	p := project("layers", server(img))
	c := r.up(p)[0]
	r.serving(c.ID)
	pid := r.seen(c.ID).PID
	file := r.upper("heavy/0")
	if err := os.WriteFile(file, []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	changed, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	r.reg.Down()
	// begins starts a runtime and has it do what an agent does then: what is needed is there, and what is not is collected.
	begins := func(when string) {
		t.Helper()
		r.Runtime = r.open()
		_, err := r.Pull(t.Context(), img, nil)
		if err := errors.Join(err, r.Prepare(t.Context(), p), r.Create(t.Context(), p, c), r.start(c), r.Collect(t.Context(), []workload.Image{img})); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		r.serving(c.ID)
		b, err := os.ReadFile(file)
		if now, serr := os.Stat(file); err != nil || serr != nil || string(b) != "changed" || !os.SameFile(changed, now) || !now.ModTime().Equal(changed.ModTime()) {
			t.Errorf("%s: the file of the layer has %d bytes, %v, %v, want it as it was changed", when, len(b), err, serr)
		}
	}
	restart := func(when string) {
		t.Helper()
		if err := r.Runtime.Close(); err != nil {
			t.Error(err)
		}
		begins(when)
		if now := r.seen(c.ID).PID; now != pid {
			t.Errorf("%s: process %d, want %d, which ran before", when, now, pid)
		}
	}
	frugal := func(when string, own, daemon int64) {
		t.Helper()
		own, daemon = readBy(t, os.Getpid())-own, readBy(t, r.daemon.PID())-daemon
		t.Logf("%s: the runtime read %d KiB, containerd %d KiB", when, own>>10, daemon>>10)
		if own+daemon > most {
			t.Errorf("%s: %d MiB were read, want %d MiB at most", when, (own+daemon)>>20, most>>20)
		}
	}

	own, daemon := readBy(t, os.Getpid()), readBy(t, r.daemon.PID())
	restart("restart")
	frugal("restart", own, daemon)

	if err := r.journal.Unpacking(img.Name()); err != nil {
		t.Fatal(err)
	}
	restart("repair")
	if ok, _ := r.journal.IsDurable(img.Name()); !ok {
		t.Error("the image is not durable after its repair")
	}

	m, err := built.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range m.Layers {
		if err := os.Remove(r.blob(digest.Digest(l.Digest.String()))); err != nil {
			t.Fatal(err)
		}
	}
	restart("restart without blobs")

	r.powerOff([]workload.Container{c})
	if err := errors.Join(r.daemon.Start(t.Context()), r.nets.Restore(t.Context())); err != nil {
		t.Fatal(err)
	}
	own = readBy(t, os.Getpid())
	begins("reboot without blobs")
	frugal("reboot without blobs", own, 0)
}
