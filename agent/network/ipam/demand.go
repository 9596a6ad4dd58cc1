package ipam

import (
	"fmt"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// CheckProject rejects networks that no device can create.
func CheckProject(p *workload.Project) error {
	if !ValidName(p.Name) {
		return fmt.Errorf("project name %q: %w", p.Name, fault.ErrInvalid)
	}
	networks, known := map[string]workload.Network{}, map[string]bool{}
	for _, n := range p.Networks {
		if !ValidName(n.Name) || known[n.Name] {
			return fmt.Errorf("network %q: not a name, or twice: %w", n.Name, fault.ErrInvalid)
		}
		networks[n.Name], known[n.Name] = n, true
	}
	services := map[string]bool{}
	for _, s := range p.Services {
		if !ValidName(s.Name) || services[s.Name] {
			return fmt.Errorf("service %q: not a name, or twice: %w", s.Name, fault.ErrInvalid)
		}
		services[s.Name] = true
		err := CheckService(s, known)
		if err == nil {
			err = CheckPublished(s, networks)
		}
		if err != nil {
			return fmt.Errorf("service %q: %w", s.Name, err)
		}
	}
	return nil
}

// CheckPublished rejects published ports that cannot be reached.
func CheckPublished(s workload.Service, networks map[string]workload.Network) error {
	if len(s.Ports) == 0 || s.Namespaces.Network == workload.HostNamespace {
		return nil // in the device's namespace they are reachable without publishing
	}
	if s.Namespaces.Network != "" {
		return fmt.Errorf("publishes ports and has network_mode %q: %w", s.Namespaces.Network, fault.ErrInvalid)
	}
	if len(s.Networks) == 0 {
		return fmt.Errorf("publishes ports and is on no network: %w", fault.ErrInvalid)
	}
	for _, q := range PortsOf(s.Ports) {
		if why, hint := s.Unreachable(q.Host, networks); why != "" {
			return fault.WithHint(fmt.Errorf("port %s: %s: %w", q, why, fault.ErrInvalid), hint)
		}
	}
	return nil
}

func CheckService(s workload.Service, networks map[string]bool) error {
	if s.Hostname != "" && (!ValidName(s.Hostname) || len(s.Hostname) > maxHostname) {
		return fmt.Errorf("hostname %q: %w", s.Hostname, fault.ErrInvalid)
	}
	if s.Domainname != "" && !ValidName(s.Domainname) {
		return fmt.Errorf("domainname %q: %w", s.Domainname, fault.ErrInvalid)
	}
	if err := checkFiles(s.Hosts, s.DNS); err != nil {
		return err
	}
	seen, faces := map[string]bool{}, map[string]bool{}
	for _, at := range s.Networks {
		if !networks[at.Network] || seen[at.Network] {
			return fmt.Errorf("network %q: not of this project, or twice: %w", at.Network, fault.ErrInvalid)
		}
		seen[at.Network] = true
		if !validAll(at.Aliases) {
			return fmt.Errorf("network %q: aliases %q: %w", at.Network, at.Aliases, fault.ErrInvalid)
		}
		if err := linkOf(at).check(); err != nil {
			return fmt.Errorf("network %q: %w", at.Network, err)
		}
		if at.MAC != "" && s.Count() > 1 {
			return fmt.Errorf("network %q: hardware address %s for %d replicas: %w", at.Network, at.MAC, s.Count(), fault.ErrInvalid)
		}
		if at.Interface != "" && faces[at.Interface] {
			return fmt.Errorf("network %q: interface %q twice: %w", at.Network, at.Interface, fault.ErrInvalid)
		}
		faces[at.Interface] = true
	}
	return checkPorts(PortsOf(s.Ports))
}
