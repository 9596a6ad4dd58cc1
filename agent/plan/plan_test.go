package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

var (
	t0      = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	numbers = Policy{Monitor: 5 * time.Second} // last log lines are not read here
)

// service makes a service whose configuration is named by its image.
func service(name, image string, deps ...workload.Dependency) workload.Service {
	return workload.Service{
		Name: name, Image: workload.Image{Repository: "r.example/" + name, Digest: digest.FromString(image)}, DependsOn: deps,
		Restart: workload.Restart{Policy: workload.RestartAlways},
	}
}

func healthy(s workload.Service) workload.Service {
	s.Health = &workload.Health{Probe: workload.Probe{TCP: 80}, Interval: time.Second, Timeout: time.Second, Retries: 2}
	return s
}

func component(deployment, name string, services ...workload.Service) Component {
	return NewComponent(name, "1.0.0", &workload.Project{
		Name: workload.ProjectName(deployment, name), Deployment: deployment, Component: name, Services: services,
	})
}

func desired(generation uint64, ds ...Deployment) *Desired {
	return &Desired{Digest: digest.FromString(fmt.Sprint(generation)), Generation: generation, Deployments: ds}
}

func deployment(id string, cs ...Component) Deployment {
	return Deployment{ID: id, Name: id, Digest: digest.FromString(fmt.Sprint(id, cs)), Components: cs}
}

// model is a device that does what it is told, at once.
type model struct {
	containers map[string]workload.Observation
	projects   map[string]bool
	broken     map[string]bool // images whose containers exit at once
	pid        uint32
	early      map[string]uint32 // processes that a start ahead made, by container
	log        []string
}

func newModel() *model {
	return &model{containers: map[string]workload.Observation{}, projects: map[string]bool{}, early: map[string]uint32{}}
}

func (m *model) observe() workload.Observed {
	var o workload.Observed
	for _, id := range slices.Sorted(maps.Keys(m.containers)) {
		o.Containers = append(o.Containers, m.containers[id])
	}
	o.Projects = slices.Sorted(maps.Keys(m.projects))
	return o
}

func (m *model) apply(s Step) error {
	m.log = append(m.log, s.Key())
	c, ok := m.containers[s.Container]
	switch s.Verb {
	case Prepare:
		m.projects[s.Project] = true
		return nil
	case Teardown:
		delete(m.projects, s.Project)
		return nil
	case Create:
		if !m.projects[s.Project] {
			return fmt.Errorf("create %s: project not prepared", s.Container)
		}
		u, active := s.Unit.Service, true
		for _, o := range m.containers {
			if o.Project != s.Project || o.Service != u.Name {
				continue
			}
			active = active && !o.Active
			if o.ID == s.Container {
				return fmt.Errorf("create %s: it is still there", s.Container)
			}
		}
		c = workload.Observation{
			ID: s.Container, Project: s.Project, Deployment: s.Spec.Deployment, Component: s.Spec.Component,
			Service: u.Name, Replica: s.Unit.Replica, Hash: s.Unit.Hash, Status: workload.Created, Active: active,
			Image: u.Image.Name(),
		}
		if delete(m.early, c.ID); s.Ahead {
			m.pid++
			m.early[c.ID] = m.pid
		}
	case Start:
		if !ok {
			return fmt.Errorf("start %s: not there", s.Container)
		}
		if c.Status == workload.Paused {
			c.Status = workload.Running
			break
		}
		for _, o := range m.containers {
			if u := s.Unit.Service; o.ID != c.ID && o.Project == c.Project && o.Service == c.Service && o.Replica == c.Replica && o.Status != workload.Exited &&
				u.Update.Order != workload.StartFirst && u.Rollback.Order != workload.StartFirst {
				return fmt.Errorf("start %s: %s is %s", s.Container, o.ID, o.Status)
			}
		}
		pid := m.early[c.ID]
		if delete(m.early, c.ID); pid == 0 {
			m.pid++
			pid = m.pid
		}
		c.Status, c.PID, c.Run, c.Began = workload.Running, pid, fmt.Sprint(pid), time.Duration(pid)
		if m.broken[c.Image] {
			c.Status, c.PID, c.Run, c.End, c.Began, c.ExitCode = workload.Exited, 0, "", "end of "+c.Run, 0, 1
		}
	case Activate:
		if c.Status != workload.Running {
			return fmt.Errorf("switch to %s: it is %q", s.Container, c.Status)
		}
		for id, o := range m.containers {
			if o.Project == c.Project && o.Service == c.Service && o.Replica == c.Replica {
				o.Active = false
				m.containers[id] = o
			}
		}
		c.Active = true
	case Deactivate:
		c.Active = false
	case Stop:
		c.Status, c.PID, c.Run, c.End, c.Began, c.ExitCode = workload.Exited, 0, "", "end of "+c.Run, 0, 143
	case Remove:
		delete(m.containers, s.Container)
		for _, id := range slices.Sorted(maps.Keys(m.containers)) {
			if o := m.containers[id]; c.Active && o.Project == c.Project && o.Service == c.Service && !m.answered(o) {
				o.Active, c.Active = true, false
				m.containers[id] = o
			}
		}
		return nil
	}
	m.containers[s.Container] = c
	return nil
}

