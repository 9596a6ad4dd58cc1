package docs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

// maxTyped bounds how many commands lead from a checkout to an application that answers, the start of the playground
// included.
const maxTyped = 6

// The playground starts, what it prints is what docs/quickstart.md and README.md show, the application answers when it has
// been typed, and Ctrl-C leaves nothing behind.
func TestQuickstart(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "needs root")
	}
	if err := testenv.InstallDebian(t.Context(), os.Stderr, "curl"); err != nil {
		testenv.Unavailable(t, "curl: %v", err)
	}
	up := startUp(t)
	block, rest, ok := strings.Cut(up.ready(t), "\n\nThe fleet page: ")
	if !ok {
		t.Fatalf("no block in\n%s", block)
	}
	page, _, _ := strings.Cut(rest, "\n")
	commands := strings.Split(strings.ReplaceAll(strings.TrimSpace(block), "\\\n", "\\\x00"), "\n")
	if len(commands)+1 > maxTyped {
		t.Errorf("%d commands are to be typed, want at most %d:\n%s", len(commands)+1, maxTyped, block)
	}
	for _, name := range []string{"docs/quickstart.md", "README.md"} {
		text, err := os.ReadFile(filepath.Join(up.root, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, command := range append([]string{"    go run ./cmd/testenv up"}, commands[1:]...) {
			if !strings.Contains(string(text), "\n"+command+"\n") {
				t.Errorf("%s lacks what is to be typed: %q", name, command)
			}
		}
		for _, variable := range regexp.MustCompile(`\$[A-Z_]+`).FindAllString(string(text), -1) {
			if !strings.Contains(commands[0], " "+variable[1:]+"=") {
				t.Errorf("%s names %s, which the first line does not set: %s", name, variable, commands[0])
			}
		}
	}
	out, err := sit(t, "").shell("set -e\n" + block)
	if err != nil || !strings.Contains(out, `"received"`) {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := testenv.Await(t.Context(), 20*time.Second, func() error {
		body, err := world.Fetch(t.Context(), page)
		if err == nil && !strings.Contains(string(body), "line-monitor") {
			err = fmt.Errorf("the page does not show the application:\n%s", body)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	up.interrupt(t)
}

// playground is a running "testenv up".
type playground struct {
	root, log string
	cmd       *exec.Cmd
	ended     chan error
}

func startUp(t *testing.T) *playground {
	t.Helper()
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "up.log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	up := &playground{root: root, log: log.Name(), cmd: exec.Command("go", "run", "./cmd/testenv", "up"), ended: make(chan error, 1)}
	up.cmd.Dir, up.cmd.Stdout, up.cmd.Stderr = root, log, log
	up.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as a terminal does: Ctrl-C is for go and for what it runs
	if err := up.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { up.ended <- up.cmd.Wait() }() // ends with the process
	t.Cleanup(func() {                        // when the test has failed before
		_ = syscall.Kill(-up.cmd.Process.Pid, syscall.SIGINT)
		<-up.ended
	})
	return up
}

func (up *playground) output() string {
	text, err := os.ReadFile(up.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// ready waits for the commands and returns what is printed from there on.
func (up *playground) ready(t *testing.T) string {
	t.Helper()
	var block string
	err := testenv.Await(t.Context(), 3*time.Minute, func() error {
		text := up.output()
		_, after, begun := strings.Cut(text, "as root:\n")
		if begun && strings.Contains(after, "Ctrl-C here") {
			block = after
			return nil
		}
		select {
		case err := <-up.ended:
			up.ended <- err
			t.Fatalf("testenv up ended: %v\n%s", err, text)
		default:
		}
		return fmt.Errorf("not ready:\n%s", text)
	})
	if err != nil {
		t.Fatal(err)
	}
	return block
}

// interrupt types Ctrl-C and waits until everything is removed.
func (up *playground) interrupt(t *testing.T) {
	t.Helper()
	if err := syscall.Kill(-up.cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case err := <-up.ended:
		up.ended <- err
	case <-ctx.Done():
		t.Fatal("still running a minute after Ctrl-C")
	}
	if text := up.output(); !strings.Contains(text, "Nothing is left behind") {
		t.Errorf("after Ctrl-C:\n%s", text)
	}
}
