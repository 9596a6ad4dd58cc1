// Package volumes creates the mounts of containers: volumes of this device, filled from images; paths of the device; files of other
// images; mounts of a volume's driver; shared memory; configs and secrets in files in memory.
//
// Persistent data is below DataDir, mounts of a container are below RunDir. What an image fills a volume with is complete before a
// container starts, also after a power cut, and no update removes a volume.
package volumes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	copyfs "github.com/containerd/continuity/fs"
	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/guard"
	"github.com/longshore-dev/longshore/agent/containerd/paths"
	"github.com/longshore-dev/longshore/agent/containerd/users"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/locks"
)

const (
	volumeData   = "_data"     // what is mounted
	volumeEmpty  = "_unfilled" // a file: no image has filled it yet
	volumeCopy   = "_new"      // an image's files while they are copied
	volumeFiller = "_full"     // all of them, while they are moved to volumeData
)

// Options of a store. All are needed.
type Options struct {
	Device    string // goes into the labels of views of images
	DataDir   string // volumes, survives reboots
	RunDir    string // short-lived mounts, does not survive reboots
	Snapshots snapshots.Snapshotter
	Top       func(context.Context, workload.Image) (layer string, err error) // makes a present image ready to use
	Guard     *guard.Guard
	Now       func() time.Time
}

// Store is the volumes of a device. Its methods may be called from several goroutines, those with a context with containerd's
// namespace in it; calls for one container come one after another.
type Store struct {
	o     Options
	locks locks.Table // by directory: two services may share a volume
}

// New returns a store. It changes nothing.
func New(o Options) *Store { return &Store{o: o} }

// anonymousDir is a volume without a name: of a replica of a service and its place there, so that the next revision finds
// what the last one wrote. It is removed with its project.
func (r *Store) anonymousDir(project, service string, replica int, target string) (string, error) {
	place := digest.FromString(filepath.Clean(target)).Encoded()[:2*workload.Short]
	return paths.Join(r.o.DataDir, "anonymous", project, service, strconv.Itoa(replica)+"-"+place)
}

