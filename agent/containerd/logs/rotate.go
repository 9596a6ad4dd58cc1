package logs

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

const (
	// spareRoom is the space that a rotation leaves free on the disk, or a spareShare of a small one: its copy must not use the last bytes.
	spareRoom  = 16 << 20
	spareShare = 20
	// keptTail is how much of a file's end is kept in memory when its front cannot be cut off.
	keptTail = 64 << 10
	// copySuffix is the suffix of a directory with unfinished copies; those of a killed process are overwritten.
	copySuffix = ".new"
	// pipesEvery is how many intervals lie between two checks of the pipes: a container whose output nothing copies blocks only once its
	// pipe is full, and goes on then.
	pipesEvery = 5
)

// errNoRoom: there is no space to copy a file's front.
var errNoRoom = errors.New("no room for a copy")

// Rotate enforces the limits. The content of a file over Limits.MaxSize becomes its first rotated file, of which MaxFiles are kept. Then
// the oldest rotated files of the device are removed until all files together are within Budget; when the current files alone
// exceed it, their fronts are cut off. The keeper calls it every Limits.Interval. It does not need containerd.
//
// On a full disk it frees space and needs none: output that cannot be copied is cut off. For the effect of a full disk on shims
// see [Keeper.relay].
func (k *Keeper) Rotate(ctx context.Context) error {
	var errs []error
	logs, olds, err := k.list(ctx)
	if err != nil {
		return fmt.Errorf("rotate logs: %w", err)
	}
	moved := false
	for _, l := range logs {
		errs = append(errs, ignoreMissing(k.files.get(l.file).note(l.file, l.size, k.now()))) // removed meanwhile
		did, err := k.rotate(l)
		errs, moved = append(errs, err), moved || did
	}
	if moved {
		if logs, olds, err = k.list(ctx); err != nil {
			return fmt.Errorf("rotate logs: %w", errors.Join(append(errs, err)...))
		}
	}
	var total int64
	for _, l := range slices.Concat(logs, olds) {
		total += l.size
	}
	slices.SortFunc(olds, func(a, b logOnDisk) int {
		return cmp.Or(a.written.Compare(b.written), -cmp.Compare(rotation(a.file), rotation(b.file)))
	})
	for _, o := range olds {
		if total <= k.limits.Budget {
			break
		}
		errs = append(errs, ignoreMissing(os.Remove(o.file)))
		total -= o.size
	}
	slices.SortFunc(logs, func(a, b logOnDisk) int { return -cmp.Compare(a.size, b.size) })
	for _, l := range logs {
		if total <= k.limits.Budget {
			break
		}
		cut, err := k.shorten(l.file, k.limits.Budget/int64(len(logs)))
		errs = append(errs, err)
		total -= cut
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("rotate logs: %w", err)
	}
	return nil
}

// logOnDisk is a file with output.
type logOnDisk struct {
	file    string
	size    int64
	written time.Time
}

// list returns the files that are written to, and the rotated ones.
func (k *Keeper) list(ctx context.Context) (current, old []logOnDisk, err error) {
	err = filepath.WalkDir(k.root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return ignoreMissing(err) // removed meanwhile
		case ctx.Err() != nil:
			return ctx.Err()
		case !d.Type().IsRegular(), strings.HasSuffix(strings.TrimSuffix(d.Name(), copySuffix), timesSuffix):
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return ignoreMissing(err)
		}
		l := logOnDisk{file, info.Size(), info.ModTime()}
		if strings.HasSuffix(file, logSuffix) {
			current = append(current, l)
		} else {
			old = append(old, l)
		}
		return nil
	})
	return current, old, err
}

// Run calls Rotate every interval until ctx ends, and copies output that shims stopped copying, which it looks for less often.
func (k *Keeper) Run(ctx context.Context) {
	defer k.relays.Wait()
	rotation, look := time.NewTicker(k.limits.Interval), time.NewTimer(k.limits.Interval)
	defer rotation.Stop()
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-rotation.C:
			if err := k.Rotate(ctx); err != nil && ctx.Err() == nil {
				k.log.Warn("cannot rotate logs", "error", err)
			}
		case <-look.C:
			next := pipesEvery * k.limits.Interval
			if k.checkPipes(ctx) {
				next = min(next, pipeInterval)
			}
			look.Reset(max(next, pipeInterval/4))
		}
	}
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

// rotate moves the content of a file to rotated files while the shim goes on appending. When there is no space for that, it cuts off
// the front of the file. It reports whether the files may be others now.
func (k *Keeper) rotate(l logOnDisk) (did bool, err error) {
	state := k.files.get(l.file)
	state.mu.Lock()
	defer state.mu.Unlock()
	limits := state.within(k.limits)
	if l.size < limits.MaxSize {
		return false, nil
	}
	f, err := os.OpenFile(l.file, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return false, ignoreMissing(err)
	}
	defer f.Close()
	cut, kept, err := moveFront(f, l.file, limits)
	if errors.Is(err, errNoRoom) || cut == 0 && err != nil && ignoreFull(err) == nil {
		k.log.Warn("no space to rotate a log: cutting off its front", "file", l.file, "error", err)
		cut, err = cutFront(f, limits.MaxSize/2)
		kept = nil
	}
	if state.cutOff(cut, kept, limits.MaxFiles); cut > 0 {
		err = errors.Join(err, state.saveTimes(l.file))
	}
	if err != nil {
		err = fmt.Errorf("move the front of %s: %w", l.file, err)
	}
	return true, err
}

