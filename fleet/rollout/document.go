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
func document(c *fleet.Compiled, p *fleet.Plan, o fleet.Options, number uint64, now time.Time) (*artifacts.Rollout, error) {
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
	var err error
	r.Content, err = filed(c, r, nil)
	return r, err
}

// filed is what the devices of a rollout are to run by the files, in one digest; "" if the files do not have one of them, or it is not chosen
// (nil: all are). It is an error if one of them cannot run it any more: what the files make of it cannot be compared.
func filed(c *fleet.Compiled, r *artifacts.Rollout, chosen func(*fleet.Device) bool) (digest.Digest, error) {
	byID := make(map[artifacts.DeviceID]*fleet.Assignment, len(c.Assignments))
	for _, a := range c.Assignments {
		byID[a.Device.ID] = a
	}
	var b strings.Builder
	for _, t := range r.Targets {
		a := byID[t.Device]
		if a == nil || chosen != nil && !chosen(a.Device) {
			return "", nil
		}
		if len(a.Unfit) > 0 {
			return "", fault.WithHint(fmt.Errorf("rollout %d of %s is under way, and %s cannot run any more what it gives it: %w: %s", r.Number, r.Fleet, t.Device, fault.ErrUnfit,
				strings.Join(a.Unfit, "; ")), "change what is known of the device; or end the rollout first: longshore fleet rollout halt; then publish with --skip-unfit")
		}
		d, err := a.Sum(c.Fleet)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%s %s\n", t.Device, d)
	}
	return digest.FromString(b.String()), nil
}
