package workload

import "strings"

// Namespace says whose namespace of a kind a container is in: its own when empty.
type Namespace string

// Namespaces that are no container's own.
const (
	HostNamespace    Namespace = "host"
	NoNamespace      Namespace = "none"    // network: nothing but loopback; IPC: nothing to share
	PrivateNamespace Namespace = "private" // own, where the default is another
	servicePrefix              = "service:"
)

// ServiceNamespace is the namespace of another service of the project.
func ServiceNamespace(service string) Namespace { return Namespace(servicePrefix + service) }

// Service is the service that owns the namespace; "" for other kinds.
func (n Namespace) Service() string {
	if s, ok := strings.CutPrefix(string(n), servicePrefix); ok {
		return s
	}
	return ""
}

// Namespaces of a container. The zero value isolates it.
type Namespaces struct {
	Network Namespace `json:",omitzero"`
	PID     Namespace `json:",omitzero"`
	IPC     Namespace `json:",omitzero"`
	UTS     Namespace `json:",omitzero"`
	User    Namespace `json:",omitzero"` // "", "host": none of its own; "private": its root has no rights outside
	Cgroup  Namespace `json:",omitzero"` // "": own with cgroup v2, the host's with v1
}

// Security is what a container may do differently from the default confinement.
type Security struct {
	Privileged      bool     `json:",omitzero"`  // needs the device's own permission
	CapAdd          []string `json:",omitempty"` // "NET_ADMIN", "ALL"
	CapDrop         []string `json:",omitempty"`
	NoNewPrivileges bool     `json:",omitzero"`
	Seccomp         string   `json:",omitzero"`  // "": the default profile; "unconfined"; else a profile as JSON
	AppArmor        string   `json:",omitzero"`  // "": the default profile; "unconfined"; else the name of one that is loaded
	Label           []string `json:",omitempty"` // SELinux: "disable", "type:…", "level:…"
	Unmasked        bool     `json:",omitzero"`  // systempaths=unconfined
}
