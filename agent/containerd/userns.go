package containerd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/process"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Users of containers that have a user namespace of their own. All of them have the same range of the device's ids, far
// from those of people and of other engines, so that a volume means the same to each and after each restart.
const (
	mappedFrom = 700_000_000
	mappedIDs  = 65_536
	// remapCap is what a snapshotter says that shows an image's files with other owners.
	remapCap = "remap-ids"
)

func mappings() []specs.LinuxIDMapping {
	return []specs.LinuxIDMapping{{ContainerID: 0, HostID: mappedFrom, Size: mappedIDs}}
}

func ownUsers(s workload.Service) bool { return s.Namespaces.User == workload.PrivateNamespace }

// canMap refuses a user namespace where this machine cannot give it, or where what else the service shares forbids it.
func (f Features) canMap(s workload.Service) error {
	if !ownUsers(s) {
		return nil
	}
	ns := s.Namespaces
	for kind, n := range map[string]workload.Namespace{"pid": ns.PID, "ipc": ns.IPC, "network": ns.Network} {
		if n == workload.HostNamespace || n.Service() != "" {
			return fmt.Errorf("users of its own and the %s namespace %q do not go together: %w", kind, n, fault.ErrInvalid)
		}
	}
	if s.Security != nil && s.Security.Privileged {
		return fmt.Errorf("users of its own and privileges on the device do not go together: %w", fault.ErrInvalid)
	}
	if !exists("/proc/self/ns/user") {
		return &lack{"this kernel has no user namespaces"}
	}
	if !slices.Contains(f.caps, remapCap) {
		return &lack{fmt.Sprintf("snapshotter %s of containerd %s cannot show an image's files with other owners, which users of its own need",
			f.Snapshotter, f.Containerd)}
	}
	return nil
}

// unmapped are the services whose users this machine cannot keep apart from its own.
func (f Features) unmapped(projects []*workload.Project) (out workload.Clashes) {
	for _, p := range projects {
		for _, s := range p.Services {
			if l := (*lack)(nil); errors.As(f.canMap(s), &l) {
				out = append(out, workload.NewClash(p, s.Name, "userns_mode", fault.ErrUnfit, l.message, "containerd 2 can, on a kernel from 5.19 on; or leave out userns_mode"))
			}
		}
	}
	return out
}

// layerLabels make a container's layer appear with the owners that its users have.
func layerLabels(s workload.Service) map[string]string {
	if !ownUsers(s) {
		return nil
	}
	m := fmt.Sprintf("0:%d:%d", mappedFrom, mappedIDs)
	return map[string]string{snapshots.LabelSnapshotUIDMapping: m, snapshots.LabelSnapshotGIDMapping: m}
}

// withoutMapping shows a layer as it is on the disk: volumes are filled with the owners that containers see.
func withoutMapping(layer []mount.Mount) []mount.Mount {
	out := slices.Clone(layer)
	for n := range out {
		out[n].Options = slices.DeleteFunc(slices.Clone(out[n].Options), func(o string) bool {
			return strings.HasPrefix(o, "uidmap=") || strings.HasPrefix(o, "gidmap=")
		})
	}
	return out
}

// mapped gives a container users of its own. Its volumes are mapped as its files are; what it mounts of the device is not:
// there its root is nobody.
func (r *Runtime) mapped(s workload.Service) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, spec *oci.Spec) error {
		if !ownUsers(s) {
			return nil
		}
		setNamespace(spec, specs.UserNamespace, "")
		spec.Linux.UIDMappings, spec.Linux.GIDMappings = mappings(), mappings()
		for k := range spec.Linux.Sysctl {
			if strings.HasPrefix(k, "net.") { // the network is not the container's to change: see setNetSysctls
				delete(spec.Linux.Sysctl, k)
			}
		}
		for n, m := range spec.Mounts {
			switch {
			case m.Type == "sysfs": // a new one would need a network of the same owner
				spec.Mounts[n] = specs.Mount{Destination: "/sys", Type: "bind", Source: "/sys", Options: []string{"rbind", "ro", "nosuid", "noexec", "nodev", "rslave"}}
			case m.Type == "bind" && r.isVolume(m.Source):
				spec.Mounts[n].UIDMappings, spec.Mounts[n].GIDMappings = mappings(), mappings()
			}
		}
		return nil
	}
}

// isVolume tells whether a path is in a volume of ours.
func (r *Runtime) isVolume(source string) bool {
	for _, dir := range []string{"volumes", "anonymous", "shared"} {
		if strings.HasPrefix(source, filepath.Join(r.o.DataDir, dir)+"/") {
			return true
		}
	}
	return false
}

// setNetSysctls sets those of a network that a container with users of its own cannot set itself.
func setNetSysctls(netns string, s workload.Service) error {
	if !ownUsers(s) || netns == "" {
		return nil
	}
	set := map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}
	for k, v := range s.Sysctls {
		if k = strings.ReplaceAll(k, "/", "."); strings.HasPrefix(k, "net.") {
			set[k] = v
		}
	}
	ns, err := os.Open(netns)
	if err != nil {
		return err
	}
	defer ns.Close()
	process.DetachedThread(func() {
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("enter %s: %w", netns, err)
			return
		}
		for k, v := range set {
			if err = os.WriteFile(filepath.Join("/proc/sys", strings.ReplaceAll(k, ".", "/")), []byte(v), 0o644); err != nil {
				err = fmt.Errorf("sysctl %s: %w", k, err)
				return
			}
		}
	})
	return err
}
