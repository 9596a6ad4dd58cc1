package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/fleet"
)

// Go runs the rollout until it is done, or, without Wait, until there is something to wait for. It ends with an error that
// wraps fault.ErrRejected when a wave failed, and one that wraps fault.ErrConflict when another process goes on with the
// rollout. It may be ended at any point and taken up again, here or elsewhere.
func (r *Run) Go(ctx context.Context) error {
	for {
		next, err := r.step(ctx)
		if err != nil && (!r.cfg.Wait || !errors.Is(err, fault.ErrTemporary) || ctx.Err() != nil) {
			return err
		}
		if err != nil {
			r.event("trouble", fmt.Sprintf("waits: %v", err))
			next = time.Time{}
		} else {
			r.event("trouble", "")
		}
		if p := r.Rollout().Phase; p.Over() {
			return r.outcome()
		}
		if !r.cfg.Wait {
			return nil
		}
		wait := r.cfg.Interval
		if wait <= 0 {
			wait = defaultLook
		}
		if !next.IsZero() {
			wait = max(min(wait, next.Sub(r.cfg.Now())), time.Millisecond)
		}
		if err := delay.For(ctx, wait); err != nil {
			return err
		}
	}
}

// outcome is the result of a finished rollout.
func (r *Run) outcome() error {
	x := r.Rollout()
	switch x.Phase {
	case artifacts.RolloutDone:
		return nil
	case artifacts.RolloutRolledBack:
		return fault.WithHint(&halted{fmt.Sprintf("rollout %d of %s is rolled back: %s", x.Number, x.Fleet, x.Reason)},
			"devices that it had reached are given what they had before, as a new generation; publish something else")
	}
	return fault.WithHint(&halted{fmt.Sprintf("rollout %d of %s is halted: %s", x.Number, x.Fleet, x.Reason)},
		"go on with it: longshore fleet rollout continue; give devices back what they had: longshore fleet rollout undo; or publish something else")
}

// step does everything that can be done now, and returns when time alone lets something happen; zero: it does not.
func (r *Run) step(ctx context.Context) (time.Time, error) {
	for {
		if err := r.alone(ctx); err != nil {
			return time.Time{}, err
		}
		switch r.Rollout().Phase {
		case artifacts.RolloutGoingBack:
			return time.Time{}, r.goBack(ctx)
		case artifacts.RolloutRunning:
		default:
			return time.Time{}, nil
		}
		if err := r.publishDue(ctx); err != nil {
			return time.Time{}, err
		}
		next, moved, err := r.watch(ctx)
		if err != nil || !moved {
			return next, err
		}
	}
}

// alone checks whether another process has continued the rollout, and whether a revision in doubt was stored.
func (r *Run) alone(ctx context.Context) error {
	moved, err := r.cfg.Store.moved(ctx, r.record)
	if err != nil || !moved {
		return err
	}
	rec, err := r.cfg.Store.Read(ctx)
	if err != nil {
		return err
	}
	x := rec.Rollout
	switch {
	case x.Claim == r.cfg.Claim: // kept after all; or the tag was moved back, and is right again with the next revision
		if err := r.cfg.Store.settle(ctx, rec, r.record.doubt); err != nil {
			return err
		}
		if rec.Revision > r.record.Revision {
			r.blind = time.Time{} // what was kept has that time
		}
		*r.record = *rec
		return nil
	case x.Phase.Over():
		return &halted{fmt.Sprintf("rollout %d of %s was ended by %s: %s: %s", x.Number, x.Fleet, x.By, x.Phase, x.Reason)}
	}
	return fault.WithHint(fmt.Errorf("rollout %d of %s is gone on with by %s: %w", x.Number, x.Fleet, x.By, fault.ErrConflict),
		"look at it: longshore fleet rollout show")
}

// before is the wave before another one; -1: none.
func before(waves []artifacts.RolloutWave, i int) int {
	for j := i - 1; j >= 0; j-- {
		if waves[j].Group == waves[i].Group {
			return j
		}
	}
	return -1
}

// due lists the waves that are due.
func due(waves []artifacts.RolloutWave) []int {
	var out []int
	for i, w := range waves {
		first := before(waves, i)
		if w.State == artifacts.WavePublishing || w.State == artifacts.WavePending && (first < 0 || waves[first].State == artifacts.WavePassed) {
			out = append(out, i)
		}
	}
	return out
}

// title names a wave for people.
func title(w artifacts.RolloutWave) string {
	if w.Group != "" {
		return "wave " + w.Group + "/" + w.Name
	}
	return "wave " + w.Name
}

