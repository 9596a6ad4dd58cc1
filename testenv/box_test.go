package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestBoxEndsAllThatItStarted(t *testing.T) {
	b, err := OpenBox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	for _, name := range []string{"first", "second", "third"} {
		stop := b.Add(name, func() error { order = append(order, name); return nil })
		if name == "second" {
			if err := errors.Join(stop(), stop()); err != nil {
				t.Error(err)
			}
		}
	}
	polite, err := b.Start("polite", nil, "sleep", "600")
	if err != nil {
		t.Fatal(err)
	}
	// A process that ignores signals, and has a child in a session of its own.
	stubborn := exec.Command("sh", "-c", "trap '' TERM; setsid sleep 601 & wait")
	b.Mark(stubborn)
	if err := stubborn.Start(); err != nil {
		t.Fatal(err)
	}
	Eventually(t, time.Minute, "the child", func() error {
		if n := len(markedProcesses(b.Dir(), "")); n < 3 {
			return errors.New("not yet")
		}
		return nil
	})
	waited := make(chan error, 1)
	go func() { waited <- stubborn.Wait() }()
	if err := b.Empty(); err != nil {
		t.Fatal(err)
	}
	<-waited
	if want := []string{"second", "third", "first"}; !slices.Equal(order, want) {
		t.Errorf("ended %v, want %v", order, want)
	}
	if polite.PID() != 0 {
		t.Error("a process of the box runs on")
	}
	if traces := b.Traces(t.Context()); len(traces) > 0 {
		t.Errorf("traces = %v", traces)
	}
	if _, err := os.Stat(b.Dir()); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", b.Dir(), err)
	}
}

func TestProcessKilledAndStartedAgain(t *testing.T) {
	b := NewBox(t)
	p, err := b.Start("p", []string{"GREETING=hello"}, "sh", "-c", "echo $GREETING; exec sleep 600")
	if err != nil {
		t.Fatal(err)
	}
	printed := func(want string) func() error {
		return func() error {
			if got := p.Log(10); got != want {
				return errors.New(got)
			}
			return nil
		}
	}
	Eventually(t, time.Minute, "its output", printed("hello"))
	first := p.PID()
	p.Kill()
	if p.PID() != 0 || p.Running() == nil {
		t.Errorf("PID() = %d, Running() = %v after Kill", p.PID(), p.Running())
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	if again := p.PID(); again == 0 || again == first {
		t.Errorf("PID() = %d after a new start, was %d", again, first)
	}
	Eventually(t, time.Minute, "the output of both", printed("hello\nhello"))
}

// What a killed process left is swept by the next one.
func TestSweepDead(t *testing.T) {
	if os.Geteuid() != 0 {
		Unavailable(t, "needs root")
	}
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	b, err := OpenBox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dead := filepath.Join(filepath.Dir(b.Dir()), strconv.Itoa(gone.Process.Pid)+"-dead")
	mounted := filepath.Join(dead, "run", "netns", "x")
	if err := os.MkdirAll(mounted, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", mounted, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	left := exec.Command("sleep", "600")
	left.Env = append(os.Environ(), boxVariable+"="+dead)
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { waited <- left.Wait() }()
	if err := SweepDead(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-waited
	if _, err := os.Stat(dead); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", dead, err)
	}
	if _, err := os.Stat(b.Dir()); err != nil {
		t.Errorf("the box of a living process: %v", err)
	}
	if err := b.Empty(); err != nil {
		t.Error(err)
	}
}

// Orphans of a box that adopts are gone when it is empty, not only dead.
func TestAdopt(t *testing.T) {
	b, err := OpenBox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Adopt(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }) // cannot fail
	p, err := b.Start("p", nil, "sh", "-c", "sleep 600 & echo $!")
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	orphan, err := strconv.Atoi(p.Log(1))
	if err != nil {
		t.Fatal(err)
	}
	// While a process becomes another program, the kernel shows no environment of it, so no mark.
	Eventually(t, time.Minute, "the orphan is sleep", func() error {
		if name, _, _ := processStat(orphan); name != "sleep" {
			return fmt.Errorf("it is %q", name)
		}
		return nil
	})
	if _, parent, _ := processStat(orphan); parent != os.Getpid() {
		t.Errorf("the orphan's parent is %d, want this process", parent)
	}
	if err := b.Empty(); err != nil {
		t.Error(err)
	}
	if name, _, state := processStat(orphan); name != "" {
		t.Errorf("the orphan %d is there, state %s", orphan, state)
	}
}

func TestOutput(t *testing.T) {
	b := NewBox(t)
	out, err := b.Output(t.Context(), []string{"GREETING=hello"}, "/bin/sh", "-c", "echo $GREETING in $PWD; echo noise >&2")
	if want := "hello in " + b.Dir() + "\n"; err != nil || out != want {
		t.Errorf("Output = %q, %v, want %q", out, err, want)
	}
	if _, err := b.Output(t.Context(), nil, "/bin/sh", "-c", "echo why >&2; exit 3"); err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "why") {
		t.Errorf("a program that failed: %v", err)
	}
}
