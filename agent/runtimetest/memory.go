// Package runtimetest is the test suite of [agent.Runtime]: [Run] is the suite, [Memory] a runtime in memory that passes it and is used
// by the agent's own tests. The same suite runs on real containerd, so that Memory behaves alike.
package runtimetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

var _ agent.Runtime = (*Memory)(nil)

// Memory is a runtime whose containers are values. It outlives the agents that use it, as containerd does. Hooks may be set before it
// is used.
type Memory struct {
	// Now stamps starts and exits. nil: they have no time.
	Now func() time.Time
	// Images reports whether an image can be pulled; nil: every one can.
	Images func(workload.Image) error
	// VolumeFile is called before a file of a volume is read: an error keeps it from that. nil: none does.
	VolumeFile func() error
	// Pulling is called before an image is there, for as long as it takes; nil: no time.
	Pulling func(ctx context.Context, image workload.Image, progress func(done, total int64)) error
	// Starting is called with a container that is to be started, and whether its image is here: an error keeps it from that.
	// nil: nothing does.
	Starting func(ctx context.Context, o workload.Observation, image bool) error
	// Disks is how much room there is; nil: not known.
	Disks func() []workload.Space
	// Taken is what a project's containers and output take; nil: nothing.
	Taken func(project string) int64
	// Probing answers probes of running containers; nil: all are well.
	Probing func(ctx context.Context, o workload.Observation, p workload.Probe) error
	// Running is called with a container that was started: an exit code other than -1 ends it at once. nil: all run on.
	Running func(o workload.Observation) int
	// Inspect returns what the configuration of an image says; nil: nothing.
	Inspect func(workload.Image) workload.ImageInfo
	// Admitting returns the conflicts of Admit; nil: there are none.
	Admitting func(projects []*workload.Project) error
	// Stopping is how long a container takes to stop.
	Stopping time.Duration

	mu       sync.Mutex
	images   map[string]bool
	projects map[string]*workload.Project // nil: not prepared
	objects  map[string]*memoryContainer
	volumes  map[string]string // "project/volume" -> what was written into it
	owners   map[string]workload.StoredVolume
	watchers map[chan workload.Event]bool
	pid      uint32
	calls    []string
}

type memoryContainer struct {
	workload.Observation
	service workload.Service
	output  bytes.Buffer
}

func NewMemory() *Memory {
	return &Memory{
		images: map[string]bool{}, projects: map[string]*workload.Project{}, objects: map[string]*memoryContainer{},
		volumes: map[string]string{}, owners: map[string]workload.StoredVolume{}, watchers: map[chan workload.Event]bool{}, pid: 100,
	}
}

// Calls lists what was done so far: "start <id>", in order. Questions are not listed.
func (m *Memory) Calls() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.calls)
}

// Pulled lists the images that are here, sorted.
func (m *Memory) Pulled() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.images))
}

// Exit ends a running container as if its process had.
func (m *Memory) Exit(id string, code uint32) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, ok := m.objects[id]
	if !ok || c.Status != workload.Running {
		return fmt.Errorf("exit %s: not running: %w", id, fault.ErrNotFound)
	}
	m.exit(c, code)
	return nil
}

// Pause pauses a running container as another program would.
func (m *Memory) Pause(id string) error {
	return m.edit("pause", id, func(c *memoryContainer) { c.Status = workload.Paused })
}

// Delete removes a container as another program would.
func (m *Memory) Delete(id string) error {
	return m.edit("delete", id, func(*memoryContainer) { delete(m.objects, id) })
}

// Edit changes a container's labels as another program would.
func (m *Memory) Edit(id string, f func(*workload.Observation)) error {
	return m.edit("edit", id, func(c *memoryContainer) { f(&c.Observation) })
}

func (m *Memory) edit(what, id string, f func(*memoryContainer)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, ok := m.objects[id]
	if !ok {
		return fmt.Errorf("%s %s: %w", what, id, fault.ErrNotFound)
	}
	f(c)
	m.send(workload.Event{Kind: workload.EventChanged, ID: id})
	return nil
}

