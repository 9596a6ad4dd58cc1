package containerd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

// inside runs the toolbox in a container and returns what it printed.
func (r *rig) inside(id string, args ...string) string {
	r.t.Helper()
	var out bytes.Buffer
	code, err := r.Exec(r.t.Context(), id, agent.ExecOptions{Argv: append([]string{"/toolbox"}, args...), Stdout: &out, Stderr: &out})
	if err != nil || code != 0 {
		r.t.Fatalf("toolbox %q in %s: exit code %d, %v\n%s", args, id, code, err, &out)
	}
	return out.String()
}

func TestExec(t *testing.T) {
	r := newRig(t)
	s := server(r.pulled(nil))
	s.Environment = []string{"FROM=service"}
	c := r.up(project("exec", s))[0]
	for _, tc := range []struct {
		name string
		o    agent.ExecOptions
		code int
		want []string // in standard output
		err  []string // in standard error
	}{
		{name: "exit code", o: agent.ExecOptions{Argv: []string{"/toolbox", "exit", "42"}}, code: 42},
		{name: "both streams", o: agent.ExecOptions{Argv: []string{"/toolbox", "print-err", "oops"}}, err: []string{"oops\n"}},
		{
			name: "user, directory, environment",
			o: agent.ExecOptions{
				Argv: []string{"/toolbox", "env"}, User: "www-data", WorkingDir: "/tmp", Environment: []string{"FROM=exec", "MORE=1"},
			},
			want: []string{"user=33:33", "wd=/tmp", "FROM=exec\n", "MORE=1\n"},
		},
		{name: "user by number", o: agent.ExecOptions{Argv: []string{"/toolbox", "env"}, User: "7:8"}, want: []string{"user=7:8"}},
		{
			name: "input to its end",
			o:    agent.ExecOptions{Argv: []string{"/toolbox", "copy"}, Stdin: strings.NewReader(strings.Repeat("line\n", 50_000))},
			want: []string{strings.Repeat("line\n", 50_000)},
		},
		{name: "input that ends at once", o: agent.ExecOptions{Argv: []string{"/toolbox", "copy"}, Stdin: strings.NewReader("")}},
		{
			name: "terminal", o: agent.ExecOptions{Argv: []string{"/toolbox", "size"}, TTY: true, Resize: sizes(132, 50)},
			want: []string{"132x50\r\n"},
		},
		{
			name: "a signal", code: 137,
			o: agent.ExecOptions{Argv: []string{"/toolbox", "exit", "0", "600"}, Signals: signals(syscall.SIGKILL)},
		},
		{name: "much output", o: agent.ExecOptions{Argv: []string{"/toolbox", "lines", "40000"}}, want: []string{"line 40000\n"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out, errOut bytes.Buffer
			tc.o.Stdout, tc.o.Stderr = &out, &errOut
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			code, err := r.Exec(ctx, c.ID, tc.o)
			if err != nil || code != tc.code {
				t.Fatalf("exit code %d, %v, want %d\n%s%s", code, err, tc.code, &out, &errOut)
			}
			for _, w := range tc.want {
				if !strings.Contains(out.String(), w) {
					t.Errorf("%.40q… is not in %.200q", w, out.String())
				}
			}
			for _, w := range tc.err {
				if !strings.Contains(errOut.String(), w) {
					t.Errorf("%q is not in %q", w, errOut.String())
				}
			}
		})
	}
}

// gated takes nothing before it is open.
type gated struct {
	bytes.Buffer
	open <-chan time.Time
	once sync.Once
}

func (g *gated) Write(p []byte) (int, error) {
	g.once.Do(func() { <-g.open })
	return g.Buffer.Write(p)
}

