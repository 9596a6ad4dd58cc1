// Package devices adds devices of the machine to containers: nodes by their paths, and devices of the Container Device Interface.
package devices

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// allAccess is every access to a device that the kernel controls: read, write, create its node.
const allAccess = "rwm"

// Nodes adds device nodes of the host. Their numbers are read at each start, because they may change with a reboot. fault.ErrUnfit: one
// does not exist.
func Nodes(s workload.Service) oci.SpecOpts {
	return func(ctx context.Context, client oci.Client, c *containers.Container, spec *oci.Spec) error {
		for _, d := range s.Devices {
			if err := device(ctx, client, c, spec, d); err != nil {
				return err
			}
		}
		for _, rule := range s.DeviceRules {
			r, err := parseDeviceRule(rule)
			if err != nil {
				return err
			}
			spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, r)
		}
		return nil
	}
}

func device(ctx context.Context, client oci.Client, c *containers.Container, spec *oci.Spec, d workload.Device) error {
	to, access := cmp.Or(d.ContainerPath, d.HostPath), cmp.Or(d.Permissions, allAccess)
	if !filepath.IsAbs(d.HostPath) || !filepath.IsAbs(to) {
		return fmt.Errorf("device %s at %s: paths must be absolute: %w", d.HostPath, to, fault.ErrInvalid)
	}
	if strings.Trim(access, allAccess) != "" {
		return fmt.Errorf("device %s: permissions %q are not of \"rwm\": %w", d.HostPath, access, fault.ErrInvalid)
	}
	from, err := filepath.EvalSymlinks(d.HostPath) // /dev/serial/by-id and the like
	if errors.Is(err, fs.ErrNotExist) {
		return fault.WithHint(fmt.Errorf("this device has no %s: %w", d.HostPath, fault.ErrUnfit),
			"attach it, or ask for what may appear later with device_cgroup_rules")
	}
	if err != nil {
		return fmt.Errorf("device %s: %w", d.HostPath, err)
	}
	if info, err := os.Stat(from); err != nil {
		return fmt.Errorf("device %s: %w", d.HostPath, err)
	} else if info.Mode()&fs.ModeDevice == 0 && !info.IsDir() {
		return fmt.Errorf("%s is not a device: %w", d.HostPath, fault.ErrInvalid)
	}
	if err := oci.WithDevices(from, to, access)(ctx, client, c, spec); err != nil {
		return fmt.Errorf("device %s: %w", d.HostPath, err)
	}
	return nil
}

// parseDeviceRule reads a rule in the format of the kernel's device controller: "c 189:* rmw".
func parseDeviceRule(rule string) (specs.LinuxDeviceCgroup, error) {
	bad := fmt.Errorf("device_cgroup_rules: %q is not like \"c 189:* rmw\": %w", rule, fault.ErrInvalid)
	f := strings.Fields(rule)
	if len(f) != 3 || len(f[0]) != 1 || !strings.Contains("abc", f[0]) || strings.Trim(f[2], allAccess) != "" {
		return specs.LinuxDeviceCgroup{}, bad
	}
	out := specs.LinuxDeviceCgroup{Allow: true, Type: f[0], Access: f[2]}
	major, minor, ok := strings.Cut(f[1], ":")
	if !ok {
		return out, bad
	}
	for _, n := range []struct {
		text string
		to   **int64
	}{{major, &out.Major}, {minor, &out.Minor}} {
		if n.text == "*" {
			continue
		}
		v, err := strconv.ParseUint(n.text, 10, 32)
		if err != nil {
			return out, bad
		}
		*n.to = new(int64(v))
	}
	return out, nil
}
