package logs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
)

// logRig is a keeper that only rotates and reads, in a directory.
func logRig(t *testing.T, dir string, l Limits) (*Keeper, string) {
	t.Helper()
	r := NewKeeper(filepath.Join(dir, "logs"), l, time.Now, slog.New(slog.DiscardHandler))
	file, err := r.File(Replica{"p", "web", "1"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	return r, file
}

// appender writes numbered lines as a shim does.
type appender struct {
	t *testing.T
	f *os.File
	n int
}

func newAppender(t *testing.T, file string) *appender {
	t.Helper()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &appender{t, f, 0}
}

func (a *appender) lines(n int) {
	a.t.Helper()
	for range n {
		a.n++
		if _, err := fmt.Fprintf(a.f, "line %06d\n", a.n); err != nil {
			a.t.Fatal(err)
		}
	}
}

func numbered(from, to int) string {
	var b strings.Builder
	for n := from; n <= to; n++ {
		fmt.Fprintf(&b, "line %06d\n", n)
	}
	return b.String()
}

func readLog(t *testing.T, r *Keeper, file string, o workload.LogOptions) string {
	t.Helper()
	l, err := openLog(t.Context(), r.files.get(file), file, o, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	b, err := io.ReadAll(l)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestTailOfOneHugeLine: a line without an end does not make a short answer long, over rotated files neither.
func TestTailOfOneHugeLine(t *testing.T) {
	r, file := logRig(t, t.TempDir(), Limits{})
	piece := strings.Repeat("x", 4<<20)
	for _, f := range []string{rotated(file, 2), rotated(file, 1)} {
		if err := os.WriteFile(f, []byte(piece), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, []byte(piece+"the end\n"), 0o640); err != nil {
		t.Fatal(err)
	}
	for _, lines := range []int{1, 3} {
		got := readLog(t, r, file, workload.LogOptions{Tail: lines})
		if len(got) != lines*maxStampedLine || !strings.HasSuffix(got, "xthe end\n") {
			t.Errorf("the last %d lines have %d bytes, want the last %d", lines, len(got), lines*maxStampedLine)
		}
	}
}

// TestCloseBesideRead: a reader may be closed from another goroutine while it reads rotated files. The race detector looks.
func TestCloseBesideRead(t *testing.T) {
	r, file := logRig(t, t.TempDir(), Limits{})
	for _, f := range []string{rotated(file, 2), rotated(file, 1), file} {
		newAppender(t, f).lines(2000)
	}
	for range 50 {
		l, err := openLog(t.Context(), r.files.get(file), file, workload.LogOptions{Follow: true}, time.Now)
		if err != nil {
			t.Fatal(err)
		}
		begun, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			buf := make([]byte, 512)
			_, err := l.Read(buf)
			close(begun)
			for err == nil {
				_, err = l.Read(buf)
			}
			ended <- err
		}()
		<-begun
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, fs.ErrClosed) {
			t.Errorf("Read beside Close = %v, want %v", err, fs.ErrClosed)
		}
	}
}

func TestTail(t *testing.T) {
	for name, tc := range map[string]struct {
		rotated []string // newest first
		current string
		tail    int
		want    string
	}{
		"all":                     {nil, "a\nb\n", 0, "a\nb\n"},
		"last line":               {nil, "a\nb\n", 1, "b\n"},
		"open last line":          {nil, "a\nb", 1, "b"},
		"nothing":                 {nil, "a\nb\n", workload.NoTail, ""},
		"nothing of several":      {[]string{"3\n", "1\n2\n"}, "4\n", workload.NoTail, ""},
		"more than there is":      {nil, "a\nb\n", 9, "a\nb\n"},
		"empty":                   {nil, "", 3, ""},
		"over a rotation":         {[]string{"1\n2\n"}, "3\n", 2, "2\n3\n"},
		"rotated inside a line":   {[]string{"1\n2\nth"}, "ree\n4\n", 2, "three\n4\n"},
		"over two rotations":      {[]string{"3\n4\n", "1\n2\n"}, "5\n", 4, "2\n3\n4\n5\n"},
		"all of several":          {[]string{"3\n", "1\n2\n"}, "4\n", 0, "1\n2\n3\n4\n"},
		"only the current":        {[]string{"1\n2\n"}, "3\n4\n5\n", 2, "4\n5\n"},
		"line longer than a read": {nil, "a\n" + strings.Repeat("b\n", 12) + strings.Repeat("x", 3*tailChunk) + "\n", 13, strings.Repeat("b\n", 12) + strings.Repeat("x", 3*tailChunk) + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			r, file := logRig(t, t.TempDir(), Limits{})
			for n, s := range tc.rotated {
				if err := os.WriteFile(rotated(file, n+1), []byte(s), 0o640); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(file, []byte(tc.current), 0o640); err != nil {
				t.Fatal(err)
			}
			if got := readLog(t, r, file, workload.LogOptions{Tail: tc.tail}); got != tc.want {
				t.Errorf("tail %d = %q, want %q", tc.tail, got, tc.want)
			}
		})
	}
}

// A follower that asks for no earlier output gets the new one.
func TestFollowWithoutTail(t *testing.T) {
	r, file := logRig(t, t.TempDir(), Limits{})
	w := newAppender(t, file)
	w.lines(3)
	l, err := openLog(t.Context(), r.files.get(file), file, workload.LogOptions{Follow: true, Tail: workload.NoTail}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w.lines(1)
	got := make([]byte, len(numbered(4, 4)))
	if _, err := io.ReadFull(l, got); err != nil || string(got) != numbered(4, 4) {
		t.Errorf("followed %q, %v, want %q", got, err, numbered(4, 4))
	}
}

func TestRotationLosesNothing(t *testing.T) {
	for name, dir := range map[string]func(*testing.T) string{
		"where a range can be cut": func(t *testing.T) string { return t.TempDir() },
		"where it cannot (tmpfs)":  smallDisk,
	} {
		t.Run(name, func(t *testing.T) {
			r, file := logRig(t, dir(t), Limits{MaxSize: 16 << 10, MaxFiles: 50, Budget: 1 << 30})
			w := newAppender(t, file)
			for range 20 {
				w.lines(1500)
				if err := r.Rotate(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if got := readLog(t, r, file, workload.LogOptions{}); got != numbered(1, w.n) {
				t.Errorf("%d bytes are there, want %d in order", len(got), len(numbered(1, w.n)))
			}
			if got, want := readLog(t, r, file, workload.LogOptions{Tail: 4000}), numbered(w.n-3999, w.n); got != want {
				t.Errorf("the last 4000 lines have %d bytes, want %d", len(got), len(want))
			}
			if _, err := os.Stat(rotated(file, 1)); err != nil {
				t.Errorf("nothing was rotated: %v", err)
			}
		})
	}
}

func TestFollowOverRotation(t *testing.T) {
	r, file := logRig(t, t.TempDir(), Limits{MaxSize: 8 << 10, MaxFiles: 3, Budget: 1 << 30})
	ctx, cancel := context.WithCancel(t.Context())
	l, err := openLog(ctx, r.files.get(file), file, workload.LogOptions{Follow: true}, time.Now) // before the file is there
	if err != nil {
		t.Fatal(err)
	}
	w := newAppender(t, file)
	const rounds, lines = 12, 900
	want := numbered(1, rounds*lines)
	got := make([]byte, 0, len(want))
	for n := range rounds {
		w.lines(lines)
		// Reads half of what came, then the rest is moved away under the reader.
		for half := (2*n + 1) * len(want) / (2 * rounds); len(got) < half; {
			k, err := l.Read(got[len(got):min(cap(got), half)])
			if err != nil {
				t.Fatal(err)
			}
			got = got[:len(got)+k]
		}
		if err := r.Rotate(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for len(got) < len(want) {
		k, err := l.Read(got[len(got):cap(got)])
		if err != nil {
			t.Fatal(err)
		}
		got = got[:len(got)+k]
	}
	if string(got) != want {
		t.Error("the followed output differs from what was written")
	}
	cancel()
	if n, err := l.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("Read after the context ended = %d, %v, want EOF", n, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestCloseEndsAFollower(t *testing.T) {
	r, file := logRig(t, t.TempDir(), Limits{})
	l, err := openLog(t.Context(), r.files.get(file), file, workload.LogOptions{Follow: true}, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := l.Read(make([]byte, 1))
		ended <- err
	}()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("Read of a closed log succeeded")
	}
}

func TestRotationKeepsTheBudget(t *testing.T) {
	r, file := logRig(t, t.TempDir(), Limits{MaxSize: 8 << 10, MaxFiles: 3, Budget: 40 << 10})
	w := newAppender(t, file)
	for range 6 {
		w.lines(1000) // 12 kB
		if err := r.Rotate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(file + ".[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) > 3 {
		t.Errorf("%d rotated files, want 3 at most", len(files))
	}
	old := filepath.Join(filepath.Dir(file), "gone-1.log.1")
	if err := os.WriteFile(old, make([]byte, 30<<10), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(old, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := r.Rotate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); !os.IsNotExist(err) {
		t.Errorf("the oldest rotated file is there over the budget: %v", err)
	}
	if got := readLog(t, r, file, workload.LogOptions{Tail: 10}); got != numbered(w.n-9, w.n) {
		t.Errorf("the newest lines = %q", got)
	}
}
