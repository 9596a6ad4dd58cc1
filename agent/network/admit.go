package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Admit checks whether the networks of all projects fit on this device together. It changes nothing. Ports and addresses that
// containers of these projects hold now are no conflict: they will be released. The error is a [workload.Conflicts];
// other errors are not about a project.
func (m *Manager) Admit(ctx context.Context, projects []*workload.Project) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ready(ctx); err != nil {
		return err
	}
	a := &admission{m: m, projects: projects}
	if err := a.device(); err != nil {
		return fmt.Errorf("ask whether networks fit: %w", err)
	}
	if len(a.conflicts) == 0 {
		return nil
	}
	return a.conflicts
}

// admission collects conflicts.
type admission struct {
	m         *Manager
	projects  []*workload.Project
	conflicts workload.Conflicts
}

func (a *admission) add(p *workload.Project, service, path string, err error) {
	a.conflicts = append(a.conflicts, workload.Conflict{
		Project: p.Name, Deployment: p.Deployment, Component: p.Component, Service: service, Path: path, Reason: err,
	})
}

// device checks the projects against each other and against this machine.
func (a *admission) device() error {
	a.ports()
	if err := a.listeners(); err != nil {
		return err
	}
	if err := a.networks(); err != nil {
		return err
	}
	a.addresses()
	if len(a.conflicts) > 0 {
		return nil
	}
	a.dryRun()
	if !slices.ContainsFunc(a.projects, func(p *workload.Project) bool { return len(p.Networks) > 0 }) {
		return nil
	}
	who, err := a.m.blockers()
	if err != nil {
		return err
	}
	for _, p := range a.projects {
		for _, w := range who {
			if len(p.Networks) > 0 {
				a.add(p, "", "networks", w)
			}
		}
	}
	return nil
}

// heldPort is a published port and the service that publishes it.
type heldPort struct {
	p       *workload.Project
	service string
	port    ipam.Port
	path    string
}

// published are all ports that projects publish.
func (a *admission) published() []heldPort {
	var out []heldPort
	for _, p := range a.projects {
		for _, s := range p.Services {
			if s.Namespaces.Network != "" {
				continue
			}
			for i, q := range ipam.PortsOf(s.Ports) {
				out = append(out, heldPort{p, s.Name, q, fmt.Sprintf("services.%s.ports[%d]", s.Name, i)})
			}
		}
	}
	return out
}

// ports finds ports that two services publish.
func (a *admission) ports() {
	all := a.published()
	for i, h := range all {
		for _, other := range all[:i] {
			if !other.port.Conflicts(h.port) {
				continue
			}
			by := fmt.Sprintf("service %q of deployment %q, component %q", other.service, other.p.Deployment, other.p.Component)
			if other.p == h.p {
				by = fmt.Sprintf("service %q of the same component", other.service)
			}
			a.add(h.p, h.service, h.path, fault.WithHint(fmt.Errorf("port %s is published by %s too: %w", h.port, by, fault.ErrConflict),
				"publish another port, or give one of them a host address of its own"))
			break
		}
	}
}

// listeners finds ports that programs of the host listen on.
func (a *admission) listeners() error {
	var known []ipam.Port
	for name := range a.m.state.Projects {
		known = append(known, a.m.state.Ports(name)...)
	}
	host := a.m.listening()
	for _, h := range a.published() {
		err := host.check(h.service, []ipam.Port{h.port}, known, a.six(h.p))
		if errors.Is(err, fault.ErrConflict) {
			a.add(h.p, h.service, h.path, err)
		} else if err != nil {
			return err
		}
	}
	return nil
}

// six reports whether a project publishes its ports on IPv6 addresses too.
func (a *admission) six(p *workload.Project) bool {
	return slices.ContainsFunc(p.Networks, func(n workload.Network) bool {
		return n.IPv6 || slices.ContainsFunc(n.Subnets, func(s workload.Subnet) bool { return s.Prefix.Addr().Is6() })
	})
}

