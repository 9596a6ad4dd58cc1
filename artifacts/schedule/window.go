package schedule

import (
	"math/bits"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

const (
	day       = 24 * time.Hour
	dayLength = 24 * 60 // minutes
)

// window is one window. Its calendar decides by the day on which it begins; on a day of except it is not open either.
type window struct {
	days         days
	from, to     int                // minutes of the day; to is above from, and above a day's length where it is on the next day
	cron         *cron.SpecSchedule // nil: days and hours
	duration     time.Duration      // of cron
	only, except []dates
	zone         *time.Location
	text         string
	place        Place
}

// Place is where a window was read.
type Place struct {
	Line, Column int
	Path         string
}

// Passed is what is wrong with a window that [Windows.Over] lists.
func (p Place) Passed() strict.Fault {
	return strict.Fault{
		Line: p.Line, Column: p.Column, Path: p.Path,
		Message: "does not open any more: its dates have passed, or the next is more than ten years away", Hint: "remove the window, or give it new dates",
	}
}

func (w *window) String() string { return w.text }

// at reports whether w is open at t.
func (w *window) at(t time.Time) bool {
	minute := civil(t, w.zone).Truncate(time.Minute)
	if among(w.except, minute) {
		return false
	}
	if w.cron != nil {
		fired, ok := w.firing(t.Add(1 - w.duration))
		return ok && !fired.After(t)
	}
	opens, ok := w.opens(minute)
	return ok && opens.Equal(minute)
}

// next is when w opens at or after t, and when it closes then; opens is t when it is open. Zero: see [Windows.Next].
func (w *window) next(t time.Time) (opens, closes time.Time) {
	for at := t; ; {
		if w.cron != nil {
			opens, closes = w.firedAt(at)
		} else {
			opens, closes = w.hoursAt(at)
		}
		if opens.IsZero() {
			return opens, closes
		}
		end, free := w.freed(opens)
		if free.IsZero() {
			if !end.IsZero() && (closes.IsZero() || end.Before(closes)) {
				closes = end
			}
			return opens, closes
		}
		if free.Sub(t) > horizon*day {
			return time.Time{}, time.Time{}
		}
		at = free // the day is excepted
	}
}

// hoursAt is next for days and hours, but for days in except on which the window goes on.
func (w *window) hoursAt(t time.Time) (opens, closes time.Time) {
	opens, ok := w.first(t, w.opens)
	if !ok {
		return time.Time{}, time.Time{}
	}
	closes, _ = w.first(opens, w.closes)
	return opens, closes
}

// firedAt is next for a cron expression. What fired within the duration before t keeps the window open.
func (w *window) firedAt(t time.Time) (opens, closes time.Time) {
	opens, ok := w.firing(t.Add(1 - w.duration))
	if !ok {
		return time.Time{}, time.Time{}
	}
	last := opens
	if opens.Before(t) {
		opens = t
	}
	for range maxSteps {
		next, ok := w.firing(last.Add(1))
		if closes = last.Add(w.duration); !ok || next.After(closes) {
			return opens, closes
		}
		last = next
	}
	return opens, time.Time{}
}

// firing is the first firing at or after t.
func (w *window) firing(t time.Time) (time.Time, bool) {
	if minute := t.Truncate(time.Minute); minute.Before(t) {
		t = minute.Add(time.Minute)
	}
	return w.first(t, w.fires)
}

// freed is when the days of except end that t is in, or the time at which the next of them begins.
func (w *window) freed(t time.Time) (end, free time.Time) {
	if len(w.except) == 0 {
		return time.Time{}, time.Time{}
	}
	excepted := func(is bool) func(time.Time) (time.Time, bool) {
		return func(c time.Time) (time.Time, bool) {
			for d := range horizon {
				if at := c.Truncate(day).Add(time.Duration(d) * day); among(w.except, at) == is {
					return later(c, at), true
				}
			}
			return c, false
		}
	}
	if c := civil(t, w.zone); among(w.except, c) {
		free, ok := w.first(t, excepted(false))
		if !ok {
			free = t.Add(2 * horizon * day)
		}
		return time.Time{}, free
	}
	end, _ = w.first(t, excepted(true))
	return end, time.Time{}
}

// civil is what the clock on the wall shows, as if it were UTC: there every day has 24 hours.
func civil(t time.Time, zone *time.Location) time.Time {
	_, offset := t.In(zone).Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// first is the first moment at or after t at which the clock on the wall shows a minute that find accepts. find returns the first such
// minute at or after another one. Between two changes of the zone's offset the clock on the wall runs like any other.
func (w *window) first(t time.Time, find func(civil time.Time) (time.Time, bool)) (time.Time, bool) {
	for limit := t.Add(horizon * day); t.Before(limit); {
		wall := civil(t, w.zone)
		offset := wall.Sub(t)
		_, end := t.In(w.zone).ZoneBounds()
		minute := wall.Truncate(time.Minute)
		c, ok := find(minute)
		at := c.Add(-offset)
		switch {
		case !ok:
			return time.Time{}, false
		case c.Equal(minute):
			return t, true // t is in it
		case end.IsZero() || at.Before(end):
			return at, true
		}
		t = end
	}
	return time.Time{}, false
}

// opens finds the first civil minute that the hours of a day include on which the window may begin.
func (w *window) opens(c time.Time) (time.Time, bool) {
	today := c.Truncate(day)
	for d := -1; d < horizon; d++ {
		begin := today.Add(time.Duration(d) * day)
		from, to := begin.Add(time.Duration(w.from)*time.Minute), begin.Add(time.Duration(w.to)*time.Minute)
		if c.Before(to) && w.days.has(begin.Weekday()) && w.dated(begin) {
			return later(c, from), true
		}
	}
	return c, false
}

// closes finds the first civil minute that the hours include of no day on which the window begins.
func (w *window) closes(c time.Time) (time.Time, bool) {
	for range maxSteps {
		today, in := c.Truncate(day), false
		for _, begin := range []time.Time{today.Add(-day), today} {
			from, to := begin.Add(time.Duration(w.from)*time.Minute), begin.Add(time.Duration(w.to)*time.Minute)
			if !c.Before(from) && c.Before(to) && w.days.has(begin.Weekday()) && w.dated(begin) {
				c, in = to, true
			}
		}
		if !in {
			return c, true
		}
	}
	return c, false
}

// fires finds the first civil minute at which the cron expression fires on a day on which the window may begin.
func (w *window) fires(c time.Time) (time.Time, bool) {
	today := c.Truncate(day)
	for d := range horizon {
		begin := today.Add(time.Duration(d) * day)
		if !w.firingDay(begin) || !w.dated(begin) {
			continue
		}
		for hour := range 24 {
			at := later(c, begin.Add(time.Duration(hour)*time.Hour))
			left := w.cron.Minute >> at.Minute() // the top bit is a mark of the parser's
			left &= 1<<(60-at.Minute()) - 1
			if w.cron.Hour&(1<<hour) != 0 && at.Hour() == hour && at.Day() == begin.Day() && left != 0 {
				return at.Add(time.Duration(bits.TrailingZeros64(left)) * time.Minute), true
			}
		}
	}
	return c, false
}

// star is the parser's mark of a field that begins with a star.
const star = 1 << 63

// firingDay reports whether a cron expression fires on a day: where both the day of the month and the day of the week are given,
// one of them is enough, as in every cron.
func (w *window) firingDay(d time.Time) bool {
	month, week := w.cron.Dom&(1<<d.Day()) != 0, w.cron.Dow&(1<<d.Weekday()) != 0
	if w.cron.Month&(1<<d.Month()) == 0 {
		return false
	}
	if w.cron.Dom&star != 0 || w.cron.Dow&star != 0 {
		return month && week
	}
	return month || week
}

// dated reports whether the calendar lets the window begin on a day.
func (w *window) dated(d time.Time) bool {
	return (len(w.only) == 0 || among(w.only, d)) && !among(w.except, d)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// days of the week, by bit.
type days uint8

const everyDay days = 1<<7 - 1

func (d days) has(w time.Weekday) bool { return d&(1<<w) != 0 }

// dates are a range of days, both included: of the calendar, or of every year.
type dates struct {
	from, to int // 20261224; yearly: 1224, and from above to when New Year is between
	yearly   bool
}

func among(list []dates, d time.Time) bool {
	year, month, n := d.Date()
	monthDay := int(month)*100 + n
	for _, r := range list {
		at := monthDay
		if !r.yearly {
			at += year * 10000
		}
		if at >= r.from && at <= r.to || r.from > r.to && (at >= r.from || at <= r.to) {
			return true
		}
	}
	return false
}
