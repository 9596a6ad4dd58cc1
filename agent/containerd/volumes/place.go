package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/guard"
	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/containerd/paths"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Sources of mounts that are no persistent directories are created below RunDir before each start: parts of volumes, files of other
// images, mounts of a volume's driver, shared memory, files in memory. Their paths never change, so that the specification stays
// the same. They are removed with the container, and by a reboot.

// place is the path of the source of the n-th mount of a container.
func (r *Store) place(id string, n int) (string, error) {
	return paths.Join(r.o.RunDir, "mounts", id, strconv.Itoa(n))
}

// Materialise creates the sources of a container's mounts, again if they may have changed. Volumes of the image need nothing.
func (r *Store) Materialise(ctx context.Context, p *workload.Project, c workload.Container) error {
	for n, m := range c.Service.Mounts {
		if err := r.materialiseOne(ctx, p, c, n, m); err != nil {
			return fmt.Errorf("mount at %s: %w", m.Target, err)
		}
	}
	return r.writeFiles(c)
}

func (r *Store) materialiseOne(ctx context.Context, p *workload.Project, c workload.Container, n int, m workload.Mount) error {
	var source string
	switch {
	case m.Kind == workload.MountVolume && m.Source != "":
		v := p.Volume(m.Source)
		var err error
		if len(v.Options) > 0 {
			source, err = r.hold(ctx, p.Name, v, c.ID)
		} else if source, err = r.rootOf(p.Name, v); err == nil {
			source = filepath.Join(source, volumeData)
		}
		if err != nil {
			return err
		}
	case m.Kind == workload.MountImage:
		return r.mountView(ctx, c.ID, n, m)
	case m.Kind == workload.MountBind:
		return r.bindSource(ctx, c.ID, n, m)
	}
	if m.Subpath == "" {
		return nil
	}
	to, err := r.place(c.ID, n)
	if err != nil {
		return err
	}
	return bindPart(source, m.Subpath, to)
}

