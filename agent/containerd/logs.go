package containerd

import (
	"context"
	"fmt"
	"io"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/logs"
	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Logs opens what a container and its predecessors wrote, see [logs.Keeper.Open].
func (r *Runtime) Logs(ctx context.Context, id string, o workload.LogOptions) (io.ReadCloser, error) {
	ctr, _, err := r.records.Own(r.in(ctx), id)
	if err != nil {
		return nil, fmt.Errorf("read the output of container %s: %w", id, failure.Classify(err))
	}
	l, err := r.logs.Open(ctx, replicaOf(ctr.Labels), o)
	if err != nil {
		return nil, fmt.Errorf("read the output of container %s: %w", id, err)
	}
	return l, nil
}

// replicaOf names the log of a container with these labels.
func replicaOf(labels map[string]string) logs.Replica {
	return logs.Replica{Project: labels[owned.LabelProject], Service: labels[owned.LabelService], Replica: labels[owned.LabelReplica]}
}
