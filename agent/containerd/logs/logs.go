// Package logs manages the output of containers: files that shims append to, rotated within limits, and read in order and by time.
// Start at [Keeper].
package logs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/paths"
	"github.com/longshore-dev/longshore/agent/workload"
)

const (
	logSuffix = ".log"
	// followPause is the time between reads of a followed file.
	followPause = 200 * time.Millisecond
	// tailChunk is how much is read at a time, from the end, to find the last lines.
	tailChunk = 64 << 10
)

// Limits bound what containers may write.
type Limits struct {
	MaxSize  int64 // bytes of a file before it is rotated; 0: DefaultMaxSize
	MaxFiles int   // rotated files kept of a replica beside the current one; 0: DefaultMaxFiles
	Budget   int64 // bytes of all files on the device, rotated and current; 0: DefaultBudget

	Interval time.Duration // between two checks of the files; 0: DefaultEvery
}

// Defaults of [Limits].
const (
	DefaultMaxSize  = 10 << 20
	DefaultMaxFiles = 3
	DefaultBudget   = 256 << 20
	DefaultInterval = 2 * time.Second
)

// Keeper keeps the output of containers in files below a directory, within limits. Its methods may be called from several goroutines.
type Keeper struct {
	root    string
	limits  Limits
	now     func() time.Time
	log     *slog.Logger
	files   *logTable
	writers writers
	relays  sync.WaitGroup
}

// NewKeeper creates a keeper of the files below a directory. Nothing is rotated before [Keeper.Run].
func NewKeeper(root string, l Limits, now func() time.Time, log *slog.Logger) *Keeper {
	l.MaxSize, l.MaxFiles = cmp.Or(max(l.MaxSize, 0), DefaultMaxSize), cmp.Or(max(l.MaxFiles, 0), DefaultMaxFiles)
	l.Budget, l.Interval = cmp.Or(max(l.Budget, 0), DefaultBudget), cmp.Or(max(l.Interval, 0), DefaultInterval)
	return &Keeper{root: root, limits: l, now: now, log: log, files: &logTable{m: map[string]*logState{}}}
}

// Replica names a log. The revisions of a replica share it, so that an update does not hide the output before it.
type Replica struct {
	Project, Service, Replica string
}

// Dir is the folder of a project's logs.
func (k *Keeper) Dir(project string) (string, error) { return paths.Join(k.root, project) }

// File is the file that the shims of a replica's containers write to.
func (k *Keeper) File(r Replica) (string, error) {
	return paths.Join(k.root, r.Project, r.Service+"-"+r.Replica+logSuffix)
}

func rotated(file string, n int) string { return file + "." + strconv.Itoa(n) }

// Prepare creates the folder of a project's logs. Its existence also marks a project that owns something, see [Keeper.Projects].
func (k *Keeper) Prepare(project string) error {
	dir, err := k.Dir(project)
	if err != nil {
		return err
	}
	return os.MkdirAll(dir, 0o755)
}

// Create creates a replica's log, for a shim to append to, and returns its file.
func (k *Keeper) Create(r Replica) (string, error) {
	file, err := k.File(r)
	if err != nil {
		return "", err
	}
	if err := k.Prepare(r.Project); err != nil {
		return "", err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o640) // the shim would create it readable for all
	if err != nil {
		return "", err
	}
	return file, f.Close()
}

// maxRemovals bounds how often Remove tries: a rotation that is at work on a file may put one more into the folder.
const maxRemovals = 5

// Remove deletes a project's logs.
func (k *Keeper) Remove(project string) error {
	dir, err := k.Dir(project)
	if err != nil {
		return err
	}
	k.files.forget(dir)
	for range maxRemovals {
		if err = os.RemoveAll(dir); !errors.Is(err, unix.ENOTEMPTY) {
			return err
		}
	}
	return err
}

// Projects are those that have a folder.
func (k *Keeper) Projects() ([]string, error) {
	dirs, err := os.ReadDir(k.root)
	if err != nil {
		return nil, ignoreMissing(err)
	}
	var out []string
	for _, d := range dirs {
		if strings.Trim(d.Name(), "abcdefghijklmnopqrstuvwxyz0123456789-") == "" { // logs may be the root of a file system, with a lost+found
			out = append(out, d.Name())
		}
	}
	return out, nil
}

// Size is the size of a project's logs in bytes.
func (k *Keeper) Size(project string) (sum int64, err error) {
	dir, err := k.Dir(project)
	if err != nil {
		return 0, err
	}
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil // gone meanwhile
		}
		if info, err := e.Info(); err == nil {
			sum += info.Size()
		}
		return nil
	})
	return sum, err
}

// Open opens the output of a replica's containers, oldest first, standard output and error in the order in which they were written.
// Follow ends with ctx; it loses nothing in a rotation by this process. The caller closes the reader.
func (k *Keeper) Open(ctx context.Context, r Replica, o workload.LogOptions) (io.ReadCloser, error) {
	file, err := k.File(r)
	if err != nil {
		return nil, err
	}
	l, err := openLog(ctx, k.files.get(file), file, o, k.now)
	if err != nil {
		return nil, err
	}
	if o.Stamps {
		return &stampedReader{logReader: l}, nil
	}
	return l, nil
}

// Usage returns the size of each replica's output.
func (k *Keeper) Usage(ctx context.Context) ([]workload.LogUsage, error) {
	current, old, err := k.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("measure logs: %w", err)
	}
	sum := map[string]int64{}
	for _, l := range slices.Concat(current, old) {
		sum[l.file[:max(0, strings.LastIndex(l.file, logSuffix))]] += l.size
	}
	var out []workload.LogUsage
	for _, at := range slices.Sorted(maps.Keys(sum)) {
		name := filepath.Base(at)
		dash := strings.LastIndexByte(name, '-')
		replica, err := strconv.Atoi(name[dash+1:])
		if dash < 1 || err != nil {
			continue // not ours
		}
		out = append(out, workload.LogUsage{Project: filepath.Base(filepath.Dir(at)), Service: name[:dash], Replica: replica, Bytes: sum[at], Dropped: k.files.get(at + logSuffix).lost()})
	}
	return out, nil
}

// logTable is the state that readers and the rotation share, by file.
type logTable struct {
	mu sync.Mutex
	m  map[string]*logState
}

// logState counts the bytes that were cut off a file's front: position in the whole output = cut + position in the file. An earlier process saved
// its count beside the file.
type logState struct {
	mu    sync.Mutex
	cut   int64   // bytes cut, as far as known
	moved []int64 // lengths of the rotated files without a gap before the current one, newest first: the first holds [cut-moved[0], cut)

	times   timeline
	own     workload.Log // the service's limits
	dropped uint64       // bytes that could not be written since this process began
}

func (t *logTable) get(file string) *logState {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.m[file]
	if s == nil {
		s = &logState{}
		s.loadTimes(file)
		t.m[file] = s
	}
	return s
}

// forget drops the state of the files in a directory.
func (t *logTable) forget(dir string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for f := range t.m {
		if filepath.Dir(f) == dir {
			delete(t.m, f)
		}
	}
}
