package compose

import (
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
)

// networks are those that services are on.
func (t *translation) networks(p *workload.Project) {
	used := map[string]bool{}
	for _, s := range p.Services {
		for _, a := range s.Networks {
			used[a.Network] = true
		}
	}
	n := t.root.get("networks")
	if used[defaultNetwork] && n.get(defaultNetwork) == nil {
		p.Networks = append(p.Networks, workload.Network{Name: defaultNetwork})
	}
	if n.isNull() {
		return
	}
	for _, k := range n.keys {
		w := t.network(k, n.fields[k])
		if used[k] {
			p.Networks = append(p.Networks, w)
		}
	}
	t.fixedAddresses(p)
}

func (t *translation) network(name string, n *node) workload.Network {
	w := workload.Network{Name: name, Labels: t.labels(n, t.mapping(n.get("labels")))}
	external, ok := t.external(n, name)
	if external != "" || !ok {
		w.External = external
		for _, k := range []string{"driver", "driver_opts", "internal", "enable_ipv4", "enable_ipv6", "ipam"} {
			if c := n.get(k); !c.isNull() {
				t.fault(c, "", "an external network is as the site has made it")
			}
		}
		return w
	}
	if c := n.get("name"); !c.isNull() && t.text(c) != "" {
		t.notice(c, "no effect: a network belongs to its project")
	}
	switch driver := t.text(n.get("driver")); driver {
	case "", "bridge", "default":
	case "macvlan", "ipvlan":
		w.Driver = workload.Driver(driver)
	default:
		t.fault(n.get("driver"), "bridge, macvlan and ipvlan are", "driver %q is not possible on a device", clipped(driver))
	}
	w.Internal = t.flag(n.get("internal"))
	w.IPv6 = t.flag(n.get("enable_ipv6"))
	if v4, ok := t.truth(n.get("enable_ipv4"), true); ok {
		w.NoIPv4 = !v4
	}
	t.networkOptions(n, &w)
	t.subnets(n, &w)
	if w.NoIPv4 && !w.IPv6 {
		t.fault(n.get("enable_ipv4"), "set enable_ipv6: true", "a network without any addresses")
	}
	if w.Driver != "" && w.Options["parent"] == "" && !w.Internal && !t.isCut(n.path+".driver_opts") {
		t.fault(n, "name the interface of the device: driver_opts: {parent: eth0}", "a %s network needs a parent", w.Driver)
	}
	return w
}

// external is the name on the device of what is not the project's own; not ok when something was refused.
func (t *translation) external(n *node, name string) (string, bool) {
	e := n.get("external")
	if e.isNull() {
		return "", true
	}
	own := t.text(n.get("name"))
	if e.kind == mapKind {
		if v := t.text(e.get("name")); v != "" {
			own = v
		}
	} else if v, ok := t.truth(e, false); !v {
		return "", ok
	}
	if own == "" {
		own = name
	}
	if !sectionName.MatchString(own) {
		t.fault(e, "", "%q is no name", clipped(own))
		return "", false
	}
	return own, true
}

// What Docker's drivers call the options that a device has too.
const (
	mtuOption  = "com.docker.network.driver.mtu"
	ipv6Option = "com.docker.network.enable_ipv6"
)

