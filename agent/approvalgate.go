package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/approval"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	lockLimit = 30 * time.Second
	ownerAway = time.Minute // without a container, until a component has left its lock behind: one that is replaced is away for a moment
)

// gate holds back changes that wait for a person, a lock or a window. A change that has begun is never held back again. It is part of the
// loop.
type gate struct {
	records map[digest.Digest]store.Change
	changes []plan.Change              // of the newest state; those that were found bad are not among them
	waits   map[string]plan.Wait       // by deployment id, of what is applied
	told    map[string]plan.Wait       // waits as last reported
	built   int                        // [loop.rebuilt] when changes was made; -1: they are to be made anew
	at      time.Time                  // when to look again; zero: not by itself
	locks   map[string][]approval.Lock // by deployment id
	looked  map[digest.Digest]bool     // changes whose locks were read at lookedAt
	ignored map[ignoredLock]bool       // locks whose owner is gone, as last told
	away    map[string]time.Duration   // projects without a container, by [clock.Clock.Elapsed] since when
	future  map[string]futureLock      // by project
	reading bool                       // of locks
	reread  bool                       // what is being read is too old

	lookedAt, lockAt time.Time

	counted, kept time.Duration // by [clock.Clock.Elapsed]: until when it is counted how long changes have waited, and until when that is saved
	countedAt     time.Time     // counted, by the device's clock
}

// keepWaits counts how long changes have waited, and saves that every hour, and when the agent ends. Time when it does not run does not count.
func (l *loop) keepWaits(now time.Time) {
	l.countWaits(now)
	if g := &l.gate; l.keepsWaits() && g.counted-g.kept >= keepEvery {
		g.built = -1 // the time of day when they end moves with the device's clock
		l.saveWaits()
	}
}

func (l *loop) countWaits(now time.Time) {
	g, elapsed := &l.gate, l.clock.Elapsed()
	for id, r := range g.records {
		if r.Begun.IsZero() {
			r.Waited += max(0, elapsed-g.counted)
			g.records[id] = r
		}
	}
	g.counted, g.countedAt = elapsed, now
}

func (l *loop) saveWaits() {
	g := &l.gate
	g.kept = g.counted
	if err := l.o.Store.Update(func(tx *store.Tx) error { return tx.SetChanges(g.records) }); err != nil {
		l.log.Warn("cannot save how long changes have waited", "err", err)
	}
}

// keepsWaits reports whether it matters how long changes have waited.
func (l *loop) keepsWaits() bool { return l.o.Approvals.AutomaticAfter > 0 && len(l.gate.records) > 0 }

// facts are what decides at a time which changes wait.
func (l *loop) facts(now time.Time) *approval.Facts {
	g := &l.gate
	f := &approval.Facts{
		Now: now, Target: l.target, Desired: l.targetDesired, Accepted: l.acceptedDesired, Chosen: l.held() && l.target.Digest == l.hold.State,
		Good: l.good, Bad: l.bad, Observed: l.sight.seen.Containers, Looked: l.sight.known, Policy: l.o.Approvals, Admits: l.admission.admits,
		Records: g.records, Counted: g.countedAt, Locks: g.locks, LocksOf: g.looked, LocksAt: g.lookedAt, Waits: g.waits,
	}
	if l.hasChangeWindow() {
		f.Window = l.changeWindow
	}
	return f
}

// gateChanges decides which changes wait. It saves which begin before they do.
func (l *loop) gateChanges(now time.Time) {
	g := &l.gate
	if l.targetDesired == nil && l.acceptedDesired == nil {
		return
	}
	f := l.facts(now)
	if !f.Gated() {
		g.changes, g.at = nil, time.Time{}
		l.keepChanges(now, approval.TrustOnly(g.records)) // the same change may come again, and wait then
		if len(g.waits) > 0 {
			g.waits = nil
			l.rebuild()
		}
		return
	}
	if g.built == l.rebuilt && (g.at.IsZero() || now.Before(g.at)) {
		return
	}
	d := f.Decide()
	g.at = d.At
	for _, id := range d.LocksAgain {
		delete(g.looked, id)
		g.lockAt, g.reread = now, g.reading
	}
	if !l.keepChanges(now, d.Records, d.Automatic...) { // nothing begins
		return
	}
	g.changes = d.Changes
	l.tellChanges(d.Waits)
	if !maps.Equal(d.Waits, g.waits) {
		g.waits = d.Waits
		l.rebuild()
	}
	g.built = l.rebuilt
}

