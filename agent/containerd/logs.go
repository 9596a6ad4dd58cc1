package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/workload"
)

const (
	logSuffix = ".log"
	// followPause is how often a followed file is looked at.
	followPause = 200 * time.Millisecond
	// tailChunk is how much is read at a time while looking for the last lines, from the end.
	tailChunk = 64 << 10
)

func (r *Runtime) logRoot() string { return filepath.Join(r.o.DataDir, "logs") }

func (r *Runtime) logDir(project string) (string, error) { return path(r.logRoot(), project) }

// logFile is shared by the revisions of a replica: an update does not hide what came before it.
func (r *Runtime) logFile(labels map[string]string) (string, error) {
	return path(r.logRoot(), labels[labelProject], labels[labelService]+"-"+labels[labelReplica]+logSuffix)
}

func rotated(file string, n int) string { return file + "." + strconv.Itoa(n) }

// Logs opens what a container and its predecessors wrote, oldest first, standard output and error mixed as they came.
// Follow ends with ctx; it misses nothing over a rotation by this process. The caller closes the reader.
func (r *Runtime) Logs(ctx context.Context, id string, o agent.LogOptions) (io.ReadCloser, error) {
	box, _, err := r.own(r.in(ctx), id)
	if err != nil {
		return nil, fmt.Errorf("read the output of container %s: %w", id, classify(err))
	}
	file, err := r.logFile(box.Labels)
	if err != nil {
		return nil, err
	}
	l, err := openLog(ctx, r.logs.get(file), file, o)
	if err != nil {
		return nil, fmt.Errorf("read the output of container %s: %w", id, err)
	}
	return l, nil
}

// logTable holds what readers and the rotation of this process must agree on, by file.
type logTable struct {
	mu sync.Mutex
	m  map[string]*logState
}

// logState counts what was cut from a file's front: position in the whole output = cut + position in the file.
type logState struct {
	mu    sync.Mutex
	cut   int64   // bytes cut since this process began
	moved []int64 // lengths of the rotated files that this process made, newest first: the first holds [cut-moved[0], cut)

	own     workload.Log // the service's limits
	dropped uint64       // bytes that could not be written since this process began
}

func newLogTable() *logTable { return &logTable{m: map[string]*logState{}} }

func (t *logTable) get(file string) *logState {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.m[file]
	if s == nil {
		s = &logState{}
		t.m[file] = s
	}
	return s
}

// forget drops what is known of the files in a directory.
func (t *logTable) forget(dir string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for f := range t.m {
		if filepath.Dir(f) == dir {
			delete(t.m, f)
		}
	}
}

// logReader reads rotated files, then the current one, then, following, what is appended.
type logReader struct {
	ctx    context.Context //nolint:containedctx // a reader has no other way to end
	state  *logState
	file   string
	follow bool

	old  []*os.File // rotated files still to be read, oldest first
	cur  *os.File   // nil: not there yet
	at   int64      // position in the whole output
	done chan struct{}
	once sync.Once
}

// openLog opens everything under the lock, so that no rotation comes between.
func openLog(ctx context.Context, state *logState, file string, o agent.LogOptions) (*logReader, error) {
	state.mu.Lock()
	defer state.mu.Unlock()
	l := &logReader{ctx: ctx, state: state, file: file, follow: o.Follow, at: state.cut, done: make(chan struct{})}
	var files []*os.File // newest first
	cur, err := os.Open(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	l.cur = cur
	for n := 1; ; n++ {
		f, err := os.Open(rotated(file, n))
		if errors.Is(err, fs.ErrNotExist) {
			break
		}
		if err != nil {
			l.old = files
			return nil, errors.Join(err, l.closeFiles())
		}
		files = append(files, f)
	}
	if o.Tail > 0 {
		if files, err = l.seekTail(files, o.Tail); err != nil {
			l.old = files
			return nil, errors.Join(err, l.closeFiles())
		}
	}
	for n := len(files) - 1; n >= 0; n-- {
		l.old = append(l.old, files[n])
	}
	return l, nil
}

// seekTail puts the files where the last lines begin; it closes those that are wholly before.
func (l *logReader) seekTail(files []*os.File, lines int) ([]*os.File, error) {
	left, final := lines, true
	if l.cur != nil {
		pos, n, err := lastLines(l.cur, left, &final)
		if err != nil {
			return files, err
		}
		l.at += pos
		left -= n
	}
	for i, f := range files {
		if left <= 0 {
			for _, g := range files[i:] {
				if err := g.Close(); err != nil {
					return files[:i], err
				}
			}
			return files[:i], nil
		}
		pos, n, err := lastLines(f, left, &final)
		if err != nil {
			return files, err
		}
		if _, err := f.Seek(pos, io.SeekStart); err != nil {
			return files, err
		}
		left -= n
	}
	return files, nil
}

// lastLines finds where the last lines of a file begin and how many line ends lie after that. While final, the file's end
// is the end of the output, so a last line end closes the last line and does not begin another; a file with content ends that.
func lastLines(f *os.File, lines int, final *bool) (pos int64, ends int, err error) {
	info, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	end, last := info.Size(), *final
	*final = last && end == 0
	buf := make([]byte, tailChunk)
	for hi := end; hi > 0; {
		lo := max(0, hi-tailChunk)
		b := buf[:hi-lo]
		if _, err := f.ReadAt(b, lo); err != nil && !errors.Is(err, io.EOF) {
			return 0, 0, err
		}
		for i := len(b) - 1; i >= 0; i-- {
			if b[i] != '\n' || last && lo+int64(i) == end-1 {
				continue
			}
			if ends++; ends == lines {
				return lo + int64(i) + 1, ends, nil
			}
		}
		hi = lo
	}
	return 0, ends, nil
}

func (l *logReader) Read(p []byte) (int, error) {
	for {
		n, err := l.readSome(p)
		if n > 0 {
			return n, nil
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if !l.follow {
			return 0, io.EOF
		}
		t := time.NewTimer(followPause)
		select {
		case <-t.C:
		case <-l.ctx.Done():
			t.Stop()
			return 0, io.EOF
		case <-l.done:
			t.Stop()
			return 0, fs.ErrClosed
		}
	}
}

func (l *logReader) readSome(p []byte) (int, error) {
	for len(l.old) > 0 {
		n, err := l.old[0].Read(p)
		if n > 0 {
			return n, nil
		}
		cerr := l.old[0].Close()
		l.old = l.old[1:]
		if err != nil && !errors.Is(err, io.EOF) || cerr != nil {
			return 0, errors.Join(err, cerr)
		}
	}
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
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
	l.at += int64(n)
	return n, err
}

// readCut reads what was moved to rotated files after this reader had come to it. What was deleted meanwhile is passed over.
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

// Close ends the reader, also one that waits in Read.
func (l *logReader) Close() error {
	err := fs.ErrClosed
	l.once.Do(func() {
		close(l.done)
		l.state.mu.Lock()
		defer l.state.mu.Unlock()
		err = l.closeFiles()
	})
	return err
}

func (l *logReader) closeFiles() error {
	var errs []error
	for _, f := range l.old {
		errs = append(errs, f.Close())
	}
	if l.cur != nil {
		errs = append(errs, l.cur.Close())
	}
	return errors.Join(errs...)
}
