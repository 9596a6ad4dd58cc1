package compose

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// maxPorts bounds what ranges expand to in one project.
const maxPorts = 1024

// publication is a port with its position, for messages about both sides of a conflict.
type publication struct {
	at      *composefile.Node
	service string
	port    workload.Port
}

// servicePorts reads the ports of a service of some replicas.
func (t *translation) servicePorts(service string, n *composefile.Node, replicas int) []workload.Port {
	var out []workload.Port
	for _, item := range t.List(n, maxPorts) {
		for _, p := range t.portEntry(item, replicas) {
			if slices.Contains(out, p) {
				continue // written twice in one service: one port
			}
			out = append(out, p)
			t.ports = append(t.ports, publication{item, service, p})
		}
	}
	return out
}

func (t *translation) portEntry(n *composefile.Node, replicas int) []workload.Port {
	if n.Kind == composefile.Map {
		return t.longPort(n, replicas)
	}
	s := n.Text()
	if s == "" {
		t.Fault(n, "", "must be a port")
		return nil
	}
	if rangeWidth(s)+len(t.ports) > maxPorts {
		t.Fault(n, "", "more than %d ports in a project", maxPorts)
		return nil
	}
	parsed, err := types.ParsePortConfig(s)
	if err != nil {
		t.Fault(n, fixedPort, "%s", portFault(err))
		return nil
	}
	out := make([]workload.Port, 0, len(parsed))
	for _, c := range parsed {
		list := t.oneOf(n, replicas, c.HostIP, c.Published, strconv.FormatUint(uint64(c.Target), 10), c.Protocol)
		if list == nil {
			return nil
		}
		out = append(out, list...)
	}
	return out
}

// fixedPort is the syntax of a port.
const fixedPort = "write host:container, as in \"8080:80\""

// portFault rewrites an error of the library about a short form.
func portFault(err error) string {
	words := map[string]string{
		"invalid hostPort":      "%q is no port of the device, or range of ports",
		"invalid containerPort": "%q is no port of the container, or range of ports",
		"invalid proto":         "protocol %q is not possible: tcp, udp and sctp are",
		"invalid IP address":    "%q is no address of this device",
		"no port specified":     "%q names no port of the container",
		"invalid ranges specified for container and host Ports": "the ranges of host and container differ in length: %s",
	}
	what, value, _ := strings.Cut(err.Error(), ": ")
	if format, ok := words[what]; ok {
		return fmt.Sprintf(format, composefile.Clip(strings.TrimSuffix(value, "<empty>")))
	}
	return fmt.Sprintf("is no port: %v", err)
}

// oneOf reads a port of the container and a port of the host, or a range of host ports of which each replica gets one.
func (t *translation) oneOf(n *composefile.Node, replicas int, hostIP, published, target, protocol string) []workload.Port {
	first, last, isRange := strings.Cut(published, "-")
	p, ok := t.port(n, hostIP, first, target, protocol)
	if !ok {
		return nil
	}
	if !isRange {
		return []workload.Port{p}
	}
	end, ok := t.portNumber(n, last)
	if !ok {
		return nil
	}
	if have := int(end) - int(p.HostPort) + 1; have < replicas {
		t.Fault(n, "widen the range", "host ports %s are %d, and each of %d replicas needs one", published, max(have, 0), replicas)
		return nil
	}
	if replicas == 1 {
		return []workload.Port{p}
	}
	out := make([]workload.Port, replicas)
	for i := range out {
		out[i] = p
		out[i].HostPort, out[i].Replica = p.HostPort+uint16(i), i+1
	}
	return out
}

// ranges finds "from-to" in a short form, not within an IPv6 address.
var ranges = strict.Expression(`(?:^|:)(\d{1,5})-(\d{1,5})`)

// rangeWidth is the size of the largest range of a short form, which the library would expand.
func rangeWidth(s string) int {
	wide := 1
	for _, m := range ranges.Regexp().FindAllStringSubmatch(s, -1) {
		from, _ := strconv.Atoi(m[1])
		to, _ := strconv.Atoi(m[2])
		wide = max(wide, to-from+1)
	}
	return wide
}

func (t *translation) longPort(n *composefile.Node, replicas int) []workload.Port {
	target, protocol := n.Get("target"), n.Get("protocol").Text()
	if target.IsNull() {
		t.Fault(n, "", "target is missing")
		return nil
	}
	return t.oneOf(n, replicas, n.Get("host_ip").Text(), n.Get("published").Text(), target.Text(), protocol)
}

func (t *translation) port(n *composefile.Node, hostIP, published, target, protocol string) (workload.Port, bool) {
	p := workload.Port{Protocol: strings.ToLower(protocol)}
	p.Protocol = cmp.Or(p.Protocol, "tcp")
	switch p.Protocol {
	case "tcp", "udp", "sctp":
	default:
		return p, t.refuse(n, "", "protocol %q is not possible: tcp, udp and sctp are", composefile.Clip(protocol))
	}
	if published == "" {
		return p, t.refuse(n, fixedPort, "no host port: a device does not choose one at random")
	}
	var ok bool
	if p.HostPort, ok = t.portNumber(n, published); !ok {
		return p, false
	}
	if p.ContainerPort, ok = t.portNumber(n, target); !ok {
		return p, false
	}
	if hostIP != "" {
		addr, err := netip.ParseAddr(strings.Trim(hostIP, "[]"))
		if err != nil || addr.Zone() != "" {
			return p, t.refuse(n, "", "%q is no address of this device", hostIP)
		}
		if addr = addr.Unmap(); !addr.IsUnspecified() {
			p.HostIP = addr
		} else if addr.Is6() {
			p.HostIP = addr // "::" is not every address: IPv4 is left out
		}
	}
	return p, true
}

func (t *translation) portNumber(n *composefile.Node, s string) (uint16, bool) {
	v, err := strconv.ParseUint(s, 10, 16)
	if err != nil || v == 0 {
		return 0, t.refuse(n, "", "%q is no port", s)
	}
	return uint16(v), true
}

// checkPorts rejects a host port that is published twice.
func (t *translation) checkPorts() {
	if len(t.ports) > maxPorts {
		t.Fault(t.ports[maxPorts].at, "", "more than %d ports in a project", maxPorts)
		return
	}
	type key struct {
		protocol string
		port     uint16
	}
	taken := map[key][]publication{}
	for _, p := range t.ports {
		k := key{p.port.Protocol, p.port.HostPort}
		for _, other := range taken[k] {
			if p.port.Overlaps(other.port) {
				t.Fault(p.at, "", "host port %d/%s is taken by %s", k.port, k.protocol, other.at.Path)
				break
			}
		}
		taken[k] = append(taken[k], p)
	}
}

// reachable rejects ports that cannot be reached on any device.
func (t *translation) reachable(p *workload.Project) {
	networks := map[string]workload.Network{}
	for _, n := range p.Networks {
		networks[n.Name] = n
	}
	for i := range p.Services {
		s := &p.Services[i]
		if len(s.Networks) == 0 || slices.ContainsFunc(s.Networks, func(a workload.Attachment) bool { return t.undecided("networks." + a.Network) }) {
			continue // rejected elsewhere, or known only on a device
		}
		for _, pub := range t.ports {
			if pub.service != s.Name {
				continue
			}
			if why, hint := s.Unreachable(pub.port.HostIP, networks); why != "" {
				t.Fault(pub.at, hint, "%s", why)
			}
		}
	}
}
