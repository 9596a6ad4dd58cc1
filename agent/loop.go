package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	observeLimit = 30 * time.Second // of one look at the runtime
	observeEvery = 2 * time.Minute  // without any event, in case one was lost
	stepsAtOnce  = 8                // steps in progress, but for stops, which mostly wait
)

// loop is the one goroutine that owns what changes: everything here is touched only by functions that it runs. Work that
// waits (checks, pulls, steps, probes) runs beside it and comes back as mail.
type loop struct {
	*Agent
	ctx context.Context
	wg  sync.WaitGroup
	log *slog.Logger
	p   Policy

	accepted, running, committed, lastGood *store.State
	refused                                *store.Refused
	before                                 map[string]store.Status // what was last reported, by deployment
	wanted, coming                         *Desired                // what the states that are applied and accepted ask for
	target, next                           *Desired                // what [realise] makes of them
	composed                               int                     // how often
	told                                   map[string]string
	good                                   map[string]goodRevision // by deployment id
	bad                                    map[digest.Digest]store.Bad
	facts                                  map[string]imageFact // by image name
	inspecting                             bool
	inspectAt                              time.Time // not before
	admission                              admission
	again                                  map[string]string // as saved, of sup.Again
	hearing                                map[string]bool   // containers whose last words are being read
	damaged                                error             // why target or next is not loaded although it is accepted
	stale                                  bool              // as last reported
	fresh                                  *store.Fresh      // of the accepted state; nil: nothing is known
	doubt                                  *clock.Doubt      // as last looked at
	security                               []SecurityEvent   // that are kept, the last at the end
	reported                               bool              // capabilities, since the start

	sup      *Supervision
	seen     workload.Observed
	look     bool // observe before the next plan
	blind    error
	blindTry int
	unsaved  error // the store could not be written
	observed bool  // the runtime answered, since the start
	slots    chan struct{}
	probers  map[string]prober
	wake     time.Time // from the last plan
	lookAt   time.Time
	retryAt  time.Time // of the runtime, while blind
	saveAt   time.Time // of the store, while something is unsaved

	mend       chan struct{} // to call the mender now
	unmended   error         // what the mender could not repair
	unmendedAt time.Time

	poll    poll
	trust   trusting
	pull    pulling
	waiters []waiter
	tidy    bool // something may be left over on the device
	tidyAt  time.Time
}

func newLoop(ctx context.Context, a *Agent) *loop {
	l := &loop{
		Agent: a, ctx: ctx, log: a.o.Logger, p: a.o.policy(), sup: NewSupervision(), before: map[string]store.Status{},
		look: true, slots: make(chan struct{}, stepsAtOnce), probers: map[string]prober{}, tidy: true,
		mend: make(chan struct{}, 1), good: map[string]goodRevision{}, bad: map[digest.Digest]store.Bad{}, facts: map[string]imageFact{},
		admission: newAdmission(), again: map[string]string{}, hearing: map[string]bool{},
	}
	l.lookAtTrust()
	return l
}

// spawn runs f beside the loop; Run waits for it.
func (l *loop) spawn(f func()) { l.wg.Go(f) }

// post brings a result to the loop, unless the agent is stopping.
func (l *loop) post(f func(*loop)) {
	select {
	case l.mail <- f:
	case <-l.ctx.Done():
	}
}

func (l *loop) wait() { l.wg.Wait() }

// boot reads the saved state: no network.
func (l *loop) boot() error {
	if err := l.repair(); err != nil {
		return err
	}
	err := l.o.Store.View(func(tx *store.Tx) error {
		var errs [8]error
		l.accepted, errs[0] = tx.State(store.Accepted)
		l.running, errs[1] = tx.State(store.Target)
		l.committed, errs[2] = tx.State(store.Committed)
		l.lastGood, errs[3] = tx.State(store.LastGood)
		l.refused, errs[4] = tx.Refused()
		statuses, err := tx.Statuses()
		errs[5] = err
		for _, s := range statuses {
			l.before[s.DeploymentID] = s
		}
		l.fresh, errs[6] = tx.Fresh()
		errs[7] = l.recallSecurity(tx)
		return errors.Join(errs[:]...)
	})
	if err != nil {
		return fault.WithHint(err, "move agent.db away: the agent then starts anew and accepts the state that the registry holds, whatever its "+
			"generation: the protection against an older one begins anew")
	}
	if l.running != nil {
		l.wanted, l.damaged = l.load(l.ctx, *l.running, true)
	}
	if l.accepted != nil && (l.running == nil || l.accepted.Digest != l.running.Digest) {
		var err error
		if l.coming, err = l.load(l.ctx, *l.accepted, true); err != nil {
			l.damaged = err
		}
	}
	if l.damaged != nil {
		l.log.Error("saved documents are damaged; what runs is left alone", "err", l.damaged)
	}
	if err := l.recall(); err != nil {
		return err
	}
	l.recompose()
	l.poll.first(l)
	return nil
}

