package logs

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Output has no timestamps. At each rotation the keeper notes the size of each log and the time, in a file beside the log: output between
// two notes was written between their times. They serve --since and --until and give lines their times, with the precision of
// the rotation interval; old notes are thinned out and are less precise. Output that was written while no agent ran is between
// the last note before and the first note after.
const (
	timesSuffix = ".times"
	// maxStamps bounds the notes of a log. More are thinned out until the distance of two is an agePrecision-th of their age: all of
	// the last two minutes are kept, one in 56 s of an hour ago, one in 22 min of a day ago.
	maxStamps    = 1024
	agePrecision = 64
	// maxTimes bounds what is read of a file of notes: it is written again before it reaches half of that.
	maxTimes = 128 << 10
	// timesVersion begins a file of notes.
	timesVersion = "1"
)

// stamp is a time and the position of the output then.
type stamp struct {
	at  int64 // milliseconds since 1970
	pos int64 // in the whole output
}

// timeline is the notes of a log. Times and positions of its stamps increase.
type timeline struct {
	stamps []stamp
	looked int64 // last check, milliseconds
	saved  int   // stamps that are in the file
	lines  int   // in the file
}

// note adds a position of the output. It reports whether there is a new stamp.
func (l *timeline) note(now time.Time, pos int64) bool {
	at, before := now.UnixMilli(), l.looked
	l.looked = at
	if n := len(l.stamps); n > 0 {
		for i := n - 1; i >= 0 && l.stamps[i].at > at; i-- { // the clock was set back: all of this was before now
			l.stamps[i].at = at
		}
		last := l.stamps[n-1]
		if pos <= last.pos {
			return false
		}
		if before > last.at && before <= at { // nothing was written in between
			l.stamps = append(l.stamps, stamp{before, last.pos})
		}
	}
	l.stamps = append(l.stamps, stamp{at, pos})
	return true
}

// thin removes stamps when there are too many, more of the older ones, and those before begin. It reports whether it did.
func (l *timeline) thin(begin int64) bool {
	was := len(l.stamps)
	if n, _ := l.find(begin); n > 1 {
		l.stamps = slices.Delete(l.stamps, 0, n-1)
	}
	if len(l.stamps) > maxStamps {
		for parts := int64(agePrecision); len(l.stamps) > maxStamps*3/4 && parts > 0; parts /= 2 {
			kept := l.stamps[:1]
			for i, s := range l.stamps[1:] {
				if s.at-kept[len(kept)-1].at >= (l.looked-s.at)/parts || i == len(l.stamps)-2 {
					kept = append(kept, s)
				}
			}
			l.stamps = kept
		}
		l.stamps = l.stamps[max(0, len(l.stamps)-maxStamps):]
	}
	return len(l.stamps) != was
}

// find is the first stamp beyond a position.
func (l *timeline) find(pos int64) (int, bool) {
	return slices.BinarySearchFunc(l.stamps, pos, func(s stamp, pos int64) int {
		if s.pos > pos {
			return 1
		}
		return -1
	})
}

// since is a position before which everything was written before t; 0: unknown.
func (l *timeline) since(t time.Time) int64 {
	n, _ := slices.BinarySearchFunc(l.stamps, t.UnixMilli(), func(s stamp, at int64) int { return cmp.Or(cmp.Compare(s.at, at), 1) })
	if n == 0 {
		return 0
	}
	return l.stamps[n-1].pos
}

// until is a position from which everything was written after t; math.MaxInt64: unknown.
func (l *timeline) until(t time.Time) int64 {
	n, _ := slices.BinarySearchFunc(l.stamps, t.UnixMilli(), func(s stamp, at int64) int { return cmp.Or(cmp.Compare(s.at, at), 1) })
	if n == len(l.stamps) {
		return math.MaxInt64
	}
	return l.stamps[n].pos
}

// when is the time of the first stamp beyond a position; zero: there is none yet.
func (l *timeline) when(pos int64) time.Time {
	n, _ := l.find(pos)
	if n == len(l.stamps) {
		return time.Time{}
	}
	return time.UnixMilli(l.stamps[n].at)
}

