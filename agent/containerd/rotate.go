package containerd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Rotate keeps what containers wrote within the limits: a file over LogLimits.MaxSize becomes the first of its rotated
// files, of which MaxFiles stay, and of all rotated files on the device the oldest go until Budget holds. The
// runtime calls it every LogLimits.Every. It asks the filesystem alone, so it works while containerd is away.
func (r *Runtime) Rotate(ctx context.Context) error {
	var (
		errs  []error
		olds  []oldLog
		total int64
	)
	err := filepath.WalkDir(r.logRoot(), func(file string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // torn down meanwhile
			return nil
		case err != nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case !d.Type().IsRegular():
			return nil
		case strings.HasSuffix(file, logSuffix):
			errs = append(errs, r.rotate(file))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("rotate logs: %w", err)
	}
	err = filepath.WalkDir(r.logRoot(), func(file string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.HasSuffix(file, logSuffix) {
			return ignoreMissing(err)
		}
		info, err := d.Info()
		if err != nil {
			return ignoreMissing(err)
		}
		olds = append(olds, oldLog{file, info.Size(), info.ModTime()})
		total += info.Size()
		return nil
	})
	errs = append(errs, err)
	slices.SortFunc(olds, func(a, b oldLog) int {
		return cmp.Or(a.written.Compare(b.written), -cmp.Compare(rotation(a.file), rotation(b.file)))
	})
	for _, o := range olds {
		if total <= r.o.Logs.Budget {
			break
		}
		errs = append(errs, ignoreMissing(os.Remove(o.file)))
		total -= o.size
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("rotate logs: %w", err)
	}
	return nil
}

// rotateEvery calls Rotate until ctx ends.
func (r *Runtime) rotateEvery(ctx context.Context, every time.Duration) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			if err := r.Rotate(ctx); err != nil && ctx.Err() == nil {
				r.log.Warn("logs were not rotated", "error", err)
			}
		}
	}
}

type oldLog struct {
	file    string
	size    int64
	written time.Time
}

// rotation is the number at the end of a rotated file's name.
func rotation(file string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(filepath.Ext(file), "."))
	if err != nil {
		return 0
	}
	return n
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// rotate moves what a file holds into the first rotated file while the shim goes on appending.
func (r *Runtime) rotate(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return ignoreMissing(err)
	}
	if info.Size() < r.o.Logs.MaxSize {
		return nil
	}
	state := r.logs.get(file)
	state.mu.Lock()
	defer state.mu.Unlock()
	f, err := os.OpenFile(file, os.O_RDWR, 0)
	if err != nil {
		return ignoreMissing(err)
	}
	defer f.Close()
	for n := r.o.Logs.MaxFiles; n > 0; n-- {
		if n == r.o.Logs.MaxFiles {
			if err := ignoreMissing(os.Remove(rotated(file, n))); err != nil {
				return err
			}
			continue
		}
		if err := ignoreMissing(os.Rename(rotated(file, n), rotated(file, n+1))); err != nil {
			return err
		}
	}
	moved, err := moveFront(f, rotated(file, 1))
	if err != nil {
		return fmt.Errorf("move the front of %s: %w", file, err)
	}
	state.cut += moved
	state.moved = append([]int64{moved}, state.moved...)
	state.moved = state.moved[:min(len(state.moved), r.o.Logs.MaxFiles)]
	return nil
}

// moveFront copies a file's content to another and cuts it off. Where the filesystem can take whole blocks out of a
// file's front (ext4, xfs), what is appended meanwhile stays, and so does the last incomplete block. Elsewhere what
// arrives between the copy's end and the cut is lost: a few microseconds' worth.
func moveFront(f *os.File, to string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	block := int64(st.Bsize) //nolint:unconvert // narrower on 32-bit machines
	whole := (size - 1) / block * block
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o640)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	if _, err := io.Copy(out, io.NewSectionReader(f, 0, whole)); err != nil {
		return 0, err
	}
	if whole > 0 {
		err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_COLLAPSE_RANGE, 0, whole)
		if err == nil {
			return whole, out.Close()
		}
		if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINVAL) {
			return 0, err
		}
	}
	for at := whole; ; { // until nothing more has come
		n, err := io.Copy(out, io.NewSectionReader(f, at, 1<<62))
		if err != nil {
			return 0, err
		}
		if at += n; n == 0 {
			if err := f.Truncate(0); err != nil {
				return 0, err
			}
			return at, out.Close()
		}
	}
}
