package containerd_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

func toolbox(args ...string) []string { return append([]string{"/toolbox"}, args...) }

func TestHooksInOrder(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	s := server(img)
	s.Mounts = []workload.Mount{{Kind: workload.MountVolume, Source: "log", Target: "/log"}, {Kind: workload.MountVolume, Target: "/anon"}}
	s.PreStart = []workload.PreStart{
		{Service: workload.Service{Image: img, Entrypoint: toolbox("write", "/log/steps", "first")}},
		{Service: workload.Service{Image: img, Entrypoint: toolbox("write", "/anon/note", "second"), User: "0"}, PerReplica: true},
	}
	s.PostStart = []workload.Hook{
		{Command: toolbox("write", "/log/steps", "after start")},
		{Command: toolbox("write", "/tmp/by-user", "x"), User: "33:33", WorkingDir: "/tmp", Environment: []string{"A=B"}},
	}
	s.PreStop = []workload.Hook{{Command: toolbox("exit", "3")}, {Command: toolbox("write", "/log/steps", "before stop")}}
	s.Replicas = 2
	p := project("hooks", s)
	p.Volumes = []workload.Volume{{Name: "log"}}
	cs := r.up(p)
	for _, c := range cs {
		if got := r.inside(c.ID, "cat", "/anon/note"); got != "second\n" {
			t.Errorf("replica %d: its own first container wrote %q", c.Replica, got)
		}
		if got := r.inside(c.ID, "stat", "/tmp/by-user"); !strings.HasPrefix(got, "33 33 ") {
			t.Errorf("replica %d: what user 33 wrote is of %q", c.Replica, got)
		}
	}
	if got := r.inside(cs[0].ID, "cat", "/log/steps"); got != "first\nafter start\nafter start\n" {
		t.Errorf("steps %q", got)
	}
	if err := r.Stop(t.Context(), cs[0].ID); err != nil {
		t.Fatal(err)
	}
	if got := r.inside(cs[1].ID, "cat", "/log/steps"); !strings.HasSuffix(got, "before stop\n") {
		t.Errorf("steps %q", got)
	}
	if o, err := r.Observe(t.Context()); err != nil || len(o.Containers) != 2 {
		t.Errorf("Observe = %+v, %v, want the two replicas alone", o, err)
	}
}

