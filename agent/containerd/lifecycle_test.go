package containerd_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/network"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

func TestStartServesAndRestartsInTheSameNetwork(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	p := project("line", server(img))
	c := r.created(p)[0]
	if o := r.seen(c.ID); o.Status != workload.Created || o.PID != 0 {
		t.Errorf("after Create: %+v, want created and no process", o)
	}
	before := r.o.Now()
	if err := r.start(c); err != nil {
		t.Fatal(err)
	}
	r.serving(c.ID)
	if got := r.get(c.ID, "/"); got != "hello\n" {
		t.Errorf("GET / = %q, want hello", got)
	}
	o := r.seen(c.ID)
	want := workload.Observation{
		ID: c.ID, Project: "line", Deployment: "dep-line", Component: "comp-line", Service: "web", Replica: 1, Hash: c.Hash,
		Generation: o.Generation, Image: img.Name(), Active: true, Status: workload.Running, PID: o.PID, Run: o.Run, StartedAt: o.StartedAt, Began: o.Began,
	}
	if o != want || o.PID == 0 || o.Run == "" {
		t.Errorf("Observe = %+v, want %+v", o, want)
	}
	if d := o.StartedAt.Sub(before); d < -2*time.Second || d > time.Minute {
		t.Errorf("StartedAt = %v, started at %v", o.StartedAt, before)
	}
	netns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", o.PID))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.start(c); err != nil || r.seen(c.ID).PID != o.PID {
		t.Errorf("Start of a running container = %v, pid %d, want the same process %d", err, r.seen(c.ID).PID, o.PID)
	}
	for range 2 {
		if err := r.Stop(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
	}
	if o := r.seen(c.ID); o.Status != workload.Exited || o.ExitCode != 0 || o.PID != 0 || o.ExitedAt.IsZero() {
		t.Errorf("after Stop: %+v, want exited with 0", o)
	}
	if err := r.start(c); err != nil {
		t.Fatal(err)
	}
	r.serving(c.ID)
	if again, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", r.seen(c.ID).PID)); err != nil || again != netns {
		t.Errorf("network namespace after restart = %s, %v, want %s", again, err, netns)
	}
}

func TestProcessIsWhatImageAndServiceSay(t *testing.T) {
	r := newRig(t)
	img := r.pulled(func(c *v1.Config) {
		c.Env = append(c.Env, "FROM=image", "KEPT=yes")
		c.User, c.WorkingDir = "www-data", "/tmp"
		c.Cmd = []string{"serve", "8080"}
	})
	s := workload.Service{Name: "plain", Image: img}
	own := workload.Service{
		Name: "own", Image: img, Entrypoint: []string{"/toolbox", "serve"}, Command: []string{"8080", "mine"},
		Environment: []string{"FROM=service", "MORE=x"}, User: "4242:4243", WorkingDir: "/", Hostname: "boss", ReadOnly: true,
	}
	cs := r.up(project("env", s, own))
	want := map[string][]string{
		"plain": {"FROM=image", "KEPT=yes", "user=33:33", "wd=/tmp", "hostname=plain", `args=["/toolbox" "serve" "8080"]`, "HOSTNAME=plain"},
		"own": {
			"FROM=service", "MORE=x", "KEPT=yes", "user=4242:4243", "wd=/", "hostname=boss",
			`args=["/toolbox" "serve" "8080" "mine"]`,
		},
	}
	for _, c := range cs {
		r.serving(c.ID)
		env := strings.Split(r.get(c.ID, "/env"), "\n")
		for _, line := range want[c.Service.Name] {
			if !slices.Contains(env, line) {
				t.Errorf("%s: %q is not in %q", c.Service.Name, line, env)
			}
		}
	}
	tmp := workload.Probe{Exec: []string{"/toolbox", "write", "/tmp/x", "y"}}
	if err := r.Probe(t.Context(), cs[0].ID, tmp); err != nil {
		t.Errorf("write to a writable root: %v", err)
	}
	if err := r.Probe(t.Context(), cs[1].ID, tmp); err == nil {
		t.Error("write to a read-only root succeeded")
	}
	hosts := r.get(cs[0].ID, "/file?path=/etc/hosts")
	if !strings.Contains(hosts, "own") {
		t.Errorf("/etc/hosts = %q, want the other service in it", hosts)
	}
}

