package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Env is an empty device for one test of the suite.
type Env struct {
	Runtime agent.Runtime
	// Image is an image whose default command runs until it is stopped; names differ, so may images.
	Image func(name string) workload.Image
	// Again opens the same device a second time, as the next process would; nil: Runtime is asked again.
	Again func(t *testing.T) agent.Runtime
	// Patience is how long something may take; 0: 30 s.
	Patience time.Duration
}

// Run is what every [agent.Runtime] must do. open gives each test a device of its own.
func Run(t *testing.T, open func(t *testing.T) Env) {
	for _, tc := range []struct {
		name string
		run  func(t *testing.T, d *device)
	}{
		{"life of a container", life},
		{"every call may be repeated", repeated},
		{"what is not there", missing},
		{"prepare leaves what runs alone", preparing},
		{"a running container is removed", removing},
		{"another process sees the same", reopening},
		{"events", events},
		{"logs", logs},
		{"collect", collecting},
		{"many at once", many},
		{"exec", executing},
		{"volumes stay", volumes},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := open(t)
			if e.Patience == 0 {
				e.Patience = 30 * time.Second
			}
			tc.run(t, &device{Env: e})
		})
	}
}

// device is an [Env] with shorthands.
type device struct{ Env }

func (d *device) project(name string, services ...string) *workload.Project {
	p := &workload.Project{
		Name: workload.ProjectName("d-"+name, name), Deployment: "d-" + name, Component: name, Generation: 1,
		Networks: []workload.Network{{Name: "default"}}, Volumes: []workload.Volume{{Name: "data"}},
	}
	for _, s := range services {
		p.Services = append(p.Services, workload.Service{
			Name: s, Image: d.Image(s), Networks: []workload.Attachment{{Network: "default"}}, StopGrace: 2 * time.Second,
			Mounts: []workload.Mount{{Kind: workload.MountVolume, Source: "data", Target: "/data"}},
		})
	}
	return p
}