// answered reports whether a container answers for o's service.
func (m *model) answered(o workload.Observation) bool {
	for _, x := range m.containers {
		if x.Active && x.Project == o.Project && x.Service == o.Service {
			return true
		}
	}
	return false
}

// round plans and applies once; false when there was nothing to do. The steps of containers named by unlucky fail.
func (m *model) round(t *testing.T, now *time.Time, d *Desired, s *Supervision, unlucky ...string) bool {
	t.Helper()
	o := m.observe()
	s.Update(*now, d, o, numbers)
	for id, c := range s.Containers { // probes all succeed
		if c.Health == HealthStarting {
			s.Containers[id] = c.Probed(*now, &workload.Health{Retries: 1}, nil)
		}
	}
	p := Make(*now, d, o, s, numbers)
	for _, st := range p.Steps {
		if st.Restart {
			s.Restarting[st.Container] = st.Run
		}
		if slices.Contains(unlucky, st.Container) {
			s.Fail(*now, st, errors.New("no luck"))
			continue
		}
		if err := m.apply(st); err != nil {
			t.Fatalf("step %s: %v", st.Key(), err)
		}
		s.Done(st)
	}
	if len(p.Steps) == 0 && !p.Wake.IsZero() {
		*now = p.Wake
		return true
	}
	return len(p.Steps) > 0
}

func (m *model) converge(t *testing.T, now *time.Time, d *Desired, s *Supervision) {
	t.Helper()
	for range 200 {
		if !m.round(t, now, d, s) {
			return
		}
	}
	t.Fatalf("no end after 200 rounds; log %v", m.log)
}

