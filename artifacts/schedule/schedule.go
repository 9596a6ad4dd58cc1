// Package schedule says when something may happen: windows of time by the wall clock of a time zone, and calendars of dates.
//
// A window is a pair of days and hours, "Mon-Fri" and "22:00-05:00", or the firings of a cron expression, each open for a duration.
// Days and hours are what a clock on the wall shows: hours that daylight saving skips do not open, hours that come twice open twice.
// The same goes for a cron expression's firings; a window that is open by one stays so for its duration as it elapses.
//
// Everything is computed from the time that is asked about, never from what was asked before: a clock that is set forward or
// back has no window opened twice or left out. There is no clock here and nothing is read, but for the system's time zones.
package schedule

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// horizon is how far ahead an opening is looked for: 29 February comes once in eight years around 2100.
const horizon = 10 * 366

// maxSteps bounds the search for where many windows meet, or for the end of one that firings prolong again and again.
const maxSteps = 1000

// Windows are moments in time. The zero value is every moment.
type Windows struct {
	all  [][]window // open when, of each, one is open
	list string     // the list that it was read from; "": see JSON
}

// All is open when every one of its operands is.
func All(operands ...Windows) Windows {
	var out Windows
	for _, o := range operands {
		out.all = append(out.all, o.all...)
	}
	return out
}

// Always reports whether there are no windows: everything is open.
func (w Windows) Always() bool { return len(w.all) == 0 }

// JSON is the list that [Parse] read, written in one way: equal lists give equal text. "" for the zero value, for windows with faults, and
// for what [All] made of several.
func (w Windows) JSON() string { return w.list }

// MarshalJSON implements json.Marshaler: the zero value is null.
func (w Windows) MarshalJSON() ([]byte, error) {
	switch {
	case w.Always():
		return []byte("null"), nil
	case w.list == "": // null would be at any time
		return nil, fmt.Errorf("windows that are not one list without faults: %w", fault.ErrInvalid)
	}
	return []byte(w.list), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (w *Windows) UnmarshalJSON(data []byte) (err error) {
	if string(data) == "null" {
		*w = Windows{}
		return nil
	}
	*w, err = ParseJSON("windows", data)
	return err
}

// At reports whether the windows are open at t.
func (w Windows) At(t time.Time) bool {
	for _, some := range w.all {
		if !slices.ContainsFunc(some, func(one window) bool { return one.at(t) }) {
			return false
		}
	}
	return true
}

// Next is when the windows open next, and when they close again. opens is t itself when they are open at t; zero when they do not
// open in ten years. closes is zero when they do not open, or when their end is not in sight.
func (w Windows) Next(t time.Time) (opens, closes time.Time) {
	opens = t
	for range maxSteps { // each round goes on to where the last of those that are closed opens
		at := opens
		closes = time.Time{}
		for _, some := range w.all {
			o, c := either(some, at)
			if o.IsZero() || o.Sub(t) > horizon*24*time.Hour {
				return time.Time{}, time.Time{}
			}
			if o.After(opens) {
				opens = o
			}
			if closes.IsZero() || !c.IsZero() && c.Before(closes) {
				closes = c
			}
		}
		if opens.Equal(at) {
			return opens, closes
		}
	}
	return time.Time{}, time.Time{}
}

// Until is when At changes next; zero: it does not, as far as can be seen.
func (w Windows) Until(t time.Time) time.Time {
	opens, closes := w.Next(t)
	if opens.Equal(t) {
		return closes
	}
	return opens
}

// Strings are the windows for people: "Mon-Fri 22:00-05:00 (Europe/Berlin)".
func (w Windows) Strings() []string {
	var out []string
	for i, some := range w.all {
		for _, one := range some {
			s := one.String()
			if i > 0 {
				s = "and also only " + s
			}
			out = append(out, s)
		}
	}
	return out
}

// String is the windows in one line.
func (w Windows) String() string { return strings.Join(w.Strings(), ", ") }

// either is the next opening of any of some windows and the end of the time that is then open without a gap.
func either(some []window, t time.Time) (opens, closes time.Time) {
	for _, w := range some {
		if o, c := w.next(t); !o.IsZero() && (opens.IsZero() || o.Before(opens)) {
			opens, closes = o, c
		} else if o.Equal(opens) && (c.IsZero() || !closes.IsZero() && c.After(closes)) {
			closes = c
		}
	}
	if opens.IsZero() || len(some) == 1 {
		return opens, closes
	}
	for range maxSteps {
		end := closes
		for _, w := range some {
			if closes.IsZero() {
				return opens, closes
			}
			if o, c := w.next(closes); o.Equal(closes) {
				closes = c
			}
		}
		if closes.Equal(end) {
			return opens, closes
		}
	}
	return opens, time.Time{}
}
