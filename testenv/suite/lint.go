package suite

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/testenv"
)

type step struct {
	name string
	do   func(ctx context.Context) error
}

// lint runs the linters and names those that found something.
func lint(ctx context.Context, root string, out io.Writer) (failed []string, err error) {
	for _, step := range lints(root) {
		start := time.Now()
		if err := step.do(ctx); err != nil {
			failed = append(failed, step.name)
			fmt.Fprintf(out, "FAIL  %-50s %s\n%v\n", step.name, since(start), err)
			continue
		}
		fmt.Fprintf(out, "ok    %-50s %s\n", step.name, since(start))
	}
	if len(failed) > 0 {
		err = fmt.Errorf("%s failed", strings.Join(failed, ", "))
	}
	return failed, err
}

func lints(root string) []step {
	command := func(ctx context.Context, name string, args ...string) error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir, cmd.Env = root, environment()
		text, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, bytes.TrimSpace(text))
		}
		return nil
	}
	return []step{
		{"gofumpt", func(ctx context.Context) error { return formatted(ctx, root) }},
		{"go mod tidy", func(ctx context.Context) error { return command(ctx, "go", "mod", "tidy", "-diff") }},
		{"go vet", func(ctx context.Context) error { return command(ctx, "go", "vet", "./...") }},
		{"staticcheck", func(ctx context.Context) error {
			program, err := testenv.BuildProgram(ctx, io.Discard, "staticcheck")
			if err != nil {
				return err
			}
			return command(ctx, program, "./...")
		}},
	}
}

// formatted fails when gofumpt would change a file, and names those files.
func formatted(ctx context.Context, root string) error {
	program, err := testenv.BuildProgram(ctx, io.Discard, "gofumpt")
	if err != nil {
		return err
	}
	var files []string
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := e.Name(); e.IsDir() && path != root && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "dist") {
			return fs.SkipDir
		}
		if strings.HasSuffix(path, ".go") {
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		return err
	}
	text, err := exec.CommandContext(ctx, program, append([]string{"-l"}, files...)...).CombinedOutput()
	if err != nil || len(text) > 0 {
		return fmt.Errorf("these files are not formatted (gofumpt -w FILE): %w\n%s", err, bytes.TrimSpace(text))
	}
	return nil
}
