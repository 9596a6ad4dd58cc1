package plan

import (
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Memory is what the agent remembers of revisions and images.
type Memory struct {
	Good    map[string]GoodRevision          // by deployment id
	Bad     map[digest.Digest]store.Bad      // by deployment digest
	Blocked map[digest.Digest]Trouble        // by deployment digest: may not be made now
	Images  map[string]workload.ImageInfo    // by name: those that were pulled; nil: it does not matter yet
	Admits  func(d *Deployment) (asked bool) // nil: no approval is needed
	Waits   map[string]Wait                  // by deployment id: changes that are not made yet
}

// GoodRevision is the last revision of a deployment that ran completely.
type GoodRevision struct {
	Record     store.Good
	Deployment *Deployment // nil: its documents are damaged
}

// Resolve derives from a state what the device is to run: a revision that failed is replaced by the last good one, one that is blocked
// waits, and services take over the configuration of their images. It is pure.
func Resolve(want *Desired, k Memory) *Desired {
	if want == nil {
		return nil
	}
	out := *want
	out.Deployments = make([]Deployment, len(want.Deployments))
	for i := range want.Deployments {
		out.Deployments[i] = k.choose(&want.Deployments[i])
	}
	out.Deployments = append(out.Deployments, k.remaining(want)...)
	out.kept = map[string]bool{}
	for id := range k.Waits {
		out.kept[id] = want.Deployment(id) == nil
	}
	for d := range out.All() {
		d.Components = slices.Clone(d.Components)
		for c := range d.All() {
			k.complete(c)
		}
	}
	return &out
}

// choose decides which revision of a deployment runs.
func (k Memory) choose(d *Deployment) Deployment {
	out := *d
	good, ok := k.Good[d.ID]
	ok = ok && good.Record.Digest != d.Digest && good.Deployment != nil
	back := func(why store.Bad) Deployment {
		g := *good.Deployment
		g.Name, g.Refused, g.Back = d.Name, &why, good.Record.Generation
		return g
	}
	bad, isBad := k.Bad[d.Digest]
	t, isHeld := k.Blocked[d.Digest]
	if w, waits := k.Waits[d.ID]; waits && !isBad {
		return k.waiting(d, w)
	}
	switch {
	case isBad && bad.Pause:
		out.Refused = &bad
	case isBad && ok:
		return back(bad)
	case isHeld && ok:
		g := back(store.Bad{Digest: d.Digest, DeploymentID: d.ID, Code: string(t.Code), Source: t.Source, Message: t.Message, Since: t.Since, Revision: d.Component(t.Source).revision()})
		g.Deferred = true
		return g
	case isHeld:
		out.Blocked = &t
	case k.Admits != nil && !k.Admits(d):
		out.Blocked = &Trouble{}
	}
	out.Updating = ok && !isBad
	return out
}

// complete adds the configuration of images to a component's services.
func (k Memory) complete(c *Component) {
	c.Containers = slices.Clone(c.Containers)
	c.Missing, c.Conflicts = map[string]bool{}, map[string]string{}
	c.Notices = slices.Clone(c.Project.Notices)
	told := map[string]bool{}
	for i := range c.Containers {
		s := &c.Containers[i].Service
		info := k.Images[s.Image.Name()]
		for _, img := range s.Images() {
			if _, ok := k.Images[img.Name()]; !ok && k.Images != nil {
				c.Missing[img.Name()] = true
			}
		}
		s.Health = effectiveHealth(s, info.Health)
		if s.Update.Order != workload.StartFirst && s.Rollback.Order != workload.StartFirst {
			continue
		}
		why := conflict(c.Project, s, info.Volumes)
		if why == "" {
			continue
		}
		c.Conflicts[s.Name] = why
		if path := "services." + s.Name + ".deploy.update_config.order"; !told[s.Name] {
			told[s.Name] = true
			if !slices.ContainsFunc(c.Notices, func(n workload.Notice) bool { return n.Path == path }) {
				c.Notices = append(c.Notices, workload.Notice{Path: path, Message: "start-first is done as stop-first: " + why})
			}
		}
	}
}

// effectiveHealth is the health check of a service: its own, else that of its image.
func effectiveHealth(s *workload.Service, image *workload.Health) *workload.Health {
	switch {
	case s.NoHealth:
		return nil
	case s.Health == nil:
		return image
	case s.Health.Probe.Exec != nil || s.Health.Probe.HTTP != nil || s.Health.Probe.TCP != 0:
		return s.Health
	case image == nil:
		return nil // times without a test
	}
	h := *s.Health
	h.Probe = image.Probe
	return &h
}

// conflict says why the containers of two revisions of a service cannot run at the same time; "": they can. volumes are those that its
// image names.
func conflict(p *workload.Project, s *workload.Service, volumes []string) string {
	if len(s.CDI) > 0 || len(s.GPUs) > 0 || len(s.Devices) > 0 {
		return "it has devices to itself"
	}
	if why := p.Exclusive(s); why != "" {
		return why
	}
	for _, v := range volumes {
		if !slices.ContainsFunc(s.Mounts, func(m workload.Mount) bool { return m.Target == v }) {
			return "its image keeps a volume at " + v
		}
	}
	return ""
}
