package network

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Shared is a network of the device: applications join it by its name, as an external network, and reach each other there.
type Shared struct {
	Name   string
	Subnet netip.Prefix // zero: chosen from the pool
}

// External implements [ipam.Device]: it finds a network that the site declares.
func (c *chooser) External(name string) (*ipam.Network, error) {
	if i := slices.IndexFunc(c.m.o.Shared, func(s Shared) bool { return s.Name == name }); i >= 0 {
		return c.shared(c.m.o.Shared[i])
	}
	list, err := c.m.o.CNI.find(name)
	if err != nil {
		return nil, err
	}
	if list != nil {
		return &ipam.Network{CNI: name}, nil
	}
	return nil, fault.WithHint(fmt.Errorf("external network %q: the site declares none of that name: %w", name, fault.ErrNotFound),
		"declare it under network.shared in agent.yaml, or as CNI configuration of that name on the device")
}

// shared is a network of the device as a project uses it; the first project that joins chooses the unset values.
func (c *chooser) shared(s Shared) (*ipam.Network, error) {
	for _, p := range c.next.Projects {
		for _, b := range p.Networks {
			if b.Shared == s.Name && (!s.Subnet.IsValid() || s.Subnet.Masked() == b.Prefix) {
				return b.Clone(), nil
			}
		}
	}
	device := &chooser{m: c.m, next: c.next, project: "", live: c.live}
	b := &ipam.Network{Shared: s.Name}
	var err error
	if b.Name, err = device.Name(s.Name); err != nil {
		return nil, err
	}
	if b.MTU, err = device.MTU(); err != nil {
		return nil, err
	}
	if b.Subnet = (ipam.Subnet{Prefix: s.Subnet.Masked(), Configured: true}); !s.Subnet.IsValid() {
		b.Subnet = ipam.Subnet{}
		if b.Prefix, err = device.Subnet(s.Name, ipam.V4, ipam.SharedNeed); err != nil {
			return nil, err
		}
	} else if err := device.Free(b.Prefix); err != nil {
		return nil, err
	}
	return b, nil
}
