package process

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// A step of the clock moves the kernel's btime, and with it every start time. The run is still the same.
func TestRunIsNamedWithoutTheClock(t *testing.T) {
	proc := t.TempDir()
	write := func(file, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(proc, file)), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	begin := func(ticks int) {
		write("42/stat", fmt.Sprintf("42 (a b) c) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 %d 1000 1 0\n", ticks))
	}
	clock := func(boot int64) { write("stat", fmt.Sprintf("cpu 1 2\nbtime %d\nprocesses 9\n", boot)) }
	begin(12345)
	clock(1_700_000_000)
	run, at, began := Started(42, proc)
	if want := time.Unix(1_700_000_123, 450_000_000); run == "" || !at.Equal(want) {
		t.Fatalf("started = %q, %v, want a run at %v", run, at, want)
	}
	clock(1_700_007_200)
	if again, moved, same := Started(42, proc); again != run || !moved.After(at) || same != began || began == 0 {
		t.Errorf("after the clock was set: %q at %v, want %q later than %v", again, moved, run, at)
	}
	begin(12346) // another process with the same number
	if other, _, _ := Started(42, proc); other == run || other == "" {
		t.Errorf("another run is named %q as the first was", other)
	}
	if run, at, began := Started(43, proc); run != "" || !at.IsZero() || began != 0 {
		t.Errorf("no process = %q, %v", run, at)
	}
}

// A run has one name, whoever asks for it.
func TestRunOfNamesTheRun(t *testing.T) {
	pid := uint32(os.Getpid())
	parent, run := RunOf(pid, "/proc")
	if want, _, _ := Started(pid, "/proc"); run != want || run == "" || parent != os.Getppid() {
		t.Errorf("runOf = %d, %q, want %d, %q", parent, run, os.Getppid(), want)
	}
	if parent, run := RunOf(1<<31-1, "/proc"); parent != 0 || run != "" {
		t.Errorf("no process = %d, %q", parent, run)
	}
}
