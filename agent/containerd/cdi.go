package containerd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// lack says what a service asks for and this device does not have.
type lack struct{ message string }

func (l *lack) Error() string { return l.message + ": " + fault.ErrUnfit.Error() }
func (l *lack) Unwrap() error { return fault.ErrUnfit }

// deviceSpecs are what drivers wrote about their devices: read now and not watched, they come and go with drivers.
func (r *Runtime) deviceSpecs() (*cdi.Cache, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(r.o.CDIDirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, fmt.Errorf("read the device specifications in %s: %w", strings.Join(r.o.CDIDirs, ", "), err)
	}
	return cache, nil
}

// injected adds what the Container Device Interface says about devices by name, and about GPUs that are asked for.
func (r *Runtime) injected(s workload.Service) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, spec *oci.Spec) error {
		if len(s.CDI)+len(s.GPUs) == 0 {
			return nil
		}
		cache, err := r.deviceSpecs()
		if err != nil {
			return err
		}
		known := cache.ListDevices()
		names, err := slices.Clone(s.CDI), r.known(s.CDI, known)
		if err != nil {
			return err
		}
		for _, g := range s.GPUs {
			some, err := r.gpus(g, known)
			if err != nil {
				return err
			}
			names = append(names, some...)
		}
		slices.Sort(names)
		names = slices.Compact(names)
		if _, err := cache.InjectDevices(spec, names...); err != nil {
			return fmt.Errorf("devices %s: %w", strings.Join(names, ", "), failure.As(fault.ErrUnfit, err))
		}
		return nil
	}
}

// lacked are the devices by name, and the GPUs, that projects ask for and that this device does not have now.
func (r *Runtime) lacked(projects []*workload.Project) (workload.Clashes, error) {
	var (
		out   workload.Clashes
		known []string
		read  bool
	)
	for _, p := range projects {
		for _, s := range p.Services {
			if len(s.CDI)+len(s.GPUs) == 0 {
				continue
			}
			if !read {
				cache, err := r.deviceSpecs()
				if err != nil {
					return nil, err
				}
				known, read = cache.ListDevices(), true
			}
			clash := func(key string, err error) {
				if err == nil {
					return
				}
				message := err.Error()
				if l := (*lack)(nil); errors.As(err, &l) {
					message = l.message
				}
				out = append(out, workload.NewClash(p, s.Name, key, fault.ErrUnfit, message, fault.Hint(err)))
			}
			clash("devices", r.known(s.CDI, known))
			for n, g := range s.GPUs {
				_, err := r.gpus(g, known)
				clash(fmt.Sprintf("gpus[%d]", n), err)
			}
		}
	}
	return out, nil
}

// known tells which of some devices nothing is known about.
func (r *Runtime) known(names, known []string) error {
	for _, n := range names {
		if !slices.Contains(known, n) {
			return fault.WithHint(&lack{"this device has no " + n},
				"its driver writes a specification into "+strings.Join(r.o.CDIDirs, " or ")+"; known are: "+firstOf(strings.Join(known, ", "), "none"))
		}
	}
	return nil
}

// gpus turns a request into names that are known.
func (r *Runtime) gpus(g workload.DeviceRequest, known []string) ([]string, error) {
	names, err := gpus(g, known)
	if err == nil {
		return names, r.known(names, known)
	}
	if l := (*lack)(nil); errors.As(err, &l) {
		err = fault.WithHint(err, "install their driver, which writes a specification into "+strings.Join(r.o.CDIDirs, " or "))
	}
	return nil, err
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
			return nil, &lack{"this device has no " + kind}
		}
		return have, nil
	}
	if g.Count > len(have) {
		return nil, &lack{fmt.Sprintf("%d devices %s are asked for, this device has %d", g.Count, kind, len(have))}
	}
	return have[:g.Count], nil
}
