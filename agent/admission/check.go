package admission

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Check checks projects that are to run together against the machine. The conflicts are in order of deployment, component and path.
// When two projects want one thing, the conflict is the later one's and names the other.
func Check(m Machine, projects []*workload.Project) workload.Conflicts {
	c := &check{m: m}
	for _, p := range projects {
		c.privileges(p)
		for i := range p.Services {
			c.service(p, &p.Services[i])
		}
		for _, v := range p.Volumes {
			c.volume(p, v)
		}
	}
	c.lines(projects)
	c.memory(projects)
	slices.SortStableFunc(c.found, func(a, b workload.Conflict) int {
		return cmp.Or(cmp.Compare(a.Deployment, b.Deployment), cmp.Compare(a.Component, b.Component), cmp.Compare(a.Path, b.Path))
	})
	return c.found
}

type check struct {
	m     Machine
	found workload.Conflicts
}

func (c *check) conflict(p *workload.Project, service, key string, kind error, hint, format string, args ...any) {
	c.found = append(c.found, workload.NewConflict(p, service, key, kind, fmt.Sprintf(format, args...), hint))
}

// privileges refuses what would give a container control of the device, unless the device's owner allows it.
func (c *check) privileges(p *workload.Project) {
	if c.m.Privileged {
		return
	}
	for _, found := range p.Privileges(c.m.Guard) {
		hint := "its owner can allow it with \"runtime.allowPrivileged: true\" in the agent's configuration"
		if found.Hint != "" {
			hint = found.Hint + "; or " + hint
		}
		clash := workload.NewConflict(p, found.Service, "", fault.ErrRejected, "this device does not allow "+found.What, hint)
		clash.Path = found.Path
		c.found = append(c.found, clash)
	}
}

// service checks what a service asks for by itself.
func (c *check) service(p *workload.Project, s *workload.Service) {
	c.confinement(p, s)
	c.resources(p, s)
	if s.Runtime != "" && !c.m.Runtimes[s.Runtime] {
		c.conflict(p, s.Name, "runtime", fault.ErrUnfit, "name it under \"runtime.allowed\" in the agent's configuration", "this device has no runtime %q", s.Runtime)
	}
	if s.Init && c.m.NoProgram != "" {
		c.conflict(p, s.Name, "init", fault.ErrUnfit, c.m.ProgramHint, "%s", c.m.NoProgram)
	}
	for _, d := range s.Devices {
		if !c.m.Exists(d.HostPath) {
			c.conflict(p, s.Name, fmt.Sprintf("devices[%d]", d.At), fault.ErrUnfit,
				"attach the device, or ask for what may appear later with \"device_cgroup_rules:\"", "this device has no %s", d.HostPath)
		}
	}
	for _, mt := range s.Mounts {
		switch {
		case mt.Kind != workload.MountBind || c.m.Exists(mt.Source):
		case workload.NamesSocket(mt.Source):
			c.conflict(p, s.Name, fmt.Sprintf("volumes[%d]", mt.At), fault.ErrUnfit,
				"start the program that makes it on the device", "there is no socket %s on this device", mt.Source)
		case !mt.Create:
			c.conflict(p, s.Name, fmt.Sprintf("volumes[%d]", mt.At), fault.ErrUnfit,
				"make it on the device, or let it be made with \"create_host_path: true\"", "there is no %s on this device", mt.Source)
		}
	}
}

func (c *check) volume(p *workload.Project, v workload.Volume) {
	if !v.External || c.m.Volume(v.Shared) {
		return
	}
	clash := workload.NewConflict(p, "", "", fault.ErrUnfit, fmt.Sprintf("there is no volume %q on this device", v.Shared),
		"deploy the application that makes it first, or leave out \"external:\"")
	clash.Path = "volumes." + v.Name
	c.found = append(c.found, clash)
}

func (c *check) confinement(p *workload.Project, s *workload.Service) {
	if s.Security == nil {
		return
	}
	sec := s.Security
	if sec.Seccomp != "" && sec.Seccomp != "unconfined" && !c.m.Seccomp {
		c.conflict(p, s.Name, "security_opt", fault.ErrUnfit, "install a runc that was built with seccomp", "the runtime of this device cannot filter system calls")
	}
	if sec.AppArmor != "" && sec.AppArmor != "unconfined" && !c.m.AppArmor {
		c.conflict(p, s.Name, "security_opt", fault.ErrUnfit, "", "this device has no AppArmor for profile %q", sec.AppArmor)
	}
	if !c.m.SELinux && slices.ContainsFunc(sec.Label, func(l string) bool { return l != "disable" }) {
		c.conflict(p, s.Name, "security_opt", fault.ErrUnfit, "", "this device has no SELinux for label %s", strings.Join(sec.Label, ", "))
	}
}

func (c *check) resources(p *workload.Project, s *workload.Service) {
	r := s.Resources
	for _, l := range c.m.Lacks(r) {
		c.conflict(p, s.Name, l.Key, fault.ErrUnfit, l.Hint, "this device's control groups (version %d) have no %s", c.m.Cgroup, l.What)
	}
	if most := int64(c.m.Cores) * 1e9; c.m.Cores > 0 && r.NanoCPUs > most {
		c.conflict(p, s.Name, "cpus", fault.ErrUnfit, "", "%g processors are asked for, this device has %d", float64(r.NanoCPUs)/1e9, c.m.Cores)
	}
	if last, ok := highest(r.CPUSet); ok && c.m.Cores > 0 && last >= c.m.Cores {
		c.conflict(p, s.Name, "cpuset", fault.ErrUnfit, "", "processor %d is asked for, the last one of this device is %d", last, c.m.Cores-1)
	}
	if r.Blkio != nil {
		for _, list := range [][]workload.BlkioRate{r.Blkio.WeightDevices, r.Blkio.ReadBps, r.Blkio.WriteBps, r.Blkio.ReadIOps, r.Blkio.WriteIOps} {
			for _, d := range list {
				if !c.m.Exists(d.Path) {
					c.conflict(p, s.Name, "blkio_config", fault.ErrUnfit, "", "this device has no %s", d.Path)
				}
			}
		}
	}
}

// highest is the last processor that a list like "0-2,4" names; false for "" and what is no list.
func highest(set string) (int, bool) {
	last, ok := 0, false
	for part := range strings.SplitSeq(set, ",") {
		_, end, ranged := strings.Cut(part, "-")
		if !ranged {
			end = part
		}
		var n int
		if _, err := fmt.Sscanf(strings.TrimSpace(end), "%d", &n); err == nil {
			last, ok = max(last, n), true
		}
	}
	return last, ok
}
