package status

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// maxLogLine bounds a line that is given a container's name; a longer one is cut in pieces.
	maxLogLine = 64 << 10
	// maxLogSources bounds how many outputs are read side by side: each has files open.
	maxLogSources = 256
)

// logSource is one replica's output: its revisions share it.
type logSource struct{ name, container string }

// openLog opens the output of one container, as a runtime does.
type openLog func(ctx context.Context, id string, o workload.LogOptions) (io.ReadCloser, error)

// OpenLogs opens the output of those of all containers that r chooses. With several of them each line begins with its container's
// name; without Follow lines come in the order in which they were written, as far as that is known. The caller closes it; following
// ends with ctx.
func OpenLogs(ctx context.Context, all []Container, r LogRequest, open openLog) (io.ReadCloser, error) {
	from, err := logSources(all, r.Targets)
	if err != nil {
		return nil, fmt.Errorf("logs: %w", err)
	}
	if len(from) == 1 && !r.Prefix {
		return open(ctx, from[0].container, r.LogOptions)
	}
	return merge(ctx, from, r.LogOptions, open)
}

// logSources are the replicas that are meant, each once.
func logSources(all []Container, targets []string) ([]logSource, error) {
	chosen, err := SelectAll(all, targets)
	if err != nil {
		return nil, err
	}
	several := false
	for _, c := range chosen {
		several = several || c.DeploymentID != chosen[0].DeploymentID
	}
	var from []logSource
	replicas := map[string]bool{}
	for _, c := range chosen {
		where := c.Project + "/" + c.Name()
		if c.State == Missing || replicas[where] {
			continue
		}
		replicas[where] = true
		s := logSource{c.Name(), c.ID}
		if several {
			s.name = c.Path()
		}
		from = append(from, s)
	}
	switch {
	case len(from) == 0:
		return nil, fault.WithHint(fmt.Errorf("there is no container: %w", fault.ErrNotFound), "longshore-agent ps -a lists them")
	case len(from) > maxLogSources:
		return nil, fault.WithHint(fmt.Errorf("%d containers: %w", len(from), fault.ErrTooLarge), "name some of them")
	}
	wide := 0
	for _, s := range from {
		wide = max(wide, len(s.name))
	}
	for i := range from {
		from[i].name += strings.Repeat(" ", wide-len(from[i].name))
	}
	return from, nil
}

// merge reads several outputs as one, line by line.
func merge(ctx context.Context, from []logSource, o workload.LogOptions, openOne openLog) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	pr, pw := io.Pipe()
	m := &merged{PipeReader: pr, cancel: cancel}
	stamps := o.Stamps
	o.Stamps = o.Stamps || !o.Follow // what is there is put in order by its times
	var open []io.ReadCloser
	for _, f := range from {
		r, err := openOne(ctx, f.container, o)
		if err != nil {
			cancel()
			for _, x := range open {
				_ = x.Close() // only read
			}
			return nil, err
		}
		open = append(open, r)
	}
	w := &lineWriter{w: pw, strip: o.Stamps && !stamps}
	m.wg.Go(func() {
		if o.Follow {
			w.live(from, open)
		} else {
			w.ordered(from, open)
		}
		for _, r := range open {
			_ = r.Close() // only read
		}
		_ = pw.Close() // never fails
	})
	m.stop = context.AfterFunc(ctx, func() { _ = pr.CloseWithError(io.EOF) })
	return m, nil
}

// lineWriter gives lines their names. Its goroutines write one line at a time.
type lineWriter struct {
	mu    sync.Mutex
	w     io.Writer
	strip bool // lines begin with a time that was not asked for
}

func (w *lineWriter) line(name string, line []byte) error {
	if w.strip {
		_, line, _ = bytes.Cut(line, []byte{' '})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := fmt.Fprintf(w.w, "%s | %s\n", name, line)
	return err
}

func scanner(r io.Reader) *bufio.Scanner {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 4096), maxLogLine)
	s.Split(splitLines)
	return s
}

// live writes lines as they come, until all outputs have ended or the reader is gone.
func (w *lineWriter) live(from []logSource, open []io.ReadCloser) {
	var lines sync.WaitGroup
	for i, r := range open {
		lines.Go(func() {
			for s := scanner(r); s.Scan(); {
				if w.line(from[i].name, s.Bytes()) != nil {
					return
				}
			}
		})
	}
	lines.Wait()
}

// ordered writes all lines by the times that they begin with; equal times keep the order of the containers.
func (w *lineWriter) ordered(from []logSource, open []io.ReadCloser) {
	heads := make([]*bufio.Scanner, len(open))
	var left []int
	for i, r := range open {
		if heads[i] = scanner(r); heads[i].Scan() {
			left = append(left, i)
		}
	}
	for len(left) > 0 {
		first := 0
		for k := 1; k < len(left); k++ {
			if bytes.Compare(stampOf(heads[left[k]].Bytes()), stampOf(heads[left[first]].Bytes())) < 0 {
				first = k
			}
		}
		i := left[first]
		if w.line(from[i].name, heads[i].Bytes()) != nil {
			return
		}
		if !heads[i].Scan() {
			left = slices.Delete(left, first, first+1)
		}
	}
}

// stampOf is a line's time. All are UTC and of one length, so they compare as bytes.
func stampOf(line []byte) []byte {
	stamp, _, _ := bytes.Cut(line, []byte{' '})
	return stamp
}

// merged owns the goroutines that fill it: Close ends them and waits.
type merged struct {
	*io.PipeReader
	cancel context.CancelFunc
	stop   func() bool
	wg     sync.WaitGroup
}

func (m *merged) Close() error {
	m.stop()
	m.cancel()
	err := m.PipeReader.Close()
	m.wg.Wait()
	return err
}

// splitLines is bufio.ScanLines, but a line that fills the buffer is passed on in pieces instead of ending everything.
func splitLines(data []byte, atEOF bool) (int, []byte, error) {
	n, line, err := bufio.ScanLines(data, atEOF)
	if n == 0 && line == nil && err == nil && len(data) >= maxLogLine/2 {
		return len(data), data, nil
	}
	return n, line, err
}
