package schedule_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/longshore-dev/longshore/artifacts/schedule"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// read parses the windows of a document "w: […]".
func read(doc string) (schedule.Windows, error) {
	root, err := strict.YAML("agent.yaml", []byte(doc))
	if err != nil {
		return schedule.Windows{}, err
	}
	w := schedule.Parse(root.Get("w"))
	root.Close()
	return w, root.Err()
}

func must(t *testing.T, doc string) schedule.Windows {
	t.Helper()
	w, err := read(doc)
	if err != nil {
		t.Fatalf("%s: %v", doc, err)
	}
	return w
}

// wall is what a clock on the wall of a zone shows in a minute. The oracle below knows nothing else of it.
type wall struct {
	date    string // "2026-03-29"
	weekday string // "Sun"
	clock   string // "02:30"
}

func look(t time.Time, zone *time.Location) wall {
	l := t.In(zone)
	return wall{l.Format("2006-01-02"), l.Format("Mon"), l.Format("15:04")}
}

// yesterday is the day before, by the calendar.
func (w wall) yesterday() wall {
	d, _ := time.Parse("2006-01-02", w.date)
	d = d.AddDate(0, 0, -1)
	return wall{d.Format("2006-01-02"), d.Format("Mon"), "24:00"}
}

// rule says for a minute whether a window is open, or whether it fires then.
type rule struct {
	window string // without its zone
	open   func(w wall) bool
	fires  func(w wall) bool
	lasts  int // minutes, after a firing
	closed func(w wall) bool
}

func weekdays(w wall) bool { return !strings.HasPrefix(w.weekday, "S") }

var rules = []rule{
	{window: `{days: Mon-Fri, hours: "22:00-05:00"}`, open: func(w wall) bool {
		return w.clock >= "22:00" && weekdays(w) || w.clock < "05:00" && weekdays(w.yesterday())
	}},
	{window: `{hours: "02:15-02:45"}`, open: func(w wall) bool { return w.clock >= "02:15" && w.clock < "02:45" }},
	{window: `{hours: "01:30-02:30"}`, open: func(w wall) bool { return w.clock >= "01:30" && w.clock < "02:30" }},
	{window: `{days: "Sun,Fri", hours: "23:30-23:10"}`, open: func(w wall) bool {
		on := func(w wall) bool { return w.weekday == "Sun" || w.weekday == "Fri" }
		return w.clock >= "23:30" && on(w) || w.clock < "23:10" && on(w.yesterday())
	}},
	{window: `{days: Sat-Sun}`, open: func(w wall) bool { return !weekdays(w) }},
	{window: `{hours: "20:00-06:00", except: [2026-03-28/2026-04-02, 12-24/01-02], only: [2026-03-01/2026-12-31]}`, open: func(w wall) bool {
		frozen := func(w wall) bool {
			return w.date >= "2026-03-28" && w.date <= "2026-04-02" || w.date[5:] >= "12-24" || w.date[5:] <= "01-02"
		}
		may := func(w wall) bool { return !frozen(w) && w.date >= "2026-03-01" && w.date <= "2026-12-31" }
		return !frozen(w) && (w.clock >= "20:00" && may(w) || w.clock < "06:00" && may(w.yesterday()))
	}},
	// Uneven gaps: firings of the 1st and the 15th and of each Friday, at 3:15 and at 21:15.
	{window: `{cron: "15 3,21 1,15 * Fri", duration: 7h}`, lasts: 7 * 60, fires: func(w wall) bool {
		return (w.clock == "03:15" || w.clock == "21:15") && (w.weekday == "Fri" || strings.HasSuffix(w.date, "-01") || strings.HasSuffix(w.date, "-15"))
	}},
	{window: `{cron: "*/20 2 * 3-4,9-11 *", duration: 20m}`, lasts: 20, fires: func(w wall) bool {
		return (w.clock == "02:00" || w.clock == "02:20" || w.clock == "02:40") && strings.Contains("03 04 09 10 11", w.date[5:7])
	}},
	{window: `{cron: "30 0 * * Thu", duration: 50h, except: [04-24, 10-30]}`, lasts: 50 * 60, closed: func(w wall) bool {
		return w.date[5:] == "04-24" || w.date[5:] == "10-30"
	}, fires: func(w wall) bool { return w.clock == "00:30" && w.weekday == "Thu" }},
	{window: `{cron: "0 5 * * Thu", duration: 1h}`, lasts: 60, fires: func(w wall) bool { return w.clock == "05:00" && w.weekday == "Thu" }},
}

