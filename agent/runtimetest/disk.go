package runtimetest

import (
	"context"

	"github.com/longshore-dev/longshore/agent/workload"
)

func (m *Memory) Space(ctx context.Context) ([]workload.Space, error) {
	if m.Disks == nil {
		return nil, ctx.Err()
	}
	return m.Disks(), ctx.Err()
}

func (m *Memory) Footprint(ctx context.Context, project string) (int64, error) {
	if m.Taken == nil {
		return 0, ctx.Err()
	}
	return m.Taken(project), ctx.Err()
}

func (m *Memory) starting(ctx context.Context, id string) error {
	m.mu.Lock()
	c, ok := m.objects[id]
	if m.Starting == nil || !ok {
		m.mu.Unlock()
		return nil
	}
	o, image := c.Observation, m.images[c.Image]
	m.mu.Unlock()
	return m.Starting(ctx, o, image)
}
