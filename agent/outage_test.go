package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// away is a runtime that answers nothing at times.
type away struct {
	*runtimetest.Memory
	gone  atomic.Bool
	looks atomic.Int64
}

func (r *away) Observe(ctx context.Context) (workload.Observed, error) {
	r.looks.Add(1)
	if r.gone.Load() {
		return workload.Observed{}, fault.ErrTemporary
	}
	return r.Memory.Observe(ctx)
}

func TestTheLoopRestsWhileTheRuntimeIsAway(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		rt := &away{Memory: m}
		w.Env.Runtime = func(*testing.T) agent.Runtime { return rt }
		var passes atomic.Int64 // every pass of the loop asks for the time
		w.Env.Now = func() time.Time { passes.Add(1); return time.Now() }
		s := w.State(t, 1, func(o *artifacts.StateOptions) { o.Expires = time.Now().Add(30 * time.Minute) }, anApp(1, "web:1"))
		w.Verifier.Sign(s.Descriptor.Digest)
		w.Registry.Push(agenttest.Repository, s, agenttest.Device.Tag())
		r := w.Start(t)
		w.Sync(t, r)
		time.Sleep(time.Minute)
		rt.gone.Store(true)
		w.Wait(t, "the problem", func() bool { return r.Status().Phase == status.PhaseUnavailable })
		passes.Store(0)
		rt.looks.Store(0)
		time.Sleep(time.Hour)
		if n := passes.Load(); n > 5000 {
			t.Errorf("the clock was read %d times in an hour without a runtime", n)
		}
		if n := rt.looks.Load(); n < 200 || n > 300 {
			t.Errorf("%d looks in an hour, want one in 15 s", n)
		}
		rt.gone.Store(false)
		w.Wait(t, "the runtime is back, the state is stale", func() bool { return r.Status().Stale })
	})
}

// slow is a runtime whose looks take a while.
type slow struct {
	*runtimetest.Memory
	held atomic.Pointer[chan struct{}] // nil: they do not
}

func (r *slow) Observe(ctx context.Context) (workload.Observed, error) {
	if c := r.held.Load(); c != nil {
		<-*c // whatever ctx says
	}
	return r.Memory.Observe(ctx)
}

// TestAHangingLookHoldsNothingUp: while the runtime does not answer, checks, answers to those who ask and pulls go on. Its answer
// counts however late it is.
func TestAHangingLookHoldsNothingUp(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		rt := &slow{Memory: m}
		w.Env.Runtime = func(*testing.T) agent.Runtime { return rt }
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Committed(t, r, 1)
		free := make(chan struct{})
		rt.held.Store(&free)
		o, err := m.Observe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Exit(o.Containers[0].ID, 1); err != nil { // asks for a look
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		w.Publish(t, 2, anApp(1, "web:2"))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		asked := time.Now()
		go func() { _, _ = r.Sync(ctx) }() // ends with the test
		w.Wait(t, "the new generation is accepted", func() bool { a := r.Status().Accepted; return a != nil && a.Generation == 2 })
		if took := time.Since(asked); took > 5*time.Second {
			t.Errorf("the check took %v beside a runtime that hangs", took)
		}
		w.Wait(t, "the runtime is a problem", func() bool { return r.Status().Phase == status.PhaseUnavailable })
		close(free)
		w.Committed(t, r, 2)
	})
}

// TestLateLooksCount: a runtime that always takes longer than the loop waits is still one that the device can be run with.
func TestLateLooksCount(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		rt := &late{m}
		w.Env.Runtime = func(*testing.T) agent.Runtime { return rt }
		w.Publish(t, 1, anApp(1, "web:1"), anApp(2, "web:1"))
		w.Committed(t, w.Start(t), 1)
	})
}

type late struct{ *runtimetest.Memory }

func (r *late) Observe(ctx context.Context) (workload.Observed, error) {
	o, err := r.Memory.Observe(ctx)
	time.Sleep(5 * time.Second)
	return o, err
}

func TestTheLoopRestsWhileTheStoreCannotBeWritten(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		s := w.State(t, 1, func(o *artifacts.StateOptions) { o.Expires = time.Now().Add(30 * time.Minute) }, anApp(1, "web:1"))
		w.Verifier.Sign(s.Descriptor.Digest)
		w.Registry.Push(agenttest.Repository, s, agenttest.Device.Tag())
		var full atomic.Bool
		var passes, writes atomic.Int64
		o := w.Options(t)
		o.Now = func() time.Time { passes.Add(1); return time.Now() }
		st, err := store.Open(store.Options{Path: w.Path, Device: string(agenttest.Device), Commit: func(bool) error {
			if full.Load() {
				writes.Add(1)
				return errors.New("no space")
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		o.Store = st
		a, err := agent.New(o)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- a.Run(ctx) }()
		w.Wait(t, "in sync", func() bool { return a.Status().Phase == status.PhaseInSync })
		synctest.Wait()
		full.Store(true)
		time.Sleep(30 * time.Minute) // the expiry must be saved and cannot
		passes.Store(0)
		writes.Store(0)
		time.Sleep(time.Hour)
		if n := passes.Load(); n > 20_000 {
			t.Errorf("the clock was read %d times in an hour without a disk", n)
		}
		if n := writes.Load(); n < 600 || n > 800 {
			t.Errorf("%d writes were tried in an hour, want one in 5 s", n)
		}
		full.Store(false)
		w.Wait(t, "the expiry is saved", func() bool { return a.Status().Stale })
		cancel()
		if err := errors.Join(<-done, st.Close()); err != nil {
			t.Error(err)
		}
	})
}

// starter is a runtime whose starts hang.
type starter struct {
	*runtimetest.Memory
	calls atomic.Int64
}

func (s *starter) Start(ctx context.Context, _ *workload.Project, _ workload.Container) error {
	s.calls.Add(1)
	<-ctx.Done()
	return ctx.Err()
}

// lines is a log that is read while it is written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// take returns what was written since it was asked last.
func (l *lines) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

func TestStepThatHangsIsTold(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		var log lines
		w.Log = slog.New(slog.NewTextHandler(&log, nil))
		s := &starter{Memory: m}
		w.Env.Runtime = func(*testing.T) agent.Runtime { return s }
		w.Publish(t, 1, anApp(1, "web:1"))
		w.Start(t)
		w.Wait(t, "a start", func() bool { return s.calls.Load() > 0 })
		synctest.Wait()
		calls := s.calls.Load()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := strings.Count(log.take(), "a step takes long"); int64(n) != calls {
			t.Errorf("%d long starts are told %d times", calls, n)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		told := log.take()
		if n := strings.Count(told, "it is tried again"); n < 2 || n > 6*int(calls) {
			t.Errorf("an hour of starts that fail is told %d times:\n%s", n, told)
		}
	})
}

// What could not be fetched is named once: the source names it.
func TestWhatIsNotFetchedIsNamedOnce(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		r := w.Start(t)
		for _, kind := range []string{"manifest ", "blob "} {
			w.Registry.Fail(func(request string) error {
				if strings.HasPrefix(request, kind) {
					return fmt.Errorf("fetch %s: connection refused: %w", request, fault.ErrTemporary)
				}
				return nil
			})
			w.Publish(t, 1, anApp(1, "web:1"))
			w.Wait(t, "the registry does not answer", func() bool {
				p := r.Status().Problems
				return len(p) == 1 && p[0].Code == codes.SourceUnreachable && strings.Contains(p[0].Message, "fetch "+kind) && strings.Count(p[0].Message, "sha256:") == 1
			})
		}
	})
}
