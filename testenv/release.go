package testenv

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
)

// Release is a line of containerd's releases that Longshore runs on.
type Release string

// Releases.
const (
	Containerd24 Release = ""    // the one that devices should have
	Containerd17 Release = "1.7" // the older line that is maintained
	Containerd16 Release = "1.6" // Debian 12's own package
)

// Releases lists all of them, the newest first.
func Releases() []Release { return []Release{Containerd24, Containerd17, Containerd16} }

// ParseRelease reads what String writes.
func ParseRelease(s string) (Release, error) {
	for _, r := range Releases() {
		if r.String() == s {
			return r, nil
		}
	}
	return "", fmt.Errorf("containerd %q is not one of %v", s, Releases())
}

func (r Release) String() string {
	if r == Containerd24 {
		return "2.4"
	}
	return string(r)
}

// programs makes the release's programs and returns their folder, and the one of runc.
func (r Release) programs(ctx context.Context, out io.Writer) (bin, runc string, err error) {
	names := map[Release][]string{
		Containerd24: {"containerd", "containerd-shim-runc-v2", "ctr"},
		Containerd17: {"containerd17", "containerd17-shim", "containerd17-ctr"},
	}[r]
	if err := Prepare(ctx, out, append(names, "runc")...); err != nil {
		return "", "", err
	}
	program, err := cachedProgram("runc")
	if err != nil {
		return "", "", err
	}
	runc = filepath.Dir(program)
	if r == Containerd16 {
		bin, err = debianContainerd(ctx, out)
		return bin, runc, err
	}
	program, err = cachedProgram(names[0])
	return filepath.Dir(program), runc, err
}

// The package of Debian 12 that tests run. Where the archive has gone on from it, they take what it offers, which apt has
// verified by Debian's signature.
const debianContainerdVersion = "1.6.20~ds1-1+deb12u3"

// debianContainerdSums are the pinned package's checksums.
func debianContainerdSums() map[string]string {
	return map[string]string{"amd64": "8669d264eeb0fcdb4a0b1ba436ab88ec5dafde4a66e1278ec279d830db4c2216"}
}

// debianContainerd downloads Debian's containerd and unpacks it in the cache; nothing is installed.
func debianContainerd(ctx context.Context, out io.Writer) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "debian-containerd-"+debianContainerdVersion)
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	unlock, err := lockFile(ctx, dir+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	bin := filepath.Join(dir, "usr", "bin")
	if _, err := os.Stat(filepath.Join(bin, "containerd")); err == nil {
		return bin, nil
	}
	tmp, err := os.MkdirTemp(cache, "debian-containerd-new-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	fmt.Fprintf(out, "testenv: downloading Debian's containerd %s into the cache, not installing it\n", debianContainerdVersion)
	if err := apt(ctx, tmp, "download", "-q", "containerd="+debianContainerdVersion); err == nil {
		if err := checkContainerd(tmp); err != nil {
			return "", err
		}
	} else if err := apt(ctx, tmp, "download", "-q", "containerd/bookworm"); err != nil {
		return "", fmt.Errorf("download Debian 12's containerd: %w", err)
	}
	if err := unpackArchives(ctx, tmp); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, dir); err != nil {
		return "", fmt.Errorf("keep Debian's containerd: %w", err)
	}
	return bin, nil
}

// checkContainerd holds the pinned package in dir against its checksum.
func checkContainerd(dir string) error {
	archives, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return err
	}
	for _, a := range archives {
		data, err := os.ReadFile(a)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		if want := debianContainerdSums()[runtime.GOARCH]; want != "" && hex.EncodeToString(sum[:]) != want {
			return fmt.Errorf("%s is not the pinned package: sha256 %x, want %s", filepath.Base(a), sum, want)
		}
	}
	return nil
}