func TestEntrypointReplacesTheCommand(t *testing.T) {
	r := newRig(t)
	img := r.pulled(func(c *v1.Config) { c.Cmd = []string{"serve", "8080"} })
	c := r.up(project("ep", workload.Service{Name: "one", Image: img, Entrypoint: []string{"/toolbox", "exit", "7"}}))[0]
	if o := r.exited(c.ID); o.ExitCode != 7 {
		t.Errorf("exit code = %d, want 7", o.ExitCode)
	}
}

func TestMounts(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil, []testenv.File{
		{Path: "data/seed.txt", Data: []byte("from the image\n"), UID: 33, Mode: 0o640},
		{Path: "escape", Link: "/etc"},
	})
	host := t.TempDir()
	if err := os.WriteFile(filepath.Join(host, "in.txt"), []byte("from the host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := server(img)
	s.Mounts = []workload.Mount{
		{Kind: workload.MountVolume, Source: "store", Target: "/data"},
		{Kind: workload.MountVolume, Target: "/anon"},
		{Kind: workload.MountBind, Source: host, Target: "/host", ReadOnly: true},
		{Kind: workload.MountBind, Source: filepath.Join(host, "made"), Target: "/made", Create: true},
		{Kind: workload.MountTmpfs, Target: "/scratch", TmpfsMax: 1 << 20, TmpfsPerm: 0o700},
	}
	p := project("vol", s)
	p.Volumes = []workload.Volume{{Name: "store"}}
	c := r.up(p)[0]
	r.serving(c.ID)
	exec := func(argv ...string) error {
		return r.Probe(t.Context(), c.ID, workload.Probe{Exec: append([]string{"/toolbox"}, argv...)})
	}
	if got := r.get(c.ID, "/file?path=/data/seed.txt"); got != "from the image\n" {
		t.Errorf("seed in the volume = %q", got)
	}
	if got := r.get(c.ID, "/file?path=/host/in.txt"); got != "from the host\n" {
		t.Errorf("bound file = %q", got)
	}
	for _, file := range []string{"/data/new", "/anon/new", "/made/new", "/scratch/new"} {
		if err := exec("write", file, "x"); err != nil {
			t.Errorf("write %s: %v", file, err)
		}
	}
	if err := exec("write", "/host/new", "x"); err == nil {
		t.Error("write through a read-only bind succeeded")
	}
	mounts := r.get(c.ID, "/file?path=/proc/mounts")
	if !strings.Contains(mounts, " /scratch tmpfs rw,nosuid,nodev,noexec") || !strings.Contains(mounts, "size=1024k,mode=700") {
		t.Errorf("mounts = %s, want a bounded tmpfs", mounts)
	}
	data := filepath.Join(r.o.DataDir, "volumes", "vol", "store", "_data")
	if _, err := os.Stat(filepath.Join(data, "new")); err != nil {
		t.Error(err)
	}
	// A volume outlives its containers and its project, and is filled once.
	if err := os.Remove(filepath.Join(data, "seed.txt")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Remove(t.Context(), c.ID), r.Teardown(t.Context(), "vol")); err != nil {
		t.Fatal(err)
	}
	r.up(p)
	r.serving(c.ID)
	if got := r.get(c.ID, "/file?path=/data/new"); got != "x\n" {
		t.Errorf("volume after removal = %q, want what was written", got)
	}
	if err := exec("exists", "/data/seed.txt"); err == nil {
		t.Error("the volume was filled again")
	}
	if err := exec("exists", "/anon/new"); err == nil {
		t.Error("an anonymous volume outlived its project")
	}
}

// An update replaces the container; what it wrote into a volume, named or not, is there for the next one.
func TestAnonymousVolumesOutliveAnUpdate(t *testing.T) {
	r := newRig(t)
	s := server(r.pulled(nil))
	s.Mounts = []workload.Mount{{Kind: workload.MountVolume, Target: "/state"}, {Kind: workload.MountVolume, Target: "/other"}}
	p := project("vol", s)
	old := r.up(p)[0]
	write := workload.Probe{Exec: []string{"/toolbox", "write", "/state/kept", "x"}}
	if err := r.Probe(t.Context(), old.ID, write); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.Stop(t.Context(), old.ID), r.Remove(t.Context(), old.ID)); err != nil {
		t.Fatal(err)
	}
	s.Environment = []string{"REVISION=2"}
	s.Mounts[0], s.Mounts[1] = s.Mounts[1], s.Mounts[0]
	next := r.up(project("vol", s))[0]
	if next.ID == old.ID {
		t.Fatal("the update made no new container")
	}
	r.serving(next.ID)
	if got := r.get(next.ID, "/file?path=/state/kept"); got != "x\n" {
		t.Errorf("the anonymous volume after an update holds %q", got)
	}
	if got := r.get(next.ID, "/file?path=/other/kept"); got == "x\n" {
		t.Error("two anonymous volumes are one")
	}
}

