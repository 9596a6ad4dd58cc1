package soak

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/testenv"
)

// LoadOptions of updates under load.
type LoadOptions struct {
	Out     io.Writer
	Updates int // of each order; 0: 20
	Rate    int // requests a second; 0: 200
}

// LoadFigures are what the requests met.
type LoadFigures struct {
	Order     string
	Updates   int
	Requests  int
	Lost      int           // refused, reset, timed out, or answered with anything but 200
	Worst     time.Duration // slowest answer
	Median    time.Duration
	Gap       time.Duration // longest time in which every request that was begun was lost
	Gaps      time.Duration // of all updates, together
	FirstLoss string
}

func (f LoadFigures) String() string {
	s := fmt.Sprintf("%s: %d updates under %d requests: %d lost", f.Order, f.Updates, f.Requests, f.Lost)
	if f.Lost > 0 {
		s += fmt.Sprintf(", the longest gap %d ms, %d ms an update on average; first loss: %s",
			f.Gap.Milliseconds(), f.Gaps.Milliseconds()/int64(max(f.Updates, 1)), f.FirstLoss)
	}
	return s + fmt.Sprintf("; answers took %.1f ms in the median, %.0f ms at worst", float64(f.Median.Microseconds())/1000, float64(f.Worst.Milliseconds()))
}

// Load updates a service again and again while requests come in, first in start-first order, where none may be lost, then
// in stop-first order, where the gap is measured.
func Load(ctx context.Context, o LoadOptions) (figures []LoadFigures, err error) {
	o.Updates, o.Rate = cmp.Or(o.Updates, 20), cmp.Or(o.Rate, 200)
	box, err := testenv.OpenBox(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, box.Empty()) }()
	d, err := newDevice(ctx, box, o.Out, "10.215.0.0/16")
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(o.Out, "updates under load: %d of each order, %d requests a second, each on a connection of its own\n", o.Updates, o.Rate)
	for _, order := range []string{"start-first", "stop-first"} {
		f, err := d.load(ctx, order, o)
		if err != nil {
			return figures, fmt.Errorf("%s: %w\n%s", order, err, d.Logs())
		}
		fmt.Fprintln(o.Out, f)
		figures = append(figures, f)
	}
	if f := figures[0]; f.Lost > 0 {
		return figures, fmt.Errorf("start-first: %d of %d requests were lost: %s\n%s", f.Lost, f.Requests, f.FirstLoss, d.Logs())
	}
	return figures, nil
}

// front is a service that takes a moment to become healthy, as real ones do.
func (d *device) front(order string, port uint16, version int) string {
	return fmt.Sprintf(`services:
  web:
    image: %s
    command: [serve, "8080", "version %d"]
    restart: always
    ports: ["127.0.0.1:%d:8080"]
    healthcheck:
      x-longshore-probe: {http: {port: 8080, path: /health}}
      interval: 200ms
    deploy: {update_config: {order: %s, monitor: 1s}}
`, d.Registry.Reference(soakImage), version, port, order)
}

func (d *device) load(ctx context.Context, order string, o LoadOptions) (LoadFigures, error) {
	f := LoadFigures{Order: order}
	port, err := testenv.FreePort()
	if err != nil {
		return f, err
	}
	app := "front-" + order
	if err := d.publish(ctx, app, d.front(order, port, 0)); err != nil {
		return f, err
	}
	if d.Agent == nil {
		if err := d.boot(ctx); err != nil {
			return f, err
		}
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/", port)
	if err := testenv.Await(ctx, installLimit, func() error { return answers(ctx, url, "version 0") }); err != nil {
		return f, err
	}
	shots, stop := make(chan shot, 1024), make(chan struct{})
	var firing, counting sync.WaitGroup
	firing.Go(func() { fire(ctx, url, o.Rate, stop, shots) })
	var all []shot
	counting.Go(func() {
		for s := range shots {
			all = append(all, s)
		}
	})
	for version := 1; version <= o.Updates && err == nil; version++ {
		if err = d.publish(ctx, app, d.front(order, port, version)); err == nil {
			_, err = d.Control(ctx, "sync")
		}
		if err == nil {
			err = testenv.Await(ctx, installLimit, func() error { return answers(ctx, url, fmt.Sprintf("version %d", version)) })
		}
		f.Updates = version
	}
	close(stop)
	firing.Wait()
	close(shots)
	counting.Wait()
	f.count(all)
	return f, err
}

// shot is one request.
type shot struct {
	at   time.Time
	took time.Duration
	err  error
}

// fire makes requests at a rate until stop is closed, and waits for all of them.
func fire(ctx context.Context, url string, rate int, stop <-chan struct{}, shots chan<- shot) {
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	var flying sync.WaitGroup
	defer flying.Wait()
	for {
		select {
		case <-stop:
			return
		case <-ctx.Done():
			return
		case <-tick.C:
			flying.Go(func() {
				began := time.Now()
				err := answers(ctx, url, "version")
				shots <- shot{began, time.Since(began), err}
			})
		}
	}
}

// answers is nil when a server answers with a text.
func answers(ctx context.Context, url, text string) error {
	got, err := testenv.Get(ctx, url)
	if err == nil && !strings.Contains(string(got), text) {
		err = fmt.Errorf("the answer is %q", got)
	}
	return err
}

// count looks at all requests, in the order in which they began.
func (f *LoadFigures) count(all []shot) {
	slices.SortFunc(all, func(a, b shot) int { return a.at.Compare(b.at) })
	var took []time.Duration
	var since time.Time // of the gap that is open
	for _, s := range all {
		f.Requests++
		if s.err == nil {
			took = append(took, s.took)
			if !since.IsZero() {
				gap := s.at.Sub(since)
				f.Gap, f.Gaps, since = max(f.Gap, gap), f.Gaps+gap, time.Time{}
			}
			continue
		}
		if f.Lost++; f.Lost == 1 {
			f.FirstLoss = s.err.Error()
		}
		if since.IsZero() {
			since = s.at
		}
	}
	if slices.Sort(took); len(took) > 0 {
		f.Median, f.Worst = took[len(took)/2], took[len(took)-1]
	}
}
