package network

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// state is all that a manager decided. Whatever is in the kernel follows from it, so it is saved before the kernel is
// changed. A nil map reads as an empty one.
type state struct {
	Projects map[string]*project `json:"projects"`
}

// project is what one project has.
type project struct {
	Networks    map[string]*bridge     `json:"networks"`
	Services    map[string]*service    `json:"services"`
	Attachments map[string]*attachment `json:"attachments"` // by container id
}

// bridge is one network of a project.
type bridge struct {
	Subnet netip.Prefix `json:"subnet"` // its first address is the gateway
	Name   string       `json:"name"`   // of the interface
	Wanted bool         `json:"wanted"` // by the project as last prepared; others stay while a container uses them
}

// service is what all replicas and revisions of one service share.
type service struct {
	Wanted   bool              `json:"wanted"`
	Replicas int               `json:"replicas,omitempty"` // as last prepared; 0: one
	Active   actives           `json:"active,omitempty"`   // the attached containers that answer, by replica
	First    string            `json:"first,omitempty"`    // id of the attached container that answers while none is active
	Ports    []port            `json:"ports"`              // as last prepared
	Places   map[string]*place `json:"places"`             // by network
}

// actives are ids of containers by replica.
type actives map[int]string

// UnmarshalJSON reads also what version 1 of the file had: the one id, or "". Its replica is not known yet: 0.
func (a *actives) UnmarshalJSON(data []byte) error {
	var one string
	if json.Unmarshal(data, &one) == nil {
		if *a = nil; one != "" {
			*a = actives{0: one}
		}
		return nil
	}
	return json.Unmarshal(data, (*map[int]string)(a))
}

// place is a service's part of one network.
type place struct {
	Wanted    bool                  `json:"wanted"`
	VIP       netip.Addr            `json:"vip"`
	Aliases   []string              `json:"aliases"`
	Addresses map[string]netip.Addr `json:"addresses"`      // by seat
	Each      map[int]netip.Addr    `json:"each,omitempty"` // address of each replica's name, where there are several
}

// attachment is one container.
type attachment struct {
	Service  string   `json:"service"`
	Replica  int      `json:"replica"`
	Slot     int      `json:"slot"` // which of the replica's addresses: two revisions of one replica live side by side in an update
	Hostname string   `json:"hostname"`
	Networks []string `json:"networks"` // in order; the first is the default route
	Ports    []port   `json:"ports"`
}

// port is one published port.
type port struct {
	Host          netip.Addr `json:"host"` // zero: every address
	HostPort      uint16     `json:"hostPort"`
	ContainerPort uint16     `json:"containerPort"`
	Protocol      string     `json:"protocol"`
}

func (p port) String() string {
	if p.Host.IsValid() {
		return fmt.Sprintf("%s:%d/%s", p.Host, p.HostPort, p.Protocol)
	}
	return fmt.Sprintf("%d/%s", p.HostPort, p.Protocol)
}

// clashes tells whether both cannot be published at once.
func (p port) clashes(q port) bool {
	return p.HostPort == q.HostPort && p.Protocol == q.Protocol &&
		(!p.Host.IsValid() || !q.Host.IsValid() || p.Host == q.Host)
}

// seat names an address of a place.
func seat(replica, slot int) string { return strconv.Itoa(replica) + "." + strconv.Itoa(slot) }

// gateway is the bridge's own address.
func (b *bridge) gateway() netip.Addr { return b.Subnet.Addr().Next() }

// address is where a container is on a network of its project; invalid when it is not there.
func (p *project) address(a *attachment, network string) netip.Addr {
	s := p.Services[a.Service]
	if s == nil || s.Places[network] == nil {
		return netip.Addr{}
	}
	return s.Places[network].Addresses[seat(a.Replica, a.Slot)]
}

// find returns the project that a container is attached to.
func (s *state) find(id string) (string, *project) {
	for name, p := range s.Projects {
		if p.Attachments[id] != nil {
			return name, p
		}
	}
	return "", nil
}

