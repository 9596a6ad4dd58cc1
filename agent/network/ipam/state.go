package ipam

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

// State has all decisions of a manager. It is saved before new objects are created in the kernel, and after objects that it
// no longer has were removed. A nil map reads as an empty one.
type State struct {
	Projects map[string]*Project `json:"projects"`
	Local    netip.Prefix        `json:"local,omitzero"` // IPv6 addresses that are this device's own, /48; zero: not chosen yet
}

// Project has the networks, services and containers of one project.
type Project struct {
	Networks    map[string]*Network    `json:"networks"`
	Services    map[string]*Service    `json:"services"`
	Attachments map[string]*Attachment `json:"attachments"` // by container id
}

// Service has the values that all replicas and revisions of one service share.
type Service struct {
	Wanted    bool                 `json:"wanted"`
	Hostname  string               `json:"hostname,omitempty"` // as last prepared; "": none was given
	Replicas  int                  `json:"replicas,omitempty"` // as last prepared; 0: one
	Active    Backends             `json:"active,omitempty"`   // the attached containers that are backends, by replica
	Fallback  string               `json:"fallback,omitempty"` // id of the attached container that is the backend while none is active
	Ports     []Port               `json:"ports"`              // as last prepared
	Endpoints map[string]*Endpoint `json:"endpoints"`          // by network
}

// Backends are ids of containers by replica.
type Backends map[int]string

// Endpoint is a service on one network.
type Endpoint struct {
	Wanted  bool     `json:"wanted"`
	Aliases []string `json:"aliases"`
	Slots
	Six Slots `json:"six,omitzero"`
}

// Family returns the endpoint's addresses of a family.
func (pl *Endpoint) Family(f Family) *Slots {
	if f == V6 {
		return &pl.Six
	}
	return &pl.Slots
}

// Attachment is one container.
type Attachment struct {
	Service  string                 `json:"service"`
	Replica  int                    `json:"replica"`
	Slot     int                    `json:"slot"` // which of the replica's addresses: two revisions of a replica exist side by side in an update
	Hostname string                 `json:"hostname"`
	Domain   string                 `json:"domain,omitempty"`
	Networks []string               `json:"networks"` // in order of interfaces
	Links    map[string]LinkOptions `json:"links,omitempty"`
	Ports    []Port                 `json:"ports"`
	Host     bool                   `json:"host,omitempty"`  // in the device's own namespace
	Joins    string                 `json:"joins,omitempty"` // id of the container whose namespace and hosts file it shares
	Hosts    []workload.Host        `json:"hosts,omitempty"`
	DNS      workload.DNS           `json:"dns,omitzero"`
}

// LinkOptions are the options of a service or the site for a container's link to one network.
type LinkOptions struct {
	MAC       string         `json:"mac,omitempty"`
	Interface string         `json:"interface,omitempty"` // "": the next ethN
	Gateway   bool           `json:"gateway,omitempty"`
	Requested []netip.Addr   `json:"requested,omitempty"` // addresses requested of a network of the site
	Assigned  []netip.Prefix `json:"assigned,omitzero"`   // addresses that it assigned; nil: not joined
}

// Port is one published port.
type Port struct {
	Host          netip.Addr `json:"host"` // zero: every address
	HostPort      uint16     `json:"hostPort"`
	ContainerPort uint16     `json:"containerPort"`
	Protocol      string     `json:"protocol"`
	Replica       int        `json:"replica,omitempty"` // its backend; 0: all replicas
}

func (p Port) String() string {
	if p.Host.IsValid() {
		return fmt.Sprintf("%s:%d/%s", p.Host, p.HostPort, p.Protocol)
	}
	return fmt.Sprintf("%d/%s", p.HostPort, p.Protocol)
}

// Conflicts reports whether both cannot be published at once.
func (p Port) Conflicts(q Port) bool {
	return p.HostPort == q.HostPort && p.Protocol == q.Protocol &&
		(!p.Host.IsValid() || !q.Host.IsValid() || p.Host == q.Host)
}

// slotKey names an address of an endpoint.
func slotKey(replica, slot int) string { return strconv.Itoa(replica) + "." + strconv.Itoa(slot) }

// Address is a container's address on a network of its project; invalid when it has none of the family there.
func (p *Project) Address(a *Attachment, network string, f Family) netip.Addr {
	for _, g := range a.Links[network].Assigned {
		if FamilyOf(g.Addr()) == f {
			return g.Addr()
		}
	}
	s := p.Services[a.Service]
	if s == nil || s.Endpoints[network] == nil {
		return netip.Addr{}
	}
	return s.Endpoints[network].Family(f).Addresses[slotKey(a.Replica, a.Slot)]
}

