// Package cache keeps small files of earlier runs of a program, for its user alone. If a file cannot be written or read, a run works without it.
package cache

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Folder is the directory of the files. "" stores nothing.
type Folder string

// names matches files, their locks, and unfinished files of an interrupted run.
var names = strict.Expression(`^([0-9a-f]{64}(\.json)?(\.lock)?|new-[0-9]+)$`)

// Read reads a file of at most limit bytes. Others may have written it: the caller checks it.
func (d Folder) Read(name string, limit int64) ([]byte, error) {
	return bounded.File(os.Open, filepath.Join(string(d), name), limit)
}

// Keep writes a file, and returns when, by the clock of the file system; the zero time: it was not written. The name is a SHA-256 in
// hex, which may end with ".json".
func (d Folder) Keep(name string, data []byte) time.Time {
	if d == "" || os.MkdirAll(string(d), 0o700) != nil {
		return time.Time{}
	}
	f, err := os.CreateTemp(string(d), "new-*") // for its user alone
	if err != nil {
		return time.Time{}
	}
	_, err = f.Write(data)
	info, noInfo := f.Stat()
	closed := f.Close()
	if err != nil || noInfo != nil || closed != nil || os.Rename(f.Name(), filepath.Join(string(d), name)) != nil {
		_ = os.Remove(f.Name()) // otherwise RemoveOlder does
		return time.Time{}
	}
	return info.ModTime()
}

// Lock locks a file against other processes until unlock is called or the process ends; ok is false while another one has it. Without a
// directory there is nothing to lock.
func (d Folder) Lock(name string) (unlock func(), ok bool) {
	if d == "" || os.MkdirAll(string(d), 0o700) != nil {
		return func() {}, true
	}
	path := filepath.Join(string(d), name+".lock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return func() {}, true
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return func() {}, !errors.Is(err, syscall.EWOULDBLOCK)
	}
	mine, err := f.Stat()
	now, noNow := os.Stat(path)
	if err != nil || noNow != nil || !os.SameFile(mine, now) { // its last holder has removed it meanwhile
		f.Close()
		return func() {}, false
	}
	return func() {
		_ = os.Remove(path) // otherwise RemoveOlder does
		f.Close()
	}, true
}

// Use marks a file as used at a time.
func (d Folder) Use(name string, now time.Time) {
	_ = os.Chtimes(filepath.Join(string(d), name), now, now) // after an error the file may be removed and written again
}

// Remove removes a file.
func (d Folder) Remove(name string) {
	_ = os.Remove(filepath.Join(string(d), name)) // readers check it
}

// RemoveOlder removes files that were neither written nor used since a time, and only files of Keep: by a link or a
// setting the folder may belong to another program.
func (d Folder) RemoveOlder(than time.Time) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !names.MatchString(e.Name()) {
			continue
		}
		if info, err := e.Info(); err == nil && info.ModTime().Before(than) {
			d.Remove(e.Name())
		}
	}
}
