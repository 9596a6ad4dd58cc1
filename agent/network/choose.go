package network

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// chooser answers what a plan asks of the device.
type chooser struct {
	m       *Manager
	next    *state // the plan's
	project string
	live    []netip.Prefix // what the host uses; looked up only when needed
}

func (c *chooser) foreign() ([]netip.Prefix, error) {
	if c.live == nil {
		var err error
		if c.live, err = c.m.host.foreign(); err != nil {
			return nil, err
		}
	}
	return c.live, nil
}

// subnet implements choices.
func (c *chooser) subnet(network string, f family, need int) (netip.Prefix, error) {
	live, err := c.foreign()
	if err != nil {
		return netip.Prefix{}, err
	}
	taken := slices.Clone(live)
	for _, p := range c.next.Projects {
		for _, b := range p.Networks {
			if b.of(f).valid() {
				taken = append(taken, b.of(f).Subnet)
			}
		}
	}
	for _, s := range c.m.o.Shared {
		if s.Subnet.IsValid() {
			taken = append(taken, s.Subnet)
		}
	}
	key, pool := c.project+"/"+network, c.m.o.Pool
	var subnet netip.Prefix
	var ok bool
	if f == v6 {
		if !c.next.Local.IsValid() {
			if c.next.Local, err = newLocal(); err != nil {
				return netip.Prefix{}, err
			}
		}
		pool = c.next.Local
		subnet, ok = chooseLocal(pool, key, func(p netip.Prefix) bool { return slices.ContainsFunc(taken, p.Overlaps) })
	} else {
		subnet, ok = chooseSubnet(pool, key, need, taken)
	}
	if !ok {
		return subnet, fault.WithHint(fmt.Errorf("%w %s: %w", errNoSubnet, pool, fault.ErrConflict),
			"remove a deployment, or set network.pool to a larger range that no interface or route of this device uses")
	}
	return subnet, nil
}

// free implements choices.
func (c *chooser) free(p netip.Prefix) error {
	live, err := c.foreign()
	if err != nil {
		return err
	}
	for _, other := range live {
		if other.Overlaps(p) {
			return fault.WithHint(fmt.Errorf("subnet %s overlaps %s, which this device reaches elsewhere: %w", p, other, fault.ErrConflict),
				"give the network another subnet, or none: one is chosen then")
		}
	}
	return nil
}

// name implements choices.
func (c *chooser) name(network string) (string, error) {
	names := map[string]bool{}
	for _, p := range c.next.Projects {
		for _, b := range p.Networks {
			names[b.Name] = true
		}
	}
	for salt := range maxSalt {
		if name := hashName(c.m.host.prefix, "b", c.project+"/"+network, salt); !names[name] {
			return name, nil
		}
	}
	return "", fmt.Errorf("no interface name left: %w", fault.ErrConflict)
}

// mtu implements choices.
func (c *chooser) mtu() (int, error) { return c.m.host.uplinkMTU() }

// external implements choices.
func (c *chooser) external(name string) (*bridge, error) {
	return c.m.external(c, name)
}
