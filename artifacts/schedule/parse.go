package schedule

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Limits of what is read.
const (
	maxWindows  = 100
	maxDates    = 400 // of one window
	maxDuration = 31 * day
	maxText     = 200 // bytes of one value
)

// Parse reads a list of windows, of which any may be open; nil: always. Faults are recorded in n's document; a window that can never
// open is one.
func Parse(n *strict.Node) Windows {
	if n == nil {
		return Windows{}
	}
	items := n.Items()
	switch {
	case n.Kind() == strict.List && len(items) == 0:
		n.HintFaultf("leave it out", "has no window")
	case len(items) > maxWindows:
		n.Faultf("has %d windows, more than %d", len(items), maxWindows)
		return never()
	}
	some, list := []window{}, []document{}
	for _, item := range items {
		if w, ok := parse(item); ok {
			some, list = append(some, w), append(list, documentOf(item))
		}
	}
	out := Windows{all: [][]window{some}} // never open where there are faults
	if text, err := json.Marshal(list); err == nil && len(list) == len(items) && len(list) > 0 {
		out.list = string(text)
	}
	return out
}

// ParseJSON reads a list of windows as [Windows.JSON] writes it. file is its name in errors. With an error the windows are never open.
func ParseJSON(file string, data []byte) (Windows, error) {
	root, err := strict.JSON(file, data)
	if err != nil {
		return never(), err
	}
	w := Parse(root)
	if err := root.Err(); err != nil {
		return never(), err
	}
	return w, nil
}

// never is never open.
func never() Windows { return Windows{all: [][]window{{}}} }

// document is a window as it is written.
type document struct {
	Days     string   `json:"days,omitempty"`
	Hours    string   `json:"hours,omitempty"`
	Cron     string   `json:"cron,omitempty"`
	Duration string   `json:"duration,omitempty"`
	Zone     string   `json:"zone"`
	Only     []string `json:"only,omitempty"`
	Except   []string `json:"except,omitempty"`
}

// documentOf is a window that is known to have no faults.
func documentOf(n *strict.Node) document {
	text := func(key string) string { return n.Get(key).Text() }
	d := document{text("days"), text("hours"), text("cron"), text("duration"), text("zone"), n.Get("only").Strings(), n.Get("except").Strings()}
	if strings.Contains(d.Duration, "d") { // an older agent reads a duration without days only
		d.Duration = n.Get("duration").Duration().String()
	}
	return d
}

// Over are the windows that do not open at t or later, by the place at which they were read: their dates have passed.
func (w Windows) Over(t time.Time) []Place {
	var out []Place
	for _, some := range w.all {
		for i := range some {
			if opens, _ := some[i].next(t); opens.IsZero() {
				out = append(out, some[i].place)
			}
		}
	}
	return out
}

func parse(n *strict.Node) (w window, ok bool) {
	good := true
	bad := func(at *strict.Node, hint, format string, args ...any) {
		if good = false; format != "" {
			at.HintFaultf(hint, format, args...)
		}
	}
	if n.Kind() != strict.Object {
		bad(n, `write it like {days: Mon-Fri, hours: "22:00-05:00", zone: Europe/Berlin}`, "must be a mapping with days and hours, or cron and duration")
		return w, false
	}
	w = window{days: everyDay, to: dayLength, zone: zone(n.Need("zone"), bad), place: Place{n.Line, n.Column, n.Path()}}
	days, hours, expression, duration := n.Get("days"), n.Get("hours"), n.Get("cron"), n.Get("duration")
	switch {
	case expression != nil && (days != nil || hours != nil):
		bad(expression, "", "cron excludes days and hours")
	case (expression != nil) != (duration != nil):
		bad(n, "", "cron and duration belong together")
	case expression != nil:
		w.firings(expression, duration, bad)
	case days == nil && hours == nil && n.Get("only") == nil:
		bad(n, `write it like {days: Mon-Fri, hours: "22:00-05:00", zone: Europe/Berlin}`, "has neither days nor hours, cron or only")
	default:
		w.weekly(days, hours, bad)
	}
	w.only, w.except = calendar(n.Get("only"), bad), calendar(n.Get("except"), bad)
	if only := someDates(n.Get("only")); only != "" {
		if rest, ok := strings.CutPrefix(w.text, everyDayText); ok {
			w.text = only + rest
		} else {
			w.text += " only " + only
		}
	}
	if except := someDates(n.Get("except")); except != "" {
		w.text += " except " + except
	}
	n.Close()
	if !good || w.zone == nil {
		return w, false
	}
	w.text += " (" + w.zone.String() + ")"
	if opens, _ := w.next(w.earliest()); opens.IsZero() {
		bad(n, "", "never opens: within ten years no day fits it")
	}
	return w, good
}

// earliest is when the window may have opened first, for all that is known without a clock.
func (w *window) earliest() time.Time {
	from := 20000101
	for i, r := range w.only {
		if r.yearly {
			from = 20000101
			break
		}
		if i == 0 || r.from < from {
			from = r.from
		}
	}
	return time.Date(from/10000, time.Month(from/100%100), from%100, 0, 0, 0, 0, time.UTC).Add(-day)
}

type faults func(at *strict.Node, hint, format string, args ...any)

