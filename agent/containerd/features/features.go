// Package features detects what this machine supports: its kernel, its containerd, and the OCI runtime.
package features

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/opencontainers/runtime-spec/specs-go/features"

	"github.com/longshore-dev/longshore/agent/containerd/apparmor"
	"github.com/longshore-dev/longshore/agent/containerd/cgroup"
	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/paths"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// DefaultProfile is the name under which containerd's default AppArmor profile is loaded.
	DefaultProfile = "longshore-default"
	// DefaultRuntime is containerd's name of runc.
	DefaultRuntime = "io.containerd.runc.v2"
)

// Features is what this machine supports.
type Features struct {
	Containerd     string // version
	Runc           string // version; "": not known, containerd before 2.0 does not report it
	Snapshotter    string
	CgroupVersion  int // 1 or 2
	Seccomp        bool
	AppArmor       bool
	SELinux        bool
	Controls       cgroup.Controls
	Runtimes       []string // names that a service may use, sorted
	ParallelUnpack bool
	Offered        []string // what containerd and runc offer deployments, sorted; without what does not depend on them alone, as AppArmor's profile

	caps []string // of the snapshotter
}

const (
	loadLimit    = 10 * time.Second // of loading AppArmor's default profile, which takes less than one
	loadInterval = time.Minute      // after that failed
)

// Options of a [Finder]. All are needed except Runtimes.
type Options struct {
	Client      *client.Client
	Snapshotter string
	Runtimes    map[string]string // other OCI runtimes that services may use, by name
	Now         func() time.Time
	Logger      *slog.Logger
}

// Finder queries once for each start of containerd and caches the result unless it fails. It checks AppArmor's profile each time, because another program may remove it, and
// tries again after a while to load one that could not be loaded. Its methods may be called from several goroutines, with
// containerd's namespace in their contexts.
type Finder struct {
	o Options

	mu       sync.Mutex
	known    *Features                                         // without AppArmor
	server   string                                            // the containerd that known is of
	root     string                                            // of the snapshotter; "": unknown
	blobs    string                                            // of the content store; "": unknown
	load     func(context.Context) (supported bool, err error) // of the default profile; another in tests
	confines bool                                              // it is loaded
	unloaded bool                                              // that failed the last time
	failed   time.Time                                         // when
}

// NewFinder creates a finder, which does not query yet.
func NewFinder(o Options) *Finder {
	return &Finder{o: o, load: func(ctx context.Context) (bool, error) { return apparmor.Load(ctx, DefaultProfile) }}
}

// Find detects the features of containerd and the kernel. It caches the first successful result, except for AppArmor. fault.ErrUnfit:
// containerd is too old, or does not have the snapshotter; fault.ErrTemporary: it does not answer.
func (h *Finder) Find(ctx context.Context) (Features, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known == nil {
		f, err := h.ask(ctx)
		if err != nil {
			return Features{}, err
		}
		h.known = &f
	}
	return h.withAppArmor(ctx, *h.known)
}

// Offered are the features of the containerd that runs now, which may be another one than at the last call. AppArmor is not looked at,
// and nothing is changed on the machine. The errors are those of Find.
func (h *Finder) Offered(ctx context.Context) (Features, error) {
	version, err := h.Version(ctx)
	if err != nil {
		return Features{}, err
	}
	running, err := h.o.Client.IntrospectionService().Server(ctx)
	if err != nil {
		return Features{}, failure.Classify(errgrpc.ToNative(err))
	}
	server := fmt.Sprint(version, " ", running.GetUUID(), " ", running.GetPid())
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known == nil || h.server != server {
		f, err := h.ask(ctx)
		if err != nil {
			return Features{}, err
		}
		h.known, h.server = &f, server
	}
	return *h.known, nil
}

// withAppArmor adds to f whether the default profile is loaded, and loads it if possible. h is locked, and a failure may
// take as long as loadLimit: if each call tried again, all others would wait.
func (h *Finder) withAppArmor(ctx context.Context, f Features) (Features, error) {
	if !h.unloaded || h.o.Now().Sub(h.failed).Abs() >= loadInterval {
		if err := h.loadAppArmor(ctx); err != nil {
			return Features{}, err
		}
	}
	f.AppArmor = h.confines
	return f, nil
}