// Reboot ends every process without an exit: containers are there, their tasks and networks are not.
func (m *Memory) Reboot() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.objects {
		c.Status, c.PID, c.Run, c.End, c.ExitCode, c.StartedAt, c.ExitedAt, c.Began = workload.Created, 0, "", "", 0, time.Time{}, time.Time{}, 0
	}
	for p := range m.projects {
		m.projects[p] = nil
	}
}

// Lose removes an image as another program would.
func (m *Memory) Lose(image string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.images, image)
}

func (m *Memory) now() time.Time {
	if m.Now == nil {
		return time.Time{}
	}
	return m.Now()
}

// enter locks, unless ctx has ended.
func (m *Memory) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	return nil
}

func (m *Memory) note(verb, what string) { m.calls = append(m.calls, verb+" "+what) }

func (m *Memory) Pull(ctx context.Context, image workload.Image, progress func(done, total int64)) (workload.ImageInfo, error) {
	var info workload.ImageInfo
	if err := ctx.Err(); err != nil {
		return info, err
	}
	if m.Images != nil {
		if err := m.Images(image); err != nil {
			return info, fmt.Errorf("pull %s: %w", image.Name(), err)
		}
	}
	if m.Pulling != nil {
		if err := m.Pulling(ctx, image, progress); err != nil {
			return info, fmt.Errorf("pull %s: %w", image.Name(), err)
		}
	}
	if m.Inspect != nil {
		info = m.Inspect(image)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.images[image.Name()] = true
	if progress != nil {
		progress(image.Size, image.Size)
	}
	m.note("pull", image.Name())
	return info, nil
}

func (m *Memory) Observe(ctx context.Context) (workload.Observed, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var o workload.Observed
	for _, id := range slices.Sorted(maps.Keys(m.objects)) {
		o.Containers = append(o.Containers, m.objects[id].Observation)
	}
	o.Projects = slices.Sorted(maps.Keys(m.projects))
	return o, ctx.Err()
}

func (m *Memory) Prepare(ctx context.Context, p *workload.Project) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	m.projects[p.Name] = p
	for _, v := range p.Volumes {
		if _, ok := m.volumes[p.Name+"/"+v.Name]; !ok {
			m.volumes[p.Name+"/"+v.Name] = ""
		}
		m.owners[p.Name+"/"+v.Name] = workload.StoredVolume{Project: p.Name, Name: v.Name, VolumeOwner: workload.VolumeOwner{
			Deployment: p.Deployment, Application: p.Application, Component: p.Component,
		}}
	}
	m.note("prepare", p.Name)
	return nil
}

func (m *Memory) Admit(ctx context.Context, projects []*workload.Project) error {
	if m.Admitting != nil {
		if err := m.Admitting(projects); err != nil {
			return fmt.Errorf("admit: %w", err)
		}
	}
	return ctx.Err()
}

func (m *Memory) Create(ctx context.Context, p *workload.Project, c workload.Container) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if _, ok := m.objects[c.ID]; ok {
		return nil
	}
	if !m.images[c.Service.Image.Name()] {
		return fmt.Errorf("create %s: image %s: %w: %w", c.ID, c.Service.Image.Name(), workload.ErrImageGone, fault.ErrNotFound)
	}
	if m.projects[p.Name] == nil {
		return fmt.Errorf("create %s: project %s is not prepared: %w", c.ID, p.Name, fault.ErrInvalid)
	}
	m.objects[c.ID] = &memoryContainer{
		Observation: workload.Observation{
			ID: c.ID, Project: p.Name, Deployment: p.Deployment, Component: p.Component, Service: c.Service.Name,
			Replica: c.Replica, Hash: c.Hash, Generation: p.Generation, Image: c.Service.Image.Name(), Status: workload.Created,
		},
		service: c.Service,
	}
	m.objects[c.ID].Active = !m.hasBackend(m.objects[c.ID])
	m.note("create", c.ID)
	return nil
}

// PrepareStart does nothing: the start of a container takes no time.
func (m *Memory) PrepareStart(ctx context.Context, _ *workload.Project, _ workload.Container) error {
	return ctx.Err()
}

