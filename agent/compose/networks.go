package compose

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// networks are the networks that services use.
func (t *translation) networks(p *workload.Project) {
	used := map[string]bool{}
	for _, s := range p.Services {
		for _, a := range s.Networks {
			used[a.Network] = true
		}
	}
	n := t.root.Get("networks")
	if used[defaultNetwork] && n.Get(defaultNetwork) == nil {
		p.Networks = append(p.Networks, workload.Network{Name: defaultNetwork})
	}
	composefile.Each(n, func(k string, c *composefile.Node) {
		if w := t.network(k, c); used[k] {
			p.Networks = append(p.Networks, w)
		}
	})
	t.fixedAddresses(p)
}

func (t *translation) network(name string, n *composefile.Node) workload.Network {
	w := workload.Network{Name: name, Labels: t.labels(n, t.mapping(n.Get("labels")))}
	external, ok := t.external(n, name)
	if external != "" || !ok {
		w.External = external
		for _, k := range []string{"driver", "driver_opts", "internal", "enable_ipv4", "enable_ipv6", "ipam"} {
			if c := n.Get(k); !c.IsNull() {
				t.Fault(c, "", "the site configures an external network")
			}
		}
		return w
	}
	if c := n.Get("name"); !c.IsNull() && t.Text(c) != "" {
		t.Notice(c, "no effect: a network belongs to its project")
	}
	switch driver := t.Text(n.Get("driver")); driver {
	case "", "bridge", "default":
	case "macvlan", "ipvlan":
		w.Driver = workload.Driver(driver)
	default:
		t.Fault(n.Get("driver"), "bridge, macvlan and ipvlan are", "driver %q is not possible on a device", composefile.Clip(driver))
	}
	w.Internal = t.flag(n.Get("internal"))
	w.IPv6 = t.flag(n.Get("enable_ipv6"))
	if v4, ok := t.boolean(n.Get("enable_ipv4"), true); ok {
		w.NoIPv4 = !v4
	}
	t.networkOptions(n, &w)
	t.subnets(n, &w)
	if w.NoIPv4 && !w.IPv6 {
		t.Fault(n.Get("enable_ipv4"), "set enable_ipv6: true", "a network without any addresses")
	}
	if w.Driver != "" && w.Options["parent"] == "" && !t.isOmitted(n.Path+".driver_opts") {
		t.Fault(n, "name the interface of the device: driver_opts: {parent: eth0}", "a %s network needs a parent", w.Driver)
	}
	return w
}

// external is the name on the device of an external network or volume; not ok if the name was rejected.
func (t *translation) external(n *composefile.Node, name string) (string, bool) {
	e := n.Get("external")
	if e.IsNull() {
		return "", true
	}
	own := t.Text(n.Get("name"))
	if e.Kind == composefile.Map {
		if v := t.Text(e.Get("name")); v != "" {
			own = v
		}
	} else if v, ok := t.boolean(e, false); !v {
		return "", ok
	}
	own = cmp.Or(own, name)
	if !sectionName.MatchString(own) {
		t.Fault(e, "", "%q is no name", composefile.Clip(own))
		return "", false
	}
	return own, true
}

// Options of Docker's drivers that a device supports.
const (
	mtuOption  = "com.docker.network.driver.mtu"
	ipv6Option = "com.docker.network.enable_ipv6"
)

// isDefault reports whether an option of Docker's bridge has the fixed value of a device.
func isDefault(key, value string) bool {
	switch key {
	case "com.docker.network.bridge.enable_icc", "com.docker.network.bridge.enable_ip_masquerade":
		return value == "true"
	case "com.docker.network.bridge.host_binding_ipv4":
		return value == "0.0.0.0"
	}
	return false
}

// macvlanModes and ipvlanModes are the kernel's.
var (
	macvlanModes = strict.Expression(`^(bridge|vepa|private|passthru)$`)
	ipvlanModes  = strict.Expression(`^(l2|l3|l3s)$`)
	parentName   = strict.Expression(`^[a-zA-Z0-9][a-zA-Z0-9_.:-]{0,14}$`)
)

func (t *translation) networkOptions(n *composefile.Node, w *workload.Network) {
	opts := n.Get("driver_opts")
	if !t.isMapping(opts) {
		return
	}
	for _, o := range t.pairsOf(opts) {
		set := func(key string, ok bool) {
			if !ok {
				t.Fault(o.at, "", "%q is not possible here", composefile.Clip(o.value))
				return
			}
			if w.Options == nil {
				w.Options = map[string]string{}
			}
			w.Options[key] = o.value
		}
		switch {
		case o.key == mtuOption || o.key == "mtu":
			w.MTU = int(t.integer(o.at, 576, 65_535))
		case o.key == "parent" && w.Driver != "":
			set("parent", parentName.MatchString(o.value))
		case (o.key == "macvlan_mode" || o.key == "mode") && w.Driver == workload.Macvlan:
			set("macvlan_mode", macvlanModes.MatchString(o.value))
		case (o.key == "ipvlan_mode" || o.key == "mode") && w.Driver == workload.IPvlan:
			set("ipvlan_mode", ipvlanModes.MatchString(o.value))
		case o.key == ipv6Option && w.Driver == "":
			if v, ok := t.boolean(o.at, false); ok {
				w.IPv6 = w.IPv6 || v
			}
		case w.Driver == "" && isDefault(o.key, o.value):
		case w.Driver != "":
			t.Fault(o.at, "parent, mtu and the mode are", "option %q is not possible on a device", composefile.Clip(o.key))
		default:
			t.Fault(o.at, mtuOption+" and "+ipv6Option+" are", "option %q is not possible on a device", composefile.Clip(o.key))
		}
	}
}

