package agent

import (
	"bytes"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

const (
	// publishPause is how long a change is kept back, so that those that follow at once are in the same current state.
	publishPause = 2 * time.Second
	// publishTime bounds one attempt.
	publishTime = 2 * time.Minute
	// maxSentence is how many bytes of a message go into a current state.
	maxSentence = 512
)

// publisher puts the device's current state into the registry: when something changes, and after an interval without a change. Only
// the newest means anything, so one that could not be published is dropped when there is a newer one. All of it but mu and what
// follows is of run alone.
type publisher struct {
	wake chan struct{}
	last *artifacts.CurrentState // that was numbered last, published or not; nil: none since the start
	due  time.Time               // when it is made once more although nothing has changed

	mu    sync.Mutex
	shown status.CurrentReport
}

func (p *publisher) run(ctx context.Context, a *Agent) {
	if a.o.Publisher == nil {
		return
	}
	for failures := 0; ctx.Err() == nil; {
		err := p.publish(ctx, a, failures > 0)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			if failures > 0 {
				a.o.Logger.Info("the registry takes the current state again")
			}
			failures = 0
			p.idle(ctx, a)
			continue
		}
		if failures++; failures == 1 {
			a.o.Logger.Warn("the registry does not take the current state; it is tried again", "to", a.o.Publisher.Name(), "err", err)
		}
		pause := clock.Backoff(failures, time.Second, longest(a.o.PublishInterval))
		pause = max(time.Duration(float64(pause)*(1-pollJitter/2+pollJitter*a.o.Random())), asked(err))
		p.note(func(s *status.CurrentReport) { s.LastError, s.NextTry = err.Error(), a.o.Now().Add(pause) })
		wait(ctx, pause)
	}
}

// publish brings the newest current state, if it is not there; failed: the last one may not be.
func (p *publisher) publish(ctx context.Context, a *Agent, failed bool) error {
	made, err := p.make(ctx, a)
	switch {
	case err != nil:
		return err
	case made != nil:
		p.last = made
		p.due = a.o.Now().Add(time.Duration(float64(a.o.PublishInterval) * (1 - pollJitter*a.o.Random())))
	case p.last == nil || !failed:
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, publishTime)
	defer cancel()
	if err := a.o.Publisher.Publish(limited, p.last); err != nil {
		return err
	}
	now, next := a.o.Now(), p.due
	if a.o.PublishInterval <= 0 {
		next = time.Time{}
	}
	p.note(func(s *status.CurrentReport) {
		*s = status.CurrentReport{Counter: p.last.Counter, At: now, NextDue: next}
	})
	return nil
}

