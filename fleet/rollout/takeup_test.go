package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/fleettest"
	"github.com/longshore-dev/longshore/fleet/rollout"
)

// step begins or takes up the rollout, and does what can be done now.
func (s *stage) step(o fleet.Options, start rollout.Start) error {
	s.t.Helper()
	k := s.conduct()
	k.Wait = false
	run, _, err := rollout.Begin(s.t.Context(), fleettest.Compiled(s.t, s.files, s.m), k, o, start)
	if err != nil {
		return err
	}
	return run.Go(s.t.Context())
}

// What keeps a device from a rollout that is taken up is told as it is.
func TestTakeUpOfWhatBecameImpossible(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		if err := s.step(fleet.Options{}, rollout.Start{}); err != nil {
			t.Fatal(err)
		}
		begun := s.files
		for device, line := range map[string]string{"press-000": "a", "press-005": "b"} { // it was published for the first already
			s.files = fleettest.With(begun, fleet.File, fmt.Sprintf("{id: %s, labels: {line: %s}}", device, line),
				fmt.Sprintf("{id: %s, labels: {line: %s}, capabilities: helm.json}", device, line))
			s.files["helm.json"] = &fstest.MapFile{Data: []byte(strings.Replace(fmt.Sprintf(fleettest.Capabilities, "4", "amd64", "4Gi"), `["compose"]`, `["helm"]`, 1))}
			err := s.step(fleet.Options{}, rollout.Start{})
			if !errors.Is(err, fault.ErrUnfit) || !strings.Contains(err.Error(), "and "+device+" cannot run any more what it gives it: ") || !strings.Contains(err.Error(), "helm") || fault.Hint(err) == "" {
				t.Errorf("%s has other capabilities: %v", device, err)
			}
		}
		s.files = begun
		gone := fleet.Options{Content: func(context.Context, fleet.Content) (fleet.Finding, error) {
			return fleet.Finding{Wrong: []string{"it is gone"}}, nil
		}}
		if err := s.step(gone, rollout.Start{}); !errors.Is(err, fault.ErrUnfit) || !strings.Contains(err.Error(), "it is gone") {
			t.Errorf("content that is gone: %v", err)
		}
		s.want("nothing more was published", map[uint64]int{1: 19, 2: 1})
		if err := s.step(gone, rollout.Start{Skip: true}); err != nil || !strings.Contains(s.lines(), "wave half: press-004 is left out: it is gone") {
			t.Errorf("content that is gone, and devices are skipped: %v\n%s", err, s.lines())
		}
	})
}

// A device of which the same files make another artifact, and one for which somebody else was publishing, are told apart.
func TestTakeUpOfWhatIsPackedOtherwise(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		if err := s.step(fleet.Options{}, rollout.Start{}); err != nil {
			t.Fatal(err)
		}
		hand := fleettest.Planned(t, s.m, fleettest.With(s.files, fleet.File, "RATE: 6", "RATE: 7"), fleet.Options{Devices: func(d *fleet.Device) bool { return d.ID == "press-007" }})
		s.m.Cut = func(_, tag string) error {
			if tag == "press-007" {
				return errors.New("killed")
			}
			return nil
		}
		if _, err := hand.Publish(t.Context(), s.m, nil); err == nil {
			t.Fatal("it was not cut off")
		}
		s.m.Cut = nil
		if err := s.step(fleet.Options{}, rollout.Start{}); err != nil || !strings.Contains(s.lines(), "press-007 is left out: another publisher published for it") {
			t.Errorf("a generation whose tag did not move: %v\n%s", err, s.lines())
		}
		s.rewrite(func(r *artifacts.Rollout) { r.Targets[5].Digest = r.Targets[6].Digest })
		err := s.step(fleet.Options{}, rollout.Start{})
		if !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), "the files make the same of press-005, and it is packed as sha256:") {
			t.Errorf("packed otherwise: %v", err)
		}
	})
}
