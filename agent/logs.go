package agent

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxLogLine bounds a line that is given a service's name; a longer one is cut in pieces.
const maxLogLine = 64 << 10

type logSource struct{ name, container string }

func (a *Agent) logs(ctx context.Context, r LogRequest) (io.ReadCloser, error) {
	var from []logSource
	named := false
	s := a.status.Load()
	for _, d := range s.Deployments {
		if r.Deployment != "" && r.Deployment != d.Name && r.Deployment != d.ID {
			continue
		}
		named = true
		for _, c := range d.Components {
			for _, x := range c.Services {
				if x.Status != "" && (r.Service == "" || r.Service == x.Name) {
					from = append(from, logSource{x.Name, x.Container})
				}
			}
		}
	}
	switch {
	case !named && r.Deployment != "":
		return nil, fault.WithHint(fmt.Errorf("logs: no deployment %q: %w", r.Deployment, fault.ErrNotFound), "longshore-agent status lists them")
	case len(from) == 0:
		return nil, fault.WithHint(fmt.Errorf("logs: no container of service %q: %w", r.Service, fault.ErrNotFound), "longshore-agent status lists services")
	case len(from) == 1:
		return a.o.Runtime.Logs(ctx, from[0].container, r.LogOptions)
	}
	return a.merge(ctx, from, r.LogOptions)
}

// merge reads several outputs as one, line by line.
func (a *Agent) merge(ctx context.Context, from []logSource, o LogOptions) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancel(ctx)
	pr, pw := io.Pipe()
	m := &merged{PipeReader: pr, cancel: cancel}
	var open []io.ReadCloser
	for _, f := range from {
		r, err := a.o.Runtime.Logs(ctx, f.container, o)
		if err != nil {
			cancel()
			for _, x := range open {
				_ = x.Close() // only read
			}
			return nil, err
		}
		open = append(open, r)
	}
	var lines sync.WaitGroup
	var mu sync.Mutex
	for i, r := range open {
		copyLines := func() {
			defer r.Close()
			b := bufio.NewScanner(r)
			b.Buffer(make([]byte, 4096), maxLogLine)
			b.Split(splitLines)
			for b.Scan() {
				mu.Lock()
				_, err := fmt.Fprintf(pw, "%s | %s\n", from[i].name, b.Bytes())
				mu.Unlock()
				if err != nil {
					return
				}
			}
		}
		lines.Go(copyLines)
	}
	m.wg.Go(func() {
		lines.Wait()
		_ = pw.Close() // never fails
	})
	context.AfterFunc(ctx, func() { _ = pr.CloseWithError(io.EOF) })
	return m, nil
}

// merged owns the goroutines that fill it: Close ends them and waits.
type merged struct {
	*io.PipeReader
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

func (m *merged) Close() error {
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
