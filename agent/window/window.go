// Package window says when the windows of a device open and close. They go by the time that is believed, which is later than the device's
// clock where that is known to be behind; results are times of the device's clock.
package window

import (
	"time"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/schedule"
)

type Openings interface {
	Always() bool // they are never closed
	Strings() []string
	Next(t time.Time) (opens, closes time.Time)
}

var _, _ Openings = schedule.Windows{}, (*schedule.Outlook)(nil)

// Times looks at windows.
type Times struct {
	Believed *clock.Clock
	Device   func() time.Time // the device's clock
}

// Next is when windows open next, seen from a time of the device's clock, and when they close then; opens is now itself when they are open.
// Zero: never, as far as can be seen.
func (t Times) Next(w Openings, now time.Time) (opens, closes time.Time) {
	believed := t.Believed.Now().Add(now.Sub(t.Device()))
	opens, closes = w.Next(believed)
	if !opens.IsZero() {
		opens = now.Add(opens.Sub(believed))
	}
	if !closes.IsZero() {
		closes = now.Add(closes.Sub(believed))
	}
	return opens, closes
}

// Change is the first time after now when one of several windows opens or closes; zero: never, as far as can be seen.
func (t Times) Change(now time.Time, all ...Openings) (at time.Time) {
	for _, w := range all {
		if w.Always() {
			continue
		}
		opens, closes := t.Next(w, now)
		if opens.Equal(now) {
			opens = closes
		}
		if !opens.IsZero() && (at.IsZero() || opens.Before(at)) {
			at = opens
		}
	}
	return at
}

// First is the first time from at on at which windows are open; zero: never, or at is.
func (t Times) First(w Openings, at time.Time) time.Time {
	if w.Always() || at.IsZero() {
		return at
	}
	from := at
	if now := t.Device(); at.Before(now) {
		from = now
	}
	if opens, _ := t.Next(w, from); !opens.Equal(from) {
		return opens
	}
	return at
}

// Status is what windows say now; nil: they are never closed.
func (t Times) Status(w Openings, now time.Time) *status.Window {
	if w.Always() {
		return nil
	}
	out := &status.Window{Windows: w.Strings()}
	opens, closes := t.Next(w, now)
	if out.Open = opens.Equal(now); out.Open {
		opens = closes
	}
	if out.Until = opens.UTC(); opens.IsZero() {
		out.Until = time.Time{}
	}
	return out
}
