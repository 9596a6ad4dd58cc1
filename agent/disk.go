package agent

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

const (
	diskEvery = time.Minute // between two looks at the room on the device's disks
	diskLimit = time.Minute // of one look
)

// disks is what the loop knows of the room on the device's disks.
type disks struct {
	spaces         []workload.Space
	busy           bool            // a look is in progress
	at             time.Time       // of the next look
	weighs         bool            // what is removed is being measured
	since          time.Time       // one of them is below what pulls leave free; zero: none is
	removedFirst   map[string]bool // by deployment id: those that the accepted state removes and that go before its images are here
	removalUseless bool            // they were measured, and would not give back enough
}

// lookAtDisks measures beside the loop.
func (l *loop) lookAtDisks(now time.Time) {
	if l.disks.busy || l.sight.blind != nil || now.Before(l.disks.at) {
		return
	}
	l.disks.busy, l.disks.at = true, now.Add(cmp.Or(l.o.LookEvery, diskEvery))
	l.within(diskLimit, func(ctx context.Context) {
		spaces, err := l.o.Runtime.Space(ctx)
		l.send(func(l *loop) {
			l.disks.busy = false
			if err != nil {
				l.log.Debug("free space is unknown", "err", err)
				return
			}
			l.disks.spaces = spaces
			switch low := l.low(); {
			case low == nil:
				l.disks.since = time.Time{}
			case l.disks.since.IsZero():
				l.disks.since = l.o.Now()
				l.log.Warn("little room is left on a disk", "dir", low.Dir, "free", low.Free, "images leave free", low.Keep)
			}
		})
	})
}

// low is a file system with less room than pulls leave free; nil: none.
func (l *loop) low() *workload.Space {
	for i, s := range l.disks.spaces {
		if s.Free < s.Keep {
			return &l.disks.spaces[i]
		}
	}
	return nil
}

// leaving are the deployments that the accepted state removes for good while its images are not here yet.
func (l *loop) leaving() []plan.Deployment {
	var out []plan.Deployment
	if l.targetDesired == nil || l.acceptedDesired == nil {
		return nil
	}
	for _, d := range l.targetDesired.Deployments {
		if l.acceptedDesired.Deployment(d.ID) == nil && !l.disks.removedFirst[d.ID] {
			out = append(out, d)
		}
	}
	return out
}

// removeEarly takes down what the accepted state removes for good before its images are here, where they find no room although
// all that is not needed was collected, and where that gives back what is lacking. It would go in any case, a moment later.
func (l *loop) removeEarly(now time.Time) {
	if !l.pull.full || !now.Before(l.pull.roomAt) || l.disks.weighs || l.disks.removalUseless || l.poll.collecting || l.sight.blind != nil || l.acceptedResolved == nil {
		return
	}
	leaving := slices.DeleteFunc(l.leaving(), func(d plan.Deployment) bool { return l.removalWaits(d.ID) })
	if len(leaving) == 0 {
		return
	}
	short := int64(1)
	for _, t := range l.pull.troubles {
		short = max(short, t.Short)
	}
	l.disks.weighs = true
	next := l.acceptedResolved.Digest
	l.within(diskLimit, func(ctx context.Context) {
		var sum int64
		for _, d := range leaving {
			for _, c := range d.Components {
				n, err := l.o.Runtime.Footprint(ctx, c.Project.Name)
				if err != nil {
					l.log.Warn("cannot measure what an application takes", "deployment", d.Name, "err", err)
				}
				sum += n
			}
		}
		l.send(func(l *loop) {
			l.disks.weighs, l.pull.full = false, false
			if l.acceptedResolved == nil || l.acceptedResolved.Digest != next {
				return
			}
			if l.disks.removalUseless = sum < short; !l.disks.removalUseless {
				l.remove(leaving, sum)
			}
		})
	})
}

func (l *loop) remove(all []plan.Deployment, gives int64) {
	var names []string
	for _, d := range all {
		l.disks.removedFirst[d.ID] = true
		names = append(names, d.Name)
	}
	what := fmt.Sprintf("the disk has no room for the images of generation %d: %s, which it removes, goes first and gives back %d MiB",
		l.acceptedResolved.Generation, strings.Join(names, ", "), gives>>20)
	l.log.Warn(what)
	l.events.Emit(status.Event{Kind: status.EventRemoved, Code: codes.DiskFull, Generation: l.acceptedResolved.Generation, Message: what})
	l.rebuild()
}

// recallEarly finds out after a start which deployments went early: those that the accepted state removes, and of which nothing
// is reported but their removal.
func (l *loop) recallEarly() {
	for _, d := range l.leaving() {
		if s, ok := l.told.statuses[d.ID]; !ok || s.State == margo.StateRemoving {
			l.disks.removedFirst[d.ID] = true
		}
	}
}

// keepEarly forgets those that the accepted state has again.
func (l *loop) keepEarly() {
	maps.DeleteFunc(l.disks.removedFirst, func(id string, _ bool) bool {
		return l.acceptedDesired == nil || l.acceptedDesired.Deployment(id) != nil
	})
}

// without is a state without some of its deployments.
func without(d *plan.Desired, gone map[string]bool) *plan.Desired {
	if d == nil || len(gone) == 0 {
		return d
	}
	out := *d
	out.Deployments = nil
	for _, x := range d.Deployments {
		if !gone[x.ID] {
			out.Deployments = append(out.Deployments, x)
		}
	}
	return &out
}

// diskProblems are disks with little room.
func (l *loop) diskProblems(add func(code codes.Code, message, doing, hint string, since time.Time)) {
	low := l.low()
	if low == nil {
		return
	}
	hint := ""
	if l.disks.removalUseless {
		hint = "what the accepted state removes would not give back enough (its volumes stay): remove volumes or files by hand, or lower images.minFree in agent.yaml"
	}
	add(codes.DiskLow, fmt.Sprintf("%s has %d MiB free of %d; images leave %d MiB free, so none can be loaded", low.Dir, low.Free>>20, low.Size>>20, low.Keep>>20),
		"what runs goes on", hint, l.disks.since)
}
