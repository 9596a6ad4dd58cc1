package logs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/process"
	"github.com/longshore-dev/longshore/agent/workload"
)

// A shim copies a container's output from two pipes into its log. A write that fails because the disk is full ends that copying
// permanently: the pipe has no reader any more, and once its 64 KiB are full the container blocks forever. So the runtime checks
// the pipes. When one has output and its log does not grow, the runtime opens the same pipe through the shim and copies. Output
// that cannot be written is counted and dropped, so that the container continues. After the next start of the container its shim
// copies again.
const (
	// pipeInterval is the time between checks while a pipe is not empty.
	pipeInterval = 200 * time.Millisecond
	// stalledChecks is how many checks must find output in a pipe and a log that does not grow, while the shim has the log open:
	// for the other pipe, or because the disk is slow. If the shim does not have the log open, two checks are enough.
	stalledChecks = 10
	// shortOf is the free space, in bytes, below which pipes are checked often.
	shortOf = 4 << 20
	// relayPipe is the size of a pipe that this process reads: it holds the output while an agent is replaced.
	relayPipe = 1 << 20
	// relayBuffer is how much is copied at a time.
	relayBuffer = 64 << 10
)

// writer is a container's process whose output goes to a log.
type writer struct {
	id   string
	file string
	pid  uint32
	run  string // of the process; see started

	shim  int // its parent
	pipes []*pipe
}

// pipe is one of a writer's, as the shim holds it.
type pipe struct {
	name    string // "pipe:[4711]"
	fd      string // path below /proc of the shim's end
	held    int    // bytes in it at the last check
	size    int64  // bytes written to the log until then
	looks   int    // consecutive checks with output in it and a log that had not grown
	relayed bool
}

// writers are the running ones: a *writer, by container.
type writers struct{ sync.Map }

// add adds a container's process unless it is known, and forgets those that have ended.
func (w *writers) add(id, file string, pid uint32) {
	shim, run := process.RunOf(pid, "/proc")
	if run == "" || w.knows(id, run) {
		return
	}
	x := &writer{id: id, file: file, pid: pid, run: run, shim: shim}
	x.find("/proc")
	w.forgetEnded()
	w.Store(id, x)
}

// knows reports whether a run of a container was added.
func (w *writers) knows(id, run string) bool {
	x, _ := w.Load(id)
	known, _ := x.(*writer)
	return known != nil && known.run == run
}

// forgetEnded forgets the writers whose process does not exist any more.
func (w *writers) forgetEnded() {
	for id, x := range w.Range {
		if _, run := process.RunOf(x.(*writer).pid, "/proc"); run != x.(*writer).run {
			w.CompareAndDelete(id, x)
		}
	}
}

// Watch adds a run of a replica's container, and sets the limits of its service.
func (k *Keeper) Watch(r Replica, l workload.Log, id string, pid uint32) {
	file, err := k.File(r)
	if err != nil || l.None || pid == 0 {
		return
	}
	k.files.get(file).limit(l)
	k.writers.add(id, file, pid)
}

// Watched reports whether a run of a container was added.
func (k *Keeper) Watched(id, run string) bool { return k.writers.knows(id, run) }

// checkPipes finds output that is no longer copied, and copies it until ctx ends. It reports whether to check again soon. It is
// called from one goroutine.
func (k *Keeper) checkPipes(ctx context.Context) (soon bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(k.root, &st); err == nil {
		soon = st.Bavail*uint64(st.Bsize) < shortOf //nolint:unconvert // signed, and narrower on 32-bit machines
	}
	ended := false
	for _, x := range k.writers.Range {
		w := x.(*writer)
		for _, p := range w.pipes {
			if p.relayed {
				continue
			}
			held, err := p.content()
			if err != nil {
				ended = true
				continue
			}
			stuck, again := p.stalled(held, w, k.files.get(w.file))
			soon = soon || again
			if !stuck {
				continue
			}
			if err := k.relay(ctx, w, p); err != nil {
				k.log.Warn("a container's output is not copied any more, and the agent cannot copy it", "container", w.id, "error", err)
			}
		}
	}
	if ended {
		k.writers.forgetEnded()
	}
	return soon
}

// find finds the shim's ends of the process's standard output and error. There are none when these are no pipes, such as a terminal.
func (w *writer) find(proc string) {
	if w.shim <= 1 { // the shim is gone already
		return
	}
	wanted := map[string]bool{}
	for _, fd := range []string{"1", "2"} {
		name, err := os.Readlink(filepath.Join(proc, strconv.FormatUint(uint64(w.pid), 10), "fd", fd))
		if err == nil && strings.HasPrefix(name, "pipe:") {
			wanted[name] = true
		}
	}
	dir := filepath.Join(proc, strconv.Itoa(w.shim), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		at := filepath.Join(dir, e.Name())
		if name, err := os.Readlink(at); err == nil && wanted[name] {
			wanted[name] = false
			w.pipes = append(w.pipes, &pipe{name: name, fd: at})
		}
	}
}

