package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Backup writes a consistent copy of a database into a file, which it replaces as a whole; now is kept in it. Other processes may read and
// write the database meanwhile. fault.ErrNotFound: there is no database.
func Backup(ctx context.Context, database, file string, now time.Time) (err error) {
	database, err = filepath.Abs(database)
	if err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	if _, err := os.Stat(database); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w: %w", err, fault.ErrNotFound)
		}
		return fmt.Errorf("back up: %w", err)
	}
	if file, err = filepath.Abs(file); err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	if err := errors.Join(other(file, database), ours(ctx, database)); err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(file), ".backup-*") // mode 0700: the copy holds hashes of tokens
	if err != nil {
		return fmt.Errorf("back up: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	copied := filepath.Join(dir, "copy")
	db, err := connect(database, 1, "mode=rw")
	if err == nil {
		_, err = db.ExecContext(ctx, "VACUUM INTO ?", copied)
		err = errors.Join(err, db.Close())
	}
	if err == nil {
		err = sound(ctx, copied)
	}
	if err == nil {
		err = date(ctx, copied, now)
	}
	if resultOf(err) == sqliteNone {
		return noDatabase(database)
	}
	if err != nil {
		return fault.WithHint(fmt.Errorf("back up %s: %w", database, err), "is it a database of longshore-fleet, and is there room for the copy?")
	}
	if err := replaceBy(copied, file); err != nil {
		return fmt.Errorf("back up %s: %w", database, err)
	}
	return nil
}

// other is an error if a backup and a database are the same file: it would be replaced by a copy of itself, under the server that has it open.
func other(file, database string) error {
	a, err := os.Stat(file)
	b, failed := os.Stat(database)
	if err == nil && failed == nil && os.SameFile(a, b) {
		return fault.WithHint(fmt.Errorf("%s is the database itself: %w", file, fault.ErrInvalid), "name another file")
	}
	return nil // what else is wrong shows when they are opened
}

// date writes into a copy when it was made: the file's own times change when it is copied.
func date(ctx context.Context, copied string, now time.Time) error {
	db, err := connect(copied, 1, "mode=rw")
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS backup (made INTEGER NOT NULL); DELETE FROM backup; INSERT INTO backup VALUES (?)", now.Unix())
	if err == nil {
		_, err = db.ExecContext(ctx, "PRAGMA journal_mode=DELETE") // one file
	}
	return errors.Join(err, db.Close())
}

// Restored is what a backup had.
type Restored struct {
	Devices int
	Made    time.Time // when the backup was made; zero: by an older version, which did not note it
}

// Restore puts a backup in the place of a database that no process has open, at once or not at all. Devices are asked for what they have reported since the backup: the next capabilities of each are answered as new.
// fault.ErrInvalid: the file is damaged, or no backup; fault.ErrUnsupported: of a newer version; fault.ErrConflict: the database is open.
func Restore(ctx context.Context, file, database string) (r Restored, err error) {
	fail := func(err error) (Restored, error) { return Restored{}, fmt.Errorf("restore %s: %w", file, err) }
	if database, err = filepath.Abs(database); err != nil {
		return fail(err)
	}
	if err := errors.Join(other(file, database), ours(ctx, database), unused(database)); err != nil {
		return fail(err)
	}
	dir, err := os.MkdirTemp(filepath.Dir(database), ".restore-*")
	if err != nil {
		return fail(err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	copied := filepath.Join(dir, "copy")
	if err := copyFile(file, copied); err != nil {
		return fail(err)
	}
	if r, err = prepare(ctx, copied); err != nil {
		return fail(err)
	}
	if err := errors.Join(unused(database), settle(ctx, database)); err != nil {
		return fail(err)
	}
	if err := replaceBy(copied, database); err != nil {
		return fail(err)
	}
	return r, nil
}

// prepare checks a copied backup, brings its tables up to date, and notes that all devices have to report again.
func prepare(ctx context.Context, copied string) (r Restored, err error) {
	if err := sound(ctx, copied); err != nil {
		return r, err
	}
	db, err := connect(copied, 1, "mode=rw")
	if err != nil {
		return r, err
	}
	err = migrate(ctx, db, copied)
	if err == nil {
		_, err = db.ExecContext(ctx, "UPDATE devices SET restored = 1")
	}
	if err == nil {
		err = db.QueryRowContext(ctx, "SELECT count(*) FROM devices").Scan(&r.Devices)
	}
	if err == nil {
		var made int64
		if db.QueryRowContext(ctx, "SELECT made FROM backup").Scan(&made) == nil { // else there is no such table
			r.Made = time.Unix(made, 0)
		}
		_, err = db.ExecContext(ctx, "DROP TABLE IF EXISTS backup")
	}
	if err == nil {
		_, err = db.ExecContext(ctx, "PRAGMA journal_mode=DELETE") // one file
	}
	return r, errors.Join(err, db.Close())
}

// sound checks that a file is a database of this program, and not damaged.
func sound(ctx context.Context, file string) error {
	damaged := func(why any) error {
		return fault.WithHint(fmt.Errorf("the file is damaged, or no backup of longshore-fleet: %v: %w", why, fault.ErrInvalid), "use another backup")
	}
	u := url.URL{Scheme: "file", Path: file, RawQuery: "mode=ro"}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	var verdict string
	if err := db.QueryRowContext(ctx, "PRAGMA integrity_check(1)").Scan(&verdict); err != nil || verdict != "ok" {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return damaged(cmp.Or(err, errors.New(verdict)))
	}
	var tables int
	if err := db.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master WHERE name IN ('devices', 'deployments', 'tokens', 'goose_db_version')").Scan(&tables); err != nil || tables != 4 {
		return damaged("it lacks tables")
	}
	return nil
}

// unused fails when another process has a database open. SQLite holds a lock on its file as long as a connection is open.
func unused(database string) error {
	f, err := os.OpenFile(database, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock); err != nil {
		return fmt.Errorf("lock %s: %w", database, err)
	}
	if lock.Type != unix.F_UNLCK {
		return fault.WithHint(fmt.Errorf("%s is open in process %d: %w", database, lock.Pid, fault.ErrConflict), "stop longshore-fleet first: systemctl stop longshore-fleet")
	}
	return nil
}

// settle merges the log of the database that is replaced into its file: it must not be applied to another one. Of a damaged one
// nothing is left to keep.
func settle(ctx context.Context, database string) error {
	db, err := connect(database, 1, "mode=rw")
	if err == nil {
		_, _ = db.ExecContext(ctx, "PRAGMA journal_mode=DELETE") // fails if the database is damaged, or only its log is left
		err = db.Close()
	}
	for _, end := range []string{"-wal", "-shm"} {
		if gone := os.Remove(database + end); gone != nil && !errors.Is(gone, os.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// replaceBy renames a file, durably.
func replaceBy(from, to string) error {
	f, err := os.OpenFile(from, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Chmod(0o600), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(to))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