func (d *device) try(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func (d *device) pull(ctx context.Context, c workload.Container) error {
	_, err := d.Runtime.Pull(ctx, c.Service.Image, nil)
	return err
}

// up pulls, prepares, creates and starts everything.
func (d *device) up(t *testing.T, p *workload.Project) []workload.Container {
	t.Helper()
	ctx := t.Context()
	cs := p.Containers()
	for _, c := range cs {
		d.try(t, "pull", d.pull(ctx, c))
	}
	d.try(t, "prepare", d.Runtime.Prepare(ctx, p))
	for _, c := range cs {
		d.try(t, "create", d.Runtime.Create(ctx, p, c))
		d.try(t, "start", d.Runtime.Start(ctx, p, c))
	}
	return cs
}

func (d *device) observe(t *testing.T) workload.Observed {
	t.Helper()
	o, err := d.Runtime.Observe(t.Context())
	d.try(t, "observe", err)
	return o
}

func (d *device) one(t *testing.T, id string) workload.Observation {
	t.Helper()
	for _, c := range d.observe(t).Containers {
		if c.ID == id {
			return c
		}
	}
	return workload.Observation{}
}

func (d *device) status(t *testing.T, id string, want workload.Status) workload.Observation {
	t.Helper()
	o := d.one(t, id)
	if o.Status != want {
		t.Fatalf("%s is %q, want %q", id, o.Status, want)
	}
	return o
}

func life(t *testing.T, d *device) {
	ctx, rt := t.Context(), d.Runtime
	if o := d.observe(t); len(o.Containers)+len(o.Projects) != 0 {
		t.Fatalf("an empty device has %+v", o)
	}
	p := d.project("app", "web")
	c := p.Containers()[0]
	_, err := rt.Pull(ctx, c.Service.Image, func(int64, int64) {})
	d.try(t, "pull", err)
	d.try(t, "prepare", rt.Prepare(ctx, p))
	if got := d.observe(t); len(got.Projects) != 1 || got.Projects[0] != p.Name {
		t.Errorf("projects %v, want %s", got.Projects, p.Name)
	}
	expected := d.observe(t).With(p, c)
	d.try(t, "create", rt.Create(ctx, p, c))
	if diff := cmp.Diff(expected, d.observe(t)); diff != "" {
		t.Errorf("after the container was created (-expected +observed):\n%s", diff)
	}
	got := d.status(t, c.ID, workload.Created)
	got.StartedAt, got.ExitedAt = time.Time{}, time.Time{}
	want := workload.Observation{
		ID: c.ID, Project: p.Name, Deployment: p.Deployment, Component: p.Component, Service: "web", Replica: 1, Hash: c.Hash,
		Generation: p.Generation, Image: c.Service.Image.Name(), Status: workload.Created, Active: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("created (-want +got):\n%s", diff)
	}
	d.try(t, "start", rt.Start(ctx, p, c))
	first := d.status(t, c.ID, workload.Running)
	if first.PID == 0 {
		t.Error("a running container has no process")
	}
	running := d.observe(t)
	d.try(t, "stop", rt.Stop(ctx, c.ID))
	ended := d.status(t, c.ID, workload.Exited)
	expected = running.Stopped(c.ID, ended.End)
	expected.Containers[0].ExitCode, expected.Containers[0].ExitedAt = ended.ExitCode, ended.ExitedAt
	if diff := cmp.Diff(expected, d.observe(t)); diff != "" {
		t.Errorf("after the container was stopped (-expected +observed):\n%s", diff)
	}
	if ended.End == "" || ended.End != d.status(t, c.ID, workload.Exited).End || first.End != "" {
		t.Errorf("the end of a run is named %q, while it runs %q", ended.End, first.End)
	}
	d.try(t, "start again", rt.Start(ctx, p, c))
	if again := d.status(t, c.ID, workload.Running); again.PID == first.PID || again.PID == 0 || again.End != "" {
		t.Errorf("started again with pid %d, was %d; end %q", again.PID, first.PID, again.End)
	}
	d.try(t, "stop", rt.Stop(ctx, c.ID))
	if again := d.status(t, c.ID, workload.Exited); again.End == "" || again.End == ended.End {
		t.Errorf("the end of another run is named %q, as the one before: %q", again.End, ended.End)
	}
	d.try(t, "remove", rt.Remove(ctx, c.ID))
	d.try(t, "teardown", rt.Teardown(ctx, p.Name))
	if o := d.observe(t); len(o.Containers)+len(o.Projects) != 0 {
		t.Errorf("left %+v", o)
	}
}

func repeated(t *testing.T, d *device) {
	ctx, rt := t.Context(), d.Runtime
	p := d.project("app", "web")
	c := p.Containers()[0]
	pid := uint32(0)
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"pull", func() error { return d.pull(ctx, c) }},
		{"prepare", func() error { return rt.Prepare(ctx, p) }},
		{"create", func() error { return rt.Create(ctx, p, c) }},
		{"start", func() error { return rt.Start(ctx, p, c) }},
		{"create what runs", func() error { return rt.Create(ctx, p, c) }},
		{"stop", func() error { return rt.Stop(ctx, c.ID) }},
		{"remove", func() error { return rt.Remove(ctx, c.ID) }},
		{"teardown", func() error { return rt.Teardown(ctx, p.Name) }},
		{"stop what is gone", func() error { return rt.Stop(ctx, c.ID) }},
		{"collect", func() error { return rt.Collect(ctx, nil) }},
	} {
		d.try(t, step.name, step.do())
		if o := d.one(t, c.ID); step.name == "start" {
			pid = o.PID
		}
		d.try(t, step.name+" again", step.do())
		if o := d.one(t, c.ID); o.Status == workload.Running && o.PID != pid {
			t.Errorf("%s again: pid %d, was %d", step.name, o.PID, pid)
		}
	}
}

func missing(t *testing.T, d *device) {
	ctx, rt := t.Context(), d.Runtime
	p := d.project("app", "web")
	c := p.Containers()[0]
	d.try(t, "prepare", rt.Prepare(ctx, p))
	if err := rt.Create(ctx, p, c); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("create without its image: %v, want not found", err)
	}
	if err := rt.Start(ctx, p, c); err == nil {
		t.Error("start of nothing: no error")
	}
	if err := rt.Probe(ctx, c.ID, workload.Probe{TCP: 1}); err == nil {
		t.Error("probe of nothing: no error")
	}
	if _, err := rt.Logs(ctx, c.ID, workload.LogOptions{}); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("logs of nothing: %v, want not found", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := d.pull(ended, c); err == nil {
		t.Error("pull with a context that ended: no error")
	}
}

