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
	// leftoverWait is how long containerd may take to undo a call whose client was killed.
	leftoverWait  = 10 * time.Second
	leftoverPause = 20 * time.Millisecond
	// bundleStill is the pause after which a bundle that could not be deleted is not seen again by chance: with those
	// before it, about as much time again has passed.
	bundleStill = time.Second
)

// IO is where a task's output goes and its input comes from.
type IO struct {
	Terminal      bool
	Stdin, Stdout string // paths or URLs as containerd takes them; "": none
}

// stderr is where errors go: with all else, and a terminal has no other. The file has another name there: the shim closes a
// file that both go to as soon as the output ends, and what is still to be written of the errors is lost.
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

// Run makes and starts a task, and returns its process. Containers of a group share a shim; "" is none.
//
// containerd may still hold what a killed call left: it undoes such calls on its own, but some time after the connection broke, and
// then may take the new task's directory for the old one's; and a deletion that was cut off it does not finish unless it is asked
// again. What it never undoes is taken out of its way.
func (t *Tasks) Run(ctx context.Context, group, id string, layer []mount.Mount, streams IO) (pid uint32, err error) {
	limit := time.NewTimer(leftoverWait)
	defer limit.Stop()
	last := false
	for pause := leftoverPause; ; pause *= 2 {
		var pid uint32
		err := t.shims.begin(ctx, group, func() (err error) {
			pid, err = t.begin(ctx, id, layer, streams)
			return err
		})
		if err == nil {
			return pid, nil
		}
		if errdefs.IsDeadlineExceeded(err) && ctx.Err() == nil && t.endStuckShims() {
			continue
		}
		if !leftover(err, pause) {
			return 0, err
		}
		if last {
			return 0, failure.As(fault.ErrTemporary, err)
		}
		bundle := t.bundleIn(err, id)
		t.log.Debug("containerd still holds an earlier task", "container", id, "error", err)
		if bundle != "" && pause >= bundleStill && halfDeleted(bundle) {
			err := t.unblock(ctx, id, bundle)
			if err == nil {
				continue
			}
			t.log.Debug("what an earlier task left cannot be removed yet", "container", id, "error", err)
		}
		next := time.NewTimer(pause)
		select {
		case <-next.C:
		case <-limit.C:
			next.Stop()
			if bundle == "" {
				return 0, failure.As(fault.ErrTemporary, err)
			}
			if uerr := t.unblock(ctx, id, bundle); uerr != nil {
				return 0, failure.As(fault.ErrTemporary, fmt.Errorf("%w; it cannot be removed: %w", err, uerr))
			}
			last = true
		case <-ctx.Done():
			next.Stop()
			return 0, ctx.Err()
		}
	}
}

// leftover tells whether an earlier task of the same name is behind an error. A shim that does not start at all, or a
// directory that vanished under the new task, may have other reasons: they get two more tries.
func leftover(err error, pause time.Duration) bool {
	text := err.Error()
	return errdefs.IsAlreadyExists(err) || strings.Contains(text, syscall.EEXIST.Error()) ||
		pause <= 2*leftoverPause && (strings.Contains(text, "failed to start shim") || strings.Contains(text, "unable to retrieve OCI runtime error"))
}

// begin makes a task and starts it; what could not be started does not stay.
func (t *Tasks) begin(ctx context.Context, id string, layer []mount.Mount, streams IO) (pid uint32, err error) {
	defer func() {
		if err == nil {
			return
		}
		ctx, cancel := deadline.After(ctx)
		defer cancel()
		if cerr := t.End(ctx, id); cerr != nil {
			t.log.Warn("clean up after a container that did not start", "container", id, "error", cerr)
		}
	}()
	_, err = t.client.Create(ctx, &api.CreateTaskRequest{
		ContainerID: id, Rootfs: mount.ToProto(layer),
		Terminal: streams.Terminal, Stdin: streams.Stdin, Stdout: streams.Stdout, Stderr: streams.stderr(),
	})
	if err != nil {
		return 0, errgrpc.ToNative(err)
	}
	res, err := t.client.Start(ctx, &api.StartRequest{ContainerID: id})
	if err != nil {
		return 0, errgrpc.ToNative(err)
	}
	return res.Pid, nil
}
