package agent

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
)

// known is what the agent remembers of revisions and images, beside what a state asks for.
type known struct {
	good   map[string]goodRevision          // by deployment id
	bad    map[digest.Digest]store.Bad      // by deployment digest
	held   map[digest.Digest]trouble        // by deployment digest: may not be made now
	images map[string]imageFact             // by name; one that is missing was not asked for yet
	admits func(d *Deployment) (asked bool) // nil: nobody has to be asked
}

// goodRevision is the last revision of a deployment that ran completely.
type goodRevision struct {
	rec store.Good
	d   *Deployment // nil: its documents are damaged
}

// imageFact is what is known of an image.
type imageFact struct {
	workload.ImageInfo
	absent bool // it is not on the device
}

// realise makes of what a state asks for what the device is to be kept at: a revision that did not run gives way to the
// last good one, one that may not be made now waits, and services take over what their images say. It is pure.
func realise(want *Desired, k known) *Desired {
	if want == nil {
		return nil
	}
	out := *want
	out.Deployments = make([]Deployment, len(want.Deployments))
	for i := range want.Deployments {
		d := k.choose(&want.Deployments[i])
		d.Components = slices.Clone(d.Components)
		for j := range d.Components {
			k.complete(&d.Components[j])
		}
		out.Deployments[i] = d
	}
	return &out
}

// choose decides which revision of a deployment is to run.
func (k known) choose(d *Deployment) Deployment {
	out := *d
	good, ok := k.good[d.ID]
	ok = ok && good.rec.Digest != d.Digest && good.d != nil
	back := func(why store.Bad) Deployment {
		g := *good.d
		g.Name, g.Refused, g.Back = d.Name, &why, good.rec.Generation
		return g
	}
	bad, isBad := k.bad[d.Digest]
	t, isHeld := k.held[d.Digest]
	switch {
	case isBad && bad.Pause:
		out.Refused = &bad
	case isBad && ok:
		return back(bad)
	case isHeld && ok:
		g := back(store.Bad{Digest: d.Digest, DeploymentID: d.ID, Code: string(t.code), Source: t.source, Message: t.message, Since: t.since, Revision: d.component(t.source).revision()})
		g.Kept = true
		return g
	case isHeld:
		out.Hold = &t
	case k.admits != nil && !k.admits(d):
		out.Hold = &trouble{}
	}
	out.Trial = ok && !isBad
	return out
}

// complete adds what images say to a component's services.
func (k known) complete(c *Component) {
	c.Containers = slices.Clone(c.Containers)
	c.Lacks, c.Clash = map[string]bool{}, map[string]string{}
	c.Notices = slices.Clone(c.Project.Notices)
	told := map[string]bool{}
	for i := range c.Containers {
		s := &c.Containers[i].Service
		fact, ok := k.images[s.Image.Name()]
		if !ok && k.images != nil {
			c.Blind = true
		}
		for _, img := range s.Images() {
			if k.images[img.Name()].absent {
				c.Lacks[img.Name()] = true
			}
		}
		s.Health = effectiveHealth(s, fact.Health)
		if s.Update.Order != workload.StartFirst && s.Rollback.Order != workload.StartFirst {
			continue
		}
		why := clash(c.Project, s, fact.Volumes)
		if why == "" {
			continue
		}
		c.Clash[s.Name] = why
		if path := "services." + s.Name + ".deploy.update_config.order"; !told[s.Name] {
			told[s.Name] = true
			if !slices.ContainsFunc(c.Notices, func(n workload.Notice) bool { return n.Path == path }) {
				c.Notices = append(c.Notices, workload.Notice{Path: path, Message: "start-first is done as stop-first: " + why})
			}
		}
	}
}

// effectiveHealth is how a service's containers are judged: as the service says, else as its image does.
func effectiveHealth(s *workload.Service, image *workload.Health) *workload.Health {
	switch {
	case s.NoHealth:
		return nil
	case s.Health == nil:
		return image
	case s.Health.Probe.Exec != nil || s.Health.Probe.HTTP != nil || s.Health.Probe.TCP != 0:
		return s.Health
	case image == nil:
		return nil // times, and nothing to ask
	}
	h := *s.Health
	h.Probe = image.Probe
	return &h
}

// clash tells why the containers of two revisions of a service cannot run beside each other; "": they can. Published ports
// are no reason: they lead to one of them at a time.
func clash(p *workload.Project, s *workload.Service, volumes []string) string {
	switch {
	case s.Namespaces.Network == workload.HostNamespace:
		return "it shares the device's network"
	case len(s.CDI) > 0 || len(s.GPUs) > 0 || len(s.Devices) > 0:
		return "it has devices to itself"
	}
	networks := map[string]*workload.Network{}
	for i := range p.Networks {
		networks[p.Networks[i].Name] = &p.Networks[i]
	}
	for _, a := range s.Networks {
		if a.IPv4.IsValid() || a.IPv6.IsValid() || a.MAC != "" {
			return "it has a fixed address on network " + a.Network
		}
		if n := networks[a.Network]; n != nil && (n.External != "" || n.Driver != "" && n.Driver != workload.Bridge) {
			return "network " + a.Network + " has no address that could move"
		}
	}
	mounted := map[string]bool{}
	for _, m := range s.Mounts {
		mounted[m.Target] = true
		if m.ReadOnly || m.Kind != workload.MountVolume && m.Kind != workload.MountBind {
			continue
		}
		return fmt.Sprintf("it writes to %s", cmp.Or(m.Source, m.Target))
	}
	for _, v := range volumes {
		if !mounted[v] {
			return "its image keeps a volume at " + v
		}
	}
	return ""
}

// recompose makes target and next anew after anything that they follow from has changed.
func (l *loop) recompose() {
	l.target, l.next = realise(l.wanted, l.known(true)), realise(l.coming, l.known(false))
	l.composed++
	l.look = true
	if l.target == nil {
		return
	}
	told := map[string]string{}
	for _, d := range l.target.Deployments {
		for _, c := range d.Components {
			for s, why := range c.Clash {
				id := c.Project.Name + "/" + s
				told[id] = why
				if l.told[id] != why {
					l.log.Info("start-first is done as stop-first", "deployment", d.Name, "component", c.Name, "service", s, "why", why)
				}
			}
		}
	}
	l.told = told
}

// known is what the agent remembers. Only for what is being applied somebody has to be asked.
func (l *loop) known(applied bool) known {
	k := known{good: l.good, bad: l.bad}
	if applied {
		k.images = l.facts
		k.held, k.admits = l.admission.held, l.admission.asked(l.o.Runtime)
	}
	return k
}

// forget drops what is known of images that nothing wants any more.
func (l *loop) forget() {
	wanted := map[string]bool{}
	for _, d := range []*Desired{l.wanted, l.coming} {
		if d != nil {
			for _, img := range d.images() {
				wanted[img.Name()] = true
			}
		}
	}
	for _, g := range l.good {
		if g.d != nil {
			for _, img := range g.d.images() {
				wanted[img.Name()] = true
			}
		}
	}
	maps.DeleteFunc(l.facts, func(name string, _ imageFact) bool { return !wanted[name] })
}
