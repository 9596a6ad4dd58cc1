package containerd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/containerd/v2/core/mount"
	copyfs "github.com/containerd/continuity/fs"
	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	volumeData    = "_data" // what is mounted
	volumeFilling = "_new"  // becomes volumeData when it is complete
)

func (r *Runtime) volumeDir(project, name string) (string, error) {
	return path(filepath.Join(r.o.DataDir, "volumes"), project, name)
}

// anonymousDir is a volume without a name: of a replica of a service and its place there, so that the next revision finds
// what the last one wrote. It goes with its project, for nobody could ask for it afterwards.
func (r *Runtime) anonymousDir(project, service string, replica int, target string) (string, error) {
	place := digest.FromString(filepath.Clean(target)).Encoded()[:2*workload.Short]
	return path(filepath.Join(r.o.DataDir, "anonymous"), project, service, strconv.Itoa(replica)+"-"+place)
}

func (r *Runtime) dropAnonymous(project string) error {
	dir, err := path(filepath.Join(r.o.DataDir, "anonymous"), project)
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// mounts turns a service's mounts into the runtime's, and makes the volumes that are missing.
func (r *Runtime) mounts(ctx context.Context, p *workload.Project, c workload.Container, at Attachment, layer []mount.Mount) ([]specs.Mount, error) {
	var out []specs.Mount
	for target, source := range map[string]string{"/etc/hosts": at.HostsFile, "/etc/resolv.conf": at.ResolvConf} {
		if source != "" {
			out = append(out, specs.Mount{Destination: target, Type: "bind", Source: source, Options: []string{"bind", "rprivate", "ro"}})
		}
	}
	for n, m := range c.Service.Mounts {
		if !filepath.IsAbs(m.Target) || filepath.Clean(m.Target) == "/" {
			return nil, fmt.Errorf("mount target %q: %w", m.Target, fault.ErrInvalid)
		}
		var (
			s   specs.Mount
			err error
		)
		switch m.Kind {
		case workload.MountVolume:
			s, err = r.volume(ctx, p, c, n, layer)
		case workload.MountBind:
			s, err = bind(m)
		case workload.MountTmpfs:
			s = tmpfs(m)
		default:
			err = fmt.Errorf("mount of kind %q: %w", m.Kind, fault.ErrUnsupported)
		}
		if err != nil {
			return nil, fmt.Errorf("mount at %s: %w", m.Target, err)
		}
		if m.ReadOnly {
			s.Options = append(s.Options, "ro")
		}
		out = append(out, s)
	}
	return out, nil
}

func bind(m workload.Mount) (specs.Mount, error) {
	if !filepath.IsAbs(m.Source) {
		return specs.Mount{}, fmt.Errorf("source %q is not an absolute path: %w", m.Source, fault.ErrInvalid)
	}
	if _, err := os.Stat(m.Source); errors.Is(err, fs.ErrNotExist) {
		if !m.Create {
			return specs.Mount{}, fmt.Errorf("%s: %w on this device", m.Source, fault.ErrNotFound)
		}
		if err := makeDir(m.Source, 0o755); err != nil {
			return specs.Mount{}, err
		}
	} else if err != nil {
		return specs.Mount{}, err
	}
	return specs.Mount{Destination: m.Target, Type: "bind", Source: m.Source, Options: []string{"rbind", "rprivate"}}, nil
}

func tmpfs(m workload.Mount) specs.Mount {
	mode := m.TmpfsPerm
	if mode == 0 {
		mode = 0o1777
	}
	opts := []string{"nosuid", "nodev", "noexec", "mode=" + strconv.FormatUint(uint64(mode), 8)}
	if m.TmpfsMax > 0 {
		opts = append(opts, "size="+strconv.FormatInt(m.TmpfsMax, 10))
	}
	return specs.Mount{Destination: m.Target, Type: "tmpfs", Source: "tmpfs", Options: opts}
}

// volume makes the n-th mount's volume unless it is there. A new one starts with what the image has at the target, with
// owners and modes. The volume appears complete or not at all, whenever the power goes.
func (r *Runtime) volume(ctx context.Context, p *workload.Project, c workload.Container, n int, layer []mount.Mount) (specs.Mount, error) {
	m := c.Service.Mounts[n]
	dir, err := r.volumeDir(p.Name, m.Source)
	if m.Source == "" {
		dir, err = r.anonymousDir(p.Name, c.Service.Name, c.Replica, m.Target)
	}
	if err != nil {
		return specs.Mount{}, err
	}
	data := filepath.Join(dir, volumeData)
	out := specs.Mount{Destination: m.Target, Type: "bind", Source: data, Options: []string{"rbind", "rprivate"}}
	unlock, err := r.ids.lock(ctx, "volume "+dir) // two services may share it
	if err != nil {
		return out, err
	}
	defer unlock()
	if _, err := os.Stat(data); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return out, err
	}
	fresh := filepath.Join(dir, volumeFilling)
	if err := os.RemoveAll(fresh); err != nil {
		return out, err
	}
	if err := makeDir(dir, 0o711); err != nil {
		return out, err
	}
	if err := os.Mkdir(fresh, 0o755); err != nil {
		return out, err
	}
	err = r.withRootfs(c.ID, layer, func(root string) error { return copyUp(root, m.Target, fresh) })
	if err != nil {
		return out, fmt.Errorf("fill volume %q from the image: %w", m.Source, err)
	}
	if err := syncTree(fresh); err != nil {
		return out, err
	}
	if err := os.Rename(fresh, data); err != nil {
		return out, err
	}
	return out, syncDir(dir)
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

// makeDir makes a directory and its parents, durably enough: losing it means making it again.
func makeDir(dir string, mode os.FileMode) error { return os.MkdirAll(dir, mode) }

func removeEmpty(dir string) error {
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// syncTree writes everything on the filesystem of dir to the disk: one call, however many files.
func syncTree(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
