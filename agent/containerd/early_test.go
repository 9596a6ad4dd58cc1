package containerd_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/containerd/process"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/testenv"
)

// taskPID is the process that runc has created for a container, also before its program starts; "": there is none.
func (r *rig) taskPID(id string) string {
	r.t.Helper()
	out, err := r.daemon.Ctr(r.t.Context(), "-n", r.o.Namespace, "tasks", "ls")
	if err != nil {
		r.t.Fatal(out, err)
	}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == id {
			return f[1]
		}
	}
	return ""
}

// replaced are a container that runs and its replacement, whose start is prepared.
func (r *rig) replaced(img workload.Image, edit func(*workload.Service)) (p *workload.Project, old, next workload.Container) {
	r.t.Helper()
	s := server(img)
	edit(&s)
	p = project("early", s)
	old = r.up(p)[0]
	r.serving(old.ID)
	p.Services[0].Command = []string{"serve", "8080", "second"}
	next = r.created(p)[0]
	for range 2 {
		if err := r.PrepareStart(r.t.Context(), p, next); err != nil {
			r.t.Fatal(err)
		}
	}
	if o := r.seen(next.ID); o.Status != workload.Created || o.PID != 0 {
		r.t.Fatalf("after PrepareStart: %+v, want created and no process", o)
	}
	if got := r.get(old.ID, "/"); got != "hello\n" {
		r.t.Fatalf("the container that is replaced says %q", got)
	}
	return p, old, next
}

// The task of a replacement is created while the old container runs; its Start only starts the process.
func TestPreparedStart(t *testing.T) {
	r := newRig(t)
	begun := time.Now()
	p, old, next := r.replaced(r.pulled(nil), func(*workload.Service) {})
	done := time.Now()
	pid := r.taskPID(next.ID)
	if pid == "" {
		t.Fatal("no task was created")
	}
	if err := r.Stop(t.Context(), old.ID); err != nil {
		t.Fatal(err)
	}
	prepared := time.Since(done)
	if err := r.start(next); err != nil {
		t.Fatal(err)
	}
	r.serving(next.ID)
	if got := r.get(next.ID, "/"); got != "second\n" {
		t.Errorf("GET / = %q, want second", got)
	}
	if got := r.taskPID(next.ID); got != pid {
		t.Errorf("the process is %s, want %s, which was prepared", got, pid)
	}
	first := r.seen(next.ID)
	f, err := os.CreateTemp(filepath.Join("/run/containerd/runc", r.o.Namespace, next.ID), "runc.") // as runc before 1.2 does at each exec
	if err == nil {
		err = errors.Join(f.Close(), os.Remove(f.Name()))
	}
	if err != nil {
		t.Fatal(err)
	}
	_, created, _ := process.Started(first.PID, "/proc") // by the clock that observations have, which is less exact
	for what, rt := range map[string]*containerd.Runtime{"the agent": r.Runtime, "an agent that was restarted": r.reopened(r.o)} {
		all, err := rt.Observe(t.Context())
		i := slices.IndexFunc(all.Containers, func(o workload.Observation) bool { return o.ID == next.ID })
		if err != nil || i < 0 {
			t.Fatalf("%s: %+v, %v", what, all, err)
		}
		if after := all.Containers[i].StartedAt.Sub(created); after < prepared || after > time.Since(begun) || !all.Containers[i].StartedAt.Equal(first.StartedAt) {
			t.Errorf("%s: it started %v after its creation, want %v or more, and %v before an exec", what, after, prepared, first.StartedAt.Sub(created))
		}
	}
	if err := r.PrepareStart(t.Context(), p, next); err != nil || r.taskPID(next.ID) != pid {
		t.Errorf("PrepareStart of a running container = %v, process %s, want %s", err, r.taskPID(next.ID), pid)
	}
	if err := r.Remove(t.Context(), old.ID); err != nil {
		t.Fatal(err)
	}
	r.serving(next.ID)
}

