// Package wipe deletes all that a device has: its applications with containers, networks, volumes and images, the agent's data, and its
// credentials and configuration. It is for a device that leaves its fleet; nothing else in the agent deletes a volume without being
// asked to. The entry point is [Device.Wipe]; TestKilledAnywhere holds that a wipe goes on after it was interrupted, TestMounts that it
// deletes nothing of others.
package wipe

import (
	"context"
	"errors"
	"fmt"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Runtime is what has the applications.
type Runtime interface {
	Observe(ctx context.Context) (workload.Observed, error)
	Remove(ctx context.Context, id string) error
	Teardown(ctx context.Context, project string) error
	StoredVolumes(ctx context.Context) ([]workload.StoredVolume, error)
	TakeVolume(ctx context.Context, project, name string) (free func(context.Context) error, err error)
	Collect(ctx context.Context, keep []workload.Image) error
}

// Applications deletes everything, as far as it can: after an error it goes on with the next thing. It may be repeated.
func Applications(ctx context.Context, r Runtime) error {
	have, err := r.Observe(ctx)
	if err != nil {
		return fmt.Errorf("wipe: %w", err)
	}
	var errs []error
	note := func(err error) {
		if err != nil && !errors.Is(err, fault.ErrNotFound) {
			errs = append(errs, err)
		}
	}
	for _, c := range have.Containers {
		note(r.Remove(ctx, c.ID))
	}
	for _, project := range have.Projects {
		note(r.Teardown(ctx, project))
	}
	stored, err := r.StoredVolumes(ctx)
	note(err)
	for _, v := range stored {
		free, err := r.TakeVolume(ctx, v.Project, v.Name)
		note(err)
		if err == nil {
			note(free(ctx))
		}
	}
	note(r.Collect(ctx, nil))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("wipe: %w", err)
	}
	return nil
}
