package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry/release"
)

// Undo publishes the former content of every device that a rollout has reached, as a new generation.
func Undo(ctx context.Context, cfg Config, why string) (*Run, error) {
	rec, err := cfg.Store.Read(ctx)
	if err != nil {
		return nil, err
	}
	r := clone(rec.Rollout)
	renew(r, now(cfg))
	was := r.Phase
	r.Phase, r.Reason = artifacts.RolloutGoingBack, why
	for i := range r.Waves {
		if w := &r.Waves[i]; reached(*w) {
			w.State, w.Ended = artifacts.WaveGoingBack, time.Time{}
		}
	}
	// Where a wave went back by itself, those before it may have the release still.
	if was == artifacts.RolloutRolledBack && len(goingBack(r)) == 0 {
		return nil, fmt.Errorf("rollout %d of %s is rolled back already: %w", r.Number, r.Fleet, fault.ErrConflict)
	}
	if err := cfg.Store.home(r); err != nil {
		return nil, err
	}
	if err := cfg.loadable(ctx, goingBack(r)); err != nil {
		return nil, err
	}
	run := &Run{cfg: cfg, record: rec, said: map[string]string{}}
	return run, run.keep(ctx, r)
}

// renew lets what is given back last as long from now on as the rollout's states did: devices take nothing that has ended. Once
// a wave is on its way back the end stays, so that a repetition makes the same states.
func renew(r *artifacts.Rollout, at time.Time) {
	back := func(w artifacts.RolloutWave) bool { return w.State == artifacts.WaveGoingBack }
	if end := r.States.Expires; !end.IsZero() && !slices.ContainsFunc(r.Waves, back) {
		r.States.Expires = at.Add(end.Sub(r.Began))
	}
}

// reached reports whether devices of a wave may have the release.
func reached(w artifacts.RolloutWave) bool {
	return w.State != artifacts.WavePending && w.State != artifacts.WaveRolledBack
}

// goingBack are the targets of waves on their way back.
func goingBack(r *artifacts.Rollout) []artifacts.RolloutTarget {
	var out []artifacts.RolloutTarget
	for _, t := range r.Targets {
		if r.Waves[t.Wave].State == artifacts.WaveGoingBack {
			out = append(out, t)
		}
	}
	return out
}

// goBack gives the devices of waves that go back their former content. It may be repeated: each device is looked at first.
func (r *Run) goBack(ctx context.Context) error {
	x := r.Rollout()
	if err := r.cfg.Store.home(x); err != nil { // the record may be another one than the run began with
		return err
	}
	todo := goingBack(x)
	done, kept := 0, []string{}
	for first := true; len(todo) > 0; first = false {
		untouched, err := r.restoreAll(ctx, todo, &done, &kept)
		if errors.Is(err, errTaken) && ctx.Err() == nil {
			err = cmp.Or(r.alone(ctx), err)
		}
		if err != nil {
			return err
		}
		// Who was publishing a wave when this began may not know yet that it is over: such devices are looked at again.
		again := slices.DeleteFunc(slices.Clone(untouched), func(t artifacts.RolloutTarget) bool { return !x.Waves[t.Wave].Published.IsZero() })
		if len(again) == 0 || len(again) == len(todo) && !first {
			done += len(untouched) // they have their former content
			break
		}
		done += len(untouched) - len(again)
		todo = again
		if err := delay.For(ctx, settle); err != nil {
			return err
		}
	}
	for _, why := range kept {
		r.event("", why)
	}
	r.kept = len(kept)
	next := clone(x)
	for i := range next.Waves {
		if w := &next.Waves[i]; w.State == artifacts.WaveGoingBack {
			w.State, w.Ended = artifacts.WaveRolledBack, now(r.cfg)
		}
	}
	next.Phase = artifacts.RolloutRolledBack
	if err := r.keep(ctx, next); err != nil {
		return err
	}
	r.event("", fmt.Sprintf("rolled back: %s", printable.Counted(done, "device")))
	return nil
}

