// Package tasks runs the tasks of containers and processes in them, and handles the leftovers of containerd, shims and runc that
// were killed or do not answer. It identifies containers by their ids only; the caller checks their owner.
package tasks

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	api "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// KillWait is how long a process may take to end after SIGKILL; longer means that it hangs in the kernel.
	KillWait = 15 * time.Second
	// deleteTries is how often to delete a task whose shim ends meanwhile.
	deleteTries = 3
	// shimEnded is in containerd's error when a shim has ended before it answered: ttrpc.ErrClosed.
	shimEnded = "ttrpc: closed"
)

// Tasks are the tasks of one namespace of containerd. Its methods may be called from several goroutines, with that namespace in their
// contexts; the caller serializes calls that change one container. Errors are containerd's own, for failure.Classify.
type Tasks struct {
	client    api.TasksClient
	namespace string
	pipes     string // folder of the pipes of processes
	log       *slog.Logger
	shims     *shims
}

// New returns the tasks of a namespace. The pipes of processes are created below runDir.
func New(client api.TasksClient, namespace, runDir string, log *slog.Logger) *Tasks {
	return &Tasks{client: client, namespace: namespace, pipes: filepath.Join(runDir, "exec"), log: log, shims: newShims()}
}

// Status returns the status of a task, errdefs.ErrNotFound if there is none; see also [IsShimTimeout].
func (t *Tasks) Status(ctx context.Context, id string) (task.Status, error) {
	got, err := t.client.Get(ctx, &api.GetRequest{ContainerID: id})
	if err != nil {
		return task.Status_UNKNOWN, errgrpc.ToNative(err)
	}
	return got.Process.Status, nil
}

// PID returns the first process of a running container. fault.ErrConflict: it does not run.
func (t *Tasks) PID(ctx context.Context, id string) (uint32, error) {
	got, err := t.client.Get(ctx, &api.GetRequest{ContainerID: id})
	if err = errgrpc.ToNative(err); errdefs.IsNotFound(err) || err == nil && got.Process.Status == task.Status_STOPPED {
		return 0, fmt.Errorf("it is not running: %w", fault.ErrConflict)
	}
	if err != nil {
		return 0, err
	}
	if got.Process.Status != task.Status_RUNNING {
		return 0, fmt.Errorf("it is %s: %w", strings.ToLower(got.Process.Status.String()), fault.ErrConflict)
	}
	return got.Process.Pid, nil
}

// Created is when runc had created the first process of a container.
func (t *Tasks) Created(id string) (time.Time, error) {
	info, err := os.Stat(filepath.Join(runcRoot, t.namespace, id, "state.json"))
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// Resume resumes a paused task.
func (t *Tasks) Resume(ctx context.Context, id string) error {
	_, err := t.client.Resume(ctx, &api.ResumeTaskRequest{ContainerID: id})
	return errgrpc.ToNative(err)
}

// Forget removes a group of [Tasks.Run] that no longer exists.
func (t *Tasks) Forget(group string) { t.shims.forget(group) }

// Stop sends a task a signal, and SIGKILL after grace. It returns when the task has ended; a missing one is not an error.
func (t *Tasks) Stop(ctx context.Context, id string, sig syscall.Signal, grace time.Duration) error {
	gone, stopWaiting := t.wait(ctx, id)
	defer stopWaiting()
	if err := t.kill(ctx, id, sig); err != nil {
		return err
	}
	if done, err := waitFor(ctx, grace, gone); done || err != nil {
		return err
	}
	return t.forceKill(ctx, id, gone)
}

// forceKill kills a task and waits until it is gone.
func (t *Tasks) forceKill(ctx context.Context, id string, gone <-chan error) error {
	if err := t.kill(ctx, id, syscall.SIGKILL); err != nil {
		return err
	}
	done, err := waitFor(ctx, KillWait, gone)
	if err == nil && !done {
		err = fmt.Errorf("its process did not end %v after SIGKILL: %w", KillWait, fault.ErrTemporary)
	}
	return err
}

// wait sends when a task has ended. The returned function stops waiting, and returns when that is done.
func (t *Tasks) wait(ctx context.Context, id string) (<-chan error, func()) {
	ctx, cancel := context.WithCancel(ctx)
	gone, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		_, err := t.client.Wait(ctx, &api.WaitRequest{ContainerID: id})
		if err = errgrpc.ToNative(err); errdefs.IsNotFound(err) {
			err = nil
		}
		gone <- err
	}()
	return gone, func() { cancel(); <-ended }
}

// waitFor waits for gone, at most d. false, nil: not yet.
func waitFor(ctx context.Context, d time.Duration, gone <-chan error) (bool, error) {
	select {
	case err := <-gone:
		return err == nil, err
	case <-time.After(d):
		return false, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// kill sends a task a signal. An ended task is not an error.
func (t *Tasks) kill(ctx context.Context, id string, sig syscall.Signal) error {
	_, err := t.client.Kill(ctx, &api.KillRequest{ContainerID: id, Signal: uint32(sig)})
	if err = errgrpc.ToNative(err); errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// End kills a task if necessary and deletes it. A missing task is not an error.
func (t *Tasks) End(ctx context.Context, id string) error {
	status, err := t.Status(ctx, id)
	gone := errdefs.IsNotFound(err)
	if err != nil && !gone {
		return err
	}
	if !gone && status != task.Status_STOPPED {
		if status == task.Status_PAUSED {
			if err := t.Resume(ctx, id); err != nil {
				return err
			}
		}
		ended, stopWaiting := t.wait(ctx, id)
		defer stopWaiting()
		if err := t.forceKill(ctx, id, ended); err != nil {
			return err
		}
	}
	// Also when there is no task: an interrupted deletion leaves its shim behind until it is requested again.
	for range deleteTries {
		_, err = t.client.Delete(ctx, &api.DeleteTaskRequest{ContainerID: id})
		if err = errgrpc.ToNative(err); errdefs.IsNotFound(err) {
			return nil
		}
		// A shim exits with its last task, maybe before it answers: the next call finds the rest.
		if err == nil || !strings.Contains(err.Error(), shimEnded) {
			return err
		}
	}
	return err
}
