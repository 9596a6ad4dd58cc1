package compose

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// defaultNetwork is the network of services without networks.
const defaultNetwork = "default"

// attachments are a service's networks: by priority, then in order of the file.
func (t *translation) attachments(service *composefile.Node, s *workload.Service) {
	n, mode := service.Get("networks"), service.Get("network_mode")
	if !t.networkMode(service, mode, s) {
		return
	}
	priorities, gateways := map[string]int64{}, map[string]int64{}
	add := func(at *composefile.Node, name string, a workload.Attachment) {
		switch {
		case slices.ContainsFunc(s.Networks, func(a workload.Attachment) bool { return a.Network == name }):
			t.Fault(at, "", "network %s is named twice", name)
		case name != defaultNetwork && t.root.Get("networks", name) == nil:
			t.Fault(at, "name it under \"networks:\" of the file", "network %q is not defined", name)
		default:
			a.Network = name
			s.Networks = append(s.Networks, a)
		}
	}
	switch {
	case n.IsNull():
	case n.Kind == composefile.Scalar:
		t.Fault(n, "", "must be a list or a mapping")
	case n.Kind == composefile.List:
		for _, item := range t.Elements(n) {
			add(item, item.Text(), workload.Attachment{})
		}
	default:
		for _, k := range n.Keys {
			c := n.Fields[k]
			if !c.IsNull() && c.Kind != composefile.Map {
				t.Fault(c, "", "must be a mapping")
				continue
			}
			priorities[k] = t.integer(c.Get("priority"), math.MinInt32, math.MaxInt32)
			gateways[k] = t.integer(c.Get("gw_priority"), math.MinInt32, math.MaxInt32)
			add(c, k, t.attachment(c))
		}
	}
	if len(s.Networks) == 0 {
		s.Networks = []workload.Attachment{{Network: defaultNetwork}}
	}
	slices.SortStableFunc(s.Networks, func(a, b workload.Attachment) int { return cmp.Compare(priorities[b.Network], priorities[a.Network]) })
	gateway := slices.MaxFunc(s.Networks, func(a, b workload.Attachment) int { return cmp.Compare(gateways[a.Network], gateways[b.Network]) })
	if gateways[gateway.Network] != 0 || slices.ContainsFunc(s.Networks, func(a workload.Attachment) bool { return gateways[a.Network] != 0 }) {
		i := slices.IndexFunc(s.Networks, func(a workload.Attachment) bool { return a.Network == gateway.Network })
		s.Networks[i].Gateway = true
	}
	if m := service.Get("mac_address"); !m.IsNull() {
		switch mac := t.mac(m); {
		case mac == "":
		case s.Networks[0].MAC != "" && s.Networks[0].MAC != mac:
			t.Fault(m, "", "it differs from that of network %s", s.Networks[0].Network)
		default:
			s.Networks[0].MAC = mac
		}
	}
	if c := service.Get("container_name"); !c.IsNull() {
		t.containerName(c, s)
	}
	t.distinctInterfaces(service, s)
}

// containerName adds container_name to the aliases of a service.
func (t *translation) containerName(n *composefile.Node, s *workload.Service) {
	name := t.Text(n)
	if !isHostname(name) {
		t.Fault(n, "", "%q is no name", composefile.Clip(name))
		return
	}
	for i := range s.Networks {
		if a := &s.Networks[i]; name != s.Name && !slices.Contains(a.Aliases, name) {
			a.Aliases = append(a.Aliases, name)
		}
	}
}

func (t *translation) attachment(n *composefile.Node) workload.Attachment {
	a := workload.Attachment{Aliases: t.aliases(n.Get("aliases")), Interface: t.interfaceName(n.Get("interface_name"))}
	if m := n.Get("mac_address"); !m.IsNull() {
		a.MAC = t.mac(m)
	}
	a.IPv4 = t.address(n.Get("ipv4_address"), true)
	a.IPv6 = t.address(n.Get("ipv6_address"), false)
	for _, o := range t.pairsOf(n.Get("driver_opts")) {
		if o.key != "com.docker.network.endpoint.ifname" {
			t.Fault(o.at, "com.docker.network.endpoint.ifname is", "option %q is not possible on a device", composefile.Clip(o.key))
			continue
		}
		if name := t.interfaceName(o.at); a.Interface != "" && a.Interface != o.value {
			t.Fault(o.at, "", "it differs from interface_name")
		} else if name == "" && o.at.Kind == composefile.Scalar && strings.Contains(o.at.Text(), "=") {
			a.Interface = o.value
		} else {
			a.Interface = name
		}
	}
	return a
}

