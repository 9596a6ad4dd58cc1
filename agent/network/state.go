package network

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
)

// state is all that a manager decided. Whatever is in the kernel follows from it: it is saved before something new is made, and
// after what it has no more is removed. A nil map reads as an empty one.
type state struct {
	Projects map[string]*project `json:"projects"`
	Local    netip.Prefix        `json:"local,omitzero"` // IPv6 addresses that are this device's own, /48; zero: not chosen yet
}

// project is what one project has.
type project struct {
	Networks    map[string]*bridge     `json:"networks"`
	Services    map[string]*service    `json:"services"`
	Attachments map[string]*attachment `json:"attachments"` // by container id
}

// service is what all replicas and revisions of one service share.
type service struct {
	Wanted   bool              `json:"wanted"`
	Hostname string            `json:"hostname,omitempty"` // as last prepared; "": none was given
	Replicas int               `json:"replicas,omitempty"` // as last prepared; 0: one
	Active   actives           `json:"active,omitempty"`   // the attached containers that answer, by replica
	First    string            `json:"first,omitempty"`    // id of the attached container that answers while none is active
	Ports    []port            `json:"ports"`              // as last prepared
	Places   map[string]*place `json:"places"`             // by network
}

// actives are ids of containers by replica.
type actives map[int]string

// place is a service's part of one network.
type place struct {
	Wanted  bool     `json:"wanted"`
	Aliases []string `json:"aliases"`
	seats
	Six seats `json:"six,omitzero"`
}

// of are the place's addresses of a family.
func (pl *place) of(f family) *seats {
	if f == v6 {
		return &pl.Six
	}
	return &pl.seats
}

// attachment is one container.
type attachment struct {
	Service  string          `json:"service"`
	Replica  int             `json:"replica"`
	Slot     int             `json:"slot"` // which of the replica's addresses: two revisions of one replica live side by side in an update
	Hostname string          `json:"hostname"`
	Domain   string          `json:"domain,omitempty"`
	Networks []string        `json:"networks"` // in order of interfaces
	Links    map[string]link `json:"links,omitempty"`
	Ports    []port          `json:"ports"`
	Host     bool            `json:"host,omitempty"`  // in the device's own namespace
	Joins    string          `json:"joins,omitempty"` // id of the container whose namespace and hosts file it shares
	Hosts    []workload.Host `json:"hosts,omitempty"`
	DNS      workload.DNS    `json:"dns,omitzero"`
}

// link is what is particular about a container's part of one network.
type link struct {
	MAC       string         `json:"mac,omitempty"`
	Interface string         `json:"interface,omitempty"` // "": the next ethN
	Gateway   bool           `json:"gateway,omitempty"`
	Asked     []netip.Addr   `json:"asked,omitempty"` // addresses that a network of the site is asked for
	Given     []netip.Prefix `json:"given,omitempty"` // addresses that it gave
}

// port is one published port.
type port struct {
	Host          netip.Addr `json:"host"` // zero: every address
	HostPort      uint16     `json:"hostPort"`
	ContainerPort uint16     `json:"containerPort"`
	Protocol      string     `json:"protocol"`
	Replica       int        `json:"replica,omitempty"` // the one that it leads to; 0: all
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

// address is where a container is on a network of its project; invalid when it has no address of the family there.
func (p *project) address(a *attachment, network string, f family) netip.Addr {
	for _, g := range a.Links[network].Given {
		if familyOf(g.Addr()) == f {
			return g.Addr()
		}
	}
	s := p.Services[a.Service]
	if s == nil || s.Places[network] == nil {
		return netip.Addr{}
	}
	return s.Places[network].of(f).Addresses[seat(a.Replica, a.Slot)]
}

// exit is the network that a container's default route goes through, "" when there is none.
func (p *project) exit(a *attachment, f family) string {
	first := ""
	for _, n := range a.Networks {
		switch b := p.Networks[n]; {
		case b == nil || !b.leads(f):
		case a.Links[n].Gateway:
			return n
		case first == "":
			first = n
		}
	}
	return first
}

// front is the network through which a container's published ports are reached, "" when there is none.
func (p *project) front(a *attachment, f family) string {
	if n := p.exit(a, f); n != "" && p.Networks[n].routed() {
		return n
	}
	for _, n := range a.Networks {
		if b := p.Networks[n]; b != nil && b.leads(f) && b.routed() {
			return n
		}
	}
	return ""
}

// interfaces are the names of a container's interfaces, by order of its networks.
func (a *attachment) interfaces() []string {
	taken, out := map[string]bool{}, make([]string, len(a.Networks))
	for i, n := range a.Networks {
		out[i] = a.Links[n].Interface
		taken[out[i]] = true
	}
	next := 0
	for i := range out {
		for out[i] == "" {
			if name := "eth" + strconv.Itoa(next); !taken[name] {
				out[i] = name
			}
			next++
		}
	}
	return out
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
	c := &state{Projects: make(map[string]*project, len(s.Projects)), Local: s.Local}
	for name, p := range s.Projects {
		q := newProject()
		for n, b := range p.Networks {
			q.Networks[n] = b.clone()
		}
		for n, sv := range p.Services {
			v := *sv
			v.Ports, v.Places, v.Active = slices.Clone(sv.Ports), make(map[string]*place, len(sv.Places)), maps.Clone(sv.Active)
			for k, pl := range sv.Places {
				w := *pl
				w.Aliases = slices.Clone(pl.Aliases)
				for f := range families {
					w.of(f).Addresses, w.of(f).Each = maps.Clone(pl.of(f).Addresses), maps.Clone(pl.of(f).Each)
				}
				v.Places[k] = &w
			}
			q.Services[n] = &v
		}
		for id, a := range p.Attachments {
			v := *a
			v.Networks, v.Ports, v.Links, v.Hosts = slices.Clone(a.Networks), slices.Clone(a.Ports), maps.Clone(a.Links), slices.Clone(a.Hosts)
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
		for f := range families {
			maps.DeleteFunc(pl.of(f).Addresses, func(key string, _ netip.Addr) bool {
				r, _, _ := strings.Cut(key, ".")
				n, err := strconv.Atoi(r)
				return !used[key] && (err != nil || n > count)
			})
			maps.DeleteFunc(pl.of(f).Each, func(r int, _ netip.Addr) bool { return r > last || last == 1 })
		}
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
	if s := p.Services[service]; s == nil {
		return ""
	} else if id := s.Active[n]; id != "" {
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
