package fleet

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
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

// Staged tells whether devices are published to in waves: the fleet or a group of it says how.
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
		return cmp.Or(slices.Compare(x[:], y[:]), compareText(string(a.Device), string(b.Device)))
	})
	for i, w := range waves {
		switch {
		case i == len(waves)-1:
			out[i], rest = rest, nil
		case w.Percent > 0:
			missing := share(w.Percent, len(devices)) - (len(devices) - len(rest))
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
		slices.SortFunc(out[i], func(a, b *DevicePlan) int { return compareText(string(a.Device), string(b.Device)) })
	}
	return out
}

// share is a percentage of n, rounded up.
func share(percent, n int) int { return (n*percent + 99) / 100 }

// WaveLines say in which waves a plan is published, a line each; none when it has no waves.
func WaveLines(waves []PlannedWave) []string {
	var out []string
	for _, w := range waves {
		name, then := w.Name, ""
		if w.Group != "" {
			name = w.Group + "/" + name
		}
		if !w.Unwatched {
			then = fmt.Sprintf(", then %d of them well", needed(w.success(), len(w.Devices)))
			if w.Soak > 0 {
				then += " for " + brief(w.Soak)
			}
		}
		out = append(out, fmt.Sprintf("wave %s: %s%s", name, counted(len(w.Devices), "device"), then))
	}
	return out
}

// success is the percentage of the wave's devices that must be well; 0: it is not waited for.
func (w PlannedWave) success() int {
	switch {
	case w.Unwatched:
		return 0
	case w.Success == 0:
		return 100
	}
	return w.Success
}

// rollout makes the document of a plan's publication in waves.
func (p *Plan) rollout(number uint64, now time.Time) *artifacts.Rollout {
	r := &artifacts.Rollout{
		Fleet: p.Fleet, Number: number, Phase: artifacts.RolloutRunning, Began: now,
		States: artifacts.RolloutStates{Created: p.o.Created, Expires: p.o.Expires, Annotations: p.o.Annotations},
	}
	for i, w := range p.Waves() {
		r.Waves = append(r.Waves, artifacts.RolloutWave{
			Name: w.Name, Group: w.Group, Devices: len(w.Devices), Soak: w.Soak, Deadline: w.Deadline, Success: w.success(),
			Rollback: w.OnFailure == "rollback", State: artifacts.WavePending,
		})
		for _, d := range w.Devices {
			r.Targets = append(r.Targets, artifacts.RolloutTarget{
				Device: d.Device, Wave: i, Repository: d.Repository, Generation: d.Generation, Digest: d.Digest, Former: d.Tagged,
				Deployments: len(d.assignment.Placements),
			})
		}
	}
	slices.SortFunc(r.Targets, func(a, b artifacts.RolloutTarget) int { return compareText(string(a.Device), string(b.Device)) })
	r.Content = p.content(r.Targets)
	return r
}

// content is what the devices of a rollout are to run by this plan, in one digest; "" when one of them is not in it.
func (p *Plan) content(targets []artifacts.RolloutTarget) digest.Digest {
	byID := make(map[artifacts.DeviceID]*DevicePlan, len(p.Devices))
	for _, d := range p.Devices {
		byID[d.Device] = d
	}
	content, _ := contentOfAll(targets, func(id artifacts.DeviceID) (digest.Digest, error) {
		if d := byID[id]; d != nil {
			return d.content, nil
		}
		return "", nil
	})
	return content
}

// content is what the devices of a rollout are to run by the files, in one digest; "" when one of them is to run nothing
// that it can.
func (c *Compiled) content(targets []artifacts.RolloutTarget) (digest.Digest, error) {
	byID := make(map[artifacts.DeviceID]*Assignment, len(c.Assignments))
	for _, a := range c.Assignments {
		byID[a.Device.ID] = a
	}
	return contentOfAll(targets, func(id artifacts.DeviceID) (digest.Digest, error) {
		a := byID[id]
		if a == nil || len(a.Unfit) > 0 {
			return "", nil
		}
		documents, err := a.Documents(c.Fleet)
		if err != nil {
			return "", err
		}
		digests := make([]digest.Digest, len(documents))
		for i, doc := range documents {
			digests[i] = digest.FromBytes(doc)
		}
		return contentOf(digests), nil
	})
}

// contentOfAll is the content of devices in one digest; "" when one has none.
func contentOfAll(targets []artifacts.RolloutTarget, of func(artifacts.DeviceID) (digest.Digest, error)) (digest.Digest, error) {
	var b strings.Builder
	for _, t := range targets {
		d, err := of(t.Device)
		if err != nil || d == "" {
			return "", err
		}
		fmt.Fprintf(&b, "%s %s\n", t.Device, d)
	}
	return digest.FromString(b.String()), nil
}

// brief is a duration without what is zero at its end: 30m, 1h.
func brief(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
