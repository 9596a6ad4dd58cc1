package containerd_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

// A shim that does not answer for a while says nothing about its container: it is what it was, is not started over, and is not
// touched.
func TestSilentShimsLoseNoContainer(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	cs := r.up(project("silent", server(img)))
	c := cs[0]
	r.serving(c.ID)
	before := r.seen(c.ID)
	signal := func(sig syscall.Signal) {
		t.Helper()
		for _, pid := range r.shimPIDs() {
			if err := syscall.Kill(pid, sig); err != nil {
				t.Fatal(err)
			}
		}
	}
	signal(syscall.SIGSTOP)
	t.Cleanup(func() { signal(syscall.SIGCONT) })
	if o := r.seen(c.ID); o != before {
		t.Errorf("observed %+v, want %+v", o, before)
	}
	if err := r.start(c); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("Start = %v, want %v", err, fault.ErrTemporary)
	}
	if err := r.Runtime.Close(); err != nil {
		t.Fatal(err)
	}
	r.Runtime = r.open() // an agent that has not seen it before does not start it over either
	r.seen(c.ID)
	if err := r.start(c); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("Start by another agent = %v, want %v", err, fault.ErrTemporary)
	}
	if err := syscall.Kill(int(before.PID), 0); err != nil {
		t.Errorf("the process is gone: %v", err)
	}
	signal(syscall.SIGCONT)
	testenv.Eventually(t, time.Minute, "the shim answers again", func() error {
		if o := r.seen(c.ID); o.Status != workload.Running || o.PID != before.PID || o.Run != before.Run {
			return errors.New(string(o.Status))
		}
		return nil
	})
	if err := r.start(c); err != nil {
		t.Errorf("Start = %v", err)
	}
	if o := r.seen(c.ID); o.PID != before.PID {
		t.Errorf("process %d, was %d", o.PID, before.PID)
	}
}