// usual reports whether an option of Docker's bridge asks for what every network of a device does.
func usual(key, value string) bool {
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
	macvlanModes = regexp.MustCompile(`^(bridge|vepa|private|passthru)$`)
	ipvlanModes  = regexp.MustCompile(`^(l2|l3|l3s)$`)
	parentName   = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.:-]{0,14}$`)
)

func (t *translation) networkOptions(n *node, w *workload.Network) {
	opts := n.get("driver_opts")
	if opts != nil && opts.kind == listKind {
		t.fault(opts, "", "must be a mapping")
		return
	}
	for _, o := range t.pairsOf(opts) {
		set := func(key string, ok bool) {
			if !ok {
				t.fault(o.at, "", "%q is not possible here", clipped(o.value))
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
			if v, ok := t.truth(o.at, false); ok {
				w.IPv6 = w.IPv6 || v
			}
		case w.Driver == "" && usual(o.key, o.value):
		case w.Driver != "":
			t.fault(o.at, "parent, mtu and the mode are", "option %q is not possible on a device", clipped(o.key))
		default:
			t.fault(o.at, mtuOption+" and "+ipv6Option+" are", "option %q is not possible on a device", clipped(o.key))
		}
	}
}

// maxSubnets is one of each family, and some for several of a macvlan.
const maxSubnets = 16

func (t *translation) subnets(n *node, w *workload.Network) {
	t.isMapping(n.get("ipam"))
	for _, item := range t.list(n.get("ipam", "config"), maxSubnets) {
		s, ok := t.subnet(item)
		if !ok {
			continue
		}
		if i := slices.IndexFunc(w.Subnets, func(o workload.Subnet) bool { return o.Prefix.Overlaps(s.Prefix) }); i >= 0 {
			t.fault(item, "", "subnet %s overlaps %s", s.Prefix, w.Subnets[i].Prefix)
			continue
		}
		switch six := s.Prefix.Addr().Is6(); {
		case six && n.get("enable_ipv6").str() == "false":
			t.fault(item, "", "a subnet of IPv6, and enable_ipv6 is false")
		case six:
			w.IPv6 = true
		case w.NoIPv4:
			t.fault(item, "", "a subnet of IPv4, and enable_ipv4 is false")
		}
		w.Subnets = append(w.Subnets, s)
	}
}

func (t *translation) subnet(n *node) (workload.Subnet, bool) {
	var s workload.Subnet
	text := t.text(n.get("subnet"))
	if n.kind != mapKind || text == "" {
		t.fault(n, "write subnet: 10.1.2.0/24", "subnet is missing")
		return s, false
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Bits() == 0 || p.Addr().Is4In6() {
		t.fault(n.get("subnet"), "write it as 10.1.2.0/24", "%q is no subnet", clipped(text))
		return s, false
	}
	s.Prefix = p.Masked()
	if room := p.Addr().BitLen() - p.Bits(); room < 2 {
		t.fault(n.get("subnet"), "", "%s has no room for containers", p)
		return s, false
	}
	within := func(at *node, text string) (netip.Addr, bool) {
		a, err := netip.ParseAddr(text)
		if err != nil || !s.Prefix.Contains(a) {
			t.fault(at, "", "%q is no address within %s", clipped(text), s.Prefix)
			return a, false
		}
		return a, true
	}
	if g := n.get("gateway"); !g.isNull() {
		if a, ok := within(g, t.text(g)); ok {
			s.Gateway = a
		}
	}
	if r := n.get("ip_range"); !r.isNull() {
		v, err := netip.ParsePrefix(t.text(r))
		if err != nil || !s.Prefix.Contains(v.Addr()) || v.Bits() < s.Prefix.Bits() {
			t.fault(r, "", "%q is no range within %s", clipped(r.str()), s.Prefix)
		} else {
			s.Range = v.Masked()
		}
	}
	for _, x := range t.pairsOf(n.get("aux_addresses")) {
		if a, ok := within(x.at, strings.TrimSpace(x.value)); ok {
			s.Reserved = append(s.Reserved, a)
		}
	}
	return s, true
}

// fixedAddresses refuses addresses that their network does not have, and one address for two.
func (t *translation) fixedAddresses(p *workload.Project) {
	type place struct {
		network string
		addr    netip.Addr
	}
	taken := map[place]string{}
	for _, s := range p.Services {
		for _, a := range s.Networks {
			i := slices.IndexFunc(p.Networks, func(n workload.Network) bool { return n.Name == a.Network })
			for key, addr := range map[string]netip.Addr{"ipv4_address": a.IPv4, "ipv6_address": a.IPv6} {
				at := t.root.get("services", s.Name, "networks", a.Network, key)
				if !addr.IsValid() || i < 0 {
					continue
				}
				t.checkFixed(at, p.Networks[i], addr)
				if other, ok := taken[place{a.Network, addr}]; ok {
					t.fault(at, "", "%s is the address of service %s", addr, other)
				}
				taken[place{a.Network, addr}] = s.Name
				if s.Count() > 1 {
					t.fault(at, "", "%d replicas cannot have one address", s.Count())
				}
			}
		}
	}
}

func (t *translation) checkFixed(at *node, n workload.Network, addr netip.Addr) {
	if n.External != "" || t.isCut("networks."+n.Name) || t.isCut("networks."+n.Name+".ipam") {
		return
	}
	i := slices.IndexFunc(n.Subnets, func(s workload.Subnet) bool { return s.Prefix.Contains(addr) })
	switch {
	case i < 0:
		t.fault(at, "write the subnet under networks."+n.Name+".ipam.config", "network %s has no subnet that holds %s", n.Name, addr)
	case n.Subnets[i].Gateway == addr || !n.Subnets[i].Gateway.IsValid() && addr == n.Subnets[i].Prefix.Addr().Next():
		t.fault(at, "", "%s is the gateway of network %s", addr, n.Name)
	case addr == n.Subnets[i].Prefix.Addr():
		t.fault(at, "", "%s is the network itself", addr)
	}
}
