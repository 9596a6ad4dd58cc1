package store

import (
	"os"

	"golang.org/x/sys/unix"
)

// allocate has the file system keep room for the first n bytes of a file, without changing its size.
func allocate(f *os.File, n int64) error {
	return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, n)
}
