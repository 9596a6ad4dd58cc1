package plan

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// crash ends a container's process.
func (d *device) crash(id string, code uint32) {
	c := d.containers[id]
	if c.Run != "" {
		c.End = "end of " + c.Run
	}
	c.Status, c.ExitCode, c.PID, c.Run, c.Began = workload.Exited, code, 0, "", 0
	d.containers[id] = c
}

func TestConditions(t *testing.T) {
	job := service("job", "1")
	job.Restart = workload.Restart{}
	for _, tc := range []struct {
		name string
		dep  workload.Dependency
		code int // of the job; -1: it runs on
		want bool
	}{
		{"completed, and it did", workload.Dependency{Service: "job", Condition: workload.Completed}, 0, true},
		{"completed, and it runs", workload.Dependency{Service: "job", Condition: workload.Completed}, -1, false},
		{"completed, and it failed", workload.Dependency{Service: "job", Condition: workload.Completed}, 1, false},
		{"completed, optional, and it failed", workload.Dependency{Service: "job", Condition: workload.Completed, Optional: true}, 1, true},
		{"completed, optional, and it runs", workload.Dependency{Service: "job", Condition: workload.Completed, Optional: true}, -1, false},
		{"started, and it ended well", workload.Dependency{Service: "job", Condition: workload.Started}, 0, true},
		{"started, and it failed", workload.Dependency{Service: "job", Condition: workload.Started}, 1, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice()
			c := component("d", "app", job, service("web", "1", tc.dep))
			d.want = desired(1, deployment("d", c))
			for range 3 { // the last time after a reboot
				for range 20 {
					d.round(t, nil)
					if tc.code >= 0 && d.containers[c.Containers[0].ID].Status == workload.Running {
						d.crash(c.Containers[0].ID, uint32(tc.code))
					}
				}
				if got := d.containers[c.Containers[1].ID].Status == workload.Running; got != tc.want {
					t.Errorf("web runs: %v, want %v", got, tc.want)
				}
				d.reboot()
			}
		})
	}
}

func (d *device) reboot() {
	for id, c := range d.containers {
		c.Status, c.PID, c.Run, c.Began, c.ExitCode = workload.Created, 0, "", 0, 0
		d.containers[id] = c
	}
	d.sup = NewSupervision()
}