func TestMountRefusals(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil, []testenv.File{{Path: "file", Data: []byte("x")}})
	for name, tc := range map[string]struct {
		mount workload.Mount
		want  error
	}{
		"no host directory": {workload.Mount{Kind: workload.MountBind, Source: "/nowhere/at/all", Target: "/x"}, fault.ErrUnfit},
		"unknown kind":      {workload.Mount{Kind: "npipe", Target: "/x"}, fault.ErrUnsupported},
		"volume on a file":  {workload.Mount{Kind: workload.MountVolume, Source: "v", Target: "/file"}, fault.ErrInvalid},
		"volume name":       {workload.Mount{Kind: workload.MountVolume, Source: "../v", Target: "/x"}, fault.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			s := server(img)
			s.Mounts = []workload.Mount{tc.mount}
			p := project("bad", s)
			if err := r.Prepare(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			if err := r.Create(t.Context(), p, p.Containers()[0]); !errors.Is(err, tc.want) {
				t.Errorf("Create = %v, want %v", err, tc.want)
			}
			if err := r.Teardown(t.Context(), "bad"); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLimits(t *testing.T) {
	r := newRig(t)
	s := server(r.pulled(nil))
	s.Resources = workload.Resources{NanoCPUs: 500_000_000, MemoryBytes: 64 << 20, PIDs: 33}
	c := r.up(project("lim", s))[0]
	r.serving(c.ID)
	f, err := r.Features(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at := func(controller, file string) string {
		t.Helper()
		dir := "/sys/fs/cgroup"
		if f.CgroupVersion == 1 {
			dir = filepath.Join(dir, controller)
		}
		b, err := os.ReadFile(filepath.Join(dir, r.o.Namespace, c.ID, file))
		if err != nil {
			t.Error(err)
		}
		return strings.TrimSpace(string(b))
	}
	want := [][3]string{
		{"cpu", "cpu.cfs_quota_us", "50000"},
		{"cpu", "cpu.cfs_period_us", "100000"},
		{"memory", "memory.limit_in_bytes", "67108864"},
		{"pids", "pids.max", "33"},
	}
	if f.CgroupVersion == 2 {
		want = [][3]string{{"", "cpu.max", "50000 100000"}, {"", "memory.max", "67108864"}, {"", "pids.max", "33"}}
	}
	for _, w := range want {
		if got := at(w[0], w[1]); got != w[2] {
			t.Errorf("%s = %q, want %q", w[1], got, w[2])
		}
	}
	if !f.Seccomp {
		testenv.Unavailable(t, "runc has no seccomp")
	}
	status := r.get(c.ID, "/file?path=/proc/self/status")
	if !strings.Contains(status, "Seccomp:\t2") || !strings.Contains(status, "NoNewPrivs:\t0") {
		t.Errorf("status = %s, want a seccomp filter and set-uid allowed", status)
	}
}

func TestOutOfMemoryIsTold(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	events, err := r.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s := workload.Service{
		Name: "greedy", Image: img, Command: []string{"memory", "200"},
		Resources: workload.Resources{MemoryBytes: 32 << 20},
	}
	c := r.up(project("oom", s))[0]
	kinds := map[workload.EventKind]bool{}
	limit := time.After(time.Minute)
	for !kinds[workload.EventExit] {
		select {
		case e := <-events:
			if e.ID != c.ID {
				t.Errorf("event %+v of a stranger", e)
			}
			kinds[e.Kind] = true
		case <-limit:
			t.Fatalf("events = %v, want an exit", kinds)
		}
	}
	if o := r.seen(c.ID); o.Status != workload.Exited || o.ExitCode != 137 {
		t.Errorf("Observe = %+v, want exit 137", o)
	}
	if !kinds[workload.EventOOM] {
		t.Log("the out-of-memory event came after the exit or not at all") // they race in the shim
	}
}

// TestLacksAreTold: what a container's control group had no more of is known after its end, and in its health check.
func TestLacksAreTold(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	for _, tt := range []struct {
		name    string
		command []string
		limits  workload.Resources
		want    workload.Lack
	}{
		{"memory", []string{"memory", "200"}, workload.Resources{MemoryBytes: 32 << 20, CgroupParent: "longshore-test-lacks"}, workload.LackMemory},
		{"processes", []string{"memory", "1"}, workload.Resources{PIDs: 2}, workload.LackProcesses},
		{"nothing", []string{"exit", "3"}, workload.Resources{PIDs: 100, MemoryBytes: 64 << 20}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := r.up(project("lack-"+tt.name, workload.Service{Name: "web", Image: img, Command: tt.command, Resources: tt.limits}))[0]
			if o := r.exited(c.ID); o.Lack != tt.want || o.ExitCode == 0 {
				t.Errorf("exit %d, lack %q, want %q", o.ExitCode, o.Lack, tt.want)
			}
		})
	}
	t.Run("health check", func(t *testing.T) {
		s := server(img)
		s.Resources.PIDs = 30
		c := r.up(project("lack-probe", s))[0]
		r.serving(c.ID)
		fill, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", r.seen(c.ID).PID))
		if err != nil {
			t.Fatal(err)
		}
		limit := pidsMax(t, string(fill))
		if err := os.WriteFile(limit, []byte("1"), 0); err != nil { // as if the container had filled it
			t.Fatal(err)
		}
		err = r.Probe(t.Context(), c.ID, workload.Probe{Exec: []string{"/toolbox", "exit", "0"}})
		if err == nil || !strings.Contains(err.Error(), "as many processes as its limit of 30 allows; raise pids_limit") {
			t.Errorf("Probe = %v, want a word about the limit of processes", err)
		}
	})
}

// pidsMax is the file that limits the processes of a control group, given /proc/PID/cgroup.
func pidsMax(t *testing.T, groups string) string {
	t.Helper()
	for line := range strings.Lines(groups) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && f[1] == "pids" {
			return filepath.Join("/sys/fs/cgroup/pids", f[2], "pids.max")
		}
		if len(f) == 3 && f[0] == "0" && f[1] == "" && !strings.Contains(groups, ":pids:") {
			return filepath.Join("/sys/fs/cgroup", f[2], "pids.max")
		}
	}
	t.Fatal("no control group of processes")
	return ""
}

func TestStop(t *testing.T) {
	r := newRig(t)
	img := r.pulled(func(c *v1.Config) { c.StopSignal = "SIGINT" })
	said := func(c workload.Container, text string) {
		t.Helper()
		if o := r.seen(c.ID); o.ExitCode != 0 {
			t.Errorf("%s: exit %d", c.Service.Name, o.ExitCode)
		}
		testenv.Eventually(t, time.Minute, text, func() error { // the shim may still be copying it
			if out := r.output(c.ID); !strings.Contains(out, text) {
				return fmt.Errorf("output %q", out)
			}
			return nil
		})
	}
	polite := workload.Service{Name: "polite", Image: img, Command: []string{"sleep"}}
	named := workload.Service{Name: "named", Image: img, Command: []string{"sleep"}, StopSignal: "SIGTERM", StopGrace: time.Hour}
	stubborn := workload.Service{Name: "stubborn", Image: img, Command: []string{"stubborn"}, StopGrace: 300 * time.Millisecond}
	cs := r.up(project("stop", polite, named, stubborn))
	testenv.Eventually(t, time.Minute, "the signals are awaited", func() error {
		for _, c := range cs {
			if o := r.seen(c.ID); o.Status != workload.Running {
				return fmt.Errorf("%s is %s", c.Service.Name, o.Status)
			}
			// The program asks for signals at once; that its mask shows it is the only way to know.
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.seen(c.ID).PID))
			if err != nil || !strings.Contains(string(b), "SigCgt:\tfffffff") {
				return fmt.Errorf("%s: %v", c.Service.Name, err)
			}
		}
		return nil
	})
	for _, c := range cs {
		began := time.Now()
		if err := r.Stop(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
		took, o := time.Since(began), r.seen(c.ID)
		if took > time.Minute {
			t.Errorf("%s was stopped after %v", c.Service.Name, took)
		}
		switch c.Service.Name {
		case "polite":
			said(c, "got interrupt") // the image's signal
		case "named":
			said(c, "got terminated") // the service's signal
		case "stubborn":
			if o.ExitCode != 137 || took < 300*time.Millisecond {
				t.Errorf("exit %d after %v, want 137 after the grace period", o.ExitCode, took)
			}
		}
	}
}

// A grace period beyond the call's own deadline: SIGKILL still comes.
func TestStopKillsBeforeItsDeadline(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	s := workload.Service{Name: "stubborn", Image: img, Command: []string{"stubborn"}, StopGrace: time.Hour}
	c := r.up(project("stop", s))[0]
	ctx, cancel := context.WithTimeout(t.Context(), 16*time.Second) // killWait and a second
	defer cancel()
	if err := r.Stop(ctx, c.ID); err != nil {
		t.Fatal(err)
	}
	if o := r.seen(c.ID); o.Status != workload.Exited {
		t.Errorf("the container is %s", o.Status)
	}
}

func TestOneShimAProject(t *testing.T) {
	r := ownRig(t)
	img := r.pulled(nil)
	a, b, own := server(img), server(img), server(img)
	a.Name, b.Name, own.Name, own.OwnShim = "a", "b", "own", true
	cs := r.up(project("grp", a, b, own))
	for _, c := range cs {
		r.serving(c.ID)
	}
	if n := r.shims(); n != 2 {
		t.Errorf("%d shims, want 2: one of the project and one of its own", n)
	}
	pid := r.seen(cs[1].ID).PID
	// The first container's shim is the group's: neither its stop nor its removal may touch the others.
	if err := r.Stop(t.Context(), cs[0].ID); err != nil {
		t.Fatal(err)
	}
	if err := r.Remove(t.Context(), cs[0].ID); err != nil {
		t.Fatal(err)
	}
	if err := r.daemon.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, "the connection comes back", func() error {
		_, err := r.Observe(t.Context())
		return err
	})
	if o := r.seen(cs[1].ID); o.Status != workload.Running || o.PID != pid {
		t.Errorf("the other container = %+v, want running as %d", o, pid)
	}
	r.serving(cs[1].ID)
	if err := r.Create(t.Context(), project("grp", a, b, own), cs[0]); err != nil {
		t.Fatal(err)
	}
	if err := r.start(cs[0]); err != nil {
		t.Fatal(err)
	}
	r.serving(cs[0].ID)
	if n := r.shims(); n != 2 {
		t.Errorf("%d shims after the leader came back, want 2", n)
	}
}

