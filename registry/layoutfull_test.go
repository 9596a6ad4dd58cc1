package registry_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

// TestLayoutOnAFullDisk: a layout writes into space that it has kept, also after a start, gives it away when asked, and has it again
// when there is room.
func TestLayoutOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "needs root")
	}
	box := testenv.NewBox(t)
	disk, err := box.NewDisk(t.Context(), 16<<20)
	if err != nil {
		testenv.Unavailable(t, "%v", err)
	}
	dir, filler := filepath.Join(disk.Dir, "content"), filepath.Join(disk.Dir, "filler")
	l := openLayout(t, dir)
	fill := func() { // with smaller and smaller writes: ext4 refuses a large one whole, with room left for others
		t.Helper()
		f, err := os.Create(filler)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for size := 32 << 20; size >= 512; size /= 2 {
			for err = nil; err == nil; {
				_, err = f.Write(make([]byte, size))
			}
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("filling the disk: %v", err)
			}
		}
	}
	put := func(size int, want error) {
		t.Helper()
		content := randomBytes(size)
		if err := l.Put(t.Context(), blobOf(content), content); !errors.Is(err, want) {
			t.Errorf("Put of %d bytes: %v, want %v", size, err, want)
		}
		if left, err := filepath.Glob(filepath.Join(dir, "ingest", "put-*")); err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
	fill()
	spare := randomBytes(300_000)
	if err := l.StageSpare(t.Context(), blobOf(spare), spare); !errors.Is(err, fault.ErrFull) {
		t.Errorf("StageSpare takes what is reserved: %v", err)
	}
	put(300_000, nil)
	l = openLayout(t, dir)
	put(400_000, nil)
	put(5<<20, fault.ErrFull)
	put(500_000, nil)

	err = l.Yield(func() error {
		other := filepath.Join(disk.Dir, "other")
		return errors.Join(os.WriteFile(other, make([]byte, 200_000), 0o600), os.Remove(other))
	})
	if err != nil {
		t.Errorf("there is no space for others: %v", err)
	}
	put(600_000, nil)
	_ = l.Yield(func() error { fill(); return nil })
	put(100_000, fault.ErrFull)

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := l.Retain(t.Context(), []digest.Digest{}); err != nil {
		t.Fatal(err)
	}
	fill()
	put(300_000, nil)
}
