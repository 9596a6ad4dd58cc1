package rollout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
)

// Undo gives every device that a rollout has reached its former content, as a new generation.
func Undo(ctx context.Context, k Conduct, why string) (*Run, error) {
	rec, err := k.Ledger.Read(ctx)
	if err != nil {
		return nil, err
	}
	r := clone(rec.Rollout)
	renew(r, now(k))
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
	if err := k.Ledger.home(r); err != nil {
		return nil, err
	}
	run := &Run{k: k, record: rec, said: map[string]string{}}
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

// reached tells whether devices of a wave may have the release.
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
	if err := r.k.Ledger.home(x); err != nil { // the record may be another one than the run began with
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
			done += len(untouched) // they have what they had
			break
		}
		done += len(untouched) - len(again)
		todo = again
		if err := pause(ctx, settle); err != nil {
			return err
		}
	}
	for _, k := range kept {
		r.tell("", k)
	}
	r.kept = len(kept)
	next := clone(x)
	for i := range next.Waves {
		if w := &next.Waves[i]; w.State == artifacts.WaveGoingBack {
			w.State, w.Ended = artifacts.WaveRolledBack, now(r.k)
		}
	}
	next.Phase = artifacts.RolloutRolledBack
	if err := r.keep(ctx, next); err != nil {
		return err
	}
	r.tell("", fmt.Sprintf("rolled back: %s", fleet.Counted(done, "device")))
	return nil
}

// restoreAll gives devices back what they had, several at a time, and tells to which the rollout has not come. It counts
// those that have it again, and says why others do not.
func (r *Run) restoreAll(ctx context.Context, todo []artifacts.RolloutTarget, done *int, kept *[]string) (untouched []artifacts.RolloutTarget, err error) {
	var mu sync.Mutex
	compressors, limit := &artifacts.Compressors{}, r.k.Parallel
	if limit <= 0 {
		limit = fleet.DefaultConcurrency
	}
	ledger := r.k.Ledger
	ledger.To = &guard{Publisher: ledger.To, run: r, looked: r.k.Now()}
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(limit)
	for _, t := range todo {
		if inner.Err() != nil {
			break
		}
		g.Go(func() error {
			why, size, err := ledger.restore(inner, t, r.Rollout().States, compressors)
			never := errors.Is(err, errUntouched)
			if err != nil && !never && inner.Err() == nil && fleet.Settled(err) { // what is wrong with one keeps no other one
				why, err = err.Error(), nil
			}
			if err != nil && !never {
				return fmt.Errorf("go back on %s: %w", t.Device, err)
			}
			mu.Lock()
			defer mu.Unlock()
			switch r.size += size; {
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

// Kept is how many devices could not be given their former content.
func (r *Run) Kept() int { return r.kept }

// errUntouched says that a device has what it had: the rollout has not come to it.
var errUntouched = errors.New("the rollout has not come to it")

// restore publishes, as the next generation of a device, what its tag named before a rollout. Why says why the device keeps
// what it has; "" when it has its former content. One that never got another one is errUntouched.
func (l Ledger) restore(ctx context.Context, t artifacts.RolloutTarget, s artifacts.RolloutStates, c *artifacts.Compressors) (why string, size int64, err error) {
	tag := t.Device.Tag()
	desc, err := l.From.Resolve(ctx, t.Repository, tag)
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		return "", 0, err
	}
	switch {
	case desc.Digest == t.Former: // also where there was nothing
		return "", 0, errUntouched
	case t.Former == "":
		return "it had nothing before, and keeps what it has", 0, nil
	case desc.Digest == "":
		return "somebody has deleted its tag: give it a state with longshore state rollback", 0, nil
	case desc.Digest != t.Digest:
		return l.restored(ctx, t, desc.Digest)
	}
	former, documents, err := l.former(ctx, t)
	if err != nil {
		return "", 0, err
	}
	a, err := artifacts.PackState(artifacts.StateOptions{
		Device: t.Device, Generation: t.Generation + 1, Deployments: documents, Expires: s.Expires, Previous: t.Digest, Repeats: t.Former,
		Created: s.Created, Annotations: fleet.Notes(former), Applications: former.Applications, Compressors: c,
	})
	if err != nil {
		return "", 0, err
	}
	return "", a.Size(), l.To.Publish(ctx, t.Repository, a, fleet.Publication{
		Tag: tag, Tagged: t.Digest, HistoryTag: artifacts.HistoryTag(tag, t.Generation+1), NextTag: artifacts.HistoryTag(tag, t.Generation+2),
	})
}

// restored tells whether what a device's tag names now is its former content, from a run before.
func (l Ledger) restored(ctx context.Context, t artifacts.RolloutTarget, there digest.Digest) (why string, size int64, err error) {
	_, manifest, err := l.From.Manifest(ctx, t.Repository, there)
	if err != nil {
		return "", 0, err
	}
	x, err := artifacts.OpenState(manifest)
	if err == nil && x.Device == t.Device && x.Previous == t.Digest && x.Repeats == t.Former {
		return "", 0, nil
	}
	return "somebody else gave it another state, which it keeps", 0, nil
}

// former is what a device's tag named before a rollout, and its documents: of a state that somebody who may publish has
// signed.
func (l Ledger) former(ctx context.Context, t artifacts.RolloutTarget) (*artifacts.StateIndex, [][]byte, error) {
	if l.Verify != nil {
		if err := l.Verify(ctx, t.Repository, t.Former); err != nil {
			return nil, nil, err
		}
	}
	_, manifest, err := l.From.Manifest(ctx, t.Repository, t.Former)
	if err != nil {
		return nil, nil, err
	}
	x, err := artifacts.OpenState(manifest)
	if err != nil {
		return nil, nil, fmt.Errorf("%s@%s: %w", t.Repository, t.Former, err)
	}
	state, err := x.Read(func(b ocispec.Descriptor) ([]byte, error) {
		return l.From.Blob(ctx, t.Repository, b, artifacts.MaxArchive)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("%s@%s: %w", t.Repository, t.Former, err)
	}
	documents := make([][]byte, 0, len(state.Deployments))
	for _, x := range state.Deployments {
		documents = append(documents, x.Bytes)
	}
	return x, documents, nil
}
