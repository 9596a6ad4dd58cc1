package plan

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
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

// service makes up a service. What it depends on comes before it.
func (d *dice) service(j int) workload.Service {
	s := service(fmt.Sprintf("s%d", j), fmt.Sprint(d.roll(3)))
	if d.roll(3) == 0 {
		s = healthy(s)
	}
	for k := range j {
		if d.roll(3) == 0 {
			c := []workload.Condition{workload.Started, workload.Healthy}[d.roll(2)]
			s.DependsOn = append(s.DependsOn, workload.Dependency{
				Service: fmt.Sprintf("s%d", k), Condition: c, Optional: d.roll(3) == 0, Restart: d.roll(3) == 0,
			})
		}
	}
	if d.roll(3) == 0 {
		s.Ports = []workload.Port{{HostPort: uint16(8000 + d.roll(3)), ContainerPort: 80, Protocol: "tcp"}}
	}
	s.Replicas = d.roll(4)
	s.Update.Parallelism = d.roll(3)
	if d.roll(2) == 0 {
		s.Update.Order = workload.StartFirst
	}
	if d.roll(3) > 0 {
		s.Networks = []workload.Attachment{{Network: "default"}}
	}
	if d.roll(4) == 0 {
		s.Update.Delay = time.Duration(d.roll(3)) * time.Second
	}
	if d.roll(4) == 0 {
		s.Update.FailureAction = []workload.FailureAction{workload.ActRollback, workload.ActContinue}[d.roll(2)]
		s.Update.MaxFailureRatio = float64(d.roll(3)) / 4
	}
	if d.roll(4) == 0 {
		s.Update.Monitor = 3 * time.Second
	}
	s.Rollback = workload.Update{Order: s.Update.Order, Parallelism: d.roll(2)}
	if d.roll(2) == 0 {
		s.Mounts = []workload.Mount{{Kind: workload.MountVolume, Source: "data", Target: "/data"}}
	}
	return s
}

// component makes up a component.
func (d *dice) component(dep string, i int) Component {
	var services []workload.Service
	for j := range d.roll(4) {
		services = append(services, d.service(j))
	}
	c := component(dep, fmt.Sprintf("c%d", i), services...)
	c.Wait = d.roll(2) == 0
	if d.roll(3) == 0 {
		c.Timeout = time.Minute
	}
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
		x := deployment(id, cs...)
		x.Digest = digest.FromString(fmt.Sprint(id, cs, d.at))
		ds = append(ds, x)
	}
	return desired(generation, ds...)
}

// disturb does to a device what the world does: crashes, reboots, containers that are lost, paused and edited.
func (d *dice) disturb(m *model) {
	for _, id := range slices.Sorted(maps.Keys(m.containers)) {
		c := m.containers[id]
		switch d.roll(8) {
		case 0:
			if c.Status == workload.Running {
				c.Status, c.ExitCode, c.PID, c.Run, c.End, c.Began = workload.Exited, uint32(d.roll(2)), 0, "", "end of "+c.Run, 0
			}
		case 1:
			c.Status, c.PID, c.Run, c.Began = workload.Created, 0, "", 0
		case 2:
			delete(m.containers, id)
			continue
		case 3:
			if c.Status == workload.Running {
				c.Status = workload.Paused
			}
		case 4:
			if d.roll(3) == 0 {
				c.Hash = "edited"
			}
		case 5:
			c.Active = !c.Active
		}
		m.containers[id] = c
	}
}

// FuzzPlanConverges: whatever there is, whatever was wanted before, whatever fails on the way and whenever the agent is
// killed, repeating the plan ends with exactly what is desired, or with the last good revision of what does not run; and
// nothing that is needed was ever removed, nor stopped but to be started again, and no container started while an old one of its service,
// which is not to run beside it, had not ended.
func FuzzPlanConverges(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 2, 3})
	f.Add([]byte{200, 13, 7, 99, 0, 255, 31, 64, 5})
	f.Add([]byte("the quick brown fox jumps over the lazy dog"))
	f.Add([]byte("start-first, in turns, and back again: 0123456789"))
	f.Fuzz(converges)
}

// TestPlanConverges is the fuzz test on many made-up lives.
func TestPlanConverges(t *testing.T) {
	n := 60
	if testing.Short() {
		n = 15
	}
	for seed := range n {
		data := make([]byte, 64)
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { converges(t, data) }) {
			return
		}
	}
}

func converges(t *testing.T, data []byte) {
	x := &dice{data: data}
	d := newDevice()
	for g := range 1 + x.roll(5) {
		d.want = x.desired(uint64(g))
		d.broken = map[string]bool{}
		for _, img := range d.want.Images() {
			if x.roll(8) == 0 {
				d.broken[img.Name()] = true
			}
		}
		for n := range x.roll(60) { // not to the end
			d.round(t, d.watched(t, x))
			if x.roll(9) == 0 {
				d.killed()
			}
			if n%16 == 15 {
				x.disturb(d.model)
			}
		}
		x.disturb(d.model)
		if x.roll(3) == 0 {
			d.killed()
		}
	}
	for range 600 {
		if !d.round(t, d.watched(t, nil)) {
			break
		}
	}
	d.verify(t)
}

// killed is another process: what was saved is there.
func (d *device) killed() {
	again := d.sup.Restarting
	d.sup = NewSupervision()
	d.sup.Restarting = again
}

// watched looks at each step before it is done; with dice, steps may fail.
func (d *device) watched(t *testing.T, x *dice) func(Step) bool {
	return func(st Step) bool {
		t.Helper()
		_, _, c := d.target().Container(st.Container)
		if o := d.containers[st.Container]; c != nil && matches(o, c) && !st.Restart && (st.Verb == Stop || st.Verb == Remove) {
			t.Fatalf("plan wants to %s, which is needed", st.Key())
		}
		if x == nil || x.roll(6) != 0 {
			return false
		}
		if d.err = errors.New("no luck"); d.pid%2 == 1 {
			d.err = fault.ErrConflict
		}
		return true
	}
}

// verify wants exactly the target to run, but for services that are broken and have nothing to go back to, and what waits
// for those.
func (d *device) verify(t *testing.T) {
	t.Helper()
	target, n, excused := d.target(), 0, false
	for _, dep := range target.Deployments {
		for _, c := range dep.Components {
			for _, x := range c.Containers {
				excused = excused || d.broken[x.Service.Image.Name()]
			}
		}
	}
	for _, dep := range target.Deployments {
		for _, c := range dep.Components {
			if !d.projects[c.Project.Name] && !excused {
				t.Errorf("project %s is missing", c.Project.Name)
			}
			for _, x := range c.Containers {
				n++
				if got := d.containers[x.ID].Status; got != workload.Running && !excused {
					t.Errorf("container %s is %q, want running", x.ID, got)
				}
			}
		}
		if good, ok := d.k.Good[dep.ID]; ok && dep.Refused == nil && good.Record.Digest != dep.Digest && !excused {
			t.Errorf("deployment %s runs and is not good", dep.ID)
		}
	}
	if len(d.containers) != n && !excused {
		t.Errorf("%d containers, want %d: %v", len(d.containers), n, d.containers)
	}
}