func (m *Memory) Start(ctx context.Context, _ *workload.Project, unit workload.Container) error {
	id := unit.ID
	if err := m.starting(ctx, id); err != nil {
		return fmt.Errorf("start %s: %w", id, err)
	}
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	c, ok := m.objects[id]
	if !ok {
		return fmt.Errorf("start %s: %w", id, fault.ErrNotFound)
	}
	switch c.Status {
	case workload.Running:
		return nil
	case workload.Paused:
		c.Status = workload.Running
		m.note("resume", id)
		return nil
	}
	if err := m.ports(c); err != nil {
		return fmt.Errorf("start %s: %w", id, err)
	}
	m.pid++
	c.Status, c.PID, c.End, c.ExitCode, c.StartedAt, c.ExitedAt = workload.Running, m.pid, "", 0, m.now(), time.Time{}
	c.Run, c.Began = fmt.Sprint("run ", m.pid), time.Duration(m.pid)*time.Second
	fmt.Fprintf(&c.output, "%s started\n", c.Service)
	m.note("start", id)
	if m.Running != nil {
		if code := m.Running(c.Observation); code >= 0 {
			m.exit(c, uint32(code))
		}
	}
	return nil
}

// ports finds out whether a running container publishes a port that c wants.
func (m *Memory) ports(c *memoryContainer) error {
	for _, o := range m.objects {
		if o.ID == c.ID || o.Status != workload.Running || o.Project == c.Project && o.Service == c.Service {
			continue // two of one service: one of them answers
		}
		for _, a := range o.service.Ports {
			for _, b := range c.service.Ports {
				if a.HostPort == b.HostPort && a.Protocol == b.Protocol {
					return fmt.Errorf("port %d/%s is in use by %s: %w", a.HostPort, a.Protocol, o.ID, fault.ErrConflict)
				}
			}
		}
	}
	return nil
}

func (m *Memory) exit(c *memoryContainer, code uint32) {
	c.End = "end of " + c.Run
	c.Status, c.PID, c.Run, c.StartedAt, c.ExitCode, c.ExitedAt, c.Began = workload.Exited, 0, "", time.Time{}, code, m.now(), 0
	m.send(workload.Event{Kind: workload.EventExit, ID: c.ID})
}

func (m *Memory) send(e workload.Event) {
	for w := range m.watchers {
		select {
		case w <- e:
		default: // full: the reader will observe anyway
		}
	}
}

// Activate makes a container a backend of its service.
func (m *Memory) Activate(ctx context.Context, project, service, id string) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	c, ok := m.objects[id]
	if !ok || c.Project != project || c.Service != service {
		return fmt.Errorf("activate container of service %s of %s: %s: %w", service, project, id, fault.ErrNotFound)
	}
	if c.Active {
		return nil
	}
	for _, o := range m.objects {
		if o.Project == project && o.Service == service && o.Replica == c.Replica {
			o.Active = false
		}
	}
	c.Active = true
	m.note("activate", id)
	return nil
}

// Deactivate removes a container from the backends of its service; the last one stays.
func (m *Memory) Deactivate(ctx context.Context, id string) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	c, ok := m.objects[id]
	if !ok || !c.Active {
		return nil
	}
	if c.Active = false; !m.hasBackend(c) {
		c.Active = true
		return nil
	}
	m.note("deactivate", id)
	return nil
}

// hasBackend reports whether c's service has a backend, of any replica.
func (m *Memory) hasBackend(c *memoryContainer) bool {
	for _, o := range m.objects {
		if o.Active && o.Project == c.Project && o.Service == c.Service {
			return true
		}
	}
	return false
}

func (m *Memory) Stop(ctx context.Context, id string) error {
	if m.Stopping > 0 {
		if err := delay.For(ctx, m.Stopping); err != nil {
			return err
		}
	}
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if c, ok := m.objects[id]; ok && (c.Status == workload.Running || c.Status == workload.Paused) {
		m.exit(c, 143)
		m.note("stop", id)
	}
	return nil
}

func (m *Memory) Remove(ctx context.Context, id string) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if c, ok := m.objects[id]; ok {
		delete(m.objects, id)
		for _, o := range slices.Sorted(maps.Keys(m.objects)) { // as the networks do it: another one becomes the backend
			if n := m.objects[o]; c.Active && n.Project == c.Project && n.Service == c.Service && !m.hasBackend(n) {
				n.Active = true
			}
		}
		m.note("remove", id)
	}
	return nil
}

