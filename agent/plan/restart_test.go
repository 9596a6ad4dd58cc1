package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/agent/workload"
)

// A container that is to be restarted and ends by itself before is started at once, whatever its restart policy says.
func TestRestartOfWhatEndsByItself(t *testing.T) {
	for _, policy := range []workload.RestartPolicy{workload.RestartNo, workload.RestartAlways} {
		s := service("web", "1")
		s.Restart = workload.Restart{Policy: policy}
		c := component("d", "app", s)
		d := newDevice()
		d.run(t, desired(1, deployment("d", c)))
		d.log = nil
		id := c.Containers[0].ID
		if err := RestartNow(d.now, d.target(), d.observe(), d.sup, numbers, map[string]bool{id: true}); err != nil {
			t.Fatal(err)
		}
		d.crash(id, 1)
		d.round(t, nil)
		if diff := cmp.Diff([]string{"start web-1.v1"}, d.short(c)); diff != "" {
			t.Errorf("%q: steps (-want +got):\n%s", policy, diff)
		}
	}
}

// A container that was never started has no run to end: nothing of the restart is remembered.
func TestRestartOfWhatNeverStarted(t *testing.T) {
	c := component("d", "app", service("web", "1"))
	d := newDevice()
	d.want = desired(1, deployment("d", c))
	id := c.Containers[0].ID
	if err := RestartNow(d.now, d.target(), d.observe(), d.sup, numbers, map[string]bool{id: true}); err != nil || len(d.sup.Restarting) != 0 {
		t.Errorf("runs to end: %v, %v", d.sup.Restarting, err)
	}
}

// A container that is being started or resumed at the moment is restarted all the same.
func TestRestartBesideAStart(t *testing.T) {
	for _, resume := range []bool{false, true} {
		c := component("d", "app", service("web", "1"))
		d := newDevice()
		d.run(t, desired(1, deployment("d", c)))
		id := c.Containers[0].ID
		st := Step{Verb: Start, Container: id, Resume: resume}
		d.sup.Busy[id] = Start
		if err := RestartNow(d.now, d.target(), d.observe(), d.sup, numbers, map[string]bool{id: true}); err != nil {
			t.Fatal(err)
		}
		d.sup.Done(st)
		delete(d.sup.Busy, id)
		d.log = nil
		d.run(t, d.want)
		if diff := cmp.Diff([]string{"stop web-1.v1", "start web-1.v1"}, d.short(c)); diff != "" {
			t.Errorf("resume: %t: steps (-want +got):\n%s", resume, diff)
		}
	}
}

// A container does not start beside one that it depends on while that is being stopped to be started again.
func TestRestartKeepsTheOrder(t *testing.T) {
	for _, restart := range []bool{false, true} {
		c := component("d", "app", service("db", "1"), service("web", "1", workload.Dependency{Service: "db", Condition: workload.Started, Restart: restart}))
		d := newDevice()
		d.run(t, desired(1, deployment("d", c)))
		d.log = nil
		db, web := c.Containers[0].ID, c.Containers[1].ID
		if err := RestartNow(d.now, d.target(), d.observe(), d.sup, numbers, map[string]bool{db: true, web: true}); err != nil {
			t.Fatal(err)
		}
		d.judge()
		steps := Make(d.now, d.target(), d.observe(), d.sup, numbers).Steps
		var last Step
		for _, st := range steps {
			if d.sup.Restarting[st.Container] = st.Run; st.Container == db { // its stop takes long
				d.sup.Busy[db], last = Stop, st
			} else if err := d.apply(st); err != nil {
				t.Fatal(err)
			}
		}
		for range 10 {
			d.round(t, nil)
		}
		if err := d.apply(last); err != nil {
			t.Fatal(err)
		}
		delete(d.sup.Busy, db)
		d.run(t, d.want)
		if diff := cmp.Diff([]string{"stop web-1.v1", "stop db-1.v1", "start db-1.v1", "start web-1.v1"}, d.short(c)); diff != "" {
			t.Errorf("restart: %t: steps (-want +got):\n%s", restart, diff)
		}
	}
}

// What is in the namespace of processes of a container that is restarted stops before it, and starts after it.
func TestRestartOfASharedNamespace(t *testing.T) {
	for _, sick := range []bool{false, true} {
		side := service("side", "1", workload.Dependency{Service: "web", Condition: workload.Started})
		side.Namespaces.PID, side.Restart.Policy = workload.ServiceNamespace("web"), workload.RestartNo
		c := component("d", "app", healthy(service("web", "1")), side)
		d := newDevice()
		d.run(t, desired(1, deployment("d", c)))
		d.log = nil
		id := c.Containers[0].ID
		if s := d.sup.Containers[id]; sick {
			s.Health = HealthUnhealthy
			d.sup.Containers[id] = s
		} else if err := RestartNow(d.now, d.target(), d.observe(), d.sup, numbers, map[string]bool{id: true}); err != nil {
			t.Fatal(err)
		}
		d.run(t, d.want)
		if diff := cmp.Diff([]string{"stop side-1.v1", "stop web-1.v1", "start web-1.v1", "start side-1.v1"}, d.short(c)); diff != "" {
			t.Errorf("unhealthy: %t: steps (-want +got):\n%s", sick, diff)
		}
	}
}
