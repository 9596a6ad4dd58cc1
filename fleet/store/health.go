package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	probeEvery = time.Second // a health check costs a commit; those that come faster get the last answer
	probeBytes = 512 << 10   // written after a commit failed, before the database counts as healthy: more than a report
)

// files notices that the files of a database are not those that were opened: SQLite goes on with a deleted file, and what it
// acknowledges is gone with the process.
type files struct {
	paths  []string // the database and its log
	opened []os.FileInfo
}

// identify remembers the files that are open.
func identify(path string) (*files, error) {
	f := &files{}
	for _, p := range []string{path, path + "-wal"} {
		info, err := os.Stat(p)
		if p != path && errors.Is(err, os.ErrNotExist) {
			continue // the file system cannot have one
		}
		if err != nil {
			return nil, err
		}
		f.paths, f.opened = append(f.paths, p), append(f.opened, info)
	}
	return f, nil
}

// intact returns an error that wraps fault.ErrTemporary when a file was deleted or replaced.
func (f *files) intact() error {
	for i, p := range f.paths {
		info, err := os.Stat(p)
		switch {
		case errors.Is(err, os.ErrNotExist):
			err = fmt.Errorf("database: %s was deleted while it was open: %w", p, fault.ErrTemporary)
		case err != nil:
			err = fmt.Errorf("database: %w: %w", err, fault.ErrTemporary)
		case !os.SameFile(info, f.opened[i]):
			err = fmt.Errorf("database: %s was replaced while it was open: %w", p, fault.ErrTemporary)
		default:
			continue
		}
		return fault.WithHint(err, "stop longshore-fleet, put the file back or the right one in its place, and start it again")
	}
	return nil
}

// health is the last answer of a health check.
type health struct {
	mu  sync.Mutex
	at  time.Time
	err error
}

// Health reports whether what is written now would be durable: the files are those that were opened, and take a write. The
// error wraps fault.ErrTemporary.
func (s *SQLite) Health(ctx context.Context, now time.Time) error {
	s.health.mu.Lock()
	defer s.health.mu.Unlock()
	if since := now.Sub(s.health.at); since >= 0 && since < probeEvery {
		return s.health.err
	}
	size := 1
	if s.failing.Load() {
		size = probeBytes
	}
	s.health.err = s.write(ctx, func(ctx context.Context, w *writer) error {
		if err := w.exec(ctx, "INSERT OR REPLACE INTO health (one, body) VALUES (1, randomblob(?))", size); err != nil {
			return broken("write", err)
		}
		return nil
	})
	s.health.at = now
	return s.health.err
}
