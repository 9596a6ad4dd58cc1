package runtimetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Volumes maps "project/volume" to its content; writing to it is up to [Memory.Write].
func (m *Memory) Volumes() map[string]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.volumes)
}

// Write puts content into a volume that exists.
func (m *Memory) Write(volume, content string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.volumes[volume]; !ok {
		return fmt.Errorf("write volume %s: %w", volume, fault.ErrNotFound)
	}
	m.volumes[volume] = content
	return nil
}

// StoredVolumes lists volumes, whatever projects there are.
func (m *Memory) StoredVolumes(ctx context.Context) (out []workload.StoredVolume, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(m.volumes)) {
		out = append(out, m.owners[id])
	}
	return out, ctx.Err()
}

// VolumeSize counts what was written into a volume.
func (m *Memory) VolumeSize(ctx context.Context, project, name string) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return int64(len(m.volumes[project+"/"+name])), ctx.Err()
}

func (m *Memory) TakeVolume(ctx context.Context, project, name string) (free func(context.Context) error, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.volumes[project+"/"+name]; !ok {
		return nil, fmt.Errorf("remove volume %s: %w", name, fault.ErrNotFound)
	}
	delete(m.volumes, project+"/"+name)
	m.note("take", project+"/"+name)
	return func(ctx context.Context) error { return ctx.Err() }, nil
}

// ReadVolumeFile reads what was written into a volume: the content of its only file. An empty one is no file.
func (m *Memory) ReadVolumeFile(ctx context.Context, project string, v workload.Volume, name string, _ int64) ([]byte, time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.VolumeFile != nil {
		if err := m.VolumeFile(); err != nil {
			return nil, time.Time{}, err
		}
	}
	content := m.volumes[project+"/"+v.Name]
	if content == "" {
		return nil, time.Time{}, fmt.Errorf("read %s of volume %s: %w", name, v.Name, fault.ErrNotFound)
	}
	return []byte(content), m.Now(), ctx.Err()
}
