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
)

// ReleaseTags are build tags that leave out what our programs never use, as the justfile's recipe for releases does.
const ReleaseTags = "grpcnotrace,urfave_cli_no_docs"

// OwnPrograms are the commands of this repository that devices and people run.
func OwnPrograms() []string { return []string{"longshore", "longshore-agent", "longshore-fleet"} }

// BuildOwn puts programs of this repository ("longshore-agent") into a folder, static and stripped as a release is. They are
// linked once for each state of the sources, in the cache: a package that needs one more copies it only.
func BuildOwn(ctx context.Context, dir string, programs ...string) error {
	return buildOwn(ctx, dir, "0", []string{"-trimpath", "-tags", ReleaseTags, "-ldflags", "-s -w"}, programs)
}

// BuildOwnWithC is [BuildOwn] for tokens: PKCS#11 modules are loaded by C code, which a static program lacks.
func BuildOwnWithC(ctx context.Context, dir string, programs ...string) error {
	return buildOwn(ctx, dir, "1", []string{"-ldflags", "-w"}, programs)
}

func buildOwn(ctx context.Context, dir, cgo string, flags, programs []string) error {
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
	args := append(append([]string{"build"}, flags...), "-o", built+"/")
	for _, p := range programs {
		args = append(args, "./cmd/"+p)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED="+cgo)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, text)
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
