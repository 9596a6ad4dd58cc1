package agent

import (
	"context"
	"errors"
	"maps"
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
	composed int           // when images was made
	images   string        // what is being pulled
	cancel   context.CancelFunc
	kick     chan struct{}
	repair   bool               // images of the target are missing
	after    time.Time          // not before: the new target could not be saved
	full     bool               // the disk is, and nothing was done about it since
	roomAt   time.Time          // not before: room was made already
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
	case p.digest == want.Digest && p.same(l, want), l.o.Now().Before(p.after):
		return
	case p.digest != "":
		p.cancel() // its end brings us here again
		return
	}
	ctx, cancel := context.WithCancel(l.ctx)
	p.digest, p.cancel, p.kick = want.Digest, cancel, make(chan struct{}, 1)
	p.images, p.composed = nameAll(want), l.composed
	kick, give := p.kick, want == l.next
	l.spawn(func() {
		ok, lacking := l.pullAll(ctx, want, kick, give)
		l.post(func(l *loop) { l.pulled(want, ok, lacking) })
	})
}

// same tells whether what is being pulled is still what is wanted: a revision may have given way to the last good one.
func (p *pulling) same(l *loop, want *Desired) bool {
	if p.composed != l.composed {
		if nameAll(want) != p.images {
			return false
		}
		p.composed = l.composed
	}
	return true
}

func nameAll(d *Desired) string {
	var names []string
	for _, img := range d.images() {
		names = append(names, img.Name())
	}
	return strings.Join(names, "\n")
}

// pulled takes in the end of a pull.
func (l *loop) pulled(d *Desired, ok bool, lacking map[string]trouble) {
	l.pull.cancel()
	l.pull.digest, l.pull.troubles, l.pull.full = "", lacking, false
	l.progress.end()
	if !ok {
		return
	}
	if l.next != nil && l.next.Digest == d.Digest {
		if l.turnsBack() {
			return // without them, what is to be pulled is something else
		}
		l.sup.Lacking, l.pull.troubles, l.pull.repair = lacking, nil, len(lacking) > 0
		if err := l.retarget(); err != nil {
			l.unsaved, l.saveAt = err, l.o.Now().Add(saveRetry)
			l.pull.after = l.saveAt
			l.log.Error("cannot save the new target", "err", err)
		}
		return
	}
	l.pull.repair, l.sup.Lacking = false, nil
	maps.DeleteFunc(l.facts, func(_ string, f imageFact) bool { return f.absent })
	l.recompose()
	for k, r := range l.sup.Retries {
		if strings.HasPrefix(k, string(Create)+" ") {
			r.At = time.Time{}
			l.sup.Retries[k] = r
		}
	}
}

// turnsBack tells whether an update in the next generation has failed, because an image of it will never come.
func (l *loop) turnsBack() bool {
	var a assessment
	q := l.question(l.o.Now())
	for i := range l.next.Deployments {
		q.unloadable(&a, &l.next.Deployments[i])
	}
	return len(a.bad) > 0
}

// pullAll pulls every image of a generation, and does not give up before ctx ends. False: it ended. With give, it is content
// when only such images are lacking that will not come however often they are asked for: the others are not to wait.
func (l *loop) pullAll(ctx context.Context, d *Desired, kick <-chan struct{}, give bool) (bool, map[string]trouble) {
	left := d.images()
	l.progress.begin(d.Generation, len(left))
	for try := 1; ; try++ {
		failed := l.pullEach(ctx, left)
		if ctx.Err() != nil {
			return false, nil
		}
		if len(failed) == 0 {
			return true, nil
		}
		troubles, pause := map[string]trouble{}, backoff(try, time.Second, pollBackoff)
		left = left[:0]
		final := true
		for _, f := range failed {
			left = append(left, f.image)
			troubles[f.image.Name()] = pullTrouble(f.err, try)
			final = final && troubles[f.image.Name()].final
			if after, ok := fault.RetryAfter(f.err); ok {
				pause = max(pause, min(after, time.Hour))
			}
		}
		err := failed[0].err
		l.post(func(l *loop) {
			if l.pull.digest == d.Digest {
				l.pull.troubles = troubles
				for _, t := range troubles {
					l.pull.full = l.pull.full || t.code == CodeDiskFull
				}
				if !give {
					l.sup.Lacking = troubles
				}
				if try == 1 {
					l.log.Warn("cannot load every image; what runs is kept", "generation", d.Generation, "err", err)
				}
			}
		})
		if give && final {
			return true, troubles
		}
		l.progress.waits(l.o.Now().Add(pause))
		select {
		case <-ctx.Done():
			return false, nil
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
	t := trouble{code: CodeImagePull, message: err.Error(), lasting: try >= 3, final: try >= 3}
	switch {
	case errors.Is(err, syscall.ENOSPC):
		t.code, t.lasting, t.final = CodeDiskFull, true, false
	case errors.Is(err, fault.ErrTemporary):
		t.code, t.lasting, t.final = CodeSourceUnreachable, false, false
	case errors.Is(err, fault.ErrNotFound):
		t.code, t.lasting, t.final = CodeImageMissing, true, false
	case errors.Is(err, fault.ErrDigestMismatch):
		// Whoever sent it is wrong, not the image: a proxy that spoils a layer once must not spoil the revision for ever.
		t.code, t.lasting, t.final = CodeImageDigest, true, false
	case errors.Is(err, fault.ErrUnfit), errors.Is(err, fault.ErrUnsupported):
		t.code, t.lasting, t.final = CodeImagePlatform, true, true
	case errors.Is(err, fault.ErrUnauthenticated):
		t.code, t.lasting, t.final = CodeSourceUnauthenticated, true, false
	case errors.Is(err, fault.ErrDenied):
		t.code, t.lasting, t.final = CodeSourceDenied, true, false
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
