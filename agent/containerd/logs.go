package containerd

import (
	"context"
	"fmt"
	"io"
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
	l, err := openLog(ctx, r.logs.get(file), file, o, r.o.Now)
	if err != nil {
		return nil, fmt.Errorf("read the output of container %s: %w", id, err)
	}
	if o.Stamps {
		return &stampedReader{logReader: l}, nil
	}
	return l, nil
}

// logTable holds what readers and the rotation of this process must agree on, by file.
type logTable struct {
	mu sync.Mutex
	m  map[string]*logState
}

// logState counts what was cut from a file's front: position in the whole output = cut + position in the file. What an
// earlier process counted is found beside the file.
type logState struct {
	mu    sync.Mutex
	cut   int64   // bytes cut, as far as known
	moved []int64 // lengths of the rotated files without a gap before the current one, newest first: the first holds [cut-moved[0], cut)

	times   timeline
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
		s.loadTimes(file)
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
