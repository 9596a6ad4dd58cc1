package containerd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	runtimeName = "io.containerd.runc.v2"
	// reconnectDelay is the longest pause before the connection to a restarted containerd is tried again.
	reconnectDelay = 2 * time.Second
	// killWait is how long a process may take to vanish after SIGKILL; longer means that the kernel holds it.
	killWait = 15 * time.Second
	// cleanupWait bounds what is undone after the caller's context has ended.
	cleanupWait = 10 * time.Second
)

var (
	_ agent.Runtime  = (*Runtime)(nil)
	_ agent.Executor = (*Runtime)(nil)
)

// Runtime is the agent's runtime on containerd. Its methods may be called from several goroutines.
type Runtime struct {
	o      Options
	client *client.Client
	log    *slog.Logger
	mute   *log.Entry // the client library logs to stderr otherwise

	ids     *keys         // one change of a container at a time
	pulling chan struct{} // holds one token: one pull or repair at a time
	trust   *trust        // what this process wrote or verified
	images  *imageCache
	kept    kept
	logs    *logTable
	writers *writers
	host    hostFeatures
	doings  doings

	sightings sightings

	stuckShims atomic.Int64 // how many were ended

	condemned verdicts

	end context.CancelFunc // ends the rotation
	wg  sync.WaitGroup     // event streams and the rotation

	mender sync.WaitGroup
}

// New makes a runtime and keeps its logs within their limits until Close. It does not wait for containerd: calls made while
// it is away end in fault.ErrTemporary. The caller closes it.
func New(ctx context.Context, o Options) (*Runtime, error) {
	o, err := o.complete()
	if err != nil {
		return nil, fmt.Errorf("set up the containerd runtime: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := recentKernel(); err != nil {
		return nil, fmt.Errorf("set up the containerd runtime: %w", err)
	}
	c, err := client.New(o.Address,
		client.WithDefaultNamespace(o.Namespace),
		client.WithDefaultRuntime(runtimeName), // else the library asks containerd for it
		client.WithTimeout(reconnectDelay),
		client.WithExtraDialOpts([]grpc.DialOption{grpc.WithUnaryInterceptor(bounded)}),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to containerd at %s: %w", o.Address, classify(err))
	}
	mute := logrus.New()
	mute.SetOutput(io.Discard)
	mute.SetLevel(logrus.PanicLevel)
	r := &Runtime{
		o: o, client: c, log: o.Logger, mute: logrus.NewEntry(mute),
		ids: newKeys(), pulling: make(chan struct{}, 1), trust: newTrust(), images: newImageCache(), logs: newLogTable(),
		writers: newWriters(),
	}
	var life context.Context
	life, r.end = context.WithCancel(context.WithoutCancel(ctx))
	r.wg.Go(func() { r.lookAfterLogs(life, o.Logs.Every) })
	r.wg.Go(func() { r.lookAfterShims(life) })
	r.mender.Go(func() { r.mendAfterBoot(life) })
	return r, nil
}

// Close ends the connection, the rotation and the event streams, and waits for them.
func (r *Runtime) Close() error {
	r.end()
	r.mender.Wait() // it takes away what it made, which needs the connection
	err := r.client.Close()
	r.wg.Wait()
	if err != nil {
		return fmt.Errorf("close the connection to containerd: %w", err)
	}
	return nil
}

// in puts a call into our namespace, with the client library silent.
func (r *Runtime) in(ctx context.Context) context.Context {
	return log.WithLogger(namespaces.WithNamespace(ctx, r.o.Namespace), r.mute)
}

// outlast is a context for a call that must not be cut off in the middle: it ends some time after ctx does, and has no deadline that
// would travel with the call. A shim takes that for its own, and kills runc where it is: a process that runc has just begun in a
// container is then nobody's.
func outlast(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if rest(longer, cleanupWait) == nil {
			cancel()
		}
	})
	return longer, func() { stop(); cancel() }
}

// after is a context to clean up in when ctx may have ended.
func after(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanupWait)
}

func (r *Runtime) snapshots() snapshots.Snapshotter { return r.client.SnapshotService(r.o.Snapshotter) }

func (o Options) complete() (Options, error) {
	set := func(s *string, d string) {
		if *s == "" {
			*s = d
		}
	}
	set(&o.Address, DefaultAddress)
	set(&o.Namespace, DefaultNamespace)
	set(&o.Snapshotter, DefaultSnapshotter)
	if o.Downloads <= 0 {
		o.Downloads = DefaultDownloads
	}
	if o.Unpacks <= 0 {
		o.Unpacks = DefaultUnpacks
	}
	if o.Logs.MaxSize <= 0 {
		o.Logs.MaxSize = DefaultLogMaxSize
	}
	if o.Logs.MaxFiles <= 0 {
		o.Logs.MaxFiles = DefaultLogMaxFiles
	}
	if o.Logs.Budget <= 0 {
		o.Logs.Budget = DefaultLogBudget
	}
	if o.Logs.Every <= 0 {
		o.Logs.Every = DefaultLogEvery
	}
	if o.CDIDirs == nil {
		o.CDIDirs = cdi.DefaultSpecDirs
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
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

// keys are locks by name.
type keys struct {
	mu   sync.Mutex
	held map[string]*key
}

type key struct {
	token chan struct{} // one token: held
	users int
}

func newKeys() *keys { return &keys{held: map[string]*key{}} }

// lock waits for a name and returns its unlock.
func (k *keys) lock(ctx context.Context, name string) (func(), error) {
	k.mu.Lock()
	e := k.held[name]
	if e == nil {
		e = &key{token: make(chan struct{}, 1)}
		k.held[name] = e
	}
	e.users++
	k.mu.Unlock()
	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if e.users--; e.users == 0 {
			delete(k.held, name)
		}
	}
	select {
	case e.token <- struct{}{}:
		return func() { <-e.token; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
