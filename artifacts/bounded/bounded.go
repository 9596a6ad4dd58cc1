// Package bounded reads files and streams that others control, at most so many bytes of each.
package bounded

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Read reads r to its end. More than limit bytes are fault.ErrTooLarge.
func Read(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("more than %d bytes: %w", limit, fault.ErrTooLarge)
	}
	return data, nil
}

// File reads a file of at most limit bytes, which open opens: os.Open. Its errors name the file.
func File[F fs.File](open func(string) (F, error), name string, limit int64) ([]byte, error) {
	f, err := open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := Read(f, limit)
	if named := (*fs.PathError)(nil); err != nil && !errors.As(err, &named) {
		err = fmt.Errorf("%s: %w", name, err)
	}
	return data, err
}

// Regular refuses what is no regular file: a folder, or a pipe, whose reader waits for a writer.
func Regular(name string, info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fault.WithHint(fmt.Errorf("%s is no file: %w", name, fault.ErrInvalid), "remove it if it is not needed")
	}
	return nil
}

// FileIn reads a file of a file system.
func FileIn(fsys fs.FS, name string, limit int64) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Read(f, limit)
}
