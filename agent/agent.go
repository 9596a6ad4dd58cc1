package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/currentstate"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/loading"
	"github.com/longshore-dev/longshore/agent/outbox"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/window"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Agent keeps one device at its desired state. Make it with [New], run it with [Agent.Run], once; the other methods may be
// called from any goroutine while it runs.
type Agent struct {
	o           Options
	intake      *intake.Intake
	clock       *clock.Clock
	times       *intake.Times // what was proven of the time
	windowTimes window.Times
	inbox       chan func(*loop) // to the loop, which owns all that changes
	mismatches  chan string      // of mirrors, which the loop has not seen yet
	status      atomic.Pointer[status.Status]
	progress    loading.Progress // of the images of the accepted generation
	refilling   loading.Progress // of those that were lost
	events      *status.Ring
	tables      atomic.Pointer[[]status.Container]
	counts      counts
	sender      *outbox.Sender
	publisher   *currentstate.Sender
	started     atomic.Bool
	done        chan struct{} // closed when Run returns
}

// New checks the options. It asks neither the network nor the runtime.
func New(o Options) (*Agent, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	a := &Agent{o: o, inbox: make(chan func(*loop), 64), mismatches: make(chan string, maxMismatches), done: make(chan struct{}), events: status.NewRing(o.Now)}
	if a.clock = o.Clock; a.clock == nil {
		start := o.Now()
		a.clock = clock.New(o.Now, func() time.Duration { return o.Now().Sub(start) })
	}
	a.windowTimes = window.Times{Believed: a.clock, Device: o.Now}
	a.clock.Prove(clock.Proof{Kind: clock.Build, Time: o.Built})
	a.times = intake.NewTimes(a.clock)
	if err := a.times.Recall(o.Store); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	var err error
	a.intake, err = intake.New(intake.Options{
		Device: o.Device, Repository: o.Repository, Tag: o.Tag, Capabilities: o.Capabilities, Platform: o.Platform, RequirePins: o.RequirePins,
		Version: o.Version, Fingerprint: o.Fingerprint, Store: o.Store, Source: o.Source, Verifier: o.Verifier, Trust: o.Trust, Fresher: o.Fresher,
		Content: o.Content, Times: a.times, Now: o.Now,
	})
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	a.progress.Now, a.refilling.Now = o.Now, o.Now
	a.sender = outbox.New(outbox.Options{
		Store: o.Store, Reporter: o.Reporter, ReportInterval: o.ReportInterval, FullInterval: o.FullInterval,
		Downtime: a.downtime, Recap: a.recap, Logger: o.Logger, Now: o.Now, Random: o.Random,
	})
	a.publisher = currentstate.New(currentstate.Options{
		Publisher: o.Publisher, Interval: o.PublishInterval, Make: a.makeCurrentState,
		Downtime: a.downtime, Logger: o.Logger, Now: o.Now, Random: o.Random,
	})
	a.status.Store(&status.Status{Device: string(o.Device), Repository: o.Repository, Tag: o.Tag, Manager: o.Manager, Version: o.Version, Epoch: o.Store.Epoch(), Phase: status.PhaseEmpty, Security: []status.SecurityEvent{}, KeptVolumes: []status.Volume{}})
	return a, nil
}

// Run keeps the device at its desired state until ctx ends. Then it returns nil, with every goroutine ended and every
// workload left running. Another error means that the saved state cannot be used: nothing was touched.
func (a *Agent) Run(ctx context.Context) error {
	if a.started.Swap(true) {
		return errors.New("agent: run twice")
	}
	defer close(a.done)
	ctx, cancel := context.WithCancel(ctx)
	l := newLoop(ctx, a)
	err := l.boot()
	if err == nil && ctx.Err() == nil {
		l.run()
	}
	cancel()
	l.wg.Wait()
	return err
}

// Status returns the status of the device. It never waits.
func (a *Agent) Status() status.Status {
	s := *a.status.Load()
	s.Now = a.o.Now()
	s.Loading = a.progress.Status()
	if s.Progress = s.Progress.Loads(s.Loading); s.Loading == nil {
		s.Loading = a.refilling.Status()
	}
	a.sender.Status(&s)
	a.publisher.Status(&s)
	return s
}

// Sync checks the registry now and waits for the outcome: also for a new generation to run, as long as ctx lasts.
func (a *Agent) Sync(ctx context.Context) (status.SyncResult, error) {
	return await(ctx, a, (*loop).sync)
}

// await has the loop begin something, and returns its outcome, for which reply has room.
func await[T any](ctx context.Context, a *Agent, begin func(l *loop, reply chan<- T)) (out T, err error) {
	reply := make(chan T, 1)
	select {
	case a.inbox <- func(l *loop) { begin(l, reply) }:
	case <-a.done:
		return out, errStopped
	case <-ctx.Done():
		return out, ctx.Err()
	}
	select {
	case out = <-reply:
		return out, nil
	case <-a.done:
		return out, errStopped
	case <-ctx.Done():
		return out, ctx.Err()
	}
}

// ask runs f in the loop and returns what it returns.
func ask[T any](ctx context.Context, a *Agent, f func(*loop) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	r, err := await(ctx, a, func(l *loop, reply chan<- answer) {
		value, err := f(l)
		reply <- answer{value, err}
	})
	return r.value, cmp.Or(err, r.err)
}

var errStopped = fault.WithHint(errors.Join(errors.New("the agent is stopping"), fault.ErrTemporary), "try again in a moment")