// A pre_start runs as long as it needs, as a migration does: the limit of a start is for what comes before it, and for what
// follows.
func TestPreStartIsBeyondTheLimitOfAStart(t *testing.T) {
	const limit = 20 * time.Second // on a busy machine a start takes seconds
	r := newRig(t)
	img := r.pulled(nil)
	s := server(img)
	s.PreStart = []workload.PreStart{{Service: workload.Service{Image: img, Entrypoint: toolbox("exit", "0", "21")}}}
	c := r.created(project("migration", s))[0]
	r.SetStartLimit(limit)
	began := time.Now()
	if err := r.start(c); err != nil {
		t.Fatalf("Start after %v: %v", time.Since(began), err)
	}
	if took := time.Since(began); took < limit {
		t.Errorf("Start took %v, want the 21 s of its pre_start at least", took)
	}
	if o := r.seen(c.ID); o.Status != workload.Running {
		t.Errorf("%+v, want it running", o)
	}
	if err := r.Stop(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	r.SetStartLimit(time.Nanosecond)
	began = time.Now()
	if err := r.start(c); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > time.Minute {
		t.Errorf("Start = %v after %v, want the limit to end what comes before pre_start", err, time.Since(began))
	}
}

func TestHooksThatFail(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	for _, tc := range []struct {
		name   string
		change func(*workload.Service)
		text   []string
	}{
		{"before", func(s *workload.Service) {
			s.PreStart = []workload.PreStart{{Service: workload.Service{Image: img, Entrypoint: toolbox("get", "http://127.0.0.1:1/")}}}
		}, []string{"pre_start 1", "exited with 1", "refused"}},
		{"after", func(s *workload.Service) { s.PostStart = []workload.Hook{{Command: toolbox("cat", "/none")}} }, []string{"post_start 1", "exited with 1", "/none"}},
		{"after, no such program", func(s *workload.Service) { s.PostStart = []workload.Hook{{Command: []string{"/none"}}} }, []string{"post_start 1", "/none"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := server(img)
			tc.change(&s)
			c := r.created(project("bad", s))[0]
			err := r.start(c)
			for _, want := range tc.text {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("Start = %v, want %q in it", err, want)
				}
			}
			if o := r.seen(c.ID); o.Status == workload.Running {
				t.Errorf("it runs: %+v", o)
			}
			if err := r.Remove(t.Context(), c.ID); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestPreStopIsWithinTheGracePeriod(t *testing.T) {
	r := newRig(t)
	s := server(r.pulled(nil))
	s.Command, s.StopGrace = []string{"stubborn"}, 3*time.Second
	s.PreStop = []workload.Hook{{Command: toolbox("sleep")}}
	c := r.up(project("grace", s))[0]
	began := time.Now()
	if err := r.Stop(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 2*time.Second || took > time.Minute {
		t.Errorf("Stop took %v, want the grace period of 3 s", took)
	}
	if o := r.seen(c.ID); o.Status != workload.Exited || o.ExitCode != 137 {
		t.Errorf("%+v, want killed", o)
	}
}

func TestInitAndTerminal(t *testing.T) {
	program := agentProgram(t)
	r := newRig(t, func(o *containerd.Options) { o.Program = program })
	img := r.pulled(nil)
	child := workload.Service{Name: "child", Image: img, Command: []string{"orphan"}, Init: true}
	tty := workload.Service{Name: "tty", Image: img, Command: []string{"size"}, TTY: true, Stdin: true, Init: true}
	plainTTY := workload.Service{Name: "plain", Image: img, Command: []string{"size"}, TTY: true}
	input := workload.Service{Name: "input", Image: img, Command: []string{"reads"}, Stdin: true}
	code := workload.Service{Name: "code", Image: img, Command: []string{"exit", "42"}, Init: true}
	own := workload.Service{Name: "own", Image: img, Command: []string{"reads"}, TTY: true, Stdin: true, Environment: []string{"TERM=linux"}}
	cs := r.up(project("init", child, tty, plainTTY, input, code, own))
	testenv.Eventually(t, time.Minute, "the first process takes up orphans", func() error {
		return r.noZombies(cs[0].ID)
	})
	if got := r.inside(cs[0].ID, "cat", "/proc/1/cmdline"); !strings.Contains(got, "init-process") {
		t.Errorf("process 1 is %q", got)
	}
	if err := r.Stop(t.Context(), cs[0].ID); err != nil {
		t.Fatal(err)
	}
	if o := r.seen(cs[0].ID); o.ExitCode != 0 {
		t.Errorf("SIGTERM through the first process: %+v, want a polite end", o)
	}
	for _, c := range cs[1:3] {
		r.exited(c.ID)
		testenv.Eventually(t, time.Minute, "a terminal's output is kept", func() error {
			return contains(r.output(c.ID), "0x0")
		})
	}
	if o := r.seen(cs[3].ID); o.Status != workload.Running {
		t.Errorf("a container whose input is open: %+v", o)
	}
	if o := r.exited(cs[4].ID); o.ExitCode != 42 {
		t.Errorf("exit code %d through the first process, want 42", o.ExitCode)
	}
	if env := r.inside(cs[5].ID, "cat", "/proc/1/environ"); !strings.Contains(env, "TERM=linux") || strings.Contains(env, "xterm") {
		t.Errorf("the environment of a terminal that the service names: %q", env)
	}
}

// An agent that plain "go build" has linked dynamically says so at admission: in a container it finds no libraries.
func TestInitNeedsAStaticProgram(t *testing.T) {
	r := newRig(t, func(o *containerd.Options) { o.Program, o.Dynamic = "/usr/bin/longshore-agent", true })
	err := r.Admit(t.Context(), []*workload.Project{project("init", workload.Service{Name: "a", Init: true})})
	if !errors.Is(err, fault.ErrUnfit) || !strings.Contains(err.Error(), "services.a.init: ") || !strings.Contains(err.Error(), "linked dynamically") {
		t.Errorf("Admit = %v, want a clash at init", err)
	}
	if err := r.Admit(t.Context(), []*workload.Project{project("plain", workload.Service{Name: "a", TTY: true})}); err != nil {
		t.Errorf("without init: %v", err)
	}
}

// agentProgram builds the program that containers get as their first process.
func agentProgram(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := testenv.BuildOwn(t.Context(), dir, "longshore-agent"); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "longshore-agent")
}

// noZombies is an error while a container has ended processes that nobody took up, or its orphan has not ended.
func (r *rig) noZombies(id string) error {
	out := r.output(id)
	if !strings.Contains(out, "orphan ") {
		return fmt.Errorf("no orphan in %q", out)
	}
	if n := len(processes(r.t, r.seen(id).PID)); n != 2 {
		return fmt.Errorf("%d processes, want the first and its child", n)
	}
	return nil
}

func contains(s, part string) error {
	if strings.Contains(s, part) {
		return nil
	}
	return fmt.Errorf("%q is not in %q", part, s)
}

// A privileged hook needs the permission, as a privileged service does: nothing is made without it.
func TestPrivilegedHooksAreRefused(t *testing.T) {
	r := newRig(t)
	s := server(r.pulled(nil))
	s.PostStart = []workload.Hook{{Command: toolbox("env"), Privileged: true}}
	p := project("bad", s)
	if err := r.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := r.Create(t.Context(), p, p.Containers()[0]); err == nil || !strings.Contains(err.Error(), "post_start") || !strings.Contains(err.Error(), "allow") {
		t.Errorf("Create = %v, want the hook refused", err)
	}
}

// TestTooFewProcesses: where the limit of processes leaves no room for runc, or for the command that it starts, a post_start that
// fails is told with the limit.
func TestTooFewProcesses(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	for _, limit := range []int64{1, 8} { // the service itself needs some, the command as many again
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			s := server(img)
			s.Resources.PIDs, s.PostStart = limit, []workload.Hook{{Command: toolbox("exit", "0")}}
			p := project(fmt.Sprintf("few%d", limit), s)
			err := r.Start(t.Context(), p, r.created(p)[0])
			if want := fmt.Sprintf("as many processes as its limit of %d allows; raise pids_limit", limit); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Start = %v, want %q", err, want)
			}
		})
	}
}
