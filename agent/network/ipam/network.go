package ipam

import (
	"encoding/hex"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
)

// Network is one network of a project.
type Network struct {
	Subnet
	Six      Subnet          `json:"six,omitzero"`
	Name     string          `json:"name"`   // of the interface; "": this device creates none
	Wanted   bool            `json:"wanted"` // by the project as last prepared; others stay while a container uses them
	Internal bool            `json:"internal,omitempty"`
	MTU      int             `json:"mtu,omitempty"` // 0: the kernel's default
	Driver   workload.Driver `json:"driver,omitempty"`
	Parent   string          `json:"parent,omitempty"` // of macvlan
	Mode     string          `json:"mode,omitempty"`   // of macvlan
	Shared   string          `json:"shared,omitempty"` // the device's network of that name; projects share it
	CNI      string          `json:"cni,omitempty"`    // the site's network of that name
}

// Family returns the network's addresses of a family.
func (b *Network) Family(f Family) *Subnet {
	if f == V6 {
		return &b.Six
	}
	return &b.Subnet
}

// Routed reports whether the network's traffic goes through this device, so that service addresses and published ports work.
func (b *Network) Routed() bool {
	return b.CNI == "" && b.Driver == ""
}

// Outbound reports whether a default route can use the network.
func (b *Network) Outbound(f Family) bool {
	return !b.Internal && b.CNI == "" && b.Family(f).Valid()
}

// Owner names the owner of a subnet, for messages.
func (b *Network) Owner(project, network string) string {
	if b.Shared != "" {
		return "the device's network " + b.Shared
	}
	return project + "/" + network
}

func (b *Network) Clone() *Network {
	c := *b
	c.Reserved, c.Six.Reserved = slices.Clone(b.Reserved), slices.Clone(b.Six.Reserved)
	return &c
}

// Same reports whether links that were created for b also work for other.
func (b *Network) Same(other *Network) bool {
	return b.Name == other.Name && b.Driver == other.Driver && b.Parent == other.Parent && b.Mode == other.Mode && b.CNI == other.CNI &&
		b.Subnet.Same(&other.Subnet) && b.Six.Same(&other.Six)
}

// HardwareAddr is the link address of a container on a network.
func (p *Project) HardwareAddr(a *Attachment, network string) []byte {
	if given, err := hex.DecodeString(strings.ReplaceAll(a.Links[network].MAC, ":", "")); err == nil && len(given) == 6 {
		return given
	}
	return HardwareAddrOf(p.Address(a, network, V4), p.Address(a, network, V6))
}

// Backends are the ids of the active backends of all services.
func (s *State) Backends() map[string]bool {
	out := map[string]bool{}
	for _, p := range s.Projects {
		for sv := range p.Services {
			for _, id := range p.Backends(sv) {
				out[id] = true
			}
		}
	}
	return out
}

// Joined reports whether a project has joined a network of the device.
func (s *State) Joined(name string) bool {
	for _, p := range s.Projects {
		for _, b := range p.Networks {
			if b.Shared == name {
				return true
			}
		}
	}
	return false
}

// ShareNetwork reports whether two projects share a network.
func (s *State) ShareNetwork(one, other string) bool {
	if s.Projects[one] == nil || s.Projects[other] == nil {
		return false
	}
	for _, a := range s.Projects[one].Networks {
		for _, b := range s.Projects[other].Networks {
			if a.Shared != "" && a.Shared == b.Shared {
				return true
			}
		}
	}
	return false
}

// Printable reports whether fields hold only visible ASCII: other values are not copied into a resolv.conf.
func Printable(fields []string) bool {
	for _, f := range fields {
		for _, r := range f {
			if r < '!' || r > '~' {
				return false
			}
		}
	}
	return true
}

// ProtocolNumber is a protocol's number; 0: not one of those that have ports.
func ProtocolNumber(name string) uint16 {
	return map[string]uint16{"tcp": 6, "udp": 17, "sctp": 132}[name]
}

func clip(s string, n int) string { return s[:min(len(s), n)] }

// Uses reports whether a network needs a family to be routed. IPv4 is needed as soon as there is a project.
func (s *State) Uses(f Family) bool {
	if f == V4 {
		return len(s.Projects) > 0
	}
	for _, p := range s.Projects {
		for _, n := range p.Networks {
			if n.Six.Valid() && n.Routed() {
				return true
			}
		}
	}
	return false
}
