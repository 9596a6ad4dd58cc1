package agent

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
)

// dice makes choices out of fuzzed bytes.
type dice struct {
	data []byte
	at   int
}

func (d *dice) roll(n int) int {
	if len(d.data) == 0 {
		return 0
	}
	v := int(d.data[d.at%len(d.data)]) + d.at/len(d.data)
	d.at++
	return v % n
}

// project makes up a component.
func (d *dice) component(dep string, i int) Component {
	var services []workload.Service
	for j := range d.roll(4) {
		s := service(fmt.Sprintf("s%d", j), fmt.Sprint(d.roll(3)))
		if d.roll(3) == 0 {
			s = healthy(s)
		}
		for k := range j {
			if d.roll(3) == 0 {
				c := workload.Started
				if d.roll(2) == 0 {
					c = workload.Healthy
				}
				s.DependsOn = append(s.DependsOn, workload.Dependency{Service: fmt.Sprintf("s%d", k), Condition: c})
			}
		}
		if d.roll(3) == 0 {
			s.Ports = []workload.Port{{HostPort: uint16(8000 + d.roll(3)), ContainerPort: 80, Protocol: "tcp"}}
		}
		services = append(services, s)
	}
	c := component(dep, fmt.Sprintf("c%d", i), services...)
	c.Wait = d.roll(2) == 0
	return c
}

func (d *dice) desired(generation uint64) *Desired {
	var ds []Deployment
	for i := range d.roll(4) {
		id := fmt.Sprintf("d%d", i)
		if d.roll(3) == 0 {
			continue
		}
		var cs []Component
		for j := range 1 + d.roll(3) {
			cs = append(cs, d.component(id, j))
		}
		ds = append(ds, deployment(id, cs...))
	}
	return desired(generation, ds...)
}

// disturb does to a device what the world does: crashes, reboots, lost containers, steps that fail.
func (d *dice) disturb(m *model) {
	for id, c := range m.containers {
		switch d.roll(5) {
		case 0:
			if c.Status == workload.Running {
				c.Status, c.ExitCode, c.PID = workload.Exited, uint32(d.roll(2)), 0
				m.containers[id] = c
			}
		case 1:
			c.Status, c.PID = workload.Created, 0
			m.containers[id] = c
		case 2:
			delete(m.containers, id)
		}
	}
}

// FuzzPlanConverges: whatever there is, whatever was wanted before, and whatever fails on the way, repeating the plan ends
// with exactly what is desired, running; and nothing that is needed was ever stopped or removed.
func FuzzPlanConverges(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 2, 3})
	f.Add([]byte{200, 13, 7, 99, 0, 255, 31, 64, 5})
	f.Add([]byte("the quick brown fox jumps over the lazy dog"))
	f.Fuzz(func(t *testing.T, data []byte) {
		d := &dice{data: data}
		m, now, s := newModel(), t0, NewSupervision()
		var want *Desired
		for g := range 1 + d.roll(4) {
			want = d.desired(uint64(g))
			for range d.roll(12) { // not to the end
				step(t, d, m, want, s, &now)
			}
			d.disturb(m)
			if d.roll(3) == 0 {
				s = NewSupervision() // the agent was killed
			}
		}
		for range 400 {
			if !step(t, nil, m, want, s, &now) {
				break
			}
		}
		verify(t, m, want)
	})
}

// step is one round; with dice, steps may fail.
func step(t *testing.T, d *dice, m *model, want *Desired, s *Supervision, now *time.Time) bool {
	t.Helper()
	o := m.observe()
	s.update(*now, want, o, numbers)
	for id, c := range s.Containers {
		if c.Health == HealthStarting {
			s.Containers[id] = c.probed(*now, &workload.Health{Retries: 1}, nil)
		}
	}
	p := Plan(*now, want, o, s, numbers)
	needed := map[string]bool{}
	for _, dep := range want.Deployments {
		for _, c := range dep.Components {
			for _, x := range c.Containers {
				needed[x.ID] = true
			}
		}
	}
	for _, st := range p.Steps {
		if needed[st.Container] && (st.Verb == Stop || st.Verb == Remove) {
			t.Fatalf("plan wants to %s, which is needed", st.Key())
		}
		if d != nil && d.roll(6) == 0 {
			s.fail(*now, st, errors.New("no luck"), numbers)
			continue
		}
		if err := m.apply(st); err != nil {
			t.Fatalf("step %s: %v", st.Key(), err)
		}
		s.done(st)
	}
	if len(p.Steps) == 0 {
		if p.Wake.IsZero() {
			return false
		}
		*now = p.Wake
	}
	return true
}

func verify(t *testing.T, m *model, want *Desired) {
	t.Helper()
	n := 0
	for _, dep := range want.Deployments {
		for _, c := range dep.Components {
			if !m.projects[c.Project.Name] {
				t.Errorf("project %s is missing", c.Project.Name)
			}
			for _, x := range c.Containers {
				n++
				if got := m.containers[x.ID].Status; got != workload.Running {
					t.Errorf("container %s is %q, want running", x.ID, got)
				}
			}
		}
	}
	if len(m.containers) != n {
		t.Errorf("%d containers, want %d: %v", len(m.containers), n, m.containers)
	}
}
