package main

import (
	"fmt"
	"os"
	"time"

	"github.com/urfave/cli/v2"
	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/term"

	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/fleet"
)

// progressEvery is how often progress is told where there is no terminal.
const progressEvery = 5 * time.Second

// progress tells how far what is "published" or "copied" has come: a bar with rate and time left on a terminal, now and then a line
// elsewhere, nothing with --quiet. The second function ends it.
func (p *program) progress(c *cli.Context, done string) (func(fleet.Progress), func()) {
	if c.Bool("quiet") {
		return nil, func() {}
	}
	f, ok := printable.Raw(p.stderr).(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		begin, last := p.now(), p.now()
		return func(x fleet.Progress) {
			now := p.now()
			if now.Sub(last) < progressEvery {
				return
			}
			last = now
			rate := float64(x.Done) / now.Sub(begin).Seconds()
			fmt.Fprintf(p.stderr, "%d of %d %s, %s, %.0f/s\n", x.Done, x.All, done, fleet.Bytes(x.Bytes), rate)
		}, func() {}
	}
	bars := mpb.New(mpb.WithOutput(f), mpb.WithWidth(40))
	var bar *mpb.Bar
	begin := p.now()
	var bytes int64
	return func(x fleet.Progress) {
			if bytes = x.Bytes; bar == nil {
				bar = bars.AddBar(int64(x.All),
					mpb.PrependDecorators(decor.CountersNoUnit("  %d/%d ")),
					mpb.AppendDecorators(
						decor.Any(func(s decor.Statistics) string {
							rate := float64(s.Current) / max(p.now().Sub(begin).Seconds(), 0.001)
							left := time.Duration(float64(s.Total-s.Current) / max(rate, 0.001) * float64(time.Second)).Round(time.Second)
							return fmt.Sprintf(" %.0f/s, %s left", rate, left)
						})))
			}
			bar.SetCurrent(int64(x.Done))
		}, func() {
			if bar != nil {
				bar.Abort(false) // when an error has ended it; no effect on one that is complete
				bars.Wait()
				fmt.Fprintf(p.stderr, "  %s in %s\n", fleet.Bytes(bytes), p.now().Sub(begin).Round(time.Millisecond*100))
			}
		}
}
