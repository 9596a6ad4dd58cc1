package site

import (
	"context"
	"sync"

	"github.com/longshore-dev/longshore/registry"
)

// Snapshots opens each repository of a source once, for one run: see [registry.Repository.Snapshot].
func Snapshots(from Source) Source {
	return &snapshots{from: from, opened: map[string]func() (*registry.Repository, error){}}
}

type snapshots struct {
	from   Source
	mu     sync.Mutex
	opened map[string]func() (*registry.Repository, error)
}

// OpenName implements [Source].
func (s *snapshots) OpenName(ctx context.Context, name string) (*registry.Repository, error) {
	s.mu.Lock()
	open := s.opened[name]
	if open == nil {
		open = sync.OnceValues(func() (*registry.Repository, error) {
			repo, err := s.from.OpenName(ctx, name)
			if err != nil {
				return nil, err
			}
			return repo.Snapshot(ctx)
		})
		s.opened[name] = open
	}
	s.mu.Unlock()
	return open()
}
