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
	actClear        // stop and remove them; the needed one is created when they are gone, or is active already
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
func (pl *planner) updateService(v *view, slots []slot) {
	s := &slots[0].c.Service
	u := s.Update
	if v.d.Refused != nil {
		if v.d.Refused.Pause {
			return
		}
		u = s.Rollback
	}
	beside := u.Order == workload.StartFirst && v.c.Conflicts[s.Name] == ""
	room, last, stop := len(slots), time.Time{}, false
	for i := range slots {
		x := &slots[i]
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
	for i := range slots {
		x := &slots[i]
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
			room--
		}
		pl.replace(v, x, beside)
	}
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
	for _, img := range s.Images() {
		if v.c.Missing[img.Name()] {
			return true
		}
	}
	return false
}

// waitsForVolume reports whether a service that s depends on shares a volume with it and has no container yet: a volume is filled from
// the image of the first container.
func (v *view) waitsForVolume(s *workload.Service) bool {
	for _, d := range s.DependsOn {
		for i := range v.slots {
			x := &v.slots[i]
			if !d.Optional && !x.there && len(x.old) == 0 && x.c.Service.Name == d.Service && shareVolume(s, &x.c.Service) {
				return true
			}
		}
	}
	return false
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
	for _, o := range x.old {
		if o.ID == x.c.ID { // its labels were edited: its name must be free first
			beside = false
		}
	}
	runs := x.there && alive(x.o)
	switch {
	case !x.running():
		x.act = actClear
	case runs && x.well && !x.o.Active && hasServiceAddress(&x.c.Service):
		x.act = actActivate
	case !beside:
		x.act = actClear
	case !runs || !x.well:
		x.act = actSurge
	default:
		x.act = actClear
		if end := pl.s.Containers[x.c.ID].Active.Add(pl.p.Drain); hasServiceAddress(&x.c.Service) && pl.now.Before(end) {
			x.act = actSurge
			v.wakeAt(end)
		}
	}
}

// shouldActivate reports whether a container that replaces nothing is not a backend of its service yet: another replica was the
// backend when it started.
func (x *slot) shouldActivate() bool {
	return len(x.old) == 0 && x.there && alive(x.o) && x.well && !x.o.Active && hasServiceAddress(&x.c.Service)
}

// shouldDeactivate reports whether a container is a backend of its service but not well, while another replica is a well backend.
func (v *view) shouldDeactivate(x *slot) bool {
	if !x.there || !x.o.Active || x.well {
		return false
	}
	for i := range v.slots {
		if y := &v.slots[i]; y != x && y.c.Service.Name == x.c.Service.Name && y.there && y.o.Active && y.well && alive(y.o) {
			return true
		}
	}
	return false
}

// hasServiceAddress reports whether a service has an address that leads to one of its containers.
func hasServiceAddress(s *workload.Service) bool {
	return len(s.Networks) > 0 && s.Namespaces.Network == ""
}

// leaving are the containers of a component that must be removed now.
func (v *view) leaving() []workload.Observation {
	if v.d.Blocked != nil {
		return nil
	}
	out := v.extra
	for i := range v.slots {
		if v.slots[i].act == actClear {
			out = append(out[:len(out):len(out)], v.slots[i].old...)
		}
	}
	return out
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