// Every minute of a year, in five zones whose clocks change at 2:00, at midnight and by half an hour, in both hemispheres.
func TestAYearMinuteByMinute(t *testing.T) {
	begin, end := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(2027, 1, 1, 0, 0, 0, 0, time.UTC)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for _, name := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "America/Santiago"} {
		zone, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		before := 60 * 24 * 7
		var walls []wall
		for m := begin.Add(-time.Duration(before) * time.Minute); m.Before(end); m = m.Add(time.Minute) {
			walls = append(walls, look(m, zone))
		}
		for _, r := range rules {
			t.Run(name+" "+r.window, func(t *testing.T) {
				want, last := make([]bool, len(walls)), -1<<30
				for i, w := range walls {
					switch {
					case r.open != nil:
						want[i] = r.open(w)
					case r.fires(w) && (r.closed == nil || !r.closed(w)):
						last = i
						fallthrough
					default:
						want[i] = i-last < r.lasts && (r.closed == nil || !r.closed(w))
					}
				}
				want = want[before:]
				w := must(t, "w: ["+strings.TrimSuffix(r.window, "}")+", zone: "+name+"}]")
				got, opened := make([]bool, len(want)), 0
				for at := begin; at.Before(end); {
					opens, closes := w.Next(at)
					if opens.IsZero() {
						break
					}
					if closes.IsZero() || !closes.After(opens) || opens.Before(at) {
						t.Fatalf("at %v the window is open from %v to %v", at, opens, closes)
					}
					for m := opens; m.Before(closes) && m.Before(end); m = m.Add(time.Minute) {
						got[int(m.Sub(begin)/time.Minute)] = true
						opened++
					}
					at = closes
				}
				if opened == 0 {
					t.Error("it never opened")
				}
				for i := range want {
					if want[i] != got[i] {
						t.Fatalf("%v: open = %v, want %v", begin.Add(time.Duration(i)*time.Minute).In(zone), got[i], want[i])
					}
				}
				// A clock that jumps, also back: what was asked before does not matter.
				random := rand.New(rand.NewPCG(seed, 0))
				for range 2000 {
					at := begin.Add(time.Duration(random.Int64N(int64(end.Sub(begin)))))
					if i := int(at.Sub(begin) / time.Minute); w.At(at) != want[i] {
						t.Fatalf("At(%v) = %v, want %v", at.In(zone), !want[i], want[i])
					}
				}
			})
		}
	}
}

func TestNext(t *testing.T) {
	const friday = "2026-11-27T12:00:00Z"
	for _, tc := range []struct{ doc, now, opens, closes string }{
		{"w: [{days: Mon-Fri, hours: \"22:00-05:00\", zone: Europe/Berlin}]", friday, "2026-11-27T21:00:00Z", "2026-11-28T04:00:00Z"},
		{"w: [{days: Mon-Fri, hours: \"22:00-05:00\", zone: Europe/Berlin}]", "2026-11-28T04:00:00Z", "2026-11-30T21:00:00Z", "2026-12-01T04:00:00Z"},
		{"w: [{hours: \"08:00-12:00\", zone: UTC}, {hours: \"12:00-13:00\", zone: UTC}, {hours: \"10:00-12:30\", zone: UTC}]", friday, friday, "2026-11-27T13:00:00Z"},
		{"w: [{days: Mon-Sun, zone: UTC}]", friday, friday, "-"},
		{"w: [{cron: \"* * * * *\", duration: 5m, zone: UTC}]", friday, friday, "-"},
		{"w: [{cron: \"@weekly\", duration: 1h, zone: UTC}]", friday, "2026-11-29T00:00:00Z", "2026-11-29T01:00:00Z"},
		{"w: [{only: [2026-11-01], zone: UTC}]", friday, "-", "-"},
		{"w: [{only: [02-29], hours: \"10:00-11:00\", zone: UTC}]", "2097-01-01T00:00:00Z", "2104-02-29T10:00:00Z", "2104-02-29T11:00:00Z"},
	} {
		show := func(x time.Time) string {
			if x.IsZero() {
				return "-"
			}
			return x.UTC().Format(time.RFC3339)
		}
		now, _ := time.Parse(time.RFC3339, tc.now)
		if opens, closes := must(t, tc.doc).Next(now); show(opens) != tc.opens || show(closes) != tc.closes {
			t.Errorf("%s at %s: %s to %s, want %s to %s", tc.doc, tc.now, show(opens), show(closes), tc.opens, tc.closes)
		}
	}
	now, _ := time.Parse(time.RFC3339, friday)
	if opens, closes := (schedule.Windows{}).Next(now); !(schedule.Windows{}).At(now) || !opens.Equal(now) || !closes.IsZero() {
		t.Error("without windows everything is open for good")
	}
}