func short(n *strict.Node, bad faults) (string, bool) {
	s := n.Filled()
	switch {
	case s == "":
		bad(n, "", "") // it is recorded already
		return "", false
	case len(s) > maxText:
		bad(n, "", "is longer than %d bytes", maxText)
		return "", false
	}
	return s, true
}

func zone(n *strict.Node, bad faults) *time.Location {
	if n == nil {
		return nil
	}
	s, ok := short(n, bad)
	if !ok {
		return nil
	}
	z, err := time.LoadLocation(s)
	if err != nil || s == "Local" {
		bad(n, "use a name of the IANA database: Europe/Berlin, America/Chicago, UTC", "the time zone %q is not known here", s)
		return nil
	}
	return z
}

func (w *window) weekly(dayNode, hourNode *strict.Node, bad faults) {
	w.text = everyDayText
	if dayNode != nil {
		s, ok := short(dayNode, bad)
		if !ok {
			return
		}
		if w.days, ok = parseDays(s); !ok {
			bad(dayNode, "write it like Mon-Fri or Mon,Wed,Sat-Sun", "%q are no days of the week", s)
		}
		w.text = s
	}
	if hourNode == nil {
		return
	}
	s, ok := short(hourNode, bad)
	if !ok {
		return
	}
	from, to, cut := strings.Cut(s, "-")
	var fromOK, toOK bool
	w.from, fromOK = parseClock(from)
	w.to, toOK = parseClock(to)
	switch {
	case !cut || !fromOK || !toOK || w.from == dayLength:
		bad(hourNode, `write it like "22:00-05:00"; the day ends at 24:00`, "%q are no hours of a day", s)
	case w.from == w.to:
		bad(hourNode, "a whole day is 00:00-24:00", "begins and ends at the same time")
	case w.to < w.from:
		w.to += dayLength
	}
	w.text += " " + s
}

func (w *window) firings(expression, duration *strict.Node, bad faults) {
	s, ok := short(expression, bad)
	if !ok {
		return
	}
	hint := `five fields, minute hour day month weekday: "0 2 * * 0"; see zone for the time zone`
	if strings.Contains(s, "=") { // the parser takes TZ=
		bad(expression, hint, "%q is no cron expression", s)
		return
	}
	parsed, err := cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor).Parse(s)
	spec, isSpec := parsed.(*cron.SpecSchedule)
	switch {
	case err != nil:
		bad(expression, hint, "%q is no cron expression: %v", s, err)
	case !isSpec:
		bad(expression, hint, "%q depends on when the agent started", s)
	}
	w.cron = spec
	if w.duration = duration.Duration(); w.duration < time.Minute || w.duration > maxDuration {
		bad(duration, "", "must be from 1m to %s", maxDuration)
	}
	w.text = "cron " + s + " for " + w.duration.String()
}

func calendar(n *strict.Node, bad faults) []dates {
	if n == nil {
		return nil
	}
	items := n.Items()
	if len(items) == 0 || len(items) > maxDates {
		bad(n, "", "must be a list of 1 to %d dates", maxDates)
		return nil
	}
	var out []dates
	for _, item := range items {
		s, ok := short(item, bad)
		if !ok {
			continue
		}
		r, ok := parseDates(s)
		if !ok {
			bad(item, "write it like 2026-12-24, 2026-12-24/2027-01-02, or for every year 12-24/01-02", "%q is no date and no range of dates", s)
		}
		out = append(out, r)
	}
	return out
}

const everyDayText = "every day"

// someDates are dates for people, the first few.
func someDates(n *strict.Node) string {
	const most = 4
	all := n.Strings()
	if len(all) <= most {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:most-1], ", "), len(all)-most+1)
}

func parseDates(s string) (r dates, ok bool) {
	from, to, isRange := strings.Cut(s, "/")
	if !isRange {
		to = from
	}
	var toYearly bool
	var fromOK, toOK bool
	r.from, r.yearly, fromOK = parseDate(from)
	r.to, toYearly, toOK = parseDate(to)
	return r, fromOK && toOK && r.yearly == toYearly && (r.yearly || r.from <= r.to)
}

func parseDate(s string) (n int, yearly, ok bool) {
	if len(s) == len("01-02") {
		t, err := time.Parse(time.DateOnly, "2024-"+s) // a leap year
		return int(t.Month())*100 + t.Day(), true, err == nil
	}
	t, err := time.Parse(time.DateOnly, s)
	return t.Year()*10000 + int(t.Month())*100 + t.Day(), false, err == nil && t.Year() >= 2000
}

func parseClock(s string) (minutes int, ok bool) {
	if s == "24:00" {
		return dayLength, true
	}
	t, err := time.Parse("15:04", s)
	return t.Hour()*60 + t.Minute(), err == nil && len(s) == len("15:04")
}

func parseDays(s string) (d days, ok bool) {
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			to = from
		}
		first, last := weekday(from), weekday(to)
		if first < 0 || last < 0 {
			return 0, false
		}
		for n := first; ; n = (n + 1) % 7 {
			d |= 1 << n
			if n == last {
				break
			}
		}
	}
	return d, true
}

// weekday is a day's number, from Sunday; below 0: it is none.
func weekday(s string) int {
	for n := time.Sunday; n <= time.Saturday; n++ {
		if s == n.String()[:3] {
			return int(n)
		}
	}
	return -1
}
