package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// allAccess is everything that the kernel controls about a device: read, write, make its node.
const allAccess = "rwm"

// devices gives a container nodes of the host. Their numbers are looked up at each start: they may change with a reboot.
func devices(s workload.Service) oci.SpecOpts {
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
	to, access := firstOf(d.ContainerPath, d.HostPath), firstOf(d.Permissions, allAccess)
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

// parseDeviceRule reads a line as the kernel's device controller takes it: "c 189:* rmw".
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
		i := int64(v)
		*n.to = &i
	}
	return out, nil
}

// injected adds what the Container Device Interface says about devices by name, and about GPUs that are asked for.
func (r *Runtime) injected(s workload.Service) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, spec *oci.Spec) error {
		if len(s.CDI)+len(s.GPUs) == 0 {
			return nil
		}
		// A cache of its own, read now and not watched: specifications come and go with drivers.
		cache, err := cdi.NewCache(cdi.WithSpecDirs(r.o.CDIDirs...), cdi.WithAutoRefresh(false))
		if err != nil {
			return fmt.Errorf("read the device specifications in %s: %w", strings.Join(r.o.CDIDirs, ", "), err)
		}
		names := slices.Clone(s.CDI)
		known := cache.ListDevices()
		for _, g := range s.GPUs {
			some, err := gpus(g, known)
			if err != nil {
				return err
			}
			names = append(names, some...)
		}
		slices.Sort(names)
		names = slices.Compact(names)
		for _, n := range names {
			if cache.GetDevice(n) == nil {
				return fault.WithHint(fmt.Errorf("this device has no %s: %w", n, fault.ErrUnfit),
					"its driver writes a specification into "+strings.Join(r.o.CDIDirs, " or ")+"; known are: "+firstOf(strings.Join(known, ", "), "none"))
			}
		}
		if _, err := cache.InjectDevices(spec, names...); err != nil {
			return fmt.Errorf("devices %s: %w", strings.Join(names, ", "), as(fault.ErrUnfit, err))
		}
		return nil
	}
}

// gpuKind is the name under which a driver puts its GPUs.
func gpuKind(driver string) string {
	switch driver {
	case "", "nvidia":
		return "nvidia.com/gpu"
	case "amd":
		return "amd.com/gpu"
	case "intel":
		return "intel.com/gpu"
	}
	return driver // "vendor.com/class"
}

// gpus turns a request into names out of those that are known.
func gpus(g workload.DeviceRequest, known []string) ([]string, error) {
	if g.Driver == "cdi" {
		return g.IDs, nil
	}
	kind := gpuKind(g.Driver)
	if !strings.Contains(kind, "/") {
		return nil, fmt.Errorf("driver %q of devices: %w", g.Driver, fault.ErrUnsupported)
	}
	var out, have []string
	for _, id := range g.IDs {
		out = append(out, kind+"="+id)
	}
	if len(out) > 0 {
		return out, nil
	}
	for _, k := range known {
		if name, ok := strings.CutPrefix(k, kind+"="); ok && name != "all" {
			have = append(have, k)
		}
	}
	slices.SortFunc(have, func(a, b string) int { // by number where they are numbers, and names after them
		x, errX := strconv.Atoi(a[len(kind)+1:])
		y, errY := strconv.Atoi(b[len(kind)+1:])
		switch {
		case errX == nil && errY == nil:
			return x - y
		case errX == nil:
			return -1
		case errY == nil:
			return 1
		}
		return strings.Compare(a, b)
	})
	if g.Count <= 0 {
		if slices.Contains(known, kind+"=all") {
			return []string{kind + "=all"}, nil
		}
		if len(have) == 0 {
			return nil, fault.WithHint(fmt.Errorf("this device has no %s: %w", kind, fault.ErrUnfit), "install its driver and the specification of its devices (CDI)")
		}
		return have, nil
	}
	if g.Count > len(have) {
		return nil, fmt.Errorf("%d devices %s are asked for, this device has %d: %w", g.Count, kind, len(have), fault.ErrUnfit)
	}
	return have[:g.Count], nil
}