// DropAnonymous removes the anonymous volumes of a project.
func (r *Store) DropAnonymous(project string) error {
	dir, err := paths.Join(r.o.DataDir, "anonymous", project)
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// rootOf is the folder of a volume of this device; a driver may mount over it, see hold.
func (r *Store) rootOf(project string, v workload.Volume) (string, error) {
	if v.Shared != "" {
		return paths.Join(r.o.DataDir, "shared", v.Shared) // all projects share it by its name
	}
	return paths.Join(r.o.DataDir, "volumes", project, v.Name)
}

// Ensure creates a volume's folder. An external volume must exist: fault.ErrUnfit.
func (r *Store) Ensure(p *workload.Project, v workload.Volume) error {
	dir, err := r.rootOf(p.Name, v)
	if err != nil {
		return err
	}
	if !v.External {
		if err := os.MkdirAll(dir, 0o711); err != nil {
			return err
		}
		return noteOwner(dir, p)
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return fault.WithHint(fmt.Errorf("there is no volume %q on this device: %w", cmp.Or(v.Shared, v.Name), fault.ErrUnfit),
			"deploy the application that makes it first, or leave out external")
	} else if err != nil {
		return err
	}
	return nil
}

// effective are a service's mounts and those of its image: an anonymous volume for each path that the image declares and the service
// does not mount.
func effective(s workload.Service, image ocispec.ImageConfig) []workload.Mount {
	out := slices.Clone(s.Mounts)
	for _, target := range slices.Sorted(maps.Keys(image.Volumes)) {
		target = filepath.Clean("/" + target)
		taken := target == "/" || slices.ContainsFunc(out, func(m workload.Mount) bool { return filepath.Clean(m.Target) == target })
		if !taken {
			out = append(out, workload.Mount{Kind: workload.MountVolume, Target: target})
		}
	}
	return out
}

// Mounts converts the mounts of a service and its image, and its files, to those of the OCI specification, and creates missing volumes.
// layer is the container's, which new volumes are filled from. [Store.Materialise] creates the sources of the mounts.
func (r *Store) Mounts(ctx context.Context, p *workload.Project, c workload.Container, image ocispec.ImageConfig, layer []mount.Mount) ([]specs.Mount, error) {
	var out []specs.Mount
	for n, m := range effective(c.Service, image) {
		s, err := r.mount(ctx, p, c, n, m, layer)
		if err != nil {
			return nil, fmt.Errorf("mount at %s: %w", m.Target, err)
		}
		switch {
		case m.Recursive == "readonly":
			s.Options = append(s.Options, "rro")
		case m.ReadOnly || m.Kind == workload.MountImage:
			s.Options = append(s.Options, "ro")
		}
		out = append(out, s)
	}
	files, err := r.fileMounts(c)
	return append(out, files...), err
}

// mount converts the n-th mount of a container.
func (r *Store) mount(ctx context.Context, p *workload.Project, c workload.Container, n int, m workload.Mount, layer []mount.Mount) (specs.Mount, error) {
	switch m.Kind {
	case workload.MountVolume:
		source, err := r.volume(ctx, p, c, m, layer)
		if err == nil && m.Subpath != "" {
			source, err = r.place(c.ID, n)
		}
		out := specs.Mount{Destination: m.Target, Type: "bind", Source: source, Options: []string{"rbind", "rprivate"}}
		if users.HasOwnUsers(c.Service) && m.Subpath == "" && len(p.Volume(m.Source).Options) == 0 { // kept below DataDir
			out.UIDMappings, out.GIDMappings = users.Mappings(), users.Mappings()
		}
		return out, err
	case workload.MountImage:
		if err := r.ensureView(ctx, p, c, n, m); err != nil {
			return specs.Mount{}, err
		}
		source, err := r.place(c.ID, n)
		return specs.Mount{Destination: m.Target, Type: "bind", Source: source, Options: []string{"rbind", "rprivate"}}, err
	case workload.MountBind:
		out, err := r.bind(ctx, m)
		if err == nil && out.Type == "bind" && !passesOut(m) {
			out.Source, err = r.place(c.ID, n)
		}
		return out, err
	case workload.MountTmpfs:
		return tmpfs(m), nil
	}
	return specs.Mount{}, fmt.Errorf("mount of kind %q: %w", m.Kind, fault.ErrUnsupported)
}

// bind is a mount of the device. Its source is checked, and created if missing, at each start: see bindSource. In place of one that is not
// created the container has an empty directory, as long as it exists: a file could not be mounted there later.
func (r *Store) bind(ctx context.Context, m workload.Mount) (specs.Mount, error) {
	there, err := r.makeSource(ctx, m)
	if err != nil {
		return specs.Mount{}, err
	}
	if !there {
		return tmpfs(workload.Mount{Target: m.Target, TmpfsPerm: 0o755}), nil
	}
	how := "rbind"
	if m.Recursive == "disabled" {
		how = "bind"
	}
	return specs.Mount{Destination: m.Target, Type: "bind", Source: m.Source, Options: []string{how, cmp.Or(m.Propagation, "rprivate")}}, nil
}

// passesOut reports whether mounts of a container below a mount appear on the device: then the mount is the device's own and no copy.
// Only the device's owner can allow that.
func passesOut(m workload.Mount) bool { return strings.HasSuffix(m.Propagation, "shared") }

func tmpfs(m workload.Mount) specs.Mount {
	mode := cmp.Or(m.TmpfsPerm, 0o1777)
	opts := []string{"nosuid", "nodev", "noexec", "mode=" + strconv.FormatUint(uint64(mode), 8)}
	if m.TmpfsMax > 0 {
		opts = append(opts, "size="+strconv.FormatInt(m.TmpfsMax, 10))
	}
	return specs.Mount{Destination: m.Target, Type: "tmpfs", Source: "tmpfs", Options: append(opts, m.Options...)} // the last option counts
}

// volume creates a mount's volume unless it exists, and returns its folder. It is filled from the first image that has a directory at the
// target of a mount without nocopy. Mounts of a driver are neither created nor filled here.
func (r *Store) volume(ctx context.Context, p *workload.Project, c workload.Container, m workload.Mount, layer []mount.Mount) (string, error) {
	var (
		dir string
		err error
	)
	if m.Source == "" {
		dir, err = r.anonymousDir(p.Name, c.Service.Name, c.Replica, m.Target)
	} else {
		v := p.Volume(m.Source)
		if len(v.Options) > 0 {
			dir, err := r.holding(p.Name, v) // the mount point of its driver is in it
			return filepath.Join(dir, "data"), err
		}
		dir, err = r.rootOf(p.Name, v)
	}
	if err != nil {
		return "", err
	}
	data := filepath.Join(dir, volumeData)
	unlock, err := r.locks.Lock(ctx, dir)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err = os.Stat(data); errors.Is(err, fs.ErrNotExist) {
		err = createVolume(dir)
	}
	if err != nil {
		return "", err
	}
	if !m.NoCopy && m.Subpath == "" && paths.Exists(filepath.Join(dir, volumeEmpty)) { // only for the whole volume
		if err := r.fill(c.ID, layer, m.Target, dir); err != nil {
			return "", fmt.Errorf("fill volume %q from the image: %w", m.Source, err)
		}
	}
	return data, nil
}

func createVolume(dir string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(dir, volumeFiller)); err != nil { // of one that was removed
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, volumeEmpty), nil, 0o600); err != nil {
		return err
	}
	if err := readableDir(filepath.Join(dir, volumeData)); err != nil {
		return err
	}
	return syncDir(dir, unix.Syncfs)
}