// open opens the pipe for reading, through the shim, without blocking. It fails when its process has ended.
func (p *pipe) open() (fd int, err error) {
	if fd, err = unix.Open(p.fd, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || fmt.Sprintf("pipe:[%d]", st.Ino) != p.name {
		return -1, errors.Join(fmt.Errorf("%s is another file now", p.fd), unix.Close(fd))
	}
	return fd, nil
}

// content is the number of bytes in the pipe. It is asked for every ten seconds: an [os.File] would cost more than the question.
func (p *pipe) content() (int, error) {
	fd, err := p.open()
	if err != nil {
		return 0, err
	}
	held, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
	return held, errors.Join(err, unix.Close(fd))
}

// stalled checks a pipe with held bytes in it: stuck if its output is certainly no longer copied, again if that is possible.
func (p *pipe) stalled(held int, w *writer, state *logState) (stuck, again bool) {
	if held == 0 {
		p.looks, p.held = 0, 0
		return false, false
	}
	size := state.written(w.file)
	if p.looks > 0 && size == p.size && held >= p.held {
		p.looks++
	} else {
		p.looks = 1
	}
	p.held, p.size = held, size
	sure := 2
	if w.shimHasLog() {
		sure = stalledChecks
	}
	return p.looks >= sure, true
}

// shimHasLog reports whether the shim has the log open.
func (w *writer) shimHasLog() bool {
	dir := filepath.Join("/proc", strconv.Itoa(w.shim), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, e := range entries {
		if name, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && name == w.file {
			return true
		}
	}
	return false
}

// relay copies a pipe into a log, in a goroutine of its own, until the last writer has closed it or ctx ends.
func (k *Keeper) relay(ctx context.Context, w *writer, p *pipe) error {
	fd, err := p.open()
	if err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, relayPipe); err != nil {
		k.log.Debug("cannot enlarge a pipe", "container", w.id, "error", err)
	}
	in := os.NewFile(uintptr(fd), p.name) // does not block: a Read ends with ctx
	p.relayed = true
	state := k.files.get(w.file)
	k.log.Warn("the disk was full: containerd stopped copying this container's output; the agent copies it until the container's next start",
		"container", w.id, "file", w.file)
	k.relays.Go(func() {
		stop := context.AfterFunc(ctx, func() { _ = in.SetReadDeadline(time.Unix(1, 0)) }) // ends a Read
		defer stop()
		defer in.Close()
		copyOutput(ctx, in, w.file, state)
	})
	return nil
}

// copyOutput appends output to a log. What cannot be written is dropped, with a note in the log once there is space again.
func copyOutput(ctx context.Context, in *os.File, file string, state *logState) {
	buf := make([]byte, relayBuffer)
	var lost uint64 // bytes without a note
	for ctx.Err() == nil {
		n, err := in.Read(buf)
		if n > 0 {
			gone := appendOutput(file, buf[:n], &lost)
			state.drop(gone)
		}
		if err != nil {
			return // the last writer has closed it, or ctx has ended
		}
	}
}

// appendOutput writes a piece to a log and returns how much of it could not be written.
func appendOutput(file string, piece []byte, lost *uint64) (gone uint64) {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		*lost += uint64(len(piece))
		return uint64(len(piece))
	}
	defer f.Close() // Write returned the error
	if *lost > 0 {
		note := fmt.Sprintf("\nlongshore: %d bytes of output were dropped: no space left on the device\n", *lost)
		if n, err := f.WriteString(note); err != nil {
			if n > 0 { // a partial note is removed
				if end, serr := f.Seek(0, 2); serr == nil {
					_ = f.Truncate(end - int64(n)) // otherwise it stays
				}
			}
			*lost += uint64(len(piece))
			return uint64(len(piece))
		}
		*lost = 0
	}
	n, err := f.Write(piece)
	if err == nil {
		return 0
	}
	*lost += uint64(len(piece) - n)
	return uint64(len(piece) - n)
}

// written is the length of a log's whole output, as far as this process knows.
func (s *logState) written(file string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := os.Stat(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) || info == nil {
		return s.cut
	}
	return s.cut + info.Size()
}

func (s *logState) drop(n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropped += n
}

func (s *logState) lost() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropped
}

// limit sets a service's own limits.
func (s *logState) limit(l workload.Log) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = l
}
