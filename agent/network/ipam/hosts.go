package ipam

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Hosts is the hosts file of a container: complete, and valid until the project's services change.
func (s *State) Hosts(project string, a *Attachment) []byte {
	p := s.Projects[project]
	var b bytes.Buffer
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	own := []string{a.Hostname}
	if a.Domain != "" && !strings.HasSuffix(a.Hostname, "."+a.Domain) {
		own = []string{a.Hostname + "." + a.Domain, a.Hostname}
	}
	if short, _, ok := strings.Cut(a.Hostname, "."); ok && short != "" {
		own = append(own, short)
	}
	known := 0
	for f := range Families {
		for _, n := range a.Networks {
			if address := p.Address(a, n, f); address.IsValid() {
				writeHost(&b, address, own)
				known++
				break
			}
		}
	}
	if known == 0 {
		writeHost(&b, netip.AddrFrom4([4]byte{127, 0, 0, 1}), own)
	}
	l := lines{out: &b, a: a, own: own, seen: map[[3]string]bool{}}
	l.extra(p)
	for _, n := range a.Networks {
		l.services(p, n, "")
		for _, other := range slices.Sorted(maps.Keys(s.Projects)) {
			for _, m := range slices.Sorted(maps.Keys(s.Projects[other].Networks)) {
				if shared := p.Networks[n].Shared; other != project && shared != "" && s.Projects[other].Networks[m].Shared == shared {
					l.services(s.Projects[other], m, other)
				}
			}
		}
	}
	return b.Bytes()
}

// lines writes lines of a hosts file so that each name has one meaning.
type lines struct {
	out   *bytes.Buffer
	a     *Attachment
	own   []string           // the container's own names
	given []string           // names of extra_hosts, which override others
	seen  map[[3]string]bool // family, project and service, name
}

// add writes a line of the names of a service that were not written for another address of the family.
func (l *lines) add(service string, own bool, to netip.Addr, names ...string) {
	if !to.IsValid() {
		return
	}
	var fresh []string
	for _, name := range names {
		// A program that binds to its own name needs its own address, so the name must not also mean the service's.
		key := [3]string{strconv.Itoa(int(FamilyOf(to))), service, name}
		if !l.seen[key] && !(own && slices.Contains(l.own, name)) && !slices.Contains(l.given, name) {
			l.seen[key] = true
			fresh = append(fresh, name)
		}
	}
	writeHost(l.out, to, fresh)
}

// services writes the names of a network's services; other is their project, if it is another one.
func (l *lines) services(p *Project, network, other string) {
	for _, sv := range slices.Sorted(maps.Keys(p.Services)) {
		pl := p.Services[sv].Endpoints[network]
		if pl == nil || other != "" && l.wrote(sv) {
			continue
		}
		own, count := other == "" && sv == l.a.Service, p.Services[sv].Replicas
		for f := range Families {
			for _, to := range p.addressesOf(sv, network, f, 0) {
				l.add(other+"/"+sv, own, to, slices.Concat([]string{sv}, pl.Aliases, p.free(network, p.Services[sv].Hostname))...)
			}
			for r := range count {
				replica := r + 1
				if count == 1 {
					replica = 0 // its address is the service's
				}
				for _, to := range p.addressesOf(sv, network, f, replica) {
					l.add(other+"/"+sv, own, to, p.free(network, sv+"-"+strconv.Itoa(r+1))...)
				}
			}
		}
	}
}

// wrote reports whether a name was written already.
func (l *lines) wrote(name string) bool {
	for key := range l.seen {
		if key[2] == name {
			return true
		}
	}
	return slices.Contains(l.own, name) || slices.Contains(l.given, name)
}

// extra writes the lines of extra_hosts.
func (l *lines) extra(p *Project) {
	for _, h := range l.a.Hosts {
		addresses := p.gateways(l.a)
		if a, err := netip.ParseAddr(h.Address); err == nil {
			addresses = []netip.Addr{a}
		}
		for _, a := range addresses {
			writeHost(l.out, a, []string{h.Name})
		}
		l.given = append(l.given, h.Name)
	}
}

// ExtraHosts writes the lines of a container's extra_hosts.
func (p *Project) ExtraHosts(out *bytes.Buffer, a *Attachment) { (&lines{out: out, a: a}).extra(p) }

// gateways are the addresses at which a container reaches the device.
func (p *Project) gateways(a *Attachment) []netip.Addr {
	if a.Host {
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	}
	var out []netip.Addr
	for f := range Families {
		n := p.Ingress(a, f)
		for _, other := range a.Networks {
			if n == "" && p.Networks[other].Routed() && p.Networks[other].Family(f).Valid() {
				n = other // an internal one: the device itself is there
			}
		}
		if n != "" {
			out = append(out, p.Networks[n].Family(f).GatewayAddr())
		}
	}
	return out
}

// addressesOf are the addresses of a service's name on a network, or of the name of one of its replicas: a stable one, or those of
// the backends where this device does not route.
func (p *Project) addressesOf(service, network string, f Family, replica int) []netip.Addr {
	sv, b := p.Services[service], p.Networks[network]
	t := sv.Endpoints[network].Family(f)
	if b.Routed() {
		if replica > 0 {
			return []netip.Addr{t.Each[replica]}
		}
		return []netip.Addr{t.VIP}
	}
	ids := p.Backends(service)
	if replica > 0 {
		ids = []string{p.Replica(service, replica)}
	}
	var out []netip.Addr
	for _, id := range ids {
		if a := p.Attachments[id]; a != nil && slices.Contains(a.Networks, network) {
			out = append(out, p.Address(a, network, f))
		}
	}
	return out
}

// free is a further name of a service on a network: its containers' host name, or that of a replica. It is none if a service or an alias
// there has it.
func (p *Project) free(network, name string) []string {
	for sv, s := range p.Services {
		if pl := s.Endpoints[network]; name == "" || pl != nil && (sv == name || slices.Contains(pl.Aliases, name)) {
			return nil
		}
	}
	return []string{name}
}

func writeHost(b *bytes.Buffer, a netip.Addr, names []string) {
	if len(names) > 0 && a.IsValid() {
		fmt.Fprintf(b, "%s\t%s\n", a, strings.Join(names, " "))
	}
}
