package containerd

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"time"

	apievents "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/workload"
)

const (
	// markTopic is for events that show that a subscription is active.
	markTopic = "/longshore/subscribed"
	markEvery = 100 * time.Millisecond
)

// Events sends exits and out-of-memory events of this device's containers, and changes that another program made to them, until
// ctx ends. When the connection to containerd is lost, workload.EventLost is sent and the channel is closed: the caller
// observes and calls Events again, which fails with fault.ErrTemporary until containerd is back. The caller reads until the
// channel is closed.
func (r *Runtime) Events(ctx context.Context) (<-chan workload.Event, error) {
	ctx = r.in(ctx)
	if err := r.claim.Hold(ctx); err != nil {
		return nil, err
	}
	if _, err := r.features.Version(ctx); err != nil { // a subscription alone would report a stopped containerd as lost events
		return nil, fmt.Errorf("subscribe to events: %w", failure.Classify(err))
	}
	ctx, cancel := context.WithCancel(ctx)
	ns := ",namespace==" + strconv.Quote(r.o.Namespace)
	var filters []string
	for _, topic := range []string{"/tasks/exit", "/tasks/oom", "/tasks/paused", "/containers/create", "/containers/update", "/containers/delete", markTopic} {
		filters = append(filters, "topic=="+strconv.Quote(topic)+ns)
	}
	envelopes, errs := r.client.Subscribe(ctx, filters...)
	out, begun := make(chan workload.Event), make(chan error, 1)
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		defer close(out)
		defer func() { // the library's reader has ended when its errors are closed
			cancel()
			for range errs {
			}
		}()
		if err := r.waitSubscribed(ctx, envelopes, errs); err != nil {
			begun <- err
			return
		}
		begun <- nil
		r.forward(ctx, envelopes, errs, out)
	}()
	if err := <-begun; err != nil {
		return nil, fmt.Errorf("subscribe to events: %w", failure.Classify(errgrpc.ToNative(err)))
	}
	return out, nil
}

// waitSubscribed waits until the subscription is active: containerd needs a moment, and events in between would be missed. It
// publishes an event of its own until that one is received.
func (r *Runtime) waitSubscribed(ctx context.Context, in <-chan *events.Envelope, errs <-chan error) error {
	mark := rand.Text()
	again := time.NewTicker(markEvery)
	defer again.Stop()
	for {
		if err := r.client.EventService().Publish(ctx, markTopic, &apievents.NamespaceUpdate{Name: mark}); err != nil {
			return err
		}
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case err := <-errs:
				return err
			case <-again.C:
				waiting = false
			case e := <-in: // an earlier event: the caller's next observation covers it
				v, err := typeurl.UnmarshalAny(e.Event)
				if m, ok := v.(*apievents.NamespaceUpdate); err == nil && ok && m.Name == mark {
					return nil
				}
			}
		}
	}
}

func (r *Runtime) forward(ctx context.Context, in <-chan *events.Envelope, errs <-chan error, out chan<- workload.Event) {
	send := func(e workload.Event) {
		select {
		case out <- e:
		case <-ctx.Done():
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-errs:
			if ctx.Err() == nil {
				r.log.Warn("the event stream from containerd broke", "error", err)
				send(workload.Event{Kind: workload.EventLost})
			}
			return
		case e := <-in:
			if ev, ok := r.translate(ctx, e); ok {
				send(ev)
			}
		}
	}
}

// translate drops events about containers of others.
func (r *Runtime) translate(ctx context.Context, e *events.Envelope) (workload.Event, bool) {
	v, err := typeurl.UnmarshalAny(e.Event)
	if err != nil {
		r.log.Warn("an event that cannot be read", "topic", e.Topic, "error", err)
		return workload.Event{}, false
	}
	var ev workload.Event
	switch t := v.(type) {
	case *apievents.TaskExit:
		if t.ID != t.ContainerID { // a probe's process
			return ev, false
		}
		ev = workload.Event{Kind: workload.EventExit, ID: t.ContainerID}
	case *apievents.TaskOOM:
		ev = workload.Event{Kind: workload.EventOOM, ID: t.ContainerID}
	case *apievents.TaskPaused: // we never pause
		ev = workload.Event{Kind: workload.EventChanged, ID: t.ContainerID}
	case interface{ GetID() string }: // ContainerCreate, ContainerUpdate, ContainerDelete
		ev = workload.Event{Kind: workload.EventChanged, ID: t.GetID()}
	default:
		return ev, false
	}
	if ev.Kind == workload.EventChanged && r.records.OwnChange(e.Topic, ev.ID) {
		return ev, false
	}
	ctr, err := r.client.ContainerService().Get(ctx, ev.ID)
	if errdefs.IsNotFound(err) {
		return ev, true // removed meanwhile; an extra event does no harm
	}
	return ev, err == nil && r.records.Ours(ctr) && ctr.Labels[owned.LabelHook] == ""
}
