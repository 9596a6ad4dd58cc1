package logs

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
)

// timedLog writes ten lines a minute for some minutes, with a look every two seconds.
func timedLog(t *testing.T, r *Keeper, file string, begin time.Time, minutes int) time.Time {
	t.Helper()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	now := begin
	r.now = func() time.Time { return now }
	for i := range minutes * 30 {
		if i%3 == 0 {
			if _, err := fmt.Fprintf(f, "%d %s\n", now.Unix(), strings.Repeat("x", 80)); err != nil {
				t.Fatal(err)
			}
		}
		now = now.Add(2 * time.Second)
		if err := r.Rotate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return now
}

// span is the first and last time that lines tell, in seconds since 1970, and how many lines there are.
func span(t *testing.T, text string) (first, last int64, n int) {
	t.Helper()
	for line := range strings.Lines(text) {
		s, _, _ := strings.Cut(line, " ")
		at, err := strconv.ParseInt(s, 10, 64)
		if err != nil || !strings.HasSuffix(line, "x\n") {
			t.Fatalf("not a whole line: %.100q", line)
		}
		if n == 0 {
			first = at
		}
		last = at
		n++
	}
	return first, last, n
}

func TestSinceAndUntil(t *testing.T) {
	begin := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for name, maxSize := range map[string]int64{"one file": 10 << 20, "rotated": 16 << 10} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			limits := Limits{MaxSize: maxSize, MaxFiles: 50, Budget: 1 << 30}
			r, file := logRig(t, dir, limits)
			end := timedLog(t, r, file, begin, 60)
			other, _ := logRig(t, dir, limits) // the next process
			other.now = r.now
			for _, r := range []*Keeper{r, other} {
				for _, back := range []time.Duration{10 * time.Second, time.Minute, 10 * time.Minute, 31 * time.Minute, 59 * time.Minute} {
					since, slack := end.Add(-back), 10+int64(back/time.Second)/32
					first, last, n := span(t, readLog(t, r, file, workload.LogOptions{Since: since}))
					if first > since.Unix()+6 || first < since.Unix()-slack || last < end.Unix()-6 || n == 0 {
						t.Errorf("since %v: %v to %v, %d lines", since, time.Unix(first, 0).UTC(), time.Unix(last, 0).UTC(), n)
					}
					first, last, n = span(t, readLog(t, r, file, workload.LogOptions{Until: since}))
					if first != begin.Unix() || last < since.Unix()-6 || last > since.Unix()+slack || n == 0 {
						t.Errorf("until %v: %v to %v, %d lines", since, time.Unix(first, 0).UTC(), time.Unix(last, 0).UTC(), n)
					}
				}
				if _, _, n := span(t, readLog(t, r, file, workload.LogOptions{Since: begin.Add(-time.Hour)})); n != 600 {
					t.Errorf("since before everything: %d lines, want 600", n)
				}
				if _, _, n := span(t, readLog(t, r, file, workload.LogOptions{Since: begin, Tail: 3})); n != 3 {
					t.Errorf("the last 3 lines since the begin: %d", n)
				}
				if got := readLog(t, r, file, workload.LogOptions{Since: end.Add(time.Hour)}); strings.Count(got, "\n") > 1 {
					t.Errorf("since a time to come: %q", got)
				}
				l, err := openLog(t.Context(), r.files.get(file), file, workload.LogOptions{Since: end.Add(-5 * time.Minute)}, r.now)
				if err != nil {
					t.Fatal(err)
				}
				text, err := io.ReadAll(&stampedReader{logReader: l})
				if err != nil {
					t.Fatal(err)
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
				for line := range strings.Lines(string(text)) {
					stamp, rest, _ := strings.Cut(line, " ")
					at, err := time.Parse(workload.StampFormat, stamp)
					written, _, _ := span(t, rest)
					if late := at.Unix() - written; err != nil || late < 0 || late > 20 {
						t.Fatalf("%q: %v, %d s after it was written", line[:60], err, late)
					}
				}
			}
		})
	}
}

