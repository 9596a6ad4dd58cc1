package containerd

import (
	"context"
	"time"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Ready makes an image that is on the device safe to run.
func (r *Runtime) Ready(ctx context.Context, i workload.Image) error {
	_, err := r.images.Ready(r.in(ctx), i)
	return failure.Classify(err)
}

// SetStartLimit bounds what comes before the pre_start of a start, and again what follows it. To be set before the first start.
func (r *Runtime) SetStartLimit(d time.Duration) { r.startLimit = d }