// DefaultRoute is the network of a container's default route, "" when there is none.
func (p *Project) DefaultRoute(a *Attachment, f Family) string {
	first := ""
	for _, n := range a.Networks {
		switch b := p.Networks[n]; {
		case b == nil || !b.Outbound(f):
		case a.Links[n].Gateway:
			return n
		case first == "":
			first = n
		}
	}
	return first
}

// Ingress is the network through which a container's published ports are reached, "" when there is none.
func (p *Project) Ingress(a *Attachment, f Family) string {
	if n := p.DefaultRoute(a, f); n != "" && p.Networks[n].Routed() {
		return n
	}
	for _, n := range a.Networks {
		if b := p.Networks[n]; b != nil && b.Outbound(f) && b.Routed() {
			return n
		}
	}
	return ""
}

// Interfaces are the names of a container's interfaces, in order of its networks.
func (a *Attachment) Interfaces() []string {
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

// Find returns the project that a container is attached to.
func (s *State) Find(id string) (string, *Project) {
	for name, p := range s.Projects {
		if p.Attachments[id] != nil {
			return name, p
		}
	}
	return "", nil
}

// Clone copies everything, so that a change can be discarded.
func (s *State) Clone() *State {
	c := &State{Projects: make(map[string]*Project, len(s.Projects)), Local: s.Local}
	for name, p := range s.Projects {
		q := newProject()
		for n, b := range p.Networks {
			q.Networks[n] = b.Clone()
		}
		for n, sv := range p.Services {
			v := *sv
			v.Ports, v.Endpoints, v.Active = slices.Clone(sv.Ports), make(map[string]*Endpoint, len(sv.Endpoints)), maps.Clone(sv.Active)
			for k, pl := range sv.Endpoints {
				w := *pl
				w.Aliases = slices.Clone(pl.Aliases)
				for f := range Families {
					w.Family(f).Addresses, w.Family(f).Each = maps.Clone(pl.Family(f).Addresses), maps.Clone(pl.Family(f).Each)
				}
				v.Endpoints[k] = &w
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

func newProject() *Project {
	return &Project{
		Networks:    map[string]*Network{},
		Services:    map[string]*Service{},
		Attachments: map[string]*Attachment{},
	}
}

// prune removes everything that the project does not define and no container uses.
func (p *Project) prune() {
	usedNetwork, usedPlace, usedService := map[string]bool{}, map[[2]string]bool{}, map[string]bool{}
	for _, a := range p.Attachments {
		usedService[a.Service] = true
		for _, n := range a.Networks {
			usedNetwork[n], usedPlace[[2]string{a.Service, n}] = true, true
		}
	}
	for name, s := range p.Services {
		p.pruneSlots(name)
		maps.DeleteFunc(s.Endpoints, func(n string, pl *Endpoint) bool { return !pl.Wanted && !usedPlace[[2]string{name, n}] })
		if !s.Wanted && !usedService[name] {
			delete(p.Services, name)
		}
	}
	maps.DeleteFunc(p.Networks, func(n string, b *Network) bool { return !b.Wanted && !usedNetwork[n] })
}

// pruneSlots removes the addresses of replicas that the service no longer has.
func (p *Project) pruneSlots(name string) {
	s, used := p.Services[name], map[string]bool{}
	count := max(s.Replicas, 1)
	last := count
	for _, a := range p.Attachments {
		if a.Service == name {
			used[slotKey(a.Replica, a.Slot)], last = true, max(last, a.Replica)
		}
	}
	for _, pl := range s.Endpoints {
		for f := range Families {
			maps.DeleteFunc(pl.Family(f).Addresses, func(key string, _ netip.Addr) bool {
				r, _, _ := strings.Cut(key, ".")
				n, err := strconv.Atoi(r)
				return !used[key] && (err != nil || n > count)
			})
			maps.DeleteFunc(pl.Family(f).Each, func(r int, _ netip.Addr) bool { return r > last || last == 1 })
		}
	}
}

// Backends are the ids of the containers that a service's address and ports lead to, lowest replica first. A container that was not
// activated is a backend only when there is no other.
func (p *Project) Backends(service string) []string {
	s := p.Services[service]
	if s == nil || len(s.Active) == 0 {
		if s == nil || s.Fallback == "" {
			return nil
		}
		return []string{s.Fallback}
	}
	ids := make([]string, 0, len(s.Active))
	for _, r := range slices.Sorted(maps.Keys(s.Active)) {
		ids = append(ids, s.Active[r])
	}
	return ids
}

// Replica is the id of the container that a replica's own name leads to, "" when there is none.
func (p *Project) Replica(service string, n int) string {
	if s := p.Services[service]; s == nil {
		return ""
	} else if id := s.Active[n]; id != "" {
		return id
	}
	for _, id := range p.Replicas(service) {
		if p.Attachments[id].Replica == n {
			return id
		}
	}
	return ""
}

// Replicas are the ids of a service's attached containers, lowest replica first, then lowest slot.
func (p *Project) Replicas(service string) []string {
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
