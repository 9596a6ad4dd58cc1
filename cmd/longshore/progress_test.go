package main

import (
	"bytes"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// On a terminal a bar with a rate and the time that is left; elsewhere, and with --quiet, none; colours nowhere.
func TestProgress(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/plant/apps/line")
	onTerminal := func(args ...string) string {
		t.Helper()
		terminal, person := testTerminal(t)
		if err := unix.IoctlSetWinsize(int(person.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100}); err != nil {
			t.Fatal(err)
		}
		shown := make(chan string)
		go func() { // ends when the terminal is closed
			var b bytes.Buffer
			_, _ = b.ReadFrom(person)
			shown <- b.String()
		}()
		var out bytes.Buffer
		code := run(t.Context(), args, strings.NewReader(""), &out, terminal, s.lookup)
		_ = terminal.Close()
		text := <-shown
		if code != outcome.OK || strings.Contains(out.String(), "\x1b") {
			t.Errorf("%v: exit %d\n%s%s", args, code, out.String(), text)
		}
		return text
	}
	s.env["NO_COLOR"] = "1"
	text := onTerminal("fleet", "publish", "--key", "release.key", "plant")
	for _, want := range []string{"3/3", "/s", " left", " in "} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not show %q:\n%q", want, text)
		}
	}
	if strings.Contains(text, "\x1b[3") || strings.Contains(text, "\x1b[1m") {
		t.Errorf("there are colours:\n%q", text)
	}
	s.change("plant/fleet.yaml", "poll: 10", "poll: 11")
	if text := onTerminal("fleet", "publish", "-q", "--key", "release.key", "plant"); text != "" {
		t.Errorf("--quiet shows %q", text)
	}
	s.change("plant/fleet.yaml", "poll: 11", "poll: 12")
	if code, _, stderr := s.try("fleet", "publish", "--key", "release.key", "plant"); code != outcome.OK || strings.Contains(stderr, "\x1b") {
		t.Errorf("into a pipe: exit %d, %q", code, stderr)
	}
}
