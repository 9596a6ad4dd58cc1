package workload

import (
	"slices"
	"strings"
)

// Exclusive says why two containers of a service cannot run at the same time; "": they can. Published ports are no reason: they lead
// to one of them at a time. It says nothing of devices, or of volumes that only the image names.
func (p *Project) Exclusive(s *Service) string {
	if s.Namespaces.Network == HostNamespace {
		return "the service has the network of the device itself, which the old and the new container would share"
	}
	if why := p.Attached(s); why != "" {
		return why
	}
	for _, m := range s.Mounts {
		switch {
		case m.ReadOnly || m.Kind != MountVolume && m.Kind != MountBind:
		case m.Kind == MountVolume && m.Source == "":
			return "the volume at " + m.Target + " is written to by one container at a time"
		default:
			return strings.TrimSpace("the old and the new container would write to " + m.Source + " at once")
		}
	}
	return ""
}

// Attached says why two containers of a service cannot be attached to its networks at the same time, even if only one of them runs;
// "": they can.
func (p *Project) Attached(s *Service) string {
	if s.Namespaces.Network.Service() != "" {
		return "the service has the network of " + s.Namespaces.Network.Service()
	}
	for _, other := range p.Services {
		for _, ns := range []Namespace{other.Namespaces.Network, other.Namespaces.PID, other.Namespaces.IPC} {
			if ns.Service() == s.Name {
				return "service " + other.Name + " is in a namespace of its container"
			}
		}
	}
	for _, a := range s.Networks {
		if a.IPv4.IsValid() || a.IPv6.IsValid() || a.MAC != "" {
			return "its address on network " + a.Network + " is fixed, and two containers cannot have it"
		}
		if slices.ContainsFunc(p.Networks, func(n Network) bool {
			return n.Name == a.Network && (n.External != "" || n.Driver != "")
		}) {
			return "network " + a.Network + " has no service address that could move"
		}
	}
	return ""
}
