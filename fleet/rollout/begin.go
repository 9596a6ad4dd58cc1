package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/fleet"
)

// Config configures a rollout.
type Config struct {
	Store    Store
	Endpoint Endpoint
	Now      func() time.Time
	Interval time.Duration // between two queries of the device reports; 0: 10 s
	Wait     bool          // until the rollout ends; else only what can be done without waiting
	By       string        // who runs it, for display: "user@host"
	Claim    string        // of this run: hexadecimal digits and dashes, another one each time
	Event    func(string)  // called with a line for each event; nil: no call
	Parallel int           // devices at a time; 0: 48
	// Loader checks whether devices could load the states that an undo restores. nil: no check.
	Loader *fleet.Loader
}

const defaultLook = 10 * time.Second

// halted is the end of a rollout that a policy has decided: the waves of the files.
type halted struct{ text string }

func (h *halted) Error() string { return h.text }
func (h *halted) Unwrap() error { return fault.ErrRejected }

// Run is a rollout that this process runs.
type Run struct {
	cfg    Config
	plan   *fleet.Plan // of the states that are not yet published; nil: none
	record *Record
	blind  time.Time // since when the endpoint does not answer; zero: it does
	said   map[string]string
	kept   int // devices that could not go back
}

// Rollout is the rollout as it was kept last.
func (r *Run) Rollout() *artifacts.Rollout { return r.record.Rollout }

// Record is the revision that was kept last.
func (r *Run) Record() *Record { return r.record }

// Start is what a rollout may be begun or taken up with.
type Start struct {
	Saved *fleet.SavedPlan // exactly this; nil: what the files say
	Again bool             // although the same was halted or rolled back before
	Skip  bool             // leave devices as they are that cannot run what the files put on them
	// Promote names waves that count as passed, whatever their devices report: ones that failed or are waited for. It is for
	// [Continue]; the names are those that a plan shows ("canary", of a group's own "line-a/canary").
	Promote []string
	// Check is called before anything is published; its error ends the attempt, and nothing is written. nil: no check.
	Check func(*fleet.Plan) error
}

func (s Start) check(p *fleet.Plan) error {
	if s.Check == nil {
		return nil
	}
	return s.Check(p)
}

// Begin begins the rollout of what a fleet's files say, or takes up the one that is under way, which must be of the same.
// The run is nil when nothing changes; the plan is always there but with an error.
func Begin(ctx context.Context, c *fleet.Compiled, cfg Config, o fleet.Options, s Start) (*Run, *fleet.Plan, error) {
	rec, err := cfg.Store.find(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read the rollout of %s: %w", c.Fleet.Name, err)
	}
	if rec.Rollout != nil && !rec.Rollout.Phase.Over() {
		return takeUp(ctx, c, cfg, o, s, rec)
	}
	plan, err := c.Plan(ctx, cfg.Store.From, o)
	if err != nil {
		return nil, nil, err
	}
	if s.Saved != nil {
		if err := plan.Keep(s.Saved); err != nil {
			return nil, nil, err
		}
	}
	if err := s.check(plan); err != nil {
		return nil, nil, err
	}
	if plan.Count(fleet.Cannot) > 0 && !s.Skip {
		return nil, nil, plan.Unfit()
	}
	number := uint64(1)
	if old := rec.Rollout; old != nil {
		number = old.Number + 1
		content, err := filed(c, old, o.Devices)
		if err == nil && !s.Again && old.Phase != artifacts.RolloutDone && content != "" && content == old.Content { // also if every device has it already
			return nil, nil, sameAgain(old)
		}
	}
	if plan.Count(fleet.Publish) == 0 {
		return nil, plan, nil
	}
	run := &Run{cfg: cfg, plan: plan, record: rec, said: map[string]string{}}
	next, err := document(c, plan, o, number, now(cfg))
	if err == nil {
		err = outlived(next, now(cfg), false)
	}
	if err != nil {
		return nil, nil, err
	}
	if err := run.keep(ctx, next); err != nil {
		return nil, nil, err
	}
	run.event("", fmt.Sprintf("rollout %d begins: %s in %s", number, printable.Counted(len(next.Targets), "device"), printable.Counted(len(next.Waves), "wave")))
	return run, plan, nil
}

func now(cfg Config) time.Time { return cfg.Now().UTC().Truncate(time.Millisecond) }

// sameAgain rejects a release that failed before, so that a repeated pipeline does not restart it.
func sameAgain(old *artifacts.Rollout) error {
	hint := "publish something else; or the same once more with --again"
	if old.Phase == artifacts.RolloutHalted {
		hint = "go on with it: longshore fleet rollout continue; give devices back what they had: longshore fleet rollout undo; or publish something else"
	}
	return fault.WithHint(&halted{fmt.Sprintf("rollout %d of %s was of the same and is %s: %s", old.Number, old.Fleet, old.Phase, old.Reason)}, hint)
}

