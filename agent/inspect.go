package agent

import (
	"context"
	"errors"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	inspectLimit = time.Minute
	inspectRetry = 2 * time.Second
)

// inspect asks what the images of the target say about themselves, beside the loop: health checks and volumes follow from it.
func (l *loop) inspect(now time.Time) {
	if l.target == nil || l.inspecting || l.blind != nil || now.Before(l.inspectAt) {
		return
	}
	var open []workload.Image
	for _, img := range l.target.images() {
		if _, ok := l.facts[img.Name()]; !ok {
			open = append(open, img)
		}
	}
	l.inspectAt = time.Time{}
	if len(open) == 0 {
		return
	}
	l.inspecting = true
	l.spawn(func() {
		ctx, cancel := context.WithTimeout(l.ctx, inspectLimit)
		defer cancel()
		facts := map[string]imageFact{}
		var failed error
		for _, img := range open {
			info, err := l.o.Runtime.Image(ctx, img)
			switch {
			case err == nil:
				facts[img.Name()] = imageFact{ImageInfo: info}
			case errors.Is(err, fault.ErrTemporary), ctx.Err() != nil:
				failed = err
			default:
				facts[img.Name()] = imageFact{absent: true}
			}
		}
		l.post(func(l *loop) { l.inspected(facts, failed) })
	})
}

// inspected takes in what images say. One that is not here, or cannot be read, is pulled again.
func (l *loop) inspected(facts map[string]imageFact, err error) {
	l.inspecting = false
	if err != nil {
		l.inspectAt = l.o.Now().Add(inspectRetry)
		l.log.Debug("cannot read what every image says; asking again", "err", err)
	}
	for name, f := range facts {
		l.facts[name] = f
		if f.absent {
			l.pull.again()
		}
	}
	if len(facts) > 0 {
		l.recompose()
	}
}