// restoreAll gives devices back what they had, several at a time, and returns those that the rollout has not reached. It counts
// those that have it again, and says why others do not.
func (r *Run) restoreAll(ctx context.Context, todo []artifacts.RolloutTarget, done *int, kept *[]string) (untouched []artifacts.RolloutTarget, err error) {
	var mu sync.Mutex
	compressors, limit := &artifacts.Compressors{}, r.cfg.Parallel
	if limit <= 0 {
		limit = fleet.DefaultConcurrency
	}
	store := r.cfg.Store
	store.To = &guard{Publisher: store.To, run: r, looked: r.cfg.Now()}
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(limit)
	for _, t := range todo {
		if inner.Err() != nil {
			break
		}
		g.Go(func() error {
			why, err := store.restore(inner, t, now(r.cfg), r.Rollout().States, compressors)
			never := errors.Is(err, errUntouched)
			if err != nil && !never && inner.Err() == nil && release.Unfit(err) { // what is wrong with one keeps no other one
				why, err = err.Error(), nil
			}
			if err != nil && !never {
				return fmt.Errorf("go back on %s: %w", t.Device, err)
			}
			mu.Lock()
			defer mu.Unlock()
			switch {
			case never:
				untouched = append(untouched, t)
			case why != "":
				*kept = append(*kept, string(t.Device)+": "+why)
			default:
				*done++
			}
			return nil
		})
	}
	return untouched, g.Wait()
}

// Kept is the number of devices whose former content could not be published.
func (r *Run) Kept() int { return r.kept }

// errUntouched: the rollout has not reached a device, so it has its former content.
var errUntouched = errors.New("the rollout has not come to it")

// restore publishes, as the next generation of a device, what its tag named before a rollout. Why says why the device keeps
// what it has; "" when it has its former content. One that never got another one is errUntouched.
func (s Store) restore(ctx context.Context, t artifacts.RolloutTarget, at time.Time, states artifacts.RolloutStates, c *artifacts.Compressors) (why string, err error) {
	why, err = s.way(ctx, t)
	if err != nil || why != "" {
		if why == again {
			why = ""
		}
		return why, err
	}
	tag := t.Device.Tag()
	next := artifacts.HistoryTag(tag, t.Generation+1)
	switch there, err := s.From.Resolve(ctx, t.Repository, next); {
	case errors.Is(err, fault.ErrNotFound), errors.Is(err, fault.ErrInvalid):
	case err != nil:
		return "", err
	default:
		other, err := s.restored(ctx, t, there.Digest)
		if err != nil {
			return "", err
		}
		if other != "" { // else it was cut off before the tag moved
			return fmt.Sprintf("%s names %s already: give it a state with longshore state rollback", next, there.Digest), nil
		}
	}
	former, deployments, err := s.former(ctx, t)
	if err != nil {
		return "", err
	}
	documents := make([][]byte, 0, len(deployments))
	for _, x := range deployments {
		documents = append(documents, x.Bytes)
	}
	windows := former.Windows
	if fleet.Overdue(windows, at) != "" { // those of the rollout may still open
		x, err := s.index(ctx, t.Repository, t.Digest)
		if err != nil {
			return "", err
		}
		if windows = x.Windows; fleet.Overdue(windows, at) != "" {
			return fleet.Overdue(windows, at), nil
		}
	}
	a, err := artifacts.PackState(artifacts.StateOptions{
		Device: t.Device, Generation: t.Generation + 1, Deployments: documents, Expires: states.Expires, Previous: t.Digest, Repeats: t.Former,
		Windows: windows, Created: states.Created, Annotations: fleet.Notes(former), Applications: former.Applications, Compressors: c,
	})
	if err != nil {
		return "", err
	}
	return "", s.To.Publish(ctx, t.Repository, a, fleet.Publication{
		Tag: tag, HistoryTag: next, Precondition: release.Precondition{Tagged: t.Digest, Verify: fleet.VerifyAt(t.Repository, s.Verify)},
	})
}

// again is why a device gets nothing that has its former content already.
const again = "it has it again"

// way returns why a device is skipped: "" if it is to get its former content.
func (s Store) way(ctx context.Context, t artifacts.RolloutTarget) (why string, err error) {
	desc, err := s.From.Resolve(ctx, t.Repository, t.Device.Tag())
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		return "", err
	}
	switch {
	case desc.Digest == t.Former: // also if there was none
		return "", errUntouched
	case t.Former == "":
		return "it had nothing before, and keeps what it has", nil
	case desc.Digest == "":
		return "its tag was deleted: give it a state with longshore state rollback", nil
	case desc.Digest != t.Digest:
		why, err := s.restored(ctx, t, desc.Digest)
		return cmp.Or(why, again), err
	}
	return "", nil
}