func preparing(t *testing.T, d *device) {
	p := d.project("app", "web")
	c := d.up(t, p)[0]
	before := d.status(t, c.ID, workload.Running)
	p.Services = append(p.Services, workload.Service{Name: "more", Image: d.Image("more"), Networks: []workload.Attachment{{Network: "default"}}})
	d.try(t, "prepare", d.Runtime.Prepare(t.Context(), p))
	if after := d.status(t, c.ID, workload.Running); after.PID != before.PID {
		t.Errorf("pid %d, was %d", after.PID, before.PID)
	}
}

func removing(t *testing.T, d *device) {
	p := d.project("app", "web")
	c := d.up(t, p)[0]
	d.try(t, "remove", d.Runtime.Remove(t.Context(), c.ID))
	d.try(t, "teardown", d.Runtime.Teardown(t.Context(), p.Name))
	if o := d.observe(t); len(o.Containers)+len(o.Projects) != 0 {
		t.Errorf("left %+v", o)
	}
}

func reopening(t *testing.T, d *device) {
	c := d.up(t, d.project("app", "web"))[0]
	before := d.observe(t)
	if d.Again != nil {
		d.Runtime = d.Again(t)
	}
	if diff := cmp.Diff(before, d.observe(t)); diff != "" {
		t.Errorf("seen by another process (-before +after):\n%s", diff)
	}
	d.try(t, "stop", d.Runtime.Stop(t.Context(), c.ID))
	d.status(t, c.ID, workload.Exited)
}

func events(t *testing.T, d *device) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ch, err := d.Runtime.Events(ctx)
	d.try(t, "events", err)
	c := d.up(t, d.project("app", "web"))[0]
	d.try(t, "stop", d.Runtime.Stop(ctx, c.ID))
	late := time.NewTimer(d.Patience)
	defer late.Stop()
	for seen := false; !seen; {
		select {
		case e, ok := <-ch:
			if !ok {
				t.Fatal("channel closed")
			}
			seen = e.Kind == workload.EventExit && e.ID == c.ID
		case <-late.C:
			t.Fatal("no event of an exit")
		}
	}
	cancel()
	for {
		select {
		case _, ok := <-ch:
			if !ok {
				return
			}
		case <-late.C:
			t.Fatal("channel is not closed after its context ended")
		}
	}
}

func logs(t *testing.T, d *device) {
	c := d.up(t, d.project("app", "web"))[0]
	rc, err := d.Runtime.Logs(t.Context(), c.ID, workload.LogOptions{Tail: 10})
	d.try(t, "logs", err)
	if _, err := io.ReadAll(rc); err != nil {
		t.Errorf("read logs: %v", err)
	}
	d.try(t, "close", rc.Close())
	ctx, cancel := context.WithCancel(t.Context())
	rc, err = d.Runtime.Logs(ctx, c.ID, workload.LogOptions{Follow: true})
	d.try(t, "follow", err)
	time.AfterFunc(50*time.Millisecond, cancel)
	_, _ = io.Copy(io.Discard, rc) // must end; by what error is its own business
	d.try(t, "close", rc.Close())
}

func collecting(t *testing.T, d *device) {
	ctx := t.Context()
	p, q := d.project("app", "web"), d.project("gone", "web2")
	c, x := d.up(t, p)[0], d.up(t, q)[0]
	if c.Service.Image.Name() == x.Service.Image.Name() {
		t.Skip("only one image")
	}
	d.try(t, "remove", d.Runtime.Remove(ctx, x.ID))
	d.try(t, "collect", d.Runtime.Collect(ctx, []workload.Image{c.Service.Image}))
	d.status(t, c.ID, workload.Running)
	if err := d.Runtime.Create(ctx, q, x); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("create from a collected image: %v, want not found", err)
	}
	d.try(t, "pull again", d.pull(ctx, x))
	d.try(t, "create", d.Runtime.Create(ctx, q, x))
	d.try(t, "restart", errors.Join(d.Runtime.Stop(ctx, c.ID), d.Runtime.Start(ctx, p, c)))
}