// repair drops damaged records that the device can do without: it reports, or refuses, once more. Only damaged marks keep an
// agent from starting, and it does not touch the file then.
func (l *loop) repair() error {
	var damaged []store.Damage
	if err := l.o.Store.View(func(tx *store.Tx) error { damaged = tx.Damaged(); return nil }); err != nil || len(damaged) == 0 {
		return err
	}
	for _, d := range damaged {
		l.log.Error("a damaged record is dropped", "err", d.Err)
	}
	return l.o.Store.Update(func(tx *store.Tx) error {
		for _, d := range damaged {
			if err := tx.Drop(d); err != nil {
				return err
			}
		}
		return nil
	})
}

// run is the loop.
func (l *loop) run() {
	l.spawn(l.watch)
	l.spawn(l.mending)
	l.spawn(func() { l.pump.run(l.ctx, l.Agent) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-l.ctx.Done():
			return
		case f := <-l.mail:
			f(l)
			l.drain()
		case <-timer.C:
		}
		if l.ctx.Err() != nil {
			return
		}
		l.pass()
		timer.Reset(l.pause())
	}
}

// drain takes the mail that is there, so that one pass answers it all.
func (l *loop) drain() {
	for {
		select {
		case f := <-l.mail:
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
	next, others := l.lookAt, []time.Time{l.wake, l.poll.due(), l.trust.due(l), l.expiry(), l.admission.due(), l.inspectAt}
	switch {
	case l.blind != nil:
		next, others = l.retryAt, []time.Time{l.poll.due()}
	case l.unsaved != nil:
		others = []time.Time{l.wake, l.poll.due(), l.saveAt}
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
	if l.running != nil {
		at = l.running.Expires
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
	if l.observe(now) {
		l.seekRoom(now)
		l.sup.update(now, l.target, l.seen, l.p)
		saved := l.save(now)
		l.listen()
		l.act(now, saved)
		l.probe()
	}
	l.poll.start(l, now)
	l.trust.start(l, now)
	l.pull.start(l)
	l.inspect(now)
	l.collect()
	l.makeRoom()
	l.publish(now) // first: who is answered looks at the status next
	l.answer()
}

// observe brings l.seen up to date when something may have changed; false: the runtime does not answer.
func (l *loop) observe(now time.Time) bool {
	if l.blind != nil && now.Before(l.retryAt) {
		return false
	}
	if !l.look && l.blind == nil && now.Before(l.lookAt) && (l.wake.IsZero() || now.Before(l.wake)) {
		return true
	}
	ctx, cancel := context.WithTimeout(l.ctx, observeLimit)
	defer cancel()
	seen, err := l.o.Runtime.Observe(ctx)
	if err != nil {
		if l.ctx.Err() == nil && l.blind == nil {
			l.log.Error("the runtime does not answer; containers run on without supervision", "err", err)
			l.events.Emit(Event{Kind: EventRuntime, Code: CodeRuntime, Message: err.Error()})
		}
		l.blind = err
		l.blindTry++
		l.retryAt = now.Add(backoff(l.blindTry, 500*time.Millisecond, 15*time.Second))
		return false
	}
	if l.blind != nil {
		l.log.Info("the runtime answers again")
		l.events.Emit(Event{Kind: EventRuntime})
	}
	l.blind, l.blindTry, l.observed = nil, 0, true
	l.noticed(l.seen, seen)
	l.seen, l.look, l.lookAt = seen, false, now.Add(cmp.Or(l.o.LookEvery, observeEvery))
	return true
}

// act does what the plan says. Without a saved state only what keeps containers running is done.
func (l *loop) act(now time.Time, saved bool) {
	plan := Plan(now, l.target, l.seen, l.sup, l.p)
	l.wake = plan.Wake
	saved = l.saveAgain(plan.Steps) && saved
	for _, st := range plan.Steps {
		if !saved && st.Verb != Start {
			continue
		}
		l.sup.Busy[st.Subject()] = true
		l.spawn(func() { l.step(st) })
	}
}

// watch turns the runtime's events into looks.
func (l *loop) watch() {
	tries := 0
	for l.ctx.Err() == nil {
		events, err := l.o.Runtime.Events(l.ctx)
		if err == nil {
			tries = 0
			l.post(func(l *loop) { l.look = true })
			for e := range events {
				l.post(func(l *loop) { l.event(e) })
			}
		}
		tries++
		l.post(func(l *loop) { l.look = true })
		select {
		case <-l.ctx.Done():
		case <-time.After(backoff(tries, 500*time.Millisecond, 15*time.Second)):
		}
	}
}

func (l *loop) event(e workload.Event) {
	l.look = true
	if e.Kind == workload.EventLost {
		l.mendNow()
	}
	if e.Kind == workload.EventOOM {
		l.events.Emit(l.about(e.ID, Event{Kind: EventOOM}))
		d, c, x := l.target.container(e.ID)
		if x != nil {
			l.log.Warn("a container ran out of memory", "deployment", d.Name, "component", c.Name, "service", x.Service.Name)
		}
	}
}
