package logs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
)

// unknown is the position of output of which only the order is known.
const unknown = -1

// oldLog is a rotated file.
type oldLog struct {
	f       *os.File
	begin   int64 // in the whole output, or unknown
	size    int64
	written time.Time
}

// logReader reads rotated files, then the current one, and with follow what is appended.
type logReader struct {
	ctx    context.Context //nolint:containedctx // the only way to end a reader
	state  *logState
	file   string
	follow bool
	until  time.Time // zero: no end
	now    func() time.Time

	// The rest is guarded by the state's lock, which Read and Close share.
	shut bool
	old  []oldLog // still to be read, oldest first
	cur  *os.File // nil: not there yet
	at   int64    // position in the whole output of what is read next, in and behind the current file
	read int64    // position of the last read, or unknown
	seen time.Time
	over bool // the requested part was read
	done chan struct{}
	once sync.Once
}

// openLog opens everything under the lock, so that no rotation happens meanwhile.
func openLog(ctx context.Context, state *logState, file string, o workload.LogOptions, now func() time.Time) (*logReader, error) {
	state.mu.Lock()
	defer state.mu.Unlock()
	l := &logReader{
		ctx: ctx, state: state, file: file, follow: o.Follow, until: o.Until, now: now, at: state.cut, done: make(chan struct{}),
	}
	cur, err := os.Open(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l.cur = cur
	err = l.openRotated()
	if err == nil && o.Tail != 0 {
		err = l.seekTail(o.Tail)
	}
	if err == nil && !o.Since.IsZero() {
		err = l.seekTime(o.Since)
	}
	if err != nil {
		return nil, errors.Join(err, l.closeFiles())
	}
	slices.Reverse(l.old)
	return l, nil
}

// openRotated opens the rotated files, newest first.
func (l *logReader) openRotated() error {
	end := l.state.cut
	for n := 1; ; n++ {
		f, err := os.Open(rotated(l.file, n))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		x := oldLog{f: f, begin: unknown}
		l.old = append(l.old, x)
		info, err := f.Stat()
		if err != nil {
			return err
		}
		x.size, x.written = info.Size(), info.ModTime()
		if n <= len(l.state.moved) {
			end -= l.state.moved[n-1]
			x.begin = end
		}
		l.old[n-1] = x
	}
}

// drop closes the rotated files from index n on: they are before the requested part.
func (l *logReader) drop(n int) error {
	var errs []error
	for _, x := range l.old[n:] {
		errs = append(errs, x.f.Close())
	}
	l.old = l.old[:n]
	return errors.Join(errs...)
}

// seekTail moves the files to the start of the last lines. These are at most maxStampedLine bytes each on average: the front of a
// longer tail is cut off.
func (l *logReader) seekTail(lines int) error {
	if lines == workload.NoTail {
		return l.seekEnd()
	}
	t := tailSearch{lines: lines, bytes: int64(lines) * maxStampedLine, final: true}
	if l.cur != nil {
		pos, err := t.in(l.cur)
		if err != nil {
			return err
		}
		l.at += pos
	}
	for i, x := range l.old {
		if t.lines <= 0 || t.bytes <= 0 {
			return l.drop(i)
		}
		pos, err := t.in(x.f)
		if err != nil {
			return err
		}
		if _, err := x.f.Seek(pos, io.SeekStart); err != nil {
			return err
		}
	}
	return nil
}

// seekEnd moves behind all that is there.
func (l *logReader) seekEnd() error {
	if l.cur != nil {
		info, err := l.cur.Stat()
		if err != nil {
			return err
		}
		l.at += info.Size()
	}
	return l.drop(0)
}

// seekTime moves the files to the start of the output since a time, or a bit before.
func (l *logReader) seekTime(t time.Time) error {
	from := l.state.times.since(t)
	if l.cur != nil && from > l.at {
		begin, err := lineStart(l.cur, from-l.state.cut)
		if err != nil {
			return err
		}
		l.at = max(l.at, l.state.cut+begin)
	}
	for i, x := range l.old {
		switch {
		case x.begin == unknown:
			if from > 0 || x.written.Before(t) { // they are before everything whose position is known
				return l.drop(i)
			}
		case x.begin+x.size <= from:
			return l.drop(i)
		case x.begin < from:
			begin, err := lineStart(x.f, from-x.begin)
			if err != nil {
				return err
			}
			here, err := x.f.Seek(0, io.SeekCurrent)
			if err == nil && begin > here {
				_, err = x.f.Seek(begin, io.SeekStart)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// lineStart is the start of the line at a position, at most tailChunk before it.
func lineStart(f *os.File, pos int64) (int64, error) {
	lo := max(0, pos-tailChunk)
	b := make([]byte, pos-lo)
	n, err := f.ReadAt(b, lo)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	return lo + int64(bytes.LastIndexByte(b[:n], '\n')+1), nil
}

// tailSearch finds the start of the last lines, newest file first.
type tailSearch struct {
	lines int   // still to be found
	bytes int64 // left for them
	final bool  // no later file has content: a line end at the end closes the last line and does not begin another
}

// in returns the start of the requested part in a file.
func (t *tailSearch) in(f *os.File) (pos int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	end, last := info.Size(), t.final
	t.final = last && end == 0
	least := max(0, end-t.bytes)
	buf := make([]byte, tailChunk)
	for hi := end; hi > least; {
		lo := max(least, hi-tailChunk)
		b := buf[:hi-lo]
		if _, err := f.ReadAt(b, lo); err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for i := len(b) - 1; i >= 0; i-- {
			if b[i] != '\n' || last && lo+int64(i) == end-1 {
				continue
			}
			if t.lines--; t.lines == 0 {
				return lo + int64(i) + 1, nil
			}
		}
		hi = lo
	}
	t.bytes -= end - least
	return least, nil
}

func (l *logReader) Read(p []byte) (int, error) {
	for {
		if l.over {
			return 0, io.EOF
		}
		n, err := l.readSome(p)
		if n = l.bound(p[:n]); n > 0 {
			return n, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if !l.follow || l.over || !l.until.IsZero() && l.now().After(l.until.Add(followPause)) {
			return 0, io.EOF
		}
		select {
		case <-time.After(followPause):
		case <-l.ctx.Done():
			return 0, io.EOF
		case <-l.done:
			return 0, fs.ErrClosed
		}
	}
}

// bound cuts the read bytes after the last line of the requested part.
func (l *logReader) bound(p []byte) int {
	if l.until.IsZero() || len(p) == 0 {
		return len(p)
	}
	if l.read == unknown {
		return len(p) // a file of unknown position is read completely
	}
	l.state.mu.Lock()
	end := l.state.times.until(l.until)
	l.state.mu.Unlock()
	if end == math.MaxInt64 || l.read+int64(len(p)) < end {
		return len(p)
	}
	keep := max(0, end-l.read)
	if keep > 0 && p[keep-1] == '\n' {
		l.over = true
		return int(keep)
	}
	n := bytes.IndexByte(p[keep:], '\n')
	if n < 0 {
		return len(p) // its end was not read yet
	}
	l.over = true
	return int(keep) + n + 1
}

func (l *logReader) readSome(p []byte) (int, error) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	if l.shut {
		return 0, fs.ErrClosed
	}
	for len(l.old) > 0 {
		x := l.old[0]
		l.read, l.seen = unknown, x.written
		if x.begin != unknown {
			here, err := x.f.Seek(0, io.SeekCurrent)
			if err != nil {
				return 0, err
			}
			l.read = x.begin + here
		}
		n, err := x.f.Read(p)
		if n > 0 {
			return n, nil
		}
		cerr := x.f.Close()
		l.old = l.old[1:]
		if err != nil && !errors.Is(err, io.EOF) || cerr != nil {
			return 0, errors.Join(err, cerr)
		}
	}
	if l.at < l.state.cut {
		return l.readCut(p)
	}
	if l.cur == nil {
		f, err := os.Open(l.file)
		if errors.Is(err, fs.ErrNotExist) {
			return 0, io.EOF
		}
		if err != nil {
			return 0, err
		}
		l.cur = f
	}
	n, err := l.cur.ReadAt(p, l.at-l.state.cut)
	l.read = l.at
	l.at += int64(n)
	return n, err
}

// readCut reads output that was moved to rotated files before this reader reached it. Output that was deleted meanwhile is skipped.
func (l *logReader) readCut(p []byte) (int, error) {
	end := l.state.cut
	for n, size := range l.state.moved {
		begin := end - size
		if l.at < begin && n+1 < len(l.state.moved) {
			end = begin
			continue
		}
		l.at = max(l.at, begin)
		f, err := os.Open(rotated(l.file, n+1))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			return 0, err
		}
		defer f.Close()
		k, err := f.ReadAt(p[:min(int64(len(p)), end-l.at)], l.at-begin)
		l.read = l.at
		l.at += int64(k)
		if k > 0 || err != nil && !errors.Is(err, io.EOF) {
			return k, err
		}
		break // shorter than it should be
	}
	l.at = end
	if end < l.state.cut {
		return l.readCut(p)
	}
	return 0, io.EOF
}

// Close closes the reader and ends a Read that waits.
func (l *logReader) Close() error {
	err := fs.ErrClosed
	l.once.Do(func() {
		close(l.done)
		l.state.mu.Lock()
		defer l.state.mu.Unlock()
		l.shut = true
		err = l.closeFiles()
	})
	return err
}

func (l *logReader) closeFiles() error {
	var errs []error
	for _, x := range l.old {
		errs = append(errs, x.f.Close())
	}
	if l.cur != nil {
		errs = append(errs, l.cur.Close())
	}
	return errors.Join(errs...)
}

// maxStampedLine is the longest line with a time; a longer one is divided, so that each part fits a reader's buffer.
const maxStampedLine = 16 << 10

// stampedReader begins each line with its time.
type stampedReader struct {
	*logReader
	ready []byte // to be given out
	line  []byte // begun
	begin time.Time
	buf   []byte
}

func (s *stampedReader) Read(p []byte) (int, error) {
	for len(s.ready) == 0 {
		if s.buf == nil {
			s.buf = make([]byte, maxStampedLine)
		}
		n, err := s.logReader.Read(s.buf)
		s.take(s.buf[:n])
		if err != nil {
			if len(s.line) > 0 {
				s.end()
			}
			if len(s.ready) == 0 {
				return 0, err
			}
		}
	}
	n := copy(p, s.ready)
	s.ready = s.ready[n:]
	return n, nil
}

// take adds bytes that were just read.
func (s *stampedReader) take(p []byte) {
	pos := s.read
	for len(p) > 0 {
		if len(s.line) == 0 {
			s.begin = s.when(pos)
		}
		n := bytes.IndexByte(p, '\n')
		whole := n >= 0
		if !whole {
			n = len(p)
		}
		n = min(n, maxStampedLine-len(s.line))
		s.line = append(s.line, p[:n]...)
		if whole && n < len(p) && p[n] == '\n' {
			s.end()
			n++
		} else if len(s.line) >= maxStampedLine {
			s.end()
		}
		p = p[n:]
		if pos != unknown {
			pos += int64(n)
		}
	}
}

func (s *stampedReader) end() {
	s.ready = append(s.ready, s.begin.UTC().Format(workload.StampFormat)+" "...)
	s.ready = append(append(s.ready, s.line...), '\n')
	s.line = s.line[:0]
}

// when is the time of a position that was just read.
func (s *stampedReader) when(pos int64) time.Time {
	if pos == unknown {
		return s.seen
	}
	s.state.mu.Lock()
	defer s.state.mu.Unlock()
	if t := s.state.times.when(pos); !t.IsZero() {
		return t
	}
	return s.now()
}
