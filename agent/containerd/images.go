package containerd

import (
	"context"
	"fmt"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Pull makes an image present and durable, see [images.Store.Pull].
func (r *Runtime) Pull(ctx context.Context, i workload.Image, progress func(done, total int64)) (workload.ImageInfo, error) {
	return r.images.Pull(r.in(ctx), i, progress)
}

// Collect removes images and unpacked layers that are not in keep, partial ones too, and the layers of incomplete containers. Layers
// of existing containers stay.
func (r *Runtime) Collect(ctx context.Context, keep []workload.Image) error {
	ctx = r.in(ctx)
	if err := r.claim.Hold(ctx); err != nil {
		return err
	}
	r.images.Keep(keep)
	err := r.collectLayers(ctx, "") // before images are locked: a Create may hold its container and wait for its image
	if err == nil {
		err = r.images.Collect(ctx)
	}
	if err != nil {
		return fmt.Errorf("collect unused images: %w", failure.Classify(err))
	}
	return nil
}
