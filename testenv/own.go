package testenv

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

// ReleaseTags are build tags that leave out what our programs never use, as the justfile's recipe for releases does.
const ReleaseTags = "grpcnotrace,urfave_cli_no_docs"

// BuildOwn compiles programs of this repository ("longshore-agent") into a folder, static and stripped as a release is.
// Everybody builds them in this one way: the compiler's cache then has all but the last step.
func BuildOwn(ctx context.Context, dir string, programs ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	args := []string{"build", "-trimpath", "-tags", ReleaseTags, "-ldflags", "-s -w", "-o", dir + "/"}
	for _, p := range programs {
		args = append(args, "./cmd/"+p)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, text)
	}
	return nil
}