func TestPlanOrdersServicesAndComponents(t *testing.T) {
	db := healthy(service("db", "1"))
	web := service("web", "1", workload.Dependency{Service: "db", Condition: workload.Healthy})
	first, second := component("d", "first", db, web), component("d", "second", service("x", "1"))
	d := desired(1, deployment("d", first, second))
	m, now := newModel(), t0
	m.converge(t, &now, d, NewSupervision())
	id := func(c Component, i int) string { return c.Containers[i].ID }
	want := []string{
		"prepare " + first.Project.Name,
		"create " + id(first, 0), "create " + id(first, 1),
		"start " + id(first, 0), "start " + id(first, 1),
		"prepare " + second.Project.Name,
		"create " + id(second, 0), "start " + id(second, 0),
	}
	if diff := cmp.Diff(want, m.log); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

func TestPlanReplacesOnlyWhatChanged(t *testing.T) {
	keep, old, gone := service("keep", "1"), service("web", "1"), service("gone", "1")
	m, now, s := newModel(), t0, NewSupervision()
	v1 := component("d", "app", keep, old, gone)
	m.converge(t, &now, desired(1, deployment("d", v1)), s)
	before := m.containers[v1.Containers[0].ID]
	m.log = nil
	v2 := component("d", "app", keep, service("web", "2"))
	m.converge(t, &now, desired(2, deployment("d", v2)), s)
	want := []string{
		"stop " + v1.Containers[2].ID, "stop " + v1.Containers[1].ID, "prepare " + v1.Project.Name,
		"remove " + v1.Containers[2].ID, "remove " + v1.Containers[1].ID,
		"create " + v2.Containers[1].ID, "start " + v2.Containers[1].ID,
	}
	sortedEqual(t, want, m.log)
	if got := m.containers[before.ID]; got.PID != before.PID {
		t.Errorf("unchanged container: pid %d, want %d", got.PID, before.PID)
	}
	if len(m.containers) != 2 {
		t.Errorf("%d containers, want 2", len(m.containers))
	}
}

func sortedEqual(t *testing.T, want, got []string) {
	t.Helper()
	w, g := map[string]int{}, map[string]int{}
	for _, x := range want {
		w[x]++
	}
	for _, x := range got {
		g[x]++
	}
	if diff := cmp.Diff(w, g); diff != "" {
		t.Errorf("steps (-want +got):\n%s\nin order: %v", diff, got)
	}
}

func TestPlanRemovesDependentsFirst(t *testing.T) {
	dep := func(image string) []workload.Service {
		return []workload.Service{
			service("db", image),
			service("web", image, workload.Dependency{Service: "db", Condition: workload.Started}),
		}
	}
	m, now, s := newModel(), t0, NewSupervision()
	v1 := component("d", "app", dep("1")...)
	m.converge(t, &now, desired(1, deployment("d", v1)), s)
	v2 := component("d", "app", dep("2")...)
	for _, want := range [][]string{
		{"create " + v2.Containers[0].ID, "create " + v2.Containers[1].ID},
		{"create " + v2.Containers[1].ID}, // nothing stops before it exists: it depends on the other one
		{"stop " + v1.Containers[1].ID},
	} {
		var got []string
		p := Make(now, desired(2, deployment("d", v2)), m.observe(), s, numbers)
		for _, st := range p.Steps {
			got = append(got, st.Key())
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("steps (-want +got):\n%s", diff)
		}
		if err := m.apply(p.Steps[0]); err != nil {
			t.Fatal(err)
		}
	}
}

func TestPlanTouchesNothingBeforeAStateIsAccepted(t *testing.T) {
	m, now, s := newModel(), t0, NewSupervision()
	m.converge(t, &now, desired(1, deployment("d", component("d", "app", service("web", "1")))), s)
	if p := Make(now, nil, m.observe(), s, numbers); len(p.Steps) != 0 {
		t.Errorf("steps = %v, want none", p.Steps)
	}
}

func TestPlanEmptyStateRemovesEverything(t *testing.T) {
	m, now, s := newModel(), t0, NewSupervision()
	m.converge(t, &now, desired(1, deployment("d", component("d", "app", service("web", "1")))), s)
	m.converge(t, &now, desired(2), s)
	if len(m.containers)+len(m.projects) != 0 {
		t.Errorf("left %v %v, want nothing", m.containers, m.projects)
	}
}

func TestPlanAfterReboot(t *testing.T) {
	first := component("d", "first", service("a", "1"))
	second := component("d", "second", service("b", "1"))
	d := desired(1, deployment("d", first, second))
	m, now := newModel(), t0
	m.converge(t, &now, d, NewSupervision())
	for id, c := range m.containers {
		c.Status, c.PID = workload.Created, 0
		m.containers[id] = c
	}
	s := NewSupervision()
	p := Make(now, d, m.observe(), s, numbers)
	if len(p.Steps) != 1 || p.Steps[0].Key() != "prepare "+first.Project.Name {
		t.Fatalf("first steps after reboot = %v", p.Steps)
	}
	s.Done(p.Steps[0])
	start := Step{Verb: Start, Project: first.Project.Name, Container: first.Containers[0].ID}
	for range 2 {
		s.Fail(now, start, fmt.Errorf("no such device"))
	}
	p = Make(now, d, m.observe(), s, numbers)
	if len(p.Steps) != 1 || p.Steps[0].Key() != "prepare "+second.Project.Name {
		t.Errorf("steps with a broken first component = %v, want the second to come back", p.Steps)
	}
}

func TestRestartBackoff(t *testing.T) {
	c := component("d", "app", service("web", "1"))
	d := desired(1, deployment("d", c))
	m, now, s := newModel(), t0, NewSupervision()
	m.converge(t, &now, d, s)
	id := c.Containers[0].ID
	var pauses []time.Duration
	for range 4 {
		o := m.containers[id]
		o.Status, o.ExitCode, o.PID, o.End = workload.Exited, 1, 0, "end of "+o.Run
		m.containers[id] = o
		begin := now
		for m.containers[id].Status == workload.Exited {
			if !m.round(t, &now, d, s) {
				t.Fatal("nothing to do for a container that exited")
			}
		}
		pauses = append(pauses, now.Sub(begin))
	}
	ms := time.Millisecond
	if diff := cmp.Diff([]time.Duration{100 * ms, 200 * ms, 400 * ms, 800 * ms}, pauses); diff != "" {
		t.Errorf("pauses (-want +got):\n%s", diff)
	}
	m.converge(t, &now, d, s) // settles
	if got := s.Containers[id].Restarts; got != 0 {
		t.Errorf("restarts in a row after settling = %d, want 0", got)
	}
	if got := s.Containers[id].Total; got != 4 {
		t.Errorf("restarts in all = %d, want 4", got)
	}
}

func TestRestartPolicies(t *testing.T) {
	for _, tc := range []struct {
		name    string
		restart workload.Restart
		code    uint32
		already int
		want    bool
	}{
		{"none", workload.Restart{}, 1, 0, false},
		{"no", workload.Restart{Policy: workload.RestartNo}, 1, 0, false},
		{"always after success", workload.Restart{Policy: workload.RestartAlways}, 0, 9, true},
		{"unless-stopped", workload.Restart{Policy: workload.RestartUnlessStopped}, 0, 0, true},
		{"on-failure after success", workload.Restart{Policy: workload.RestartOnFailure}, 0, 0, false},
		{"on-failure", workload.Restart{Policy: workload.RestartOnFailure}, 2, 99, true},
		{"on-failure within limit", workload.Restart{Policy: workload.RestartOnFailure, Max: 3}, 2, 2, true},
		{"on-failure at limit", workload.Restart{Policy: workload.RestartOnFailure, Max: 3}, 2, 3, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &workload.Container{Service: workload.Service{Restart: tc.restart}}
			if got := restarts(c, workload.Observation{ExitCode: tc.code}, tc.already); got != tc.want {
				t.Errorf("restarts(%+v, exit %d, %d) = %v, want %v", tc.restart, tc.code, tc.already, got, tc.want)
			}
		})
	}
}

