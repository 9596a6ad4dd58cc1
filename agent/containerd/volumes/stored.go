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
	volumeOwner = "_owner.json" // owner of a volume, for display
	volumeTaken = "_removed"    // prefix of a volumeData that is being deleted
)

// noteOwner writes the owner of a volume beside its data. The volume works without it, so it is not synced.
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

// Stored lists the named volumes that have data on this device, without mounts of drivers.
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
			_ = json.Unmarshal(own, &v.VolumeOwner) // damaged by a power cut: the owner is unknown
		}
		*out = append(*out, v)
	}
	return err
}

// entries are the names in a directory; none when it does not exist, or is no directory.
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

// Size is the disk usage of a volume in bytes. Files that are removed meanwhile do not count. project "": a shared volume.
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

// Take removes a volume's data at once, so that a new volume of its name is empty; free deletes it, which may take long. After a kill the
// rest is listed, and can be taken again.
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

// freeVolume deletes the taken data of a volume, and its directories when they are empty.
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
		return err // created again
	}
	for _, name := range []string{volumeOwner, volumeEmpty, volumeCopy, volumeFiller} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := paths.Remove(d); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}
