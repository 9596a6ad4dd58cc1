package devices

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// CDI is the Container Device Interface: specifications of devices by their drivers.
type CDI struct {
	Dirs []string // of device specifications
}

// cache reads the specifications now, because drivers add and remove them.
func (r CDI) cache() (*cdi.Cache, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(r.Dirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, fmt.Errorf("read the device specifications in %s: %w", strings.Join(r.Dirs, ", "), err)
	}
	return cache, nil
}

// Inject adds the specifications of named devices and requested GPUs. fault.ErrUnfit: this device does not have them.
func (r CDI) Inject(s workload.Service) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, spec *oci.Spec) error {
		if len(s.CDI)+len(s.GPUs) == 0 {
			return nil
		}
		cache, err := r.cache()
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

// Lacked are the named devices and the GPUs that projects request and this device does not have now.
func (r CDI) Lacked(projects []*workload.Project) (workload.Conflicts, error) {
	var out workload.Conflicts
	known := sync.OnceValues(func() ([]string, error) {
		cache, err := r.cache()
		if err != nil {
			return nil, err
		}
		return cache.ListDevices(), nil
	})
	for _, p := range projects {
		for _, s := range p.Services {
			if len(s.CDI)+len(s.GPUs) == 0 {
				continue
			}
			known, err := known()
			if err != nil {
				return nil, err
			}
			clash := func(key string, err error) {
				if err != nil {
					out = append(out, workload.NewConflict(p, s.Name, key, fault.ErrUnfit, failure.Message(err), fault.Hint(err)))
				}
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

// known returns an error with the devices that are unknown.
func (r CDI) known(names, known []string) error {
	for _, n := range names {
		if !slices.Contains(known, n) {
			return fault.WithHint(fmt.Errorf("this device has no %s: %w", n, fault.ErrUnfit),
				"its driver writes a specification into "+strings.Join(r.Dirs, " or ")+"; known are: "+cmp.Or(strings.Join(known, ", "), "none"))
		}
	}
	return nil
}

// gpus turns a request into known names.
func (r CDI) gpus(g workload.DeviceRequest, known []string) ([]string, error) {
	names, err := gpus(g, known)
	if err == nil {
		return names, r.known(names, known)
	}
	if errors.Is(err, fault.ErrUnfit) {
		err = fault.WithHint(err, "install their driver, which writes a specification into "+strings.Join(r.Dirs, " or "))
	}
	return nil, err
}

// gpuKind is the kind of a driver's GPUs.
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
	slices.SortFunc(have, func(a, b string) int { // numbers by value, then names, which are longer
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	})
	if g.Count <= 0 {
		if slices.Contains(known, kind+"=all") {
			return []string{kind + "=all"}, nil
		}
		if len(have) == 0 {
			return nil, fmt.Errorf("this device has no %s: %w", kind, fault.ErrUnfit)
		}
		return have, nil
	}
	if g.Count > len(have) {
		return nil, fmt.Errorf("%d devices %s are asked for, this device has %d: %w", g.Count, kind, len(have), fault.ErrUnfit)
	}
	return have[:g.Count], nil
}
