package network

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Shared is a network of the device itself: applications join it by its name, as an external one, and see each other there.
type Shared struct {
	Name   string
	Subnet netip.Prefix // zero: chosen from the pool
}

// external finds a network that the site declares, by name.
func (m *Manager) external(c *chooser, name string) (*bridge, error) {
	if i := slices.IndexFunc(m.o.Shared, func(s Shared) bool { return s.Name == name }); i >= 0 {
		return m.shared(c, m.o.Shared[i])
	}
	list, err := m.o.CNI.find(name)
	if err != nil {
		return nil, err
	}
	if list != nil {
		return &bridge{CNI: name}, nil
	}
	return nil, fault.WithHint(fmt.Errorf("external network %q: the site declares none of that name: %w", name, fault.ErrNotFound),
		"declare it under network.shared in agent.yaml, or as CNI configuration of that name on the device")
}

// shared is a network of the device as a project sees it; the first that joins chooses what is left open.
func (m *Manager) shared(c *chooser, s Shared) (*bridge, error) {
	for _, p := range c.next.Projects {
		for _, b := range p.Networks {
			if b.Shared == s.Name && (!s.Subnet.IsValid() || s.Subnet.Masked() == b.Subnet) {
				return b.clone(), nil
			}
		}
	}
	device := &chooser{m: m, next: c.next, project: "", live: c.live}
	b := &bridge{Shared: s.Name}
	var err error
	if b.Name, err = device.name(s.Name); err != nil {
		return nil, err
	}
	if b.MTU, err = device.mtu(); err != nil {
		return nil, err
	}
	if b.span = (span{Subnet: s.Subnet.Masked(), Given: true}); !s.Subnet.IsValid() {
		b.span = span{}
		if b.Subnet, err = device.subnet(s.Name, v4, roomy); err != nil {
			return nil, err
		}
	} else if err := device.free(b.Subnet); err != nil {
		return nil, err
	}
	return b, b.check()
}
