package containerd

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	apievents "github.com/containerd/containerd/api/events"
	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/containerd/process"
	"github.com/longshore-dev/longshore/agent/workload"
)

const (
	// markTopic is where a new subscription listens for itself.
	markTopic = "/longshore/subscribed"
	markEvery = 100 * time.Millisecond
)

// Observe lists this device's containers and the projects that own anything, fresh from containerd.
func (r *Runtime) Observe(ctx context.Context) (workload.Observed, error) {
	ctx = r.in(ctx)
	var out workload.Observed
	if err := r.claim(ctx); err != nil {
		return out, err
	}
	boxes, err := r.observed(ctx)
	if err != nil {
		return out, fmt.Errorf("list containers: %w", failure.Classify(err))
	}
	list, err := r.client.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return out, fmt.Errorf("list tasks: %w", failure.Classify(errgrpc.ToNative(err)))
	}
	running := map[string]*task.Process{}
	for _, t := range list.Tasks {
		running[t.ID] = t
	}
	var ask []string
	for _, b := range boxes {
		if running[b.ID] == nil && b.Labels[owned.LabelHook] == "" {
			ask = append(ask, b.ID)
		}
	}
	unlisted, err := r.unlisted(ctx, ask)
	if err != nil {
		return out, fmt.Errorf("list tasks: %w", failure.Classify(err))
	}
	projects, answering, mute := map[string]bool{}, r.o.Networks.Answering(), map[string]bool{}
	for _, b := range boxes {
		if b.Labels[owned.LabelHook] != "" { // part of another container's start
			continue
		}
		replica, err := strconv.Atoi(b.Labels[owned.LabelReplica])
		if err != nil {
			r.log.Warn("a container with a broken label", "container", b.ID, "label", owned.LabelReplica, "value", b.Labels[owned.LabelReplica])
		}
		generation, err := strconv.ParseUint(b.Labels[owned.LabelGeneration], 10, 64)
		if err != nil {
			r.log.Warn("a container with a broken label", "container", b.ID, "label", owned.LabelGeneration, "value", b.Labels[owned.LabelGeneration])
		}
		o := workload.Observation{
			ID: b.ID, Generation: generation, Project: b.Labels[owned.LabelProject], Deployment: b.Labels[owned.LabelDeployment], Component: b.Labels[owned.LabelComponent],
			Service: b.Labels[owned.LabelService], Replica: replica, Hash: b.Labels[owned.LabelHash], Image: b.Image, Status: workload.Created,
			Active: answering[b.ID],
		}
		t := running[b.ID]
		if found, ok := unlisted[b.ID]; ok {
			t, mute[b.ID] = found, found == nil
		}
		switch {
		case mute[b.ID], t != nil && t.Status == task.Status_UNKNOWN:
			mute[b.ID] = true
			o = r.sightings.recall(o)
		case t != nil:
			if describe(&o, t); o.Status == workload.Exited && o.ExitCode != 0 {
				o.Lack = r.lack(b)
			}
			r.observeWriter(b, o)
		}
		projects[o.Project] = true
		out.Containers = append(out.Containers, o)
	}
	maps.DeleteFunc(mute, func(_ string, is bool) bool { return !is })
	for _, id := range r.sightings.note(out.Containers, mute) {
		r.log.Warn("a container's shim does not answer; the container is taken for what it was", "container", id)
	}
	owners, err := r.logs.Projects()
	if err != nil {
		return out, fmt.Errorf("list projects: %w", err)
	}
	for _, p := range owners {
		projects[p] = true
	}
	for p := range projects {
		out.Projects = append(out.Projects, p)
	}
	slices.Sort(out.Projects)
	return out, nil
}

// observeWriter notes where a container writes to, when it is seen for the first time.
func (r *Runtime) observeWriter(b containers.Container, o workload.Observation) {
	if o.Status != workload.Running || r.logs.Watched(o.ID, o.Run) {
		return
	}
	var rec record
	if ext := b.Extensions[extensionKey]; ext != nil && json.Unmarshal(ext.GetValue(), &rec) == nil {
		r.logs.Watch(replicaOf(b.Labels), rec.Container.Service.Log, o.ID, o.PID)
	}
}

func describe(o *workload.Observation, t *task.Process) {
	switch t.Status {
	case task.Status_RUNNING, task.Status_PAUSED, task.Status_PAUSING:
		o.Status, o.PID = workload.Running, t.Pid
		if t.Status != task.Status_RUNNING {
			o.Status = workload.Paused
		}
		o.Run, o.StartedAt, o.Began = process.Started(t.Pid, "/proc")
	case task.Status_STOPPED:
		o.Status, o.ExitCode, o.End = workload.Exited, t.ExitStatus, strconv.FormatUint(uint64(t.Pid), 10)
		if t.ExitedAt != nil {
			o.ExitedAt = t.ExitedAt.AsTime()
			o.End += "/" + strconv.FormatInt(o.ExitedAt.UnixNano(), 10)
		}
	}
}

