package ipam

import (
	"fmt"
	"slices"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// ApplyDriver applies the options of a network's driver, and rejects those that this program does not support.
func (b *Network) ApplyDriver(n workload.Network) error {
	switch b.Driver {
	case "":
		return nil
	case workload.Macvlan, workload.IPvlan:
		mode, modes := string(b.Driver)+"_mode", []string{"bridge", "private", "vepa", "passthru"}
		if b.Driver == workload.IPvlan {
			modes = []string{"l2", "l3", "l3s"}
		}
		for k := range n.Options {
			if k != "parent" && k != mode {
				return fmt.Errorf("driver_opts.%s: not an option of %s: %w", k, b.Driver, fault.ErrUnsupported)
			}
		}
		b.Parent, b.Mode = n.Options["parent"], n.Options[mode]
		if b.Mode != "" && !slices.Contains(modes, b.Mode) {
			return fmt.Errorf("driver_opts.%s %q: must be one of %q: %w", mode, b.Mode, modes, fault.ErrInvalid)
		}
		if b.Parent == "" {
			return fault.WithHint(fmt.Errorf("driver_opts.parent: %s needs an interface of this device: %w", b.Driver, fault.ErrInvalid), "write parent: eth0 under driver_opts")
		}
		return nil
	}
	return fault.WithHint(fmt.Errorf("driver %q: %w", b.Driver, fault.ErrUnsupported),
		"use bridge, macvlan or ipvlan, or let the site declare the network as CNI configuration and name it as external")
}
