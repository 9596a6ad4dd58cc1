package agent

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Agent keeps one device at its desired state. Make it with [New], run it with [Agent.Run], once; the other methods may be
// called from any goroutine while it runs.
type Agent struct {
	o            Options
	self         string // what refusals depend on and stays while the agent runs
	verdicts     verdicts
	translations translations
	clock        *clock.Clock
	proven       atomic.Bool      // clock knows what is not kept yet
	mail         chan func(*loop) // to the loop, which owns all that changes
	status       atomic.Pointer[Status]
	progress     progress
	events       *eventRing
	tables       atomic.Pointer[[]ContainerStatus]
	counts       counts
	pump         pump
	started      atomic.Bool
	done         chan struct{} // closed when Run returns
}

// New checks the options. It asks neither the network nor the runtime.
func New(o Options) (*Agent, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	a := &Agent{o: o, mail: make(chan func(*loop), 64), done: make(chan struct{}), events: newEventRing(o.Now)}
	capabilities, err := o.Capabilities.Encode()
	if err != nil {
		return nil, fmt.Errorf("agent: option Capabilities: %w", err)
	}
	a.self = hashOf(o.Version, string(capabilities), o.Platform, o.RequirePins, o.Device, o.Repository, o.Tag)
	if a.clock = o.Clock; a.clock == nil {
		start := o.Now()
		a.clock = clock.New(o.Now, func() time.Duration { return o.Now().Sub(start) })
	}
	a.clock.Prove(clock.Proof{Kind: clock.Build, Time: o.Built})
	if err := a.recallTimes(); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	a.pump.wake = make(chan struct{}, 1)
	a.status.Store(&Status{Device: string(o.Device), Repository: o.Repository, Tag: o.Tag, Version: o.Version, Epoch: o.Store.Epoch(), Phase: PhaseEmpty, Security: []SecurityEvent{}})
	return a, nil
}

// fingerprint names all that a refusal depends on beside the state: this program, its configuration and the trust policy.
func (a *Agent) fingerprint() string { return a.self + "/" + a.o.Fingerprint() }

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
	if err == nil {
		l.run()
	}
	cancel()
	l.wait()
	return err
}

// Status tells how the device is. It never waits for anything.
func (a *Agent) Status() Status {
	s := *a.status.Load()
	s.Now = a.o.Now()
	s.Loading = a.progress.status()
	a.outbox(&s)
	return s
}

// Sync checks the registry now and waits for the outcome: also for a new generation to run, as long as ctx lasts.
func (a *Agent) Sync(ctx context.Context) (SyncResult, error) {
	reply := make(chan SyncResult, 1)
	select {
	case a.mail <- func(l *loop) { l.sync(reply) }:
	case <-a.done:
		return SyncResult{}, errStopped
	case <-ctx.Done():
		return SyncResult{}, ctx.Err()
	}
	select {
	case r := <-reply:
		return r, nil
	case <-a.done:
		return SyncResult{}, errStopped
	case <-ctx.Done():
		return SyncResult{}, ctx.Err()
	}
}

var errStopped = fault.WithHint(errors.Join(errors.New("the agent is stopping"), fault.ErrTemporary), "try again in a moment")
