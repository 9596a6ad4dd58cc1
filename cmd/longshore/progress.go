package main

import (
	"fmt"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/fleet"
)

// progressEvery is how often progress is printed without a terminal.
const progressEvery = 5 * time.Second

// progress shows how many objects are done ("published", "copied"): on a terminal as a bar with rate and remaining time,
// otherwise as a line now and then, with --quiet not at all. The second function ends it.
func (c *call) progress(done string) (func(fleet.Progress), func()) {
	if c.Bool("quiet") {
		return func(fleet.Progress) {}, func() {}
	}
	f := cmdline.Terminal(c.stderr)
	if f == nil {
		begin, last := c.now(), c.now()
		return func(x fleet.Progress) {
			now := c.now()
			if now.Sub(last) < progressEvery {
				return
			}
			last = now
			rate := float64(x.Done) / now.Sub(begin).Seconds()
			fmt.Fprintf(c.stderr, "%d of %d %s, %s, %.0f/s\n", x.Done, x.All, done, fleet.Bytes(x.Bytes), rate)
		}, func() {}
	}
	bars := mpb.New(mpb.WithOutput(f), mpb.WithWidth(40))
	var bar *mpb.Bar
	begin := c.now()
	var bytes int64
	return func(x fleet.Progress) {
			if bytes = x.Bytes; bar == nil {
				bar = bars.AddBar(int64(x.All),
					mpb.PrependDecorators(decor.CountersNoUnit("  %d/%d ")),
					mpb.AppendDecorators(
						decor.Any(func(s decor.Statistics) string {
							rate := float64(s.Current) / max(c.now().Sub(begin).Seconds(), 0.001)
							left := time.Duration(float64(s.Total-s.Current) / max(rate, 0.001) * float64(time.Second)).Round(time.Second)
							return fmt.Sprintf(" %.0f/s, %s left", rate, left)
						})))
			}
			bar.SetCurrent(int64(x.Done))
		}, func() {
			if bar != nil {
				bar.Abort(false) // after an error; no effect on a complete bar
				bars.Wait()
				fmt.Fprintf(c.stderr, "  %s in %s\n", fleet.Bytes(bytes), c.now().Sub(begin).Round(time.Millisecond*100))
			}
		}
}
