package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/containers"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/containerd/cgroup"
	"github.com/longshore-dev/longshore/agent/containerd/deadline"
	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/containerd/records"
	"github.com/longshore-dev/longshore/agent/containerd/runspec"
	"github.com/longshore-dev/longshore/agent/containerd/tasks"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// preStart runs the init containers of a start, one after another.
func (r *Runtime) preStart(ctx context.Context, p *workload.Project, c workload.Container, at workload.Attached, labels map[string]string) error {
	for n, h := range c.Service.PreStart {
		if !h.PerReplica && c.Replica > 1 {
			continue
		}
		if err := r.runInitContainer(ctx, p, c, n, at, labels); err != nil {
			return fmt.Errorf("pre_start %d: %w", n+1, err)
		}
	}
	return nil
}

// initContainerID names the n-th init container of a container.
func initContainerID(id string, n int) string {
	sum := sha256.Sum256([]byte(id))
	return "init-" + strconv.Itoa(n) + "-" + hex.EncodeToString(sum[:16])
}

// initContainer is the n-th init container of c, in its networks and with its volumes. It has c's service name and replica, so that it
// finds its anonymous volumes and writes to its log.
func initContainer(c workload.Container, n int) workload.Container {
	s := c.Service.PreStart[n].Service
	s.Name = c.Service.Name
	for _, m := range c.Service.Mounts {
		if !slices.ContainsFunc(s.Mounts, func(own workload.Mount) bool { return filepath.Clean(own.Target) == filepath.Clean(m.Target) }) {
			s.Mounts = append(slices.Clip(s.Mounts), m)
		}
	}
	s.Namespaces.Network, s.Namespaces.User = c.Service.Namespaces.Network, c.Service.Namespaces.User
	s.PreStart, s.PostStart, s.PreStop = nil, nil, nil
	return workload.Container{ID: initContainerID(c.ID, n), Service: s, Replica: c.Replica, Hash: c.Hash}
}

func (r *Runtime) runInitContainer(ctx context.Context, p *workload.Project, c workload.Container, n int, at workload.Attached, labels map[string]string) (err error) {
	f := initContainer(c, n)
	if err := r.removeInitContainer(ctx, f.ID); err != nil { // left by a kill
		return err
	}
	defer func() {
		ctx, cancel := deadline.ForCleanup(ctx)
		defer cancel()
		err = errors.Join(err, r.removeInitContainer(ctx, f.ID))
	}()
	streams, begin, err := r.createInitContainer(ctx, p, c, f, at, labels)
	if err != nil {
		return err
	}
	layer, err := r.snapshots().Mounts(ctx, f.ID)
	if err != nil {
		return err
	}
	if _, err := r.tasks.Run(ctx, runspec.Group(p.Name, f.Service), f.ID, layer, streams); err != nil {
		return err
	}
	code, err := r.tasks.Exit(ctx, f.ID)
	if err != nil || code == 0 {
		return err
	}
	if err := r.removeInitContainer(ctx, f.ID); err != nil { // it waits until the shim has written all output
		return err
	}
	file, err := r.logs.File(replicaOf(labels))
	if err != nil {
		return err
	}
	return hookError(code, writtenSince(file, begin))
}

// createInitContainer creates the container; begin is the size of the log before.
func (r *Runtime) createInitContainer(ctx context.Context, p *workload.Project, c, f workload.Container, at workload.Attached, labels map[string]string) (streams tasks.IO, begin int64, err error) {
	img, err := r.imageOf(ctx, p, f.Service)
	if err != nil {
		return streams, 0, err
	}
	layer, err := r.freshLayer(ctx, p, f, img)
	if err != nil {
		return streams, 0, err
	}
	ctr := containers.Container{
		ID: f.ID, Labels: r.records.Labels(p, f), Image: f.Service.Image.Name(), Snapshotter: r.o.Snapshotter, SnapshotKey: f.ID,
	}
	ctr.Labels[owned.LabelHook] = c.ID
	if ctr.Runtime, err = r.runtimeOf(f.Service); err != nil {
		return streams, 0, err
	}
	j, err := r.join(ctx, p.Name, f)
	if err != nil {
		return streams, 0, err
	}
	if ctr.Spec, err = r.specify(ctx, p, f, img, at, layer, j, ctr); err != nil {
		return streams, 0, err
	}
	if err := r.volumes.Materialise(ctx, p, f); err != nil {
		return streams, 0, err
	}
	if err := r.records.Create(ctx, ctr, records.Record{Container: f, NetNS: at.NetNS}); err != nil {
		return streams, 0, err
	}
	if streams, err = r.taskIO(f.Service, f.ID, labels); err != nil {
		return streams, 0, err
	}
	file, err := r.logs.File(replicaOf(labels))
	if err != nil {
		return streams, 0, err
	}
	if info, err := os.Stat(file); err == nil {
		begin = info.Size()
	}
	return streams, begin, nil
}

