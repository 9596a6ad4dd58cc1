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
			spec.Linux.Resources.Devices = append(spec.Linux.Resources.Devices, deviceRule(rule))
		}
		return nil
	}
}

func device(ctx context.Context, client oci.Client, c *containers.Container, spec *oci.Spec, d workload.Device) error {
	to, access := cmp.Or(d.ContainerPath, d.HostPath), cmp.Or(d.Permissions, allAccess)
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

// deviceRule reads a rule in the format of the kernel's device controller: "c 189:* rmw". agent/compose has checked it.
func deviceRule(rule string) specs.LinuxDeviceCgroup {
	f := strings.FieldsFunc(rule, func(r rune) bool { return r == ' ' || r == ':' })
	number := func(s string) *int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil { // "*"
			return nil
		}
		return &n
	}
	return specs.LinuxDeviceCgroup{Allow: true, Type: f[0], Major: number(f[1]), Minor: number(f[2]), Access: f[3]}
}
