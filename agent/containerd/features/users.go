package features

import (
	"errors"
	"fmt"
	"slices"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/paths"
	"github.com/longshore-dev/longshore/agent/containerd/users"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// remapCap is the capability of snapshotters that can show an image's files with other owners.
const remapCap = "remap-ids"

// Mappable rejects a user namespace that this machine does not support (fault.ErrUnfit), or that conflicts with another setting of the service (fault.ErrInvalid).
func (f Features) Mappable(s workload.Service) error {
	if !users.HasOwnUsers(s) {
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
	if !paths.Exists("/proc/self/ns/user") {
		return fmt.Errorf("this kernel has no user namespaces: %w", fault.ErrUnfit)
	}
	if !slices.Contains(f.caps, remapCap) {
		return fmt.Errorf("snapshotter %s of containerd %s cannot show an image's files with other owners, which users of its own need: %w",
			f.Snapshotter, f.Containerd, fault.ErrUnfit)
	}
	return nil
}

// Unmapped are the services whose users this machine cannot map.
func (f Features) Unmapped(projects []*workload.Project) (out workload.Conflicts) {
	for _, p := range projects {
		for _, s := range p.Services {
			if err := f.Mappable(s); errors.Is(err, fault.ErrUnfit) {
				out = append(out, workload.NewConflict(p, s.Name, "userns_mode", fault.ErrUnfit, failure.Message(err), "containerd 2 can, on a kernel from 5.19 on; or leave out userns_mode"))
			}
		}
	}
	return out
}
