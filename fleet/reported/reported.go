// Package reported reads the reports that devices push to a registry, each signed by its device. It takes
// the place of a fleet endpoint, or completes one: see [Source] and [Both].
package reported

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/rollout"
)

const (
	atOnce = 8 // reports that are read at a time
	missed = 3 // intervals without a report after which a device counts as offline
)

// Source reads reports from the registry. It implements [rollout.Endpoint]. A report that is not verified never counts.
type Source struct {
	Fleet *fleet.Fleet
	// Read returns the report of a device, verified with the device's key. fault.ErrNotFound: there is none.
	// fault.ErrTemporary: it is not known. Any other error: it does not count.
	Read func(ctx context.Context, d *fleet.Device) (*artifacts.CurrentState, error)
	Now  func() time.Time

	mu         sync.Mutex
	unverified map[artifacts.DeviceID]string
}

var (
	_ rollout.Endpoint = (*Source)(nil)
	_ rollout.Endpoint = Both{}
)

// Unverified returns why the last report of a device did not count; "": no report, or it counted.
func (s *Source) Unverified(id artifacts.DeviceID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unverified[id]
}

func (s *Source) each(ctx context.Context, devices []artifacts.DeviceID, visit func(*artifacts.CurrentState)) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for _, id := range devices {
		d := s.Fleet.Device(string(id))
		if d == nil {
			continue
		}
		g.Go(func() error {
			c, err := s.Read(ctx, d)
			if err == nil && c.Device != id {
				err = fmt.Errorf("it is the report of device %s: %w", c.Device, fault.ErrBadSignature)
			}
			if errors.Is(err, fault.ErrTemporary) || ctx.Err() != nil {
				return err
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.unverified, id)
			switch {
			case err == nil:
				visit(c)
			case !errors.Is(err, fault.ErrNotFound):
				if s.unverified == nil {
					s.unverified = map[artifacts.DeviceID]string{}
				}
				s.unverified[id] = err.Error()
			}
			return nil
		})
	}
	return g.Wait()
}

// Look implements [rollout.Endpoint].
func (s *Source) Look(ctx context.Context, devices []artifacts.DeviceID) (map[artifacts.DeviceID]*rollout.DeviceReport, error) {
	out := map[artifacts.DeviceID]*rollout.DeviceReport{}
	err := s.each(ctx, devices, func(c *artifacts.CurrentState) { out[c.Device] = sighting(c, s.Now()) })
	return out, err
}

// Capabilities implements [rollout.Endpoint].
func (s *Source) Capabilities(ctx context.Context, devices []artifacts.DeviceID) (map[artifacts.DeviceID][]byte, error) {
	out := map[artifacts.DeviceID][]byte{}
	err := s.each(ctx, devices, func(c *artifacts.CurrentState) { out[c.Device] = c.Capabilities })
	return out, err
}

// sighting is a report as a rollout judges it. How long ago it was is by two clocks, the device's and ours.
func sighting(c *artifacts.CurrentState, now time.Time) *rollout.DeviceReport {
	var about struct {
		Extra map[string]json.RawMessage `json:"x-longshore-extensions"`
	}
	_ = json.Unmarshal(c.Capabilities, &about) // as if it had none
	read := func(member string, v any) bool {
		return about.Extra[member] == nil || json.Unmarshal(about.Extra[member], v) == nil
	}
	s := &rollout.DeviceReport{Heard: c.Time, Ago: max(0, now.Sub(c.Time)), Every: time.Duration(min(c.Every, 1<<31)) * time.Second, Agent: "unknown", Refused: c.Refused}
	if version := ""; read("agentVersion", &version) && version != "" {
		s.Agent = version
		_ = read("progress", &s.Progress) && read("decisions", &s.Waits.Decisions) // neither fails: what cannot be read of them is left out
		if !read("hold", &s.Waits.Hold) {
			s.Waits.Hold = artifacts.UnreadableHold()
		}
		if !read("waiting", &s.Waits.Waiting) {
			s.Waits.Waiting = artifacts.UnreadableWaits()
		}
	}
	if s.Every > 0 && s.Ago > missed*s.Every {
		s.OfflineSince = c.Time
	}
	if g := c.Accepted; g != nil {
		s.Accepted, s.Digest = g.Generation, g.Digest
	}
	if g := c.Running; g != nil {
		s.Running = g.Generation
	}
	if g := c.Committed; g != nil {
		s.Committed = g.Generation
	}
	for _, d := range c.Deployments {
		x := rollout.DeploymentReport{ID: d.ID, Generation: d.Generation, State: d.State}
		if d.Error != nil {
			x.Error = d.Error.Code + ": " + d.Error.Message
		}
		s.Deployments = append(s.Deployments, x)
	}
	return s
}

// Both asks an endpoint, and the registry for what the endpoint does not know or has heard longer ago. A report of a device whose clock is
// ahead of ours counts only where the endpoint does not know the device or has not heard of it for too long.
type Both struct {
	Endpoint rollout.Endpoint
	Registry *Source
}

// Look implements [rollout.Endpoint].
func (b Both) Look(ctx context.Context, devices []artifacts.DeviceID) (map[artifacts.DeviceID]*rollout.DeviceReport, error) {
	out, err := b.Endpoint.Look(ctx, devices)
	if err != nil {
		return nil, err
	}
	more, err := b.Registry.Look(ctx, devices)
	if err != nil {
		return nil, err
	}
	for id, s := range more {
		there := out[id]
		newer := there == nil || there.Heard.Before(s.Heard)
		if there != nil && s.Heard.After(b.Registry.Now()) { // the device's clock is ahead: how old the report is is not known
			newer = !there.OfflineSince.IsZero()
		}
		if newer {
			out[id] = s
		}
	}
	return out, nil
}

// Capabilities implements [rollout.Endpoint].
func (b Both) Capabilities(ctx context.Context, devices []artifacts.DeviceID) (map[artifacts.DeviceID][]byte, error) {
	out, err := b.Endpoint.Capabilities(ctx, devices)
	if err != nil {
		return nil, err
	}
	var ask []artifacts.DeviceID
	for _, id := range devices {
		if out[id] == nil {
			ask = append(ask, id)
		}
	}
	more, err := b.Registry.Capabilities(ctx, ask)
	if err != nil {
		return nil, err
	}
	maps.Copy(out, more)
	return out, nil
}
