package agent_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
)

// ruin spoils the agent's database.
func ruin(t *testing.T, w *agenttest.World) {
	t.Helper()
	w.Replace = true
	if err := os.WriteFile(w.Path, make([]byte, 1<<16), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A damaged database is set aside and reported. What runs stays, and is supervised again as soon as the registry has said what
// it is; what is older than the containers is refused.
func TestADamagedDatabase(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Publish(t, 7, anApp(1, "web:1"))
		r := w.Start(t)
		w.Committed(t, r, 7)
		before := w.Observe(t)["app-1/web"]
		r.Stop(t)
		ruin(t, w)
		w.Publish(t, 6, anApp(1, "web:2"))
		r = w.Start(t)
		if res := w.Sync(t, r); res.Outcome != status.SyncRefused || res.Code != codes.Rollback {
			t.Errorf("sync with an older generation = %+v, want it refused", res)
		}
		s := r.Status()
		if !hasProblem(s, codes.DatabaseDamaged) || len(s.Security) == 0 || s.Security[0].Code != codes.DatabaseDamaged || s.Security[0].Generation != 7 {
			t.Errorf("problems %+v, security events %+v", s.Problems, s.Security)
		}
		if fi, err := os.Stat(w.Path + ".damaged"); err != nil || fi.Size() != 1<<16 {
			t.Errorf("the damaged file is not kept: %v", err)
		}
		if now := w.Observe(t)["app-1/web"]; now.PID != before.PID {
			t.Errorf("%+v, was %+v", now, before)
		}
		w.Publish(t, 7, anApp(1, "web:1"))
		if res := w.Sync(t, r); res.Outcome != status.SyncInstalled {
			t.Errorf("sync with the same generation = %+v", res)
		}
		if s := r.Status(); hasProblem(s, codes.DatabaseDamaged) || len(s.Security) < 2 {
			t.Errorf("problems %+v, security events %+v, want only the events to stay", s.Problems, s.Security)
		}
		if now := w.Observe(t)["app-1/web"]; now.PID != before.PID {
			t.Errorf("%+v, was %+v", now, before)
		}
	})
}

// Without the runtime nothing says what was accepted: nothing is accepted before it answers.
func TestADamagedDatabaseWaitsForTheRuntime(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory) {
		w.Publish(t, 7, anApp(1, "web:1"))
		r := w.Start(t)
		w.Committed(t, r, 7)
		r.Stop(t)
		ruin(t, w)
		w.Publish(t, 6, anApp(1, "web:2"))
		rt := &away{Memory: m}
		rt.gone.Store(true)
		w.Edit = func(o *agent.Options) { o.Runtime = rt }
		r = w.Start(t)
		time.Sleep(10 * time.Minute)
		if s := r.Status(); s.Accepted != nil || !hasProblem(s, codes.DatabaseDamaged) || !hasProblem(s, codes.Runtime) {
			t.Errorf("accepted %+v, problems %+v", s.Accepted, s.Problems)
		}
		rt.gone.Store(false)
		w.Wait(t, "the refusal", func() bool { return hasProblem(r.Status(), codes.Rollback) })
		if w.Observe(t)["app-1/web"].Status != workload.Running {
			t.Error("what ran does not run any more")
		}
	})
}

// With the database goes the trust policy that was followed. Nothing is accepted by the one of the file before the repository has
// answered: a key that the lost one had revoked would count again.
func TestADamagedDatabaseWaitsForTheTrustPolicy(t *testing.T) {
	inTrust(t, func(t *testing.T, w *agenttest.World, p *policies) {
		w.Publish(t, 7, anApp(1, "web:1"))
		r := w.Start(t)
		w.Committed(t, r, 7)
		r.Stop(t)
		ruin(t, w)
		w.Publish(t, 8, anApp(1, "web:2"))
		p.set(func(p *policies) {
			p.err = &codes.Error{Code: codes.TrustUnreachable, Err: errors.New("no answer")}
		})
		r = w.Start(t)
		if res := w.Sync(t, r); res.Outcome != status.SyncUnreachable || res.Code != codes.TrustUnreachable {
			t.Errorf("sync = %+v, want nothing accepted", res)
		}
		if s := r.Status(); s.Accepted != nil || !hasProblem(s, codes.DatabaseDamaged) || !hasProblem(s, codes.TrustUnreachable) {
			t.Errorf("accepted %+v, problems %+v", s.Accepted, s.Problems)
		}
		p.set(func(p *policies) { p.err = nil })
		if res := w.Sync(t, r); res.Outcome != status.SyncInstalled {
			t.Errorf("sync = %+v", res)
		}
	})
}