// A second set of windows can only take time away.
func TestAllIsOpenWhereEachIs(t *testing.T) {
	fleet := must(t, `w: [{days: Mon-Fri, hours: "20:00-06:00", zone: America/New_York}, {days: Sun, zone: UTC}]`)
	site := must(t, `w: [{cron: "0 */5 * * *", duration: 90m, zone: Europe/Berlin, except: [11-26]}]`)
	both := schedule.All(fleet, schedule.Windows{}, site)
	begin, opened := time.Date(2026, 10, 20, 0, 0, 0, 0, time.UTC), 0
	for m := begin; m.Before(begin.AddDate(0, 2, 0)); m = m.Add(7 * time.Minute) {
		want := fleet.At(m) && site.At(m)
		opens, closes := both.Next(m)
		if both.At(m) != want || opens.Equal(m) != want || both.At(opens) != true || both.At(closes) || !both.At(closes.Add(-1)) || both.At(opens.Add(-1)) != want && opens.After(m) {
			t.Fatalf("%v: open %v, want %v; next %v to %v", m, both.At(m), want, opens, closes)
		}
		if want {
			opened++
		}
	}
	if opened == 0 {
		t.Error("never open")
	}
	apart := schedule.All(must(t, "w: [{days: Mon, zone: UTC}]"), must(t, "w: [{days: Wed, zone: UTC}]"))
	if opens, _ := apart.Next(begin); !opens.IsZero() || apart.At(begin) {
		t.Error("windows that have no moment in common open")
	}
}

func TestOver(t *testing.T) {
	w := must(t, "w: [{days: Mon, zone: UTC}, {only: [2026-11-01/2026-11-03], zone: UTC}]")
	if over := w.Over(time.Date(2026, 11, 4, 0, 0, 0, 0, time.UTC)); fmt.Sprint(over) != "[{1 29 w[1]}]" {
		t.Errorf("over: %v", over)
	}
	if over := w.Over(time.Date(2026, 11, 3, 23, 0, 0, 0, time.UTC)); len(over) != 0 {
		t.Errorf("over on the last day: %v", over)
	}
}

