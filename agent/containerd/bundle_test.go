package containerd_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/testenv"
)

// bundles is the folder in which containerd keeps the folders of this rig's tasks.
func (r *rig) bundles() string {
	return filepath.Join(r.daemon.State, "io.containerd.runtime.v2.task", r.o.Namespace)
}

// leave makes what a containerd leaves that is killed while it deletes the folder of a task: the folder under the name that
// it gets before, with something in it.
func (r *rig) leave(name string) {
	r.t.Helper()
	dir := filepath.Join(r.bundles(), name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{}"), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// revived starts containerd again after a kill.
func (r *rig) revived() {
	r.t.Helper()
	if err := r.daemon.Start(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	testenv.Eventually(r.t, time.Minute, "the runtime is back", func() error {
		_, err := r.Observe(r.t.Context())
		return err
	})
}

func TestLeftoverOfADeletionDoesNotBlock(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*rig){
		"stopped":     func(*rig) {},
		"killed shim": (*rig).killShims,
		"killed containerd": func(r *rig) {
			r.daemon.Kill()
			r.revived()
		},
		"killed shim and containerd": func(r *rig) {
			r.daemon.Kill()
			r.killShims()
			r.revived()
		},
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			r := ownRig(t)
			s := server(r.pulled(nil))
			s.StopGrace = time.Second
			other := s
			other.Name = "other" // shares the shim
			cs := r.up(project("left", s, other))
			for _, c := range cs {
				r.leave("." + c.ID)
			}
			spoil(r)
			for range 2 {
				for _, c := range cs {
					if err := r.Stop(t.Context(), c.ID); err != nil {
						t.Fatal(err)
					}
					if err := r.start(c); err != nil {
						t.Fatal(err)
					}
				}
			}
			for _, c := range cs {
				r.serving(c.ID)
				if _, err := os.Stat(filepath.Join(r.bundles(), "."+c.ID)); err == nil {
					t.Error("the leftover is still there")
				}
			}
		})
	}
}

// TestTaskThatContainerdLostIsReplaced: the shim is gone, containerd could not clean up after it and forgot the task, whose
// process runs on.
func TestTaskThatContainerdLostIsReplaced(t *testing.T) {
	r := ownRig(t)
	c := r.up(project("lost", server(r.pulled(nil))))[0]
	r.serving(c.ID)
	pid := int(r.seen(c.ID).PID)
	r.daemon.Kill()
	r.killShims()
	bundle, away := filepath.Join(r.bundles(), c.ID), filepath.Join(r.daemon.State, "away")
	if err := os.Rename(bundle, away); err != nil { // else containerd would clean up when it starts
		t.Fatal(err)
	}
	r.revived()
	if err := os.Rename(away, bundle); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("the process that should have lost its shim: %v", err)
	}
	if err := r.start(c); err != nil {
		t.Fatal(err)
	}
	r.serving(c.ID)
	if r.seen(c.ID).PID == uint32(pid) {
		t.Error("the process is the lost one")
	}
	if text, err := os.ReadFile(filepath.Join("/proc", itoa(uint32(pid)), "cmdline")); err == nil && len(text) > 0 {
		t.Errorf("the lost process still runs: %q", text)
	}
}

// TestShimThatHangsDoesNotHoldItsContainer: the steps of a container whose shim does not answer end, and succeed once it does.
func TestShimThatHangsDoesNotHoldItsContainer(t *testing.T) {
	r := ownRig(t)
	s := server(r.pulled(nil))
	s.StopGrace = time.Second
	c := r.up(project("hang", s))[0]
	shims := r.shimPIDs()
	signal := func(s syscall.Signal) {
		for _, pid := range shims {
			if err := syscall.Kill(pid, s); err != nil {
				t.Error(err)
			}
		}
	}
	signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	err := r.Stop(ctx, c.ID)
	signal(syscall.SIGCONT)
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		t.Errorf("Stop while the shim hangs = %v, want a deadline before that of the caller", err)
	}
	if err := errors.Join(r.Stop(t.Context(), c.ID), r.start(c)); err != nil {
		t.Error(err)
	}
	r.serving(c.ID)
}