// publishDue publishes the waves whose turn it is. That one is begun is kept first: a process that goes on must know.
func (r *Run) publishDue(ctx context.Context) error {
	todo := due(r.Rollout().Waves)
	if len(todo) == 0 {
		return nil
	}
	if err := outlived(r.Rollout(), now(r.cfg), true); err != nil {
		return err
	}
	next := clone(r.Rollout())
	begun := false
	for _, i := range todo {
		begun = begun || next.Waves[i].State == artifacts.WavePending
		next.Waves[i].State = artifacts.WavePublishing
	}
	if begun {
		if err := r.keep(ctx, next); err != nil {
			return err
		}
	}
	for _, i := range todo {
		if err := r.publishWave(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// publishWave publishes the states of one wave. A device that got another state from another publisher meanwhile does not
// count any more.
func (r *Run) publishWave(ctx context.Context, wave int) error {
	in := map[artifacts.DeviceID]bool{}
	for _, t := range r.Rollout().Targets {
		if t.Wave == wave {
			in[t.Device] = true
		}
	}
	some := r.plan.Only(func(d *fleet.DevicePlan) bool { return in[d.Device] })
	report, err := some.Publish(ctx, &guard{Publisher: r.cfg.Store.To, run: r, looked: r.cfg.Now()}, nil)
	for _, d := range report.Published {
		d.Action = fleet.Same // so that a repetition of the step leaves it alone
	}
	if errors.Is(err, errTaken) && ctx.Err() == nil {
		err = cmp.Or(r.alone(ctx), err) // nil: only the record's tag was moved
	}
	if err != nil && (ctx.Err() != nil || !lost(report)) {
		return fmt.Errorf("%s: %w", title(r.Rollout().Waves[wave]), err)
	}
	next := clone(r.Rollout())
	w := &next.Waves[wave]
	for _, device := range slices.Sorted(maps.Keys(report.Failed)) {
		w.Left = append(w.Left, device)
		r.event("left "+string(device), fmt.Sprintf("%s: %s is left out: %v", title(*w), device, report.Failed[device]))
	}
	w.State, w.Published = artifacts.WavePublished, now(r.cfg)
	if err := r.keep(ctx, next); err != nil {
		return err
	}
	r.event("", fmt.Sprintf("%s: %s published", title(*w), printable.Counted(w.Devices-len(w.Left), "state")))
	return nil
}

// lost reports whether all errors are that another publisher published for some devices.
func lost(report *fleet.Report) bool {
	for _, err := range report.Failed {
		if !errors.Is(err, fault.ErrConflict) {
			return false
		}
	}
	return len(report.Failed) > 0
}

// watch looks at the devices of published waves, and decides what follows. It returns when time alone changes something, and
// whether a wave has moved.
func (r *Run) watch(ctx context.Context) (until time.Time, moved bool, err error) {
	seen, err := r.look(ctx)
	if err != nil {
		return time.Time{}, false, err
	}
	at := now(r.cfg)
	next := clone(r.Rollout())
	changed := r.unblind(next, at)
	for i := range next.Waves {
		w := &next.Waves[i]
		if w.State != artifacts.WavePublished {
			continue
		}
		tally := CountWave(next, i, seen, at)
		v := judge(*w, tally, at)
		if !v.well.Equal(w.Well) {
			w.Well, changed = v.well, true
		}
		r.event(w.Group+"/"+w.Name, tallied(*w, tally, v))
		switch v.state {
		case artifacts.WavePublished:
			if !v.until.IsZero() && (until.IsZero() || v.until.Before(until)) {
				until = v.until
			}
			continue
		case artifacts.WaveFailed:
			r.fail(next, i, v.reason)
		}
		w.State, w.Ended, moved = v.state, at, true
	}
	if next.Phase == artifacts.RolloutGoingBack {
		renew(next, at)
		for i := range next.Waves {
			if w := &next.Waves[i]; w.State == artifacts.WaveFailed && w.Rollback {
				w.State, w.Ended = artifacts.WaveGoingBack, time.Time{}
			}
		}
	}
	passed := func(w artifacts.RolloutWave) bool { return w.State == artifacts.WavePassed }
	if !slices.ContainsFunc(next.Waves, func(w artifacts.RolloutWave) bool { return !passed(w) }) {
		next.Phase, changed = artifacts.RolloutDone, true // also when the last one was promoted
	}
	if changed || moved {
		err = r.keep(ctx, next)
	}
	if err == nil {
		r.blind = time.Time{}
	}
	return until, moved, err
}

// fail makes a wave's failure that of the rollout.
func (r *Run) fail(next *artifacts.Rollout, wave int, reason string) {
	w := &next.Waves[wave]
	w.Reason = reason
	next.Reason = title(*w) + ": " + reason
	if w.Rollback {
		next.Phase = artifacts.RolloutGoingBack
	} else if next.Phase == artifacts.RolloutRunning {
		next.Phase = artifacts.RolloutHalted
	}
}

func tallied(w artifacts.RolloutWave, t WaveCount, v verdict) string {
	out := title(w) + ": " + t.String()
	switch {
	case v.state == artifacts.WavePassed:
		return out + ": passed"
	case v.state == artifacts.WaveFailed:
		return title(w) + " failed: " + v.reason
	case !v.well.IsZero() && v.until.IsZero():
		return out + fmt.Sprintf(", soaked; waits for the next report of %d", t.Unheard)
	case !v.well.IsZero():
		return out + ", soaks until " + v.until.Format(time.RFC3339)
	}
	return out
}

// look asks the endpoint about the devices of published waves. That it does not answer is no fault of the release: the
// rollout waits.
func (r *Run) look(ctx context.Context) (map[artifacts.DeviceID]*DeviceReport, error) {
	x := r.Rollout()
	var of []artifacts.DeviceID
	for _, t := range x.Targets {
		if w := x.Waves[t.Wave]; w.State == artifacts.WavePublished && w.Success > 0 && !slices.Contains(w.Left, t.Device) {
			of = append(of, t.Device)
		}
	}
	if len(of) == 0 {
		return nil, nil
	}
	seen, err := r.cfg.Endpoint.Look(ctx, of)
	if err != nil {
		if r.blind.IsZero() && errors.Is(err, fault.ErrTemporary) {
			r.blind = now(r.cfg)
		}
		return nil, fmt.Errorf("read device reports: %w", err)
	}
	return seen, nil
}

// unblind takes the time in which the endpoint did not answer out of the soaking: what devices reported then may still be
// on its way.
func (r *Run) unblind(next *artifacts.Rollout, at time.Time) (changed bool) {
	if r.blind.IsZero() {
		return false
	}
	gap := at.Sub(r.blind)
	for i := range next.Waves {
		if w := &next.Waves[i]; w.State == artifacts.WavePublished && !w.Well.IsZero() && gap > 0 {
			w.Well, changed = w.Well.Add(gap), true
		}
	}
	return changed
}
