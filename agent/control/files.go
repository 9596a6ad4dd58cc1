package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Files of the directory of decisions.
const (
	ChangesFile    = "changes.json" // written by the agent: what GET /v1/changes answers
	decisionSuffix = ".decision"    // written by others: a [Decision]
	resultSuffix   = ".result"      // written by the agent: what became of it

	filesEvery  = 2 * time.Second
	filesAtOnce = 100
	filesAtMost = 10_000
	keepResults = 7 * 24 * time.Hour
	halfWritten = 10 * time.Second // a file that cannot be read may be incomplete for so long
)

// Directory is where panels and controllers without a program of their own decide: the agent writes [ChangesFile] there, and takes files that
// end in ".decision". Files count if they belong to root or Owner and nobody else may write them; links and other than regular files do not.
type Directory struct {
	Path  string
	Owner uint32 // uid beside root's; 0: none
	Name  string // of Owner, for records
	Log   *slog.Logger
	Now   func() time.Time

	written []byte // of ChangesFile
	failed  string
	sync    func(*os.File) error // nil: [os.File.Sync]
}

// Result is what became of a decision, in the file NAME.result.
type Result struct {
	Change *status.Change `json:"change,omitempty"` // null: it was refused
	Error  string         `json:"error,omitempty"`
	Hint   string         `json:"hint,omitempty"`
}

// Run looks at the directory until ctx ends.
func (x *Directory) Run(ctx context.Context, d Operator) {
	tick := time.NewTicker(filesEvery)
	defer tick.Stop()
	for {
		if err := x.look(ctx, d); err != nil && ctx.Err() == nil && err.Error() != x.failed {
			x.failed = err.Error()
			x.Log.Error("decisions in files are not read", "directory", x.Path, "err", err)
		} else if err == nil {
			x.failed = ""
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (x *Directory) look(ctx context.Context, d Operator) error {
	if err := os.MkdirAll(x.Path, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(x.Path)
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	if err := x.owned(info); err != nil {
		return fault.WithHint(fmt.Errorf("directory %s: %w", x.Path, err), "give it to root or approvals.owner, mode 0755")
	}
	all, err := d.Changes(ctx)
	if err != nil {
		return err
	}
	if err := x.tell(root, all); err != nil {
		return err
	}
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	var decisions []string
	for read := 0; read < filesAtMost && len(decisions) < filesAtOnce; {
		entries, err := dir.ReadDir(filesAtOnce)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		read += len(entries)
		for _, e := range entries {
			switch info, err := e.Info(); {
			case strings.HasSuffix(e.Name(), decisionSuffix):
				decisions = append(decisions, e.Name())
			case strings.HasSuffix(e.Name(), resultSuffix) && err == nil && x.Now().Sub(info.ModTime()) > keepResults:
				_ = root.Remove(e.Name()) // it is tried again
			}
		}
	}
	for _, name := range decisions {
		if err := x.take(ctx, root, name, d); err != nil {
			return err
		}
	}
	return nil
}

// owned reports whether only root and the owner could write a file.
func (x *Directory) owned(info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok || st.Uid != 0 && (x.Owner == 0 || st.Uid != x.Owner):
		return fmt.Errorf("it belongs to neither root nor approvals.owner: %w", fault.ErrDenied)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("mode %04o lets others write it: %w", info.Mode().Perm(), fault.ErrDenied)
	}
	return nil
}

// tell writes the changes that wait, when they are others than before, or the file is gone.
func (x *Directory) tell(root *os.Root, all []status.Change) error {
	data, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	if _, err := root.Lstat(ChangesFile); err == nil && bytes.Equal(data, x.written) {
		return nil
	}
	if err := x.replace(root, ChangesFile, append(data, '\n')); err != nil {
		return err
	}
	x.written = data
	return nil
}

// flush has what was written survive a power cut.
func (x *Directory) flush(f *os.File) error {
	if x.sync != nil {
		return x.sync(f)
	}
	return f.Sync()
}

// replace writes a file whole, or not.
func (x *Directory) replace(root *os.Root, name string, data []byte) error {
	hidden := "." + name + ".new"
	_ = root.Remove(hidden) // left over from a kill, or not there
	f, err := root.OpenFile(hidden, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, x.flush(f), f.Close()); err == nil {
		err = root.Rename(hidden, name)
	}
	return err
}

// take decides as a file says, writes the result and removes the file. A file that is not complete yet stays.
func (x *Directory) take(ctx context.Context, root *os.Root, name string, d Operator) error {
	r, at, err := x.read(root, name)
	if errors.Is(err, fault.ErrInvalid) && x.Now().Sub(at).Abs() < halfWritten {
		return nil
	}
	var out Result
	if err == nil {
		var c status.Change
		c, err = d.Decide(ctx, r)
		out.Change = &c
	}
	if errors.Is(err, fault.ErrTemporary) || ctx.Err() != nil {
		return err
	}
	if err != nil {
		x.Log.Warn("a decision in a file is refused", "file", filepath.Join(x.Path, name), "err", err)
		out = Result{Error: err.Error(), Hint: fault.Hint(err)}
	}
	data, err := json.MarshalIndent(out, "", "  ")
	if err != nil {
		return err
	}
	if err := x.replace(root, strings.TrimSuffix(name, decisionSuffix)+resultSuffix, append(data, '\n')); err != nil {
		// The decision is taken: if the file stayed, it would be taken again and again, over later ones.
		x.Log.Warn("the result of a decision in a file cannot be written", "file", filepath.Join(x.Path, name), "err", err)
	}
	if err := root.RemoveAll(name); err != nil {
		return err
	}
	dir, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(x.flush(dir), dir.Close()) // else the decision may come back after a power cut, over a later one
}

// read reads a decision; at is when the file was written.
func (x *Directory) read(root *os.Root, name string) (d Decision, at time.Time, err error) {
	fail := func(err error) (Decision, time.Time, error) {
		return d, at, fmt.Errorf("file %s: %w", filepath.Join(x.Path, name), err)
	}
	link, err := root.Lstat(name)
	if err != nil {
		return fail(err)
	}
	if !link.Mode().IsRegular() {
		return fail(fmt.Errorf("it is no regular file: %w", fault.ErrDenied))
	}
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		at = info.ModTime()
		err = x.owned(info)
	}
	if err != nil {
		return fail(err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxDecision+1))
	switch {
	case err != nil:
		return fail(err)
	case len(data) > maxDecision:
		return fail(fmt.Errorf("more than %d bytes: %w", maxDecision, fault.ErrTooLarge))
	}
	if err := decode(data, &d); err != nil {
		return fail(err)
	}
	by := "root"
	if info.Sys().(*syscall.Stat_t).Uid != 0 {
		by = "user " + x.Name
	}
	d.By, d.Via = by+", file "+strings.TrimSuffix(name, decisionSuffix), "file"
	return d, at, nil
}