func TestDependentsFollow(t *testing.T) {
	app := func(db string) Component {
		return component("d", "app",
			healthy(service("db", db)),
			service("web", "1", workload.Dependency{Service: "db", Condition: workload.Healthy, Restart: true}),
			service("other", "1", workload.Dependency{Service: "db", Condition: workload.Healthy}),
		)
	}
	v1, v2 := app("1"), app("2")
	restart := []string{"stop web-1.v1", "start web-1.v1"}
	for _, tc := range []struct {
		name string
		do   func(*testing.T, *device)
		want []string
	}{
		{"after a crash", func(t *testing.T, d *device) {
			d.crash(v1.Containers[0].ID, 1)
			d.run(t, d.want)
		}, append([]string{"start db-1.v1"}, restart...)},
		{"after an update", func(t *testing.T, d *device) {
			d.run(t, desired(2, deployment("d", v2)))
		}, append([]string{"create db-1.v2", "stop db-1.v1", "start db-1.v2", "remove db-1.v1"}, restart...)},
		{"the agent dies between", func(t *testing.T, d *device) {
			d.crash(v1.Containers[0].ID, 1)
			for d.containers[v1.Containers[1].ID].Status == workload.Running {
				d.round(t, nil)
			}
			again := d.sup.Restarting
			d.sup = NewSupervision()
			d.sup.Restarting = again // which was saved
			d.run(t, d.want)
		}, []string{"start db-1.v1", "stop web-1.v1", "prepare all", "start web-1.v1"}},
		{"the process is gone before its task", func(t *testing.T, d *device) {
			d.crash(v1.Containers[0].ID, 1)
			web := v1.Containers[1].ID
			for d.containers[web].Status == workload.Running {
				d.round(t, nil)
			}
			ended := d.containers[web]
			gone := ended
			gone.Status, gone.PID, gone.End = workload.Running, 402, ""
			d.containers[web] = gone
			d.round(t, nil)
			d.containers[web] = ended
			d.run(t, d.want)
		}, append([]string{"start db-1.v1"}, restart...)},
		{"after a reboot", func(t *testing.T, d *device) {
			d.reboot()
			d.run(t, d.want)
		}, []string{"prepare all", "start db-1.v1", "start other-1.v1", "start web-1.v1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice()
			v1.Containers[1].Service.Restart = workload.Restart{} // restart: no
			d.run(t, desired(1, deployment("d", v1)))
			d.log = nil
			tc.do(t, d)
			if diff := cmp.Diff(tc.want, d.short(v1, v2)); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

// An update of both starts each of them once, in whichever order their tasks are created.
func TestUpdateOfDependents(t *testing.T) {
	for _, names := range [][2]string{{"a", "b"}, {"b", "a"}} {
		version := func(image string) Component {
			return component("d", "app", service(names[0], image), service(names[1], image, workload.Dependency{Service: names[0], Condition: workload.Started, Restart: true}))
		}
		v1, v2 := version("1"), version("2")
		d := newDevice()
		d.run(t, desired(1, deployment("d", v1)))
		d.log = nil
		d.run(t, desired(2, deployment("d", v2)))
		started := slices.DeleteFunc(d.short(v1, v2), func(step string) bool { return !strings.HasPrefix(step, "start ") })
		if diff := cmp.Diff([]string{"start " + names[0] + "-1.v2", "start " + names[1] + "-1.v2"}, started); diff != "" {
			t.Errorf("starts (-want +got):\n%s\nlog %v", diff, d.short(v1, v2))
		}
	}
}

// A restart keeps the order, too, and a dependency that may be missing does not stand in its way.
func TestARestartWaitsForWhatItDependsOn(t *testing.T) {
	for _, optional := range []bool{false, true} {
		d := newDevice()
		db := healthy(service("db", "1"))
		db.Restart = workload.Restart{}
		c := component("d", "app", db, service("web", "1", workload.Dependency{Service: "db", Condition: workload.Healthy, Optional: optional}))
		d.run(t, desired(1, deployment("d", c)))
		d.crash(c.Containers[0].ID, 1)
		d.crash(c.Containers[1].ID, 1)
		for range 20 {
			d.round(t, nil)
		}
		if got := d.containers[c.Containers[1].ID].Status == workload.Running; got != optional {
			t.Errorf("optional %v: web runs: %v; log %v", optional, got, d.short(c))
		}
	}
}

func TestUnhealthyIsRestarted(t *testing.T) {
	for _, tc := range []struct {
		name    string
		restart workload.Restart
		want    int // restarts
	}{
		{"always", workload.Restart{Policy: workload.RestartAlways}, 4},
		{"on-failure, although it ends well", workload.Restart{Policy: workload.RestartOnFailure}, 4},
		{"two attempts", workload.Restart{Policy: workload.RestartOnFailure, Max: 2}, 2},
		{"no", workload.Restart{}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice()
			s := healthy(service("web", "1"))
			s.Restart = tc.restart
			c := component("d", "app", s)
			id := c.Containers[0].ID
			d.run(t, desired(1, deployment("d", c)))
			d.log = nil
			begin := d.now
			for range 100 {
				if s := d.sup.Containers[id]; s.Health != "" && d.containers[id].Status == workload.Running {
					s.Health, s.Output = HealthUnhealthy, "connection refused"
					d.sup.Containers[id] = s
				}
				a := Assess(AssessmentInput{Now: d.now, Target: d.want, Observed: d.observe(), Supervision: d.sup, Policy: numbers, Before: d.before})
				if d.containers[id].Status == workload.Running && a.Statuses[0].State != "failed" {
					t.Errorf("state %s, want failed", a.Statuses[0].State)
				}
				p := Make(d.now, d.want, d.observe(), d.sup, numbers)
				for _, st := range p.Steps {
					if st.Restart {
						d.sup.Restarting[st.Container] = st.Run
					}
					if err := d.apply(st); err != nil {
						t.Fatal(err)
					}
					d.sup.Done(st)
					if st.Verb == Stop {
						d.crash(id, 0) // it ends well when it is told to
					}
				}
				d.sup.Update(d.now, d.want, d.observe(), numbers)
				if d.sup.Containers[id].Total == 4 {
					break
				}
				if len(p.Steps) == 0 && !p.Wake.IsZero() {
					d.now = p.Wake
				}
			}
			if got := d.sup.Containers[id].Total; got != tc.want {
				t.Errorf("%d restarts, want %d; log %v", got, tc.want, d.log)
			}
			if tc.want == 4 && d.now.Sub(begin) < 1500*time.Millisecond {
				t.Errorf("4 restarts in %v: no pause grows", d.now.Sub(begin))
			}
		})
	}
}

func TestDrift(t *testing.T) {
	c := component("d", "app", service("web", "1"), service("db", "1"))
	id := c.Containers[0].ID
	for _, tc := range []struct {
		name string
		do   func(*device)
		want []string
	}{
		{"deleted", func(d *device) { delete(d.containers, id) }, []string{"create web-1.v1", "start web-1.v1"}},
		{"paused", func(d *device) {
			x := d.containers[id]
			x.Status = workload.Paused
			d.containers[id] = x
		}, []string{"start web-1.v1"}},
		{"killed", func(d *device) { d.crash(id, 137) }, []string{"start web-1.v1"}},
		{"edited", func(d *device) {
			x := d.containers[id]
			x.Hash = "0123456789"
			d.containers[id] = x
		}, []string{"stop web-1.v1", "remove web-1.v1", "create web-1.v1", "start web-1.v1"}},
		{"a stranger of the project", func(d *device) {
			d.containers["x"] = workload.Observation{ID: "x", Project: c.Project.Name, Service: "x", Replica: 1, Status: workload.Running}
		}, []string{"stop x", "remove x"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice()
			d.run(t, desired(1, deployment("d", c)))
			d.log = nil
			tc.do(d)
			d.run(t, d.want)
			if diff := cmp.Diff(tc.want, d.short(c)); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRestartDelayWindowAndAttempts(t *testing.T) {
	s := service("web", "1")
	s.Restart = workload.Restart{Policy: workload.RestartAlways, Max: 3, Delay: 7 * time.Second, Window: time.Minute}
	c := component("d", "app", s)
	id := c.Containers[0].ID
	d := newDevice()
	d.run(t, desired(1, deployment("d", c)))
	var pauses []time.Duration
	fail := func() {
		d.now = d.now.Add(30 * time.Second) // over the agent's own 10 s, below the window
		d.crash(id, 0)
		begin := d.now
		for range 10 {
			d.round(t, nil)
			if d.containers[id].Status == workload.Running {
				pauses = append(pauses, d.now.Sub(begin))
				return
			}
		}
	}
	for range 4 {
		fail()
	}
	if diff := cmp.Diff([]time.Duration{7 * time.Second, 7 * time.Second, 7 * time.Second}, pauses); diff != "" {
		t.Errorf("pauses (-want +got):\n%s", diff)
	}
}

func TestQuote(t *testing.T) {
	long := make([]byte, 5000)
	for i := range long {
		long[i] = 'a'
	}
	for _, tc := range []struct{ in, want string }{
		{"", ""},
		{"\n\n", ""},
		{"one\ntwo\n", outputLabel + "one\n  two"},
		{"\x1b[31mred\x1b[0m\ttab\r\n\x00", outputLabel + "[31mred[0m tab"},
		{"\xff\xfe ok\u202e", outputLabel + "  ok"},
		{"1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12", outputLabel + "3\n  4\n  5\n  6\n  7\n  8\n  9\n  10\n  11\n  12"},
	} {
		if got := Quote(tc.in); got != tc.want {
			t.Errorf("quote(%q) = %q, want %q", tc.in, got, tc.want)
		}
	}
	if got := Quote(string(long)); len(got) > logBytes+len(outputLabel)+10 {
		t.Errorf("quote of a long line has %d bytes", len(got))
	}
}

// A message ends with one output: that of the refused revision, else that of what runs in its place.
func TestARefusedRevisionHasOneOutput(t *testing.T) {
	both := "service a: exited with code 3; rolling back to generation 1, which does not run either: service a: exited with code 4"
	for _, tc := range []struct{ refused, now, want string }{
		{"; its last output:\n  bad", "; its last output:\n  worse", both + "; its last output:\n  bad"},
		{"; its last output:\n  bad", "", both + "; its last output:\n  bad"},
		{"", "; its last output:\n  worse", both + "; its last output:\n  worse"},
		{"", "", both},
	} {
		d := &Deployment{ID: "d", Back: 1, Refused: &store.Bad{Source: "c", Message: "service a: exited with code 3" + tc.refused}}
		q := AssessmentInput{Before: map[string]store.Status{}}
		for range 2 { // the message that was reported stays
			var s store.Status
			q.rejected(&s, d, []*view{{fault: &Trouble{Message: "service a: exited with code 4" + tc.now, Permanent: true}}})
			if got := s.Components[0].Error.Message; got != tc.want {
				t.Errorf("message = %q, want %q", got, tc.want)
			}
			q.Before["d"] = s
		}
	}
}

func TestOverallError(t *testing.T) {
	const message = "service web: exited with code 3"
	for _, tt := range []struct{ name, component, child, want string }{
		{"another name", "press", "", "press: " + message},
		{"the name of the deployment", "line", "", message},
		{"reported for a child", "press", "press", message},
	} {
		s := store.Status{Name: "line", Child: tt.child, State: margo.StateFailed, Components: []store.Component{
			{Name: "other", State: margo.StateInstalled},
			{Name: tt.component, State: margo.StateFailed, Error: &margo.StatusError{Code: "c", Source: tt.component, Message: message}},
		}}
		if e := OverallError(s); e == nil || e.Message != tt.want {
			t.Errorf("%s: OverallError = %+v, want %q", tt.name, e, tt.want)
		}
	}
	if e := OverallError(store.Status{Name: "line", State: margo.StateInstalled}); e != nil {
		t.Errorf("OverallError of a deployment that runs = %+v", e)
	}
}
