package containerd

import (
	"bufio"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxUnixSockets bounds what is read of the kernel's list of sockets: some 100 bytes each.
const maxUnixSockets = 8 << 20

// Two starts of one group's shim at one time, after the shim before them died, may each take the socket that the other has just
// made for the dead one's, and make their own. Whose socket is replaced is never asked for anything, and never ends.

// unixSocket is one line of /proc/net/unix.
type unixSocket struct {
	path      string
	listens   bool
	connected bool
}

// unixSockets are the sockets of this network namespace, by inode.
func unixSockets(proc string) (map[string]unixSocket, error) {
	f, err := os.Open(filepath.Join(proc, "net", "unix"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	const listening, connected = "00010000", "03"
	out := map[string]unixSocket{}
	lines := bufio.NewScanner(io.LimitReader(f, maxUnixSockets))
	for lines.Scan() { // address, references, protocol, flags, type, state, inode, path
		if w := strings.Fields(lines.Text()); len(w) == 8 {
			out[w[6]] = unixSocket{path: w[7], listens: w[3] == listening, connected: w[5] == connected}
		} else if len(w) == 7 {
			out[w[6]] = unixSocket{connected: w[5] == connected}
		}
	}
	return out, lines.Err()
}

// spareShims are the shims of our namespace that nobody has a connection to, that have no process, and whose socket has another
// listener, which is none of them: while containerd is away nobody is connected to anyone, and the one that it will come back to
// is not known. By number, and which process of that number it is.
func (r *Runtime) spareShims(proc string) map[int]string {
	files, err := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	if err != nil {
		return nil
	}
	var shims []int
	parents := map[int]bool{}
	for _, f := range files {
		pid, err := strconv.Atoi(filepath.Base(f))
		if err != nil {
			continue
		}
		if isServing(commandLine(pid, proc), r.o.Namespace) {
			shims = append(shims, pid)
		}
		parent, _ := runOf(uint32(pid), proc)
		parents[parent] = true
	}
	if len(shims) < 2 {
		return nil
	}
	sockets, err := unixSockets(proc)
	if err != nil {
		return nil // told by nobody, for what is lost is memory
	}
	listeners := map[string]int{}
	for _, s := range sockets {
		if s.listens {
			listeners[s.path]++
		}
	}
	at := map[string]map[int]string{} // by path
	for _, pid := range shims {
		path, connected := served(pid, sockets, proc)
		if _, run := runOf(uint32(pid), proc); run != "" && !connected && !parents[pid] && listeners[path] > 1 {
			if at[path] == nil {
				at[path] = map[int]string{}
			}
			at[path][pid] = run
		}
	}
	out := map[int]string{}
	for path, spare := range at {
		if len(spare) < listeners[path] {
			maps.Copy(out, spare)
		}
	}
	return out
}

// served is the socket that a shim listens on, "" when it is not known, and whether anybody is connected.
func served(pid int, sockets map[string]unixSocket, proc string) (path string, connected bool) {
	dir := filepath.Join(proc, strconv.Itoa(pid), "fd")
	d, err := os.Open(dir)
	if err != nil {
		return "", false
	}
	names, err := d.Readdirnames(maxShimFiles)
	_ = d.Close() // it was only read
	if err != nil {
		return "", false
	}
	for _, name := range names {
		to, err := os.Readlink(filepath.Join(dir, name))
		if err != nil {
			continue
		}
		inode, ok := strings.CutPrefix(to, "socket:[")
		s, known := sockets[strings.TrimSuffix(inode, "]")]
		switch {
		case ok && !known: // made after the list was: somebody connects just now
			return "", true
		case s.listens:
			path = s.path
		case s.connected:
			connected = true
		}
	}
	return path, connected
}

// endSpareShims kills what was spare at the look before, too, and tells what is spare now.
func (r *Runtime) endSpareShims(before map[int]string) map[int]string {
	now := r.spareShims("/proc")
	for pid, run := range now {
		if before[pid] != run {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // gone
		}
		if _, still := runOf(uint32(pid), "/proc"); still == run {
			if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
				r.log.Warn("a shim that nobody can reach is not ended", "process", pid, "error", err)
			} else {
				r.log.Info("a shim that nobody can reach is ended", "process", pid)
			}
		}
		_ = unix.Close(fd)
	}
	return now
}