var interfaceName = strict.Expression(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`)

func (t *translation) interfaceName(n *composefile.Node) string {
	s := t.Text(n)
	if s != "" && (!interfaceName.MatchString(s) || s == "lo" || s == "all" || s == "default") {
		t.Fault(n, "", "%q is no name of an interface", composefile.Clip(s))
		return ""
	}
	return s
}

func (t *translation) distinctInterfaces(service *composefile.Node, s *workload.Service) {
	seen := map[string]bool{}
	for _, a := range s.Networks {
		if a.Interface != "" && seen[a.Interface] {
			t.Fault(service.Get("networks", a.Network), "", "interface %s is named twice", a.Interface)
		}
		seen[a.Interface] = true
	}
}

func (t *translation) mac(n *composefile.Node) string {
	text := strings.ToLower(strings.ReplaceAll(t.Text(n), "-", ":"))
	if !hardware.MatchString(text) {
		t.Fault(n, "write six bytes: 02:42:ac:11:00:02", "%q is no hardware address of an interface", composefile.Clip(n.Text()))
		return ""
	}
	return text
}

// hardware matches a unicast address: the lowest bit of its first byte is not set.
var hardware = strict.Expression(`^[0-9a-f][02468ace](:[0-9a-f]{2}){5}$`)

func (t *translation) address(n *composefile.Node, four bool) netip.Addr {
	if n.IsNull() {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(t.Text(n))
	if err != nil || a.Zone() != "" || a.Unmap().Is4() != four || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() {
		family := map[bool]string{true: "IPv4", false: "IPv6"}[four]
		t.Fault(n, "", "%q is no %s address of a container", composefile.Clip(n.Text()), family)
		return netip.Addr{}
	}
	return a.Unmap()
}

func (t *translation) aliases(n *composefile.Node) []string {
	var out []string
	for _, item := range t.Elements(n) {
		switch s := item.Text(); {
		case !isHostname(s):
			t.Fault(item, "", "%q is no host name", s)
		case !slices.Contains(out, s):
			out = append(out, s)
		}
	}
	return out
}

// networkMode reports whether the service has networks of the project.
func (t *translation) networkMode(service, n *composefile.Node, s *workload.Service) bool {
	mode := t.Text(n)
	networks := service.Get("networks")
	if mode != "" && !networks.IsNull() {
		return t.refuse(n, "", "there are networks beside it: a service has one or the other")
	}
	if mode == "" || mode == "bridge" || mode == "default" {
		return true
	}
	s.Namespaces.Network = t.namespace(n, nil, "host", "none", "bridge")
	if m := service.Get("mac_address"); !m.IsNull() {
		t.Fault(m, "", "the service has no network of its own that could have it")
	}
	return false
}

// sharedWith is the service of a mode like "service:NAME", or "container:NAME" with the container_name of a service of the file.
func (t *translation) sharedWith(mode string) (service string, ok bool) {
	if name, ok := strings.CutPrefix(mode, "container:"); ok {
		return t.containerNamed(name)
	}
	return strings.CutPrefix(mode, "service:")
}

// containerNamed is the service with a container_name.
func (t *translation) containerNamed(name string) (service string, ok bool) {
	composefile.Each(t.root.Get("services"), func(k string, s *composefile.Node) {
		if c := s.Get("container_name"); !ok && !c.IsNull() && c.Text() == name {
			service, ok = k, true
		}
	})
	return service, ok
}

// exposure checks ports against the network of a service, and reads names and resolvers.
func (t *translation) exposure(n *composefile.Node, s *workload.Service) {
	ports := n.Get("ports")
	switch s.Namespaces.Network {
	case "":
	case workload.HostNamespace:
		for _, p := range s.Ports {
			if p.HostPort != p.ContainerPort {
				t.Fault(ports, "let the program listen on the port itself", "port %d cannot become %d: the service has the network of the device itself", p.ContainerPort, p.HostPort)
				break
			}
		}
		if len(s.Ports) > 0 {
			t.Notice(ports, "no effect: the service has the network of the device itself, with all its ports")
		}
		s.Ports = nil
		t.ports = slices.DeleteFunc(t.ports, func(p publication) bool { return p.service == s.Name })
	default:
		if len(s.Ports) > 0 {
			hint := ""
			if other := s.Namespaces.Network.Service(); other != "" {
				hint = "write the ports at service " + other + ", whose network it is"
			}
			t.Fault(ports, hint, "the service has no network of its own that could publish ports")
		}
	}
	t.names(n, s)
}

func (t *translation) names(n *composefile.Node, s *workload.Service) {
	for _, p := range t.hostEntries(n.Get("extra_hosts")) {
		address := strings.Trim(strings.TrimSpace(p.value), "[]")
		if address != "host-gateway" {
			a, err := netip.ParseAddr(address)
			if err != nil || a.Zone() != "" {
				t.Fault(p.at, "write name=address, or name=host-gateway", "%q is no address", composefile.Clip(p.value))
				continue
			}
			address = a.String()
		}
		if !isHostname(p.key) {
			t.Fault(p.at, "", "%q is no host name", composefile.Clip(p.key))
			continue
		}
		s.Hosts = append(s.Hosts, workload.Host{Name: p.key, Address: address})
	}
	for _, item := range t.Elements(n.Get("dns")) {
		a, err := netip.ParseAddr(item.Text())
		if err != nil {
			t.Fault(item, "", "%q is no address of a name server", composefile.Clip(item.Text()))
			continue
		}
		s.DNS.Servers = append(s.DNS.Servers, a)
	}
	s.DNS.Search = t.matching(n.Get("dns_search"), domain.MatchString, "", "domain")
	s.DNS.Options = t.matching(n.Get("dns_opt"), resolverOption.MatchString, "", "option of a resolver")
}

var (
	domain         = strict.Short(`^(\.|[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?)$`, 254) // "." alone: none
	resolverOption = strict.Expression(`^[a-z0-9-]+(:[0-9]+)?$`)
)

// hostEntries are names with their addresses: a mapping, whose values may be lists, or a list of "name=address" and
// "name:address".
func (t *translation) hostEntries(n *composefile.Node) []pair {
	var out []pair
	if !n.IsNull() && n.Kind == composefile.Map {
		for _, k := range n.Keys {
			for _, item := range t.Elements(n.Fields[k]) {
				out = append(out, pair{item, k, item.Text(), true})
			}
		}
		return out
	}
	for _, item := range t.Elements(n) {
		name, address, ok := strings.Cut(item.Text(), "=")
		if !ok {
			name, address, ok = strings.Cut(item.Text(), ":")
		}
		if !ok {
			t.Fault(item, "write name=address", "%q has no address", composefile.Clip(item.Text()))
			continue
		}
		out = append(out, pair{item, name, address, true})
	}
	return out
}