// keepChanges remembers exactly these records, and that some changes were approved automatically; false: they could not be saved.
func (l *loop) keepChanges(now time.Time, records map[digest.Digest]store.Change, automatic ...plan.Change) bool {
	if !maps.Equal(records, l.gate.records) {
		err := l.o.Store.Update(func(tx *store.Tx) error {
			errs := []error{tx.SetChanges(records)}
			for _, c := range automatic {
				d := *records[c.ID].Decision
				errs = append(errs, keepDecided(tx, decisionEvent(c, d), d), l.capabilities(tx, now))
			}
			return errors.Join(errs...)
		})
		if err != nil {
			l.log.Error("cannot save which changes wait; nothing is changed until it can", "err", err)
			l.saving.err, l.saving.at = err, now.Add(saveRetry)
			l.gate.at = l.saving.at
			return false
		}
	}
	l.gate.records = records
	for _, c := range automatic {
		l.tellDecision(c, *records[c.ID].Decision)
	}
	return true
}

// tellChanges reports which changes begin to wait, and for what.
func (l *loop) tellChanges(waits map[string]plan.Wait) {
	for id, w := range waits {
		if old, ok := l.gate.waits[id]; ok && old.Code == w.Code || w.Code == "" {
			continue
		}
		name := status.NameOf(l.told.statuses, id)
		l.log.Info("a change waits", "deployment", name, "code", w.Code, "why", w.Message)
		l.events.Emit(status.Event{Kind: status.EventChange, Deployment: name, Code: w.Code, Message: w.Message})
	}
}

// waitsFor is a change that waits although all of the accepted state is on the device.
func (l *loop) waitsFor() (deployment string, w plan.Wait, ok bool) {
	if l.acceptedDesired != nil {
		return "", w, false
	}
	for _, id := range slices.Sorted(maps.Keys(l.gate.waits)) {
		if w = l.gate.waits[id]; w.Code != "" {
			return id, w, true
		}
	}
	return "", w, false
}

// readLocks reads the update locks of applications whose change waits, beside the loop.
func (l *loop) readLocks(now time.Time) {
	g := &l.gate
	if g.reading || now.Before(g.lockAt) || !l.sight.known || l.sight.blind != nil {
		return
	}
	type place struct {
		deployment, project, component string
		volume                         workload.Volume
		gone                           bool // its owner: nobody would remove the lock
	}
	var places []place
	asked := map[digest.Digest]bool{}
	for _, d := range l.facts(now).Lockable() {
		i := slices.IndexFunc(g.changes, func(c plan.Change) bool { return c.Deployment == d.ID && g.records[c.ID].Begun.IsZero() })
		if i < 0 {
			continue
		}
		asked[g.changes[i].ID] = true
		for _, c := range d.Components {
			places = append(places, place{d.ID, c.Project.Name, c.Name, c.Project.Volume(approval.LockVolume), l.gone(c.Project.Name)})
		}
	}
	if len(asked) == 0 {
		g.locks, g.looked, g.lockAt, g.away = nil, nil, time.Time{}, nil
		return
	}
	maps.DeleteFunc(g.away, func(project string, _ time.Duration) bool {
		return !slices.ContainsFunc(places, func(p place) bool { return p.project == project })
	})
	g.reading, g.lockAt = true, now.Add(approval.LockEvery)
	known := g.future
	l.within(lockLimit, func(ctx context.Context) {
		future := map[string]futureLock{}
		found, ignored := map[string][]approval.Lock{}, map[ignoredLock]bool{}
		for _, p := range places {
			data, modified, err := l.o.Runtime.ReadVolumeFile(ctx, p.project, p.volume, approval.LockFile, approval.MaxLock)
			if errors.Is(err, fault.ErrNotFound) {
				continue
			}
			if at := l.o.Now().Round(0); err == nil && modified.After(at) {
				f, ok := known[p.project]
				if !ok || !f.modified.Equal(modified) || f.seen.After(at) {
					f = futureLock{modified, at}
				}
				future[p.project], modified = f, f.seen
			}
			lock := approval.ParseLock(p.component, data, modified, l.o.Now(), err)
			if !p.gone {
				found[p.deployment] = append(found[p.deployment], lock)
			} else if l.o.Now().Before(lock.Expires) {
				if err == nil && lock.Reason != "" {
					lock.Reason = "the lock says: " + lock.Reason
				}
				ignored[ignoredLock{p.deployment, p.component, lock.Owner, lock.Reason}] = true
			}
		}
		l.send(func(l *loop) {
			l.gate.reading, l.gate.lookedAt, l.gate.built = false, l.o.Now(), -1
			l.gate.locks, l.gate.looked, l.gate.future = found, asked, future
			if l.gate.reread {
				l.gate.reread, l.gate.looked, l.gate.lockAt = false, nil, l.o.Now()
			}
			l.tellIgnored(ignored)
		})
	})
}