// clone copies everything, so that a change can be dropped when it does not work out.
func (s *state) clone() *state {
	c := &state{Projects: make(map[string]*project, len(s.Projects))}
	for name, p := range s.Projects {
		q := newProject()
		for n, b := range p.Networks {
			v := *b
			q.Networks[n] = &v
		}
		for n, sv := range p.Services {
			v := *sv
			v.Ports, v.Places, v.Active = slices.Clone(sv.Ports), make(map[string]*place, len(sv.Places)), maps.Clone(sv.Active)
			for k, pl := range sv.Places {
				w := *pl
				w.Aliases, w.Addresses, w.Each = slices.Clone(pl.Aliases), maps.Clone(pl.Addresses), maps.Clone(pl.Each)
				v.Places[k] = &w
			}
			q.Services[n] = &v
		}
		for id, a := range p.Attachments {
			v := *a
			v.Networks, v.Ports = slices.Clone(a.Networks), slices.Clone(a.Ports)
			q.Attachments[id] = &v
		}
		c.Projects[name] = q
	}
	return c
}

func newProject() *project {
	return &project{
		Networks:    map[string]*bridge{},
		Services:    map[string]*service{},
		Attachments: map[string]*attachment{},
	}
}

// prune drops what neither the project wants nor a container uses.
func (p *project) prune() {
	usedNetwork, usedPlace, usedService := map[string]bool{}, map[[2]string]bool{}, map[string]bool{}
	for _, a := range p.Attachments {
		usedService[a.Service] = true
		for _, n := range a.Networks {
			usedNetwork[n], usedPlace[[2]string{a.Service, n}] = true, true
		}
	}
	for name, s := range p.Services {
		p.pruneSeats(name)
		maps.DeleteFunc(s.Places, func(n string, pl *place) bool { return !pl.Wanted && !usedPlace[[2]string{name, n}] })
		if !s.Wanted && !usedService[name] {
			delete(p.Services, name)
		}
	}
	maps.DeleteFunc(p.Networks, func(n string, b *bridge) bool { return !b.Wanted && !usedNetwork[n] })
}

// pruneSeats drops the addresses of replicas that the service has no more.
func (p *project) pruneSeats(name string) {
	s, used := p.Services[name], map[string]bool{}
	count := max(s.Replicas, 1)
	last := count
	for _, a := range p.Attachments {
		if a.Service == name {
			used[seat(a.Replica, a.Slot)], last = true, max(last, a.Replica)
		}
	}
	for _, pl := range s.Places {
		maps.DeleteFunc(pl.Addresses, func(key string, _ netip.Addr) bool {
			r, _, _ := strings.Cut(key, ".")
			n, err := strconv.Atoi(r)
			return !used[key] && (err != nil || n > count)
		})
		maps.DeleteFunc(pl.Each, func(r int, _ netip.Addr) bool { return r > last || last == 1 })
	}
}

// answering are the ids of the containers that a service's address and ports lead to, lowest replica first. A container
// that nobody vouched for answers only when there is no other.
func (p *project) answering(service string) []string {
	s := p.Services[service]
	if s == nil || len(s.Active) == 0 {
		if s == nil || s.First == "" {
			return nil
		}
		return []string{s.First}
	}
	ids := make([]string, 0, len(s.Active))
	for _, r := range slices.Sorted(maps.Keys(s.Active)) {
		ids = append(ids, s.Active[r])
	}
	return ids
}

// replica is the id of the container that a replica's own name leads to, "" when there is none.
func (p *project) replica(service string, n int) string {
	if id := p.Services[service].Active[n]; id != "" {
		return id
	}
	for _, id := range p.replicas(service) {
		if p.Attachments[id].Replica == n {
			return id
		}
	}
	return ""
}

