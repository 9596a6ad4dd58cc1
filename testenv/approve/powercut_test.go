package approve

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/testenv"
)

// stage is a moment of a change.
type stage struct {
	name  string
	kinds []plan.Kind                                // of changes that have it
	cut   func(p *press, app string, approve func()) // approves, and returns at the moment
}

func stages() []stage {
	all := []plan.Kind{plan.Install, plan.Images, plan.Configuration, plan.Parameters, plan.Removal}
	return []stage{
		{"approval", all, func(p *press, _ string, approve func()) {
			p.synced()
			approve()
		}},
		{"approval", []plan.Kind{plan.TrustPolicy}, func(p *press, _ string, approve func()) {
			p.synced()
			approve()
		}},
		{"staging", all[:2], func(p *press, app string, approve func()) {
			p.Registry.Faults.Add(testenv.Rule{Method: "GET", Path: "/plant/" + app + "/blobs/", Effect: p.Registry.Faults.Stall(10)})
			p.lookAt(func() {
				p.until("the layers are asked for", func() error {
					if p.Registry.Faults.Hits() == 0 { // a request that hangs is not among the requests yet
						return errors.New("not yet")
					}
					return nil
				})
				approve()
			})
		}},
		{"apply", all, func(p *press, app string, approve func()) {
			p.synced()
			old := p.process(app)
			approve()
			if old == 0 { // it is installed
				p.until("the change begins", func() error {
					c, err := p.change(p.t.Context(), app)
					if err == nil && c != nil && c.Begun.IsZero() {
						err = fmt.Errorf("it waits for %+v", c.Waiting)
					}
					return err
				})
				return
			}
			p.stops(old)
		}},
		{"probation", all[:4], func(p *press, app string, approve func()) {
			p.synced()
			old := p.process(app)
			approve()
			p.until("the new container runs", func() error {
				c, err := p.change(p.t.Context(), app)
				if err != nil {
					return err
				}
				if c == nil { // on a busy machine it may be over, and the power goes after it
					p.t.Log("its probation is over already")
					return nil
				}
				if now := p.process(app); now == 0 || now == old {
					return fmt.Errorf("process %d runs", now)
				}
				return nil
			})
		}},
	}
}

// process is the first one of an application; 0: none runs.
func (p *press) process(app string) uint32 {
	p.t.Helper()
	d, err := p.deployment(app)
	p.must(err)
	if s := d.Components[0].Services; len(s) > 0 {
		return s[0].PID
	}
	return 0
}

// complete reports an application that does not run.
func (p *press) complete() error {
	s, err := p.Status(p.t.Context())
	if err != nil {
		return err
	}
	for _, d := range s.Deployments {
		if x := d.Components[0].Services; len(x) != 1 || x[0].PID == 0 {
			return fmt.Errorf("%s is %+v", d.Name, d)
		}
	}
	return nil
}

// stops waits until a process is gone.
func (p *press) stops(pid uint32) {
	p.t.Helper()
	p.until("the container is stopped", func() error {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			return fmt.Errorf("process %d runs", pid)
		}
		return nil
	})
}

// The power goes at every stage of a change that somebody approved, beside one that nobody did: the first is made once, who approved it is
// known, the second stays unmade. Then it goes while somebody rolls the device back, and releases it. A run takes each stage with another kind
// of change and another road, nightly with all of them.
func TestPowerCuts(t *testing.T) {
	t.Parallel()
	p := newPress(t, "cuts", "10.207.0.0/16")
	const settings = "    stop_grace_period: 1s\n    environment: {GREETING: \"${GREETING:-none}\"}\n    deploy: {update_config: {monitor: 3s}}\n"
	p.apps["line"] = settings
	p.pushPolicy()
	p.boot("--policy", p.Path("policy.yaml"))
	p.kinds = "install, images, parameters, configuration, removal, trust"
	roads := p.roads()
	made := map[plan.Kind]kindOfChange{}
	for _, k := range append(kindsOfChange(), ofTrust()) {
		made[k.kind] = k
	}
	p.publish("other")
	p.synced()
	other := p.waits("other", codes.ApprovalNeeded)
	first, n := rand.IntN(len(roads)*20), 0
	for round := range testenv.Rounds(1, 5*len(roads)) {
		for i, s := range stages() {
			if round >= len(s.kinds)*len(roads) {
				continue // nightly: each kind by each road once
			}
			k, r := made[s.kinds[(first+i+round)%len(s.kinds)]], roads[(first+i+round/len(s.kinds))%len(roads)]
			n++
			if !t.Run(fmt.Sprintf("%s of %s by %s", s.name, k.kind, r.name), func(t *testing.T) {
				p.t = t
				fresh := fmt.Sprintf("fresh-%d", n)
				p.apps[fresh] = settings
				if k.kind == plan.Removal {
					made[plan.Install].publish(p, n)
					p.synced()
					roads[0].approve(p, p.waits(fresh, codes.ApprovalNeeded))
					p.applied(fresh)
				}
				app := k.publish(p, n)
				var approved status.Change
				s.cut(p, app, func() {
					approved = p.waits(app, codes.ApprovalNeeded)
					r.approve(p, approved)
				})
				p.powerCut()
				k.made(p, app, n)
				p.decides(p.policy)
				if n := p.told(approved, "approved by "+r.by(approved)); n != 1 {
					t.Errorf("who approved is told %d times", n)
				}
				p.until("everything runs again", p.complete)
				now := p.processes()
				p.synced()
				if c := p.waits("other", codes.ApprovalNeeded); c.ID != other.ID || !c.Since.Equal(other.Since) {
					t.Errorf("the other change is %+v, was %+v", c, other)
				}
				p.unmoved(now, "after a look at the registry")
			}) {
				t.Log(p.Logs())
				return
			}
		}
	}
	p.t = t
	if _, err := p.as(member, "approve", "other"); err != nil {
		t.Fatal(err)
	}
	p.applied("other")
	p.must(p.Settled(t.Context(), p.generation, limit))

	roads = slices.DeleteFunc(roads, func(r road) bool { return r.back == nil })
	for round := range testenv.Rounds(1, len(roads)*len(moments)) {
		m, r := (first+round/len(roads))%len(moments), roads[(first+round)%len(roads)]
		if !t.Run(fmt.Sprintf("rollback, %s, by %s", moments[m], r.name), func(t *testing.T) {
			p.t = t
			p.backWithCuts(r, m, round)
		}) {
			t.Log(p.Logs())
			return
		}
	}
	p.t = t
}

