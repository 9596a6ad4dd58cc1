package site

import (
	"context"
	"sync"

	"github.com/longshore-dev/longshore/registry"
)

// Snapshots opens each repository of a source once, for one run: see [registry.Repository.Snapshot].
func Snapshots(from Source) Source {
	return &snapshots{from: from, opened: map[string]*opened{}}
}

type snapshots struct {
	from   Source
	mu     sync.Mutex
	opened map[string]*opened
}

type opened struct {
	once sync.Once
	repo *registry.Repository
	err  error
}

// OpenName implements [Source].
func (s *snapshots) OpenName(ctx context.Context, name string) (*registry.Repository, error) {
	s.mu.Lock()
	o := s.opened[name]
	if o == nil {
		o = &opened{}
		s.opened[name] = o
	}
	s.mu.Unlock()
	o.once.Do(func() {
		if o.repo, o.err = s.from.OpenName(ctx, name); o.err == nil {
			o.repo, o.err = o.repo.Snapshot(ctx)
		}
	})
	return o.repo, o.err
}
