package store_test

import (
	"bytes"
	"database/sql"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/store"
)

// A log that a killed server has left beside a database that is gone does not become part of the backup that takes its place.
func TestRestoreBesideAnOldLog(t *testing.T) {
	place := t.TempDir()
	path, backup := filepath.Join(place, "fleet.db"), filepath.Join(place, "backup.db")
	s := open(t, place)
	put := func(deployment string) {
		t.Helper()
		_, err := s.PutStatus(t.Context(), store.Status{Device: "a", Deployment: deployment, State: margo.StateInstalled, Body: []byte("{}"), At: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
	}
	put("before")
	if err := store.Backup(t.Context(), path, backup, time.Now()); err != nil {
		t.Fatal(err)
	}
	put("after")
	left, err := os.ReadFile(path + "-wal")
	if err := errors.Join(err, s.Close(), os.Remove(path), os.WriteFile(path+"-wal", left, 0o600)); err != nil || len(left) == 0 {
		t.Fatal(len(left), err)
	}
	if _, err := store.Restore(t.Context(), backup, path); err != nil {
		t.Fatal(err)
	}
	s = open(t, place)
	defer s.Close()
	if all, _, err := s.Deployments(t.Context(), store.DeploymentQuery{Limit: 9}); err != nil || len(all) != 1 || all[0].ID != "before" {
		t.Errorf("restored: %+v, %v, want what the backup has", all, err)
	}
}

// A backup in the place of the database would be replaced under the server; a restored one would lose what is in its log.
func TestBackupOntoItself(t *testing.T) {
	place := t.TempDir()
	path, link := filepath.Join(place, "fleet.db"), filepath.Join(place, "link.db")
	s := open(t, place)
	defer s.Close()
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{path, link} {
		_, restored := store.Restore(t.Context(), file, path)
		for what, err := range map[string]error{"Backup": store.Backup(t.Context(), path, file, time.Now()), "Restore": restored} {
			if !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
				t.Errorf("%s with %s: %v, want ErrInvalid and a hint", what, file, err)
			}
		}
	}
	if err := s.Health(t.Context(), time.Now()); err != nil {
		t.Error(err)
	}
}

// An SQLite database of another program stays as it is.
func TestDatabaseOfAnotherProgram(t *testing.T) {
	place := t.TempDir()
	path, backup := filepath.Join(place, "notes.db"), filepath.Join(place, "backup.db")
	db, err := sql.Open("sqlite", path)
	if err == nil {
		_, err = db.ExecContext(t.Context(), "CREATE TABLE notes (id INTEGER PRIMARY KEY AUTOINCREMENT); INSERT INTO notes DEFAULT VALUES")
		err = errors.Join(err, db.Close())
	}
	before, failed := os.ReadFile(path)
	if err := errors.Join(err, failed, open(t, place).Close(), store.Backup(t.Context(), filepath.Join(place, "fleet.db"), backup, time.Now())); err != nil {
		t.Fatal(err)
	}
	s, opened := store.Open(t.Context(), path, slog.New(slog.DiscardHandler))
	if opened == nil {
		_ = s.Close()
	}
	_, restored := store.Restore(t.Context(), backup, path)
	for what, err := range map[string]error{
		"Open": opened, "Backup": store.Backup(t.Context(), path, filepath.Join(place, "copy.db"), time.Now()), "Restore": restored,
	} {
		if !errors.Is(err, fault.ErrInvalid) || fault.Hint(err) == "" {
			t.Errorf("%s: %v, want ErrInvalid and a hint", what, err)
		}
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file was changed: %v", err)
	}
}
