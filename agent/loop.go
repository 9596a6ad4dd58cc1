package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

const (
	stepsAtOnce = 8 // steps in progress, but for stops, which mostly wait
)

// loop is the one goroutine that owns what changes: everything here is touched only by functions that it runs. Work that
// waits (checks, pulls, steps, probes) runs beside it and comes back to its inbox.
type loop struct {
	*Agent
	ctx context.Context
	wg  sync.WaitGroup
	log *slog.Logger
	p   plan.Policy

	// The states, and for those that are not done yet what they ask for and what [plan.Resolve] makes of that. acceptedDesired and
	// acceptedResolved are nil once the accepted state is the target.
	accepted, target, committed, lastGood *store.State
	targetDesired, targetResolved         *plan.Desired
	acceptedDesired, acceptedResolved     *plan.Desired
	rebuilt                               int // how often the resolved ones were made
	refused                               *store.Refused

	reportedStatus    map[string]store.Status      // what was last reported, by deployment
	reportedConflicts map[string]string            // why start-first is done as stop-first, by project and service
	good              map[string]plan.GoodRevision // by deployment id
	bad               map[digest.Digest]store.Bad
	images            map[string]workload.ImageInfo // of pulled images, by name; saved with the target
	admission         admission
	restarting        map[string]string        // as saved, of sup.Restarting
	reading           map[string]bool          // containers whose last log lines are being read
	damaged           error                    // why the target or the accepted state is not loaded
	replaced          *store.Lost              // a damaged database, until a state is accepted; nil: none
	stale             bool                     // as last reported
	fresh             *store.Fresh             // of the accepted state; nil: nothing is known
	doubt             *clock.Doubt             // as last looked at
	security          []status.SecurityEvent   // that are kept, the last at the end
	reported          bool                     // capabilities, since the start
	device            margo.DeviceCapabilities // as last seen

	sup             *plan.Supervision
	seen            workload.Observed
	look            bool // observe before the next plan
	looking         *lookout
	ended           int // steps that ended, since the start
	blind           error
	blindTry        int
	unsaved         error // the store could not be written
	observed        bool  // the runtime answered, since the start
	slots           chan struct{}
	longStarts      map[string]context.CancelFunc // by container id: starts in progress that may take long
	probers         map[string]prober
	wake            time.Time // from the last plan
	lookAt          time.Time
	retryAt         time.Time        // of the runtime, while blind
	saveAt          time.Time        // of the store, while something is unsaved
	unsavedSecurity []*securityEvent // that could not be saved yet
	securityAt      time.Time        // of them; zero: there are none

	reconcileNow chan struct{} // to wake the reconciler of networks now
	unrepaired   error         // what that reconciler could not repair
	unrepairedAt time.Time

	poll       poll
	found      found           // what a check is looking at
	foundTold  found           // as last reported
	progressed *store.Progress // as saved, but for what a short check looks at; nil: none
	loaded     loaded          // as last reported
	attempts   *store.Attempts // as saved; nil: none

	trust     trusting
	pull      pulling // of the images of the accepted state
	refill    pulling // of images of target that were lost
	disks     disks
	machine   machineLook
	gate      gate
	windows   windows
	hold      *store.Hold // nil: none
	volumes   volumes
	waiters   []waiter
	garbage   bool // something may be left over on the device
	collectAt time.Time
}

func newLoop(ctx context.Context, a *Agent) *loop {
	l := &loop{
		Agent: a, ctx: ctx, log: a.o.Logger, p: plan.NewPolicy(a.o.RestartMax, a.o.StepRetryMax, a.o.Probation), sup: plan.NewSupervision(), reportedStatus: map[string]store.Status{},
		look: true, slots: make(chan struct{}, stepsAtOnce), probers: map[string]prober{}, garbage: true,
		reconcileNow: make(chan struct{}, 1), good: map[string]plan.GoodRevision{}, bad: map[digest.Digest]store.Bad{}, images: map[string]workload.ImageInfo{},
		admission: newAdmission(), restarting: map[string]string{}, reading: map[string]bool{}, longStarts: map[string]context.CancelFunc{}, device: a.o.Capabilities,
		gate: gate{records: map[digest.Digest]store.Change{}, built: -1, counted: a.clock.Elapsed(), kept: a.clock.Elapsed()},
	}
	l.pull.progress, l.refill.progress = &a.progress, &a.refilling
	l.lookAtTrust()
	return l
}

