package volumes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/paths"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	volumeOwner = "_owner.json" // who made a volume, for people
	volumeTaken = "_removed"    // begins what was volumeData and is being deleted
)

// noteOwner writes beside a volume's data who uses it. Without it the volume still works, so it is not made durable.
func noteOwner(dir string, p *workload.Project) error {
	own, err := json.Marshal(workload.VolumeOwner{Deployment: p.Deployment, Application: p.Application, Component: p.Component})
	if err != nil {
		return err
	}
	file := filepath.Join(dir, volumeOwner)
	if have, err := os.ReadFile(file); err == nil && string(have) == string(own) {
		return nil
	}
	return os.WriteFile(file, own, 0o600)
}

// Stored lists the named volumes that have data on this device. What a driver mounts is not on it.
func (r *Store) Stored() ([]workload.StoredVolume, error) {
	var out []workload.StoredVolume
	err := errors.Join(storedIn(r.o.DataDir+"/shared", "", &out), func() error {
		projects, err := entries(r.o.DataDir + "/volumes")
		for _, p := range projects {
			err = errors.Join(err, storedIn(filepath.Join(r.o.DataDir, "volumes", p), p, &out))
		}
		return err
	}())
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", failure.Classify(err))
	}
	return out, nil
}

func storedIn(dir, project string, out *[]workload.StoredVolume) error {
	names, err := entries(dir)
	for _, name := range names {
		inside, ierr := entries(filepath.Join(dir, name))
		err = errors.Join(err, ierr)
		v := workload.StoredVolume{Project: project, Name: name}
		stored := false
		for _, e := range inside {
			stored = stored || e == volumeData || strings.HasPrefix(e, volumeTaken)
		}
		if !stored {
			continue
		}
		if own, err := os.ReadFile(filepath.Join(dir, name, volumeOwner)); err == nil {
			_ = json.Unmarshal(own, &v.VolumeOwner) // torn by a power cut: then it is not known
		}
		*out = append(*out, v)
	}
	return err
}

// entries are the names in a directory; none when it is not there, or no directory.
func entries(dir string) (out []string, err error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out, err
}

// Size is how many bytes of the disk a volume takes. Files that go while it measures do not count. project "" is
// of those that all projects share.
func (r *Store) Size(ctx context.Context, project, name string) (int64, error) {
	dir, err := r.storedDir(project, name)
	if err != nil {
		return 0, err
	}
	var sum int64
	linked := map[uint64]bool{} // files with several names count once
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = d.Info()
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && (info.IsDir() || st.Nlink < 2 || !linked[st.Ino]) {
			linked[st.Ino] = true
			sum += st.Blocks * 512
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("measure volume %s: %w", name, failure.Classify(err))
	}
	return sum, nil
}

// HasShared reports whether there is a volume that all projects share.
func (r *Store) HasShared(name string) bool {
	dir, err := r.storedDir("", name)
	return err == nil && paths.Exists(dir)
}

func (r *Store) storedDir(project, name string) (string, error) {
	v := workload.Volume{Name: name}
	if project == "" {
		v.Shared = name
	}
	return r.rootOf(project, v)
}

// Take takes a volume's data away at once, also from one that is made anew with its name; free deletes it, which may take
// long. What a kill leaves of that is listed, and is taken once more.
func (r *Store) Take(ctx context.Context, project, name string) (free func(context.Context) error, err error) {
	dir, err := r.storedDir(project, name)
	if err != nil {
		return nil, err
	}
	unlock, err := r.locks.Lock(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no volume %s: %w", name, fault.ErrNotFound)
	}
	taken, err := os.MkdirTemp(dir, volumeTaken)
	if err == nil {
		err = os.Rename(filepath.Join(dir, volumeData), filepath.Join(taken, volumeData))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // taken already: the rest of it is deleted
		return nil, fmt.Errorf("remove volume %s: %w", name, failure.Classify(err))
	}
	return func(ctx context.Context) error {
		if err := r.freeVolume(ctx, dir); err != nil {
			return fmt.Errorf("remove volume %s: %w", name, failure.Classify(err))
		}
		return nil
	}, nil
}

// freeVolume deletes what was taken of a volume, and its directories when nothing else is in them.
func (r *Store) freeVolume(ctx context.Context, dir string) error {
	inside, err := entries(dir)
	for _, name := range inside {
		if strings.HasPrefix(name, volumeTaken) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, name)))
		}
	}
	if err != nil {
		return err
	}
	unlock, err := r.locks.Lock(ctx, dir)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(filepath.Join(dir, volumeData)); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err // made anew
	}
	if err := os.Remove(filepath.Join(dir, volumeOwner)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Remove(d); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}
