package compose

import (
	"cmp"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// defaultNetwork is what services without networks share.
const defaultNetwork = "default"

// attachments are a service's networks: by priority, then in order of the file.
func (t *translation) attachments(service *node, s *workload.Service) {
	n, mode := service.get("networks"), service.get("network_mode")
	if !t.networkMode(service, mode, s) {
		return
	}
	priorities, gateways := map[string]int64{}, map[string]int64{}
	add := func(at *node, name string, a workload.Attachment) {
		switch {
		case slices.ContainsFunc(s.Networks, func(a workload.Attachment) bool { return a.Network == name }):
			t.fault(at, "", "network %s is named twice", name)
		case name != defaultNetwork && t.root.get("networks", name) == nil:
			t.fault(at, "name it under \"networks:\" of the file", "network %q is not defined", name)
		default:
			a.Network = name
			s.Networks = append(s.Networks, a)
		}
	}
	switch {
	case n.isNull():
	case n.kind == scalarKind:
		t.fault(n, "", "must be a list or a mapping")
	case n.kind == listKind:
		for _, item := range t.elements(n) {
			add(item, item.str(), workload.Attachment{})
		}
	default:
		for _, k := range n.keys {
			c := n.fields[k]
			if !c.isNull() && c.kind != mapKind {
				t.fault(c, "", "must be a mapping")
				continue
			}
			priorities[k] = t.integer(c.get("priority"), math.MinInt32, math.MaxInt32)
			gateways[k] = t.integer(c.get("gw_priority"), math.MinInt32, math.MaxInt32)
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
	if m := service.get("mac_address"); !m.isNull() {
		switch mac := t.mac(m); {
		case mac == "":
		case s.Networks[0].MAC != "" && s.Networks[0].MAC != mac:
			t.fault(m, "", "network %s says another one", s.Networks[0].Network)
		default:
			s.Networks[0].MAC = mac
		}
	}
	if c := service.get("container_name"); !c.isNull() {
		t.containerName(c, s)
	}
	t.distinctInterfaces(service, s)
}

// containerName makes a service known by what its container is called elsewhere.
func (t *translation) containerName(n *node, s *workload.Service) {
	name := t.text(n)
	if !isHostname(name) {
		t.fault(n, "", "%q is no name", clipped(name))
		return
	}
	for i := range s.Networks {
		if a := &s.Networks[i]; name != s.Name && !slices.Contains(a.Aliases, name) {
			a.Aliases = append(a.Aliases, name)
		}
	}
}

func (t *translation) attachment(n *node) workload.Attachment {
	a := workload.Attachment{Aliases: t.aliases(n.get("aliases")), Interface: t.interfaceName(n.get("interface_name"))}
	if m := n.get("mac_address"); !m.isNull() {
		a.MAC = t.mac(m)
	}
	a.IPv4 = t.address(n.get("ipv4_address"), true)
	a.IPv6 = t.address(n.get("ipv6_address"), false)
	for _, o := range t.pairsOf(n.get("driver_opts")) {
		if o.key != "com.docker.network.endpoint.ifname" {
			t.fault(o.at, "com.docker.network.endpoint.ifname is", "option %q is not possible on a device", clipped(o.key))
			continue
		}
		if name := t.interfaceName(o.at); a.Interface != "" && a.Interface != o.value {
			t.fault(o.at, "", "interface_name says something else")
		} else if name == "" && o.at.kind == scalarKind && strings.Contains(o.at.str(), "=") {
			a.Interface = o.value
		} else {
			a.Interface = name
		}
	}
	return a
}

var interfaceName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,14}$`)

func (t *translation) interfaceName(n *node) string {
	s := t.text(n)
	if s != "" && (!interfaceName.MatchString(s) || s == "lo" || s == "all" || s == "default") {
		t.fault(n, "", "%q is no name of an interface", clipped(s))
		return ""
	}
	return s
}

func (t *translation) distinctInterfaces(service *node, s *workload.Service) {
	seen := map[string]bool{}
	for _, a := range s.Networks {
		if a.Interface != "" && seen[a.Interface] {
			t.fault(service.get("networks", a.Network), "", "interface %s is named twice", a.Interface)
		}
		seen[a.Interface] = true
	}
}

func (t *translation) mac(n *node) string {
	text := strings.ToLower(strings.ReplaceAll(t.text(n), "-", ":"))
	if !hardware.MatchString(text) {
		t.fault(n, "write six bytes: 02:42:ac:11:00:02", "%q is no hardware address of an interface", clipped(n.str()))
		return ""
	}
	return text
}

// hardware is the address of one interface, not of a group: the lowest bit of its first byte is not set.
var hardware = regexp.MustCompile(`^[0-9a-f][02468ace](:[0-9a-f]{2}){5}$`)

func (t *translation) address(n *node, four bool) netip.Addr {
	if n.isNull() {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(t.text(n))
	if err != nil || a.Zone() != "" || a.Unmap().Is4() != four || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() {
		family := map[bool]string{true: "IPv4", false: "IPv6"}[four]
		t.fault(n, "", "%q is no %s address of a container", clipped(n.str()), family)
		return netip.Addr{}
	}
	return a.Unmap()
}

func (t *translation) aliases(n *node) []string {
	var out []string
	for _, item := range t.elements(n) {
		switch s := item.str(); {
		case !isHostname(s):
			t.fault(item, "", "%q is no host name", s)
		case !slices.Contains(out, s):
			out = append(out, s)
		}
	}
	return out
}

// networkMode reports whether the service has networks of the project.
func (t *translation) networkMode(service, n *node, s *workload.Service) bool {
	mode := t.text(n)
	networks := service.get("networks")
	if mode != "" && !networks.isNull() {
		t.fault(n, "", "there are networks beside it: a service has one or the other")
		return false
	}
	name, shared := t.sharedWith(mode)
	switch {
	case mode == "", mode == "bridge", mode == "default":
		return true
	case mode == "host":
		s.Namespaces.Network = workload.HostNamespace
	case mode == "none":
		s.Namespaces.Network = workload.NoNamespace
	case shared && name == s.Name:
		t.fault(n, "", "a service cannot share its own network with itself")
	case shared && t.root.get("services", name) != nil:
		s.Namespaces.Network = workload.ServiceNamespace(name)
	case shared:
		t.fault(n, t.offHint(name), "service %q is not defined", clipped(name))
	case strings.HasPrefix(mode, "container:"):
		t.fault(n, "share it with a service of the project: service:NAME", "no service of the file has container_name %q", clipped(strings.TrimPrefix(mode, "container:")))
	default:
		t.fault(n, "name the networks of the service with \"networks:\"", "%q is none of host, none, bridge, service:NAME", clipped(mode))
	}
	if m := service.get("mac_address"); !m.isNull() {
		t.fault(m, "", "the service has no network of its own that could have it")
	}
	return false
}

// sharedWith is the service whose namespace a mode like "service:NAME" names, or "container:NAME" with the container_name of a
// service of the file.
func (t *translation) sharedWith(mode string) (service string, ok bool) {
	if name, ok := strings.CutPrefix(mode, "container:"); ok {
		return t.containerNamed(name)
	}
	return strings.CutPrefix(mode, "service:")
}

// containerNamed is the service whose container_name it is.
func (t *translation) containerNamed(name string) (service string, ok bool) {
	fields(t.root.get("services"), func(k string, s *node) {
		if c := s.get("container_name"); !ok && !c.isNull() && c.str() == name {
			service, ok = k, true
		}
	})
	return service, ok
}

// exposure checks ports against the network that a service has, and reads names and resolvers.
func (t *translation) exposure(n *node, s *workload.Service) {
	ports := n.get("ports")
	switch s.Namespaces.Network {
	case "":
	case workload.HostNamespace:
		for _, p := range s.Ports {
			if p.HostPort != p.ContainerPort {
				t.fault(ports, "let the program listen on the port itself", "port %d cannot become %d: the service has the network of the device itself", p.ContainerPort, p.HostPort)
				break
			}
		}
		if len(s.Ports) > 0 {
			t.notice(ports, "no effect: the service has the network of the device itself, with all its ports")
		}
		s.Ports = nil
		t.ports = slices.DeleteFunc(t.ports, func(p publication) bool { return p.service == s.Name })
	default:
		if len(s.Ports) > 0 {
			hint := ""
			if other := s.Namespaces.Network.Service(); other != "" {
				hint = "write the ports at service " + other + ", whose network it is"
			}
			t.fault(ports, hint, "the service has no network of its own that could publish ports")
		}
	}
	t.names(n, s)
}

func (t *translation) names(n *node, s *workload.Service) {
	for _, p := range t.hostEntries(n.get("extra_hosts")) {
		address := strings.Trim(strings.TrimSpace(p.value), "[]")
		if address != "host-gateway" {
			a, err := netip.ParseAddr(address)
			if err != nil || a.Zone() != "" {
				t.fault(p.at, "write name=address, or name=host-gateway", "%q is no address", clipped(p.value))
				continue
			}
			address = a.String()
		}
		if !isHostname(p.key) {
			t.fault(p.at, "", "%q is no host name", clipped(p.key))
			continue
		}
		s.Hosts = append(s.Hosts, workload.Host{Name: p.key, Address: address})
	}
	for _, item := range t.elements(n.get("dns")) {
		a, err := netip.ParseAddr(item.str())
		if err != nil {
			t.fault(item, "", "%q is no address of a name server", clipped(item.str()))
			continue
		}
		s.DNS.Servers = append(s.DNS.Servers, a)
	}
	for _, item := range t.elements(n.get("dns_search")) {
		if v := item.str(); v != "." && !domain.MatchString(v) {
			t.fault(item, "", "%q is no domain", clipped(v))
			continue
		}
		s.DNS.Search = append(s.DNS.Search, item.str())
	}
	for _, item := range t.elements(n.get("dns_opt")) {
		if !resolverOption.MatchString(item.str()) {
			t.fault(item, "", "%q is no option of a resolver", clipped(item.str()))
			continue
		}
		s.DNS.Options = append(s.DNS.Options, item.str())
	}
}

var (
	domain         = strict.Short(`^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?$`, 254)
	resolverOption = regexp.MustCompile(`^[a-z0-9-]+(:[0-9]+)?$`)
)

// hostEntries are names with their addresses: a mapping, whose values may be lists, or a list of "name=address" and
// "name:address".
func (t *translation) hostEntries(n *node) []pair {
	var out []pair
	if !n.isNull() && n.kind == mapKind {
		for _, k := range n.keys {
			for _, item := range t.elements(n.fields[k]) {
				out = append(out, pair{item, k, item.str(), true})
			}
		}
		return out
	}
	for _, item := range t.elements(n) {
		name, address, ok := strings.Cut(item.str(), "=")
		if !ok {
			name, address, ok = strings.Cut(item.str(), ":")
		}
		if !ok {
			t.fault(item, "write name=address", "%q has no address", clipped(item.str()))
			continue
		}
		out = append(out, pair{item, name, address, true})
	}
	return out
}