// replicas are the ids of a service's attached containers, lowest replica first, then lowest slot.
func (p *project) replicas(service string) []string {
	var ids []string
	for id, a := range p.Attachments {
		if a.Service == service {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(x, y string) int {
		a, b := p.Attachments[x], p.Attachments[y]
		return cmp.Or(cmp.Compare(a.Replica, b.Replica), cmp.Compare(a.Slot, b.Slot), cmp.Compare(x, y))
	})
	return ids
}

// check holds a state against everything that the rest of the package relies on. It is for bytes from the disk.
func (s *state) check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), fault.ErrInvalid)
	}
	subnets := map[netip.Prefix]string{}
	bridges, containers := map[string]string{}, map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(s.Projects)) {
		p := s.Projects[name]
		if p == nil {
			return bad("project %q: null", name)
		}
		if !validName(name) {
			return bad("project %q: not a name", name)
		}
		for n, b := range p.Networks {
			switch {
			case b == nil || !validName(n):
				return bad("project %q: network %q: not a network", name, n)
			case !b.Subnet.IsValid() || !b.Subnet.Addr().Is4() || b.Subnet != b.Subnet.Masked() || b.Subnet.Bits() > 29 || b.Subnet.Bits() < 8:
				return bad("project %q: network %q: subnet %s", name, n, b.Subnet)
			case !validInterface(b.Name):
				return bad("project %q: network %q: interface %q", name, n, b.Name)
			case bridges[b.Name] != "":
				return bad("project %q: network %q: interface %s is also of %s", name, n, b.Name, bridges[b.Name])
			}
			for o, holder := range subnets {
				if o.Overlaps(b.Subnet) {
					return bad("project %q: network %q: subnet %s overlaps that of %s", name, n, b.Subnet, holder)
				}
			}
			subnets[b.Subnet], bridges[b.Name] = name+"/"+n, name+"/"+n
		}
		if err := p.check(containers); err != nil {
			return fmt.Errorf("project %q: %w", name, err)
		}
		for id := range p.Attachments {
			containers[id] = name
		}
	}
	return nil
}

// check is [state.check] for one project, whose networks are known to be sound.
func (p *project) check(containers map[string]string) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), fault.ErrInvalid)
	}
	addresses := map[netip.Addr]bool{}
	for name, s := range p.Services {
		if s == nil || !validName(name) {
			return bad("service %q: not a service", name)
		}
		for n, pl := range s.Places {
			b := p.Networks[n]
			if b == nil || pl == nil {
				return bad("service %q: no network %q", name, n)
			}
			for _, a := range slices.Concat(slices.Collect(maps.Values(pl.Addresses)), slices.Collect(maps.Values(pl.Each)), []netip.Addr{pl.VIP}) {
				if !b.Subnet.Contains(a) || a == b.gateway() || addresses[a] {
					return bad("service %q: network %q: address %s", name, n, a)
				}
				addresses[a] = true
			}
			if !validAll(pl.Aliases) {
				return bad("service %q: network %q: aliases %q", name, n, pl.Aliases)
			}
		}
		if err := checkPorts(s.Ports); err != nil {
			return fmt.Errorf("service %q: %w", name, err)
		}
		for r, id := range s.Active {
			if a := p.Attachments[id]; a == nil || a.Service != name || a.Replica != r {
				return bad("service %q: %q is active and not attached", name, id)
			}
		}
		if a := p.Attachments[s.First]; s.First != "" && (a == nil || a.Service != name) {
			return bad("service %q: %q answers and is not attached", name, s.First)
		}
	}
	for id, a := range p.Attachments {
		if a == nil || !validName(id) || containers[id] != "" || !validName(a.Hostname) || a.Replica < 1 || a.Slot < 0 {
			return bad("container %q: not an attachment", id)
		}
		for _, n := range a.Networks {
			if !p.address(a, n).IsValid() {
				return bad("container %q: no address on network %q", id, n)
			}
		}
		if p.Services[a.Service] == nil {
			return bad("container %q: no service %q", id, a.Service)
		}
		if err := checkPorts(a.Ports); err != nil {
			return fmt.Errorf("container %q: %w", id, err)
		}
	}
	return nil
}

func checkPorts(ports []port) error {
	for _, q := range ports {
		if q.HostPort == 0 || q.ContainerPort == 0 || q.Protocol != "tcp" && q.Protocol != "udp" || q.Host.IsValid() && !q.Host.Is4() {
			return fmt.Errorf("port %s: %w", q, fault.ErrInvalid)
		}
	}
	return nil
}

const (
	maxName     = 253 // characters of a DNS name; also more than a container id or a project has
	maxHostname = 64  // what the kernel takes
)

// validName tells whether s can stand in a hosts file and be a file name: letters, digits, dots, dashes, underscores,
// neither a dot nor a dash in front.
func validName(s string) bool {
	if s == "" || len(s) > maxName || s[0] == '.' || s[0] == '-' {
		return false
	}
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '.', r == '-', r == '_':
		default:
			return false
		}
	}
	return true
}

func validAll(names []string) bool {
	return !slices.ContainsFunc(names, func(s string) bool { return !validName(s) })
}

// validInterface tells whether s can be an interface's name.
func validInterface(s string) bool { return len(s) <= 15 && validName(s) }
