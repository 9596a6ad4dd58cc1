package tasks

import (
	"context"
	"sync"

	"github.com/longshore-dev/longshore/agent/containerd/locks"
)

// shims has the tasks of a group find the shim that they share.
//
// A shim begins with the first task. Of several that begin at the same moment, each may find a socket where nothing listens yet, or
// nothing any more, and put its own in its place: all but one shim then serve nothing and stay. So a task begins alone, unless another
// of its group began since it asked.
type shims struct {
	alone *locks.Table // by group

	mu    sync.Mutex
	begun map[string]uint64 // tasks by group, since the agent's start
}

func newShims() *shims { return &shims{alone: locks.New(), begun: map[string]uint64{}} }

// begin calls do, which makes a task, starts it, and removes one that did not start. The group is that of [Tasks.Run].
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

// forget is for a group that is gone.
func (s *shims) forget(group string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.begun, group)
}
