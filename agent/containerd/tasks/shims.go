package tasks

import (
	"context"
	"sync"

	"github.com/longshore-dev/longshore/agent/containerd/locks"
)

// shims serializes the start of the tasks of a group until they share a shim.
//
// The first task starts the shim. When several start at the same time, each may find a socket without a listener and replace it:
// then only one shim serves the tasks, and the others never exit. So a task starts alone, unless another of its group has
// started since its request.
type shims struct {
	alone *locks.Table // by group

	mu    sync.Mutex
	begun map[string]uint64 // tasks by group, since the agent's start
}

func newShims() *shims { return &shims{alone: locks.New(), begun: map[string]uint64{}} }

// begin calls do, which creates and starts a task, and removes one that did not start. The group is that of [Tasks.Run].
func (s *shims) begin(ctx context.Context, group string, do func() error) error {
	if group == "" {
		return do()
	}
	before := s.count(group)
	unlock, err := s.alone.Lock(ctx, group)
	if err != nil {
		return err
	}
	if s.count(group) != before {
		unlock()
	} else {
		defer unlock()
	}
	if err := do(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun[group]++
	return nil
}

func (s *shims) count(group string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun[group]
}

// forget removes a group that no longer exists.
func (s *shims) forget(group string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.begun, group)
}
