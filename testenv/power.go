package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// PowerOff ends the daemon, its shims and every container as a cut of the power does, and takes away what a machine loses
// with it: tasks, their mounts, the runtime's state and the cgroups. What is on the disk stays; Start boots again.
func (d *Daemon) PowerOff(ctx context.Context) error {
	d.Kill()
	tasks, err := filepath.Glob(filepath.Join(d.State, "io.containerd.runtime.v2.task", "*", "*"))
	errs := []error{err, killMarked(ctx, d.Dir, "")}
	for _, task := range tasks {
		removeContainer(ctx, filepath.Base(filepath.Dir(task)), filepath.Base(task))
	}
	errs = append(errs, UnmountBelow(d.State))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("power off: %w", err)
	}
	for _, task := range tasks {
		if err := os.RemoveAll(filepath.Join(runcState, filepath.Base(filepath.Dir(task)))); err != nil {
			return err
		}
	}
	return os.RemoveAll(d.State)
}
