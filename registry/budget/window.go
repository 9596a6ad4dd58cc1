package budget

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Window is a span of hours in a week, in local time. If its end is before its beginning, it continues on the next day; its days are
// those on which it begins.
type Window struct {
	days       [7]bool // by time.Weekday
	begin, end int     // minutes of the day; end up to 24*60
}

// days are written as in cron and systemd.
var days = []string{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"}

// ParseWindow reads "22:00-06:00", "Mon-Fri 22:00-06:00", "Sat,Sun 00:00-24:00". Anything else is fault.ErrInvalid.
func ParseWindow(s string) (Window, error) {
	bad := func() (Window, error) {
		return Window{}, fault.WithHint(fmt.Errorf("window %q: %w", s, fault.ErrInvalid), `write it as "22:00-06:00" or "Mon-Fri 22:00-06:00", in local time`)
	}
	w := Window{days: [7]bool{true, true, true, true, true, true, true}}
	hours := s
	if on, rest, ok := strings.Cut(s, " "); ok {
		hours, w.days = rest, [7]bool{}
		for part := range strings.SplitSeq(on, ",") {
			first, last, span := strings.Cut(part, "-")
			if !span {
				last = first
			}
			from, to := slices.Index(days, first), slices.Index(days, last)
			if from < 0 || to < 0 {
				return bad()
			}
			for ; from != to; from = (from + 1) % 7 {
				w.days[from] = true
			}
			w.days[to] = true
		}
	}
	from, to, ok := strings.Cut(hours, "-")
	var good [2]bool
	w.begin, good[0] = minutes(from)
	w.end, good[1] = minutes(to)
	if !ok || !good[0] || !good[1] || w.begin == w.end || w.begin == 24*60 {
		return bad()
	}
	return w, nil
}

// minutes reads "22:00" as minutes of the day.
func minutes(s string) (int, bool) {
	if s == "24:00" {
		return 24 * 60, true
	}
	t, err := time.Parse("15:04", s)
	return t.Hour()*60 + t.Minute(), err == nil && len(s) == len("15:04")
}

// contains reports whether a local time is in the window.
func (w Window) contains(t time.Time) bool {
	now, today := t.Hour()*60+t.Minute(), t.Weekday()
	if w.begin < w.end {
		return w.days[today] && w.begin <= now && now < w.end
	}
	return w.days[today] && now >= w.begin || w.days[(today+6)%7] && now < w.end
}

// Open reports whether one of the windows is open, and otherwise when the next one begins; the zero time: none within
// eight days, which can happen to a short one with daylight saving time. Without windows it is always open, and now is not called.
func Open(all []Window, now func() time.Time) (next time.Time, open bool) {
	if len(all) == 0 {
		return time.Time{}, true
	}
	in := func(t time.Time) bool {
		return slices.ContainsFunc(all, func(w Window) bool { return w.contains(t) })
	}
	t := now()
	if in(t) {
		return t, true
	}
	for range 8 * 24 * 60 {
		if t = t.Truncate(time.Minute).Add(time.Minute); in(t) {
			return t, false
		}
	}
	return time.Time{}, false
}
