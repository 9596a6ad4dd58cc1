package agent

import (
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

// LockReader reads a file at the top of a named volume. fault.ErrNotFound: there is none.
type LockReader interface {
	ReadVolumeFile(ctx context.Context, project string, v workload.Volume, name string, limit int64) (data []byte, modified time.Time, err error)
}

const (
	lockEvery = 5 * time.Second // between two looks at update locks while a change waits
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
	if err := l.o.Store.Update(func(tx *store.Tx) error {
		return errors.Join(tx.RetainChanges(keys(g.records)), setChanges(tx, slices.Collect(maps.Values(g.records))))
	}); err != nil {
		l.log.Warn("cannot save how long changes have waited", "err", err)
	}
}

// keepsWaits reports whether it matters how long changes have waited.
func (l *loop) keepsWaits() bool { return l.o.Approvals.AutomaticAfter > 0 && len(l.gate.records) > 0 }

// gated reports whether anything on this device may hold back a change.
func (l *loop) gated() bool {
	if slices.ContainsFunc(l.o.Approvals.Kinds, func(k plan.Kind) bool { return k != plan.TrustPolicy }) || l.hasChangeWindow() {
		return true
	}
	return len(l.lockable()) > 0 || l.gate.refuses()
}

// refuses reports whether a change was rejected or postponed. Such a decision counts also without windows, locks and an approval policy.
func (g *gate) refuses() bool {
	for _, r := range g.records {
		if d := r.Decision; r.Trust == nil && r.Begun.IsZero() && d != nil && d.Verdict != store.Approved {
			return true
		}
	}
	return false
}

// lockable are the revisions that run and may have an update lock.
func (l *loop) lockable() []*plan.Deployment {
	var out []*plan.Deployment
	for _, g := range l.good {
		for i := range g.Deployment.All() {
			if p := g.Deployment.Components[i].Project; slices.ContainsFunc(p.Volumes, func(v workload.Volume) bool { return v.Name == approval.LockVolume }) {
				out = append(out, g.Deployment)
				break
			}
		}
	}
	return out
}

// gateChanges decides which changes wait. It saves which begin before they do.
func (l *loop) gateChanges(now time.Time) {
	g := &l.gate
	if l.targetDesired == nil && l.acceptedDesired == nil {
		return
	}
	if !l.gated() {
		g.changes, g.at = nil, time.Time{}
		l.keepChanges(now, g.trustOnly(), nil) // the same change may come again, and wait then
		if len(g.waits) > 0 {
			g.waits = nil
			l.rebuild()
		}
		return
	}
	if g.built == l.rebuilt && (g.at.IsZero() || now.Before(g.at)) {
		return
	}
	target := l.openChanges(l.targetDesired)
	records, waits := g.trustOnly(), map[string]plan.Wait{}
	for id, r := range g.records {
		if l.removedFor(r) {
			records[id] = r
		}
	}
	var fresh []store.Change
	var automatic []plan.Change
	g.at = time.Time{}
	for i, c := range slices.Concat(target, l.openChanges(l.acceptedDesired)) {
		if _, both := records[c.ID]; both && i >= len(target) {
			continue
		}
		r, ok := g.records[c.ID]
		if !ok {
			r = store.Change{ID: c.ID, Deployment: c.Deployment, Since: now}
		}
		was := r
		if r.Begun.IsZero() {
			if d := l.gateQuestion(c, r, now).Automatic(); d != nil && !l.unfinished(c) {
				r.Decision, automatic = d, append(automatic, c)
			}
			w, applied := l.waitOf(c, r, now), i < len(target)
			if w == nil && applied && g.waits[c.Deployment].Code != "" && l.lockedBy(c.Deployment) { // a lock may be newer than the last look
				delete(g.looked, c.ID)
				g.lockAt, g.reread, w = now, g.reading, &plan.Wait{}
			}
			if w == nil && applied && l.canBegin(c) {
				r.Begun, r.For = now, l.target.Digest
			}
			if w != nil && applied {
				waits[c.Deployment] = *w
			}
			if w != nil && !w.Until.IsZero() && (g.at.IsZero() || w.Until.Before(g.at)) {
				g.at = w.Until
			}
		}
		records[c.ID] = r
		if !ok || r != was {
			fresh = append(fresh, r)
		}
	}
	if !l.keepChanges(now, records, fresh, automatic...) { // nothing begins
		return
	}
	g.changes = target
	if l.acceptedDesired != nil {
		g.changes = l.openChanges(l.acceptedDesired)
	}
	l.tellChanges(waits)
	if !maps.Equal(waits, g.waits) {
		g.waits = waits
		l.rebuild()
	}
	g.built = l.rebuilt
}

// removedFor reports whether a record is of a removal that the target asked for and that is complete: it says that the target is under way.
func (l *loop) removedFor(r store.Change) bool {
	_, good := l.good[r.Deployment]
	return r.Trust == nil && !good && l.target != nil && !r.Begun.IsZero() && r.For == l.target.Digest && l.targetDesired.Deployment(r.Deployment) == nil
}

// trustOnly are the records of changes of the trust policy.
func (g *gate) trustOnly() map[digest.Digest]store.Change {
	out := map[digest.Digest]store.Change{}
	for id, r := range g.records {
		if r.Trust != nil {
			out[id] = r
		}
	}
	return out
}

// keepChanges remembers exactly these records, of which some are fresh, and that some changes were approved automatically; false: they could not be
// saved.
func (l *loop) keepChanges(now time.Time, records map[digest.Digest]store.Change, fresh []store.Change, automatic ...plan.Change) bool {
	if len(fresh) > 0 || len(records) != len(l.gate.records) {
		err := l.o.Store.Update(func(tx *store.Tx) error {
			errs := []error{tx.RetainChanges(keys(records)), setChanges(tx, fresh)}
			for _, c := range automatic {
				d := *records[c.ID].Decision
				errs = append(errs, keepDecided(tx, decisionEvent(c, d), d), l.capabilities(tx, now))
			}
			return errors.Join(errs...)
		})
		if err != nil {
			l.log.Error("cannot save which changes wait; nothing is changed until it can", "err", err)
			l.unsaved, l.saveAt = err, now.Add(saveRetry)
			l.gate.at = l.saveAt
			return false
		}
	}
	l.gate.records = records
	for _, c := range automatic {
		l.tellDecision(c, *records[c.ID].Decision)
	}
	return true
}

func setChanges(tx *store.Tx, all []store.Change) error {
	var errs []error
	for _, r := range all {
		errs = append(errs, tx.SetChange(r))
	}
	return errors.Join(errs...)
}

// underWay are the changes that have begun on a device that holds none back, when a state with windows comes, which does.
func (l *loop) underWay(now time.Time, coming *store.State) []store.Change {
	if coming.Windows == "" || l.gated() {
		return nil
	}
	var out []store.Change
	for _, c := range l.openChanges(l.targetDesired) {
		if l.canBegin(c) {
			out = append(out, store.Change{ID: c.ID, Deployment: c.Deployment, Since: now, Begun: now, For: l.target.Digest})
		}
	}
	return out
}

// waitOf is why a change is not made now; nil: nothing holds it back. Without a code it is a moment, until the locks were read.
func (l *loop) waitOf(c plan.Change, r store.Change, now time.Time) *plan.Wait {
	if l.unfinished(c) {
		return nil
	}
	w := l.gateQuestion(c, r, now).Wait()
	if w == nil && l.lockedBy(c.Deployment) && (!l.gate.looked[c.ID] || now.Sub(l.gate.lookedAt) > 2*lockEvery) {
		return &plan.Wait{}
	}
	return w
}

// unfinished reports whether a deployment is on the device of which there is no revision that could be kept: it never ran completely, or the
// documents of the one that did are damaged and nothing of it runs. Nothing holds its change back, unless it is on its way off the device.
func (l *loop) unfinished(c plan.Change) bool {
	good, ran := l.good[c.Deployment]
	return good.Deployment == nil && !l.leaves(c.Deployment) && slices.ContainsFunc(l.seen.Containers, func(o workload.Observation) bool { return o.Deployment == c.Deployment }) &&
		!(ran && slices.ContainsFunc(l.seen.Containers, func(o workload.Observation) bool {
			return o.Deployment == c.Deployment && o.Status == workload.Running
		}))
}

// leaves reports whether a deployment may still have containers that a rollback by hand removes: neither the target nor the good revisions
// contain it.
func (l *loop) leaves(id string) bool {
	_, ran := l.good[id]
	return !ran && l.targetDesired != nil && l.targetDesired.Deployment(id) == nil &&
		(!l.observed || slices.ContainsFunc(l.seen.Containers, func(o workload.Observation) bool { return o.Deployment == id }))
}

// canBegin reports whether a change that nothing holds back is made now: one that has to wait for the device's admission has not begun, and
// its window may close again.
func (l *loop) canBegin(c plan.Change) bool {
	d := l.targetDesired.Deployment(c.Deployment)
	return d == nil || l.admission.admits(d)
}

// openChanges lists what a state changes, but for what was found bad already.
func (l *loop) openChanges(d *plan.Desired) []plan.Change {
	return slices.DeleteFunc(plan.Changes(d, l.good), func(c plan.Change) bool {
		x := d.Deployment(c.Deployment)
		_, bad := l.bad[digestOf(x)]
		return bad
	})
}

func digestOf(d *plan.Deployment) digest.Digest {
	if d == nil {
		return ""
	}
	return d.Digest
}

func keys(m map[digest.Digest]store.Change) map[digest.Digest]bool {
	out := map[digest.Digest]bool{}
	for k := range m {
		out[k] = true
	}
	return out
}

// gateQuestion is what may hold back a change.
func (l *loop) gateQuestion(c plan.Change, r store.Change, now time.Time) approval.Question {
	if l.held() && l.target.Digest == l.hold.State { // somebody at the device decided
		return approval.Question{}
	}
	q := approval.Question{Now: now, Change: c, Record: r, Policy: l.o.Approvals, Locks: l.gate.locks[c.Deployment], Counted: l.gate.countedAt}
	if l.hasChangeWindow() {
		q.Closed, q.ClockUnknown, q.Opens = l.changeWindow(now)
		q.Opens = q.Opens.Round(time.Second).UTC()
	}
	return q
}

// tellChanges reports which changes begin to wait, and for what.
func (l *loop) tellChanges(waits map[string]plan.Wait) {
	for id, w := range waits {
		if old, ok := l.gate.waits[id]; ok && old.Code == w.Code || w.Code == "" {
			continue
		}
		name := status.NameOf(l.reportedStatus, id)
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
	if g.reading || now.Before(g.lockAt) || !l.observed || l.blind != nil {
		return
	}
	type place struct {
		deployment, project, component string
		volume                         workload.Volume
		gone                           bool // its owner: nobody would remove the lock
	}
	var places []place
	asked := map[digest.Digest]bool{}
	for _, d := range l.lockable() {
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
	g.reading, g.lockAt = true, now.Add(lockEvery)
	known := g.future
	l.background(func() {
		future := map[string]futureLock{}
		ctx, cancel := context.WithTimeout(l.ctx, lockLimit)
		defer cancel()
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
		name := status.NameOf(l.reportedStatus, x.deployment)
		l.log.Warn("an update lock is ignored", "deployment", name, "why", why)
		l.events.Emit(status.Event{Kind: status.EventChange, Deployment: name, Component: x.component, Message: why})
	}
	l.gate.ignored = locks
}

// gone reports whether a project has had no container for [ownerAway].
func (l *loop) gone(project string) bool {
	g, now := &l.gate, l.clock.Elapsed()
	if slices.ContainsFunc(l.seen.Containers, func(c workload.Observation) bool { return c.Project == project }) {
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

// lockedBy reports whether a deployment may have an update lock.
func (l *loop) lockedBy(deployment string) bool {
	return slices.ContainsFunc(l.lockable(), func(d *plan.Deployment) bool { return d.ID == deployment })
}

// removalWaits reports whether the removal of a deployment has to wait.
func (l *loop) removalWaits(id string) bool {
	if !l.gated() {
		return false
	}
	for _, c := range l.gate.changes {
		if r := l.gate.records[c.ID]; c.Deployment == id {
			return r.Begun.IsZero() && l.waitOf(c, r, l.o.Now()) != nil
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

// changeStatus shows a change.
func (l *loop) changeStatus(c plan.Change) status.Change {
	r := l.gate.records[c.ID]
	out := status.Change{
		ID: c.ID, Deployment: c.Name, DeploymentID: c.Deployment, Kinds: c.Kinds, Components: []status.ComponentChange{}, Images: []status.ImageChange{}, Restarts: c.Restarted, Containers: c.Containers,
		Since: r.Since, Begun: r.Begun, Decision: r.Decision, Trust: r.Trust,
	}
	if r.Trust != nil {
		out.Waiting = l.trustWaiting(r)
		return out
	}
	for _, s := range []*store.State{l.accepted, l.target} {
		if s != nil {
			out.Generation = s.Generation
			break
		}
	}
	for _, x := range c.Components {
		out.Components = append(out.Components, status.ComponentChange{Component: x.Name, From: x.From, To: x.To})
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
		if w := l.waitOf(c, r, l.o.Now()); w != nil && w.Code != "" {
			out.Waiting = &status.Waiting{Code: w.Code, Message: w.Message, Until: w.Until}
		}
	}
	return out
}

// lockDue is when locks are to be read again; zero: they are being read, or none matters.
func (g *gate) lockDue() time.Time {
	if g.reading {
		return time.Time{}
	}
	return g.lockAt
}
