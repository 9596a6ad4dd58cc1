package containerd

import (
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

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/oci"
	copyfs "github.com/containerd/continuity/fs"
	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/images"
	"github.com/longshore-dev/longshore/agent/containerd/paths"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	volumeData    = "_data" // what is mounted
	volumeFilling = "_new"  // becomes volumeData when it is complete
)

func (r *Runtime) volumeDir(project, name string) (string, error) {
	return paths.Join(filepath.Join(r.o.DataDir, "volumes"), project, name)
}

// anonymousDir is a volume without a name: of a replica of a service and its place there, so that the next revision finds
// what the last one wrote. It goes with its project, for nobody could ask for it afterwards.
func (r *Runtime) anonymousDir(project, service string, replica int, target string) (string, error) {
	place := digest.FromString(filepath.Clean(target)).Encoded()[:2*workload.Short]
	return paths.Join(filepath.Join(r.o.DataDir, "anonymous"), project, service, strconv.Itoa(replica)+"-"+place)
}

func (r *Runtime) dropAnonymous(project string) error {
	dir, err := paths.Join(filepath.Join(r.o.DataDir, "anonymous"), project)
	if err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// sharedDir is a volume that all projects share by its name.
func (r *Runtime) sharedDir(name string) (string, error) {
	return paths.Join(filepath.Join(r.o.DataDir, "shared"), name)
}

// volumeOf finds what a mount names. Volumes without a name have no entry.
func volumeOf(p *workload.Project, name string) workload.Volume {
	for _, v := range p.Volumes {
		if v.Name == name {
			return v
		}
	}
	return workload.Volume{Name: name}
}

// rootOf is where a volume of this device is kept, which Options of a driver may cover: see hold.
func (r *Runtime) rootOf(project string, v workload.Volume) (string, error) {
	if v.Shared != "" {
		return r.sharedDir(v.Shared)
	}
	return r.volumeDir(project, v.Name)
}

// ensureVolume makes a volume's place. One that another project or a person must have made is only looked for.
func (r *Runtime) ensureVolume(p *workload.Project, v workload.Volume) error {
	dir, err := r.rootOf(p.Name, v)
	if err != nil {
		return err
	}
	if !v.External {
		if err := makeDir(dir, 0o711); err != nil {
			return err
		}
		return noteOwner(dir, p)
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return fault.WithHint(fmt.Errorf("there is no volume %q on this device: %w", firstOf(v.Shared, v.Name), fault.ErrUnfit),
			"deploy the application that makes it first, or leave out external")
	} else if err != nil {
		return err
	}
	return nil
}

// effective are a service's mounts and those that its image wants: a volume without a name for each path that it declares
// and the service mounts nothing at.
func effective(s workload.Service, img *images.Image) []workload.Mount {
	out := slices.Clone(s.Mounts)
	for _, target := range slices.Sorted(maps.Keys(img.Config.Config.Volumes)) {
		target = filepath.Clean("/" + target)
		taken := target == "/" || slices.ContainsFunc(out, func(m workload.Mount) bool { return filepath.Clean(m.Target) == target })
		if !taken {
			out = append(out, workload.Mount{Kind: workload.MountVolume, Target: target})
		}
	}
	return out
}

// attach gives a container its place in the networks, and the files that come with it to its own root.
func (r *Runtime) attach(ctx context.Context, project string, c workload.Container) (Attachment, error) {
	at, err := r.o.Networks.Attach(ctx, project, c)
	if err != nil || !ownUsers(c.Service) {
		return at, err
	}
	for _, source := range nameFiles(at) {
		if err := os.Lchown(source, mappedFrom, mappedFrom); source != "" && err != nil {
			return at, err
		}
	}
	return at, nil
}

// nameFiles are the network's files, by where a container has them.
func nameFiles(at Attachment) map[string]string {
	return map[string]string{"/etc/hosts": at.HostsFile, "/etc/resolv.conf": at.ResolvConf, "/etc/hostname": at.HostnameFile}
}

// mounts turns a service's mounts into the runtime's, and makes the volumes that are missing.
func (r *Runtime) mounts(ctx context.Context, p *workload.Project, c workload.Container, img *images.Image, at Attachment, layer []mount.Mount) ([]specs.Mount, error) {
	var out []specs.Mount
	for target, source := range nameFiles(at) {
		if source != "" {
			options := []string{"bind", "rprivate", "nosuid", "nodev", "noexec"}
			if c.Service.ReadOnly {
				options = append(options, "ro")
			}
			out = append(out, specs.Mount{Destination: target, Type: "bind", Source: source, Options: options})
		}
	}
	for n, m := range effective(c.Service, img) {
		if !filepath.IsAbs(m.Target) || filepath.Clean(m.Target) == "/" {
			return nil, fmt.Errorf("mount target %q: %w", m.Target, fault.ErrInvalid)
		}
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
	if err != nil {
		return nil, err
	}
	out = append(out, files...)
	if c.Service.Init {
		m, err := r.initMount()
		if err != nil {
			return nil, err
		}
		out = append(out, m)
	}
	return out, nil
}

// mount turns the n-th mount of a container into the runtime's.
func (r *Runtime) mount(ctx context.Context, p *workload.Project, c workload.Container, n int, m workload.Mount, layer []mount.Mount) (specs.Mount, error) {
	switch m.Kind {
	case workload.MountVolume:
		source, err := r.volume(ctx, p, c, m, layer)
		if err == nil && m.Subpath != "" {
			source, err = r.place(c.ID, n)
		}
		return specs.Mount{Destination: m.Target, Type: "bind", Source: source, Options: []string{"rbind", "rprivate"}}, err
	case workload.MountImage:
		if err := r.ensureView(ctx, p, c, n, m); err != nil {
			return specs.Mount{}, err
		}
		source, err := r.place(c.ID, n)
		return specs.Mount{Destination: m.Target, Type: "bind", Source: source, Options: []string{"rbind", "rprivate"}}, err
	case workload.MountBind:
		out, err := bind(m)
		if err == nil && !passesOut(m) {
			out.Source, err = r.place(c.ID, n)
		}
		return out, err
	case workload.MountTmpfs:
		return tmpfs(m), nil
	}
	return specs.Mount{}, fmt.Errorf("mount of kind %q: %w", m.Kind, fault.ErrUnsupported)
}

// bind is a mount of the device. Its source is judged, and made where it is missing, again at each start: see layBind.
func bind(m workload.Mount) (specs.Mount, error) {
	if !filepath.IsAbs(m.Source) {
		return specs.Mount{}, fmt.Errorf("source %q is not an absolute path: %w", m.Source, fault.ErrInvalid)
	}
	propagation := firstOf(m.Propagation, "rprivate")
	if !slices.Contains([]string{"private", "rprivate", "shared", "rshared", "slave", "rslave"}, propagation) {
		return specs.Mount{}, fmt.Errorf("propagation %q: %w", propagation, fault.ErrInvalid)
	}
	if err := makeSource(m); err != nil {
		return specs.Mount{}, err
	}
	how := "rbind"
	if m.Recursive == "disabled" {
		how = "bind"
	}
	return specs.Mount{Destination: m.Target, Type: "bind", Source: m.Source, Options: []string{how, propagation}}, nil
}

// passesOut reports whether what a container mounts below a mount appears on the device: then the mount is the device's own
// and no copy of it. Only the device's owner can allow that.
func passesOut(m workload.Mount) bool { return strings.HasSuffix(m.Propagation, "shared") }

// propagated lets mounts pass between the device and a container that asks for it: runc makes the container's root
// private otherwise.
func propagated(_ context.Context, _ oci.Client, _ *containers.Container, s *oci.Spec) error {
	for _, m := range s.Mounts {
		for _, o := range m.Options {
			switch {
			case strings.HasSuffix(o, "shared"):
				s.Linux.RootfsPropagation = "rshared"
			case strings.HasSuffix(o, "slave") && s.Linux.RootfsPropagation == "":
				s.Linux.RootfsPropagation = "rslave"
			}
		}
	}
	return nil
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
	return specs.Mount{Destination: m.Target, Type: "tmpfs", Source: "tmpfs", Options: append(opts, m.Options...)} // the last word counts
}

// volume makes a mount's volume unless it is there, and returns its place. A new one starts with what the image has at the
// target, with owners and modes, unless the mount says no. The volume appears complete or not at all, whenever the power
// goes. What a driver mounts over it is neither made nor filled here.
func (r *Runtime) volume(ctx context.Context, p *workload.Project, c workload.Container, m workload.Mount, layer []mount.Mount) (string, error) {
	var (
		dir string
		err error
	)
	if m.Source == "" {
		dir, err = r.anonymousDir(p.Name, c.Service.Name, c.Replica, m.Target)
	} else {
		v := volumeOf(p, m.Source)
		if len(v.Options) > 0 {
			return r.heldDir(p.Name, v)
		}
		dir, err = r.rootOf(p.Name, v)
	}
	if err != nil {
		return "", err
	}
	data := filepath.Join(dir, volumeData)
	unlock, err := r.ids.Lock(ctx, "volume "+dir) // two services may share it
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(data); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return data, err
	}
	fresh := filepath.Join(dir, volumeFilling)
	if err := os.RemoveAll(fresh); err != nil {
		return "", err
	}
	if err := makeDir(dir, 0o711); err != nil {
		return "", err
	}
	if err := os.Mkdir(fresh, 0o755); err != nil {
		return "", err
	}
	if !m.NoCopy && m.Subpath == "" { // a part of a volume says nothing about the whole
		err = r.withRootfs(c.ID, layer, func(root string) error { return copyUp(root, m.Target, fresh) })
		if err != nil {
			return "", fmt.Errorf("fill volume %q from the image: %w", m.Source, err)
		}
	}
	if err := syncTree(fresh); err != nil {
		return "", err
	}
	if err := os.Rename(fresh, data); err != nil {
		return "", err
	}
	return data, syncDir(dir)
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
