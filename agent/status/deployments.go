package status

import (
	"cmp"
	"maps"
	"slices"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
)

// View is what deployments and containers are shown from. All of it is only read.
type View struct {
	Target      *plan.Desired // nil: nothing
	Accepted    *plan.Desired // accepted and not yet here completely; nil: none
	Supervision *plan.Supervision
	Observed    map[string]workload.Observation // by container id
	Reported    map[string]store.Status         // by deployment id
}

// NameOf is a deployment's name; its id when it has none any more.
func NameOf(reported map[string]store.Status, id string) string {
	if s, ok := reported[id]; ok && s.Name != "" {
		return s.Name
	}
	return id
}

// Deployments lists what is reported of applications, by name.
func (v View) Deployments() []Deployment {
	out := []Deployment{}
	for _, d := range ByName(v.Reported) {
		out = append(out, v.deployment(d))
	}
	return out
}

// ByName orders what is reported of deployments by their names, those of one name by id.
func ByName(reported map[string]store.Status) []store.Status {
	return slices.SortedFunc(maps.Values(reported), func(a, b store.Status) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.DeploymentID, b.DeploymentID))
	})
}

// NewGeneration shows a saved state; nil: none.
func NewGeneration(s *store.State) *Generation {
	if s == nil {
		return nil
	}
	return &Generation{
		Generation: s.Generation, Digest: s.Digest, Repository: s.Repository, SignedBy: s.SignedBy, Insecure: len(s.Insecure) > 0,
		Created: s.Created, AcceptedAt: s.AcceptedAt, Expires: s.Expires, Repeats: s.Repeats,
	}
}

func (v View) deployment(d store.Status) Deployment {
	out := Deployment{
		ID: d.DeploymentID, Name: d.Name, Generation: d.Generation, State: d.State, Since: d.Since, Error: plan.OverallError(d),
		Components: []Component{},
	}
	td := v.Target.Deployment(d.DeploymentID)
	if td == nil || td.Refused == nil {
		if nd := v.Accepted.Deployment(d.DeploymentID); nd != nil && nd.Refused != nil {
			td = nd
		}
	}
	out.Refused = v.refused(td)
	if now := v.Target.Deployment(d.DeploymentID); now != nil && now.Digest != d.Digest && now.Refused == nil {
		for c := range now.All() {
			out.Running = append(out.Running, RunningComponent{c.Name, c.Revision, v.services(c)})
		}
	}
	for _, c := range d.Components {
		cs := Component{Name: c.Name, Revision: c.Revision, State: c.State, Since: c.Since, Error: c.Error, Services: []Service{}}
		comp := v.Target.Deployment(d.DeploymentID).Component(c.Name)
		if comp == nil && v.Target == nil {
			comp = v.Accepted.Deployment(d.DeploymentID).Component(c.Name)
		}
		if comp != nil {
			cs.Notices, cs.Services = comp.Notices, v.services(comp)
		}
		out.Components = append(out.Components, cs)
	}
	return out
}

func (v View) refused(d *plan.Deployment) *RefusedRevision {
	if d == nil || d.Refused == nil {
		return nil
	}
	r := d.Refused
	out := &RefusedRevision{
		Digest: r.Digest, Generation: r.Generation, Component: r.Source, Revision: r.Revision, Code: codes.Code(r.Code), Message: r.Message,
		Since: r.Since, Paused: r.Pause, Waiting: d.Deferred, RunningGeneration: d.Back,
	}
	if d.Deferred && v.Supervision.Generation > 0 {
		out.Generation = v.Supervision.Generation
	}
	return out
}

func (v View) services(c *plan.Component) []Service {
	out := []Service{}
	for _, x := range c.Containers {
		out = append(out, v.service(x, v.Observed[x.ID]))
	}
	return out
}

func (v View) service(x workload.Container, o workload.Observation) Service {
	s := v.Supervision.Containers[x.ID]
	return Service{
		Name: x.Service.Name, Container: x.ID, Replica: x.Replica, Image: x.Service.Image.Name(), Status: o.Status, Health: s.Health, Restarts: s.Total,
		ExitCode: o.ExitCode, PID: o.PID, StartedAt: o.StartedAt, NextStart: s.NextStart, Output: s.Output,
	}
}