// A prepared start that another agent finds, or whose network has been made again, or of which nothing is left, is done anew.
func TestPreparedStartThatDoesNotHold(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	for name, spoil := range map[string]func(p *workload.Project, next workload.Container){
		"the agent was restarted": func(p *workload.Project, next workload.Container) {
			if err := r.reopened(r.o).Start(t.Context(), p, next); err != nil {
				t.Fatal(err)
			}
		},
		"another network": func(_ *workload.Project, next workload.Container) {
			if err := r.nets.Detach(t.Context(), next.ID); err != nil {
				t.Fatal(err)
			}
		},
		"no task": func(_ *workload.Project, next workload.Container) {
			if err := r.Stop(t.Context(), next.ID); err != nil {
				t.Fatal(err)
			}
		},
		"another container": func(p *workload.Project, next workload.Container) {
			if err := r.Remove(t.Context(), next.ID); err != nil {
				t.Fatal(err)
			}
			if err := r.Create(t.Context(), p, next); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, old, next := r.replaced(img, func(*workload.Service) {})
			pid := r.taskPID(next.ID)
			if err := r.Stop(t.Context(), old.ID); err != nil {
				t.Fatal(err)
			}
			spoil(p, next)
			if err := r.start(next); err != nil {
				t.Fatal(err)
			}
			r.serving(next.ID)
			if got := r.get(next.ID, "/"); got != "second\n" {
				t.Errorf("GET / = %q, want second", got)
			}
			if got := r.taskPID(next.ID); got == pid {
				t.Errorf("the process %s is the one that was prepared", got)
			}
			for _, c := range []workload.Container{old, next} {
				if err := r.Remove(t.Context(), c.ID); err != nil {
					t.Fatal(err)
				}
			}
			if err := r.Teardown(t.Context(), p.Name); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// However many containers are replaced at a time, a few of the new ones have a process before their start.
func TestPreparedStartsAreFew(t *testing.T) {
	r := newRig(t)
	s := server(r.pulled(nil))
	s.Replicas = 10
	p := project("early", s)
	all := r.created(p)
	tasks := func() (n int) {
		for _, c := range all {
			if err := r.PrepareStart(t.Context(), p, c); err != nil {
				t.Fatal(err)
			}
			if r.taskPID(c.ID) != "" {
				n++
			}
		}
		return n
	}
	if n := tasks(); n != 8 {
		t.Errorf("%d tasks wait, want 8", n)
	}
	if err := r.start(all[0]); err != nil {
		t.Fatal(err)
	}
	if n := tasks(); n != 9 {
		t.Errorf("%d tasks beside the one that was started, want 8", n-1)
	}
	for _, args := range [][]string{{"tasks", "rm", "--force", all[1].ID}, {"containers", "rm", all[1].ID}} { // by another program
		if out, err := r.daemon.Ctr(t.Context(), append([]string{"-n", r.o.Namespace}, args...)...); err != nil {
			t.Fatal(out, err)
		}
	}
	all = slices.Delete(all, 1, 2)
	if _, err := r.Observe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := tasks(); n != 9 {
		t.Errorf("%d tasks after another program deleted one, want 9", n)
	}
}

// A task that ended before its container was started is no run of the container: one that is not to be restarted starts all the same.
func TestPreparedTaskThatEnds(t *testing.T) {
	r := newRig(t)
	_, old, next := r.replaced(r.pulled(nil), func(s *workload.Service) { s.Restart.Policy = workload.RestartNo })
	pid, err := strconv.Atoi(r.taskPID(next.ID))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, "the task ends", func() error {
		out, err := r.daemon.Ctr(t.Context(), "-n", r.o.Namespace, "tasks", "ls")
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) > 2 && f[0] == next.ID && f[2] == "STOPPED" {
				return err
			}
		}
		return errors.Join(err, errors.New(out))
	})
	if o := r.seen(next.ID); o.Status != workload.Created {
		t.Errorf("%+v, want created", o)
	}
	if err := r.Stop(t.Context(), old.ID); err != nil {
		t.Fatal(err)
	}
	if err := r.start(next); err != nil {
		t.Fatal(err)
	}
	r.serving(next.ID)
}

// The old container may replace what is in its volumes until it has ended: the new one has its files and its working directory there all the same.
func TestPlacesInAVolume(t *testing.T) {
	r := newRig(t)
	s := server(r.pulled(nil))
	s.Mounts = []workload.Mount{{Kind: workload.MountVolume, Source: "state", Target: "/state"}}
	p := project("early", s)
	p.Volumes = []workload.Volume{{Name: "state"}}
	before := p.Services[0]
	for name, edit := range map[string]func(*workload.Service){
		"a file":            func(s *workload.Service) { s.Files = []workload.File{file("site", "/state/line/site.conf", "new\n")} },
		"working directory": func(s *workload.Service) { s.WorkingDir = "/state/line" },
	} {
		t.Run(name, func(t *testing.T) {
			p.Services[0] = before
			old := r.up(p)[0]
			r.serving(old.ID)
			line := filepath.Join(r.o.DataDir, "volumes", p.Name, "state", "_data", "line")
			fill := func() {
				if err := errors.Join(os.RemoveAll(line), os.Mkdir(line, 0o755), os.WriteFile(filepath.Join(line, "site.conf"), []byte("old\n"), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
			fill()
			edit(&p.Services[0])
			next := r.created(p)[0]
			if err := r.PrepareStart(t.Context(), p, next); err != nil {
				t.Fatal(err)
			}
			fill()
			if err := r.Stop(t.Context(), old.ID); err != nil {
				t.Fatal(err)
			}
			if err := r.start(next); err != nil {
				t.Fatal(err)
			}
			r.serving(next.ID)
			want := map[string]string{"/state/line/site.conf": "new\n"}
			if next.Service.WorkingDir != "" {
				want = map[string]string{"site.conf": "old\n"}
			}
			for path, text := range want {
				if got := r.get(next.ID, "/file?path="+path); got != text {
					t.Errorf("%s is %q, want %q", path, got, text)
				}
			}
			for _, c := range []workload.Container{old, next} {
				if err := r.Remove(t.Context(), c.ID); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// What the old container may still change is looked at when it has ended, and another runtime may start a virtual machine when it creates a task.
func TestStartThatIsNotPrepared(t *testing.T) {
	dir := t.TempDir()
	r := newRig(t, func(o *containerd.Options) { o.Runtimes = map[string]string{"other": filepath.Join(dir, "other")} })
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o644), os.Symlink(testenv.Program(t, "runc"), filepath.Join(dir, "other"))); err != nil {
		t.Fatal(err)
	}
	img := r.pulled(nil)
	for name, edit := range map[string]func(*workload.Service){
		"a path of the device": func(s *workload.Service) {
			s.Mounts = []workload.Mount{{Kind: workload.MountBind, Source: filepath.Join(dir, "f"), Target: "/f"}}
		},
		"another runtime": func(s *workload.Service) { s.Runtime = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			_, old, next := r.replaced(img, edit)
			if pid := r.taskPID(next.ID); pid != "" {
				t.Errorf("a task was created, process %s", pid)
			}
			for _, c := range []workload.Container{old, next} {
				if err := r.Remove(t.Context(), c.ID); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