// loadTimes reads the notes of an earlier process. Notes that do not match the files are dropped.
func (s *logState) loadTimes(file string) {
	f, err := os.Open(file + timesSuffix)
	if err != nil {
		return
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxTimes))
	if err != nil {
		return
	}
	cut, moved, stamps, ok := parseTimes(data)
	if !ok {
		return
	}
	info, err := os.Stat(file)
	if err != nil || len(stamps) > 0 && stamps[len(stamps)-1].pos > cut+info.Size() {
		return // the log was cut, or is another one
	}
	for n, size := range moved {
		if info, err := os.Stat(rotated(file, n+1)); err != nil || info.Size() != size {
			moved = moved[:n]
			break
		}
	}
	s.cut, s.moved = cut, moved
	s.times = timeline{stamps: stamps, saved: len(stamps), lines: len(stamps)}
	if len(stamps) > 0 {
		s.times.looked = stamps[len(stamps)-1].at
	}
}

// parseTimes reads a file of notes: a version, what was cut off, the lengths of the rotated files; then positions and times.
// A last line without its end is left out: the disk was full, or the power failed.
func parseTimes(data []byte) (cut int64, moved []int64, stamps []stamp, ok bool) {
	data = data[:bytes.LastIndexByte(data, '\n')+1]
	lines := bufio.NewScanner(bytes.NewReader(data))
	if !lines.Scan() {
		return 0, nil, nil, false
	}
	head := strings.Fields(lines.Text())
	if len(head) < 2 || head[0] != timesVersion {
		return 0, nil, nil, false
	}
	number := func(s string) int64 {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < 0 {
			return -1
		}
		return n
	}
	if cut = number(head[1]); cut < 0 {
		return 0, nil, nil, false
	}
	for _, f := range head[2:] {
		n := number(f)
		if n < 0 {
			return 0, nil, nil, false
		}
		moved = append(moved, n)
	}
	for lines.Scan() {
		a, b, _ := strings.Cut(lines.Text(), " ")
		x := stamp{pos: number(a), at: number(b)}
		if x.pos < 0 || x.at < 0 || x.pos > math.MaxInt64/2 {
			return 0, nil, nil, false
		}
		if n := len(stamps); n > 0 && (x.pos < stamps[n-1].pos || x.at < stamps[n-1].at) {
			return 0, nil, nil, false
		}
		stamps = append(stamps, x)
	}
	return cut, moved, stamps, cut <= math.MaxInt64/2 && lines.Err() == nil
}

// note adds the size of a log at a time.
func (s *logState) note(file string, size int64, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.times.stamps) == 0 && size == 0 {
		s.times.looked = now.UnixMilli()
		s.times.stamps = []stamp{{now.UnixMilli(), s.cut}} // nothing was written before
		return s.saveTimes(file)
	}
	if !s.times.note(now, s.cut+size) {
		return nil
	}
	begin := s.cut
	for _, n := range s.moved {
		begin -= n
	}
	if s.times.thin(begin) || s.times.lines > 2*maxStamps {
		return s.saveTimes(file)
	}
	return s.appendTimes(file)
}

// appendTimes appends the newest notes to their file. A full disk only costs precision.
func (s *logState) appendTimes(file string) error {
	var b bytes.Buffer
	for _, x := range s.times.stamps[s.times.saved:] {
		fmt.Fprintf(&b, "%d %d\n", x.pos, x.at)
	}
	f, err := os.OpenFile(file+timesSuffix, os.O_WRONLY|os.O_APPEND, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return s.saveTimes(file)
	}
	if err != nil {
		return err
	}
	n, err := f.Write(b.Bytes())
	if err = errors.Join(err, f.Close()); err != nil {
		if n > 0 { // a partial line would corrupt the next
			return errors.Join(ignoreFull(err), ignoreMissing(os.Remove(file+timesSuffix)))
		}
		return ignoreFull(err)
	}
	s.times.lines += len(s.times.stamps) - s.times.saved
	s.times.saved = len(s.times.stamps)
	return nil
}

// saveTimes replaces the file of notes.
func (s *logState) saveTimes(file string) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %d", timesVersion, s.cut)
	for _, n := range s.moved {
		fmt.Fprintf(&b, " %d", n)
	}
	b.WriteByte('\n')
	for _, x := range s.times.stamps {
		fmt.Fprintf(&b, "%d %d\n", x.pos, x.at)
	}
	fresh := file + timesSuffix + copySuffix
	err := os.WriteFile(fresh, b.Bytes(), 0o640)
	if err == nil {
		err = os.Rename(fresh, file+timesSuffix)
	}
	if err != nil { // the old file is wrong now
		return errors.Join(ignoreFull(err), ignoreMissing(os.Remove(fresh)), ignoreMissing(os.Remove(file+timesSuffix)))
	}
	s.times.saved, s.times.lines = len(s.times.stamps), len(s.times.stamps)
	return nil
}
