package approve

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/testenv"
)

// stage is a moment of a change.
type stage struct {
	name  string
	kinds []plan.Kind                                // of changes that have it
	cut   func(p *press, app string, approve func()) // approves, and returns at the moment
}

func stages() []stage {
	all := []plan.Kind{plan.Images, plan.Configuration, plan.Parameters, plan.Removal}
	return []stage{
		{"approval", all, func(p *press, _ string, approve func()) {
			p.synced()
			approve()
		}},
		{"staging", all[:1], func(p *press, _ string, approve func()) {
			p.Registry.Faults.Add(testenv.Rule{Method: "GET", Path: "/plant/line/blobs/", Effect: p.Registry.Faults.Stall(10)})
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
			p.until("the container is stopped", func() error {
				if _, err := os.Stat(fmt.Sprintf("/proc/%d", old)); err == nil {
					return fmt.Errorf("process %d runs", old)
				}
				return nil
			})
		}},
		{"probation", all[:3], func(p *press, app string, approve func()) {
			p.synced()
			old := p.process(app)
			approve()
			p.until("the new container runs", func() error {
				c, err := p.change(p.t.Context(), app)
				if err != nil {
					return err
				}
				if c == nil {
					p.t.Fatal("its probation is over already")
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

// The power goes at every stage of a change that somebody approved, beside one that nobody did: the first is made once, who approved it is
// known, the second stays unmade. A run takes each stage with another kind of change and another road, nightly with all of them.
func TestPowerCuts(t *testing.T) {
	t.Parallel()
	p := newPress(t, "cuts", "10.207.0.0/16")
	p.apps["line"] = "    stop_grace_period: 1s\n    environment: {GREETING: \"${GREETING:-none}\"}\n    deploy: {update_config: {monitor: 3s}}\n"
	p.boot()
	p.kinds = "images, parameters, configuration, removal"
	roads := p.roads()
	made := map[plan.Kind]kindOfChange{}
	for _, k := range kindsOfChange() {
		made[k.kind] = k
	}
	p.publish("other")
	p.synced()
	other := p.waits("other", codes.ApprovalNeeded)
	first, n := rand.IntN(len(roads)*12), 0
	for round := range testenv.Rounds(1, 4*len(roads)) {
		for i, s := range stages() {
			if round >= len(s.kinds)*len(roads) {
				continue // nightly: each kind by each road once
			}
			k, r := made[s.kinds[(first+i+round)%len(s.kinds)]], roads[(first+i+round/len(s.kinds))%len(roads)]
			n++
			if !t.Run(fmt.Sprintf("%s of %s by %s", s.name, k.kind, r.name), func(t *testing.T) {
				p.t = t
				if k.kind == plan.Removal {
					fresh := made[plan.Install].publish(p, n)
					p.synced()
					p.applied(fresh)
				}
				app := k.publish(p, n)
				var approved status.Change
				s.cut(p, app, func() {
					approved = p.waits(app, codes.ApprovalNeeded)
					r.approve(p, approved)
				})
				p.must(p.Box.PowerCut(t.Context(), p.disk, p.Containerd, p.Path("run"), filepath.Join(p.Containerd.Dir, "s")))
				p.Registry.Faults.Clear()
				p.must(p.Containerd.Start(t.Context()))
				p.must(p.Agent.Start())
				p.answers()
				k.made(p, app, n)
				if n := p.told(approved, "approved by "+r.by(approved)); n != 1 {
					t.Errorf("who approved is told %d times", n)
				}
				p.until("everything runs again", func() error {
					if line, other := p.process("line"), p.process("other"); line == 0 || other == 0 {
						return fmt.Errorf("processes %d and %d", line, other)
					}
					return nil
				})
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
