package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/containerd/claim"
	"github.com/longshore-dev/longshore/agent/containerd/confinement"
	"github.com/longshore-dev/longshore/agent/containerd/deadline"
	"github.com/longshore-dev/longshore/agent/containerd/devices"
	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/features"
	"github.com/longshore-dev/longshore/agent/containerd/guard"
	"github.com/longshore-dev/longshore/agent/containerd/images"
	"github.com/longshore-dev/longshore/agent/containerd/logs"
	"github.com/longshore-dev/longshore/agent/containerd/records"
	"github.com/longshore-dev/longshore/agent/containerd/runspec"
	"github.com/longshore-dev/longshore/agent/containerd/tasks"
	"github.com/longshore-dev/longshore/agent/containerd/volumes"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/locks"
)

const (
	// startLimit bounds a start before its init containers, and again after them.
	startLimit = 3 * time.Minute
	// reconnectDelay is the longest pause between attempts to connect to a restarted containerd.
	reconnectDelay = 2 * time.Second
)

var _ agent.Runtime = (*Runtime)(nil)

// Runtime is the agent's runtime on containerd. Its methods may be called from several goroutines.
type Runtime struct {
	o      Options
	client *client.Client
	log    *slog.Logger
	silent *log.Entry // otherwise the client library logs to stderr

	ids      locks.Table // one change of a container at a time
	tasks    *tasks.Tasks
	records  *records.Store
	claim    *claim.Claim
	images   *images.Store
	guard    *guard.Guard
	specs    runspec.Maker
	volumes  *volumes.Store
	logs     *logs.Keeper
	features *features.Finder

	startLimit time.Duration // startLimit; shorter in tests

	lastKnown lastKnown
	early     early

	life context.Context    //nolint:containedctx // of work that continues when its caller stops waiting
	end  context.CancelFunc // ends life
	wg   sync.WaitGroup     // event streams and the rotation
}

// New creates a runtime, which rotates logs until Close. It does not wait for containerd: while that is not reachable, calls fail with
// fault.ErrTemporary. The caller closes it.
func New(ctx context.Context, o Options) (*Runtime, error) {
	o, err := o.complete()
	if err != nil {
		return nil, fmt.Errorf("set up the containerd runtime: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := features.RecentKernel(); err != nil {
		return nil, fmt.Errorf("set up the containerd runtime: %w", err)
	}
	c, err := connect(o)
	if err != nil {
		return nil, err
	}
	r := &Runtime{
		o: o, client: c, log: o.Logger, silent: mute(), startLimit: startLimit,
		tasks:   tasks.New(c.TaskService(), o.Namespace, o.RunDir, o.Logger),
		records: records.New(c.ContainerService(), o.Device, o.Namespace, o.Logger),
		claim:   claim.New(c.LeasesService(), claim.Options{Device: o.Device, Namespace: o.Namespace, DataDir: o.DataDir, Logger: o.Logger}),
		logs:    logs.NewKeeper(filepath.Join(o.DataDir, "logs"), o.Logs, o.Now, o.Logger),
	}
	r.life, r.end = context.WithCancel(context.WithoutCancel(ctx))
	r.features = features.NewFinder(features.Options{Client: c, Snapshotter: o.Snapshotter, Runtimes: o.Runtimes, Now: o.Now, Logger: o.Logger})
	r.images = images.New(r.in(r.life), c, images.Options{
		Device: o.Device, Snapshotter: o.Snapshotter, DataDir: o.DataDir, Endpoints: o.Endpoints, Journal: o.Journal, Host: r.features,
		MinFree: o.MinFree, Now: o.Now, Logger: o.Logger,
	})
	r.guard = &guard.Guard{AllowPrivileged: o.AllowPrivileged, Places: o.places(), Roots: r.features.Roots}
	r.specs = runspec.Maker{
		Client: c, Guard: r.guard, CDI: devices.CDI{Dirs: o.CDIDirs},
		Rules:  confinement.Rules{AllowPrivileged: o.AllowPrivileged, AllowNoSeccomp: o.AllowNoSeccomp},
		Device: o.Device, Telemetry: o.Telemetry,
	}
	r.volumes = volumes.New(volumes.Options{
		Device: o.Device, DataDir: o.DataDir, RunDir: o.RunDir, Snapshots: r.snapshots(), Guard: r.guard, Now: o.Now,
		Top: func(ctx context.Context, i workload.Image) (string, error) {
			img, err := r.images.Ready(ctx, i)
			if err != nil {
				return "", err
			}
			return img.Top(), nil
		},
	})
	r.wg.Go(func() { r.logs.Run(r.life) })
	return r, nil
}

func connect(o Options) (*client.Client, error) {
	c, err := client.New(o.Address,
		client.WithDefaultNamespace(o.Namespace),
		client.WithDefaultRuntime(features.DefaultRuntime), // otherwise the library asks containerd for it
		client.WithTimeout(reconnectDelay),
		client.WithExtraDialOpts([]grpc.DialOption{grpc.WithUnaryInterceptor(deadline.Tasks)}),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %s: %w", o.Address, failure.Classify(err))
	}
	return c, nil
}

// mute is a log of the client library that writes nothing.
func mute() *log.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	l.SetLevel(logrus.PanicLevel)
	return logrus.NewEntry(l)
}

