package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// boxes is the folder below os.TempDir that holds one folder for each box. Its fixed name lets a later run find what a
// killed one left behind.
const boxes = "longshore-box"

// Box is a folder together with everything that was started from it. Emptying it ends and removes all of that, last
// first, whatever state it is in. Should the process die without emptying it, the next [OpenBox] does.
type Box struct {
	dir    string
	mu     sync.Mutex
	items  []*item
	tables []string // see OwnTable
	adopts bool     // see Adopt
}

type item struct {
	what string
	end  func() error
}

// OpenBox makes a box below the temporary folder, and sweeps up after processes that died without emptying theirs.
// TMPDIR should be short: unix sockets have 107 bytes for their path.
func OpenBox(ctx context.Context) (*Box, error) {
	parent := filepath.Join(os.TempDir(), boxes)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, err
	}
	_ = SweepDead(ctx) // what resists there is not in our way here
	dir, err := os.MkdirTemp(parent, strconv.Itoa(os.Getpid())+"-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // services inside may run as other users
		return nil, err
	}
	return &Box{dir: dir}, nil
}

// NewBox opens a box for one test, which empties it at its end.
func NewBox(t testing.TB) *Box {
	t.Helper()
	b, err := OpenBox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Empty(); err != nil {
			t.Errorf("empty the box: %v", err)
		}
	})
	return b
}

// Dir is the box's folder; things put there need no Add, unless they are processes outside any container.
func (b *Box) Dir() string { return b.dir }

// Folder makes a folder in the box, named with prefix and a number. Its path is short, as unix sockets need it.
func (b *Box) Folder(prefix string) (string, error) {
	for n := 1; ; n++ {
		dir := filepath.Join(b.dir, prefix+strconv.Itoa(n))
		if err := os.Mkdir(dir, 0o755); !errors.Is(err, os.ErrExist) {
			return dir, err
		}
	}
}

// Add says how to end something. end may be called when the thing is half there or gone, which is no error. The function
// that it returns does so before the box is emptied.
func (b *Box) Add(what string, end func() error) (stop func() error) {
	it := &item{what, end}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.items = append(b.items, it)
	return func() error {
		b.mu.Lock()
		i := slices.Index(b.items, it)
		if i >= 0 {
			b.items = slices.Delete(b.items, i, i+1)
		}
		b.mu.Unlock()
		if i < 0 {
			return nil
		}
		return it.end()
	}
}

// Mark makes cmd one of the box's processes: however it ends up, emptying the box ends it and its children.
func (b *Box) Mark(cmd *exec.Cmd) {
	if cmd.Env == nil {
		cmd.Env = os.Environ()
	}
	cmd.Env = append(cmd.Env, boxVariable+"="+b.dir)
}

// Empty ends everything, last first, and removes the folder. It tries everything; the error names what stayed.
func (b *Box) Empty() error {
	b.mu.Lock()
	items, adopts := b.items, b.adopts
	b.items = nil
	b.mu.Unlock()
	noted := markedProcesses(b.dir, "") // a zombie does not tell whose it is
	var errs []error
	for _, it := range slices.Backward(items) {
		if err := it.end(); err != nil {
			errs = append(errs, fmt.Errorf("clean up %s: %w", it.what, err))
		}
	}
	if err := sweep(b.dir); err != nil {
		errs = append(errs, err)
	}
	if adopts {
		ctx, cancel := context.WithTimeout(context.Background(), sweepLimit)
		defer cancel()
		errs = append(errs, reap(ctx, noted))
	}
	return errors.Join(errs...)
}

// SweepDead empties the boxes of processes that are gone.
func SweepDead(ctx context.Context) error {
	parent := filepath.Join(os.TempDir(), boxes)
	entries, err := os.ReadDir(parent)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	unlock, err := lockFile(ctx, parent+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	var errs []error
	for _, e := range entries {
		pid, _, ok := strings.Cut(e.Name(), "-")
		if n, err := strconv.Atoi(pid); !ok || err != nil || alive(n) {
			continue
		}
		errs = append(errs, sweep(filepath.Join(parent, e.Name())))
	}
	return errors.Join(errs...)
}