// bindPart mounts a directory or file of a tree that others may write to. It does not follow links out of the tree.
func bindPart(root, part, to string) error {
	tree, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer tree.Close()
	f, err := tree.Open(part)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("subpath %s: it is not in the volume: %w", part, fault.ErrUnfit)
	}
	if err != nil {
		return fmt.Errorf("subpath %s: %w", part, failure.As(fault.ErrInvalid, err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := bindFile(f, to, info.IsDir(), true); err != nil {
		return fmt.Errorf("mount subpath %s: %w", part, err)
	}
	return nil
}

// bindFile mounts an open file at a path of ours, with the mounts below it when whole. Later mounts of the device below it appear there;
// when ours is unmounted, the device's stay.
func bindFile(f *os.File, to string, dir, whole bool) error {
	if err := mountPoint(to, dir); err != nil {
		return err
	}
	flags := uintptr(unix.MS_BIND)
	if whole {
		flags |= unix.MS_REC
	}
	if err := unix.Mount(guard.Path(f), to, "", flags, ""); err != nil {
		return err
	}
	return unix.Mount("", to, "", unix.MS_SLAVE|unix.MS_REC, "")
}

// bindSource mounts a path of the device at the source path of the container's specification, and creates it when it is missing. Where that is
// not created, the source is an empty directory: the path may have been there when the container was created.
func (r *Store) bindSource(ctx context.Context, id string, n int, m workload.Mount) error {
	there, err := r.makeSource(ctx, m)
	if err != nil || passesOut(m) {
		return err
	}
	to, err := r.place(id, n)
	if err != nil {
		return err
	}
	if !there {
		if paths.Exists(to) { // of an earlier start, and perhaps a file
			return nil
		}
		return mountPoint(to, true)
	}
	f, whole, err := r.o.Guard.Open(ctx, m.Source, m.ReadOnly)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := bindFile(f, to, info.IsDir(), whole && m.Recursive != "disabled"); err != nil {
		return fmt.Errorf("mount %s: %w", m.Source, err)
	}
	return nil
}

// UnmountSources unmounts the mounts of bindSource: a running container has its own mount, and the device's files should not be visible in
// folders of the agent.
func (r *Store) UnmountSources(c workload.Container) error {
	for n, m := range c.Service.Mounts {
		if m.Kind != workload.MountBind {
			continue
		}
		at, err := r.place(c.ID, n)
		if err != nil {
			return err
		}
		if err := detach(at); err != nil {
			return err
		}
	}
	return nil
}

// makeSource creates a missing directory of the device, and reports whether there is a source then. A mount that only reads creates nothing
// where containers may not write.
func (r *Store) makeSource(ctx context.Context, m workload.Mount) (there bool, err error) {
	if _, err := os.Stat(m.Source); !errors.Is(err, fs.ErrNotExist) {
		return true, err
	}
	if !m.Create || workload.NamesSocket(m.Source) {
		return false, fault.WithHint(fmt.Errorf("there is no %s on this device: %w", m.Source, fault.ErrUnfit),
			"make it, or let it be made with create_host_path")
	}
	g, err := r.o.Guard.Now(ctx)
	if err != nil {
		return false, err
	}
	if at, _ := g.Access(g.Real(m.Source)); m.ReadOnly && at.Access == workload.ReadOnly && !passesOut(m) {
		return false, nil
	}
	return true, readableDir(m.Source)
}

// readableDir creates a directory that users of a container can read, whatever the agent's umask. On the device another container may write
// where it is, and put a link in its place: the mode is not set beyond that.
func readableDir(dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	parent, err := os.OpenRoot(filepath.Dir(dir))
	if err != nil {
		return err
	}
	defer parent.Close()
	if err := parent.Mkdir(filepath.Base(dir), 0o755); errors.Is(err, fs.ErrExist) { // by another start
		return nil
	} else if err != nil {
		return err
	}
	return parent.Chmod(filepath.Base(dir), 0o755)
}

// mountPoint creates an empty file or folder to mount at.
func mountPoint(to string, dir bool) error {
	if err := detach(to); err != nil {
		return err
	}
	if err := paths.Remove(to); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	if dir {
		return readableDir(to) // it is what a container sees where its source has gone
	}
	return os.WriteFile(to, nil, 0o600)
}

// viewKey names the n-th mount's view of an image.
func viewKey(id string, n int) string { return id + "/image/" + strconv.Itoa(n) }

// ensureView creates a read-only view of another image's files.
func (r *Store) ensureView(ctx context.Context, p *workload.Project, c workload.Container, n int, m workload.Mount) error {
	top, err := r.o.Top(ctx, *m.Image)
	if err != nil {
		return err
	}
	_, err = r.o.Snapshots.View(ctx, viewKey(c.ID, n), top, snapshots.WithLabels(map[string]string{
		owned.LabelDevice: r.o.Device, owned.LabelProject: p.Name, owned.LabelRoot: r.o.Now().UTC().Format(time.RFC3339),
	}))
	if errdefs.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (r *Store) mountView(ctx context.Context, id string, n int, m workload.Mount) error {
	view, err := r.o.Snapshots.Mounts(ctx, viewKey(id, n))
	if err != nil {
		return err
	}
	to, err := r.place(id, n)
	if err != nil {
		return err
	}
	whole := to
	if m.Subpath != "" {
		whole = to + "-whole"
	}
	if err := mountPoint(whole, true); err != nil {
		return err
	}
	if err := mount.All(view, whole); err != nil {
		return fmt.Errorf("mount image %s: %w", m.Image.Name(), err)
	}
	if m.Subpath == "" {
		return nil
	}
	return bindPart(whole, m.Subpath, to)
}

// Clear removes what [Store.Materialise] and [Store.ShareShm] created for a container, and its views of images. A missing one is not an error.
func (r *Store) Clear(ctx context.Context, id string) error {
	for _, kind := range []string{"mounts", "shm", "memory"} {
		dir, err := paths.Join(r.o.RunDir, kind, id)
		if err != nil {
			return err
		}
		if err := unmountBelow(dir); err != nil {
			return err
		}
		remove := os.RemoveAll
		if kind == "mounts" {
			remove = paths.RemoveFlat // mounts that are left show files of the device
		}
		if err := remove(dir); err != nil {
			return err
		}
	}
	if err := r.release(ctx, id); err != nil {
		return err
	}
	var views []string
	err := r.o.Snapshots.Walk(ctx, func(_ context.Context, s snapshots.Info) error {
		if s.Kind == snapshots.KindView && strings.HasPrefix(s.Name, id+"/image/") {
			views = append(views, s.Name)
		}
		return nil
	}, owned.By(r.o.Device))
	if err != nil {
		return err
	}
	for _, v := range views {
		if err := r.o.Snapshots.Remove(ctx, v); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// unmountBelow unmounts a directory of ours and what is in it.
func unmountBelow(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := detach(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return detach(dir)
}

// holding is the folder with a volume's mount and the names of the containers that use it.
func (r *Store) holding(project string, v workload.Volume) (string, error) {
	if v.Shared != "" {
		return paths.Join(r.o.RunDir, "held", "shared", v.Shared)
	}
	return paths.Join(r.o.RunDir, "held", "project-"+project, v.Name)
}

// hold mounts a volume with its driver's options, while a container uses it.
func (r *Store) hold(ctx context.Context, project string, v workload.Volume, id string) (string, error) {
	dir, err := r.holding(project, v)
	if err != nil {
		return "", err
	}
	unlock, err := r.locks.Lock(ctx, dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	data, users := filepath.Join(dir, "data"), filepath.Join(dir, "users")
	if err := errors.Join(os.MkdirAll(data, 0o711), os.MkdirAll(users, 0o700)); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(users, id), nil, 0o600); err != nil {
		return "", err
	}
	if mounted, err := isMountPoint(data); err != nil || mounted {
		return data, err
	}
	o := v.Options
	m := mount.Mount{Type: cmp.Or(o["type"], "none"), Source: o["device"]}
	if o["o"] != "" {
		m.Options = strings.Split(o["o"], ",")
	}
	if slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind") {
		readOnly := workload.ReadOnlyOptions(m.Options)
		f, whole, err := r.o.Guard.Open(ctx, m.Source, readOnly)
		if err != nil {
			return "", err
		}
		defer f.Close()
		if !whole {
			m.Options = slices.DeleteFunc(m.Options, func(o string) bool { return o == "rbind" })
			m.Options = append(m.Options, "bind")
		}
		m.Options = slices.DeleteFunc(m.Options, func(o string) bool { return o == "ro" || o == "rw" })
		if readOnly { // as it was checked, whatever the order of its options
			m.Options = append(m.Options, "ro")
		}
		m.Source = guard.Path(f)
	}
	if err := m.Mount(data); err != nil { // its options may contain a password: they are not in the error
		return "", fmt.Errorf("volume %s: mount %s of type %s: %w", v.Name, o["device"], m.Type, errnoOf(err))
	}
	return data, nil
}

// errnoOf is the kernel's error without the arguments of the call.
func errnoOf(err error) error {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return failure.As(fault.ErrTemporary, errno)
	}
	return fmt.Errorf("its options are not understood: %w", fault.ErrInvalid)
}

// isMountPoint reports whether something is mounted at a directory.
func isMountPoint(dir string) (bool, error) {
	var at, above unix.Stat_t
	if err := unix.Lstat(dir, &at); err != nil {
		return false, err
	}
	if err := unix.Lstat(filepath.Dir(dir), &above); err != nil {
		return false, err
	}
	if at.Dev != above.Dev {
		return true, nil
	}
	var st unix.Statx_t // the same filesystem may be mounted again, by a bind
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, 0, &st); err != nil {
		return false, err
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// release ends a container's use of volumes; a volume without users is unmounted.
func (r *Store) release(ctx context.Context, id string) error {
	used, err := filepath.Glob(filepath.Join(r.o.RunDir, "held", "*", "*", "users", id))
	if err != nil {
		return err
	}
	for _, u := range used {
		if err := r.releaseOne(ctx, filepath.Dir(filepath.Dir(u)), id); err != nil {
			return err
		}
	}
	return nil
}

func (r *Store) releaseOne(ctx context.Context, dir, id string) error {
	unlock, err := r.locks.Lock(ctx, dir)
	if err != nil {
		return err
	}
	defer unlock()
	users := filepath.Join(dir, "users")
	if err := paths.Remove(filepath.Join(users, id)); err != nil {
		return err
	}
	if left, err := os.ReadDir(users); err != nil || len(left) > 0 {
		return err
	}
	if err := detach(filepath.Join(dir, "data")); err != nil {
		return err
	}
	for _, d := range []string{filepath.Join(dir, "data"), users, dir} { // never their content
		if err := paths.Remove(d); err != nil {
			return err
		}
	}
	return nil
}
