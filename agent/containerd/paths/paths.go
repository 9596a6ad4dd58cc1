// Package paths joins untrusted names to directories of the agent, and checks paths.
package paths

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Join joins names below dir; each name must be one plain path element.
func Join(dir string, names ...string) (string, error) {
	for _, n := range names {
		if n == "" || n == "." || n == ".." || strings.ContainsAny(n, "/\x00") {
			return "", fmt.Errorf("%q cannot name a file: %w", n, fault.ErrInvalid)
		}
		dir = filepath.Join(dir, n)
	}
	return dir, nil
}

// Exists reports whether there is anything at a path, links followed.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Remove removes a file or an empty folder. A missing one is not an error.
func Remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// maxFiles bounds what [RemoveFlat] reads of a folder.
const maxFiles = 512

// RemoveFlat removes a folder of files. It does not recurse, so that it cannot remove mounted files. A missing folder is not an error.
func RemoveFlat(dir string) error {
	st, err := os.Lstat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return fmt.Errorf("%s is not a folder", dir)
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	names, err := d.Readdirnames(maxFiles)
	_ = d.Close() // it was only read
	if err != nil && len(names) > 0 {
		return err
	}
	for _, name := range names {
		if err := Remove(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return Remove(dir)
}
