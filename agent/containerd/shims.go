package containerd

import (
	"context"
	"sync"

	"github.com/longshore-dev/longshore/agent/containerd/locks"
)

// shims has the tasks of a project find the shim that they share.
//
// A shim begins with the first task. Of several that begin at the same moment, each may find a socket where nothing listens yet, or
// nothing any more, and put its own in its place: all but one shim then serve nothing and stay. So a task is made alone, unless another
// of its project was made since it asked: then the shim is there.
type shims struct {
	alone *locks.Table // by project

	mu   sync.Mutex
	made map[string]uint64 // tasks by project, since the agent's start
}

func newShims() *shims { return &shims{alone: locks.New(), made: map[string]uint64{}} }

// begin calls do, which makes a task.
func (s *shims) begin(ctx context.Context, project string, do func() error) error {
	before := s.count(project)
	unlock, err := s.alone.Lock(ctx, project)
	if err != nil {
		return err
	}
	if s.count(project) != before {
		unlock()
	} else {
		defer unlock()
	}
	if err := do(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made[project]++
	return nil
}

func (s *shims) count(project string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made[project]
}

// forget is for a project that is gone.
func (s *shims) forget(project string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.made, project)
}
