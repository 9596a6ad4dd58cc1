package containerd

import (
	"context"
	"fmt"
	"time"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/features"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Ready makes an image that is on the device safe to run.
func (r *Runtime) Ready(ctx context.Context, i workload.Image) error {
	_, err := r.images.Ready(r.in(ctx), i)
	return failure.Classify(err)
}

// SetStartLimit bounds what comes before the pre_start of a start, and again what follows it. To be set before the first start.
func (r *Runtime) SetStartLimit(d time.Duration) { r.startLimit = d }

// Features are what containerd and the kernel can do.
func (r *Runtime) Features(ctx context.Context) (features.Features, error) {
	f, err := r.features.Find(r.in(ctx))
	if err != nil {
		return f, fmt.Errorf("ask containerd what it can do: %w", err)
	}
	return f, nil
}