// Offered is what the containerd that runs now and runc offer deployments. fault.ErrTemporary: it does not answer.
func (r *Runtime) Offered(ctx context.Context) (features.Features, error) {
	return r.features.Offered(r.in(ctx))
}

// Offered is [Runtime.Offered] without a runtime, for programs that only look. Of the options it needs only what says how containerd is
// reached, and which snapshotter and runtimes count.
func Offered(ctx context.Context, o Options) (f features.Features, err error) {
	o.defaults()
	c, err := connect(o)
	if err != nil {
		return f, err
	}
	f, err = features.NewFinder(features.Options{Client: c, Snapshotter: o.Snapshotter, Runtimes: o.Runtimes}).Offered(log.WithLogger(namespaces.WithNamespace(ctx, o.Namespace), mute()))
	return f, errors.Join(err, c.Close())
}

// Claim makes this process the only agent of its device on this containerd, until Close or the end of the process, see
// [claim.Claim.Hold]. Observe, Events and Collect claim too, in case Claim could not reach containerd.
func (r *Runtime) Claim(ctx context.Context) error { return r.claim.Hold(r.in(ctx)) }

// Close ends the connection, the rotation, the repairs and the event streams, and waits for them.
func (r *Runtime) Close() error {
	r.end()
	r.images.Wait()
	r.claim.Release(r.in(r.life))
	err := r.client.Close()
	r.wg.Wait()
	if err != nil {
		return fmt.Errorf("close the connection to containerd: %w", err)
	}
	return nil
}

// in returns a context with our namespace, and without logging by the client library.
func (r *Runtime) in(ctx context.Context) context.Context {
	return log.WithLogger(namespaces.WithNamespace(ctx, r.o.Namespace), r.silent)
}

func (r *Runtime) snapshots() snapshots.Snapshotter { return r.client.SnapshotService(r.o.Snapshotter) }

// places are paths that unprivileged containers must not mount, in addition to those of every device.
func (o Options) places() []workload.Place {
	out := slices.Clone(o.Places)
	add := func(a workload.Access, holds string, paths ...string) {
		for _, p := range paths {
			if filepath.IsAbs(p) {
				out = append(out, workload.Place{Path: p, Access: a, Holds: holds})
			}
		}
	}
	add(workload.NoAccess, "the agent's own", o.DataDir, o.RunDir)
	add(workload.NoAccess, "containerd's socket", o.Address)
	add(workload.ReadOnly, "program of the agent", o.Program)
	add(workload.ReadOnly, "specifications of devices", o.CDIDirs...)
	for _, program := range o.Runtimes {
		add(workload.ReadOnly, "an OCI runtime", program)
	}
	return out
}

func (o *Options) defaults() {
	o.Address, o.Namespace = cmp.Or(o.Address, DefaultAddress), cmp.Or(o.Namespace, DefaultNamespace)
	o.Snapshotter = cmp.Or(o.Snapshotter, DefaultSnapshotter)
}

func (o Options) complete() (Options, error) {
	o.defaults()
	if o.CDIDirs == nil {
		o.CDIDirs = cdi.DefaultSpecDirs
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	switch {
	case o.Device == "":
		return o, fmt.Errorf("no device id: %w", fault.ErrInvalid)
	case !filepath.IsAbs(o.DataDir):
		return o, fmt.Errorf("data directory %q is not an absolute path: %w", o.DataDir, fault.ErrInvalid)
	case !filepath.IsAbs(o.RunDir):
		return o, fmt.Errorf("run directory %q is not an absolute path: %w", o.RunDir, fault.ErrInvalid)
	case o.Journal == nil, o.Networks == nil, o.Now == nil:
		return o, fmt.Errorf("journal, networks and clock are needed: %w", fault.ErrInvalid)
	}
	return o, nil
}

// change runs do, one change of a container at a time.
func (r *Runtime) change(ctx context.Context, what, id string, do func(context.Context, string) error) error {
	ctx = r.in(ctx)
	unlock, err := r.ids.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if err := do(ctx, id); err != nil {
		return fmt.Errorf("%s container %s: %w", what, id, failure.Classify(err))
	}
	return nil
}

// group is a container's control group, below the root of a hierarchy.
func (r *Runtime) group(w workload.Resources, id string) string {
	return filepath.Join("/", w.CgroupParent, r.o.Namespace, id)
}
