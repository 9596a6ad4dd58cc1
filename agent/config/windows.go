package config

import (
	"cmp"
	"strconv"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/schedule"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Poll says when the tag is asked.
type Poll struct {
	Interval time.Duration    // at least 1 s
	Phase    time.Duration    // where in Interval: (0,Interval], of which Interval is its begin; 0: by the device's id
	Jitter   float64          // how much of Interval a check comes earlier or later by chance, half of it each: [0,1]
	Windows  schedule.Windows // the zero value: at any time
}

// Changes say when the device may be changed.
type Changes struct {
	Windows          schedule.Windows // the zero value: at any time
	OpenClockUnknown bool             // Windows count also while the clock is in doubt; else they are closed then
	MaxBoots         int              // boots of the device while a change is not complete, after which it is taken back; 0: the agent's default
}

// times reads when what is done.
func (c *Config) times(root *strict.Node) {
	n := root.Get("poll")
	c.Poll.Interval = atLeast(n.Get("interval"), MinInterval, DefaultInterval)
	if p := n.Get("phase"); p != nil && p.Text() != "auto" {
		if c.Poll.Phase = p.Duration(); c.Poll.Phase > 0 && c.Poll.Phase >= c.Poll.Interval {
			p.Faultf("must be below the interval, %s", c.Poll.Interval)
		}
		c.Poll.Phase = cmp.Or(c.Poll.Phase, c.Poll.Interval)
	}
	c.Poll.Jitter = DefaultJitter
	if j := n.Get("jitter"); j != nil {
		c.Poll.Jitter = jitter(j)
	}
	c.Poll.Windows = schedule.Parse(n.Get("windows"))
	n.Close()

	n = root.Get("changes")
	c.Changes.Windows = schedule.Parse(n.Get("windows"))
	if u := n.Get("whenClockUnknown"); u != nil {
		c.Changes.OpenClockUnknown = u.OneOf("closed", "open") == "open"
	}
	if b := n.Get("maxBoots"); b != nil {
		v := b.Uint64()
		if b.Kind() == strict.Number && (v < 1 || v > 100) {
			b.Faultf("must be from 1 to 100")
		}
		c.Changes.MaxBoots = int(min(v, 100))
	}
	n.Close()
	c.Downtime = schedule.Parse(root.Get("downtime"))
}

// jitter is a percentage of the interval.
func jitter(n *strict.Node) float64 {
	s, ok := strings.CutSuffix(n.Text(), "%")
	p, err := strconv.Atoi(s)
	if n.Kind() == strict.String && (!ok || err != nil || p < 0 || p > 100) {
		n.HintFaultf("write it like 20%", "not a percentage between 0 and 100")
		return 0
	}
	return float64(p) / 100
}

// Over are the windows that do not open at t or later. They are no reason for an agent not to start, and a fault for people who look; nil: there
// are none.
func (c *Config) Over(t time.Time) error {
	var faults []strict.Fault
	for _, w := range []schedule.Windows{c.Poll.Windows, c.Changes.Windows, c.Downtime} {
		for _, p := range w.Over(t) {
			faults = append(faults, p.Passed())
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return &strict.Error{File: c.File, Faults: faults}
}
