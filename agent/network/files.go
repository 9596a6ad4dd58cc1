package network

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// A container can write its hosts, resolv.conf and hostname files, as with Docker and Podman: VPN clients put their name servers
// there. Each container has them on a file system of its own, which bounds their size and is mounted noexec. The manager
// keeps what it wrote beside it: the container's files are written again only when that changes.

// ownFiles is the folder, below the container's folder, with the files that are mounted into it.
const ownFiles = "own"

// maxOwnFiles bounds, in bytes, what a container can write to its files.
const maxOwnFiles = 8 << 20

// ensureFiles writes those of a container's files that are missing or have changed. fresh drops the container's own changes.
func (m *Manager) ensureFiles(project, id string, fresh bool) error {
	return m.writeFiles(project, id, m.resolver(), fresh)
}

func (m *Manager) writeFiles(project, id string, r resolver, fresh bool) error {
	files, err := m.files(project, id, r)
	if err != nil {
		return err
	}
	dir := m.filesDir(id)
	if err := mountFiles(filepath.Join(dir, ownFiles)); err != nil {
		return err
	}
	err = writeAll(dir, files, fresh)
	if errors.Is(err, unix.ENOSPC) { // the container filled its file system: its own changes are dropped
		for name := range files {
			if err := os.Truncate(filepath.Join(dir, ownFiles, name), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("empty a container's file: %w", err)
			}
		}
		err = writeAll(dir, files, true)
	}
	return err
}

func writeAll(dir string, files map[string][]byte, fresh bool) error {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := writeFile(dir, name, files[name], fresh); err != nil {
			return err
		}
	}
	return nil
}

// writeFile brings one of a container's files up to date. What the container changed stays until its next start: lines that it
// added to hosts are added to the new ones, another file is left as it is.
func writeFile(dir, name string, data []byte, fresh bool) error {
	path, basePath := filepath.Join(dir, ownFiles, name), filepath.Join(dir, name)
	base, err := bounded.File(os.Open, basePath, ipam.MaxState)
	known := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	own, err := bounded.File(os.Open, path, ipam.MaxState)
	switch gone := errors.Is(err, fs.ErrNotExist); {
	case gone, fresh, !known:
		err = overwrite(path, data)
	case errors.Is(err, fault.ErrTooLarge):
		err = nil // the container caused it
	case err != nil, bytes.Equal(base, data), bytes.Equal(own, data):
	case bytes.Equal(own, base):
		err = overwrite(path, data)
	case name == "hosts":
		err = overwrite(path, append(bytes.Clone(data), added(base, own)...))
	}
	if err != nil || known && bytes.Equal(base, data) {
		return err
	}
	return replaceFile(basePath, data)
}

// added are the lines of a file that it did not have before.
func added(before, now []byte) []byte {
	had := map[string]bool{}
	for line := range strings.Lines(string(before)) {
		had[strings.TrimSuffix(line, "\n")] = true
	}
	var out []byte
	for line := range strings.Lines(string(now)) {
		if line = strings.TrimSuffix(line, "\n"); !had[line] {
			out = append(out, line+"\n"...)
		}
	}
	return out
}

// overwrite makes path hold data. An existing file is overwritten in place, because a container may have it mounted: a
// renamed one would not be visible there.
func overwrite(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	err = f.Chmod(0o644) // whatever the process's mask is
	if err == nil {
		_, err = f.WriteAt(data, 0)
	}
	if err == nil {
		err = f.Truncate(int64(len(data)))
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// mountFiles mounts a file system at dir unless there is one.
func mountFiles(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make a place for a container's files: %w", err)
	}
	if ok, err := mounted(dir); ok || err != nil {
		return err
	}
	err := unix.Mount("longshore", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, fmt.Sprintf("mode=0755,size=%d", maxOwnFiles))
	if err != nil {
		return fmt.Errorf("mount a container's files at %s: %w", dir, err)
	}
	return nil
}

// mounted reports whether a file system is mounted at dir.
func mounted(dir string) (bool, error) {
	var here, above unix.Stat_t
	if err := errors.Join(unix.Lstat(dir, &here), unix.Lstat(filepath.Dir(dir), &above)); err != nil {
		return false, fmt.Errorf("look at %s: %w", dir, err)
	}
	return here.Dev != above.Dev, nil
}

// removeFiles removes a container's files. A missing one is not an error.
func removeFiles(dir string) error {
	if err := unmount(filepath.Join(dir, ownFiles)); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove a container's files: %w", err)
	}
	return nil
}

// replaceFile replaces a file that need not survive a power cut.
func replaceFile(path string, data []byte) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, data, 0o644); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
