package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// testTerminal gives a terminal and the end at which a person types.
func testTerminal(t *testing.T) (terminal, person *os.File) {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		testenv.Unavailable(t, "open a terminal: %v", err)
	}
	t.Cleanup(func() { _ = person.Close() })
	if err := unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = terminal.Close() })
	return terminal, person
}

// ownTerminal makes a process's standard input its terminal.
func ownTerminal() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setsid: true, Setctty: true}
}

// Ctrl-C ends every question, although it ends no read of a terminal, and leaves the terminal as it was.
func TestInterruptedQuestion(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	delete(s.env, "COSIGN_PASSWORD")
	for _, tc := range []struct {
		name   string
		silent bool // what is typed does not show
		args   []string
	}{
		{"a key's password", true, []string{"key", "generate", "new"}},
		{"a registry's password", true, []string{"login", "-u", "robot", host}},
		{"a user name", false, []string{"login", host}},
		{"a document", false, []string{"check", "-"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			terminal, _ := testTerminal(t)
			echoes := func() bool {
				mode, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
				return err == nil && mode.Lflag&unix.ECHO != 0
			}
			var out, errs bytes.Buffer
			p := testProgram(&out, &errs)
			p.stdin, p.lookup = terminal, s.lookup
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan int, 1)
			go func() { ended <- p.run(ctx, tc.args) }()
			if tc.silent {
				testenv.Eventually(t, time.Minute, "the question", func() error {
					if echoes() {
						return errors.New("the terminal still shows what is typed")
					}
					return nil
				})
			}
			cancel()
			select {
			case code := <-ended:
				if code != outcome.Interrupted || !strings.Contains(errs.String(), "interrupted") || !echoes() {
					t.Errorf("exit %d, echo %v\n%s", code, echoes(), errs.String())
				}
			case <-time.After(time.Minute):
				t.Fatal("it does not end")
			}
		})
	}
}

// Ctrl-D at the question for a password is no password, also not an empty one.
func TestNoPassword(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	delete(s.env, "COSIGN_PASSWORD")
	for _, args := range [][]string{{"key", "generate", "new"}, {"login", "-u", "robot", host}} {
		terminal, person := testTerminal(t)
		if _, err := person.WriteString("\x04"); err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		p := testProgram(&out, &errs)
		p.stdin, p.lookup = terminal, s.lookup
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if code := p.run(ctx, args); code != outcome.Misused || !strings.Contains(errs.String(), "no password was typed") {
			t.Errorf("%q: exit %d\n%s", args, code, errs.String())
		}
		cancel()
	}
}

// At a terminal a trust change, and a signature on a proposed one, are shown and asked for first: nothing is pushed or signed without a yes.
func TestTrustAsksBeforeItSigns(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.third()
	const at = host + "/plant/trust"
	s.do(outcome.OK, "trust", "init", "-q", "--signer", "release.pub", "--signer", "root.pub", "--threshold", "2", "--key", "release.pub", "--file", "policy.yaml", at)
	s.do(outcome.OK, "trust", "push", "-q", "--key", "release.key", "policy.yaml", at)
	answer := func(text string, args ...string) (code int, stderr string) {
		t.Helper()
		terminal, person := testTerminal(t)
		if _, err := person.WriteString(text + "\n"); err != nil {
			t.Fatal(err)
		}
		var out, errs bytes.Buffer
		p := testProgram(&out, &errs)
		p.stdin, p.lookup = terminal, s.lookup
		return p.run(t.Context(), args), errs.String()
	}
	repo := func() string {
		t.Helper()
		_, out, _ := s.try("trust", "history", "-o", "json", at)
		return out
	}
	for _, tc := range []struct {
		name   string
		asks   []string
		change []string
	}{
		{"sign the first version", []string{"Sign version 1? [y/N]"}, []string{"trust", "sign", "--key", "root.key", at}},
		{"add a signer", []string{"third", "Propose version 2? [y/N]"}, []string{"trust", "add", "--key", "release.key", "third.pub", at}},
		{"sign the change", []string{"third", "Sign version 2? [y/N]"}, []string{"trust", "sign", "--key", "root.key", at}},
	} {
		before := repo()
		for _, no := range []string{"", "n", "yes please"} {
			code, stderr := answer(no, tc.change...)
			if code != outcome.Interrupted || !strings.Contains(stderr, "not confirmed, nothing was changed") {
				t.Errorf("%s, answer %q: exit %d\n%s", tc.name, no, code, stderr)
			}
			for _, want := range tc.asks {
				if !strings.Contains(stderr, want) {
					t.Errorf("%s does not show %q:\n%s", tc.name, want, stderr)
				}
			}
		}
		if after := repo(); after != before {
			t.Errorf("%s: it was changed without a yes:\n%s", tc.name, after)
		}
		if code, stderr := answer("y", tc.change...); code != outcome.OK {
			t.Fatalf("%s, answer y: exit %d\n%s", tc.name, code, stderr)
		}
		if repo() == before {
			t.Errorf("%s: nothing was changed after a yes", tc.name)
		}
	}
}
