package workload

import "net/netip"

// Port publishes a container's port on the host.
type Port struct {
	HostIP        netip.Addr // zero: every address of both families
	HostPort      uint16     // never 0: a device does not choose ports at random
	ContainerPort uint16
	Protocol      string // "tcp", "udp" or "sctp"
	Replica       int    `json:",omitzero"` // the one that it leads to; 0: all share it
}

// Attachment joins a service to one of its project's networks.
type Attachment struct {
	Network   string     // Network.Name
	Aliases   []string   // beside the service's own name, which always resolves
	IPv4      netip.Addr `json:",omitzero"` // fixed address; zero: one is chosen and kept
	IPv6      netip.Addr `json:",omitzero"`
	MAC       string     `json:",omitzero"` // "02:42:ac:11:00:02"; "": chosen
	Interface string     `json:",omitzero"` // name in the container; "": ethN
	Gateway   bool       `json:",omitzero"` // the default route; none: the first network that has one
}

// Attached has the namespace and the files of an attached container's networks.
type Attached struct {
	NetNS        string // path of the pinned network namespace; "": the device's own
	HostsFile    string // to be mounted at /etc/hosts; the container may write it
	ResolvConf   string // to be mounted at /etc/resolv.conf, likewise
	HostnameFile string // to be mounted at /etc/hostname, likewise
	Hostname     string
}

// Driver is how a network is made.
type Driver string

// Drivers. The zero value is a bridge.
const (
	Macvlan Driver = "macvlan"
	IPvlan  Driver = "ipvlan"
)

// Network is one network of a project.
type Network struct {
	Name     string // Compose key, unique in the project
	Labels   map[string]string
	Driver   Driver            `json:",omitzero"`
	External string            `json:",omitzero"` // name of a network that the site declares; "": the project's own
	Internal bool              `json:",omitzero"` // no way out of the device
	IPv6     bool              `json:",omitzero"`
	NoIPv4   bool              `json:",omitzero"`
	Subnets  []Subnet          `json:",omitempty"` // nil: chosen from the device's pool
	MTU      int               `json:",omitzero"`  // 0: the uplink's
	Options  map[string]string `json:",omitempty"` // of macvlan and ipvlan: "parent", "macvlan_mode", "ipvlan_mode"
}

// Subnet is a range of addresses of a network.
type Subnet struct {
	Prefix   netip.Prefix
	Gateway  netip.Addr   `json:",omitzero"`  // zero: the first address
	Range    netip.Prefix `json:",omitzero"`  // addresses to choose from; zero: all
	Reserved []netip.Addr `json:",omitempty"` // never chosen
}

// Host is one line of /etc/hosts.
type Host struct {
	Name    string
	Address string // an address, or "host-gateway": the device itself as the container sees it
}

// DNS is the content of /etc/resolv.conf. Zero values are the device's own.
type DNS struct {
	Servers []netip.Addr `json:",omitempty"`
	Search  []string     `json:",omitempty"` // "." alone: none
	Options []string     `json:",omitempty"`
}

// IsZero reports whether the device's own configuration is used.
func (d DNS) IsZero() bool { return d.Servers == nil && d.Search == nil && d.Options == nil }
