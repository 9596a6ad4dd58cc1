package containerd

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/typeurl/v2"

	"github.com/longshore-dev/longshore/agent/containerd/cgroup"
	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/probe"
	"github.com/longshore-dev/longshore/agent/containerd/runspec"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Probe probes a running container once; the caller's context bounds it. HTTP and TCP probes are sent from inside its network namespace, to the loopback addresses first
// and then to its others; the image needs no tools for them.
func (r *Runtime) Probe(ctx context.Context, id string, p workload.Probe) error {
	if err := r.probe(r.in(ctx), id, p); err != nil {
		return fmt.Errorf("probe container %s: %w", id, failure.Classify(err))
	}
	return nil
}

func (r *Runtime) probe(ctx context.Context, id string, p workload.Probe) error {
	if len(p.Exec) == 0 && p.HTTP == nil && p.TCP == 0 {
		return fmt.Errorf("an empty probe: %w", fault.ErrInvalid)
	}
	ctr, rec, err := r.records.Own(ctx, id)
	switch {
	case err != nil:
		return err
	case len(p.Exec) > 0:
		return r.probeExec(ctx, ctr, rec.Container.Service.Resources, p.Exec)
	case p.HTTP != nil:
		return probe.HTTP(ctx, rec.NetNS, *p.HTTP)
	}
	return probe.TCP(ctx, rec.NetNS, p.TCP)
}

func (r *Runtime) probeExec(ctx context.Context, ctr containers.Container, limits workload.Resources, argv []string) (err error) {
	group := r.group(limits, ctr.ID)
	before := cgroup.ForksRefused(group)
	defer func() { err = cgroup.PIDLimitError(err, limits, group, before) }()
	var s oci.Spec
	if err := typeurl.UnmarshalTo(ctr.Spec, &s); err != nil {
		return err
	}
	return r.tasks.Try(ctx, ctr.ID, runspec.Process(&s, argv))
}
