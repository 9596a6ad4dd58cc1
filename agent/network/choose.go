package network

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"slices"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// chooser implements [ipam.Device] for a plan on this host.
type chooser struct {
	m       *Manager
	next    *ipam.State // the plan's
	project string
	live    []netip.Prefix // prefixes that the host uses; listed only when needed
}

func (c *chooser) foreign() ([]netip.Prefix, error) {
	if c.live == nil {
		var err error
		if c.live, err = c.m.host.foreignPrefixes(); err != nil {
			return nil, err
		}
	}
	return c.live, nil
}

// Subnet implements choices.
func (c *chooser) Subnet(network string, f ipam.Family, need int) (netip.Prefix, error) {
	live, err := c.foreign()
	if err != nil {
		return netip.Prefix{}, err
	}
	taken := slices.Clone(live)
	for _, p := range c.next.Projects {
		for _, b := range p.Networks {
			if b.Family(f).Valid() {
				taken = append(taken, b.Family(f).Prefix)
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
	if f == ipam.V6 {
		if !c.next.Local.IsValid() {
			if c.next.Local, err = newLocal(); err != nil {
				return netip.Prefix{}, err
			}
		}
		pool = c.next.Local
		subnet, ok = ipam.ChooseLocal(pool, key, func(p netip.Prefix) bool { return slices.ContainsFunc(taken, p.Overlaps) })
	} else {
		subnet, ok = ipam.ChooseSubnet(pool, key, need, taken)
	}
	if !ok {
		return subnet, fault.WithHint(fmt.Errorf("%w %s: %w", ipam.ErrNoSubnet, pool, fault.ErrConflict),
			"remove a deployment, or set network.pool to a larger range that no interface or route of this device uses")
	}
	return subnet, nil
}

// Free implements choices.
func (c *chooser) Free(p netip.Prefix) error {
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

// Name implements choices.
func (c *chooser) Name(network string) (string, error) {
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

// MTU implements choices.
func (c *chooser) MTU() (int, error) { return c.m.host.uplinkMTU() }

// newLocal chooses a random prefix of unique local IPv6 addresses (RFC 4193).
func newLocal() (netip.Prefix, error) {
	b := [16]byte{0xfd}
	if _, err := rand.Read(b[1:6]); err != nil {
		return netip.Prefix{}, fmt.Errorf("choose IPv6 addresses for this device: %w", err)
	}
	return netip.PrefixFrom(netip.AddrFrom16(b), 48), nil
}