// shorten cuts off a file's front until keep bytes are left, and returns how many bytes it removed.
func (k *Keeper) shorten(file string, keep int64) (int64, error) {
	state := k.files.get(file)
	state.mu.Lock()
	defer state.mu.Unlock()
	f, err := os.OpenFile(file, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return 0, ignoreMissing(err)
	}
	defer f.Close()
	cut, err := cutFront(f, keep)
	if state.cutOff(cut, nil, state.within(k.limits).MaxFiles); cut > 0 {
		err = errors.Join(err, state.saveTimes(file))
	}
	if err != nil {
		return cut, fmt.Errorf("cut off the front of %s: %w", file, err)
	}
	return cut, nil
}

// within returns the service's limits, or the device's if it has none.
func (s *logState) within(l Limits) Limits {
	if s.own.MaxSize > 0 {
		l.MaxSize = s.own.MaxSize
	}
	if s.own.MaxFiles > 0 {
		l.MaxFiles = s.own.MaxFiles
	}
	return l
}

// cutOff records that a file lost n bytes of its front, the last of which are its newest rotated files now, newest first.
func (s *logState) cutOff(n int64, kept []int64, files int) {
	if n == 0 {
		return
	}
	s.cut += n
	for _, k := range kept {
		n -= k
	}
	if n > 0 { // a gap: positions before it are unknown
		s.moved = nil
	}
	s.moved = slices.Concat(kept, s.moved)
	s.moved = s.moved[:min(len(s.moved), files)]
}

// moveFront copies a file's content to its newest rotated files, of MaxSize each, and cuts it off the file. Of a file that grew very
// much since the last rotation it copies as much as MaxFiles hold, or the last MaxSize bytes when there is no space for more.
// Nothing is moved or deleted before the copies are complete. Where the file system can remove whole blocks from a file's front
// (ext4, xfs), bytes that are appended meanwhile stay, and the last incomplete block too. Elsewhere output between the end of the copy
// and the cut is lost: of a few microseconds. It returns how much was cut off, and the lengths of the copies, newest first.
func moveFront(f *os.File, file string, limits Limits) (cut int64, kept []int64, err error) {
	size, block, free, err := measure(f)
	if err != nil {
		return 0, nil, err
	}
	most := limits.MaxSize
	whole := (size - 1) / block * block
	from := max(0, whole-int64(limits.MaxFiles)*most)
	if free < size-from {
		from = max(0, whole-most)
	}
	if free < size-from {
		return 0, nil, errNoRoom
	}
	fresh := file + copySuffix
	defer func() { err = errors.Join(err, os.RemoveAll(fresh)) }() // copies that were not moved
	if err := os.Mkdir(fresh, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return 0, nil, err
	}
	var copies []string // oldest first
	for at := from; at < whole || len(copies) == 0; at += most {
		n := min(most, whole-at)
		copies = append(copies, filepath.Join(fresh, strconv.Itoa(len(copies))))
		if err := copyRange(copies[len(copies)-1], f, at, n); err != nil {
			return 0, nil, err
		}
		kept = append([]int64{n}, kept...)
	}
	for n := limits.MaxFiles; n > len(copies); n-- { // the last ones are overwritten
		if err := ignoreMissing(os.Rename(rotated(file, n-len(copies)), rotated(file, n))); err != nil {
			return 0, nil, err
		}
	}
	for n, c := range copies {
		if err := os.Rename(c, rotated(file, len(copies)-n)); err != nil {
			return 0, nil, err
		}
	}
	done, err := collapse(f, whole)
	if err != nil {
		return 0, nil, err
	}
	if done {
		return whole, kept, nil
	}
	rest, err := moveRest(f, whole, rotated(file, 1))
	kept[0] += rest
	return whole + rest, kept, err
}

// copyRange writes n bytes of a file to a new one.
func copyRange(to string, f *os.File, at, n int64) error {
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.NewSectionReader(f, at, n))
	return errors.Join(err, out.Close())
}

// moveRest appends the content of a file from at on to another, until nothing more arrives, and empties the first. On a full disk the
// rest is dropped.
func moveRest(f *os.File, at int64, to string) (moved int64, err error) {
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	for {
		n, err := io.Copy(out, io.NewSectionReader(f, at+moved, 1<<62))
		moved += n
		if n == 0 || err != nil {
			return moved, errors.Join(ignoreFull(err), f.Truncate(0))
		}
	}
}

// cutFront cuts off a file's front until about keep bytes are left. It needs no space.
func cutFront(f *os.File, keep int64) (int64, error) {
	size, block, _, err := measure(f)
	if err != nil || size <= keep {
		return 0, err
	}
	cut := min((size-keep+block-1)/block, (size-1)/block) * block // whole blocks, and never all of the file
	if done, err := collapse(f, cut); done {
		return cut, err
	}
	tail := make([]byte, min(keep, keptTail, size))
	n, err := f.ReadAt(tail, size-int64(len(tail)))
	if err != nil && !errors.Is(err, io.EOF) {
		n = 0
	}
	if err := f.Truncate(0); err != nil {
		return 0, err
	}
	n, err = f.Write(tail[:n])
	return size - int64(n), ignoreFull(err)
}

// collapse removes n bytes, whole blocks, from a file's front, if the file system can.
func collapse(f *os.File, n int64) (bool, error) {
	if n == 0 {
		return false, nil
	}
	err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_COLLAPSE_RANGE, 0, n)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSPC) {
		return false, nil
	}
	return err == nil, err
}

// measure returns a file's size, and its file system's block size and free bytes.
func measure(f *os.File) (size, block, free int64, err error) {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return 0, 0, 0, err
	}
	size, err = f.Seek(0, io.SeekEnd)
	block = int64(st.Bsize) //nolint:unconvert // narrower on 32-bit machines
	return size, block, int64(st.Bavail)*block - min(spareRoom, int64(st.Blocks)*block/spareShare), err
}

func ignoreFull(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return nil
	}
	return err
}
