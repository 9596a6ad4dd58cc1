package workload

import (
	"fmt"
	"net/netip"
	"strings"
)

// Claim is something of a device that one service uses exclusively: a port, a serial port, a range of addresses.
type Claim struct {
	Service string
	Path    string       // in the Compose file: "services.web.ports"
	What    string       // for display; equal for two claims of one thing: "port 8080/tcp"
	At      netip.Prefix // addresses of the device or of a network that it is about; zero: all
}

// Conflicts reports whether a device cannot fulfil both.
func (c Claim) Conflicts(o Claim) bool {
	return c.What == o.What && (!c.At.IsValid() || !o.At.IsValid() || c.At.Overlaps(o.At))
}

// Overlaps reports whether two publish one port of one address.
func (p Port) Overlaps(q Port) bool { return p.claim().Conflicts(q.claim()) }

func (p Port) claim() Claim {
	c := Claim{What: fmt.Sprintf("port %d/%s", p.HostPort, p.Protocol)}
	if p.HostIP.IsValid() && !p.HostIP.IsUnspecified() {
		c.At = netip.PrefixFrom(p.HostIP, p.HostIP.BitLen())
	}
	return c
}

// serialPort matches the names of devices that one program at a time can read.
const serialPort = "/dev/tty"

// SerialPort reports whether the device supports one reader only: each of two would get half of the bytes.
func (d Device) SerialPort() bool {
	return strings.HasPrefix(d.HostPath, serialPort) && d.HostPath != serialPort
}

// Claims lists what the project's services use exclusively, in order of services.
func (p *Project) Claims() []Claim {
	var out []Claim
	for _, s := range p.Services {
		for _, port := range s.Ports {
			c := port.claim()
			c.Service, c.Path = s.Name, "services."+s.Name+".ports"
			out = append(out, c)
		}
		for _, d := range s.Devices {
			if d.SerialPort() {
				out = append(out, Claim{Service: s.Name, Path: fmt.Sprintf("services.%s.devices[%d]", s.Name, d.At), What: "serial port " + d.HostPath})
			}
		}
	}
	for _, n := range p.Networks {
		if n.External != "" || n.Driver != "" {
			continue
		}
		for _, s := range n.Subnets {
			out = append(out, Claim{Path: "networks." + n.Name + ".ipam", What: "addresses of a network", At: s.Prefix})
		}
	}
	return out
}

// Unreachable says why ports of a service cannot be reached at an address of the device, and what to do; "" when they can. host is the
// zero value for all addresses; networks are the project's by name.
func (s *Service) Unreachable(host netip.Addr, networks map[string]Network) (why, hint string) {
	if host.IsUnspecified() {
		host = netip.Addr{}
	}
	if host.IsLoopback() && host.Is6() {
		return "the kernel forwards nothing from the IPv6 loopback", "publish it on 127.0.0.1, or on an address of the device"
	}
	for _, at := range s.Networks {
		n := networks[at.Network]
		six := n.IPv6 || n.External != "" // the addresses of an external network are known when it is joined
		for _, sub := range n.Subnets {
			six = six || sub.Prefix.Addr().Is6()
		}
		if !n.Internal && n.Driver == "" && (!host.Is6() || six) && (!host.Is4() || !n.NoIPv4) {
			return "", ""
		}
	}
	return "none of its networks leads there", "published ports need a bridge network that is not internal, with IPv6 where the host address is IPv6"
}
