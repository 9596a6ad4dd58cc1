package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// lines is output that is read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// One shot, as from CI: the newest commit of a branch on a real Git server, and nothing that is older.
func TestFleetWatchOnce(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	t.Setenv("TMPDIR", t.TempDir())
	first := s.commit("first")
	s.stock()
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/plant/apps/line")
	server := testenv.ServeGit(t, ".", "ci", "glcbt-secret")
	watch := func(want int, flags ...string) (stdout, stderr string) {
		t.Helper()
		code, stdout, stderr := s.try(append([]string{"fleet", "watch", "--once", "--key", "release.key", "--path", "plant", server.URL}, flags...)...)
		if code != want || strings.Contains(stdout+stderr, "glcbt-secret") {
			t.Fatalf("watch %v: exit %d, want %d\n%s%s", flags, code, want, stdout, stderr)
		}
		return stdout, stderr
	}
	if out, _ := watch(outcome.OK); out != "main "+first[:12]+": 3 states published, 1 device up to date\n" {
		t.Errorf("first: %q", out)
	}
	a := s.annotations(states + ":press-07")
	if a[ocispec.AnnotationRevision] != first || !strings.HasPrefix(a[ocispec.AnnotationSource], "http://127.0.0.1:") || strings.Contains(a[ocispec.AnnotationSource], "@") {
		t.Errorf("annotations = %v", a)
	}
	if out, _ := watch(outcome.OK, "-q"); out != first+"\n" {
		t.Errorf("again, quietly: %q", out)
	}
	// What is not committed is not published.
	s.change("plant/fleet.yaml", "poll: 10", "poll: 12")
	if out, _ := watch(outcome.OK); !strings.Contains(out, "0 states published, 4 devices up to date") {
		t.Errorf("not committed: %q", out)
	}
	second := s.commit("second")
	var r watched
	out, _ := watch(outcome.OK, "-o", "json")
	if err := json.Unmarshal([]byte(out), &r); err != nil || strings.Count(out, "\n") != 1 || r.Commit != second || len(r.Published) == 0 || !r.Signed {
		t.Errorf("second: %v\n%s", err, out)
	}
	// The branch is set back. The devices keep what they have.
	generation := s.annotations(states + ":press-07")["dev.longshore.generation"]
	s.git("reset", "-q", "--hard", first)
	if _, errs := watch(outcome.Refused); !strings.Contains(errs, second) || !strings.Contains(errs, "--rewritten "+second) || strings.Count(errs, "longshore:") != 1 {
		t.Errorf("set back: %s", errs)
	}
	if got := s.annotations(states + ":press-07")["dev.longshore.generation"]; got != generation {
		t.Errorf("generation %s was published over %s", got, generation)
	}
	s.change("plant/fleet.yaml", "poll: 10", "poll: 15")
	third := s.commit("instead of the second")
	watch(outcome.Refused)
	if out, _ := watch(outcome.OK, "--rewritten", second); !strings.HasPrefix(out, "main "+third[:12]) {
		t.Errorf("rewritten: %q", out)
	}
	s.env["stdin"] = "rules:\n  - {scope: " + states + ", artifacts: [state], keys: [{name: release, file: release.pub}]}\n  - {scope: \"**\", allowUnsigned: true}\n"
	if out, _ := watch(outcome.OK, "--rewritten", second, "--policy", "-"); !strings.Contains(out, "4 devices up to date") {
		t.Errorf("with a policy from stdin: %q", out)
	}
	// A clone without its history cannot tell.
	s.git("clone", "-q", "--depth", "1", "file://"+s.env["HOME"], "shallow")
	code, _, stderr := s.try("fleet", "watch", "--once", "--key", "release.key", "--path", "plant", "shallow")
	if code != outcome.Refused || !strings.Contains(stderr, "a shallow clone") {
		t.Errorf("shallow: exit %d\n%s", code, stderr)
	}
	// Bad input, in one message each.
	s.change("plant/fleet.yaml", "poll: 15", "poll: 0")
	s.change("plant/devices/all.yaml", "poll: 20", `poll: "20"`)
	bad := s.commit("two faults")
	if _, errs := watch(outcome.Misused); strings.Count(errs, "\n") != 2 || !strings.Contains(errs, "plant/fleet.yaml:") || !strings.Contains(errs, "plant/devices/all.yaml:") {
		t.Errorf("faults of %s:\n%s", bad, errs)
	}
	if _, errs := watch(outcome.NotFound, "--branch", "release"); !strings.Contains(errs, "there is no branch release") {
		t.Errorf("branch: %s", errs)
	}
	if _, errs := watch(outcome.NotFound, "--path", "plants"); !strings.Contains(errs, "there is no directory plants") {
		t.Errorf("path: %s", errs)
	}
	server.Away(true)
	if _, errs := watch(outcome.Temporary); !strings.Contains(errs, "503") {
		t.Errorf("away: %s", errs)
	}
	for _, args := range [][]string{
		{"--once", server.URL}, {"--key", "release.key", "--unsigned", "."}, {"--key", "release.key", "--interval", "0s", "."}, {"--key", "release.key", "--branch", "-x", "."},
	} {
		if code, _, stderr := s.try(append([]string{"fleet", "watch"}, args...)...); code != outcome.Misused {
			t.Errorf("watch %v: exit %d\n%s", args, code, stderr)
		}
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// It goes on until it is told to end: a line for each change, and one for what goes wrong, however often it is tried.
func TestFleetWatch(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	t.Setenv("TMPDIR", t.TempDir())
	first := s.commit("first")
	s.stock()
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/plant/apps/line")
	server := testenv.ServeGit(t, ".", "ci", "glcbt-secret")
	ctx, stop := context.WithCancel(t.Context())
	var out, errs lines
	code := make(chan int, 1)
	go func() { // ends with ctx; the end of the test waits for it
		code <- run(ctx, []string{"fleet", "watch", "--key", "release.key", "--interval", "1s", "--path", "plant", server.URL}, strings.NewReader(""), &out, &errs, s.lookup)
	}()
	ended := sync.OnceValue(func() int { stop(); return <-code })
	t.Cleanup(func() { ended() })
	says := func(l *lines, want string) {
		t.Helper()
		err := testenv.Await(t.Context(), time.Minute, func() error {
			if !strings.Contains(l.String(), want) {
				return os.ErrNotExist
			}
			return nil
		})
		if err != nil {
			t.Fatalf("it does not say %q:\n%s\n%s", want, out.String(), errs.String())
		}
	}
	says(&out, "main "+first[:12]+": 3 states published, 1 device up to date\n")
	server.Away(true)
	says(&errs, "503")
	server.Away(false)
	s.change("plant/fleet.yaml", "poll: 10", "poll: 0")
	s.commit("a fault")
	says(&errs, "plant/fleet.yaml:")
	s.change("plant/fleet.yaml", "poll: 0", "poll: 12")
	good := s.commit("without it")
	says(&out, "main "+good[:12]+": 1 state published, 3 devices up to date\n")
	s.git("reset", "-q", "--hard", first)
	says(&errs, "not in the history")
	s.git("reset", "-q", "--hard", good)
	if got := ended(); got != outcome.OK {
		t.Errorf("exit %d\n%s", got, errs.String())
	}
	if n := strings.Count(out.String(), "\n"); n != 2 {
		t.Errorf("%d lines, want one for each commit that was published:\n%s", n, out.String())
	}
	for _, once := range []string{"plant/fleet.yaml:", "not in the history"} {
		if n := strings.Count(errs.String(), once); n != 1 {
			t.Errorf("%q is told %d times:\n%s", once, n, errs.String())
		}
	}
	// A server that goes away may be missed while it is asked, and while it is fetched from: two texts, each of them once.
	told := map[string]int{}
	for line := range strings.Lines(errs.String()) {
		if told[line]++; told[line] > 1 && strings.Contains(line, "503") {
			t.Errorf("told again: %s", line)
		}
	}
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