// futureLock is an update lock that was written at a time that is yet to come: the device's clock was set back since. It counts as written when it was
// seen.
type futureLock struct{ modified, seen time.Time }

// ignoredLock is an update lock of a component that has had no container for a while.
type ignoredLock struct{ deployment, component, owner, reason string }

// tellIgnored tells of each such lock once.
func (l *loop) tellIgnored(locks map[ignoredLock]bool) {
	for x := range locks {
		if l.gate.ignored[x] {
			continue
		}
		why := fmt.Sprintf("the update lock of %s is ignored: its owner is gone, component %s has no container", x.owner, x.component)
		if x.reason != "" {
			why += "; " + x.reason
		}
		name := status.NameOf(l.told.statuses, x.deployment)
		l.log.Warn("an update lock is ignored", "deployment", name, "why", why)
		l.events.Emit(status.Event{Kind: status.EventChange, Deployment: name, Component: x.component, Message: why})
	}
	l.gate.ignored = locks
}

// gone reports whether a project has had no container for [ownerAway].
func (l *loop) gone(project string) bool {
	g, now := &l.gate, l.clock.Elapsed()
	if slices.ContainsFunc(l.sight.seen.Containers, func(c workload.Observation) bool { return c.Project == project }) {
		delete(g.away, project)
		return false
	}
	if g.away == nil {
		g.away = map[string]time.Duration{}
	}
	if _, known := g.away[project]; !known {
		g.away[project] = now
	}
	return now-g.away[project] >= ownerAway
}

// removalWaits reports whether the removal of a deployment has to wait.
func (l *loop) removalWaits(id string) bool {
	f := l.facts(l.o.Now())
	if !f.Gated() {
		return false
	}
	for _, c := range l.gate.changes {
		if r := l.gate.records[c.ID]; c.Deployment == id {
			return r.Begun.IsZero() && f.Wait(c, r) != nil
		}
	}
	return l.gate.built == -1 // not looked at yet
}

// Changes lists the changes that the device may make.
func (a *Agent) Changes(ctx context.Context) ([]status.Change, error) {
	return ask(ctx, a, func(l *loop) ([]status.Change, error) { return l.changeTable(), nil })
}

func (l *loop) changeTable() []status.Change {
	out := []status.Change{}
	for _, c := range l.waitingChanges() {
		out = append(out, l.changeStatus(c))
	}
	return out
}

func (l *loop) changeStatus(c plan.Change) status.Change {
	r := l.gate.records[c.ID]
	out := status.Change{
		ID: c.ID, Deployment: c.Name, DeploymentID: c.Deployment, Kinds: c.Kinds, Components: append([]status.ComponentChange{}, c.Components...), Images: []status.ImageChange{}, Restarts: c.Restarted, Containers: c.Containers,
		Since: r.Since, Begun: r.Begun, Decision: r.Decision, Trust: r.Trust,
	}
	if r.Trust != nil {
		out.Waiting = l.trustWaiting(r)
		return out
	}
	if s := cmp.Or(l.accepted, l.target); s != nil {
		out.Generation = s.Generation
	}
	for _, x := range c.Images {
		y := status.ImageChange{Component: x.Component, Service: x.Service, To: x.To.Name(), ToTag: x.To.Tag, Bytes: x.To.Size}
		if x.From.Digest != "" {
			y.From, y.FromTag = x.From.Name(), x.From.Tag
		}
		if _, here := l.images[x.To.Name()]; here {
			y.Bytes = 0
		}
		out.Images = append(out.Images, y)
		out.Bytes += y.Bytes
	}
	if r.Begun.IsZero() {
		if w := l.facts(l.o.Now()).Wait(c, r); w != nil && w.Code != "" {
			out.Waiting = w
		}
	}
	return out
}
