package containerd_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/containerd/images"
	"github.com/longshore-dev/longshore/agent/network"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

// victimVariable makes this test binary a process that is killed: see victim.
const victimVariable = "LONGSHORE_TEST_VICTIM"

// orders are what a victim must know.
type orders struct {
	Address, Namespace, DataDir, RunDir string
	NetData, NetRun, NetTable, NetPool  string
	Project                             *workload.Project
	Pull                                *workload.Image // this instead of the project's life
	Registry                            string          // where it is served
	Claim                               bool            // be the device's agent, and do nothing
}

// open makes the runtime and networks that the orders speak of.
func (o orders) open(ctx context.Context, j images.Journal) (*containerd.Runtime, *network.Manager, error) {
	nets, err := network.Open(network.Options{
		Store: testenv.NetworkState(filepath.Join(o.NetData, "networks")), DataDir: o.NetData, RunDir: o.NetRun, Table: o.NetTable, Pool: netip.MustParsePrefix(o.NetPool),
	})
	if err != nil {
		return nil, nil, err
	}
	if err := nets.Restore(ctx); err != nil {
		return nil, nil, errors.Join(err, nets.Close())
	}
	client, err := registry.New(registry.Options{RetryBudget: -1})
	if err != nil {
		return nil, nil, errors.Join(err, nets.Close())
	}
	r, err := containerd.New(ctx, containerd.Options{
		Address: o.Address, Namespace: o.Namespace, Device: "press-07", DataDir: o.DataDir, RunDir: o.RunDir,
		Journal: j, Networks: nets, Now: time.Now, Endpoints: images.EndpointsOf(client.Endpoints),
	})
	return r, nets, err
}

// victim lives a project's life again and again, saying what it does, until it is killed.
func victim(o orders) error {
	ctx := context.Background()
	journal := images.Journal(always{})
	if o.Pull != nil {
		journal = new(testenv.Journal)
	}
	r, nets, err := o.open(ctx, journal)
	if err != nil {
		return err
	}
	defer nets.Close()
	defer r.Close()
	if o.Pull != nil {
		_, err := r.Pull(ctx, *o.Pull, nil)
		return err
	}
	if o.Claim {
		if err := r.Claim(ctx); err != nil {
			return err
		}
		fmt.Println("claimed")
		_, err := os.Stdin.Read(make([]byte, 1))
		return err
	}
	for {
		if err := live(ctx, o.Project, r, func(step string) { fmt.Println(step) }); err != nil {
			return err
		}
	}
}

// live does everything that a plan does with a project, each step twice.
func live(ctx context.Context, p *workload.Project, r *containerd.Runtime, tell func(string)) error {
	type step struct {
		name string
		do   func() error
	}
	steps := []step{{"prepare", func() error { return r.Prepare(ctx, p) }}}
	for _, name := range []string{"create", "prepare start", "start", "probe", "stop", "start again", "remove"} {
		for _, c := range p.Containers() {
			var do func() error
			switch name {
			case "create":
				do = func() error { return r.Create(ctx, p, c) }
			case "prepare start":
				do = func() error {
					_ = r.PrepareStart(ctx, p, c) // the agent does not wait for it either: the start meets an error again, and what a kill has left
					return nil
				}
			case "probe":
				do = func() error { return r.Probe(ctx, c.ID, workload.Probe{Exec: []string{"/toolbox", "env"}}) }
			case "stop":
				do = func() error { return r.Stop(ctx, c.ID) }
			case "remove":
				do = func() error { return r.Remove(ctx, c.ID) }
			default:
				do = func() error { return r.Start(ctx, p, c) }
			}
			steps = append(steps, step{name, do})
		}
	}
	steps = append(steps, step{"teardown", func() error { return r.Teardown(ctx, p.Name) }})
	for _, s := range steps {
		tell(s.name)
		for range 2 {
			if err := retried(s.do); err != nil {
				return err
			}
		}
	}
	return nil
}

// retried does a step again that containerd did not answer in time, as the agent does.
func retried(do func() error) (err error) {
	for range 3 {
		if err = do(); !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, fault.ErrTemporary) {
			break
		}
	}
	return err
}

// again repeats what failed, as the agent does with its steps: containerd goes on with what a victim asked it for, so that a
// container may still stop, or a file appear, after the victim is dead.
func again(t *testing.T, do func() error) (err error) {
	t.Helper()
	for range 3 {
		if err = do(); err == nil {
			break
		}
		t.Logf("again after: %v", err)
	}
	return err
}

// always is a journal for which everything is durable.
type always struct{}

