package agent

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
)

// revisions is what is remembered of revisions and their images. It is part of the loop.
type revisions struct {
	good       map[string]plan.GoodRevision // by deployment id
	bad        map[digest.Digest]store.Bad
	images     map[string]workload.ImageInfo // of pulled images, by name; saved with the target
	restarting map[string]string             // as saved, of [plan.Supervision].Restarting
}

// recall reads what was remembered of revisions and restarts: no network.
func (l *loop) recall() error {
	var good []store.Good
	var bad []store.Bad
	err := l.o.Store.View(func(tx *store.Tx) error {
		return errors.Join(into(tx.Good, &good), into(tx.Bad, &bad), into(tx.Again, &l.restarting), into(tx.Ailing, &l.sup.FailedBefore), into(tx.Images, &l.images))
	})
	if err != nil {
		return err
	}
	for _, b := range bad {
		l.bad[b.Digest] = b
	}
	l.sup.Restarting = maps.Clone(l.restarting)
	for _, g := range good {
		rev := plan.GoodRevision{Record: g}
		if d := l.targetDesired.Deployment(g.DeploymentID); d != nil && d.Digest == g.Digest {
			rev.Deployment = d
		} else if rev.Deployment, err = l.intake.Revision(l.ctx, g); err != nil && l.ctx.Err() == nil {
			l.log.Error("the last good revision of a deployment is damaged; an update that fails has nothing to go back to",
				"deployment", g.Name, "generation", g.Generation, "err", err)
		}
		l.good[g.DeploymentID] = rev
	}
	return nil
}

// goodRecord is what is remembered of a deployment that runs completely.
func (l *loop) goodRecord(now time.Time, d *plan.Deployment) store.Good {
	return store.Good{
		DeploymentID: d.ID, Name: d.Name, Digest: d.Digest, Size: d.Size, Generation: l.target.Generation, State: l.target.Digest,
		Repository: l.target.Repository, Since: now, Accepted: l.target.AcceptedAt,
	}
}

// goodOf is which revisions are good once somebody has chosen a state that ran before. One that failed since then stays replaced.
func (l *loop) goodOf(now time.Time, d *plan.Desired) map[string]plan.GoodRevision {
	out := map[string]plan.GoodRevision{}
	for x := range d.All() {
		g, ok := l.good[x.ID]
		if _, bad := l.bad[x.Digest]; !bad {
			g, ok = plan.GoodRevision{Record: l.goodRecord(now, x), Deployment: x}, true
		}
		if ok {
			out[x.ID] = g
		}
	}
	return out
}

func goodRecords(all map[string]plan.GoodRevision) map[string]store.Good {
	out := map[string]store.Good{}
	for id, g := range all {
		out[id] = g.Record
	}
	return out
}

// markGood takes over which revisions are good now.
func (l *loop) markGood(now time.Time, a plan.Assessment) {
	for _, d := range a.Good {
		l.good[d.ID] = plan.GoodRevision{Record: l.goodRecord(now, d), Deployment: l.targetDesired.Deployment(d.ID)}
	}
	for _, s := range a.Removed {
		delete(l.good, s.DeploymentID)
	}
	if len(a.Good)+len(a.Removed) > 0 {
		l.garbage = true
		l.rebuild()
	}
}

// recordFailedUpdates remembers revisions that failed: from now on they are not tried.
func (l *loop) recordFailedUpdates(bad []store.Bad) error {
	var back plan.Desired
	for _, b := range bad {
		if good := l.good[b.DeploymentID].Deployment; good != nil && !b.Pause {
			back.Deployments = append(back.Deployments, *good)
		}
	}
	again := l.comingBack(&back)
	err := l.o.Store.Update(func(tx *store.Tx) error {
		for _, b := range bad {
			if err := tx.AddBad(b); err != nil {
				return err
			}
		}
		return tx.SetAgain(again)
	})
	if err != nil {
		return err
	}
	l.setRestarting(again)
	for _, b := range bad {
		l.bad[b.Digest] = b
		l.emitRollBack(b)
		args := []any{"deployment", b.DeploymentID, "generation", b.Generation, "code", b.Code, "component", b.Source, "err", b.Message}
		if b.Pause {
			l.log.Error("an update failed and is paused", args...)
		} else {
			l.log.Error("an update failed; going back to the last good revision", append(args, "good", l.good[b.DeploymentID].Record.Generation)...)
		}
	}
	l.rebuild()
	return nil
}

// saveAgain remembers which containers are about to be stopped only to be started again, before they are.
func (l *loop) saveAgain(steps []plan.Step) bool {
	next := maps.Clone(l.sup.Restarting)
	for _, st := range steps {
		if st.Restart {
			next[st.Container] = st.Run
		}
	}
	if !maps.Equal(next, l.restarting) {
		if err := l.o.Store.Update(func(tx *store.Tx) error { return tx.SetAgain(next) }); err != nil {
			if l.saving.err == nil {
				l.log.Error("cannot save which containers are being restarted", "err", err)
			}
			return false
		}
		l.restarting = maps.Clone(next)
	}
	l.sup.Restarting = next
	return true
}

// comingBack adds to the runs that the agent ends itself those of containers that the next target has and that of now does not: they are being stopped
// at this moment, or were, on the way to the target of now. That is no failure of the next one.
func (l *loop) comingBack(next *plan.Desired) map[string]string {
	out := maps.Clone(l.sup.Restarting)
	for _, o := range l.sight.seen.Containers {
		stop := plan.Step{Verb: plan.Stop, Container: o.ID}
		if _, _, now := l.targetResolved.Container(o.ID); now != nil || o.Status == workload.Running && l.sup.Busy[o.ID] != stop.Verb && l.sup.Retries[stop.Key()].Failures == 0 {
			continue
		}
		if _, _, later := next.Container(o.ID); later != nil {
			out[o.ID] = o.Run
		}
	}
	return out
}

// setRestarting takes over what was saved.
func (l *loop) setRestarting(runs map[string]string) {
	l.restarting, l.sup.Restarting = maps.Clone(runs), runs
}

// digests are those of all deployments of some generations.
func digests(ds ...*plan.Desired) map[digest.Digest]bool {
	out := map[digest.Digest]bool{}
	for _, d := range ds {
		for x := range d.All() {
			out[x.Digest] = true
		}
	}
	return out
}

// keep is what the last good revisions need on the device, and the pins of their states. False: one of them is damaged,
// and what it needs is not known.
func (l *loop) keep() (blobs, states []digest.Digest, images []workload.Image, whole bool) {
	whole = true
	for _, id := range slices.Sorted(maps.Keys(l.good)) {
		g := l.good[id]
		states = append(states, g.Record.State)
		if g.Deployment == nil {
			whole = false
			continue
		}
		blobs, images = append(blobs, g.Deployment.Blobs...), append(images, g.Deployment.Images()...)
	}
	return blobs, states, images, whole
}
