package compose

import (
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/longshore-dev/longshore/agent/workload"
)

// maxPorts bounds what ranges expand to in one project.
const maxPorts = 1024

// publication remembers where a port was asked for, to tell both sides of a clash.
type publication struct {
	at      *node
	service string
	port    workload.Port
}

func (t *translation) servicePorts(service string, n *node) []workload.Port {
	if n.isNull() {
		return nil
	}
	if n.kind != listKind {
		t.fault(n, "", "must be a list")
		return nil
	}
	var out []workload.Port
	for _, item := range n.items {
		for _, p := range t.portEntry(item) {
			if slices.Contains(out, p) {
				continue // written twice in one service: one port
			}
			out = append(out, p)
			t.ports = append(t.ports, publication{item, service, p})
		}
	}
	return out
}

func (t *translation) portEntry(n *node) []workload.Port {
	if n.kind == mapKind {
		return t.longPort(n)
	}
	s := n.str()
	if s == "" {
		t.fault(n, "", "must be a port")
		return nil
	}
	if width(s)+len(t.ports) > maxPorts {
		t.fault(n, "", "more than %d ports in a project", maxPorts)
		return nil
	}
	parsed, err := types.ParsePortConfig(s)
	if err != nil {
		t.fault(n, "", "%v", err)
		return nil
	}
	out := make([]workload.Port, 0, len(parsed))
	for _, c := range parsed {
		p, ok := t.port(n, c.HostIP, c.Published, strconv.FormatUint(uint64(c.Target), 10), c.Protocol)
		if !ok {
			return nil
		}
		out = append(out, p)
	}
	return out
}

// ranges finds "from-to" in a short form, not within an IPv6 address.
var ranges = regexp.MustCompile(`(?:^|:)(\d{1,5})-(\d{1,5})`)

// width is how many ports the widest range of a short form has; the library expands it before it can be asked.
func width(s string) int {
	wide := 1
	for _, m := range ranges.FindAllStringSubmatch(s, -1) {
		from, _ := strconv.Atoi(m[1])
		to, _ := strconv.Atoi(m[2])
		wide = max(wide, to-from+1)
	}
	return wide
}

func (t *translation) longPort(n *node) []workload.Port {
	target, protocol := n.get("target"), n.get("protocol").str()
	if target.isNull() {
		t.fault(n, "", "target is missing")
		return nil
	}
	p, ok := t.port(n, n.get("host_ip").str(), n.get("published").str(), target.str(), protocol)
	if !ok {
		return nil
	}
	return []workload.Port{p}
}

func (t *translation) port(n *node, hostIP, published, target, protocol string) (workload.Port, bool) {
	p := workload.Port{Protocol: strings.ToLower(protocol)}
	if p.Protocol == "" {
		p.Protocol = "tcp"
	}
	switch p.Protocol {
	case "tcp", "udp", "sctp":
	default:
		t.fault(n, "", "protocol %q is not possible: tcp, udp and sctp are", clipped(protocol))
		return p, false
	}
	const fixed = "write host:container, as in \"8080:80\""
	switch {
	case published == "":
		t.fault(n, fixed, "no host port: a device does not choose one at random")
		return p, false
	case strings.Contains(published, "-"):
		t.fault(n, fixed, "host ports %s for one port of the container: a device does not choose one", published)
		return p, false
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
			t.fault(n, "", "%q is no address of this device", hostIP)
			return p, false
		}
		if addr = addr.Unmap(); !addr.IsUnspecified() {
			p.HostIP = addr
		} else if addr.Is6() {
			p.HostIP = addr // "::" is not every address: IPv4 is left out
		}
	}
	return p, true
}

func (t *translation) portNumber(n *node, s string) (uint16, bool) {
	v, err := strconv.ParseUint(s, 10, 16)
	if err != nil || v == 0 {
		t.fault(n, "", "%q is no port", s)
		return 0, false
	}
	return uint16(v), true
}

// checkPorts refuses one port of the host asked for twice.
func (t *translation) checkPorts() {
	if len(t.ports) > maxPorts {
		t.fault(t.ports[maxPorts].at, "", "more than %d ports in a project", maxPorts)
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
			if overlap(p.port.HostIP, other.port.HostIP) {
				t.fault(p.at, "", "host port %d/%s is taken by %s", k.port, k.protocol, other.at.path)
				break
			}
		}
		taken[k] = append(taken[k], p)
	}
}

// overlap tells whether two addresses cannot both listen on one port.
func overlap(a, b netip.Addr) bool {
	if !a.IsValid() || !b.IsValid() || a == b {
		return true
	}
	return a.Is4() == b.Is4() && (a.IsUnspecified() || b.IsUnspecified())
}
