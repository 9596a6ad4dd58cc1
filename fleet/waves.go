package fleet

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/artifacts/schedule"
)

// PlannedWave is one step of a plan's publication.
type PlannedWave struct {
	Wave
	Group     string // whose waves it belongs to; "": the fleet's
	OnFailure string // halt (also ""), rollback
	Unwatched bool   // of devices that no rollout speaks about: nothing is waited for
	Devices   []*DevicePlan
}

// atOnce is the wave of devices that no rollout speaks about: a group has one, and the fleet has none.
const atOnce = "others"

// Staged reports whether devices are published to in waves: the fleet or a group of it says how.
func (f *Fleet) Staged() bool {
	return f.Rollout != nil || slices.ContainsFunc(f.Groups, func(g *Group) bool { return g.Rollout != nil })
}

// Waves parts the devices that change into waves: those of a group that has a rollout of its own by that, the others by
// the fleet's. The waves of one group follow each other, those of two groups do not wait for each other. Every device that
// changes is in exactly one; waves in which none is are left out. nil when the fleet has no rollout.
func (p *Plan) Waves() []PlannedWave {
	if !p.c.Fleet.Staged() {
		return nil
	}
	tracks := map[*Group][]*DevicePlan{}
	for _, d := range p.Devices {
		if d.Action == Publish {
			g := d.assignment.Device.staging()
			tracks[g] = append(tracks[g], d)
		}
	}
	var out []PlannedWave
	for _, g := range append([]*Group{nil}, p.c.Fleet.Groups...) {
		r, name := p.c.Fleet.Rollout, ""
		if g != nil {
			r, name = g.Rollout, g.Name
		}
		if len(tracks[g]) == 0 {
			continue
		}
		if r == nil { // only of the fleet
			out = append(out, PlannedWave{Wave: Wave{Name: atOnce, Percent: 100}, Unwatched: true, Devices: tracks[g]})
			continue
		}
		for i, devices := range inWaves(r.Waves, tracks[g]) {
			if len(devices) > 0 {
				out = append(out, PlannedWave{Wave: r.Waves[i], Group: name, OnFailure: r.OnFailure, Devices: devices})
			}
		}
	}
	return out
}

// staging is the first of the device's groups that has a rollout of its own; nil: the fleet's is for it.
func (d *Device) staging() *Group {
	for _, g := range d.Groups {
		if g.Rollout != nil {
			return g
		}
	}
	return nil
}

// inWaves parts devices: the first wave that selects a device has it, a percentage takes of those that are left what is
// missing to so many of all, and the last wave takes the rest. Which devices a percentage takes follows from their ids
// alone, and not from their order: neighbours are of one line, and one line must not be the whole first wave.
func inWaves(waves []Wave, devices []*DevicePlan) [][]*DevicePlan {
	out := make([][]*DevicePlan, len(waves))
	rest := slices.Clone(devices)
	slices.SortFunc(rest, func(a, b *DevicePlan) int {
		x, y := sha256.Sum256([]byte(a.Device)), sha256.Sum256([]byte(b.Device))
		return cmp.Or(slices.Compare(x[:], y[:]), cmp.Compare(a.Device, b.Device))
	})
	for i, w := range waves {
		switch {
		case i == len(waves)-1:
			out[i], rest = rest, nil
		case w.Percent > 0:
			missing := Share(w.Percent, len(devices)) - (len(devices) - len(rest))
			n := min(max(missing, 0), len(rest))
			out[i], rest = rest[:n:n], rest[n:]
		default:
			var left []*DevicePlan
			for _, d := range rest {
				if d.assignment.Device.Matches(w.Select) {
					out[i] = append(out[i], d)
				} else {
					left = append(left, d)
				}
			}
			rest = left
		}
		slices.SortFunc(out[i], func(a, b *DevicePlan) int { return cmp.Compare(a.Device, b.Device) })
	}
	return out
}

// Share is a percentage of n, rounded up.
func Share(percent, n int) int { return (n*percent + 99) / 100 }

// WaveLines say in which waves a plan is published, a line each; none when it has no waves.
func WaveLines(waves []PlannedWave) []string {
	var out []string
	for _, w := range waves {
		name, then := w.Name, ""
		if w.Group != "" {
			name = w.Group + "/" + name
		}
		if !w.Unwatched {
			then = fmt.Sprintf(", then %d of them well", Share(w.Required(), len(w.Devices)))
			if w.Soak > 0 {
				then += " for " + schedule.Brief(w.Soak)
			}
		}
		out = append(out, fmt.Sprintf("wave %s: %s%s", name, printable.Counted(len(w.Devices), "device"), then))
	}
	return out
}

// Required is the percentage of the wave's devices that must be well; 0: it is not waited for.
func (w PlannedWave) Required() int {
	switch {
	case w.Unwatched:
		return 0
	case w.Success == 0:
		return 100
	}
	return w.Success
}
