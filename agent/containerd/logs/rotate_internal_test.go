package logs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/testenv"
)

// smallDisk is a filesystem of 8 MiB that cannot cut a file's front.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	testenv.SmallDisk(t, dir, 8<<20)
	return dir
}

func sizeOf(t *testing.T, file string) int64 {
	t.Helper()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// fill writes to a disk until it is full.
func fill(t *testing.T, dir string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	if ignoreFull(err) != nil {
		t.Fatal(err)
	}
}

func TestRotationOnAFullDiskGivesSpace(t *testing.T) {
	dir := smallDisk(t)
	const maxSize = 512 << 10
	r, file := logRig(t, dir, Limits{MaxSize: maxSize, MaxFiles: 2, Budget: 1 << 30})
	for n := 1; n <= 2; n++ {
		if err := os.WriteFile(rotated(file, n), []byte(fmt.Sprintf("old %d\n", n)), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	w := newAppender(t, file)
	w.lines(100_000) // 1.2 MB
	fill(t, dir)
	if err := r.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := sizeOf(t, file); n > maxSize || n < 1<<10 {
		t.Errorf("the log has %d bytes, want its end, %d at most", n, maxSize)
	}
	for n := 1; n <= 2; n++ {
		if b, err := os.ReadFile(rotated(file, n)); err != nil || string(b) != fmt.Sprintf("old %d\n", n) {
			t.Errorf("rotated file %d = %q, %v: moved or deleted for a copy that was not made", n, b, err)
		}
	}
	w.lines(10) // there is space again, and the shim's file is the same
	if got := readLog(t, r, file, workload.LogOptions{Tail: 100}); got != numbered(w.n-99, w.n) {
		t.Errorf("the last lines = %.60q …", got)
	}
	if left, err := filepath.Glob(file + copySuffix); err != nil || len(left) > 0 {
		t.Errorf("half a copy is left: %v, %v", left, err)
	}
}

// The log of a service is rotated and counted, whatever its name is.
func TestRotationOfEveryName(t *testing.T) {
	k := NewKeeper(t.TempDir(), Limits{MaxSize: 8 << 10, MaxFiles: 1, Budget: 1 << 30}, time.Now, nil)
	for _, service := range []string{"a.times", "b.log", "c.times.new", "d.log.1"} {
		file, err := k.Create(Replica{"p", service, "1"})
		if err == nil {
			err = os.WriteFile(file, make([]byte, 100<<10), 0o640)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := k.Rotate(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := sizeOf(t, file); n > 8<<10 {
			t.Errorf("the log of service %s has %d bytes after a rotation", service, n)
		}
	}
	used, err := k.Usage(t.Context())
	if err != nil || len(used) != 4 || used[1].Service != "b.log" || used[3].Service != "d.log.1" {
		t.Errorf("usage %+v, %v", used, err)
	}
}

// A copy that does not get through changes nothing else.
func TestRotationMovesNothingBeforeItsCopyIsMade(t *testing.T) {
	r, file := logRig(t, t.TempDir(), Limits{MaxSize: 8 << 10, MaxFiles: 2, Budget: 1 << 30})
	for n := 1; n <= 2; n++ {
		if err := os.WriteFile(rotated(file, n), []byte{byte('0' + n)}, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	w := newAppender(t, file)
	w.lines(1000)
	if err := os.MkdirAll(filepath.Join(file+copySuffix, "0"), 0o750); err != nil { // in the way

		t.Fatal(err)
	}
	if err := r.Rotate(t.Context()); err == nil {
		t.Error("a rotation that could not be made was not told")
	}
	for n := 1; n <= 2; n++ {
		if b, err := os.ReadFile(rotated(file, n)); err != nil || string(b) != string(rune('0'+n)) {
			t.Errorf("rotated file %d = %q, %v", n, b, err)
		}
	}
	if n := sizeOf(t, file); n != int64(len(numbered(1, w.n))) {
		t.Errorf("the log has %d bytes", n)
	}
}

// A container that floods its output between two looks: its file ends at its bound, whatever it grew to.
func TestRotationOfAFlood(t *testing.T) {
	for name, dir := range map[string]func(*testing.T) string{
		"where a range can be cut": func(t *testing.T) string { return t.TempDir() },
		"where it cannot (tmpfs)":  smallDisk,
	} {
		t.Run(name, func(t *testing.T) {
			const maxSize = 64 << 10
			r, file := logRig(t, dir(t), Limits{MaxSize: maxSize, MaxFiles: 2, Budget: 1 << 30})
			w := newAppender(t, file)
			w.lines(1)
			if err := os.Truncate(file, 3<<30); err != nil { // a hole: only its size counts
				t.Fatal(err)
			}
			w.lines(20_000)
			follower, err := openLog(t.Context(), r.files.get(file), file, workload.LogOptions{Follow: true}, time.Now)
			if err != nil {
				t.Fatal(err)
			}
			defer follower.Close()
			if err := r.Rotate(t.Context()); err != nil {
				t.Fatal(err)
			}
			if cur, old := sizeOf(t, file), sizeOf(t, rotated(file, 1)); cur >= maxSize || old > maxSize+8<<10 {
				t.Errorf("%d bytes in the log and %d in the rotated one", cur, old)
			}
			want := numbered(w.n-3999, w.n)
			if got := readLog(t, r, file, workload.LogOptions{Tail: 4000}); got != want {
				t.Errorf("the last 4000 lines have %d bytes, want %d", len(got), len(want))
			}
			var seen []byte // the follower passes over what is gone and comes to the end
			for buf := make([]byte, 32<<10); !bytes.HasSuffix(seen, []byte(want[len(want)-100:])); {
				n, err := follower.Read(buf)
				if err != nil {
					t.Fatal(err)
				}
				if seen = append(seen, buf[:n]...); len(seen) > 8*maxSize {
					t.Fatal("the follower reads what was cut off")
				}
			}
		})
	}
}

func TestBudgetCountsCurrentFiles(t *testing.T) {
	const budget = 100 << 10
	r, file := logRig(t, t.TempDir(), Limits{MaxSize: 64 << 10, MaxFiles: 2, Budget: budget})
	var files []string
	for n := range 5 {
		f := strings.Replace(file, "web", fmt.Sprintf("web%d", n), 1)
		w := newAppender(t, f)
		w.lines(4000) // 48 kB each, none over its own bound
		files = append(files, f)
	}
	if err := os.WriteFile(rotated(file, 1), make([]byte, 10<<10), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := r.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	for _, f := range files {
		total += sizeOf(t, f)
		if got := readLog(t, r, f, workload.LogOptions{Tail: 20}); got != numbered(3981, 4000) {
			t.Errorf("the end of %s is gone: %.60q", filepath.Base(f), got)
		}
	}
	if total > budget {
		t.Errorf("%d bytes of output, want %d at most", total, budget)
	}
	if _, err := os.Stat(rotated(file, 1)); !os.IsNotExist(err) {
		t.Errorf("a rotated file is there over the budget: %v", err)
	}
}
