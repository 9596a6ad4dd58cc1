package cache_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/registry/cache"
)

func TestFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	d := cache.Folder(dir)
	d.RemoveOlder(time.Now()) // there is none
	one, two := strings.Repeat("1", 64), strings.Repeat("2", 64)+".json"
	for _, name := range []string{one, two} {
		if d.Keep(name, []byte("data")).IsZero() {
			t.Fatalf("%s was not written", name)
		}
	}
	if data, err := d.Read(one, 4); err != nil || string(data) != "data" {
		t.Errorf("Read = %q, %v", data, err)
	}
	if data, err := d.Read(one, 3); err == nil {
		t.Errorf("Read of at most 3 bytes = %q", data)
	}
	for name, want := range map[string]os.FileMode{dir: 0o700 | os.ModeDir, filepath.Join(dir, one): 0o600} {
		if info, err := os.Stat(name); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want mode %v", name, info.Mode(), err, want)
		}
	}
	others := []string{"shadow", one + ".txt", "new-file", strings.Repeat("1", 63)}
	for _, name := range append(others, "new-123") {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		d.Use(name, time.Unix(0, 0))
	}
	if err := os.Mkdir(filepath.Join(dir, strings.Repeat("3", 64)), 0o700); err != nil {
		t.Fatal(err)
	}
	d.Use(strings.Repeat("3", 64), time.Unix(0, 0))
	d.Use(one, time.Unix(0, 0))
	d.RemoveOlder(time.Unix(1, 0))
	for name, want := range map[string]bool{one: false, two: true, "new-123": false, "shadow": true, one + ".txt": true, "new-file": true, strings.Repeat("1", 63): true, strings.Repeat("3", 64): true} {
		if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != want {
			t.Errorf("%s: %v, want it there: %t", name, err, want)
		}
	}
	if !cache.Folder("").Keep(one, nil).IsZero() {
		t.Error("a file was written nowhere")
	}
}

// A file is locked against other holders until it is unlocked, and without a directory there is nothing to lock.
func TestLock(t *testing.T) {
	d, name := cache.Folder(t.TempDir()), strings.Repeat("1", 64)+".json"
	unlock, ok := d.Lock(name)
	if !ok {
		t.Fatal("the first one does not get the lock")
	}
	if other, ok := d.Lock(name); ok {
		t.Error("a second one gets it")
		other()
	}
	unlock()
	for _, d := range []cache.Folder{d, ""} {
		if unlock, ok = d.Lock(name); !ok {
			t.Errorf("%q: it is locked", d)
		}
		unlock()
	}
	if left, err := os.ReadDir(string(d)); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