// takeUp goes on with a rollout: with its own plan of what it has not published yet, made as it was begun.
func takeUp(ctx context.Context, c *fleet.Compiled, cfg Config, o fleet.Options, s Start, rec *Record) (*Run, *fleet.Plan, error) {
	r := rec.Rollout
	if r.Phase == artifacts.RolloutRunning {
		if err := outlived(r, now(cfg), true); err != nil {
			return nil, nil, err
		}
	}
	chosen := o.Devices
	missing := map[artifacts.DeviceID]artifacts.RolloutTarget{}
	for _, t := range r.Targets {
		w := r.Waves[t.Wave]
		if r.Phase != artifacts.RolloutRunning || w.State != artifacts.WavePending && w.State != artifacts.WavePublishing || slices.Contains(w.Left, t.Device) {
			continue
		}
		missing[t.Device] = t
		if d := c.Fleet.Device(string(t.Device)); d == nil || chosen != nil && !chosen(d) {
			return nil, nil, otherRelease(r, fmt.Sprintf("it is also of %s", t.Device))
		}
		if s.Saved != nil && (s.Saved.State(t.Device) == nil || s.Saved.State(t.Device).Generation != t.Generation) {
			return nil, nil, otherRelease(r, fmt.Sprintf("%s gets another state than in the plan", t.Device))
		}
	}
	// Also when it has published all that it will: what the files say now would pass for published.
	if r.Phase == artifacts.RolloutRunning && r.Content != "" {
		content, err := filed(c, r, nil)
		if err != nil {
			return nil, nil, err
		}
		if content != r.Content {
			return nil, nil, otherRelease(r, "the files make something else of devices that it has reached")
		}
	}
	o.Created, o.Expires, o.Annotations = r.States.Created, r.States.Expires, r.States.Annotations
	o.Devices = func(d *fleet.Device) bool { _, ok := missing[d.ID]; return ok }
	run := &Run{cfg: cfg, record: rec, said: map[string]string{}}
	plan, err := c.Plan(ctx, cfg.Store.From, o)
	if err == nil {
		err = s.check(plan)
	}
	if err != nil {
		return nil, nil, err
	}
	next := clone(r)
	for _, d := range plan.Devices {
		t := missing[d.Device]
		w := &next.Waves[t.Wave]
		leave := func(why string) {
			w.Left = append(w.Left, d.Device)
			run.event("left "+string(d.Device), fmt.Sprintf("%s: %s is left out: %s", title(*w), d.Device, why))
		}
		switch {
		case d.Digest == t.Digest && (d.Action == fleet.Publish && d.Generation == t.Generation && d.Tagged == t.Former || d.Action == fleet.Same):
		case d.Action == fleet.Cannot && d.Tagged == t.Digest: // it was published for it
			d.Action = fleet.Same
		case d.Tagged != t.Former && d.Tagged != t.Digest, d.Action == fleet.Publish && d.Tagged == t.Former && d.Generation > t.Generation:
			d.Action = fleet.Same
			leave("another publisher published for it")
		case d.Action == fleet.Cannot && s.Skip:
			leave(strings.Join(d.Reasons, "; "))
		case d.Action == fleet.Cannot:
			return nil, nil, plan.Unfit()
		default:
			return nil, nil, otherRelease(r, another(r, d, t))
		}
	}
	if r.Phase == artifacts.RolloutGoingBack {
		if err := cfg.Store.home(r); err != nil {
			return nil, nil, err
		}
	}
	run.plan = plan
	if err := run.keep(ctx, next); err != nil {
		return nil, nil, err
	}
	run.event("", fmt.Sprintf("rollout %d is taken up", r.Number))
	return run, plan, nil
}

// another describes how the plan of a device differs from its rollout.
func another(r *artifacts.Rollout, d *fleet.DevicePlan, t artifacts.RolloutTarget) string {
	switch {
	case d.Action == fleet.Same:
		return fmt.Sprintf("%s would stay as it is", d.Device)
	case r.Content == "":
		return fmt.Sprintf("%s would get %s, and not %s", d.Device, d.Digest, t.Digest)
	}
	return fmt.Sprintf("the files make the same of %s, and it is packed as %s, not as %s: another version of longshore began it", d.Device, d.Digest, t.Digest)
}

func otherRelease(r *artifacts.Rollout, why string) error {
	return fault.WithHint(fmt.Errorf("rollout %d of %s is under way, with another release: %s: %w", r.Number, r.Fleet, why, fault.ErrConflict),
		"publish with the files that it was begun with; or end it first: longshore fleet rollout halt")
}

