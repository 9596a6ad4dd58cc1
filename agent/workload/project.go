// Package workload defines what the agent runs, as plain values: projects, services, containers and observations of them.
//
// It is pure: no I/O, no clock, no containerd. A translator (agent/compose) creates a [Project], the plan compares it with what a
// runtime [Observed], and a runtime (agent/containerd) creates its containers. Identity is content: a container's name holds the
// hash of its whole configuration, so a container that exists is also unchanged.
package workload

// Project is one Compose project on this device, with nothing left to look up.
type Project struct {
	Name        string // unique on the device, [a-z0-9-]{1,32}; see [ProjectName]
	Deployment  string // Margo deployment id
	Application string `json:",omitempty"` // name of the deployment, for people; not part of any hash
	Component   string // Margo component name
	Generation  uint64 // of the state that asked for it; not part of any hash
	Services    []Service
	Networks    []Network
	Volumes     []Volume
	Notices     []Notice `json:",omitempty"` // keys that have another effect than their author may expect; for display
}

// Notice is about a key that has another effect than its author may expect. It refuses nothing.
type Notice struct {
	Path    string // in the Compose file: "services.web.deploy.update_config.order"; "": the whole file
	Message string
}

// Volume is the one that a mount of the project names. Volumes without a name have no entry.
func (p *Project) Volume(name string) Volume {
	for _, v := range p.Volumes {
		if v.Name == name {
			return v
		}
	}
	return Volume{Name: name}
}

// Images lists what the project's services run on, mount, and run first, in order of use; some may be there twice.
func (p *Project) Images() []Image {
	var out []Image
	for i := range p.Services {
		out = append(out, p.Services[i].Images()...)
	}
	return out
}

// Images lists what the service runs on, mounts, and runs first.
func (s *Service) Images() []Image {
	out := []Image{s.Image}
	for _, m := range s.Mounts {
		if m.Image != nil {
			out = append(out, *m.Image)
		}
	}
	for i := range s.PreStart {
		out = append(out, s.PreStart[i].Service.Images()...)
	}
	return out
}
