package containerd

import (
	"cmp"
	"context"
	"fmt"
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
	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// appArmorProfile is the name under which containerd's default profile is loaded.
const appArmorProfile = "longshore-default"

// Features is what containers of this device get, as found on the machine.
type Features struct {
	Containerd     string // version
	Runtime        string // version of runc or what stands in for it; "": containerd cannot tell, before 2.0
	Snapshotter    string
	CgroupVersion  int // 1 or 2
	Seccomp        bool
	AppArmor       bool
	SELinux        bool
	Controls       Controls
	Runtimes       []string // names that a service may ask for, sorted
	ParallelUnpack bool
	Degraded       []string // protections that this machine cannot give, in plain words; empty when all is well

	caps []string // of the snapshotter
}

// cgroupRoot is where control groups are mounted.
const cgroupRoot = "/sys/fs/cgroup"

const (
	loadLimit = 10 * time.Second // of loading AppArmor's default profile, which takes less than one
	loadAgain = time.Minute      // after that failed
)

// hostFeatures asks once and remembers a good answer. AppArmor's profile is looked at each time: another program may remove it.
// What keeps it from being loaded may be mended: that is tried again after a while.
type hostFeatures struct {
	mu       sync.Mutex
	known    *Features                                         // without AppArmor
	root     string                                            // of the snapshotter; "": unknown
	blobs    string                                            // of the content store; "": unknown
	load     func(context.Context) (supported bool, err error) // of the default profile; nil: loadProfile
	confines bool                                              // it is loaded
	unloaded string                                            // why that failed the last time; "": it did not
	failed   time.Time                                         // when
}

// Features asks containerd and the kernel what they can do. The first good answer is kept, but for AppArmor's.
func (r *Runtime) Features(ctx context.Context) (Features, error) {
	f, err := r.features(r.in(ctx))
	if err != nil {
		return Features{}, fmt.Errorf("ask containerd what it can do: %w", err)
	}
	return f, nil
}

func (r *Runtime) features(ctx context.Context) (Features, error) {
	h := &r.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known == nil {
		f, err := r.ask(ctx)
		if err != nil {
			return Features{}, err
		}
		h.known = &f
	}
	return r.withAppArmor(ctx, *h.known)
}

// withAppArmor adds to f whether the default profile is loaded, and loads it where it can be. r.host is locked and a failure may
// take as long as loadLimit: each call that tried again would make all others wait.
func (r *Runtime) withAppArmor(ctx context.Context, f Features) (Features, error) {
	h := &r.host
	if h.unloaded == "" || r.o.Now().Sub(h.failed).Abs() >= loadAgain {
		if err := r.loadAppArmor(ctx); err != nil {
			return Features{}, err
		}
	}
	f.AppArmor = h.confines
	if h.unloaded != "" {
		f.Degraded = append(slices.Clone(f.Degraded), h.unloaded)
	}
	return f, nil
}

// loadAppArmor notes whether the default profile is loaded. The error is ctx's.
func (r *Runtime) loadAppArmor(ctx context.Context) error {
	h := &r.host
	load := h.load
	if load == nil {
		load = loadProfile
	}
	limited, cancel := context.WithTimeout(ctx, loadLimit)
	defer cancel()
	supported, err := load(limited)
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	h.confines = supported && err == nil
	why := ""
	if err != nil {
		why, h.failed = "AppArmor's default profile could not be loaded: "+err.Error(), r.o.Now()
	}
	switch {
	case why != "" && h.unloaded == "":
		r.log.Warn("containers start without AppArmor's default profile; loading it is tried again", "after", loadAgain, "err", err)
	case why == "" && h.unloaded != "":
		r.log.Info("AppArmor's default profile is loaded now; containers that were created without it stay so")
	}
	h.unloaded = why
	return nil
}

// loadProfile loads the default profile unless it is loaded.
func loadProfile(ctx context.Context) (supported bool, err error) {
	return apparmor.Load(ctx, appArmorProfile)
}

// ask finds out what does not change while the agent runs. r.host is locked.
func (r *Runtime) ask(ctx context.Context) (Features, error) {
	h := &r.host
	version, err := r.version(ctx)
	if err == nil {
		err = recentDaemon(version)
	}
	if err != nil {
		return Features{}, err
	}
	info, err := r.runtimeInfo(ctx)
	if err != nil {
		return Features{}, err
	}
	plugins, err := r.client.IntrospectionService().Plugins(ctx, fmt.Sprintf("type==io.containerd.snapshotter.v1,id==%s", r.o.Snapshotter))
	if err != nil {
		return Features{}, failure.Classify(err)
	}
	if len(plugins.Plugins) == 0 {
		return Features{}, fault.WithHint(fmt.Errorf("containerd %s has no snapshotter %q: %w", version, r.o.Snapshotter, fault.ErrUnfit),
			"name one that \"ctr plugins list\" shows in the agent's configuration")
	}
	var caps []string
	for _, p := range plugins.Plugins {
		h.root, caps = p.Exports["root"], p.Capabilities
	}
	if plugins, err = r.client.IntrospectionService().Plugins(ctx, "type==io.containerd.content.v1"); err != nil {
		return Features{}, failure.Classify(err)
	}
	for _, p := range plugins.Plugins {
		h.blobs = p.Exports["root"]
	}
	f := Features{
		Containerd: version, Runtime: info.Version.Version, Snapshotter: r.o.Snapshotter, CgroupVersion: 1,
		ParallelUnpack: canUnpackInParallel(caps), caps: caps,
	}
	if cgroups.Mode() == cgroups.Unified {
		f.CgroupVersion = 2
	}
	f.Controls = findControls(cgroupRoot, f.CgroupVersion)
	f.SELinux = exists("/sys/fs/selinux/enforce")
	f.Runtimes = slices.Sorted(maps.Keys(r.o.Runtimes))
	if info.Name == "" {
		f.Seccomp = true // nobody tells: without it runc refuses each container, and says why
	} else if rf, ok := info.Features.(*features.Features); ok && rf.Linux != nil && rf.Linux.Seccomp != nil && rf.Linux.Seccomp.Enabled != nil {
		f.Seccomp = *rf.Linux.Seccomp.Enabled
	}
	if !f.Seccomp {
		f.Degraded = append(f.Degraded, "the OCI runtime was built without seccomp: no system call filter")
	}
	return f, nil
}

// runtimeInfo is what containerd tells of runc; without a name from one before 2.0, which cannot tell.
func (r *Runtime) runtimeInfo(ctx context.Context) (*client.RuntimeInfo, error) {
	info, err := r.client.RuntimeInfo(ctx, runtimeName, nil)
	if errdefs.IsNotImplemented(err) || errdefs.IsNotFound(err) {
		return &client.RuntimeInfo{}, nil
	}
	return info, failure.Classify(err)
}

// version also is the cheapest question whether containerd is there.
func (r *Runtime) version(ctx context.Context) (string, error) {
	v, err := r.client.Version(ctx)
	return v.Version, failure.Classify(errgrpc.ToNative(err))
}

// confined refuses to run without a system call filter unless the device's owner said so.
func (r *Runtime) confined(f Features, s workload.Service) error {
	asks := s.Security != nil && (s.Security.Privileged || s.Security.Seccomp == unconfined)
	if f.Seccomp || r.o.AllowNoSeccomp || asks {
		return nil
	}
	return fault.WithHint(fmt.Errorf("the OCI runtime has no seccomp support: %w", fault.ErrUnfit),
		"install a runc built with seccomp, or allow containers without it in the agent's configuration")
}

// Capabilities are those of the snapshotter.
func (r *Runtime) Capabilities(ctx context.Context) ([]string, error) {
	f, err := r.features(ctx)
	return f.caps, err
}

// Roots are the folders of the content store and of the snapshotter. Where one does not tell, it is taken to be beside the
// other.
func (r *Runtime) Roots(ctx context.Context) (blobs, files string, err error) {
	if _, err := r.features(ctx); err != nil {
		return "", "", err
	}
	r.host.mu.Lock()
	defer r.host.mu.Unlock()
	return cmp.Or(r.host.blobs, r.host.root), cmp.Or(r.host.root, r.host.blobs), nil
}

func canUnpackInParallel(caps []string) bool { return slices.Contains(caps, snapshots.RebaseCap) }

// unmet refuses what this machine cannot do for a service.
func (f Features) unmet(s workload.Service) error {
	if lacks := f.Controls.lacks(s.Resources); len(lacks) > 0 {
		return fmt.Errorf("this kernel's control groups (version %d) have no %s: %w", f.CgroupVersion, strings.Join(lacks, ", no "), fault.ErrUnfit)
	}
	return nil
}
