package containerd

import (
	"context"
	"fmt"

	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/containerd/runspec"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// join finds the namespaces of other services that a container shares; the first replica of each must be running.
func (r *Runtime) join(ctx context.Context, project string, c workload.Container) (runspec.Joined, error) {
	var j runspec.Joined
	ns := c.Service.Namespaces
	for _, want := range []struct {
		path    *string
		service string
		file    string
	}{
		{&j.PID, ns.PID.Service(), "pid"},
		{&j.IPC, ns.IPC.Service(), "ipc"},
	} {
		if want.service == "" {
			continue
		}
		pid, err := r.firstOfService(ctx, project, want.service)
		if err != nil {
			return j, fmt.Errorf("share the %s namespace of service %s: %w", want.file, want.service, err)
		}
		*want.path = fmt.Sprintf("/proc/%d/ns/%s", pid, want.file)
		if want.path == &j.IPC {
			if j.Shm, err = r.volumes.ShareShm(c.ID, pid); err != nil {
				return j, fmt.Errorf("share /dev/shm of service %s: %w", want.service, err)
			}
		}
	}
	return j, nil
}

// firstOfService is the process of a running container of a service's first replica, the active backend if possible.
func (r *Runtime) firstOfService(ctx context.Context, project, service string) (uint32, error) {
	ctrs, err := r.records.List(ctx, owned.LabelProject, project, owned.LabelService, service, owned.LabelReplica, "1")
	if err != nil {
		return 0, err
	}
	active := r.o.Networks.ActiveBackends()
	for _, wanted := range []bool{true, false} { // the active backend first
		for _, b := range ctrs {
			if b.Labels[owned.LabelHook] != "" || active[b.ID] != wanted {
				continue
			}
			if pid, err := r.tasks.PID(ctx, b.ID); err == nil {
				return pid, nil
			}
		}
	}
	return 0, fmt.Errorf("it does not run: %w", fault.ErrTemporary)
}
