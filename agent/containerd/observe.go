package containerd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"

	"github.com/longshore-dev/longshore/agent/containerd/cgroup"
	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/containerd/process"
	"github.com/longshore-dev/longshore/agent/containerd/records"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Observe lists this device's containers and the projects that own anything, fresh from containerd.
func (r *Runtime) Observe(ctx context.Context) (workload.Observed, error) {
	ctx = r.in(ctx)
	var out workload.Observed
	if err := r.claim.Hold(ctx); err != nil {
		return out, err
	}
	early := r.early.waiting()
	ctrs, err := r.records.Observed(ctx)
	if err != nil {
		return out, fmt.Errorf("list containers: %w", failure.Classify(err))
	}
	ctrs = slices.DeleteFunc(ctrs, func(b containers.Container) bool { return b.Labels[owned.LabelHook] != "" }) // part of another container's start
	var ids []string
	for _, b := range ctrs {
		ids = append(ids, b.ID)
	}
	for _, id := range early {
		if !slices.Contains(ids, id) {
			r.early.take(id) // another program deleted it: its place is free
		}
	}
	running, err := r.tasks.List(ctx, ids)
	if err != nil {
		return out, fmt.Errorf("list tasks: %w", failure.Classify(err))
	}
	projects, active, mute := map[string]bool{}, r.o.Networks.ActiveBackends(), map[string]bool{}
	for _, b := range ctrs {
		number := func(label string) uint64 {
			n, err := strconv.ParseUint(b.Labels[label], 10, 64)
			if err != nil {
				r.log.Warn("a container with a broken label", "container", b.ID, "label", label, "value", b.Labels[label])
			}
			return n
		}
		o := workload.Observation{
			ID: b.ID, Generation: number(owned.LabelGeneration), Project: b.Labels[owned.LabelProject], Deployment: b.Labels[owned.LabelDeployment], Component: b.Labels[owned.LabelComponent],
			Service: b.Labels[owned.LabelService], Replica: int(number(owned.LabelReplica)), Hash: b.Labels[owned.LabelHash], Image: b.Image, Status: workload.Created,
			Active: active[b.ID],
		}
		_, prepared := r.early.Load(b.ID)
		switch t, ok := running[b.ID]; {
		case ok && (t == nil || t.Status == task.Status_UNKNOWN):
			mute[b.ID] = true
			o = r.lastKnown.recall(o)
		case prepared: // it stays created, whatever became of the task: nothing ran in it
		case t != nil:
			describe(&o, t)
			if at := o.StartedAt.Add(r.waited(b.ID)); !o.StartedAt.IsZero() && at.Before(r.o.Now()) { // otherwise the clock was set meanwhile
				o.StartedAt = at
			}
			if o.Status == workload.Exited && o.ExitCode != 0 {
				o.Lack = r.lack(b)
			}
			r.watchOutput(b, o)
		}
		projects[o.Project] = true
		out.Containers = append(out.Containers, o)
	}
	for _, id := range r.lastKnown.note(out.Containers, mute) {
		r.log.Warn("a container's shim does not answer; its last known state is used", "container", id)
	}
	owners, err := r.logs.Projects()
	if err != nil {
		return out, fmt.Errorf("list projects: %w", err)
	}
	for _, p := range owners {
		projects[p] = true
	}
	out.Projects = slices.Sorted(maps.Keys(projects))
	return out, nil
}

// watchOutput watches a container's output when a run of it is observed for the first time.
func (r *Runtime) watchOutput(b containers.Container, o workload.Observation) {
	if o.Status != workload.Running || r.logs.Watched(o.ID, o.Run) {
		return
	}
	if rec, err := records.Of(b); err == nil {
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

// lastKnown is the last state of containers that their shims returned.
type lastKnown struct {
	mu     sync.Mutex
	seen   map[string]workload.Observation
	silent map[string]bool
}

// recall completes an observation of a container whose shim does not answer with its last known state.
func (s *lastKnown) recall(o workload.Observation) workload.Observation {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, ok := s.seen[o.ID]
	if !ok {
		return o
	}
	o.Status, o.PID, o.Run, o.StartedAt, o.Began = last.Status, last.PID, last.Run, last.StartedAt, last.Began
	o.ExitCode, o.End, o.ExitedAt = last.ExitCode, last.End, last.ExitedAt
	return o
}

// note remembers the current observations, and returns the containers whose shims stopped active since the last call.
func (s *lastKnown) note(all []workload.Observation, silent map[string]bool) (since []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = map[string]workload.Observation{}
	for _, o := range all {
		s.seen[o.ID] = o
	}
	for id := range silent {
		if !s.silent[id] {
			since = append(since, id)
		}
	}
	s.silent = silent
	return since
}

// lack reads the control group of a container that exited with an error; the group exists until the task is deleted.
func (r *Runtime) lack(b containers.Container) workload.Lack {
	rec, err := records.Of(b)
	if err != nil {
		return ""
	}
	w := rec.Container.Service.Resources
	switch group := r.group(w, b.ID); {
	case cgroup.OOMKills(group) > 0:
		return workload.LackMemory
	case w.PIDs > 0 && cgroup.ForksRefused(group) > 0:
		return workload.LackProcesses
	}
	return ""
}
