package status

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Container is one container of the device, as desired and as found. Its JSON keys are stable.
type Container struct {
	ID           string          `json:"id"`
	Deployment   string          `json:"deployment"` // name
	DeploymentID string          `json:"deploymentId"`
	Component    string          `json:"component"`
	Project      string          `json:"project"`
	Service      string          `json:"service"`
	Replica      int             `json:"replica"`
	Image        string          `json:"image"` // repository@digest
	State        workload.Status `json:"state"` // "missing" when it is needed and not there yet
	Health       plan.Health     `json:"health,omitempty"`
	Restarts     int             `json:"restarts"` // since the agent started
	ExitCode     uint32          `json:"exitCode"`
	PID          uint32          `json:"pid,omitempty"`
	StartedAt    time.Time       `json:"startedAt,omitzero"`
	ExitedAt     time.Time       `json:"exitedAt,omitzero"`
	NextStart    time.Time       `json:"nextStart,omitzero"`
	Output       string          `json:"output,omitempty"` // of a health check that fails
	Ports        []Port          `json:"ports"`
	Active       bool            `json:"active"`   // its service's address leads to it
	Obsolete     bool            `json:"obsolete"` // not needed any more: about to go
}

// Missing is the state of a container that is needed and not there yet.
const Missing workload.Status = "missing"