func executing(t *testing.T, d *device) {
	ctx := t.Context()
	rt := d.Runtime
	p := d.project("app", "web")
	c := p.Containers()[0]
	o := agent.ExecOptions{Argv: []string{"/toolbox", "env"}}
	if _, err := rt.Exec(ctx, c.ID, o); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("exec in nothing: %v, want not found", err)
	}
	d.up(t, p)
	if code, err := rt.Exec(ctx, c.ID, o); code != 0 || err != nil {
		t.Errorf("exec: exit code %d, %v", code, err)
	}
	if _, err := rt.Exec(ctx, c.ID, agent.ExecOptions{}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("exec of nothing: %v, want invalid", err)
	}
	d.try(t, "stop", d.Runtime.Stop(ctx, c.ID))
	if _, err := rt.Exec(ctx, c.ID, o); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("exec in what is stopped: %v, want a conflict", err)
	}
}

func many(t *testing.T, d *device) {
	ctx := t.Context()
	p := d.project("app", "a", "b", "c", "d")
	cs := p.Containers()
	d.try(t, "prepare", d.Runtime.Prepare(ctx, p))
	each := func(what string, f func(workload.Container) error) {
		t.Helper()
		var wg sync.WaitGroup
		errs := make([]error, len(cs))
		for i, c := range cs {
			wg.Go(func() {
				if err := f(c); err != nil {
					errs[i] = fmt.Errorf("%s: %w", c.Service.Name, err)
				}
			})
		}
		wg.Wait()
		d.try(t, what, errors.Join(errs...))
	}
	each("pull", func(c workload.Container) error { return d.pull(ctx, c) })
	each("create and start", func(c workload.Container) error {
		return errors.Join(d.Runtime.Create(ctx, p, c), d.Runtime.Start(ctx, p, c))
	})
	for _, c := range cs {
		d.status(t, c.ID, workload.Running)
	}
	each("stop and remove", func(c workload.Container) error {
		return errors.Join(d.Runtime.Stop(ctx, c.ID), d.Runtime.Remove(ctx, c.ID))
	})
	d.try(t, "teardown", d.Runtime.Teardown(ctx, p.Name))
	if o := d.observe(t); len(o.Containers)+len(o.Projects) != 0 {
		t.Errorf("left %+v", o)
	}
}

// A volume outlives its project, tells whose it was, and goes when it is taken.
func volumes(t *testing.T, d *device) {
	k := d.Runtime
	ctx := t.Context()
	p := d.project("app", "web")
	p.Application = "line"
	p.Volumes = []workload.Volume{{Name: "data"}}
	p.Services[0].Mounts = []workload.Mount{{Kind: workload.MountVolume, Source: "data", Target: "/data"}}
	c := d.up(t, p)[0]
	want := []workload.StoredVolume{{Project: p.Name, Name: "data", VolumeOwner: workload.VolumeOwner{Deployment: p.Deployment, Application: "line", Component: p.Component}}}
	for _, when := range []string{"in use", "kept"} {
		got, err := k.StoredVolumes(ctx)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", when, err, diff)
		}
		if _, err := k.VolumeSize(ctx, p.Name, "data"); err != nil {
			t.Errorf("%s: size: %v", when, err)
		}
		d.try(t, "remove", d.Runtime.Remove(ctx, c.ID))
		d.try(t, "teardown", d.Runtime.Teardown(ctx, p.Name))
	}
	free, err := k.TakeVolume(ctx, p.Name, "data")
	d.try(t, "take", err)
	d.try(t, "free", free(ctx))
	if got, err := k.StoredVolumes(ctx); len(got) > 0 || err != nil {
		t.Errorf("left %+v, %v", got, err)
	}
	if _, err := k.TakeVolume(ctx, p.Name, "data"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("taken twice: %v, want not found", err)
	}
	d.up(t, p)
	if got, err := k.StoredVolumes(ctx); len(got) != 1 || err != nil {
		t.Errorf("made anew: %+v, %v", got, err)
	}
}