// background runs f beside the loop; Run waits for it.
func (l *loop) background(f func()) { l.wg.Go(f) }

// send brings a result to the loop, unless the agent is stopping.
func (l *loop) send(f func(*loop)) {
	select {
	case l.inbox <- f:
	case <-l.ctx.Done():
	}
}

func (l *loop) wait() { l.wg.Wait() }

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
	var errs [10]error
	l.accepted, errs[0] = tx.State(store.Accepted)
	l.target, errs[1] = tx.State(store.Target)
	l.committed, errs[2] = tx.State(store.Committed)
	l.lastGood, errs[3] = tx.State(store.LastGood)
	l.refused, errs[4] = tx.Refused()
	statuses, err := tx.Statuses()
	errs[5] = err
	for _, s := range statuses {
		l.reportedStatus[s.DeploymentID] = s
	}
	l.fresh, errs[6] = tx.Fresh()
	errs[7] = errors.Join(l.recallSecurity(tx), l.recallDecided(tx))
	l.replaced, errs[8] = tx.Lost()
	l.hold, err = tx.Hold()
	errs[8] = errors.Join(errs[8], err)
	l.progressed, errs[9] = tx.Progress()
	l.attempts, err = tx.Attempts()
	errs[9] = errors.Join(errs[9], err)
	changes, err := tx.Changes()
	for _, c := range changes {
		l.gate.records[c.ID] = c
	}
	return errors.Join(errors.Join(errs[:]...), err)
}

// run is the loop.
func (l *loop) run() {
	l.background(l.watch)
	l.background(l.reconcile)
	l.background(func() { l.sender.run(l.ctx, l.Agent) })
	l.background(func() { l.publisher.run(l.ctx, l.Agent) })
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
	next, others := l.lookAt, []time.Time{l.wake, l.poll.due(l), l.trust.due(l), l.expiry(), l.admission.due(), l.gate.at, l.gate.lockDue(), l.windows.at, l.foundDue()}
	if !l.disks.busy {
		others = append(others, l.disks.at)
	}
	switch {
	case l.looking != nil:
		next, others = l.looking.due(now), []time.Time{l.poll.due(l)}
	case l.blind != nil:
		next, others = l.retryAt, []time.Time{l.poll.due(l)}
	case l.unsaved != nil:
		others = []time.Time{l.wake, l.poll.due(l), l.saveAt}
	}
	others = append(others, l.poll.late(now), l.securityAt)
	if l.canTake(now) {
		others = append(others, now)
	}
	if !l.machine.busy {
		others = append(others, l.machine.at)
	}
	if l.keepsWaits() {
		others = append(others, now.Add(keepEvery-(l.clock.Elapsed()-l.gate.kept)))
	}
	for _, p := range []*progress{&l.progress, &l.refilling} {
		_, _, stall := p.stalls(now)
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
	if at.IsZero() || l.stale {
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
		l.sup.Update(now, l.targetResolved, l.seen, l.p)
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
	next := plan.Make(now, l.targetResolved, l.seen, l.sup, l.p)
	l.wake = next.Wake
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
			l.send(func(l *loop) { l.look = true })
			for e := range events {
				l.send(func(l *loop) { l.event(e) })
			}
		}
		tries++
		l.send(func(l *loop) { l.look = true })
		wait(l.ctx, clock.Backoff(tries, 500*time.Millisecond, 15*time.Second))
	}
}

func (l *loop) event(e workload.Event) {
	l.look = true
	if e.Kind == workload.EventLost {
		ring(l.reconcileNow)
	}
	if e.Kind == workload.EventOOM {
		l.events.Emit(l.about(e.ID, status.Event{Kind: status.EventOOM}))
		d, c, x := l.targetResolved.Container(e.ID)
		if x != nil {
			l.log.Warn("a container ran out of memory", "deployment", d.Name, "component", c.Name, "service", x.Service.Name)
		}
	}
}