// A list has one text, however it was written, and is the same list when it is read again.
func TestJSON(t *testing.T) {
	const want = `[{"days":"Mon-Fri","hours":"22:00-05:00","zone":"Europe/Berlin","except":["12-24/01-02"]},` +
		`{"cron":"0 2 1 * *","duration":"4h","zone":"UTC"},{"zone":"UTC","only":["2027-03-06"]}]`
	w := must(t, `w:
  - zone: Europe/Berlin
    except: [12-24/01-02]
    hours: 22:00-05:00
    days: Mon-Fri
  - {cron: 0 2 1 * *, zone: UTC, duration: 4h}
  - {only: ["2027-03-06"], zone: UTC}
`)
	if w.JSON() != want {
		t.Errorf("JSON = %s, want %s", w.JSON(), want)
	}
	if shown := strings.Join(w.Strings(), "\n"); shown != "Mon-Fri 22:00-05:00 except 12-24/01-02 (Europe/Berlin)\ncron 0 2 1 * * for 4h0m0s (UTC)\n2027-03-06 (UTC)" {
		t.Errorf("Strings =\n%s", shown)
	}
	long := must(t, `w: [{days: Mon, only: [01-01, 02-01, 03-01, 04-01, 05-01], hours: "06:00-07:00", zone: UTC}]`)
	if long.String() != "Mon 06:00-07:00 only 01-01, 02-01, 03-01 and 2 more (UTC)" {
		t.Errorf("String = %s", long)
	}
	days := must(t, `w: [{cron: "0 2 1 * *", duration: 1d12h, zone: UTC}]`)
	if got := days.JSON(); got != `[{"cron":"0 2 1 * *","duration":"36h0m0s","zone":"UTC"}]` { // older agents read no days
		t.Errorf("JSON = %s", got)
	}
	again, err := schedule.ParseJSON("windows", []byte(want))
	if err != nil || again.JSON() != want || again.String() != w.String() {
		t.Errorf("ParseJSON = %s (%s), %v", again, again.JSON(), err)
	}
	if text, err := json.Marshal(map[string]any{"a": w, "b": schedule.Windows{}}); err != nil || string(text) != `{"a":`+want+`,"b":null}` {
		t.Errorf("Marshal = %s, %v", text, err)
	}
	var read struct{ A, B schedule.Windows }
	if err := json.Unmarshal([]byte(`{"A":`+want+`,"B":null}`), &read); err != nil || read.A.JSON() != want || !read.B.Always() {
		t.Errorf("Unmarshal = %+v, %v", read, err)
	}
	all := schedule.All(w, w)
	if text, err := json.Marshal(all); err == nil {
		t.Errorf("Marshal of two lists = %s", text)
	}
	if all.JSON() != "" || (schedule.Windows{}).JSON() != "" {
		t.Errorf("JSON of no list = %s", all.JSON())
	}
	for text, want := range map[string]string{
		``: "windows: is empty", `{}`: "windows:1:1: must be a list, is an object", `[]`: "windows:1:1: has no window", `[null]`: "windows:1:2: [0]: must be a mapping",
		`[{"days":"Mon","zone":"UTC","hour":"x"}]`:                                                 `windows:1:29: [0].hour: unknown key, did you mean "hours"?`,
		`[{"days":"Mon","zone":"Mars/Base"}]`:                                                      `[0].zone: the time zone "Mars/Base" is not known here`,
		`[{"days":null,"zone":"UTC"}]`:                                                             "[0].days: must be a string, is null",
		`[{"days":"Mon","zone":"UTC"}] ` + "x":                                                     "more data after the document",
		"[" + strings.Repeat(`{"days":"Mon","zone":"UTC"},`, 100) + `{"days":"Mon","zone":"UTC"}]`: "has 101 windows, more than 100",
	} {
		w, err := schedule.ParseJSON("windows", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseJSON(%.60s) = %v, want %s", text, err, want)
		}
		for hour := range 7 * 24 {
			if w.At(time.Date(2026, 11, 23, hour, 30, 0, 0, time.UTC)) {
				t.Fatalf("ParseJSON(%.60s) is open in spite of its faults", text)
			}
		}
	}
}