type Port struct {
	HostIP        string `json:"hostIp,omitempty"` // "": every address
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`
}

// Name is what people call it: service and replica.
func (c Container) Name() string { return c.Service + "-" + strconv.Itoa(c.Replica) }

// Path is unique among all applications.
func (c Container) Path() string { return c.Deployment + "/" + c.Name() }

// Containers lists the containers that the device needs or has, in order of deployments, components and services.
func (v View) Containers() []Container {
	out := []Container{}
	needed := map[string]bool{}
	for d := range v.Target.All() {
		for c, x := range d.Containers() {
			needed[x.ID] = true
			cs := v.container(v.Observed[x.ID])
			cs.ID, cs.DeploymentID, cs.Deployment = x.ID, d.ID, d.Name
			cs.Component, cs.Project, cs.Service, cs.Replica = c.Name, c.Project.Name, x.Service.Name, x.Replica
			cs.Image, cs.Ports = x.Service.Image.Name(), ports(x.Service.Ports)
			cs.State = cmp.Or(cs.State, Missing)
			out = append(out, cs)
		}
	}
	for _, o := range v.Observed {
		if needed[o.ID] {
			continue
		}
		cs := v.container(o)
		cs.ID, cs.DeploymentID, cs.Deployment = o.ID, o.Deployment, NameOf(v.Reported, o.Deployment)
		cs.Component, cs.Project, cs.Service, cs.Replica = o.Component, o.Project, o.Service, o.Replica
		cs.Image, cs.Ports, cs.Obsolete = o.Image, []Port{}, v.Target != nil
		out = append(out, cs)
	}
	slices.SortFunc(out, func(a, b Container) int {
		return cmp.Or(cmp.Compare(a.Deployment, b.Deployment), cmp.Compare(a.Component, b.Component), cmp.Compare(a.Service, b.Service),
			cmp.Compare(a.Replica, b.Replica), cmp.Compare(a.ID, b.ID))
	})
	return out
}

func (v View) container(o workload.Observation) Container {
	s := v.Supervision.Containers[o.ID]
	return Container{
		State: o.Status, Health: s.Health, Restarts: s.Total, ExitCode: o.ExitCode, PID: o.PID,
		StartedAt: o.StartedAt, ExitedAt: o.ExitedAt, NextStart: s.NextStart, Output: s.Output, Active: o.Active,
	}
}

func ports(in []workload.Port) []Port {
	out := []Port{}
	for _, p := range in {
		s := Port{HostPort: p.HostPort, ContainerPort: p.ContainerPort, Protocol: p.Protocol}
		if p.HostIP.IsValid() {
			s.HostIP = p.HostIP.String()
		}
		out = append(out, s)
	}
	return out
}

// minIDPrefix is how much of a container's id names it.
const minIDPrefix = 6

// Select finds the containers that a word of the command line means: in this order, the first that fits anything counts.
//
//   - a container's id, or the beginning of only one;
//   - SERVICE or SERVICE-REPLICA, where several applications have one: an error that lists them;
//   - DEPLOYMENT/SERVICE or DEPLOYMENT/SERVICE-REPLICA, with a deployment's name or id, or DEPLOYMENT/COMPONENT/SERVICE;
//   - DEPLOYMENT: all of its containers.
func Select(all []Container, target string) ([]Container, error) {
	for _, match := range []func(Container) bool{
		func(c Container) bool { return c.ID == target },
		func(c Container) bool { return c.Service == target },
		func(c Container) bool { return c.Name() == target },
		func(c Container) bool { return below(c, target) },
		func(c Container) bool { return c.Deployment == target || c.DeploymentID == target },
		func(c Container) bool { return len(target) >= minIDPrefix && strings.HasPrefix(c.ID, target) },
	} {
		var found []Container
		owners := map[string]bool{}
		for _, c := range all {
			if match(c) {
				found = append(found, c)
				owners[c.DeploymentID+"\x00"+c.Component] = true
			}
		}
		if len(owners) > 1 && !slices.ContainsFunc(found, func(c Container) bool { return c.Deployment == target || c.DeploymentID == target }) {
			return nil, ambiguous(target, found)
		}
		if len(found) > 0 {
			return found, nil
		}
	}
	return nil, fault.WithHint(fmt.Errorf("no container or service %q: %w", target, fault.ErrNotFound), "longshore-agent ps -a lists them")
}

// SelectAll is [Select] for several targets; none: every container.
func SelectAll(all []Container, targets []string) ([]Container, error) {
	if len(targets) == 0 {
		return all, nil
	}
	var chosen []Container
	for _, t := range targets {
		found, err := Select(all, t)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, found...)
	}
	return chosen, nil
}

// below reports whether a path of names leads to a container.
func below(c Container, target string) bool {
	names := strings.Split(target, "/")
	if len(names) < 2 || len(names) > 3 || names[0] != c.Deployment && names[0] != c.DeploymentID {
		return false
	}
	if len(names) == 3 && names[1] != c.Component {
		return false
	}
	last := names[len(names)-1]
	return last == c.Service || last == c.Name() || len(names) == 2 && last == c.Component
}

func ambiguous(target string, found []Container) error {
	var names []string
	components := map[string]map[string]bool{}
	for _, c := range found {
		if components[c.Deployment] == nil {
			components[c.Deployment] = map[string]bool{}
		}
		components[c.Deployment][c.Component] = true
	}
	for _, c := range found {
		n := c.Path()
		if len(components[c.Deployment]) > 1 {
			n = c.Deployment + "/" + c.Component + "/" + c.Name()
		}
		if !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return fault.WithHint(fmt.Errorf("%q is ambiguous: %s: %w", target, strings.Join(names, ", "), fault.ErrInvalid), "name one of them")
}

// One is [Select] for what needs exactly one container that runs. Of two revisions of a replica it takes the one that its
// service's address leads to.
func One(all []Container, target string) (Container, error) {
	found, err := Select(all, target)
	if err != nil {
		return Container{}, err
	}
	running := slices.DeleteFunc(slices.Clone(found), func(c Container) bool { return c.State != workload.Running })
	if len(running) == 0 {
		return Container{}, fmt.Errorf("container %s does not run, it is %s: %w", found[0].Path(), found[0].State, fault.ErrConflict)
	}
	best := running[0]
	for _, c := range running[1:] {
		if c.Service != best.Service || c.Replica != best.Replica || c.Project != best.Project {
			return Container{}, ambiguous(target, running)
		}
		if c.Active && !best.Active {
			best = c
		}
	}
	return best, nil
}
