package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet/fleettest"
	"github.com/longshore-dev/longshore/fleet/rollout"
)

// Nothing below the manifest of a record is fetched before its signature was checked: whoever may write to the registry would
// have it parsed.
func TestRecordIsVerifiedBeforeItIsRead(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		if err := s.roll(t.Context(), rollout.Start{}); err != nil {
			t.Fatal(err)
		}
		l := s.conduct().Store
		newest, err := l.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		blobs := func(verify func(context.Context, string, digest.Digest) error) (int, *rollout.Record, error) {
			l.Verify = verify
			s.m.Asked["blob"] = 0
			rec, err := l.Read(t.Context())
			return s.m.Asked["blob"], rec, err
		}
		if n, _, err := blobs(func(context.Context, string, digest.Digest) error { return fault.ErrUnsigned }); n != 0 || !errors.Is(err, fault.ErrUnsigned) {
			t.Errorf("what nobody signed: %d blobs were read, %v", n, err)
		}
		now := time.Now().UTC()
		forged, err := artifacts.PackRollout(artifacts.RolloutOptions{Revision: newest.Revision + 1, Previous: newest.Digest, Rollout: &artifacts.Rollout{
			Fleet: "acme-plant", Number: 9, Phase: artifacts.RolloutGoingBack, Content: digest.FromString(""), By: "somebody", Claim: "1", Began: now, Changed: now,
		}})
		if err != nil {
			t.Fatal(err)
		}
		d := s.m.Push(fleettest.Base+"/rollouts", artifacts.HistoryTag("acme-plant", newest.Revision+1), forged)
		n, rec, err := blobs(func(_ context.Context, _ string, at digest.Digest) error {
			if at == d {
				return fmt.Errorf("verify %s: %w", d, fault.ErrUnsigned)
			}
			return nil
		})
		if err != nil || n != 2 || rec.Digest != newest.Digest || rec.Rollout == nil {
			t.Errorf("above it what nobody signed: %d blobs were read, want 2: %+v, %v", n, rec, err)
		}
	})
}
