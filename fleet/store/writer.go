package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	maxBatch = 256 // writes that share a transaction
	maxQueue = 1024
)

// writer owns the one connection that writes. Writes that wait at the same time go into one transaction, each in a
// savepoint of its own: an fsync costs more than a hundred of them.
type writer struct {
	conn  *sql.Conn
	stmts map[string]*sql.Stmt
	files *files
	quota Quota
	log   *slog.Logger
	jobs  chan *job
	done  chan struct{}

	failing atomic.Bool // the last commit failed

	mu     sync.RWMutex // held for reading while a job is handed over
	closed bool
}

type job struct {
	ctx    context.Context // of the caller
	do     func(ctx context.Context, w *writer) error
	err    error
	result chan error
}

func newWriter(ctx context.Context, db *sql.DB, files *files, log *slog.Logger) (*writer, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	w := &writer{conn: conn, stmts: map[string]*sql.Stmt{}, files: files, quota: DefaultQuota(), log: log, jobs: make(chan *job, maxQueue), done: make(chan struct{})}
	go w.loop(context.WithoutCancel(ctx))
	return w, nil
}

// stop waits until everything queued is written; false when it had been stopped before.
func (w *writer) stop() bool {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return false
	}
	w.closed = true
	close(w.jobs)
	w.mu.Unlock()
	<-w.done
	return true
}

// write runs do in a transaction and returns when that is durable.
func (w *writer) write(ctx context.Context, do func(ctx context.Context, w *writer) error) error {
	j := &job{ctx: ctx, do: do, result: make(chan error, 1)}
	if err := w.enqueue(j); err != nil {
		return err
	}
	select {
	case err := <-j.result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for the database: %w: %w", context.Cause(ctx), fault.ErrTemporary)
	}
}

// answer is [writer.write] for what do finds out. Until the write is durable that is the writer's: a caller that stops waiting gets none of it.
func answer[T any](ctx context.Context, w *writer, do func(ctx context.Context, w *writer) (T, error)) (T, error) {
	var out, none T
	if err := w.write(ctx, func(ctx context.Context, w *writer) (err error) {
		out, err = do(ctx, w)
		return err
	}); err != nil {
		return none, err
	}
	return out, nil
}

func (w *writer) enqueue(j *job) error {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.closed {
		return fmt.Errorf("write: the database is closed: %w", fault.ErrTemporary)
	}
	select {
	case w.jobs <- j:
		return nil
	case <-j.ctx.Done():
		return fmt.Errorf("wait for the database: %w: %w", context.Cause(j.ctx), fault.ErrTemporary)
	}
}

func (w *writer) loop(ctx context.Context) {
	defer close(w.done)
	batch := make([]*job, 0, maxBatch)
	for j := range w.jobs {
		batch = append(batch[:0], j)
	fill:
		for len(batch) < maxBatch {
			select {
			case more, ok := <-w.jobs:
				if !ok {
					break fill
				}
				batch = append(batch, more)
			default:
				break fill
			}
		}
		err := w.commit(ctx, batch)
		if failed := err != nil; w.failing.Swap(failed) != failed && failed {
			w.log.Error("database: no report is acknowledged until it can be written", "error", err, "hint", fault.Hint(err))
		}
		for _, j := range batch {
			j.result <- errors.Join(j.err, err)
		}
	}
	for _, s := range w.stmts {
		_ = s.Close()
	}
	_ = w.conn.Close()
}

// commit writes a batch. A failed job is rolled back alone; its error is in j.err.
func (w *writer) commit(ctx context.Context, batch []*job) error {
	if err := w.files.intact(); err != nil {
		return err
	}
	if err := w.exec(ctx, "BEGIN IMMEDIATE"); err != nil {
		return broken("begin", err)
	}
	for _, j := range batch {
		if j.err = w.one(ctx, j); errors.Is(j.err, errLostSavepoint) {
			_ = w.exec(ctx, "ROLLBACK")
			return broken("write", j.err)
		}
	}
	if err := w.exec(ctx, "COMMIT"); err != nil {
		_ = w.exec(ctx, "ROLLBACK")
		return broken("commit", err)
	}
	return w.files.intact() // writes to a deleted file are not acknowledged
}

var errLostSavepoint = errors.New("savepoint lost")

func (w *writer) one(ctx context.Context, j *job) error {
	if j.ctx.Err() != nil {
		return fmt.Errorf("wait for the database: %w: %w", context.Cause(j.ctx), fault.ErrTemporary)
	}
	if err := w.exec(ctx, "SAVEPOINT job"); err != nil {
		return fmt.Errorf("%w: %w", errLostSavepoint, err)
	}
	err := j.do(ctx, w)
	if err != nil {
		if back := w.exec(ctx, "ROLLBACK TO job"); back != nil {
			return fmt.Errorf("%w: %w", errLostSavepoint, back)
		}
	}
	if end := w.exec(ctx, "RELEASE job"); end != nil {
		return fmt.Errorf("%w: %w", errLostSavepoint, end)
	}
	return err
}

// stmt prepares a query once.
func (w *writer) stmt(ctx context.Context, query string) (*sql.Stmt, error) {
	if s, ok := w.stmts[query]; ok {
		return s, nil
	}
	s, err := w.conn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	w.stmts[query] = s
	return s, nil
}

func (w *writer) exec(ctx context.Context, query string, args ...any) error {
	_, err := w.change(ctx, query, args...)
	return err
}

// change is exec that returns the number of changed rows.
func (w *writer) change(ctx context.Context, query string, args ...any) (int64, error) {
	s, err := w.stmt(ctx, query)
	if err != nil {
		return 0, err
	}
	r, err := s.ExecContext(ctx, args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// row reads one row; false if there is none.
func (w *writer) row(ctx context.Context, query string, args []any, into ...any) (bool, error) {
	s, err := w.stmt(ctx, query)
	if err != nil {
		return false, err
	}
	switch err := s.QueryRowContext(ctx, args...).Scan(into...); {
	case errors.Is(err, sql.ErrNoRows):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, nil
}
