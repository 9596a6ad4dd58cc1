package tasks

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	api "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/longshore-dev/longshore/agent/containerd/deadline"
	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// leftoverWait is how long containerd may take to roll back a call whose client was killed.
	leftoverWait  = 10 * time.Second
	leftoverPause = 20 * time.Millisecond
	// bundleStable is the pause after which a half-deleted bundle is not a deletion in progress: about two seconds have passed by then.
	bundleStable = time.Second
)

// IO is a task's input and output.
type IO struct {
	Terminal      bool
	Stdin, Stdout string // paths or URLs as containerd takes them; "": none
}

// stderr is the standard error: the same file as the output, and none with a terminal. It is written as another path to the file: the
// shim closes a path that both streams have as soon as the output ends, and the rest of the errors would be lost.
func (t IO) stderr() string {
	if t.Terminal {
		return ""
	}
	if !filepath.IsAbs(t.Stdout) {
		return t.Stdout
	}
	dir, name := filepath.Split(t.Stdout)
	return dir + "./" + name
}

// Run creates and starts a task, and returns its process. Containers of a group share a shim; "": none.
//
// containerd may still have the rest of an interrupted call: it rolls such calls back some time after the connection broke, and may
// then remove the new task's directory instead of the old one's; it completes an interrupted deletion only on the next request.
// So Run tries again for a while, and then removes the bundle that blocks it.
func (t *Tasks) Run(ctx context.Context, group, id string, layer []mount.Mount, streams IO) (pid uint32, err error) {
	limit := time.After(leftoverWait)
	last := false
	for pause := leftoverPause; ; pause *= 2 {
		pid, err := t.begin(ctx, group, id, layer, streams)
		if err == nil {
			return pid, nil
		}
		if errdefs.IsDeadlineExceeded(err) && ctx.Err() == nil && t.endStuckShims() {
			continue
		}
		if !isLeftover(err, pause) {
			return 0, err
		}
		if last {
			return 0, failure.As(fault.ErrTemporary, err)
		}
		bundle := t.bundleIn(err, id)
		t.log.Debug("containerd still holds an earlier task", "container", id, "error", err)
		if bundle != "" && pause >= bundleStable && halfDeleted(bundle) {
			err := t.removeBundle(ctx, id, bundle)
			if err == nil {
				continue
			}
			t.log.Debug("cannot remove the bundle of an earlier task yet", "container", id, "error", err)
		}
		select {
		case <-time.After(pause):
		case <-limit:
			if bundle == "" {
				return 0, failure.As(fault.ErrTemporary, err)
			}
			if uerr := t.removeBundle(ctx, id, bundle); uerr != nil {
				return 0, failure.As(fault.ErrTemporary, fmt.Errorf("%w; it cannot be removed: %w", err, uerr))
			}
			last = true
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// isLeftover reports whether an earlier task of the same name caused an error. A shim that does not start at all, one that exits because the
// task before this one failed, or a directory that disappeared may have other causes: these errors are retried twice.
func isLeftover(err error, pause time.Duration) bool {
	text := err.Error()
	return errdefs.IsAlreadyExists(err) || strings.Contains(text, syscall.EEXIST.Error()) ||
		pause <= 2*leftoverPause && (strings.Contains(text, "failed to start shim") || strings.Contains(text, shimEnded) ||
			strings.Contains(text, "unable to retrieve OCI runtime error"))
}

// begin creates a task and starts it. It removes a task that did not start.
func (t *Tasks) begin(ctx context.Context, group, id string, layer []mount.Mount, streams IO) (pid uint32, err error) {
	if err := t.Create(ctx, group, id, layer, streams); err != nil {
		return 0, err
	}
	return t.Start(ctx, id)
}

// discard removes a task that could not be created or started.
func (t *Tasks) discard(ctx context.Context, id string) {
	ctx, cancel := deadline.ForCleanup(ctx)
	defer cancel()
	if err := t.End(ctx, id); err != nil {
		t.log.Warn("clean up after a container that did not start", "container", id, "error", err)
	}
}

// Create creates a task that [Tasks.Start] starts; [Tasks.Run] does both. Nothing is left of a task that could not be created.
func (t *Tasks) Create(ctx context.Context, group, id string, layer []mount.Mount, streams IO) error {
	turn, err := t.shims.enter(ctx, group)
	if err != nil {
		return err
	}
	defer turn.leave()
	stop := t.leaveEarly(id, turn)
	_, err = t.client.Create(ctx, &api.CreateTaskRequest{
		ContainerID: id, Rootfs: mount.ToProto(layer),
		Terminal: streams.Terminal, Stdin: streams.Stdin, Stdout: streams.Stdout, Stderr: streams.stderr(),
	})
	stop()
	if err != nil {
		t.discard(ctx, id)
		return errgrpc.ToNative(err)
	}
	turn.created()
	return nil
}

// Start starts a created task, and returns its process. Nothing is left of a task that could not be started.
func (t *Tasks) Start(ctx context.Context, id string) (pid uint32, err error) {
	// An agent that is stopped at this moment would otherwise end a container that has just come up.
	starting, begun := deadline.Finishing(ctx)
	defer begun()
	res, err := t.client.Start(starting, &api.StartRequest{ContainerID: id})
	if err != nil {
		t.discard(ctx, id)
		return 0, errgrpc.ToNative(err)
	}
	return res.Pid, nil
}
