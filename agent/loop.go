package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/loading"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/retry"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// loop is the one goroutine that owns what changes: everything here is touched only by functions that it runs. Work that
// waits (checks, pulls, steps, probes) runs beside it and comes back to its inbox.
type loop struct {
	*Agent
	ctx context.Context
	wg  sync.WaitGroup
	log *slog.Logger
	p   plan.Policy

	states
	revisions
	sup      *plan.Supervision
	sight    sight
	steps    steps
	probers  map[string]prober // by container id
	reading  map[string]bool   // containers whose last log lines are being read
	repairs  repairs
	saving   saving
	told     told
	damaged  error                    // why the target or the accepted state is not loaded
	replaced *store.Lost              // a damaged database, until a state is accepted; nil: none
	fresh    *store.Fresh             // of the accepted state; nil: nothing is known
	doubt    *clock.Doubt             // as last looked at
	security []status.SecurityEvent   // that are kept, the last at the end
	device   margo.DeviceCapabilities // as last seen

	poll       poll
	found      found           // what a check is looking at
	progressed *store.Progress // as saved, but for what a short check looks at; nil: none
	attempts   *store.Attempts // as saved; nil: none
	trust      trusting
	pull       pulling // of the images of the accepted state
	refill     pulling // of images of target that were lost
	admission  admission
	gate       gate
	windows    windows
	hold       *store.Hold // nil: none
	disks      disks
	machine    machineLook
	volumes    volumes
	waiters    []waiter
	restarts   []*restart
	garbage    bool // something may be left over on the device
	collectAt  time.Time
}

func newLoop(ctx context.Context, a *Agent) *loop {
	l := &loop{
		Agent: a, ctx: ctx, log: a.o.Logger, p: plan.Policy{Monitor: a.o.Probation, LastLog: true}, sup: plan.NewSupervision(),
		revisions: revisions{map[string]plan.GoodRevision{}, map[digest.Digest]store.Bad{}, map[string]workload.ImageInfo{}, map[string]string{}},
		sight:     sight{look: true}, steps: steps{slots: make(chan struct{}, stepsAtOnce), long: map[string]context.CancelFunc{}},
		probers: map[string]prober{}, reading: map[string]bool{}, repairs: repairs{now: make(chan struct{}, 1)}, told: told{statuses: map[string]store.Status{}},
		admission: admission{passed: map[digest.Digest]bool{}, held: map[digest.Digest]plan.Trouble{}},
		disks:     disks{removedFirst: map[string]bool{}}, device: a.o.Capabilities, garbage: true,
		gate: gate{records: map[digest.Digest]store.Change{}, built: -1, counted: a.clock.Elapsed(), kept: a.clock.Elapsed()},
	}
	l.pull.progress, l.refill.progress = &a.progress, &a.refilling
	l.lookAtTrust()
	return l
}