func TestProbes(t *testing.T) {
	h := &workload.Health{Retries: 2, StartPeriod: 10 * time.Second}
	bad := fmt.Errorf("connection refused")
	s := Supervised{Health: HealthStarting, Since: t0}
	for i, step := range []struct {
		after time.Duration
		err   error
		want  Health
	}{
		{time.Second, bad, HealthStarting},     // start period
		{9 * time.Second, bad, HealthStarting}, // still
		{11 * time.Second, bad, HealthStarting},
		{12 * time.Second, bad, HealthUnhealthy},
		{13 * time.Second, nil, HealthHealthy},
		{14 * time.Second, bad, HealthHealthy},
		{15 * time.Second, bad, HealthUnhealthy},
	} {
		if s = s.Probed(t0.Add(step.after), h, step.err); s.Health != step.want {
			t.Errorf("probe %d at %v: %s, want %s", i, step.after, s.Health, step.want)
		}
	}
}

func TestAssessWalksThroughTheStates(t *testing.T) {
	m, now, s := newModel(), t0, NewSupervision()
	c := component("d", "app", service("web", "1"))
	d := desired(7, deployment("d", c))
	before := map[string]store.Status{}
	var seen []margo.State
	look := func(target, next *Desired) bool {
		a := Assess(AssessmentInput{Now: now, Target: target, Accepted: next, Observed: m.observe(), Supervision: s, Policy: numbers, Before: before})
		for _, st := range append(a.Statuses, a.Removed...) {
			if before[st.DeploymentID].State != st.State {
				seen = append(seen, st.State)
			}
			before[st.DeploymentID] = st
			if st.State == margo.StateRemoved {
				delete(before, st.DeploymentID)
			}
		}
		return a.Settled
	}
	look(nil, d)
	look(d, nil)
	for m.round(t, &now, d, s) {
		look(d, nil)
	}
	if !look(d, nil) {
		t.Error("not settled although installed")
	}
	empty := desired(8)
	look(empty, nil)
	for m.round(t, &now, empty, s) {
		look(empty, nil)
	}
	if !look(empty, nil) {
		t.Error("not settled although empty")
	}
	want := []margo.State{"pending", "installing", "installed", "removing", "removed"}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
}

// Whoever is in the namespace of processes of another service would be killed with it: it is stopped first, by its own signal,
// and comes back when the other one does. Under start-first it moves over once.
func TestPlanStopsWhoIsInTheNamespaceOfAnother(t *testing.T) {
	for _, order := range []workload.Order{workload.StopFirst, workload.StartFirst} {
		t.Run(string(order), func(t *testing.T) {
			services := func(image string) []workload.Service {
				web, side := service("web", image), service("side", "1", workload.Dependency{Service: "web", Condition: workload.Started, Restart: true})
				web.Update.Order, web.Networks = order, []workload.Attachment{{Network: "default"}}
				side.Namespaces.PID, side.Restart.Policy = workload.ServiceNamespace("web"), workload.RestartNo
				return []workload.Service{web, side}
			}
			m, now, s := newModel(), t0, NewSupervision()
			v1, v2 := component("d", "app", services("1")...), component("d", "app", services("2")...)
			m.converge(t, &now, desired(1, deployment("d", v1)), s)
			m.log = nil
			m.converge(t, &now, desired(2, deployment("d", v2)), s)
			old, fresh, side := v1.Containers[0].ID, v2.Containers[0].ID, v1.Containers[1].ID
			at := func(step string) int { return slices.Index(m.log, step) }
			for _, pair := range [][2]string{
				{"stop " + side, "stop " + old}, {"stop " + old, "remove " + old}, {"start " + fresh, "start " + side}, {"stop " + side, "start " + side},
			} {
				if a, b := at(pair[0]), at(pair[1]); a < 0 || b < a {
					t.Errorf("%q at %d, %q at %d of %v", pair[0], a, pair[1], b, m.log)
				}
			}
			if n := len(slices.DeleteFunc(slices.Clone(m.log), func(x string) bool { return x != "stop "+side })); n != 1 {
				t.Errorf("stopped %d times: %v", n, m.log)
			}
			if o := m.containers[side]; o.Status != workload.Running || o.Began < m.containers[fresh].Began {
				t.Errorf("%+v, beside %+v", o, m.containers[fresh])
			}
		})
	}
}