// Events tells of exits and lack of memory of this device's containers, and of changes that somebody else made to them,
// until ctx ends. When the connection to containerd
// is lost, workload.EventLost is sent and the channel is closed: the caller observes and calls Events again, which
// fails with fault.ErrTemporary until containerd is back. The caller reads until the channel is closed.
func (r *Runtime) Events(ctx context.Context) (<-chan workload.Event, error) {
	ctx = r.in(ctx)
	if err := r.claim(ctx); err != nil {
		return nil, err
	}
	if _, err := r.features.Version(ctx); err != nil { // a subscription alone would report a dead containerd as lost events
		return nil, fmt.Errorf("subscribe to events: %w", failure.Classify(err))
	}
	ctx, cancel := context.WithCancel(ctx)
	ns := ",namespace==" + strconv.Quote(r.o.Namespace)
	var filters []string
	for _, topic := range []string{"/tasks/exit", "/tasks/oom", "/tasks/paused", "/containers/create", "/containers/update", "/containers/delete", markTopic} {
		filters = append(filters, "topic=="+strconv.Quote(topic)+ns)
	}
	envelopes, errs := r.client.Subscribe(ctx, filters...)
	out, begun := make(chan workload.Event), make(chan error, 1)
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		defer close(out)
		defer func() { // the library's reader has ended when its errors are closed
			cancel()
			for range errs {
			}
		}()
		if err := r.begin(ctx, envelopes, errs); err != nil {
			begun <- err
			return
		}
		begun <- nil
		r.forward(ctx, envelopes, errs, out)
	}()
	if err := <-begun; err != nil {
		return nil, fmt.Errorf("subscribe to events: %w", failure.Classify(errgrpc.ToNative(err)))
	}
	return out, nil
}

// begin waits until containerd really sends: a subscription is heard some time after it was made, and what happens in
// between would be missed. It publishes a mark of its own until the mark comes back.
func (r *Runtime) begin(ctx context.Context, in <-chan *events.Envelope, errs <-chan error) error {
	mark := rand.Text()
	again := time.NewTicker(markEvery)
	defer again.Stop()
	for {
		if err := r.client.EventService().Publish(ctx, markTopic, &apievents.NamespaceUpdate{Name: mark}); err != nil {
			return err
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case err := <-errs:
				return err
			case <-again.C:
				waiting = false
			case e := <-in: // another event is before the caller's next observation
				v, err := typeurl.UnmarshalAny(e.Event)
				if m, ok := v.(*apievents.NamespaceUpdate); err == nil && ok && m.Name == mark {
					return nil
				}
			}
		}
	}
}

func (r *Runtime) forward(ctx context.Context, in <-chan *events.Envelope, errs <-chan error, out chan<- workload.Event) {
	send := func(e workload.Event) {
		select {
		case out <- e:
		case <-ctx.Done():
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-errs:
			if ctx.Err() == nil {
				r.log.Warn("the event stream from containerd broke", "error", err)
				send(workload.Event{Kind: workload.EventLost})
			}
			return
		case e := <-in:
			if ev, ok := r.translate(ctx, e); ok {
				send(ev)
			}
		}
	}
}

// translate drops what is not about a container of ours as a whole.
func (r *Runtime) translate(ctx context.Context, e *events.Envelope) (workload.Event, bool) {
	v, err := typeurl.UnmarshalAny(e.Event)
	if err != nil {
		r.log.Warn("an event that cannot be read", "topic", e.Topic, "error", err)
		return workload.Event{}, false
	}
	var ev workload.Event
	switch t := v.(type) {
	case *apievents.TaskExit:
		if t.ID != t.ContainerID { // a probe's process
			return ev, false
		}
		ev = workload.Event{Kind: workload.EventExit, ID: t.ContainerID}
	case *apievents.TaskOOM:
		ev = workload.Event{Kind: workload.EventOOM, ID: t.ContainerID}
	case *apievents.TaskPaused: // we never do
		ev = workload.Event{Kind: workload.EventChanged, ID: t.ContainerID}
	case *apievents.ContainerCreate:
		ev = workload.Event{Kind: workload.EventChanged, ID: t.ID}
	case *apievents.ContainerUpdate:
		ev = workload.Event{Kind: workload.EventChanged, ID: t.ID}
	case *apievents.ContainerDelete:
		ev = workload.Event{Kind: workload.EventChanged, ID: t.ID}
	default:
		return ev, false
	}
	if ev.Kind == workload.EventChanged && r.doings.done(e.Topic, ev.ID) {
		return ev, false
	}
	box, err := r.client.ContainerService().Get(ctx, ev.ID)
	if errdefs.IsNotFound(err) {
		return ev, true // removed meanwhile; a hint too many does no harm
	}
	return ev, err == nil && r.mine(box) && box.Labels[owned.LabelHook] == ""
}

// maxDoings bounds what is remembered while nobody reads events.
const maxDoings = 1000

// doings are changes of this process that containerd will tell of, so that what others do stands out. One that is not
// known causes a look too many.
type doings struct {
	mu sync.Mutex
	n  map[string]int
}

// expect says that a change follows. One that fails is taken back by done.
func (d *doings) expect(topic, id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.n == nil || len(d.n) >= maxDoings {
		d.n = map[string]int{}
	}
	d.n[topic+" "+id]++
}

// done tells whether a change was expected, and expects it no longer.
func (d *doings) done(topic, id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	k := topic + " " + id
	if d.n[k] == 0 {
		return false
	}
	if d.n[k]--; d.n[k] == 0 {
		delete(d.n, k)
	}
	return true
}

// createBox, updateBox and deleteBox change a container's record.
func (r *Runtime) createBox(ctx context.Context, box containers.Container) error {
	r.doings.expect("/containers/create", box.ID)
	_, err := r.client.ContainerService().Create(ctx, box)
	if err != nil {
		r.doings.done("/containers/create", box.ID)
	}
	return err
}

func (r *Runtime) updateBox(ctx context.Context, box containers.Container, fields ...string) error {
	r.doings.expect("/containers/update", box.ID)
	_, err := r.client.ContainerService().Update(ctx, box, fields...)
	if err != nil {
		r.doings.done("/containers/update", box.ID)
	}
	return err
}

// deleteBox takes none for deleted.
func (r *Runtime) deleteBox(ctx context.Context, id string) error {
	r.doings.expect("/containers/delete", id)
	err := r.client.ContainerService().Delete(ctx, id)
	if err != nil {
		r.doings.done("/containers/delete", id)
	}
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}
