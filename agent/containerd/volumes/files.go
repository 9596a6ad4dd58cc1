package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/paths"
	"github.com/longshore-dev/longshore/agent/containerd/users"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Configs, secrets and mounted files of the archive are files in memory, one file system for each container: they are neither on the
// disk nor in containerd's records, and are removed with the container.

const (
	defaultFileMode = 0o444
	// spareBytes is the space that a file system in memory needs in addition to its files' content.
	spareBytes = 1 << 20
	// pageBytes is the smallest space of a file's content there.
	pageBytes = 4096
)

// fileMounts are the read-only mounts of a container's files.
func (r *Store) fileMounts(c workload.Container) ([]specs.Mount, error) {
	var out []specs.Mount
	dir, err := paths.Join(r.o.RunDir, "memory", c.ID)
	if err != nil {
		return nil, err
	}
	for n, f := range c.Service.Files {
		top, rest := memoryName(c.Service.Files, n)
		if rest != "" && (n > 0 && sameTree(c.Service.Files[n-1], f)) {
			continue // mounted with the first of its directory
		}
		out = append(out, specs.Mount{
			Destination: f.Target, Type: "bind", Source: filepath.Join(dir, top),
			Options: []string{"bind", "rprivate", "ro", "nosuid", "nodev"},
		})
	}
	return out, nil
}

// memoryName is the path of a file: what is mounted, and for a file of a directory its path in that.
func memoryName(files []workload.File, n int) (top, rest string) {
	f := files[n]
	if f.Path == "" {
		return strconv.Itoa(n), ""
	}
	for n > 0 && sameTree(files[n-1], f) {
		n--
	}
	return "d" + strconv.Itoa(n), f.Path
}

func sameTree(a, b workload.File) bool { return a.Path != "" && b.Path != "" && a.Target == b.Target }

// writeFiles writes a container's files before it starts. Without content, those of the last start stay.
func (r *Store) writeFiles(c workload.Container) error {
	if len(c.Service.Files) == 0 {
		return nil
	}
	dir, err := paths.Join(r.o.RunDir, "memory", c.ID)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	mounted, err := isMountPoint(dir)
	if err != nil {
		return err
	}
	size := int64(spareBytes)
	for _, f := range c.Service.Files {
		size += (int64(len(f.Content))/pageBytes + 1) * pageBytes * 2 // the old and the new one
	}
	if err := memoryFilesystem(dir, size, mounted); err != nil {
		return err
	}
	first := 0
	if users.HasOwnUsers(c.Service) {
		first = users.First
	}
	for n, f := range c.Service.Files {
		top, rest := memoryName(c.Service.Files, n)
		name := filepath.Join(dir, top)
		if rest != "" {
			if err := memoryDirs(name, rest, first); err != nil {
				return fmt.Errorf("%s: %w", fileName(f), err)
			}
			name = filepath.Join(name, rest)
		}
		if err := writeFile(name, f, first); err != nil {
			return fmt.Errorf("%s: %w", fileName(f), err)
		}
	}
	return nil
}

// memoryFilesystem mounts a file system in memory at dir, or resizes the existing one. It is never swapped out if the kernel supports that
// (6.4).
func memoryFilesystem(dir string, size int64, mounted bool) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	data := "mode=0700,size=" + strconv.FormatInt(size, 10)
	if mounted {
		err := unix.Mount("tmpfs", dir, "tmpfs", flags|unix.MS_REMOUNT, "size="+strconv.FormatInt(size, 10))
		if err != nil && !errors.Is(err, unix.EINVAL) { // it has more content, so it is large enough
			return fmt.Errorf("resize %s: %w", dir, err)
		}
		return nil
	}
	err := unix.Mount("tmpfs", dir, "tmpfs", flags, data+",noswap")
	if errors.Is(err, unix.EINVAL) {
		err = unix.Mount("tmpfs", dir, "tmpfs", flags, data)
	}
	if err != nil {
		return fmt.Errorf("mount a filesystem in memory at %s: %w", dir, err)
	}
	return nil
}

// memoryDirs creates a directory and the directories between it and one of its files.
func memoryDirs(top, file string, owner int) error {
	if !filepath.IsLocal(file) {
		return fmt.Errorf("%q leaves its directory: %w", file, fault.ErrInvalid)
	}
	at := top
	for _, part := range append([]string{"."}, strings.Split(filepath.Dir(file), "/")...) {
		at = filepath.Join(at, part)
		if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		if err := errors.Join(os.Chmod(at, 0o755), os.Lchown(at, owner, owner)); err != nil { // whatever the umask
			return err
		}
	}
	return nil
}

// writeFile writes a file for a container whose user 0 is the device's user first.
func writeFile(name string, f workload.File, first int) error {
	if len(f.Content) == 0 && f.Digest != "" && f.Digest != digest.FromBytes(nil) {
		if _, err := os.Stat(name); err != nil {
			return fmt.Errorf("its content is not here: %w", fault.ErrTemporary)
		}
		return nil
	}
	mode := os.FileMode(f.Mode) & os.ModePerm
	if f.Mode == 0 {
		mode = defaultFileMode
	}
	fresh := name + ".new"
	if err := paths.Remove(fresh); err != nil {
		return err
	}
	w, err := os.OpenFile(fresh, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = w.Write(f.Content)
	// The owner first: a change of owner clears mode bits.
	if err = errors.Join(err, w.Chown(first+int(f.UID), first+int(f.GID)), w.Chmod(mode), w.Close()); err != nil {
		return err
	}
	return os.Rename(fresh, name)
}

// fileName is the name of a file in messages.
func fileName(f workload.File) string {
	switch {
	case f.Secret:
		return "secret " + f.Name
	case f.Mounted():
		return f.Name
	}
	return "config " + f.Name
}