// A caller that reads late gets all of the output of a process that ended meanwhile, and the process does not wait for ever.
func TestExecForALateReader(t *testing.T) {
	r := newRig(t)
	c := r.up(project("exec", server(r.pulled(nil))))[0]
	const lines = 11000 // less than pipes hold, so that the process ends at once
	out := &gated{open: time.After(14 * time.Second)}
	code, err := r.Exec(t.Context(), c.ID, agent.ExecOptions{Argv: []string{"/toolbox", "lines", strconv.Itoa(lines)}, Stdout: out})
	if last := fmt.Sprintf("line %d\n", lines); err != nil || code != 0 || !strings.HasSuffix(out.String(), last) {
		t.Errorf("exit code %d, %v, %d bytes; want an end with %q", code, err, out.Len(), last)
	}
}

func signals(list ...syscall.Signal) <-chan syscall.Signal {
	c := make(chan syscall.Signal, len(list))
	for _, s := range list {
		c <- s
	}
	return c
}

func sizes(width, height uint16) <-chan agent.Size {
	c := make(chan agent.Size, 1)
	c <- agent.Size{Width: width, Height: height}
	return c
}

func TestExecEndsWithItsContext(t *testing.T) {
	r := newRig(t)
	c := r.up(project("exec", server(r.pulled(nil))))[0]
	ctx, cancel := context.WithCancel(t.Context())
	in, w := io.Pipe()
	defer w.Close() // its reader ends then
	out := &watcher{seen: make(chan struct{})}
	go func() { // ends the exec, and with it this
		<-out.seen
		cancel()
	}()
	_, err := r.Exec(ctx, c.ID, agent.ExecOptions{Argv: []string{"/toolbox", "orphan"}, Stdin: in, Stdout: out})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Exec = %v, want canceled", err)
	}
	testenv.Eventually(t, time.Minute, "it ends", func() error {
		for _, name := range processes(t, r.seen(c.ID).PID) {
			if strings.Contains(name, "orphan") {
				return fmt.Errorf("%q still runs", name)
			}
		}
		return nil
	})
}

// processes are the command lines of those that share a process's namespace of processes.
func processes(t testing.TB, pid uint32) []string {
	t.Helper()
	ns := func(pid string) string {
		to, err := os.Readlink("/proc/" + pid + "/ns/pid")
		if err != nil {
			return err.Error()
		}
		return to
	}
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, p := range all {
		if p = filepath.Base(p); ns(p) == ns(itoa(pid)) {
			line, err := os.ReadFile("/proc/" + p + "/cmdline")
			if err == nil {
				out = append(out, strings.ReplaceAll(string(line), "\x00", " "))
			}
		}
	}
	return out
}

// watcher closes seen at the first output.
type watcher struct {
	seen chan struct{}
	done bool
}

func (w *watcher) once() {
	if !w.done {
		w.done = true
		close(w.seen)
	}
}

func (w *watcher) Write(p []byte) (int, error) {
	w.once()
	return len(p), nil
}

func TestExecSaysWhyNot(t *testing.T) {
	r := newRig(t)
	p := project("exec", server(r.pulled(nil)))
	c := r.created(p)[0]
	argv := []string{"/toolbox", "env"}
	if _, err := r.Exec(t.Context(), c.ID, agent.ExecOptions{Argv: argv}); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("in a container that does not run: %v, want a conflict", err)
	}
	if err := r.start(c); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		id   string
		o    agent.ExecOptions
		want error
		text string
	}{
		{"nothing to run", c.ID, agent.ExecOptions{}, fault.ErrInvalid, "nothing to run"},
		{"no container", "none", agent.ExecOptions{Argv: argv}, fault.ErrNotFound, "none"},
		{"no user", c.ID, agent.ExecOptions{Argv: argv, User: "nemo"}, fault.ErrInvalid, "nemo"},
		{"no absolute directory", c.ID, agent.ExecOptions{Argv: argv, WorkingDir: "tmp"}, fault.ErrInvalid, "tmp"},
		{"no program", c.ID, agent.ExecOptions{Argv: []string{"/nothing"}}, fault.ErrInvalid, "/nothing"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := r.Exec(t.Context(), tc.id, tc.o)
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("Exec = %v, want %v and %q in it", err, tc.want, tc.text)
			}
		})
	}
}
