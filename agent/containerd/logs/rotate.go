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
	// spareRoom is what a rotation leaves free on the disk, or a spareShare of a small one: its copy must not take the last
	// bytes from others.
	spareRoom  = 16 << 20
	spareShare = 20
	// keptTail is how much of a file's end is carried over in memory where its front cannot be cut off.
	keptTail = 64 << 10
	// copySuffix is of a directory with copies in the making; those that a kill left are overwritten by the next.
	copySuffix = ".new"
)

// errNoRoom says that a file's front cannot be copied now.
var errNoRoom = errors.New("no room for a copy")

// Rotate keeps what containers wrote within the limits: what a file over Limits.MaxSize holds becomes the first of
// its rotated files, of which MaxFiles stay, and of all rotated files on the device the oldest go until Budget holds for all files
// together; if the current files alone exceed it, their fronts go. The keeper calls it every Limits.Every. It asks the
// filesystem alone, so it works while containerd is away.
//
// On a full disk it gives space without needing any: what cannot be copied is cut off. What the full disk did to shims before
// is told at [Keeper.relay].
func (k *Keeper) Rotate(ctx context.Context) error {
	var errs []error
	logs, _, err := k.list(ctx)
	if err != nil {
		return fmt.Errorf("rotate logs: %w", err)
	}
	for _, l := range logs {
		errs = append(errs, k.files.get(l.file).look(l.file, k.now()), k.rotate(l.file))
	}
	logs, olds, err := k.list(ctx)
	if err != nil {
		return fmt.Errorf("rotate logs: %w", errors.Join(append(errs, err)...))
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

// logOnDisk is a file that output is in.
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
			return ignoreMissing(err) // torn down meanwhile
		case ctx.Err() != nil:
			return ctx.Err()
		case !d.Type().IsRegular(), strings.Contains(d.Name(), timesSuffix):
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

// Run calls Rotate again and again until ctx ends, and takes over the outputs that no process copies any more.
func (k *Keeper) Run(ctx context.Context) {
	defer k.relays.Wait()
	rotation, look := time.NewTicker(k.limits.Every), time.NewTimer(k.limits.Every)
	defer rotation.Stop()
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-rotation.C:
			if err := k.Rotate(ctx); err != nil && ctx.Err() == nil {
				k.log.Warn("logs were not rotated", "error", err)
			}
		case <-look.C:
			next := k.limits.Every
			if k.lookAtPipes(ctx) {
				next = min(next, suspectEvery)
			}
			look.Reset(max(next, suspectEvery/4))
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

// rotate moves what a file holds into rotated files while the shim goes on appending. Where there is no room for that, the
// front of the file goes and its end stays.
func (k *Keeper) rotate(file string) error {
	info, err := os.Stat(file)
	if err != nil {
		return ignoreMissing(err)
	}
	state := k.files.get(file)
	state.mu.Lock()
	defer state.mu.Unlock()
	limits := state.within(k.limits)
	if info.Size() < limits.MaxSize {
		return nil
	}
	f, err := os.OpenFile(file, os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		return ignoreMissing(err)
	}
	defer f.Close()
	cut, kept, err := moveFront(f, file, limits)
	if errors.Is(err, errNoRoom) || cut == 0 && err != nil && ignoreFull(err) == nil {
		k.log.Warn("no room to rotate a log: its front is cut off", "file", file, "error", err)
		cut, err = cutFront(f, limits.MaxSize/2)
		kept = nil
	}
	if state.cutOff(cut, kept, limits.MaxFiles); cut > 0 {
		err = errors.Join(err, state.saveTimes(file))
	}
	if err != nil {
		return fmt.Errorf("move the front of %s: %w", file, err)
	}
	return nil
}

// shorten cuts off a file's front until keep bytes are left, and tells how many went.
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

// within returns the device's limits, but where the service has its own.
func (s *logState) within(l Limits) Limits {
	if s.own.MaxSize > 0 {
		l.MaxSize = s.own.MaxSize
	}
	if s.own.MaxFiles > 0 {
		l.MaxFiles = s.own.MaxFiles
	}
	return l
}

// cutOff notes that a file lost n bytes of its front, of which the last ones are its newest rotated files now, newest first.
func (s *logState) cutOff(n int64, kept []int64, files int) {
	if n == 0 {
		return
	}
	s.cut += n
	for _, k := range kept {
		n -= k
	}
	if n > 0 { // a gap: what lies before it is not counted any more
		s.moved = nil
	}
	s.moved = slices.Concat(kept, s.moved)
	s.moved = s.moved[:min(len(s.moved), files)]
}

// moveFront copies a file's content to its newest rotated files, of MaxSize each, and cuts off what the file held. Of a file
// that grew beyond all bounds between two looks it copies as much as MaxFiles hold, or the last MaxSize bytes where there is
// no room for more. Nothing is moved or deleted before the copies are complete. Where the filesystem can take whole blocks
// out of a file's front (ext4, xfs), what is appended meanwhile stays, and so does the last incomplete block. Elsewhere what
// arrives between the copy's end and the cut is lost: a few microseconds' worth. It tells how much was cut, and the lengths
// of the copies, newest first.
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
	defer func() { err = errors.Join(err, os.RemoveAll(fresh)) }() // what was not placed
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

// moveRest appends to a file what another holds from at on, until nothing more comes, and empties that one. On a full disk
// the rest is dropped.
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

// cutFront takes the front off a file until no more than about keep bytes are left. It needs no space.
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

// collapse takes n bytes, whole blocks, out of a file's front, where the filesystem can.
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

// measure tells a file's size and its filesystem's block size and bytes to use.
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