func (always) Unpacking(string) error         { return nil }
func (always) Durable(string) error           { return nil }
func (always) Forget(string) error            { return nil }
func (always) IsDurable(string) (bool, error) { return true, nil }

func TestKilledAnywhereConverges(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil, []testenv.File{{Path: "data/seed", Data: []byte("seed\n")}})
	web, own := server(img), server(img)
	own.Name, own.OwnShim = "own", true
	for _, s := range []*workload.Service{&web, &own} {
		s.StopGrace = time.Second
		s.Mounts = []workload.Mount{
			{Kind: workload.MountVolume, Source: "store", Target: "/data"},
			{Kind: workload.MountVolume, Target: "/anon"},
		}
	}
	own.Mounts = append(own.Mounts,
		workload.Mount{Kind: workload.MountVolume, Source: "memory", Target: "/memory"},
		workload.Mount{Kind: workload.MountImage, Image: &img, Target: "/image", Subpath: "data"},
	)
	own.PreStart = []workload.PreStart{{Service: workload.Service{Image: img, Entrypoint: toolbox("exists", "/memory")}}}
	p := project("kill", web, own)
	p.Volumes = []workload.Volume{{Name: "store"}, {Name: "memory", Options: map[string]string{"type": "tmpfs", "device": "tmpfs"}}}
	o := orders{
		Address: r.o.Address, Namespace: r.o.Namespace, DataDir: r.o.DataDir, RunDir: r.o.RunDir, Project: p,
		NetData: t.TempDir(), NetRun: t.TempDir(), NetTable: fmt.Sprintf("lsctk%d", os.Getpid()), NetPool: fmt.Sprintf("10.%d.0.0/16", 130+rigs.Add(1)%60),
	}
	rounds := 16
	if testing.Short() {
		rounds = 4
	}
	killed := map[string]int{}
	for n := range rounds {
		// Odd steps: the kills fall at all places of the life, and at all places of a step.
		step, part := n*17/rounds, time.Duration(n*37%60)*time.Millisecond
		killed[sacrifice(t, o, step, part)]++
		rt, nets, err := o.open(t.Context(), always{})
		if err != nil {
			t.Fatal(err)
		}
		err = again(t, func() (err error) {
			if n%2 == 0 { // go on from where the victim was; else from what a plan that changed its mind would do
				return live(t.Context(), p, rt, func(string) {})
			}
			for _, c := range p.Containers() {
				err = errors.Join(err, rt.Remove(t.Context(), c.ID))
			}
			return errors.Join(err, rt.Collect(t.Context(), []workload.Image{img}), rt.Teardown(t.Context(), p.Name))
		})
		if err != nil {
			t.Errorf("after a kill %v into step %d: %v", part, step, err)
		}
		if seen, err := rt.Observe(t.Context()); err != nil || len(seen.Containers) != 0 || len(seen.Projects) != 0 {
			t.Errorf("Observe after all was removed = %+v, %v", seen, err)
		}
		if left := nets.Projects(); len(left) != 0 {
			t.Errorf("networks left: %v", left)
		}
		if pins, _ := os.ReadDir(filepath.Join(o.NetRun, "netns")); len(pins) != 0 {
			t.Errorf("network namespaces left: %v", pins)
		}
		if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), o.RunDir) {
			t.Errorf("mounts left: %v\n%s", err, mounts)
		}
		if err := errors.Join(rt.Close(), nets.Close()); err != nil {
			t.Error(err)
		}
		seed, err := os.ReadFile(filepath.Join(o.DataDir, "volumes", "kill", "store", "_data", "seed"))
		if err != nil || string(seed) != "seed\n" {
			t.Errorf("the volume's seed = %q, %v", seed, err)
		}
	}
	t.Logf("killed during: %v", killed)
}

// sacrifice runs a victim and kills it some time into a step. It returns the last step that it told of.
func sacrifice(t *testing.T, o orders, step int, part time.Duration) string {
	t.Helper()
	arg, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victimVariable+"="+string(arg))
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// A step that does not end says where it hangs.
	hang := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Signal(syscall.SIGQUIT) })
	defer hang.Stop()
	s := bufio.NewScanner(out)
	last := ""
	for n := 0; n <= step && s.Scan(); n++ {
		last = s.Text()
	}
	// The kill falls some time after the step began, wherever the victim is by then.
	kill := time.AfterFunc(part, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	for s.Scan() { // ends when the victim does
		last = s.Text()
	}
	_ = cmd.Wait() // killed
	if problems.Len() > 0 {
		t.Errorf("the victim had problems of its own: %s", problems.String())
	}
	return last
}
