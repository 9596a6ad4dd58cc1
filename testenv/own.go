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
const ReleaseTags = "grpcnotrace"

// OwnPrograms are the commands of this repository that devices and people run.
func OwnPrograms() []string { return []string{"longshore", "longshore-agent", "longshore-fleet"} }

// BuiltVariable is the variable of the environment with what [BuildAllOwn] returned, if a run of all tests has called it.
const BuiltVariable = "LONGSHORE_TEST_BUILT"

// builtBefore reports whether the run of all tests has built what this repository's sources make. go test knows the variables that a test
// has read, but not the sources of programs that it builds: with this call it reuses the result only while the programs are the same.
func builtBefore() bool { return os.Getenv(BuiltVariable) != "" }

// BuildAllOwn builds our programs, with C and without, and the programs in our images, and returns the digest of all of them.
func BuildAllOwn(ctx context.Context) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	var files []string
	for _, kind := range []ownKind{static, withC} {
		dir, err := kind.build(ctx, root, OwnPrograms())
		if err != nil {
			return "", err
		}
		for _, p := range OwnPrograms() {
			files = append(files, filepath.Join(dir, p))
		}
	}
	for _, software := range ownSoftware() {
		file, err := buildOwnBinary(ctx, software, HostPlatform())
		if err != nil {
			return "", err
		}
		files = append(files, file)
	}
	sum := sha256.New()
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(sum, "%x\n", sha256.Sum256(data))
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// ownKind is a way to build our programs.
type ownKind struct {
	cgo   string // value of CGO_ENABLED
	flags []string
}

// Without the revision of the sources: a commit that changes no program does not change its digest.
var (
	static = ownKind{"0", []string{"-trimpath", "-buildvcs=false", "-tags", ReleaseTags, "-ldflags", "-s -w"}}
	withC  = ownKind{"1", []string{"-trimpath", "-buildvcs=false", "-ldflags", "-s -w"}}
)

// BuildOwn puts programs of this repository ("longshore-agent") into a folder, static and stripped as a release is. They are
// linked once for each state of the sources, in the cache: a package that needs one more copies it only.
func BuildOwn(ctx context.Context, dir string, programs ...string) error {
	return static.put(ctx, dir, programs)
}

// BuildOwnWithC is [BuildOwn] for tokens: PKCS#11 modules are loaded by C code, which a static program lacks.
func BuildOwnWithC(ctx context.Context, dir string, programs ...string) error {
	return withC.put(ctx, dir, programs)
}

func (k ownKind) put(ctx context.Context, dir string, programs []string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	built, err := k.build(ctx, root, programs)
	if err != nil {
		return err
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

// build builds programs, unless this run of all tests has built them, and returns their folder in the cache.
func (k ownKind) build(ctx context.Context, root string, programs []string) (dir string, err error) {
	dir, err = ownDir(root)
	dir = filepath.Join(dir, "cgo"+k.cgo)
	if err != nil || builtBefore() {
		return dir, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := lockFile(ctx, filepath.Join(dir, "programs.lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	args := append(append([]string{"build"}, k.flags...), "-o", dir+"/")
	for _, p := range programs {
		args = append(args, "./cmd/"+p)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED="+k.cgo)
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, text)
	}
	return dir, nil
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