// TestOneShimForTasksThatStartTogether: also when one of them cannot be created, whose shim ends.
func TestOneShimForTasksThatStartTogether(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	projects := testenv.Rounds(6, 60)
	var (
		all    sync.WaitGroup
		missed atomic.Int32
	)
	for n := range projects {
		services := []workload.Service{server(img), server(img), server(img), server(img)}
		for i := range services {
			services[i].Name = fmt.Sprintf("s%d", i)
		}
		services[n%3].Mounts = []workload.Mount{{Kind: workload.MountTmpfs, Target: "/proc/together"}} // which runc refuses
		p := project(fmt.Sprintf("together%d", n), services...)
		for i, c := range r.created(p) {
			all.Go(func() {
				err := r.Start(t.Context(), p, c)
				if i == n%3 && err == nil {
					missed.Add(1)
				} else if i != n%3 && err != nil {
					t.Error(err)
				}
			})
		}
	}
	all.Wait()
	if n := missed.Load(); n > 0 {
		t.Errorf("%d containers that runc refuses were started", n)
	}
	testenv.Eventually(t, time.Minute, "each project has one shim", func() error {
		if n := r.shims(); n != projects {
			return fmt.Errorf("%d shims of %d projects", n, projects)
		}
		return nil
	})
}

// TestStartsThatAreCutOff: starts whose caller goes away at any moment leave nothing behind that is in the way of the next one, no
// shim that serves nothing, and no task.
func TestStartsThatAreCutOff(t *testing.T) {
	var warnings lines
	r := newRig(t, func(o *containerd.Options) {
		o.Logger = slog.New(slog.NewTextHandler(&warnings, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	p := project("cut", server(r.pulled(nil)))
	c := r.up(p)[0]
	for n := range testenv.Rounds(12, 400) {
		r.killShims()
		testenv.Eventually(t, time.Minute, "its end is seen", func() error {
			if o := r.seen(c.ID); o.Status == workload.Running {
				return errors.New("it runs")
			}
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(15+5*n%90)*time.Millisecond)
		_ = r.Start(ctx, p, c) // may be through already
		cancel()
		testenv.Eventually(t, 3*time.Minute, "it starts", func() error { return r.Start(t.Context(), p, c) })
		testenv.Eventually(t, time.Minute, "one shim is there", func() error {
			if n := r.shims(); n != 1 {
				return fmt.Errorf("%d shims", n)
			}
			return nil
		})
	}
	if text := warnings.String(); strings.Contains(text, "ttrpc: closed") {
		t.Errorf("what was cut off was not cleaned up:\n%s", text)
	}
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	good := containerd.Options{
		Device: "d", DataDir: t.TempDir(), RunDir: "/run/x", Journal: new(testenv.Journal), Networks: new(network.Manager), Now: time.Now,
		Address: filepath.Join(t.TempDir(), "none.sock"),
	}
	for name, change := range map[string]func(*containerd.Options){
		"no device":    func(o *containerd.Options) { o.Device = "" },
		"relative dir": func(o *containerd.Options) { o.DataDir = "x" },
		"no run dir":   func(o *containerd.Options) { o.RunDir = "" },
		"no journal":   func(o *containerd.Options) { o.Journal = nil },
		"no networks":  func(o *containerd.Options) { o.Networks = nil },
		"no clock":     func(o *containerd.Options) { o.Now = nil },
	} {
		t.Run(name, func(t *testing.T) {
			o := good
			change(&o)
			if _, err := containerd.New(t.Context(), o); !errors.Is(err, fault.ErrInvalid) {
				t.Errorf("New = %v, want %v", err, fault.ErrInvalid)
			}
		})
	}
	r, err := containerd.New(t.Context(), good)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Observe(t.Context()); !fault.Retryable(err) {
		t.Errorf("Observe without containerd = %v, want %v", err, fault.ErrTemporary)
	}
	if _, err := r.Events(t.Context()); !fault.Retryable(err) {
		t.Errorf("Events without containerd = %v, want %v", err, fault.ErrTemporary)
	}
}
