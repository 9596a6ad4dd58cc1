package agent

import (
	"context"
	"time"

	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/delay"
)

// prober asks one run of one container, again and again.
type prober struct {
	run    string
	cancel context.CancelFunc
}

// earlyProbe is the first pause between probes of a container that starts: it doubles up to the check's interval, so that
// what waits for a healthy container does not wait for the interval. Only good answers count before that.
const earlyProbe = 250 * time.Millisecond

// probe starts and ends probers so that exactly the running containers with a health check have one.
func (l *loop) probe() {
	wanted := map[string]bool{}
	for id, s := range l.sup.Containers {
		if s.Run == "" || s.Health == "" {
			continue
		}
		wanted[id] = true
		if p, ok := l.probers[id]; ok {
			if p.run == s.Run {
				continue
			}
			p.cancel()
		}
		_, _, c := l.targetResolved.Container(id)
		if c == nil {
			continue
		}
		ctx, cancel := context.WithCancel(l.ctx)
		l.probers[id] = prober{s.Run, cancel}
		h, run := *c.Service.Health, s.Run
		l.background(func() { l.ask(ctx, id, run, h) })
	}
	for id, p := range l.probers {
		if !wanted[id] {
			p.cancel()
			delete(l.probers, id)
		}
	}
}

func (l *loop) ask(ctx context.Context, id, run string, h workload.Health) {
	early, spent, well := earlyProbe, time.Duration(0), false
	begun := l.o.Now()
	for {
		every := h.Interval
		if h.StartInterval > 0 && !well && l.o.Now().Sub(begun) < h.StartPeriod {
			every = h.StartInterval
		}
		wait := every
		if spent < every {
			wait = min(early, every-spent)
		}
		if delay.For(ctx, wait) != nil {
			return
		}
		spent, early = spent+wait, early*2
		pctx, cancel := context.WithTimeout(ctx, h.Timeout)
		err := l.o.Runtime.Probe(pctx, id, h.Probe)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			spent, well = every, true
		} else if spent < every {
			continue
		}
		l.send(func(l *loop) { l.probed(id, run, &h, err) })
	}
}

func (l *loop) probed(id, run string, h *workload.Health, err error) {
	s := l.sup.Containers[id]
	if s.Run != run || l.stops(id) { // then it may answer as it likes
		return
	}
	was := s.Health
	s = s.Probed(l.o.Now(), h, err)
	l.sup.Containers[id] = s
	if s.Health != was {
		l.log.Info("health changed", "container", id, "health", s.Health, "output", s.Output)
		l.events.Emit(l.about(id, status.Event{Kind: status.EventKind(s.Health), Message: s.Output}))
	}
}
