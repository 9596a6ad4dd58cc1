// Package guard rejects access of containers to paths and devices that only the owner of the device can allow. It checks them when a
// container starts.
package guard

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/confinement"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxEntries bounds the number of files that are read to find the device nodes of one directory.
const maxEntries = 4096

// Guard checks the device. Its methods may be called from several goroutines, with containerd's namespace in their contexts.
type Guard struct {
	AllowPrivileged bool             // by the device's owner: nothing is rejected
	Places          []workload.Place // that unprivileged containers must not mount, in addition to those of every device and containerd's own
	// Roots are the folders of the content store and of the snapshotter; "": not known.
	Roots func(context.Context) (blobs, files string, err error)
}

// Now returns the guard with the current state of this device.
func (r *Guard) Now(ctx context.Context) (workload.Guard, error) {
	g := workload.Guard{Real: realPath, Node: deviceNode, Nodes: deviceNodes, Drivers: characterDrivers}
	blobs, files, err := r.Roots(ctx)
	if err != nil {
		return g, err
	}
	g.Places = sync.OnceValue(func() []workload.Place { return r.places(blobs, files) })
	g.Looser = func(s *workload.Service) (string, bool) { return confinement.Looser(ctx, s) }
	return g, nil
}

// places are those of this device, with containerd's, and where their links lead now.
func (r *Guard) places(blobs, files string) []workload.Place {
	out := slices.Clone(r.Places)
	for _, root := range []string{blobs, files} {
		if filepath.IsAbs(root) {
			out = append(out, workload.Place{Path: filepath.Dir(root), Access: workload.NoAccess, Holds: "state of containerd"})
		}
	}
	for _, p := range slices.Concat(workload.DevicePlaces(), out) {
		if real := realPath(p.Path); real != p.Path {
			p.Path = real
			out = append(out, p)
		}
	}
	return out
}

// Permit rejects a service with settings that only the device's owner can allow. It is called at each start: links and devices may
// have changed since the last one. fault.ErrRejected names the key.
func (r *Guard) Permit(ctx context.Context, p *workload.Project, s workload.Service) error {
	if r.AllowPrivileged {
		return nil
	}
	g, err := r.Now(ctx)
	if err != nil {
		return err
	}
	one := &workload.Project{Services: []workload.Service{s}}
	for _, m := range s.Mounts {
		if m.Kind == workload.MountVolume && m.Source != "" {
			one.Volumes = append(one.Volumes, p.Volume(m.Source))
		}
	}
	for _, found := range one.Privileges(g) {
		return fault.WithHint(fmt.Errorf("%s: this device does not allow %s: %w", found.Path, found.What, fault.ErrRejected), confinement.AllowHint)
	}
	return nil
}

// CheckNodes rejects device nodes that only the device's owner can allow, by their numbers in the container's specification.
func (r *Guard) CheckNodes(s workload.Service) oci.SpecOpts {
	return func(ctx context.Context, _ oci.Client, _ *containers.Container, spec *oci.Spec) error {
		if r.AllowPrivileged || len(s.Devices) == 0 {
			return nil
		}
		g, err := r.Now(ctx)
		if err != nil {
			return err
		}
		for _, d := range spec.Linux.Devices {
			if raw := g.Raw(workload.Node{Path: d.Path, Block: d.Type == "b", Major: d.Major, Minor: d.Minor}); raw != "" {
				return fault.WithHint(fmt.Errorf("this device does not allow device %s (%s): %w", d.Path, raw, fault.ErrRejected), confinement.AllowHint)
			}
		}
		return nil
	}
}

// Open opens the source of a mount and reports whether it may be mounted together with the mounts below it. The check is of the open
// file, even if links change meanwhile. The caller closes it. fault.ErrRejected: containers must not mount it.
func (r *Guard) Open(ctx context.Context, source string, readOnly bool) (f *os.File, whole bool, err error) {
	fd, err := unix.Open(source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, false, &fs.PathError{Op: "open", Path: source, Err: err}
	}
	f = os.NewFile(uintptr(fd), source)
	if r.AllowPrivileged {
		return f, true, nil
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
			f = nil
		}
	}()
	real, err := os.Readlink(Path(f))
	if err != nil {
		return f, false, err
	}
	info, err := f.Stat()
	if err != nil {
		return f, false, err
	}
	g, err := r.Now(ctx)
	if err != nil {
		return f, false, err
	}
	if info.Mode()&fs.ModeDevice != 0 { // the rules for devices, which were checked before, decide; a node alone gives no access
		return f, true, nil
	}
	at, _ := g.Access(real)
	if at.Access == workload.ReadWrite || at.Access == workload.ReadOnly && readOnly {
		return f, at.Access == workload.ReadWrite, nil
	}
	return f, false, fault.WithHint(fmt.Errorf("this device does not allow a mount of %s, which is %s (%s): %w", source, real, at.Holds, fault.ErrRejected), confinement.AllowHint)
}

// Path is a path to an open file of this process.
func Path(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// realPath resolves the links of a path as far as it exists.
func realPath(p string) string {
	p = filepath.Clean(p)
	for dir := p; ; dir = filepath.Dir(dir) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			return filepath.Join(real, strings.TrimPrefix(p, dir))
		}
		if dir == filepath.Dir(dir) {
			return p
		}
	}
}

// deviceNode is the device node at a path, if there is one.
func deviceNode(p string) (workload.Node, bool) {
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return workload.Node{}, false
	}
	kind := st.Mode & unix.S_IFMT
	return workload.Node{
		Path: p, Block: kind == unix.S_IFBLK, Major: int64(unix.Major(uint64(st.Rdev))), Minor: int64(unix.Minor(uint64(st.Rdev))),
	}, kind == unix.S_IFBLK || kind == unix.S_IFCHR
}

// deviceNodes are the node at a path, or those below a directory, and whether these are all of them.
func deviceNodes(p string) (out []workload.Node, all bool) {
	entries := 0
	_ = filepath.WalkDir(p, func(at string, d fs.DirEntry, err error) error { // unreadable entries have no node
		if err != nil {
			return nil
		}
		if entries++; entries > maxEntries {
			return fs.SkipAll
		}
		if d.Type()&fs.ModeDevice != 0 {
			if n, ok := deviceNode(at); ok {
				out = append(out, n)
			}
		}
		return nil
	})
	return out, entries <= maxEntries
}

// characterDrivers are the names of character devices by major number.
func characterDrivers() map[int64]string {
	out := map[int64]string{}
	f, err := os.Open("/proc/devices")
	if err != nil {
		return out
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		major, name, ok := strings.Cut(strings.TrimSpace(lines.Text()), " ")
		if strings.HasPrefix(major, "Block") {
			break
		}
		if n, err := strconv.ParseInt(major, 10, 64); ok && err == nil {
			out[n] = name
		}
	}
	return out
}
