package containerd_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	flakySize   = 256 << 20
	flakyVictim = 4 << 20
	fiemap      = 0xc020660b // FS_IOC_FIEMAP
)

// flakyDisk is an ext4 whose backing file lacks the blocks of one file, on a tmpfs that can be made too small to hold them.
type flakyDisk struct {
	t                   testing.TB
	backing, dir, image string
}

// newFlakyDisk mounts the disk at dir. Who empties the folder of dir unmounts it.
func newFlakyDisk(t testing.TB, dir string) *flakyDisk {
	t.Helper()
	d := &flakyDisk{t: t, backing: dir + ".backing", dir: dir}
	d.image = filepath.Join(d.backing, "image")
	if err := errors.Join(os.MkdirAll(d.dir, 0o755), os.MkdirAll(d.backing, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", d.backing, "tmpfs", 0, fmt.Sprintf("size=%d", 2*flakySize)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.image, make([]byte, flakySize), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{
		{"mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1", d.image},
		{"mount", "-t", "ext4", "-o", "loop,nodiscard,noinit_itable", d.image, d.dir},
	} {
		if text, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", argv, err, text)
		}
	}
	if err := errors.Join(d.write(1), d.punch()); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *flakyDisk) victim() string { return filepath.Join(d.dir, "victim") }

// write writes the victim and waits for the disk, as another program does.
func (d *flakyDisk) write(b byte) (err error) {
	f, err := os.OpenFile(d.victim(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	data := make([]byte, flakyVictim)
	for i := range data {
		data[i] = b
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		return err
	}
	return unix.Syncfs(int(f.Fd()))
}

// punch takes the victim's blocks out of the backing file.
func (d *flakyDisk) punch() error {
	f, err := os.Open(d.victim())
	if err != nil {
		return err
	}
	defer f.Close()
	var q struct { // struct fiemap and its extents, linux/fiemap.h
		start, length   uint64
		flags, mapped   uint32
		count, reserved uint32
		extents         [64]struct {
			logical, physical, length uint64
			_                         [2]uint64
			_                         [4]uint32
		}
	}
	q.length, q.count = flakyVictim, uint32(len(q.extents))
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fiemap, uintptr(unsafe.Pointer(&q))); e != 0 {
		return e
	}
	image, err := os.OpenFile(d.image, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer image.Close()
	for _, x := range q.extents[:q.mapped] {
		if err := unix.Fallocate(int(image.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, int64(x.physical), int64(x.length)); err != nil {
			return err
		}
	}
	return nil
}

// lose has the disk lose a write. Another program notices.
func (d *flakyDisk) lose() error {
	var st unix.Statfs_t
	if err := unix.Statfs(d.backing, &st); err != nil {
		return err
	}
	used := int64(st.Blocks-st.Bfree) * st.Bsize
	if err := d.resize(used); err != nil {
		return err
	}
	if err := d.write(2); err == nil {
		return errors.New("the disk has written all")
	}
	return d.resize(2 * flakySize)
}

func (d *flakyDisk) resize(size int64) error {
	return unix.Mount("tmpfs", d.backing, "tmpfs", unix.MS_REMOUNT, fmt.Sprintf("size=%d", size))
}