// networks finds networks and interfaces that the device lacks, and subnets that overlap.
func (a *admission) networks() error {
	type given struct {
		p      *workload.Project
		n      string
		prefix netip.Prefix
	}
	var subnets []given
	c := &chooser{m: a.m, next: a.m.state.Clone()}
	for _, p := range a.projects {
		for _, s := range p.Services {
			for i, q := range s.Ports {
				if err := checkProtocol(q.Protocol); err != nil {
					a.add(p, s.Name, fmt.Sprintf("services.%s.ports[%d]", s.Name, i), err)
				}
			}
		}
		for _, n := range p.Networks {
			c.project = p.Name
			if n.External != "" {
				if _, err := c.External(n.External); err != nil {
					a.add(p, "", "networks."+n.Name+".name", err)
				}
				continue
			}
			if parent := n.Options["parent"]; n.Driver == workload.Macvlan || n.Driver == workload.IPvlan {
				if err := a.m.checkDriver(n.Driver); err != nil {
					a.add(p, "", "networks."+n.Name+".driver", err)
					continue
				}
				l, err := linkByName(a.m.host.links, parent)
				if err != nil {
					return err
				}
				if l == nil {
					a.add(p, "", "networks."+n.Name+".driver_opts.parent", noParent(parent))
				}
				continue
			}
			for i, s := range n.Subnets {
				path := fmt.Sprintf("networks.%s.ipam.config[%d].subnet", n.Name, i)
				prefix := s.Prefix.Masked()
				if err := c.Free(prefix); errors.Is(err, fault.ErrConflict) {
					a.add(p, "", path, err)
				} else if err != nil {
					return err
				}
				for _, other := range subnets {
					if other.prefix.Overlaps(prefix) {
						a.add(p, "", path, fault.WithHint(fmt.Errorf("subnet %s overlaps %s of network %q of deployment %q, component %q: %w",
							prefix, other.prefix, other.n, other.p.Deployment, other.p.Component, fault.ErrConflict), "give one of them another subnet, or none: one is chosen then"))
					}
				}
				subnets = append(subnets, given{p, n.Name, prefix})
			}
		}
	}
	return nil
}

// addresses finds fixed addresses that two services request on one link.
func (a *admission) addresses() {
	type spot struct {
		link string
		a    netip.Addr
	}
	taken := map[spot]heldPort{}
	for _, p := range a.projects {
		links := map[string]string{}
		for _, n := range p.Networks {
			switch links[n.Name] = p.Name + "/" + n.Name; {
			case n.External != "":
				links[n.Name] = "external " + n.External
			case n.Driver == workload.Macvlan, n.Driver == workload.IPvlan:
				links[n.Name] = "on " + n.Options["parent"]
			}
		}
		for _, s := range p.Services {
			for _, at := range s.Networks {
				for key, x := range map[string]netip.Addr{"ipv4_address": at.IPv4.Unmap(), "ipv6_address": at.IPv6} {
					if !x.IsValid() {
						continue
					}
					where, path := spot{links[at.Network], x}, fmt.Sprintf("services.%s.networks.%s.%s", s.Name, at.Network, key)
					if other, ok := taken[where]; ok {
						a.add(p, s.Name, path, fault.WithHint(fmt.Errorf("address %s is also that of service %q of deployment %q, component %q: %w",
							x, other.service, other.p.Deployment, other.p.Component, fault.ErrConflict), "give one of them another address"))
					}
					taken[where] = heldPort{p: p, service: s.Name}
				}
			}
		}
	}
}

// dryRun prepares all projects in a copy of the state.
func (a *admission) dryRun() {
	paper, wanted := a.m.state.Clone(), map[string]bool{}
	for _, p := range a.projects {
		wanted[p.Name] = true
	}
	for name, p := range paper.Projects {
		if clear(p.Attachments); !wanted[name] {
			delete(paper.Projects, name)
			continue
		}
		for _, s := range p.Services {
			s.Active, s.Fallback = nil, ""
		}
	}
	c := &chooser{m: a.m, next: paper} // one for all projects: it lists the host's addresses once
	for _, p := range a.projects {
		c.project = p.Name
		if err := paper.Prepare(p, c); err != nil {
			a.add(p, "", "networks", err)
		}
	}
}