// TestRoomForStepsThatWait: a step that failed because another project has what it needs is tried when something was given
// back, not when its pause ends; one that succeeds lets the next one try.
func TestRoomForStepsThatWait(t *testing.T) {
	prepare := func(project string) Step { return Step{Verb: Prepare, Project: project} }
	taken := fmt.Errorf("no subnet left: %w", fault.ErrConflict)
	waits := func(s *Supervision) (out []string) {
		for _, name := range []string{"a", "b", "broken"} {
			if s.Retries[prepare(name).Key()].At.After(t0) {
				out = append(out, name)
			}
		}
		return out
	}
	for _, freed := range []Step{{Verb: Teardown, Project: "old"}, {Verb: Remove, Container: "old-web-1"}} {
		t.Run(string(freed.Verb), func(t *testing.T) {
			s := NewSupervision()
			for range 5 {
				s.Fail(t0, prepare("a"), taken)
				s.Fail(t0, prepare("broken"), errors.New("boom"))
			}
			s.Fail(t0, prepare("b"), taken)
			s.Done(freed)
			if got, want := waits(s), []string{"b", "broken"}; !slices.Equal(got, want) {
				t.Fatalf("after %s, %q wait, want %q", freed.Verb, got, want)
			}
			if got := s.Retries[prepare("a").Key()].Failures; got != 5 {
				t.Errorf("%d failures are counted, want 5: the next pause is no shorter", got)
			}
			s.Done(prepare("c")) // did not wait: it gave nothing back
			if got := waits(s); len(got) != 2 {
				t.Errorf("after a step that did not wait, %q wait", got)
			}
			s.Done(prepare("a"))
			if got, want := waits(s), []string{"broken"}; !slices.Equal(got, want) {
				t.Errorf("after the first, %q wait, want %q", got, want)
			}
		})
	}
}

// TestExitsNameWhatLacked: the message of a container that ended for lack of something says so, before its last output.
func TestExitsNameWhatLacked(t *testing.T) {
	for _, tt := range []struct {
		lack   workload.Lack
		limits workload.Resources
		want   string
	}{
		{"", workload.Resources{PIDs: 30}, "service web: exited with code 137"},
		{workload.LackProcesses, workload.Resources{PIDs: 30}, "service web: exited with code 137: it had as many processes as its limit of 30 allows; raise pids_limit or deploy.resources.limits.pids"},
		{workload.LackMemory, workload.Resources{MemoryBytes: 32 << 20}, "service web: exited with code 137: it ran out of memory, its limit is 32 MiB; raise mem_limit or deploy.resources.limits.memory"},
		{workload.LackMemory, workload.Resources{}, "service web: exited with code 137: the device ran out of memory; give its services limits of memory, or run fewer"},
	} {
		web := service("web", "1")
		web.Resources, web.Restart.Policy = tt.limits, workload.RestartNo
		c := component("d", "app", web)
		d, m, now, s := desired(1, deployment("d", c)), newModel(), t0, NewSupervision()
		m.converge(t, &now, d, s)
		o := m.containers[c.Containers[0].ID]
		o.Status, o.PID, o.Run, o.End, o.ExitCode, o.Lack = workload.Exited, 0, "", "end", 137, tt.lack
		m.containers[o.ID] = o
		s.Update(now, d, m.observe(), numbers)
		v := newPlanner(now, m.observe(), s, numbers).views(&d.Deployments[0])[0]
		if v.fault == nil || v.fault.Message != tt.want {
			t.Errorf("lack %q: %+v, want %q", tt.lack, v.fault, tt.want)
		}
	}
}
