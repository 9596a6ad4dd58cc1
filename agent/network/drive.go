package network

import (
	"fmt"
	"slices"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// macvlanModes are Compose's words for how containers of one parent see each other.
func macvlanModes() []string { return []string{"bridge", "private", "vepa", "passthru"} }

// drive takes over what is particular to a network's driver, and refuses what this program cannot make.
func (b *bridge) drive(n workload.Network) error {
	switch b.Driver {
	case "":
		return nil
	case workload.Macvlan:
		for k := range n.Options {
			if k != "parent" && k != "macvlan_mode" {
				return fmt.Errorf("driver_opts.%s: not an option of macvlan: %w", k, fault.ErrUnsupported)
			}
		}
		b.Parent, b.Mode = n.Options["parent"], n.Options["macvlan_mode"]
		if b.Mode != "" && !slices.Contains(macvlanModes(), b.Mode) {
			return fmt.Errorf("driver_opts.macvlan_mode %q: must be one of %q: %w", b.Mode, macvlanModes(), fault.ErrInvalid)
		}
		if b.Parent == "" {
			return fault.WithHint(fmt.Errorf("driver_opts.parent: macvlan needs an interface of this device: %w", fault.ErrInvalid), "write parent: eth0 under driver_opts")
		}
		return nil
	}
	return fault.WithHint(fmt.Errorf("driver %q: %w", b.Driver, fault.ErrUnsupported),
		"use bridge or macvlan, or let the site declare the network as CNI configuration and name it as external")
}
