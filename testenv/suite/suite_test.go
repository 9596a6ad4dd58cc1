package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/testenv"
)

// A test that fails and a package that does not build end the run with an error, and are named in the end.
func TestRunNamesWhatFailed(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module github.com/longshore-dev/longshore\n\ngo 1.26\n")
	write("good/good_test.go", "package good\n\nimport \"testing\"\n\nfunc TestGood(t *testing.T) {}\n")
	write("testenv/demo/bad_test.go", "package demo\n\nimport \"testing\"\n\nfunc TestBad(t *testing.T) { t.Run(\"case\", func(t *testing.T) { t.Error(\"seven\") }) }\n")
	write("broken/broken_test.go", "package broken\n\nfunc TestBroken(\n")
	t.Chdir(dir)
	t.Setenv("GOFLAGS", "-mod=mod")
	var out bytes.Buffer
	err := check(t.Context(), dir, Options{Out: &out, NoLint: true, NoRace: true})
	for _, want := range []string{"failed: testenv/demo TestBad/case: bad_test.go:5: seven\n", "failed: broken", "bad_test.go:5: seven", "DONE 3 tests"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if err == nil || t.Failed() {
		t.Errorf("Run = %v\n%s", err, out.String())
	}
	out.Reset()
	if err := check(t.Context(), dir, Options{Out: &out, NoLint: true, NoRace: true, Packages: []string{"./good"}}); err != nil {
		t.Errorf("Run = %v\n%s", err, out.String())
	}
	if err := check(t.Context(), dir, Options{Out: &out, NoLint: true, NoRace: true, Packages: []string{"./none/..."}}); err == nil {
		t.Error("Run of no package = nil, want an error")
	}
}

// The end of a run ends the test programs too.
func TestRunIsInterrupted(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module github.com/longshore-dev/longshore\n\ngo 1.26\n",
		"long_test.go": `package long

import (
	"os"
	"strconv"
	"testing"
)

func TestLong(t *testing.T) {
	if err := os.WriteFile(os.Getenv("PIDFILE"), []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		t.Fatal(err)
	}
	select {}
}
`,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	started := filepath.Join(dir, "pid")
	t.Chdir(dir)
	t.Setenv("GOFLAGS", "-mod=mod")
	t.Setenv("PIDFILE", started)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- check(ctx, dir, Options{Out: io.Discard, NoLint: true, NoRace: true}) }()
	var pid int
	err := testenv.Await(t.Context(), time.Minute, func() (err error) {
		text, err := os.ReadFile(started)
		if err == nil {
			pid, err = strconv.Atoi(string(text))
		}
		return err
	})
	cancel()
	if errRun := <-ended; !errors.Is(errRun, context.Canceled) {
		t.Errorf("Run = %v, want that it was canceled", errRun)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := testenv.Await(t.Context(), time.Minute, func() error {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("the test program %d after the run: %v", pid, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// What goroutines of a package may share is tested with the race detector; what only computes, types command lines or starts other
// programs is not.
func TestSplit(t *testing.T) {
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	all, err := listPackages(t.Context(), root, nil)
	if err != nil {
		t.Fatal(err)
	}
	commands := split(all, Options{})
	tested := func(folder string) (n [2]int) { // commands with and without the race detector
		for _, c := range commands {
			if !slices.ContainsFunc(c.packages, func(p testPackage) bool { return p.folder() == folder }) {
				continue
			}
			if slices.Contains(c.flags, "-race") {
				n[0]++
			} else {
				n[1]++
			}
		}
		return n
	}
	for folder, want := range map[string][2]int{
		"agent": {1, 1}, "agent/containerd": {1, 0}, "fleet/status": {1, 0}, "registry": {1, 0}, "testenv/scenario": {1, 0},
		"agent/plan": {0, 1}, "artifacts/margo": {0, 1}, "testenv/attack": {0, 1}, "testenv": {0, 1}, "cmd/longshore": {1, 1},
	} {
		if got := tested(folder); got != want {
			t.Errorf("commands with and without the race detector that test %s: %v, want %v", folder, got, want)
		}
	}
	n := 0
	for i, c := range commands {
		n += len(c.packages)
		if len(c.packages) > 1 && i > 1 {
			t.Errorf("command %d tests %d packages: those that share a command come first", i, len(c.packages))
		}
	}
	if want := len(all) + len(typed) + len(repeated); n != want {
		t.Errorf("%d packages are tested, want %d", n, want)
	}
	parts := maps.Clone(typed)
	maps.Copy(parts, repeated)
	for _, folder := range slices.Concat(longest, slices.Collect(maps.Keys(parts))) {
		if !slices.ContainsFunc(all, func(p testPackage) bool { return p.folder() == folder }) {
			t.Errorf("%s has no tests", folder)
		}
	}
	for folder, some := range parts {
		for _, name := range strings.Split(strings.Trim(some, "^()$"), "|") {
			if text, err := exec.Command("grep", "-q", "--include=*_test.go", "-r", "^func "+name+"(t ", filepath.Join(root, folder)).CombinedOutput(); err != nil {
				t.Errorf("%s has no test %s: %v %s", folder, name, err, text)
			}
		}
	}
}