// ring wakes the goroutine that waits for a channel with room for one, now or when it waits next.
func ring(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// background runs f beside the loop; Run waits for it.
func (l *loop) background(f func()) { l.wg.Go(f) }

// within runs f beside the loop, for limit at most.
func (l *loop) within(limit time.Duration, f func(context.Context)) {
	l.background(func() {
		ctx, cancel := context.WithTimeout(l.ctx, limit)
		defer cancel()
		f(ctx)
	})
}

// briefly is within, and waits a moment for the end of f; true: it has ended. Else the loop runs later after it. The loop must not wait for longer:
// what asks the agent waits for the loop.
func (l *loop) briefly(limit time.Duration, f func(context.Context), later func(*loop)) bool {
	done := make(chan struct{})
	l.within(limit, func(ctx context.Context) {
		defer close(done)
		f(ctx)
	})
	patience := time.NewTimer(observeWait)
	defer patience.Stop()
	select {
	case <-done:
		return true
	case <-patience.C:
	}
	l.background(func() {
		<-done
		l.send(later)
	})
	return false
}

// send brings a result to the loop, unless the agent is stopping.
func (l *loop) send(f func(*loop)) {
	select {
	case l.inbox <- f:
	case <-l.ctx.Done():
	}
}

// boot reads the saved state: no network.
func (l *loop) boot() error {
	err := l.readSaved()
	if err != nil {
		return fault.WithHint(err, "move agent.db away: the agent then starts anew and accepts the state that the registry holds, whatever its "+
			"generation: the protection against an older one begins anew")
	}
	if l.target != nil {
		l.sup.Generation = l.target.Generation
		l.targetDesired, l.damaged = l.intake.Load(l.ctx, *l.target, true)
	}
	if l.accepted != nil && (l.target == nil || l.accepted.Digest != l.target.Digest) && !l.held() {
		var err error
		if l.acceptedDesired, err = l.intake.Load(l.ctx, *l.accepted, true); err != nil {
			l.damaged = err
		}
	}
	if l.ctx.Err() != nil { // what could not be read for that is not damaged
		return nil
	}
	if l.damaged != nil && l.held() { // only the accepted state is fetched again
		l.log.Error("the generation that the device is held at is damaged; the hold ends", "generation", l.hold.Generation, "err", l.damaged)
		l.endHold()
		if err := l.o.Store.Update(func(tx *store.Tx) error { return errors.Join(tx.SetHold(nil), l.saveCommitted(tx)) }); err != nil {
			return err
		}
		l.acceptedDesired, l.damaged = l.intake.Load(l.ctx, *l.accepted, true)
	}
	if l.damaged != nil {
		l.log.Error("saved documents are damaged; what runs is left alone", "err", l.damaged)
	}
	if p := l.progressed; p != nil && p.Phase.Found() {
		l.found = foundIn(p) // until the first check has ended
	}
	if err := l.recall(); err != nil || l.ctx.Err() != nil {
		return err
	}
	l.recallEarly()
	l.rebuild()
	if err := l.countBoot(); err != nil { // containers run all the same
		l.log.Error("cannot count a boot before an update was complete", "err", err)
	}
	l.poll.first(l)
	return nil
}

// readSaved reads the saved state, and drops damaged records that the device can do without: it reports, or refuses, once more. A damaged hold
// stays a hold. Only damaged marks keep an agent from starting, and nothing is dropped then.
func (l *loop) readSaved() error {
	var damaged []store.Damage
	if err := l.o.Store.View(func(tx *store.Tx) error { damaged = tx.Damaged(); return nil }); err != nil {
		return err
	}
	if len(damaged) == 0 {
		return l.o.Store.View(l.read)
	}
	err := l.o.Store.Update(func(tx *store.Tx) error {
		for _, d := range damaged {
			if err := tx.Drop(d); err != nil {
				return err
			}
			if d.OfHold() {
				if err := l.keepHeld(tx); err != nil {
					return err
				}
			}
		}
		return l.read(tx)
	})
	if err == nil {
		for _, d := range damaged {
			l.log.Error("a damaged record is dropped", "err", d.Err)
		}
	}
	return err
}

// read reads what the loop keeps of the store in memory.
func (l *loop) read(tx *store.Tx) error {
	var errs []error
	for _, m := range slices.Sorted(maps.Keys(l.marks())) {
		errs = append(errs, into(func() (*store.State, error) { return tx.State(m) }, l.marks()[m]))
	}
	var statuses []store.Status
	var changes []store.Change
	errs = append(errs, into(tx.Refused, &l.refused), into(tx.Statuses, &statuses), into(tx.Fresh, &l.fresh), l.recallSecurity(tx), l.recallDecided(tx),
		into(tx.Lost, &l.replaced), into(tx.Hold, &l.hold), into(tx.Progress, &l.progressed), into(tx.Attempts, &l.attempts), into(tx.Changes, &changes))
	for _, s := range statuses {
		l.told.statuses[s.DeploymentID] = s
	}
	for _, c := range changes {
		l.gate.records[c.ID] = c
	}
	return errors.Join(errs...)
}

// into keeps what read returns.
func into[T any](read func() (T, error), to *T) (err error) {
	*to, err = read()
	return err
}

// run is the loop.
func (l *loop) run() {
	l.background(l.watch)
	l.background(l.reconcile)
	l.background(func() { l.sender.Run(l.ctx) })
	l.background(func() { l.publisher.Run(l.ctx) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-l.ctx.Done():
		case f := <-l.inbox:
			f(l)
			l.drain()
		case message := <-l.mismatches: // all share one record, so that they cannot displace other security events
			l.saveSecurity(l.newSecurityEvent(codes.MirrorDigest, "", 0, message))
		case <-timer.C:
		}
		if l.ctx.Err() != nil {
			if l.keepsWaits() {
				l.countWaits(l.o.Now())
				l.saveWaits()
			}
			return
		}
		l.pass()
		timer.Reset(l.pause())
	}
}

// drain takes what is in the inbox, so that one pass answers it all.
func (l *loop) drain() {
	for {
		select {
		case f := <-l.inbox:
			f(l)
		default:
			return
		}
	}
}

// pause is the time until something is due by itself. What cannot be done before the runtime or the store is back is not
// due: the loop would spin.
func (l *loop) pause() time.Duration {
	now := l.o.Now()
	next, others := l.sight.at, []time.Time{l.steps.wake, l.poll.due(l), l.trust.due(l), l.expiry(), l.gate.at, l.windows.at, l.foundDue()}
	if !l.disks.busy {
		others = append(others, l.disks.at)
	}
	if !l.admission.busy {
		others = append(others, l.admission.at)
	}
	if !l.gate.reading {
		others = append(others, l.gate.lockAt)
	}
	switch {
	case l.sight.looking != nil:
		next, others = l.sight.looking.due(now), []time.Time{l.poll.due(l)}
	case l.sight.blind != nil:
		next, others = l.sight.retryAt, []time.Time{l.poll.due(l)}
	case l.saving.err != nil:
		others = []time.Time{l.steps.wake, l.poll.due(l), l.saving.at}
	}
	others = append(others, l.poll.late(now), l.saving.securityAt)
	if l.canTake(now) || l.sight.look && l.sight.looking == nil && l.sight.blind == nil { // something happened during a slow look
		others = append(others, now)
	}
	if !l.machine.busy {
		others = append(others, l.machine.at)
	}
	if l.keepsWaits() {
		others = append(others, now.Add(keepEvery-(l.clock.Elapsed()-l.gate.kept)))
	}
	for _, p := range []*loading.Progress{&l.progress, &l.refilling} {
		_, _, stall := p.Stalls(now)
		others = append(others, stall)
	}
	for _, t := range others {
		if !t.IsZero() && t.Before(next) {
			next = t
		}
	}
	return max(next.Sub(now), time.Millisecond)
}

// expiry is when the running state becomes stale, or is not known to be fresh any more; zero: never, or it is.
func (l *loop) expiry() time.Time {
	var at time.Time
	if l.target != nil {
		at = l.target.Expires
	}
	if f := l.unfresh(); f != nil && (at.IsZero() || f.NotAfter.Before(at)) {
		at = f.NotAfter
	}
	if at.IsZero() || l.told.stale {
		return time.Time{}
	}
	return l.o.Now().Add(at.Sub(l.clock.Now()))
}

// pass compares what is desired with what is there and does the next steps. Everything is repeatable; whatever is
// interrupted here is found again by the next pass, or by the next process.
func (l *loop) pass() {
	now := l.o.Now()
	l.lookAtWindows(now)
	l.keepWaits(now)
	l.take(now)
	if l.observe(now) {
		l.findFloor()
		l.gateChanges(now)
		l.readLocks(now)
		if l.startAdmission(now) { // what is admitted may begin
			l.gateChanges(now)
			l.readLocks(now)
		}
		l.sup.Update(now, l.targetResolved, l.sight.seen, l.p)
		l.beginRestarts(now)
		saved := l.save(now)
		l.readLastLogs()
		l.act(now, saved)
		l.probe()
	}
	l.retrySecurity(now)
	l.poll.start(l, now)
	l.trust.start(l, now)
	l.pull.start(l, l.acceptedResolved)
	l.refill.start(l, l.lost())
	l.collect()
	l.makeRoom()
	l.removeEarly(now)
	l.lookAtDisks(now)
	l.lookAtMachine(now)
	l.listVolumes()
	l.publish(now) // first: who is answered looks at the status next
	l.answer()
}

// act does what the plan says. Without a saved state only what keeps containers running is done.
func (l *loop) act(now time.Time, saved bool) {
	l.giveUp()
	next := plan.Make(now, l.targetResolved, l.sight.seen, l.sup, l.p)
	l.steps.wake = next.Wake
	saved = l.saveAgain(next.Steps) && saved
	for _, st := range next.Steps {
		if !saved && st.Verb != plan.Start {
			continue
		}
		l.begin(st)
	}
}

// watch turns the runtime's events into looks.
func (l *loop) watch() {
	tries := 0
	for l.ctx.Err() == nil {
		events, err := l.o.Runtime.Events(l.ctx)
		if err == nil {
			tries = 0
			l.send(func(l *loop) { l.sight.look = true })
			for e := range events {
				l.send(func(l *loop) { l.event(e) })
			}
		}
		tries++
		l.send(func(l *loop) { l.sight.look = true })
		_ = delay.For(l.ctx, retry.Backoff(tries, 500*time.Millisecond, 15*time.Second))
	}
}

func (l *loop) event(e workload.Event) {
	if e.Kind != workload.EventExit || !l.stops(e.ID) {
		l.sight.look = true
	}
	if e.Kind == workload.EventLost {
		ring(l.repairs.now)
	}
	if e.Kind == workload.EventOOM {
		l.events.Emit(l.about(e.ID, status.Event{Kind: status.EventOOM}))
		d, c, x := l.targetResolved.Container(e.ID)
		if x != nil {
			l.log.Warn("a container ran out of memory", "deployment", d.Name, "component", c.Name, "service", x.Service.Name)
		}
	}
}

// stops reports whether the agent stops a container, or did since the last look: its exit is no news.
func (l *loop) stops(id string) bool {
	return l.sup.Busy[id] == plan.Stop || slices.ContainsFunc(l.sight.seen.Containers, func(o workload.Observation) bool { return o.ID == id && o.End == endReported })
}