func TestFaults(t *testing.T) {
	for _, tc := range []struct{ window, want string }{
		{`x`, "w[0]: must be a mapping with days and hours, or cron and duration"},
		{`{days: Mon, hours: "22:00-05:00"}`, "w[0]: zone is missing"},
		{`{days: Mon, zone: Europe/Berlim}`, `w[0].zone: the time zone "Europe/Berlim" is not known here`},
		{`{days: Mon, zone: Local}`, "not known here"},
		{`{days: Mon, zone: ../../etc/passwd}`, "not known here"},
		{`{zone: UTC}`, "w[0]: has neither days nor hours, cron or only"},
		{`{days: Mon-Fryday, zone: UTC}`, "w[0].days: \"Mon-Fryday\" are no days of the week"},
		{`{hours: "5:00-6:00", zone: UTC}`, "w[0].hours: \"5:00-6:00\" are no hours of a day"},
		{`{hours: "24:00-06:00", zone: UTC}`, "are no hours of a day"},
		{`{hours: "06:00-06:00", zone: UTC}`, "w[0].hours: begins and ends at the same time"},
		{`{cron: "0 2 * * 0", zone: UTC}`, "w[0]: cron and duration belong together"},
		{`{cron: "0 2 * * 0", days: Mon, duration: 1h, zone: UTC}`, "w[0].cron: cron excludes days and hours"},
		{`{cron: "0 2 * *", duration: 1h, zone: UTC}`, "w[0].cron: \"0 2 * *\" is no cron expression: expected exactly 5 fields"},
		{`{cron: "TZ=UTC", duration: 1h, zone: UTC}`, "w[0].cron: \"TZ=UTC\" is no cron expression"},
		{`{cron: "@every 1h", duration: 1h, zone: UTC}`, "depends on when the agent started"},
		{`{cron: "0 2 * * 0", duration: 1s, zone: UTC}`, "w[0].duration: must be from 1m"},
		{`{cron: "0 2 30 2 *", duration: 1h, zone: UTC}`, "w[0]: never opens: within ten years no day fits it"},
		{`{days: Mon, only: [2026-11-24], zone: UTC}`, "never opens"}, // a Tuesday
		{`{only: [2026-11-24], except: [11-24], zone: UTC}`, "never opens"},
		{`{only: [2026-02-30], zone: UTC}`, "w[0].only[0]: \"2026-02-30\" is no date"},
		{`{only: [2026-02-03/2026-02-01], zone: UTC}`, "is no date and no range"},
		{`{only: [], zone: UTC}`, "w[0].only: must be a list of 1 to 400 dates"},
		{`{days: Mon, hour: x, zone: UTC}`, "w[0].hour: unknown key, did you mean \"hours\"?"},
	} {
		w, err := read("w:\n - " + tc.window + "\n")
		if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "agent.yaml:2:") {
			t.Errorf("%s: %v, want %s", tc.window, err, tc.want)
		}
		if strings.Count(fmt.Sprint(err), "\n") > 0 {
			t.Errorf("%s: more than one fault for one mistake: %v", tc.window, err)
		}
		if now := time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC); w.At(now) {
			t.Errorf("%s: open in spite of its faults", tc.window)
		}
	}
	if _, err := read("w: [{days: X, zone: Y}, {hours: 5, zone: UTC}]"); strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("not every fault is told: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, r := range rules {
		f.Add(strings.TrimSuffix(r.window, "}")+", zone: Africa/Cairo}", int64(1_780_000_000))
	}
	f.Add(`{cron: "CRON_TZ=", duration: 1h, zone: UTC}`, int64(-1<<40))
	f.Fuzz(func(t *testing.T, window string, unix int64) {
		w, err := read("w: [" + window + "]")
		if err != nil {
			return
		}
		if again, err := schedule.ParseJSON("windows", []byte(w.JSON())); err != nil || again.JSON() != w.JSON() || again.String() != w.String() {
			t.Errorf("%s is %s, and that is %s, %v", window, w.JSON(), again.JSON(), err)
		}
		now := time.Unix(unix%(1<<36), 0)
		opens, closes := w.Next(now)
		if !opens.IsZero() && (opens.Before(now) || !w.At(opens)) || !closes.IsZero() && (!closes.After(opens) || w.At(closes) || !w.At(closes.Add(-time.Nanosecond))) || w.At(now) != opens.Equal(now) {
			t.Errorf("%s at %v: %v to %v", window, now, opens, closes)
		}
	})
}

func BenchmarkNext(b *testing.B) {
	w, err := read(`w: [{days: Mon-Fri, hours: "22:00-05:00", zone: Europe/Berlin, except: [12-24/01-02]}, {cron: "0 2 1 * *", duration: 4h, zone: Europe/Berlin}]`)
	if err != nil {
		b.Fatal(err)
	}
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	for b.Loop() {
		w.Next(now)
	}
}
