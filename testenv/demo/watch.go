package demo

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/testenv"
)

// watch asks the workload all the time, as a customer would, and counts.
type watch struct {
	url  string
	stop context.CancelFunc
	done sync.WaitGroup

	mu       sync.Mutex
	answered int
	lost     int
	last     error
}

// everyMoment is short enough to see a restart.
const everyMoment = 20 * time.Millisecond

func startWatch(ctx context.Context, url string) *watch {
	ctx, stop := context.WithCancel(ctx)
	w := &watch{url: url, stop: stop}
	w.done.Go(func() {
		tick := time.NewTicker(everyMoment)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			_, err := testenv.Get(ctx, url)
			if ctx.Err() != nil {
				return
			}
			w.mu.Lock()
			if err != nil {
				w.lost++
				w.last = err
			} else {
				w.answered++
			}
			w.mu.Unlock()
		}
	})
	return w
}

// end stops watching. It is an error when the workload did not answer every time.
func (w *watch) end() (string, error) {
	w.stop()
	w.done.Wait()
	if w.lost > 0 || w.answered == 0 {
		return "", fmt.Errorf("the workload answered %d requests and lost %d: %v", w.answered, w.lost, w.last)
	}
	return fmt.Sprintf("%d of %d requests answered meanwhile", w.answered, w.answered), nil
}