// writtenSince returns the end of the text that was appended to a file since it had the size begin.
func writtenSince(file string, begin int64) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	if info.Size() < begin { // it was rotated
		begin = 0
	}
	begin = max(begin, info.Size()-maxTail)
	b, err := io.ReadAll(io.NewSectionReader(f, begin, maxTail))
	if err != nil {
		return ""
	}
	return lastLines(string(b))
}

// hookError is an error with an exit code and the last output.
func hookError(code int, printed string) error {
	if printed == "" {
		return fmt.Errorf("it exited with %d", code)
	}
	return fmt.Errorf("it exited with %d%s%s", code, workload.OutputLabel, printed)
}

// postStart runs the commands after a start. When one fails, the container is stopped.
func (r *Runtime) postStart(ctx context.Context, c workload.Container) error {
	for n, h := range c.Service.PostStart {
		err := r.runHook(ctx, c, h, 0)
		if err == nil {
			continue
		}
		err = fmt.Errorf("post_start %d (%s): %w", n+1, strings.Join(h.Command, " "), err)
		ctx, cancel := deadline.ForCleanup(ctx)
		defer cancel()
		return errors.Join(err, r.tasks.End(ctx, c.ID))
	}
	return nil
}

// preStop runs the commands before the stop signal, and returns how much of the grace period they took. After a failure the
// container is stopped all the same.
func (r *Runtime) preStop(ctx context.Context, c workload.Container, grace time.Duration) time.Duration {
	if len(c.Service.PreStop) == 0 || grace <= 0 {
		return 0
	}
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	began := r.o.Now()
	refused := cgroup.ForksRefused(r.group(c.Service.Resources, c.ID))
	for n, h := range c.Service.PreStop {
		if err := r.runHook(ctx, c, h, refused); err != nil {
			r.log.Warn("a command before the stop of a container failed", "container", c.ID, "hook", fmt.Sprintf("pre_stop %d", n+1), "error", err)
		}
	}
	return min(max(r.o.Now().Sub(began), 0), grace)
}

// runHook runs a command in a running container. refused counts the processes that the container's limit refused before: if it has
// increased after a failure, the error names the limit.
func (r *Runtime) runHook(ctx context.Context, c workload.Container, h workload.Hook, refused uint64) (err error) {
	if len(h.Command) == 0 {
		return fmt.Errorf("nothing to run: %w", fault.ErrInvalid)
	}
	defer func() {
		err = cgroup.PIDLimitError(err, c.Service.Resources, r.group(c.Service.Resources, c.ID), refused)
	}()
	var printed tail
	code, err := r.exec(ctx, c.ID, agent.ExecOptions{
		Argv: h.Command, User: h.User, WorkingDir: h.WorkingDir, Environment: h.Environment, Stdout: &printed, Stderr: &printed,
	}, h.Privileged)
	if err != nil {
		if s := strings.TrimSpace(printed.String()); s != "" {
			return fmt.Errorf("%w%s%s", err, workload.OutputLabel, s)
		}
		return err
	}
	if code != 0 {
		return hookError(code, printed.String())
	}
	return nil
}

// tail keeps the end of the written bytes.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

// maxTail is how much of a process's output an error shows.
const maxTail = 2 << 10

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if n := len(t.kept) - maxTail; n > 0 {
		t.kept = append(t.kept[:0], t.kept[n:]...)
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return lastLines(string(t.kept))
}

// lastLines returns the last lines of an output on one line, for an error.
func lastLines(s string) string {
	lines := strings.FieldsFunc(s, func(c rune) bool { return c == '\n' || c == '\r' })
	return strings.Join(lines[max(0, len(lines)-maxTailLines):], " | ")
}

// maxTailLines is how many lines of a process's output an error shows.
const maxTailLines = 5
