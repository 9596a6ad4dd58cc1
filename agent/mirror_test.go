package agent_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// A mirror that is behind is no attack, and keeps nothing from the device: only the registry itself can say that a tag was moved back.
func TestAMirrorThatIsBehind(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		tag := agenttest.Device.Tag()
		one := w.State(t, 1, nil, anApp(1, "web:1"))
		w.Verifier.Sign(one.Descriptor.Digest)
		w.Registry.Push(agenttest.Repository, one)
		w.Publish(t, 2, anApp(1, "web:1"))
		r := w.Start(t)
		w.Committed(t, r, 2)
		w.Registry.Mirror(agenttest.Repository, tag, one.Descriptor)
		calm := func(when string) {
			t.Helper()
			if s := r.Status(); len(s.Security) != 0 || hasProblem(s, codes.Rollback) {
				t.Errorf("%s: security events %+v, problems %+v, want none of a rollback", when, s.Security, s.Problems)
			}
		}
		if res := w.Sync(t, r); res.Outcome == status.SyncRefused || res.Code != "" {
			t.Errorf("sync past a mirror that is behind = %+v, want nothing new", res)
		}
		calm("a mirror is behind")
		w.Publish(t, 3, anApp(1, "web:2"))
		w.Committed(t, r, 3)
		calm("a new generation past it")
		w.Registry.Fail(func(request string) error {
			if strings.HasPrefix(request, "resolve "+agenttest.Repository) {
				return fault.ErrTemporary
			}
			return nil
		})
		if res := w.Sync(t, r); res.Code != codes.SourceUnreachable {
			t.Errorf("sync where only the mirror answers = %+v, want %s", res, codes.SourceUnreachable)
		}
		calm("only the mirror answers")
		w.Registry.Fail(nil)
		w.Registry.Tag(agenttest.Repository, tag, one.Descriptor) // at the registry itself
		for range 2 {
			if res := w.Sync(t, r); res.Outcome != status.SyncRefused || res.Code != codes.Rollback {
				t.Errorf("sync where the registry shows the old generation too = %+v, want %s", res, codes.Rollback)
			}
		}
		if s := r.Status(); len(s.Security) != 1 {
			t.Errorf("security events = %+v, want one", s.Security)
		}
		w.Publish(t, 4, anApp(1, "web:3"))
		w.Committed(t, r, 4)
	})
}

// A mirror that sends other bytes is a security event, which stays over a restart of the agent and is no problem of what runs.
// However many there are, they are one record, which displaces no other security event.
func TestAMirrorThatLies(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Committed(t, r, 1)
		for n := range 1000 {
			r.MirrorMismatch(fmt.Sprintf("registry.example/plant/state: mirror %d: 3 bytes with another digest arrived", n))
		}
		synctest.Wait()
		told := func(s status.Status) {
			t.Helper()
			if len(s.Security) != 1 || s.Security[0].Code != codes.MirrorDigest || !strings.Contains(s.Security[0].Message, "mirror ") {
				t.Errorf("security events = %+v, want one of %s", s.Security, codes.MirrorDigest)
			}
			if s.Phase != status.PhaseInSync || len(s.Problems) > 0 {
				t.Errorf("phase %s, problems %+v", s.Phase, s.Problems)
			}
		}
		told(r.Status())
		r.Stop(t)
		r.MirrorMismatch("after the end: does not wait")
		r = w.Start(t)
		w.Committed(t, r, 1)
		told(r.Status())
	})
}
