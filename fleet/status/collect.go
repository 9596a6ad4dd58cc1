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

// Collect takes a current state that was verified into the store, as if its device had posted it: what is not newer than what is
// there changes nothing, an older one that is shown again neither. A deployment that it does not have any more is removed. It
// reports whether anything changed. What an error leaves out is stored when the same report, or the next one, is taken again.
func Collect(ctx context.Context, s store.Store, c *artifacts.CurrentState, now time.Time) (changed bool, err error) {
	at := c.Time // when the device spoke, by its own clock: to read it again is no sign of life
	if at.After(now) {
		at = now
	}
	stamp := store.Stamp{Epoch: c.Epoch, Sequence: c.Sequence}
	r := store.Capabilities{Device: string(c.Device), Body: c.Capabilities, Stamp: stamp, By: string(c.Device), At: at}
	Summarize(&r)
	r.Interval = time.Duration(min(c.Every, maxInterval)) * time.Second
	known, err := s.Device(ctx, r.Device)
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		return false, err
	}
	if known.Interval > 0 && (known.Interval < r.Interval || r.Interval == 0) { // it posts reports, too, and more often
		r.Interval = known.Interval
	}
	out, err := s.PutCapabilities(ctx, r)
	if err == nil && out == store.Repeated { // the same report: an error may have left out deployments
		known, err = s.Device(ctx, r.Device)
	}
	if err != nil || out == store.Repeated && known.Stamp != stamp {
		return false, err
	}
	changed = out != store.Repeated
	there := map[string]bool{}
	for _, d := range c.Deployments {
		there[d.ID] = true
		stored, err := collectStatus(ctx, s, c, d.Status(c.Device), at)
		if err != nil {
			return false, err
		}
		changed = changed || stored
	}
	held, _, err := s.Deployments(ctx, store.DeploymentQuery{Device: r.Device, Limit: maxPerDevice})
	if err != nil {
		return false, err
	}
	for _, d := range held {
		if there[d.ID] || d.State == margo.StateRemoved {
			continue
		}
		var k kept
		if err := json.Unmarshal(d.Body, &k); err != nil {
			k = kept{}
		}
		gone := margo.DeploymentStatus{
			DeploymentID: d.ID, DeviceID: r.Device, AdoptedManifestVersion: k.AdoptedManifestVersion,
			Status: margo.OverallStatus{State: margo.StateRemoved}, Components: []margo.ComponentStatus{},
		}
		stored, err := collectStatus(ctx, s, c, gone, at)
		if err != nil {
			return false, err
		}
		changed = changed || stored
	}
	return changed, nil
}

func collectStatus(ctx context.Context, s store.Store, c *artifacts.CurrentState, doc margo.DeploymentStatus, at time.Time) (changed bool, err error) {
	body, err := keptOf(&doc)
	if err != nil {
		return false, fmt.Errorf("report on %s: %w", doc.DeploymentID, err)
	}
	out, err := s.PutStatus(ctx, store.Status{
		Device: string(c.Device), Deployment: doc.DeploymentID, State: doc.Status.State, Body: body,
		Stamp: store.Stamp{Epoch: c.Epoch, Sequence: c.Sequence}, By: string(c.Device), At: at,
	})
	return err == nil && out != store.Repeated, err
}
