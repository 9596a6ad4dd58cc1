package agent

import (
	"context"
	"errors"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// pulling brings the images of the accepted generation, beside everything else. It is part of the loop.
type pulling struct {
	digest   digest.Digest // of the state that images are being pulled for; "": none
	cancel   context.CancelFunc
	kick     chan struct{}
	repair   bool               // images of the target are missing
	after    time.Time          // not before: the new target could not be saved
	troubles map[string]trouble // by image name, of the pull in progress
}

// again has the target's images pulled once more: the runtime has lost one.
func (p *pulling) again() { p.repair = true }

// nudge ends the pause between attempts.
func (p *pulling) nudge() {
	if p.digest != "" {
		select {
		case p.kick <- struct{}{}:
		default:
		}
	}
}

// start begins to pull what is wanted; a newer generation takes the place of an older one that is not complete.
func (p *pulling) start(l *loop) {
	want := l.next
	if want == nil && p.repair {
		want = l.target
	}
	switch {
	case want == nil:
		if p.digest != "" {
			p.cancel()
		}
		return
	case p.digest == want.Digest, l.o.Now().Before(p.after):
		return
	case p.digest != "":
		p.cancel() // its end brings us here again
		return
	}
	ctx, cancel := context.WithCancel(l.ctx)
	p.digest, p.cancel, p.kick = want.Digest, cancel, make(chan struct{}, 1)
	kick := p.kick
	l.spawn(func() {
		ok := l.pullAll(ctx, want, kick)
		l.post(func(l *loop) { l.pulled(want, ok) })
	})
}

// pulled takes in the end of a pull.
func (l *loop) pulled(d *Desired, ok bool) {
	l.pull.cancel()
	l.pull.digest, l.pull.troubles = "", nil
	l.progress.end()
	if !ok {
		return
	}
	if l.next != nil && l.next.Digest == d.Digest {
		if err := l.retarget(); err != nil {
			l.unsaved, l.saveAt = err, l.o.Now().Add(saveRetry)
			l.pull.after = l.saveAt
			l.log.Error("cannot save the new target", "err", err)
		}
		return
	}
	l.pull.repair = false
	for k, r := range l.sup.Retries {
		if strings.HasPrefix(k, string(Create)+" ") {
			r.At = time.Time{}
			l.sup.Retries[k] = r
		}
	}
}

// pullAll pulls every image of a generation, and does not give up before ctx ends. False: it ended.
func (l *loop) pullAll(ctx context.Context, d *Desired, kick <-chan struct{}) bool {
	left := d.images()
	l.progress.begin(d.Generation, len(left))
	for try := 1; ; try++ {
		failed := l.pullEach(ctx, left)
		if ctx.Err() != nil {
			return false
		}
		if len(failed) == 0 {
			return true
		}
		troubles, pause := map[string]trouble{}, backoff(try, time.Second, pollBackoff)
		left = left[:0]
		for _, f := range failed {
			left = append(left, f.image)
			troubles[f.image.Name()] = pullTrouble(f.err, try)
			if after, ok := fault.RetryAfter(f.err); ok {
				pause = max(pause, min(after, time.Hour))
			}
		}
		err := failed[0].err
		l.post(func(l *loop) {
			if l.pull.digest == d.Digest {
				l.pull.troubles = troubles
				if try == 1 {
					l.log.Warn("cannot load every image; what runs is kept", "generation", d.Generation, "err", err)
				}
			}
		})
		l.progress.waits(l.o.Now().Add(pause))
		select {
		case <-ctx.Done():
			return false
		case <-kick:
		case <-time.After(pause):
		}
	}
}

type pullFailure struct {
	image workload.Image
	err   error
}

func (l *loop) pullEach(ctx context.Context, images []workload.Image) []pullFailure {
	var (
		mu     sync.Mutex
		failed []pullFailure
		wg     sync.WaitGroup
	)
	slots := make(chan struct{}, l.o.ParallelPulls)
	for _, img := range images {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if ctx.Err() != nil {
				return
			}
			err := l.o.Runtime.Pull(ctx, img, func(done, total int64) { l.progress.image(img.Name(), done, total) })
			if err == nil {
				l.progress.ready(img.Name())
				return
			}
			mu.Lock()
			defer mu.Unlock()
			failed = append(failed, pullFailure{img, err})
		})
	}
	wg.Wait()
	return failed
}

// pullTrouble names why an image cannot be pulled. What may pass by itself in a moment is not reported as a failure.
func pullTrouble(err error, try int) trouble {
	t := trouble{CodeImagePull, err.Error(), try >= 3}
	switch {
	case errors.Is(err, syscall.ENOSPC):
		t.code, t.lasting = CodeDiskFull, true
	case errors.Is(err, fault.ErrTemporary):
		t.code, t.lasting = CodeSourceUnreachable, false
	case errors.Is(err, fault.ErrNotFound):
		t.code, t.lasting = CodeImageMissing, true
	case errors.Is(err, fault.ErrDigestMismatch):
		t.code, t.lasting = CodeImageDigest, true
	case errors.Is(err, fault.ErrUnfit), errors.Is(err, fault.ErrUnsupported):
		t.code, t.lasting = CodeImagePlatform, true
	case errors.Is(err, fault.ErrUnauthenticated):
		t.code, t.lasting = CodeSourceUnauthenticated, true
	case errors.Is(err, fault.ErrDenied):
		t.code, t.lasting = CodeSourceDenied, true
	}
	return t
}

// progress is how far a pull is, for those who ask.
type progress struct {
	mu   sync.Mutex
	now  *Loading
	each map[string][2]int64

	loaded uint64 // bytes, since the agent started
}

func (p *progress) begin(generation uint64, images int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now, p.each = &Loading{Generation: generation, Images: images}, map[string][2]int64{}
}

func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now, p.each = nil, nil
}

func (p *progress) image(name string, done, total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.each != nil {
		p.loaded += uint64(max(0, done-p.each[name][0]))
		p.each[name] = [2]int64{done, total}
	}
}

func (p *progress) ready(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != nil {
		p.now.Ready++
		p.now.NextTry = time.Time{}
	}
}

func (p *progress) waits(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now != nil {
		p.now.NextTry = t
	}
}

func (p *progress) status() *Loading {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil {
		return nil
	}
	out := *p.now
	for _, x := range p.each {
		out.Done += x[0]
		out.Total += max(x[0], x[1])
	}
	return &out
}
