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

// Output carries no times. The rotation notes how far each log has come at each look, beside the log: what lies between two
// notes was written between their times. They bound from when and until when a reader wants, and give lines their times, to
// within the time between two looks; old notes are thinned out and so bound less closely. What was written while no agent
// ran lies between the last note before and the first note after.
const (
	timesSuffix = ".times"
	// maxStamps bounds the notes of a log. When there are more, they are thinned out to where they are agePrecision-th parts of
	// their age apart: all are kept of the last two minutes, one in 56 s of an hour ago, one in 22 min of a day ago.
	maxStamps    = 1024
	agePrecision = 64
	// maxTimes bounds what is read of a file of notes: it is begun anew before it reaches half of that.
	maxTimes = 128 << 10
	// timesVersion begins a file of notes.
	timesVersion = "1"
)

// stamp says that at a time the output had come to a position.
type stamp struct {
	at  int64 // milliseconds since 1970
	pos int64 // in the whole output
}

// timeline is what is known of when a log was written. Its stamps grow in both.
type timeline struct {
	stamps []stamp
	looked int64 // last look, milliseconds
	saved  int   // stamps that are in the file
	lines  int   // in the file
}

// note takes in that the output has come to a position. It tells whether anything is new.
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

// thin drops stamps when there are too many, the older the more, and those that say nothing about output from begin on. It
// tells whether it did.
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

// since is a position before which everything was written before t; 0: none is known.
func (l *timeline) since(t time.Time) int64 {
	n, _ := slices.BinarySearchFunc(l.stamps, t.UnixMilli(), func(s stamp, at int64) int { return cmp.Or(cmp.Compare(s.at, at), 1) })
	if n == 0 {
		return 0
	}
	return l.stamps[n-1].pos
}

// until is a position from which on everything was written after t; the largest: none is known.
func (l *timeline) until(t time.Time) int64 {
	n, _ := slices.BinarySearchFunc(l.stamps, t.UnixMilli(), func(s stamp, at int64) int { return cmp.Or(cmp.Compare(s.at, at), 1) })
	if n == len(l.stamps) {
		return math.MaxInt64
	}
	return l.stamps[n].pos
}

// when is the time of the look that first saw a position; zero: none did yet.
func (l *timeline) when(pos int64) time.Time {
	n, _ := l.find(pos)
	if n == len(l.stamps) {
		return time.Time{}
	}
	return time.UnixMilli(l.stamps[n].at)
}

// loadTimes reads what an earlier process noted. What does not fit the files as they are is forgotten: nothing is then known
// of when they were written.
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
// A last line without its end is left out: the disk was full, or the power went.
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

// look notes how far a log has come.
func (s *logState) look(file string, now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := os.Stat(file)
	if err != nil {
		return ignoreMissing(err)
	}
	if len(s.times.stamps) == 0 && info.Size() == 0 {
		s.times.looked = now.UnixMilli()
		s.times.stamps = []stamp{{now.UnixMilli(), s.cut}} // nothing was written before
		return s.saveTimes(file)
	}
	if !s.times.note(now, s.cut+info.Size()) {
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

// appendTimes adds the newest notes to their file. A disk that is full costs precision, nothing else.
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
		if n > 0 { // half a line would spoil the next
			return errors.Join(ignoreFull(err), ignoreMissing(os.Remove(file+timesSuffix)))
		}
		return ignoreFull(err)
	}
	s.times.lines += len(s.times.stamps) - s.times.saved
	s.times.saved = len(s.times.stamps)
	return nil
}

// saveTimes writes all notes in place of what there is.
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
	if err != nil { // what is there is not true any more
		return errors.Join(ignoreFull(err), ignoreMissing(os.Remove(fresh)), ignoreMissing(os.Remove(file+timesSuffix)))
	}
	s.times.saved, s.times.lines = len(s.times.stamps), len(s.times.stamps)
	return nil
}
