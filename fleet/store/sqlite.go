package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/pressly/goose/v3"
	"modernc.org/sqlite" // the driver "sqlite"

	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

//go:embed migrations/*.sql
var migrations embed.FS

const (
	readers       = 4                      // connections that only read
	busyTimeout   = 5 * time.Second        // another process, such as "token create", holds the file
	migrationTry  = 5                      // two processes may open a new file at once
	migrationWait = 200 * time.Millisecond // between tries
	sqliteFull    = 13                     // SQLITE_FULL
	sqliteNone    = 26                     // SQLITE_NOTADB
)

// SQLite is a [Store] in one file. Close it.
type SQLite struct {
	read  *sql.DB
	token *sql.Stmt // every report asks for its token
	file  *sql.DB   // one connection, the writer's
	*writer

	health health
}

var _ Store = (*SQLite)(nil)

// Open opens the database, makes it when it is missing, and brings its tables up to date. The file is for its owner
// only: it holds hashes of tokens.
func Open(ctx context.Context, path string, log *slog.Logger) (*SQLite, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	if err := ours(ctx, path); err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	s := &SQLite{}
	if s.file, err = connect(path, 1, "_txlock=immediate"); err != nil {
		return nil, err
	}
	if err := s.start(ctx, path, log); err != nil {
		return nil, errors.Join(err, s.file.Close())
	}
	return s, nil
}

func (s *SQLite) start(ctx context.Context, path string, log *slog.Logger) error {
	if err := migrate(ctx, s.file, path); err != nil {
		return err
	}
	var err error
	if s.read, err = connect(path, readers, "_pragma=query_only(1)"); err != nil {
		return err
	}
	if s.token, err = s.read.PrepareContext(ctx, "SELECT "+tokenColumns+" FROM tokens WHERE id = ? AND revoked = 0"); err != nil {
		return errors.Join(fmt.Errorf("open database %s: %w", path, err), s.read.Close())
	}
	files, err := identify(path)
	if err == nil {
		s.writer, err = newWriter(ctx, s.file, files, log)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("open database %s: %w", path, err), s.token.Close(), s.read.Close())
	}
	return nil
}

// connect makes a pool. FULL syncs the log at each commit, so that a power cut takes nothing that was answered for.
func connect(path string, conns int, more string) (*sql.DB, error) {
	u := url.URL{Scheme: "file", Path: path}
	dsn := fmt.Sprintf("%s?_pragma=busy_timeout(%d)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&%s", u.String(), busyTimeout.Milliseconds(), more)
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

// ours is an error for an SQLite database of another program. It changes nothing in the file, as connect would; what else is wrong with it shows later.
func ours(ctx context.Context, path string) error {
	u := url.URL{Scheme: "file", Path: path, RawQuery: fmt.Sprintf("mode=ro&_pragma=busy_timeout(%d)", busyTimeout.Milliseconds())} // rw would write the log into the file
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return err
	}
	defer db.Close()
	var all, known int
	err = db.QueryRowContext(ctx, `SELECT count(*), count(*) FILTER (WHERE name IN ('devices', 'deployments', 'tokens')) FROM sqlite_master
		WHERE type = 'table' AND name <> 'goose_db_version' AND name NOT LIKE 'sqlite@_%' ESCAPE '@'`).Scan(&all, &known)
	if err == nil && all > 0 && known < 3 {
		return fault.WithHint(fmt.Errorf("%s is a database of another program: %w", path, fault.ErrInvalid), "name the server's file with --database")
	}
	return nil
}

func migrate(ctx context.Context, db *sql.DB, path string) error {
	dir, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("migrate %s: %w", path, err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, dir)
	if err != nil {
		return fmt.Errorf("migrate %s: %w", path, err)
	}
	for try := 1; ; try++ {
		_, err = p.Up(ctx)
		if err == nil || try == migrationTry || resultOf(err) == sqliteNone {
			break
		}
		if err := delay.For(ctx, migrationWait); err != nil {
			return fmt.Errorf("migrate %s: %w", path, err)
		}
	}
	switch {
	case resultOf(err) == sqliteNone:
		return noDatabase(path)
	case resultOf(err) == sqliteFull:
		return fmt.Errorf("open database %s: no room on its disk: %w", path, fault.ErrFull)
	case err != nil:
		return fault.WithHint(fmt.Errorf("migrate %s: %w", path, err), "is it a database of longshore-fleet, and writable?")
	}
	current, target, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("migrate %s: %w", path, err)
	}
	if current > target {
		return fault.WithHint(fmt.Errorf("open database %s: made by a newer version (%d, this one knows %d): %w", path, current, target, fault.ErrUnsupported),
			"use the newer longshore-fleet, or a backup of the file")
	}
	return nil
}

// resultOf is SQLite's result code in an error; 0: the error is not SQLite's.
func resultOf(err error) int {
	var known *sqlite.Error
	if !errors.As(err, &known) {
		return 0
	}
	return known.Code() & 0xff // without the extension
}

// noDatabase is the error for a file with other content.
func noDatabase(path string) error {
	return fault.WithHint(fmt.Errorf("open database %s: it is not an SQLite database: %w", path, fault.ErrInvalid),
		"name the server's file with --database; if that file is damaged, replace it with a backup: longshore-fleet restore FILE")
}

// Close writes what is queued and closes the file.
func (s *SQLite) Close() error {
	if !s.stop() {
		return nil
	}
	return errors.Join(s.token.Close(), s.read.Close(), s.file.Close())
}

// broken marks an error of the database as one that may pass.
func broken(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w: %w", what, err, fault.ErrTemporary)
}

func millis(t time.Time) int64 { return t.UnixMilli() }

func at(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}