// Teardown forgets a project. Volumes stay.
func (m *Memory) Teardown(ctx context.Context, project string) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	for _, c := range m.objects {
		if c.Project == project {
			return fmt.Errorf("take down %s: container %s is there: %w", project, c.ID, fault.ErrConflict)
		}
	}
	delete(m.projects, project)
	m.note("teardown", project)
	return nil
}

func (m *Memory) look(id string) (o workload.Observation, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, ok := m.objects[id]
	if ok {
		o = c.Observation
	}
	return o, ok
}

func (m *Memory) Probe(ctx context.Context, id string, p workload.Probe) error {
	o, ok := m.look(id)
	switch {
	case !ok:
		return fmt.Errorf("probe %s: %w", id, fault.ErrNotFound)
	case o.Status != workload.Running:
		return fmt.Errorf("probe %s: it is %s", id, o.Status)
	case m.Probing != nil:
		return m.Probing(ctx, o, p)
	}
	return ctx.Err()
}

// Exec answers in running containers with exit code 0, and prints nothing.
func (m *Memory) Exec(ctx context.Context, id string, e agent.ExecOptions) (int, error) {
	o, ok := m.look(id)
	switch {
	case !ok:
		return 0, fmt.Errorf("exec in %s: %w", id, fault.ErrNotFound)
	case len(e.Argv) == 0:
		return 0, fmt.Errorf("exec in %s: nothing to run: %w", id, fault.ErrInvalid)
	case o.Status != workload.Running:
		return 0, fmt.Errorf("exec in %s: it is %s: %w", id, o.Status, fault.ErrConflict)
	}
	return 0, ctx.Err()
}

// Events sends exits until ctx ends.
func (m *Memory) Events(ctx context.Context) (<-chan workload.Event, error) {
	w := make(chan workload.Event, 16)
	m.mu.Lock()
	m.watchers[w] = true
	m.mu.Unlock()
	context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, w)
		close(w)
	})
	return w, nil
}

// Usage returns made-up figures that grow with the process's number.
func (m *Memory) Usage(ctx context.Context) ([]workload.Usage, []workload.LogUsage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []workload.Usage
	var logs []workload.LogUsage
	for _, id := range slices.Sorted(maps.Keys(m.objects)) {
		c := m.objects[id]
		logs = append(logs, workload.LogUsage{Project: c.Project, Service: c.Service, Replica: c.Replica, Bytes: int64(c.output.Len())})
		if c.Status == workload.Running {
			out = append(out, workload.Usage{ID: id, At: m.now(), CPU: time.Duration(c.PID) * time.Millisecond, Memory: uint64(c.PID) << 10, PIDs: 1})
		}
	}
	return out, logs, ctx.Err()
}

func (m *Memory) Logs(ctx context.Context, id string, o workload.LogOptions) (io.ReadCloser, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	c, ok := m.objects[id]
	if !ok {
		return nil, fmt.Errorf("logs of %s: %w", id, fault.ErrNotFound)
	}
	lines := strings.SplitAfter(c.output.String(), "\n")
	lines = lines[:len(lines)-1]
	if o.Tail == workload.NoTail {
		lines = nil
	} else if o.Tail > 0 && len(lines) > o.Tail {
		lines = lines[len(lines)-o.Tail:]
	}
	if o.Stamps {
		lines = slices.Clone(lines)
		for i, l := range lines {
			lines[i] = m.now().UTC().Format(workload.StampFormat) + " " + l
		}
	}
	text := strings.NewReader(strings.Join(lines, ""))
	if !o.Follow {
		return io.NopCloser(text), nil
	}
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { _ = w.Close() }) // never fails
	return struct {
		io.Reader
		io.Closer
	}{io.MultiReader(text, r), r}, nil
}

func (m *Memory) Collect(ctx context.Context, keep []workload.Image) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	wanted := map[string]bool{}
	for _, k := range keep {
		wanted[k.Name()] = true
	}
	for name := range m.images {
		if !wanted[name] {
			delete(m.images, name)
			m.note("drop", name)
		}
	}
	return nil
}