// loadable refuses to give devices back what they could not load any more, before anything is written. Without a Loader there is
// no check: so it is where a wave goes back by itself, for its devices may have all of it still.
func (cfg Config) loadable(ctx context.Context, todo []artifacts.RolloutTarget) error {
	if cfg.Loader == nil {
		return nil
	}
	wrong := make([]string, len(todo))
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(cmp.Or(cfg.Parallel, fleet.DefaultConcurrency))
	for i, t := range todo {
		if inner.Err() != nil {
			break
		}
		g.Go(func() error {
			found, err := cfg.look(inner, t)
			switch {
			case errors.Is(err, errUntouched):
				return nil
			case fault.Distrusted(err): // perhaps of all devices, and the rollout would pass for rolled back
				return fault.WithHint(fmt.Errorf("look what %s would get again: %w", t.Device, err),
					"if another key of yours signed it, name it with --verify-key FILE; or leave such devices as they are with --no-content")
			}
			if err != nil && !(inner.Err() == nil && release.Unfit(err)) { // else it is reported on the way, and does not affect other devices
				return fmt.Errorf("look what %s would get again: %w", t.Device, err)
			}
			wrong[i] = strings.Join(found.Wrong, "; ")
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	var all []error
	var said []string
	for i, why := range wrong {
		if why == "" || slices.Contains(said, why) { // one missing thing affects many devices
			continue
		}
		said = append(said, why)
		devices := 0
		for _, w := range wrong {
			if w == why {
				devices++
			}
		}
		who := string(todo[i].Device)
		if devices > 1 {
			who += fmt.Sprintf(" and %d more", devices-1)
		}
		all = append(all, fmt.Errorf("%s: what it had cannot be had again: %w: %s", who, fault.ErrUnfit, why))
	}
	if len(all) == 0 {
		return nil
	}
	return fault.WithHint(errors.Join(all...), "nothing was published. Push what is gone again, by the same digest; or give it back all the same with --no-content: devices may have it still")
}

// look returns the parts of its former content that one device could not load.
func (cfg Config) look(ctx context.Context, t artifacts.RolloutTarget) (fleet.Finding, error) {
	why, err := cfg.Store.way(ctx, t)
	if err != nil || why != "" {
		return fleet.Finding{}, err
	}
	_, deployments, err := cfg.Store.former(ctx, t)
	if err != nil {
		return fleet.Finding{}, err
	}
	var d *fleet.Device
	if f := cfg.Store.files; f != nil {
		d = f.Device(string(t.Device))
	}
	return cfg.Loader.Look(ctx, d, deployments)
}

// restored reports whether what a device's tag names now is its former content, from a run before.
func (s Store) restored(ctx context.Context, t artifacts.RolloutTarget, there digest.Digest) (why string, err error) {
	_, manifest, err := s.From.Manifest(ctx, t.Repository, there)
	if err != nil {
		return "", err
	}
	x, err := artifacts.OpenState(manifest)
	if err == nil && x.Device == t.Device && x.Previous == t.Digest && x.Repeats == t.Former {
		return "", nil
	}
	return "another publisher gave it another state, which it keeps", nil
}

// former is what a device's tag named before a rollout, and its deployments: of a state that a key which may publish has
// signed.
func (s Store) former(ctx context.Context, t artifacts.RolloutTarget) (*artifacts.StateIndex, []artifacts.Deployment, error) {
	x, err := s.index(ctx, t.Repository, t.Former)
	if err != nil {
		return nil, nil, err
	}
	state, err := x.Read(func(b ocispec.Descriptor) ([]byte, error) {
		return s.From.Blob(ctx, t.Repository, b, artifacts.MaxArchive)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("%s@%s: %w", t.Repository, t.Former, err)
	}
	return x, state.Deployments, nil
}

// index verifies a state, and reads its manifest.
func (s Store) index(ctx context.Context, repository string, d digest.Digest) (*artifacts.StateIndex, error) {
	if s.Verify != nil {
		if err := s.Verify(ctx, repository, d); err != nil {
			return nil, err
		}
	}
	_, manifest, err := s.From.Manifest(ctx, repository, d)
	if err != nil {
		return nil, err
	}
	x, err := artifacts.OpenState(manifest)
	if err != nil {
		return nil, fmt.Errorf("%s@%s: %w", repository, d, err)
	}
	return x, nil
}
