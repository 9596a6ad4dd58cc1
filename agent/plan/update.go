package plan

import (
	"slices"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
)

// act is the decision about the containers that a needed one replaces.
type act int

// Acts. The zero value does nothing yet.
const (
	actNone     act = iota
	actClear        // stop and remove them; the needed one starts when they have ended, or is active already
	actCreate       // create the needed one, which starts when they have ended
	actSurge        // start the needed one beside them
	actActivate     // make the needed one the active backend
)

// updateComponent decides about the slots of a component, service by service. It depends on observations only: an interrupted update
// continues where it is.
func (pl *planner) updateComponent(v *view) {
	if v.d.Blocked != nil {
		return
	}
	for i := 0; i < len(v.slots); {
		j := i + 1
		for j < len(v.slots) && v.slots[j].c.Service.Name == v.slots[i].c.Service.Name {
			j++
		}
		pl.updateService(v, v.slots[i:j])
		i = j
	}
}

// updateService decides about the replicas of one service.
func (pl *planner) updateService(v *view, slots []*slot) {
	s := &slots[0].c.Service
	if v.d.Refused != nil && v.d.Refused.Pause {
		for _, x := range slots { // a replacement that has started is complete
			if x.there && x.o.Status != workload.Created && x.ended() {
				x.act = actClear
			}
		}
		return
	}
	u, beside := v.update(s), v.startsFirst(s)
	room, last, stop := len(slots), time.Time{}, false
	for _, x := range slots {
		stop = stop || x.failed && x.fault.FailsUpdate && v.d.Updating
		if begun(x) && !x.failed {
			room--
		}
		if x.there && len(x.old) == 0 {
			if up := pl.s.Containers[x.c.ID].Up; up.After(last) {
				last = up
			}
		}
	}
	if u.Parallelism > 0 {
		room -= len(slots) - u.Parallelism
		if next := last.Add(u.Delay); u.Delay > 0 && !last.IsZero() && pl.now.Before(next) {
			room = 0
			v.wakeAt(next)
		}
	}
	for _, x := range slots {
		if len(x.old) == 0 {
			continue
		}
		if !begun(x) {
			gentle := beside || u.Parallelism > 0
			if stop || gentle && room <= 0 || gentle && !beside && !v.ready(x.c, pl.s) {
				continue
			}
			if v.missing(&x.c.Service) || v.stuck(&x.c.Service, pl.s) {
				continue
			}
			if !x.failed {
				room--
			}
		}
		pl.replace(v, x, beside)
	}
}

// update is how the containers of a service are replaced.
func (v *view) update(s *workload.Service) workload.Update {
	if v.d.Refused != nil && !v.d.Refused.Pause {
		return s.Rollback
	}
	return s.Update
}

// startsFirst reports whether the old and the new container of a service may run at the same time.
func (v *view) startsFirst(s *workload.Service) bool {
	return v.update(s).Order == workload.StartFirst && v.c.Conflicts[s.Name] == ""
}

// begun reports whether the replacement of a slot is under way.
func begun(x *slot) bool {
	if len(x.old) == 0 {
		return !x.well
	}
	return x.there || !x.running()
}

// missing reports whether a service cannot be made because an image is not on the device.
func (v *view) missing(s *workload.Service) bool {
	return slices.ContainsFunc(s.Images(), func(img workload.Image) bool { return v.c.Missing[img.Name()] })
}

// waitsForVolume is a service that s depends on, which shares a volume with it and has no container of this revision yet: a volume is filled
// from the image of the first container; "": none. The old container of s may go meanwhile: what it depends on goes only after it.
func (v *view) waitsForVolume(s *workload.Service) string {
	for _, d := range s.DependsOn {
		some, made := false, false
		for _, x := range v.slots {
			if !d.Optional && x.c.Service.Name == d.Service && shareVolume(s, &x.c.Service) {
				some, made = true, made || x.there
			}
		}
		if some && !made {
			return d.Service
		}
	}
	return ""
}

// fillsLater reports whether a container that shares a volume with a service is still to be created, in a first installation: its image may
// have files for the volume, which come before what programs write.
func (pl *planner) fillsLater(v *view, s *workload.Service) bool {
	return slices.ContainsFunc(v.slots, func(y *slot) bool { return shareVolume(s, &y.c.Service) && pl.comes(v, y) })
}

// comes reports whether a container that replaces none is created without anything that waits: an update of another service may wait for a
// program to start.
func (pl *planner) comes(v *view, x *slot) bool {
	if x.there || len(x.old) > 0 || v.missing(&x.c.Service) || pl.creation(v, x).Failures > 0 {
		return false
	}
	first := v.waitsForVolume(&x.c.Service)
	i := slices.IndexFunc(v.slots, func(y *slot) bool { return y.c.Service.Name == first })
	return i < 0 || pl.comes(v, v.slots[i])
}

func shareVolume(a, b *workload.Service) bool {
	for _, m := range a.Mounts {
		if m.Kind == workload.MountVolume && m.Source != "" && slices.ContainsFunc(b.Mounts, func(o workload.Mount) bool { return o.Kind == m.Kind && o.Source == m.Source }) {
			return true
		}
	}
	return false
}