// fill moves an image's files at a target into a volume, with owners and modes, unless a container has written to it. It begins to move them
// when all are on the disk: after a kill or a power cut the next call moves the rest.
func (r *Store) fill(id string, layer []mount.Mount, target, dir string) error {
	data, empty, fresh, full := filepath.Join(dir, volumeData), filepath.Join(dir, volumeEmpty), filepath.Join(dir, volumeCopy), filepath.Join(dir, volumeFiller)
	if !paths.Exists(full) {
		written, err := entries(data)
		if err != nil {
			return err
		}
		if len(written) > 0 {
			return os.Remove(empty)
		}
		if err := os.RemoveAll(fresh); err != nil {
			return err
		}
		err = r.withRootfs(id, layer, func(root string) error { return copyUp(root, target, fresh) })
		if err != nil || !paths.Exists(fresh) {
			return err
		}
		if err := syncDir(fresh, unix.Syncfs); err != nil {
			return err
		}
		if err := os.Rename(fresh, full); err != nil {
			return err
		}
		if err := syncDir(dir, unix.Fsync); err != nil { // before any file is moved
			return err
		}
	}
	files, err := entries(full)
	for _, name := range files {
		from, to := filepath.Join(full, name), filepath.Join(data, name)
		if _, there := os.Lstat(to); there == nil { // a container has written it since
			err = errors.Join(err, os.RemoveAll(from))
		} else {
			err = errors.Join(err, os.Rename(from, to))
		}
	}
	if err != nil {
		return err
	}
	if err := copyfs.CopyDir(data, full); err != nil { // the owner and the mode of the directory itself: it has no more files
		return err
	}
	if err := syncDir(data, unix.Fsync); err != nil {
		return err
	}
	return errors.Join(os.Remove(full), os.Remove(empty), syncDir(dir, unix.Fsync))
}

// withRootfs mounts a container's layer during do. After a kill the next attempt finds the mount.
func (r *Store) withRootfs(id string, layer []mount.Mount, do func(root string) error) (err error) {
	dir, err := paths.Join(r.o.RunDir, "rootfs", id)
	if err != nil {
		return err
	}
	if err := r.UnmountLayer(id); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := mount.All(users.WithoutMapping(mount.RemoveVolatileOption(layer)), dir); err != nil {
		return fmt.Errorf("mount the layer of container %s: %w", id, err)
	}
	defer func() { err = errors.Join(err, r.UnmountLayer(id)) }()
	return do(dir)
}

// UnmountLayer removes the mount of a container's layer that fills a volume. No mount is no error.
func (r *Store) UnmountLayer(id string) error {
	dir, err := paths.Join(r.o.RunDir, "rootfs", id)
	if err != nil {
		return err
	}
	if err := detach(dir); err != nil {
		return err
	}
	return paths.Remove(dir)
}

// copyUp copies the directory at target in root, if the image has one.
func copyUp(root, target, to string) error {
	from, err := securejoin.SecureJoin(root, target) // links in the image must not lead out of it
	if err != nil {
		return err
	}
	info, err := os.Stat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%s is a file in the image, a volume is a directory: %w", target, fault.ErrInvalid)
	}
	return copyfs.CopyDir(to, from)
}

// syncDir writes a directory to the disk: with unix.Fsync what it lists, with unix.Syncfs everything on its filesystem, however many files.
func syncDir(dir string, sync func(fd int) error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := sync(int(d.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}