// loadAppArmor notes whether the default profile is loaded. The error is ctx's.
func (h *Finder) loadAppArmor(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, loadLimit)
	defer cancel()
	supported, err := h.load(limited)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	h.confines = supported && err == nil
	switch {
	case err != nil && !h.unloaded:
		h.o.Logger.Warn("containers start without AppArmor's default profile; loading it is tried again", "after", loadInterval, "err", err)
	case err == nil && h.unloaded:
		h.o.Logger.Info("AppArmor's default profile is loaded now; containers that were created without it stay so")
	}
	if h.unloaded = err != nil; h.unloaded {
		h.failed = h.o.Now()
	}
	return nil
}

// ask queries the features that do not change while the agent runs. h is locked.
func (h *Finder) ask(ctx context.Context) (Features, error) {
	version, err := h.Version(ctx)
	if err == nil {
		err = recentDaemon(version)
	}
	if err != nil {
		return Features{}, err
	}
	info, err := h.runtimeInfo(ctx)
	if err != nil {
		return Features{}, err
	}
	plugins, err := h.o.Client.IntrospectionService().Plugins(ctx, fmt.Sprintf("type==io.containerd.snapshotter.v1,id==%s", h.o.Snapshotter))
	if err != nil {
		return Features{}, failure.Classify(err)
	}
	if len(plugins.Plugins) == 0 {
		return Features{}, fault.WithHint(fmt.Errorf("containerd %s has no snapshotter %q: %w", version, h.o.Snapshotter, fault.ErrUnfit),
			"name one that \"ctr plugins list\" shows in the agent's configuration")
	}
	var caps []string
	for _, p := range plugins.Plugins {
		h.root, caps = p.Exports["root"], p.Capabilities
	}
	if plugins, err = h.o.Client.IntrospectionService().Plugins(ctx, "type==io.containerd.content.v1"); err != nil {
		return Features{}, failure.Classify(err)
	}
	for _, p := range plugins.Plugins {
		h.blobs = p.Exports["root"]
	}
	f := Features{
		Containerd: version, Snapshotter: h.o.Snapshotter, CgroupVersion: 1,
		ParallelUnpack: slices.Contains(caps, snapshots.RebaseCap), caps: caps,
	}
	if cgroups.Mode() == cgroups.Unified {
		f.CgroupVersion = 2
	}
	f.Controls = cgroup.Find(cgroup.Root, f.CgroupVersion)
	f.SELinux = paths.Exists("/sys/fs/selinux/enforce")
	f.Runtimes = slices.Sorted(maps.Keys(h.o.Runtimes))
	rf, _ := info.Features.(*features.Features)
	f.offer(rf)
	f.Seccomp = info.Name == "" || slices.Contains(f.Offered, "seccomp") // unknown: without it runc rejects each container with a reason
	return f, nil
}

// runtimeInfo is containerd's information about runc; without a name from containerd before 2.0, which does not have it.
func (h *Finder) runtimeInfo(ctx context.Context) (*client.RuntimeInfo, error) {
	info, err := h.o.Client.RuntimeInfo(ctx, DefaultRuntime, nil)
	if errdefs.IsNotImplemented(err) || errdefs.IsNotFound(err) {
		return &client.RuntimeInfo{}, nil
	}
	return info, failure.Classify(err)
}

// Version is containerd's. It is also the cheapest check that containerd is reachable: fault.ErrTemporary if it is not.
func (h *Finder) Version(ctx context.Context) (string, error) {
	v, err := h.o.Client.Version(ctx)
	return v.Version, failure.Classify(errgrpc.ToNative(err))
}

// Capabilities are those of the snapshotter.
func (h *Finder) Capabilities(ctx context.Context) ([]string, error) {
	f, err := h.Find(ctx)
	return f.caps, err
}

// Roots are the folders of the content store and of the snapshotter. One that containerd does not report is assumed to be beside the
// other.
func (h *Finder) Roots(ctx context.Context) (blobs, files string, err error) {
	if _, err := h.Find(ctx); err != nil {
		return "", "", err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return cmp.Or(h.blobs, h.root), cmp.Or(h.root, h.blobs), nil
}

// Unmet returns fault.ErrUnfit, which names each limit of a service that this machine does not support.
func (f Features) Unmet(s workload.Service) error {
	var lacks []string
	for _, l := range f.Controls.Lacks(s.Resources) {
		lacks = append(lacks, l.What+" ("+l.Key+")")
	}
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("this kernel's control groups (version %d) have no %s: %w", f.CgroupVersion, strings.Join(lacks, ", no "), fault.ErrUnfit)
}
