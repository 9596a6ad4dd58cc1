package approve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/testenv"
)

// The power goes at every stage of a change that somebody approved, beside one that nobody did: the first is made once, who approved it is
// known, the second stays unmade.
func TestPowerCuts(t *testing.T) {
	p := newPress(t, "cuts", "10.207.0.0/16")
	p.apps["line"] = "    stop_grace_period: 1s\n    deploy: {update_config: {monitor: 1500ms}}\n"
	p.boot()
	p.publish("other")
	p.synced()
	other := p.waits("other", codes.ApprovalNeeded)
	stages := []struct {
		name string
		cut  func(p *press) // approves, and returns at the moment
	}{
		{"approval", func(p *press) {
			p.synced()
			p.approveLine()
		}},
		{"staging", func(p *press) {
			p.Registry.Faults.Add(testenv.Rule{Method: "GET", Path: "/plant/line/blobs/", Effect: p.Registry.Faults.Stall(10)})
			p.lookAt(func() {
				p.until("the layers are asked for", func() error {
					if p.Registry.Faults.Hits() == 0 { // a request that hangs is not among the requests yet
						return errors.New("not yet")
					}
					return nil
				})
				p.approveLine()
			})
		}},
		{"apply", func(p *press) {
			p.synced()
			d, err := p.deployment("line")
			p.must(err)
			old := d.Components[0].Services[0].PID
			p.approveLine()
			p.until("the container is replaced", func() error {
				if _, err := os.Stat(fmt.Sprintf("/proc/%d", old)); err == nil {
					return fmt.Errorf("process %d runs", old)
				}
				return nil
			})
		}},
		{"probation", func(p *press) {
			p.synced()
			p.approveLine()
			p.until("the new container runs", func() error {
				c, err := p.change(p.t.Context(), "line")
				if err != nil {
					return err
				}
				if c == nil {
					p.t.Fatal("its probation is over already")
				}
				d, err := p.deployment("line")
				if err == nil && (d.Components[0].Revision != fmt.Sprintf("1.0.%d", p.generation) || d.Components[0].Services[0].PID == 0) {
					err = fmt.Errorf("it is %+v", d.Components[0])
				}
				return err
			})
		}},
	}
	for n := range testenv.Rounds(1, 10) {
		for _, s := range stages {
			if !t.Run(fmt.Sprintf("%s/%d", s.name, n), func(t *testing.T) {
				p.t = t
				p.publish("line")
				s.cut(p)
				p.must(p.Box.PowerCut(t.Context(), p.disk, p.Containerd, p.Path("run"), filepath.Join(p.Containerd.Dir, "s")))
				p.Registry.Faults.Clear()
				p.must(p.Containerd.Start(t.Context()))
				p.must(p.Agent.Start())
				p.answers()
				line := p.approved
				p.applied("line")
				if n := p.told(line, fmt.Sprintf("approved by user %d", member)); n != 1 {
					t.Errorf("who approved is told %d times", n)
				}
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

// approveLine approves the change of line, which waits, and remembers which one it was.
func (p *press) approveLine() {
	p.t.Helper()
	p.approved = p.waits("line", codes.ApprovalNeeded)
	if _, err := p.as(member, "approve", "--id", p.approved.ID.String(), "line"); err != nil {
		p.t.Fatal(err)
	}
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