// Continue takes up the rollout that is under way or was halted. Errors wrap fault.ErrNotFound where there is no wave to promote,
// and fault.ErrConflict where it cannot be promoted.
func Continue(ctx context.Context, c *fleet.Compiled, cfg Config, o fleet.Options, s Start) (*Run, *fleet.Plan, error) {
	rec, err := cfg.Store.Read(ctx)
	if err != nil {
		return nil, nil, err
	}
	r := clone(rec.Rollout)
	switch r.Phase {
	case artifacts.RolloutDone, artifacts.RolloutRolledBack:
		return nil, nil, fault.WithHint(fmt.Errorf("rollout %d of %s is %s: there is nothing to continue: %w", r.Number, r.Fleet, r.Phase, fault.ErrConflict),
			"begin another one: longshore fleet publish")
	case artifacts.RolloutHalted:
		if slices.ContainsFunc(r.Waves, func(w artifacts.RolloutWave) bool { return w.State == artifacts.WaveGoingBack }) {
			r.Phase = artifacts.RolloutGoingBack // it was halted on its way back
		} else {
			r.Phase, r.Reason = artifacts.RolloutRunning, ""
		}
	}
	for i := range r.Waves {
		if w := &r.Waves[i]; w.State == artifacts.WaveFailed {
			w.State, w.Reason, w.Ended, w.Well = artifacts.WavePublished, "", time.Time{}, time.Time{}
		}
	}
	for _, name := range s.Promote {
		if err := promoted(r, name, now(cfg)); err != nil {
			return nil, nil, err
		}
	}
	rec.Rollout = r
	return takeUp(ctx, c, cfg, o, s, rec)
}

// promoted marks a wave as passed.
func promoted(r *artifacts.Rollout, name string, at time.Time) error {
	var there []string
	for i := range r.Waves {
		w := &r.Waves[i]
		if there = append(there, title(*w)); title(*w) != "wave "+name {
			continue
		}
		switch w.State {
		case artifacts.WavePassed: // by a run that ended early
		case artifacts.WavePublished:
			w.State, w.Ended = artifacts.WavePassed, at
		default:
			return fault.WithHint(fmt.Errorf("promote wave %s of rollout %d of %s: it is %s: %w", name, r.Number, r.Fleet, w.State, fault.ErrConflict),
				"what is promoted is a wave that has failed, or whose devices are waited for: longshore fleet rollout show")
		}
		return nil
	}
	return fault.WithHint(fmt.Errorf("promote wave %s of rollout %d of %s: %w", name, r.Number, r.Fleet, fault.ErrNotFound), "there is "+strings.Join(there, ", "))
}

// Halt stops a rollout by hand: published states stay, and nothing more is published.
func Halt(ctx context.Context, cfg Config, why string) (*Record, error) {
	rec, err := cfg.Store.Read(ctx)
	if err != nil {
		return nil, err
	}
	r := clone(rec.Rollout)
	// If the tag has not moved, the process that halted it was cut off: the one that runs it looks at the tag, and goes on.
	if r.Phase.Over() && (r.Phase != artifacts.RolloutHalted || rec.tagged == rec.Digest) {
		return nil, fmt.Errorf("rollout %d of %s is %s: there is nothing to halt: %w", r.Number, r.Fleet, r.Phase, fault.ErrConflict)
	}
	r.Phase, r.Reason = artifacts.RolloutHalted, why
	run := &Run{cfg: cfg, record: rec}
	return rec, run.keep(ctx, r)
}

// clone copies a rollout as far as steps change it.
func clone(r *artifacts.Rollout) *artifacts.Rollout {
	out := *r
	out.Waves = slices.Clone(r.Waves)
	for i := range out.Waves {
		out.Waves[i].Left = slices.Clone(out.Waves[i].Left)
	}
	return &out
}

// keep writes what the rollout is at, before anything follows from it. A temporary error leaves open whether it is kept, which
// the next step finds out: see [Run.alone].
func (r *Run) keep(ctx context.Context, next *artifacts.Rollout) error {
	next.Changed, next.By, next.Claim = now(r.cfg), r.cfg.By, r.cfg.Claim
	err := r.cfg.Store.write(ctx, r.record, next, next.Changed)
	if errors.Is(err, fault.ErrConflict) {
		err = fault.WithHint(fmt.Errorf("another process goes on with the rollout of %s: %w", next.Fleet, err), "look at it: longshore fleet rollout show")
	}
	return err
}

// event reports something unless it repeats the last event about the same; about "": always.
func (r *Run) event(about, what string) {
	if r.cfg.Event == nil || about != "" && r.said[about] == what {
		return
	}
	if r.said[about] = what; what != "" {
		r.cfg.Event(what)
	}
}