// maxSubnets is one of each family, and some for several of a macvlan.
const maxSubnets = 16

func (t *translation) subnets(n *composefile.Node, w *workload.Network) {
	t.isMapping(n.Get("ipam"))
	for _, item := range t.List(n.Get("ipam", "config"), maxSubnets) {
		s, ok := t.subnet(item)
		if !ok {
			continue
		}
		if i := slices.IndexFunc(w.Subnets, func(o workload.Subnet) bool { return o.Prefix.Overlaps(s.Prefix) }); i >= 0 {
			t.Fault(item, "", "subnet %s overlaps %s", s.Prefix, w.Subnets[i].Prefix)
			continue
		}
		switch six := s.Prefix.Addr().Is6(); {
		case six && n.Get("enable_ipv6").Text() == "false":
			t.Fault(item, "", "a subnet of IPv6, and enable_ipv6 is false")
		case six:
			w.IPv6 = true
		case w.NoIPv4:
			t.Fault(item, "", "a subnet of IPv4, and enable_ipv4 is false")
		}
		w.Subnets = append(w.Subnets, s)
	}
}

func (t *translation) subnet(n *composefile.Node) (workload.Subnet, bool) {
	var s workload.Subnet
	text := t.Text(n.Get("subnet"))
	if n.Kind != composefile.Map || text == "" {
		return s, t.refuse(n, "write subnet: 10.1.2.0/24", "subnet is missing")
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Bits() < 8 || p.Addr().Is4In6() {
		return s, t.refuse(n.Get("subnet"), "write it as 10.1.2.0/24", "%q is no subnet", composefile.Clip(text))
	}
	s.Prefix = p.Masked()
	if room := p.Addr().BitLen() - p.Bits(); room < 2 {
		return s, t.refuse(n.Get("subnet"), "", "%s has no room for containers", p)
	}
	within := func(at *composefile.Node, text string) (netip.Addr, bool) {
		a, err := netip.ParseAddr(text)
		if err != nil || !s.Prefix.Contains(a) {
			return a, t.refuse(at, "", "%q is no address within %s", composefile.Clip(text), s.Prefix)
		}
		return a, true
	}
	if g := n.Get("gateway"); !g.IsNull() {
		if a, ok := within(g, t.Text(g)); ok && a == s.Prefix.Addr() {
			t.Fault(g, "", "%s is the network itself", a)
		} else if ok {
			s.Gateway = a
		}
	}
	if r := n.Get("ip_range"); !r.IsNull() {
		v, err := netip.ParsePrefix(t.Text(r))
		if err != nil || !s.Prefix.Contains(v.Addr()) || v.Bits() < s.Prefix.Bits() {
			t.Fault(r, "", "%q is no range within %s", composefile.Clip(r.Text()), s.Prefix)
		} else {
			s.Range = v.Masked()
		}
	}
	for _, x := range t.pairsOf(n.Get("aux_addresses")) {
		if a, ok := within(x.at, strings.TrimSpace(x.value)); ok {
			s.Reserved = append(s.Reserved, a)
		}
	}
	return s, true
}

// fixedAddresses rejects addresses outside their network, and an address that two containers have.
func (t *translation) fixedAddresses(p *workload.Project) {
	type place struct {
		network string
		addr    netip.Addr
	}
	taken := map[place]string{}
	for _, s := range p.Services {
		for _, a := range s.Networks {
			if a.MAC != "" && s.Count() > 1 {
				t.Fault(t.root.Get("services", s.Name), "", "%d replicas cannot have the hardware address %s", s.Count(), a.MAC)
			}
			i := slices.IndexFunc(p.Networks, func(n workload.Network) bool { return n.Name == a.Network })
			for key, addr := range map[string]netip.Addr{"ipv4_address": a.IPv4, "ipv6_address": a.IPv6} {
				at := t.root.Get("services", s.Name, "networks", a.Network, key)
				if !addr.IsValid() || i < 0 {
					continue
				}
				t.checkFixed(at, p.Networks[i], addr)
				if other, ok := taken[place{a.Network, addr}]; ok {
					t.Fault(at, "", "%s is the address of service %s", addr, other)
				}
				taken[place{a.Network, addr}] = s.Name
				if s.Count() > 1 {
					t.Fault(at, "", "%d replicas cannot have one address", s.Count())
				}
			}
		}
	}
}

func (t *translation) checkFixed(at *composefile.Node, n workload.Network, addr netip.Addr) {
	if n.External != "" || t.isOmitted("networks."+n.Name) || t.isOmitted("networks."+n.Name+".ipam") {
		return
	}
	i := slices.IndexFunc(n.Subnets, func(s workload.Subnet) bool { return s.Prefix.Contains(addr) })
	switch {
	case i < 0:
		t.Fault(at, "write the subnet under networks."+n.Name+".ipam.config", "network %s has no subnet that holds %s", n.Name, addr)
	case n.Subnets[i].Gateway == addr || !n.Subnets[i].Gateway.IsValid() && addr == n.Subnets[i].Prefix.Addr().Next():
		t.Fault(at, "", "%s is the gateway of network %s", addr, n.Name)
	case addr == n.Subnets[i].Prefix.Addr():
		t.Fault(at, "", "%s is the network itself", addr)
	}
}
