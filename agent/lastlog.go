package agent

import (
	"context"
	"io"
	"time"

	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Limits of the reading of last log lines.
const (
	logRead  = 64 << 10 // bytes of what the runtime returns for logLines lines
	logLimit = 5 * time.Second
)

// readLastLogs reads the last log lines of containers that exited with an error, in the background.
func (l *loop) readLastLogs() {
	for id, s := range l.sup.Containers {
		if !s.Exited || s.LogRead || l.reading[id] {
			continue
		}
		l.reading[id] = true
		l.within(logLimit, func(ctx context.Context) {
			text := l.lastLog(ctx, id)
			l.send(func(l *loop) {
				delete(l.reading, id)
				s, ok := l.sup.Containers[id]
				if !ok {
					return
				}
				s.LogRead, s.LastLog = true, text
				l.sup.Containers[id] = s
			})
		})
	}
}

// lastLog is what a container wrote last, as a part of a message; "": nothing that can be had.
func (l *loop) lastLog(ctx context.Context, id string) string {
	r, err := l.o.Runtime.Logs(ctx, id, workload.LogOptions{Tail: plan.LogLines})
	if err != nil {
		return ""
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, logRead))
	if err != nil && len(b) == 0 {
		return ""
	}
	return plan.Quote(string(b))
}