// replace decides about one slot whose turn has come.
func (pl *planner) replace(v *view, x *slot, beside bool) {
	edited := slices.ContainsFunc(x.old, func(o workload.Observation) bool { return o.ID == x.c.ID }) // its name must be free first
	beside = beside && !edited
	runs := x.there && alive(x.o)
	switch {
	case !x.running():
		x.act = actClear
	case runs && x.well && !x.o.Active && hasServiceAddress(&x.c.Service):
		x.act = actActivate
	case !beside && !x.there && !edited && !pl.creation(v, x).Waits && v.waitsForVolume(&x.c.Service) == "" && v.coexist(&x.c.Service):
		x.act = actCreate
	case !beside && x.there && pl.s.Busy[x.c.ID] == Create: // what can be done of its start is being done
		x.act = actCreate
	case !beside:
		x.act = actClear
	case !runs || !x.well:
		x.act = actSurge
	default:
		x.act = actClear
		if end := pl.s.Containers[x.c.ID].Active.Add(drainTime); hasServiceAddress(&x.c.Service) && pl.now.Before(end) {
			x.act = actSurge
			v.wakeAt(end)
		}
	}
}

// creation is the failure that the creation of a container meets now; the zero value: none. One that waits may need what the old container
// holds.
func (pl *planner) creation(v *view, x *slot) Retry {
	if r, ok := pl.s.Retries[Step{Verb: Prepare, Project: v.c.Project.Name}.Key()]; ok {
		return r
	}
	return pl.s.Retries[Step{Verb: Create, Container: x.c.ID}.Key()]
}

// coexist reports whether a container of a service can be created while an older one still runs.
func (v *view) coexist(s *workload.Service) bool {
	p := v.c.Project
	if p.Attached(s) != "" || s.Namespaces.PID.Service() != "" || s.Namespaces.IPC.Service() != "" {
		return false
	}
	// A volume of a driver is mounted anew, with its present options, only when no container uses it.
	return !slices.ContainsFunc(s.Mounts, func(m workload.Mount) bool {
		return m.Kind == workload.MountVolume && len(p.Volume(m.Source).Options) > 0
	})
}

// shouldActivate reports whether a container that replaces none that runs is not a backend of its service yet: another one was the
// backend when it started.
func (x *slot) shouldActivate() bool {
	return x.ended() && x.there && alive(x.o) && x.well && !x.o.Active && hasServiceAddress(&x.c.Service)
}

// shouldDeactivate reports whether a container is a backend of its service but not well, while another replica is a well backend.
func (v *view) shouldDeactivate(x *slot) bool {
	if !x.there || !x.o.Active || x.well {
		return false
	}
	return slices.ContainsFunc(v.slots, func(y *slot) bool {
		return y != x && y.c.Service.Name == x.c.Service.Name && y.there && y.o.Active && y.well && alive(y.o)
	})
}

// answered reports whether another replica of a slot's service, old or new, is a backend that runs.
func (v *view) answered(x *slot) bool {
	backend := func(o workload.Observation) bool { return o.Active && alive(o) }
	return slices.ContainsFunc(v.slots, func(y *slot) bool {
		return y != x && y.c.Service.Name == x.c.Service.Name && (backend(y.o) || slices.ContainsFunc(y.old, backend))
	})
}

// hasServiceAddress reports whether a service has an address that leads to one of its containers.
func hasServiceAddress(s *workload.Service) bool {
	return len(s.Networks) > 0 && s.Namespaces.Network == ""
}

// leaving are the containers of a component that must be removed now, and those that must be removed now or soon.
func (pl *planner) leaving(v *view) (now, soon []workload.Observation) {
	if v.d.Blocked != nil {
		return nil, nil
	}
	now, soon = slices.Clone(v.extra), slices.Clone(v.extra)
	for _, x := range v.slots {
		switch {
		case x.act == actCreate, x.act == actClear && pl.takesOver(v, x):
			soon = append(soon, x.old...)
		case x.act == actClear:
			now, soon = append(now, x.old...), append(soon, x.old...)
		}
	}
	return now, soon
}

// takesOver reports whether a container is to start now in place of one that has ended, which is removed after that: a removal beside it
// would delay the start, and end the shim that both share.
func (pl *planner) takesOver(v *view, x *slot) bool {
	start := Step{Verb: Start, Container: x.c.ID}
	return x.there && x.o.Status == workload.Created && len(x.old) > 0 && x.ended() && v.ready(x.c, pl.s) && pl.s.Retries[start.Key()].Failures == 0
}

// blockedByDependent reports whether another container that must be removed depends on o's service and still runs: it is removed first.
func (v *view) blockedByDependent(o workload.Observation, leaving []workload.Observation) bool {
	for _, x := range leaving {
		if x.ID == o.ID || !alive(x) {
			continue
		}
		if dependsOn(v.c.Project, x.Service, o.Service, nil) && !dependsOn(v.c.Project, o.Service, x.Service, nil) {
			return true
		}
	}
	return false
}
