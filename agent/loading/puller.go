package loading

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/retry"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const maxPause = 5 * time.Minute // between attempts, unless the registry asks for a longer one

type Puller struct {
	Pull     func(ctx context.Context, image workload.Image, progress func(done, total int64)) (workload.ImageInfo, error)
	Parallel int  // images at a time
	Patient  bool // asks also for images that will not come however often they are asked for
	Progress *Progress
	Now      func() time.Time
	Kick     <-chan struct{} // ends the pause between attempts
	Tell     func(Attempt)   // is called after each attempt
}

// Attempt is one attempt at all images that were not here.
type Attempt struct {
	Number   int                           // from 1 on
	Pulled   map[string]workload.ImageInfo // what those that came say, by name
	Troubles map[string]plan.Trouble       // of those that did not come, by name
	Err      error                         // one of them; nil: all images are here, or the pull was given up
}

// All pulls images, and does not give up before ctx ends; false: it ended. A puller that is not patient is
// content when only such images are lacking that will not come however often they are asked for: the others are not to wait.
func (p *Puller) All(ctx context.Context, generation uint64, left []workload.Image) (bool, map[string]plan.Trouble) {
	parallel := p.Parallel
	p.Progress.Begin(generation, len(left))
	for try := 1; ; try++ {
		pulled, failed := p.each(ctx, left, parallel)
		a := Attempt{Number: try, Pulled: pulled}
		if ctx.Err() != nil || len(failed) == 0 {
			p.Tell(a)
			return ctx.Err() == nil, nil
		}
		a.Err, a.Troubles = failed[0].err, map[string]plan.Trouble{}
		pause, final := retry.Backoff(try, time.Second, maxPause), true
		left = nil
		for _, f := range failed {
			left = append(left, f.image)
			t := trouble(f.err, try)
			a.Troubles[f.image.Name()] = t
			final = final && t.FailsUpdate
			if errors.Is(f.err, syscall.ENOSPC) {
				parallel = 1 // two that do not fit beside each other would keep each other out for ever
			}
			pause = max(pause, retry.Asked(f.err))
		}
		p.Tell(a)
		if final && !p.Patient {
			return true, a.Troubles
		}
		p.Progress.Waits(p.Now().Add(pause))
		select {
		case <-ctx.Done():
			return false, nil
		case <-p.Kick:
		case <-time.After(pause):
		}
	}
}

type failure struct {
	image workload.Image
	err   error
}

// each makes one attempt at each image. It returns what those that came say, by name, and those that did not come.
func (p *Puller) each(ctx context.Context, images []workload.Image, parallel int) (map[string]workload.ImageInfo, []failure) {
	var (
		mu     sync.Mutex
		failed []failure
		wg     sync.WaitGroup
	)
	pulled := map[string]workload.ImageInfo{}
	slots := make(chan struct{}, parallel)
	for _, img := range images {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if ctx.Err() != nil {
				return
			}
			p.Progress.Began(img.Name())
			info, err := p.Pull(ctx, img, func(done, total int64) { p.Progress.Image(img.Name(), done, total) })
			p.Progress.Ended(img.Name(), err == nil)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				pulled[img.Name()] = info
				return
			}
			failed = append(failed, failure{img, err})
		})
	}
	wg.Wait()
	return pulled, failed
}

// trouble names why an image cannot be pulled. What may pass by itself in a moment is not reported as a failure.
func trouble(err error, try int) plan.Trouble {
	t := plan.Trouble{Code: codes.ImagePull, Message: err.Error(), Permanent: try >= 3, FailsUpdate: try >= 3}
	for _, x := range []struct {
		kind                   error
		code                   codes.Code
		permanent, failsUpdate bool
	}{
		{syscall.ENOSPC, codes.DiskFull, true, false},
		{fault.ErrConfig, codes.Config, true, false},
		{fault.ErrTemporary, codes.SourceUnreachable, false, false},
		{fault.ErrNotFound, codes.ImageMissing, true, false},
		{fault.ErrDigestMismatch, codes.ImageDigest, true, false}, // by its sender: a proxy that spoils a layer once must not spoil the revision for ever
		{fault.ErrUnfit, codes.ImagePlatform, true, true},
		{fault.ErrUnsupported, codes.ImagePlatform, true, true},
		{fault.ErrUnauthenticated, codes.SourceUnauthenticated, true, false},
		{fault.ErrDenied, codes.SourceDenied, true, false},
	} {
		if errors.Is(err, x.kind) {
			t.Code, t.Permanent, t.FailsUpdate = x.code, x.permanent, x.failsUpdate
			break
		}
	}
	var full interface{ Short() int64 }
	if t.Code == codes.DiskFull && errors.As(err, &full) {
		t.Short = full.Short()
	}
	return t
}