// What nobody looked at is shown rather than hidden; a clock that is set back takes nothing away.
func TestTimesThatAreNotKnown(t *testing.T) {
	begin := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	r, file := logRig(t, t.TempDir(), Limits{MaxSize: 1 << 20, MaxFiles: 3, Budget: 1 << 30})
	if err := os.WriteFile(file, []byte("1 x\n2 x\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	end := timedLog(t, r, file, begin, 5)
	if _, _, n := span(t, readLog(t, r, file, workload.LogOptions{Since: begin.Add(-time.Minute)})); n != 52 {
		t.Errorf("what was there before the first look: %d lines, want all 52", n)
	}
	end = timedLog(t, r, file, end.Add(-time.Hour), 5) // the clock was set back
	if _, _, n := span(t, readLog(t, r, file, workload.LogOptions{Since: end.Add(-time.Minute)})); n < 10 || n > 14 {
		t.Errorf("the last minute after the clock was set back: %d lines", n)
	}
	for name, spoil := range map[string]func() error{
		"notes cut off":  func() error { return os.Truncate(file+timesSuffix, 700) },
		"notes of chaos": func() error { return os.WriteFile(file+timesSuffix, []byte("1 0\n5 9\n4 8\n"), 0o640) },
		"no notes":       func() error { return os.Remove(file + timesSuffix) },
		"log cut off":    func() error { return os.Truncate(file, 1000) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(name, err)
		}
		next, _ := logRig(t, filepath.Dir(r.root), r.limits)
		next.now = func() time.Time { return end.Add(time.Minute) }
		if err := next.Rotate(t.Context()); err != nil {
			t.Error(name, err)
		}
		if got := readLog(t, next, file, workload.LogOptions{Since: end.Add(-3 * time.Minute)}); len(got) < 900 {
			t.Errorf("%s: %d bytes since 3 min ago", name, len(got))
		}
	}
}

// Notes stay few however long a log is written to, and the newest stay exact.
func TestNotesAreThinnedOut(t *testing.T) {
	var l timeline
	begin := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	const looks = 100_000
	for i := range looks {
		l.note(begin.Add(time.Duration(i)*2*time.Second), int64(i+1)*100)
		l.thin(0)
		if len(l.stamps) > maxStamps {
			t.Fatalf("%d notes", len(l.stamps))
		}
	}
	at := func(i int) time.Time { return begin.Add(time.Duration(i) * 2 * time.Second) }
	for _, tc := range []struct{ look, within int }{{looks - 1, 1}, {looks - 50, 1}, {looks - 400, 14}, {looks - 1000, 32}, {looks / 2, looks / 16}, {looks / 10, looks / 16}} {
		pos := l.since(at(tc.look))
		if off := int64(tc.look)*100 - pos; off < 0 || off > int64(tc.within)*100 {
			t.Errorf("since look %d: %d bytes too early", tc.look, off)
		}
		if w := l.when(int64(tc.look)*100 + 50); w.Before(at(tc.look)) || w.After(at(tc.look+tc.within)) {
			t.Errorf("look %d is told as %v", tc.look, w)
		}
	}
}

func TestNotesOnAFullDisk(t *testing.T) {
	dir := smallDisk(t)
	r, file := logRig(t, dir, Limits{MaxSize: 1 << 20, MaxFiles: 2, Budget: 1 << 30})
	begin := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	end := timedLog(t, r, file, begin, 5)
	fill(t, dir)
	if err := os.Truncate(file, sizeOf(t, file)+100); err != nil { // a hole: something grew
		t.Fatal(err)
	}
	for range 3 {
		if err := r.Rotate(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "ballast")); err != nil {
		t.Fatal(err)
	}
	if got := readLog(t, r, file, workload.LogOptions{Since: end.Add(-time.Minute)}); len(got) < 800 || len(got) > 1500 {
		t.Errorf("%d bytes since a minute ago", len(got))
	}
}

func FuzzTimes(f *testing.F) {
	f.Add([]byte("1 0\n"))
	f.Add([]byte("1 4096 100 200\n4100 1700000000000\n4200 1700000002000\n"))
	f.Add([]byte("1 -1\n"))
	f.Add([]byte("2 0\nx"))
	f.Fuzz(func(t *testing.T, data []byte) {
		cut, _, stamps, ok := parseTimes(data)
		if !ok {
			return
		}
		l := timeline{stamps: stamps}
		for _, s := range stamps {
			if p := l.since(time.UnixMilli(s.at)); p < 0 || p > s.pos {
				t.Errorf("since %d = %d, noted %d", s.at, p, s.pos)
			}
		}
		if l.thin(cut); len(l.stamps) > max(maxStamps, len(stamps)) {
			t.Error("thinning adds")
		}
	})
}
