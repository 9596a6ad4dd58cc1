package intake

import (
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// floor is what [store.Tx.Floor] says. The trust policy may lower it: a
// policy that came through the registry has done so when it was taken over; that of a file does now.
func (in *Intake) floor() (uint64, error) {
	if in.o.Trust != nil {
		if s := in.o.Trust.Status(); s.Problem == "" && s.Generations != nil {
			if err := in.reset(store.Reset(*s.Generations)); err != nil {
				return 0, err
			}
		}
	}
	var floor uint64
	err := in.o.Store.View(func(tx *store.Tx) (err error) { floor, err = tx.Floor(in.o.Repository); return err })
	return floor, err
}

// reset does what a policy says of generations, unless it has been done.
func (in *Intake) reset(r store.Reset) error {
	var done bool
	err := in.o.Store.View(func(tx *store.Tx) (err error) { done, err = tx.WasReset(r); return err })
	if done || err != nil {
		return err
	}
	return in.o.Store.Update(func(tx *store.Tx) error {
		_, err := tx.ResetGenerations(r, in.o.Now())
		return err
	})
}

// admit is checks 4 to 6. floor is [Intake.floor].
func (in *Intake) admit(q Query, x *artifacts.StateIndex, d digest.Digest, name string, floor uint64) error {
	if x.Device != in.o.Device {
		return codes.Errorf(codes.WrongDevice, "state %s: it is for device %q, this is %q: %w", name, x.Device, in.o.Device, fault.ErrUnfit)
	}
	if q.Accepted == nil && x.Generation < floor {
		return codes.Errorf(codes.Rollback, "state %s: generation %d is older than %d, which this device had accepted before its database was damaged: %w",
			name, x.Generation, floor, fault.ErrRollback)
	}
	if acc := q.Accepted; acc != nil && acc.Continues(in.o.Repository) {
		again := fmt.Sprintf("publish the wanted content as a generation above %d; where the registry has lost those: longshore state push --generation %d",
			acc.Generation, acc.Generation+1)
		if margo.IsManager(in.o.Repository) {
			again = fmt.Sprintf("let the manager serve a manifestVersion above %d; one that was restored from a backup has to count on from there", acc.Generation)
		}
		switch {
		case x.Generation <= floor && floor < acc.Generation:
			return codes.Errorf(codes.Rollback, "state %s: generation %d is not above %d, to which the trust policy has reset this device: %w",
				name, x.Generation, floor, fault.ErrRollback)
		case x.Generation < floor:
			return fault.WithHint(codes.Errorf(codes.Rollback, "state %s: generation %d is older than %d, accepted %s: %w",
				name, x.Generation, acc.Generation, acc.AcceptedAt.UTC().Format(time.RFC3339), fault.ErrRollback), again)
		case x.Generation == floor && acc.Digest != d:
			return codes.Errorf(codes.GenerationConflict, "state %s: generation %d was accepted before as %s: %w",
				name, x.Generation, acc.Digest, fault.ErrRollback)
		}
	}
	if !x.Expires.IsZero() && !in.times.clock.Now().Before(x.Expires) {
		return codes.Errorf(codes.Expired, "state %s: generation %d expired %s: %w",
			name, x.Generation, x.Expires.UTC().Format(time.RFC3339), fault.ErrRejected)
	}
	return nil
}
