// Package users maps the users of containers to ids of the device, and finds their names in a container's own files.
package users

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/process"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Users of containers with a user namespace of their own. All of them have the same range of the device's ids, far from the ids of
// people and of other engines, so that the owners of a volume's files are the same for all containers and after each restart.
const (
	First = 700_000_000 // the id that a container's root has on the device
	count = 65_536
)

// Mappings are the id mappings of a container with users of its own, for its process and for its volumes.
func Mappings() []specs.LinuxIDMapping {
	return []specs.LinuxIDMapping{{ContainerID: 0, HostID: First, Size: count}}
}

// HasOwnUsers reports whether a service has users of its own.
func HasOwnUsers(s workload.Service) bool { return s.Namespaces.User == workload.PrivateNamespace }

// LayerLabels make a container's layer appear with the owners that its users have.
func LayerLabels(s workload.Service) map[string]string {
	if !HasOwnUsers(s) {
		return nil
	}
	m := fmt.Sprintf("0:%d:%d", First, count)
	return map[string]string{snapshots.LabelSnapshotUIDMapping: m, snapshots.LabelSnapshotGIDMapping: m}
}

// WithoutMapping shows a layer without mapping: volumes are filled with the owners inside containers.
func WithoutMapping(layer []mount.Mount) []mount.Mount {
	out := slices.Clone(layer)
	for n := range out {
		out[n].Options = slices.DeleteFunc(slices.Clone(out[n].Options), func(o string) bool {
			return strings.HasPrefix(o, "uidmap=") || strings.HasPrefix(o, "gidmap=")
		})
	}
	return out
}

// SetNetSysctls sets the network's kernel parameters for a container with users of its own, which cannot set them itself. netns is the path of the namespace;
// without one, "", and for other services it does nothing.
func SetNetSysctls(netns string, s workload.Service) error {
	if !HasOwnUsers(s) || netns == "" {
		return nil
	}
	set := map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}
	for k, v := range s.Sysctls {
		if strings.HasPrefix(k, "net.") {
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