// make has the loop make a current state; nil: it would say nothing new, and the last is not due once more.
func (p *publisher) make(ctx context.Context, a *Agent) (*artifacts.CurrentState, error) {
	type answer struct {
		made *artifacts.CurrentState
		err  error
	}
	reply := make(chan answer, 1)
	due := a.o.PublishInterval > 0 && p.last != nil && !a.o.Now().Before(p.due)
	select {
	case a.inbox <- func(l *loop) {
		made, err := l.currentState(p.last, due)
		reply <- answer{made, err}
	}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case r := <-reply:
		return r.made, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// idle waits for a change, and a moment longer, or for the interval to end.
func (p *publisher) idle(ctx context.Context, a *Agent) {
	var again <-chan time.Time
	if a.o.PublishInterval > 0 && p.last != nil {
		timer := time.NewTimer(p.due.Sub(a.o.Now()))
		defer timer.Stop()
		again = timer.C
	}
	select {
	case <-ctx.Done():
	case <-again:
	case <-p.wake:
		wait(ctx, publishPause)
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (p *publisher) note(edit func(*status.CurrentReport)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	edit(&p.shown)
}

// status completes a status with how the current state is published.
func (p *publisher) status(a *Agent, s *status.Status) {
	if a.o.Publisher == nil {
		return
	}
	p.mu.Lock()
	shown := p.shown
	p.mu.Unlock()
	shown.Reference = a.o.Publisher.Name()
	s.CurrentReport = &shown
	if _, down := a.downtime(s.Now); shown.LastError == "" || down {
		return
	}
	s.Problems = append(slices.Clone(s.Problems), status.Problem{
		Code: codes.ReportUnpublished, Message: "the current state is not in the registry: " + shown.LastError,
		Doing: "next try " + until(shown.NextTry.Sub(s.Now)), Hint: codes.Explain(codes.ReportUnpublished).Action, Since: shown.At,
	})
}

// nudge wakes the sender and the publisher: there may be something new.
func (l *loop) nudge() {
	ring(l.sender.wake)
	ring(l.publisher.wake)
}

// ring wakes the goroutine that waits for a channel with room for one, now or when it waits next.
func ring(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// currentState makes the device's current state and gives it the next numbers, on the disk before anybody else sees them. nil: it is
// as in last and not due, or the device has not looked at its containers since the agent started.
func (l *loop) currentState(last *artifacts.CurrentState, due bool) (*artifacts.CurrentState, error) {
	if !l.reported {
		return nil, nil
	}
	c := &artifacts.CurrentState{
		Device: l.o.Device, Epoch: l.o.Store.Epoch(), BootID: l.o.BootID, Every: uint64(l.o.PublishInterval / time.Second), Repository: l.o.Repository,
		Accepted: currentGeneration(l.accepted), Running: currentGeneration(l.running()), Committed: currentGeneration(l.committed),
		Deployments: []artifacts.CurrentDeployment{},
	}
	if r := l.refused; r != nil {
		c.Refused = &artifacts.CurrentRefusal{Generation: r.Generation, Digest: r.Digest, Code: r.Code, Message: status.Cut(r.Message, maxSentence), Since: r.Since.UTC()}
	}
	for _, d := range status.ByName(l.reportedStatus) {
		c.Deployments = append(c.Deployments, l.currentDeployment(d))
	}
	err := l.o.Store.View(func(tx *store.Tx) (err error) {
		turned, err := tx.Transitions()
		if err == nil {
			c.Capabilities, err = l.capabilitiesBody(tx, &turned)
		}
		return err
	})
	if err != nil || !due && last != nil && sameCurrent(last, c) {
		return nil, err
	}
	if err := l.o.Store.Update(func(tx *store.Tx) (err error) {
		c.Counter, c.Sequence, err = tx.NumberCurrent()
		return err
	}); err != nil {
		return nil, fmt.Errorf("number the current state: %w", err)
	}
	c.Time = l.o.Now().UTC().Truncate(time.Second)
	return c, nil
}

// sameCurrent compares everything but numbers and the time.
func sameCurrent(a, b *artifacts.CurrentState) bool {
	x := *a
	x.Counter, x.Sequence, x.Time = b.Counter, b.Sequence, b.Time
	x.Capabilities = b.Capabilities
	return bytes.Equal(a.Capabilities, b.Capabilities) && reflect.DeepEqual(&x, b)
}

func currentGeneration(s *store.State) *artifacts.CurrentGeneration {
	if s == nil {
		return nil
	}
	return &artifacts.CurrentGeneration{Generation: s.Generation, Digest: s.Digest}
}

func (l *loop) currentDeployment(s store.Status) artifacts.CurrentDeployment {
	d := artifacts.CurrentDeployment{
		ID: s.DeploymentID, Name: s.Name, Generation: s.Generation, State: s.State, Since: s.Since.UTC(), Error: cutError(plan.OverallError(s)),
		Components: []artifacts.CurrentComponent{},
	}
	for _, x := range s.Components {
		c := artifacts.CurrentComponent{Name: x.Name, Revision: x.Revision, State: x.State, Since: x.Since.UTC(), Error: cutError(x.Error), Images: l.runningImages(s.DeploymentID, x.Name)}
		for _, from := range []*plan.Desired{l.targetResolved, l.acceptedResolved} {
			if p := from.Deployment(s.DeploymentID).Component(x.Name); p != nil && p.Identity == x.Identity && c.Digest == "" {
				c.Digest = p.Digest
			}
		}
		d.Components = append(d.Components, c)
	}
	return d
}

// runningImages are the images of a component's containers that run, of old and new ones during an update.
func (l *loop) runningImages(deployment, component string) []artifacts.CurrentImage {
	out := []artifacts.CurrentImage{}
	for _, o := range l.seen.Containers {
		if o.Deployment != deployment || o.Component != component || o.Status != workload.Running {
			continue
		}
		i := slices.IndexFunc(out, func(x artifacts.CurrentImage) bool { return x.Image == o.Image })
		if i < 0 {
			out = append(out, artifacts.CurrentImage{Image: o.Image})
			i = len(out) - 1
		}
		out[i].Containers++
	}
	slices.SortFunc(out, func(a, b artifacts.CurrentImage) int { return strings.Compare(a.Image, b.Image) })
	return out
}

func cutError(e *margo.StatusError) *margo.StatusError {
	if e == nil {
		return nil
	}
	return &margo.StatusError{Code: e.Code, Source: status.Cut(e.Source, maxSentence), Message: status.Cut(e.Message, maxSentence)}
}

// Publisher puts a device's current state where it can be read without a fleet endpoint.
type Publisher interface {
	// Name is where to, for people.
	Name() string
	// Publish signs and puts it. Whatever the error, it is tried again, after fault.RetryAfter where it is set. The same one twice is no error.
	Publish(ctx context.Context, c *artifacts.CurrentState) error
}
