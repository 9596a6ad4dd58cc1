package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/store"
)

// Collect takes a current state that was verified into the store, as if its device had posted it, and each transition that it reports
// before: what is not newer than what is there changes nothing, an older one that is shown again neither. A deployment that it does not
// have any more is removed. It reports whether anything changed. note is not an error: transitions are missing, or it is of another database
// and is not stored, because it is older than what is there. What an error leaves out is stored when the same report, or the next one, is taken again.
func Collect(ctx context.Context, s store.Store, c *artifacts.CurrentState, now time.Time) (changed bool, note string, err error) {
	at := c.Time // when the device spoke, by its own clock: to read it again is no sign of life
	if at.After(now) {
		at = now
	}
	stamp := store.Stamp{Epoch: c.Epoch, Sequence: c.Sequence}
	r := store.Capabilities{Device: string(c.Device), Body: c.Capabilities, Stamp: stamp, By: string(c.Device), At: at, Now: now}
	Summarize(&r)
	known, err := s.Device(ctx, r.Device)
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		return false, "", err
	}
	// An older agent says how often it posts even if it does not; if it does, that is stored.
	if every := time.Duration(min(c.Every, maxInterval)) * time.Second; r.Interval == 0 || r.Interval != known.Interval || every > 0 && every < r.Interval {
		r.Interval = every
	}
	out, err := s.PutCapabilities(ctx, r)
	transitions := c.Transitions()
	switch {
	case err != nil:
		return false, "", err
	case out == store.Older:
		return false, fmt.Sprintf("report %d is of another database of the device, and signed at %s; the device was heard at %s: it is not stored. If the device has a new database, set its clock",
			c.Counter, c.Time.UTC().Format(time.RFC3339), known.LastHeard.UTC().Format(time.RFC3339)), nil
	case out == store.Repeated:
		if known, err = s.Device(ctx, r.Device); err != nil || known.Stamp != stamp {
			return false, "", err
		} // the same report: an error may have left out deployments
	}
	changed = out != store.Repeated
	held, _, err := s.Deployments(ctx, store.DeploymentQuery{Device: r.Device, Limit: maxPerDevice})
	if err != nil {
		return false, "", err
	}
	missing := transitions.After > 0 && known.Stamp.Epoch != "" && (known.Stamp.Epoch != c.Epoch || known.Stamp.Sequence < transitions.After)
	stored := map[string]store.Stamp{}
	for _, d := range held {
		stored[d.ID] = d.Stamp
		missing = missing && (d.Stamp.Epoch != c.Epoch || d.Stamp.Sequence < transitions.After) // what it posted came in order
	}
	if missing {
		note = fmt.Sprintf("transitions of status are missing before report %d: there were more than %d since the last report that was taken", c.Counter, artifacts.MaxTransitions)
	}
	put := func(doc margo.DeploymentStatus, sequence uint64, at time.Time) error {
		if was := stored[doc.DeploymentID]; was.Epoch == c.Epoch && was.Sequence >= sequence {
			return nil
		}
		body, err := keptOf(&doc)
		if err != nil {
			return fmt.Errorf("report on %s: %w", doc.DeploymentID, err)
		}
		out, err := s.PutStatus(ctx, store.Status{
			Device: r.Device, Deployment: doc.DeploymentID, State: doc.Status.State, Body: body,
			Stamp: store.Stamp{Epoch: c.Epoch, Sequence: sequence}, By: r.Device, At: at, Now: now,
		})
		changed = changed || err == nil && out != store.Repeated
		return err
	}
	there := map[string]bool{}
	for _, d := range c.Deployments {
		there[d.ID] = true
	}
	for _, x := range transitions.List {
		_, has := stored[x.Deployment]
		unknown := !has && !there[x.Deployment]
		if unknown && known.Stamp.Epoch == c.Epoch && x.Sequence <= known.Stamp.Sequence {
			continue // it was stored, and forgotten since
		}
		when := at
		if x.At.Before(at) {
			when = x.At
		}
		var full *store.QuotaError
		if err := put(x.Status(c.Device), x.Sequence, when); unknown && errors.As(err, &full) {
			continue // what is there needs the room
		} else if err != nil {
			return false, note, err
		}
	}
	for _, d := range c.Deployments {
		if err := put(d.Status(c.Device), c.Sequence, at); err != nil {
			return false, note, err
		}
	}
	for _, d := range held {
		if there[d.ID] || d.State == margo.StateRemoved {
			continue
		}
		if err := put(removed(r.Device, d), c.Sequence, at); err != nil {
			return false, note, err
		}
	}
	return changed, note, nil
}

// removed is the status of a deployment that its device does not have any more.
func removed(device string, d store.Deployment) margo.DeploymentStatus {
	var k kept
	if err := json.Unmarshal(d.Body, &k); err != nil {
		k = kept{}
	}
	return margo.DeploymentStatus{
		DeploymentID: d.ID, DeviceID: device, AdoptedManifestVersion: k.AdoptedManifestVersion,
		Status: margo.OverallStatus{State: margo.StateRemoved}, Components: []margo.ComponentStatus{},
	}
}
