package tasks

import (
	"context"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/agent/containerd/process"
)

// shimLook is how often to look for a shim that is being started, while another task waits for it.
const shimLook = 2 * time.Millisecond

// shims serializes the creation of the tasks of a group until they share a shim.
//
// The first task starts the shim. When several start at the same time, each may find a socket without a listener and replace it:
// then only one shim serves the tasks, and the others never exit. So a task is created alone, unless another of its group has been
// created since its request. As soon as the shim listens, one more may be created beside it: only one, because the shim exits if the
// first one fails.
type shims struct {
	mu     sync.Mutex
	groups map[string]*group
}

type group struct {
	alone   chan struct{} // has room for the task that is created alone
	created chan struct{} // closed, and replaced, when a task has been created
	waiting int           // tasks that wait for one of them
}

func newShims() *shims { return &shims{groups: map[string]*group{}} }

// turn is the right of a task to be created.
type turn struct {
	s     *shims
	group *group // nil: the task has a shim of its own
	alone bool   // the next one waits until this one leaves
	leave func() // lets the next one be created; may be called again
}

// enter waits until a task of a group may be created. The caller calls leave in the end. The group is that of [Tasks.Run].
func (s *shims) enter(ctx context.Context, name string) (turn, error) {
	if name == "" {
		return turn{s: s, leave: func() {}}, nil
	}
	s.mu.Lock()
	g := s.groups[name]
	if g == nil {
		g = &group{alone: make(chan struct{}, 1), created: make(chan struct{})}
		s.groups[name] = g
	}
	g.waiting++
	created := g.created
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		g.waiting--
	}()
	select {
	case g.alone <- struct{}{}:
		return turn{s, g, true, sync.OnceFunc(func() { <-g.alone })}, nil
	case <-created:
		return turn{s, g, false, func() {}}, nil
	case <-ctx.Done():
		return turn{}, ctx.Err()
	}
}

// created lets all tasks be created that wait: the shim serves this one, so it stays.
func (t turn) created() {
	if t.group == nil {
		return
	}
	t.s.mu.Lock()
	close(t.group.created)
	t.group.created = make(chan struct{})
	t.s.mu.Unlock()
	t.leave()
}

// awaited reports whether another task waits.
func (t turn) awaited() bool {
	if t.group == nil {
		return false
	}
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.group.waiting > 0
}

// forget removes a group that no longer exists.
func (s *shims) forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.groups, name)
}

// leaveEarly ends a turn when the shim that containerd starts for a task runs: it listens by then. The caller calls stop when the task
// has been created, or has not.
func (t *Tasks) leaveEarly(id string, turn turn) (stop func()) {
	if !turn.alone {
		return func() {}
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		old := processes("/proc")
		tick := time.NewTicker(shimLook)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-done:
				return
			}
			if turn.awaited() && slices.ContainsFunc(processes("/proc"), func(pid int) bool { return !slices.Contains(old, pid) && t.serves(pid, id) }) {
				turn.leave()
				return
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

// serves reports whether a process is the shim that was started for a task.
func (t *Tasks) serves(pid int, id string) bool {
	args := process.CommandLine(pid, "/proc")
	return isServing(args, t.namespace) && hasFlag(args, "-id", id)
}

// processes are the processes of this machine; none where they cannot be listed.
func processes(proc string) (pids []int) {
	dir, err := os.Open(proc)
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // those up to an error
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