// moments of a rollback by hand.
var moments = []string{"as it is ordered", "as the container is stopped", "as the one before runs"}

// backWithCuts updates line, rolls it back by a road, has the power go at a moment, releases it again and has the power go at once.
func (p *press) backWithCuts(r road, moment, n int) {
	ctx, by, component, image := p.t.Context(), r.by(status.Change{}), p.pushed["line"], p.images["line"]
	last, err := p.Status(ctx)
	p.must(err)
	p.release("line")
	p.synced()
	p.orders(p.Control, "approve", "line")
	p.applied("line")
	p.must(p.Settled(ctx, p.generation, limit))
	old, releases := p.process("line"), p.holds("released by "+by)
	before := func() error { return p.runs("line", component, image) }

	reason := fmt.Sprintf("line 3 stops, %d", n)
	r.back(p, reason)
	if moment > 0 {
		p.stops(old)
	}
	if moment > 1 {
		p.until("the container before runs", func() error {
			if p.process("line") == 0 {
				return errors.New("none does")
			}
			return nil
		})
	}
	p.powerCut()
	p.until("it is back, and held", func() error {
		s, err := p.Status(ctx)
		if err == nil && (s.Hold == nil || s.Hold.By != by || s.Hold.Reason != reason || s.Committed.Generation != last.Committed.Generation || s.Progress.Phase != store.PhaseRolledBack) {
			err = fmt.Errorf("hold %+v, committed %+v, progress %+v", s.Hold, s.Committed, s.Progress)
		}
		return err
	})
	p.until("the version before runs", before)
	now := p.processes()
	p.synced()
	p.unmoved(now, "held, after a look at the registry")
	if n := p.holds(fmt.Sprintf("rolled back by %s: %s", by, reason)); n != 1 {
		p.t.Errorf("the rollback is told %d times", n)
	}

	r.release(p)
	p.powerCut()
	c := p.waits("line", codes.ApprovalNeeded)
	p.until("line runs again, as before", before)
	if s, err := p.Status(ctx); err != nil || s.Hold != nil {
		p.t.Errorf("released, it is held: %+v, %v", s.Hold, err)
	}
	if n := p.holds("released by " + by); n != releases+1 {
		p.t.Errorf("the release is told %d times, before %d times", n, releases)
	}
	r.approve(p, c)
	p.applied("line")
	p.must(p.Settled(ctx, p.generation, limit))
}

// holds is how often the events of rollbacks by hand have a message.
func (p *press) holds(message string) (n int) {
	p.t.Helper()
	for _, e := range p.events(status.EventHold) {
		if e.Message == message {
			n++
		}
	}
	return n
}

// powerCut cuts the power and has the device boot.
func (p *press) powerCut() {
	p.t.Helper()
	p.must(p.Box.PowerCut(p.t.Context(), p.disk, p.Containerd, p.Path("run"), filepath.Join(p.Containerd.Dir, "s")))
	p.Registry.Faults.Clear()
	p.must(p.Containerd.Start(p.t.Context()))
	p.must(p.Agent.Start())
	p.answers()
}

// lookAt has the agent look while something is done: its answer may never come.
func (p *press) lookAt(do func()) {
	ctx, cancel := context.WithTimeout(p.t.Context(), limit)
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		_, _ = p.Control(ctx, "sync") // it ends with the power
	}()
	do()
	cancel()
	<-asked
}
