package rollout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
)

// document makes the document of a plan's publication in waves.
func document(p *fleet.Plan, o fleet.Options, number uint64, now time.Time) *artifacts.Rollout {
	r := &artifacts.Rollout{
		Fleet: p.Fleet, Number: number, Phase: artifacts.RolloutRunning, Began: now,
		States: artifacts.RolloutStates{Created: o.Created, Expires: o.Expires, Annotations: o.Annotations},
	}
	for i, w := range p.Waves() {
		r.Waves = append(r.Waves, artifacts.RolloutWave{
			Name: w.Name, Group: w.Group, Devices: len(w.Devices), Soak: w.Soak, Deadline: w.Deadline, Success: w.Required(),
			Rollback: w.OnFailure == "rollback", State: artifacts.WavePending,
		})
		for _, d := range w.Devices {
			r.Targets = append(r.Targets, artifacts.RolloutTarget{
				Device: d.Device, Wave: i, Repository: d.Repository, Generation: d.Generation, Digest: d.Digest, Former: d.Tagged,
				Deployments: d.Deployments(),
			})
		}
	}
	slices.SortFunc(r.Targets, func(a, b artifacts.RolloutTarget) int { return cmp.Compare(a.Device, b.Device) })
	r.Content = planned(p, r.Targets)
	return r
}

// planned is one digest of the planned documents of a rollout's devices; "" if a device is not in the plan.
func planned(p *fleet.Plan, targets []artifacts.RolloutTarget) digest.Digest {
	byID := make(map[artifacts.DeviceID]*fleet.DevicePlan, len(p.Devices))
	for _, d := range p.Devices {
		byID[d.Device] = d
	}
	content, _ := contentOf(targets, func(id artifacts.DeviceID) (digest.Digest, error) {
		if d := byID[id]; d != nil {
			return d.Documents, nil
		}
		return "", nil
	})
	return content
}

// filed is what the devices of a rollout are to run by the files, in one digest. It is an error if one of them cannot run it
// any more: what the files make of it cannot be compared.
func filed(c *fleet.Compiled, r *artifacts.Rollout) (digest.Digest, error) {
	byID := make(map[artifacts.DeviceID]*fleet.Assignment, len(c.Assignments))
	for _, a := range c.Assignments {
		byID[a.Device.ID] = a
	}
	return contentOf(r.Targets, func(id artifacts.DeviceID) (digest.Digest, error) {
		a := byID[id]
		if a == nil {
			return "", nil
		}
		if len(a.Unfit) > 0 {
			return "", fault.WithHint(fmt.Errorf("rollout %d of %s is under way, and %s cannot run any more what it gives it: %w: %s", r.Number, r.Fleet, id, fault.ErrUnfit,
				strings.Join(a.Unfit, "; ")), "change what is known of the device; or end the rollout first: longshore fleet rollout halt; then publish with --skip-unfit")
		}
		return a.Sum(c.Fleet)
	})
}

// contentOf is the content of devices in one digest; "" when one has none.
func contentOf(targets []artifacts.RolloutTarget, of func(artifacts.DeviceID) (digest.Digest, error)) (digest.Digest, error) {
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
