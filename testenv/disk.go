package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// ext4Shutdown is EXT4_IOC_SHUTDOWN: the file system ends where it stands.
	ext4Shutdown = 0x8004587d
	// ext4NoLogFlush ends it without another write: EXT4_GOING_FLAGS_NOLOGFLUSH.
	ext4NoLogFlush = 2
)

// Disk is a file system of a box whose power can be cut: what was not written to its backing file by then is lost. It is
// ext4 on a loop device, what most devices have.
type Disk struct {
	Dir  string // where it is mounted
	file string
	box  *Box
}

// NewDisk makes a disk of a size in bytes, sparse on this machine's own, and mounts it.
func (b *Box) NewDisk(ctx context.Context, size int64) (*Disk, error) {
	dir, err := b.Folder("disk")
	if err != nil {
		return nil, err
	}
	d := &Disk{Dir: dir, file: dir + ".img", box: b}
	f, err := os.Create(d.file)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Truncate(size), f.Close()); err != nil {
		return nil, err
	}
	if text, err := exec.CommandContext(ctx, "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", d.file).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make a file system on %s: %w\n%s", d.file, err, tail(text, 5))
	}
	return d, d.mount(ctx)
}

func (d *Disk) mount(ctx context.Context) error {
	return mountLoop(ctx, d.file, d.Dir, "loop")
}

// mountLoop mounts an ext4 file system on a loop device of its own. Two programs may find the same free device: one of them tries again.
func mountLoop(ctx context.Context, file, dir, options string) error {
	return Await(ctx, time.Minute, func() error {
		text, err := exec.CommandContext(ctx, "mount", "-t", "ext4", "-o", options, file, dir).CombinedOutput()
		if err != nil {
			return fmt.Errorf("mount %s: %w\n%s", file, err, tail(text, 5))
		}
		return nil
	})
}

// Sync writes all that is on its way to the disk, as the kernel does of its own from time to time.
func (d *Disk) Sync() error {
	fd, err := unix.Open(d.Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Syncfs(fd)
}

// shut ends the file system where it stands.
func (d *Disk) shut() error {
	fd, err := unix.Open(d.Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.IoctlSetPointerInt(fd, ext4Shutdown, ext4NoLogFlush); err != nil {
		return fmt.Errorf("cut the power of %s: %w", d.Dir, err)
	}
	return nil
}

// PowerCut is what a power cut is to the box's device: every process ends at the same instant by SIGKILL, what is not on
// the disk is lost, and so is what lives in memory: mounts, network namespaces, interfaces, the folders in volatile. The
// disk is mounted again afterwards; the device is off until its daemons are started. daemon may be nil: there is none.
func (b *Box) PowerCut(ctx context.Context, disk *Disk, daemon *Daemon, volatile ...string) error {
	ctx, cancel := context.WithTimeout(ctx, containerdReady)
	defer cancel()
	var tasks []string
	if daemon != nil {
		tasks, _ = filepath.Glob(filepath.Join(daemon.State, "io.containerd.runtime.v2.task", "*", "*")) // a good pattern
		volatile = append(volatile, daemon.State)
	}
	for _, pid := range markedProcesses(b.dir, "") {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	// Since the kill only the kernel can have written.
	if err := disk.shut(); err != nil {
		return err
	}
	if daemon != nil {
		daemon.signal(unix.SIGKILL)
	}
	if err := killMarked(ctx, b.dir, ""); err != nil {
		return err
	}
	for _, task := range tasks {
		removeContainer(ctx, filepath.Base(filepath.Dir(task)), filepath.Base(task))
	}
	if daemon != nil {
		removeParents(daemon.Namespace)
	}
	errs := []error{removeNetworks(ctx, b.dir)}
	for _, dir := range volatile {
		errs = append(errs, UnmountBelow(dir), os.RemoveAll(dir))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	// What the dead had mounted goes with their namespaces, a moment after them. The loop device must be gone before the
	// file is mounted again: two devices on one file would ruin it. Programs of other tests that have a mount namespace of their own got a
	// copy of the disk's mount with it, and keep the device.
	err := poll(ctx, func() error {
		if err := unix.Unmount(disk.Dir, 0); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", disk.Dir, err)
		}
		text, err := exec.CommandContext(ctx, "losetup", "-j", disk.file).Output()
		if err == nil && len(strings.TrimSpace(string(text))) > 0 {
			pids := mountedFor(disk.Dir)
			for _, pid := range pids {
				_ = exec.CommandContext(ctx, "nsenter", "--mount", "--target", strconv.Itoa(pid), "umount", "--lazy", disk.Dir).Run()
			}
			err = fmt.Errorf("%s is still in use, by processes %v: %s", disk.file, pids, text)
		}
		return err
	})
	if err != nil {
		return err
	}
	return disk.mount(ctx)
}

// mountedFor lists processes in whose mount namespaces a file system is mounted at a folder.
func mountedFor(dir string) (pids []int) {
	files, _ := filepath.Glob("/proc/[0-9]*/mountinfo") // a good pattern
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && bytes.Contains(text, []byte(" "+dir+" ")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file))) // digits, by the pattern
			pids = append(pids, pid)
		}
	}
	return pids
}
