package testenv

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// ReleaseTags are build tags that leave out what our programs never use, as the justfile's recipe for releases does.
const ReleaseTags = "grpcnotrace,urfave_cli_no_docs"

// OwnPrograms are the commands of this repository that devices and people run.
func OwnPrograms() []string { return []string{"longshore", "longshore-agent", "longshore-fleet"} }

// RunVariable has another value in each run of all tests.
const RunVariable = "LONGSHORE_TEST_RUN"

// NotCached keeps go test from reusing the result of the test that calls it in another run: go test knows the variables that a test has
// read, but not the sources of programs that it builds.
func NotCached() { _ = os.Getenv(RunVariable) }

// BuildOwn puts programs of this repository ("longshore-agent") into a folder, static and stripped as a release is. They are
// linked once for each state of the sources, in the cache: a package that needs one more copies it only.
func BuildOwn(ctx context.Context, dir string, programs ...string) error {
	return buildOwn(ctx, dir, "0", []string{"-trimpath", "-tags", ReleaseTags, "-ldflags", "-s -w"}, programs)
}

// BuildOwnWithC is [BuildOwn] for tokens: PKCS#11 modules are loaded by C code, which a static program lacks.
func BuildOwnWithC(ctx context.Context, dir string, programs ...string) error {
	return buildOwn(ctx, dir, "1", []string{"-trimpath", "-ldflags", "-s -w"}, programs)
}

func buildOwn(ctx context.Context, dir, cgo string, flags, programs []string) error {
	NotCached()
	root, err := Root()
	if err != nil {
		return err
	}
	built, err := ownDir(root)
	if err != nil {
		return err
	}
	built = filepath.Join(built, "cgo"+cgo)
	if err := os.MkdirAll(built, 0o755); err != nil {
		return err
	}
	unlock, err := lockFile(ctx, filepath.Join(built, "programs.lock"))
	if err != nil {
		return err
	}
	defer unlock()
	noted := filepath.Join(built, "run")
	missing, err := notBuilt(noted, programs)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		args := append(append([]string{"build"}, flags...), "-o", built+"/")
		for _, p := range missing {
			args = append(args, "./cmd/"+p)
		}
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED="+cgo)
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go build: %w\n%s", err, text)
		}
		if err := noteBuilt(noted, missing); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, p := range programs {
		if err := copyProgram(filepath.Join(dir, p), filepath.Join(built, p)); err != nil {
			return err
		}
	}
	return nil
}

// notBuilt returns the programs that this run of all tests has not built yet: to ask go build costs seconds. Outside such a run that is
// every program.
func notBuilt(noted string, programs []string) ([]string, error) {
	run := os.Getenv(RunVariable)
	text, err := os.ReadFile(noted)
	if run == "" || errors.Is(err, os.ErrNotExist) {
		return programs, nil
	}
	lines := strings.Split(string(text), "\n")
	if lines[0] != run {
		return programs, errors.Join(err, os.Remove(noted))
	}
	return slices.DeleteFunc(slices.Clone(programs), func(p string) bool { return slices.Contains(lines[1:], p) }), err
}

// noteBuilt notes programs that this run has built.
func noteBuilt(noted string, programs []string) error {
	run := os.Getenv(RunVariable)
	if run == "" {
		return nil
	}
	f, err := os.OpenFile(noted, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	text := strings.Join(programs, "\n") + "\n"
	if info, errStat := f.Stat(); errStat == nil && info.Size() == 0 {
		text = run + "\n" + text
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// ownDir is the folder of the cache for programs of the sources below root. Clones of other states of the sources may share
// the cache, so each has a folder of its own.
func ownDir(root string) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(root))
	dir := filepath.Join(cache, "own-"+hex.EncodeToString(sum[:4]))
	return dir, os.MkdirAll(dir, 0o755)
}

func copyProgram(to, from string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	// A file of the same name may be running: it is replaced, not written to.
	if err := os.Remove(to); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, in)
	return err
}
