package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// device is a [model] with the part of the loop that remembers.
type device struct {
	*model
	now    time.Time
	want   *Desired
	k      Memory
	sup    *Supervision
	before map[string]store.Status
	moment func() // after each step
	err    error  // of steps that fail
}

func newDevice() *device {
	return &device{
		model: newModel(), now: t0, sup: NewSupervision(), before: map[string]store.Status{}, err: errors.New("no luck"),
		k: Memory{Good: map[string]GoodRevision{}, Bad: map[digest.Digest]store.Bad{}},
	}
}

func (d *device) target() *Desired { return Resolve(d.want, d.k) }

// judge is what the loop does between a look and a plan.
func (d *device) judge() Assessment {
	for {
		target, o := d.target(), d.observe()
		d.sup.Update(d.now, target, o, numbers)
		for id, c := range d.sup.Containers {
			if c.Health == HealthStarting { // probes all succeed
				d.sup.Containers[id] = c.Probed(d.now, &workload.Health{Retries: 1}, nil)
			}
		}
		d.sup.Update(d.now, target, o, numbers)
		a := Assess(AssessmentInput{Now: d.now, Target: target, Observed: o, Supervision: d.sup, Policy: numbers, Before: d.before, Good: d.k.Good})
		if len(a.Bad) == 0 {
			for _, s := range a.Statuses {
				d.before[s.DeploymentID] = s
			}
			for _, g := range a.Good {
				d.k.Good[g.ID] = GoodRevision{store.Good{DeploymentID: g.ID, Digest: g.Digest, Generation: d.want.Generation}, d.want.Deployment(g.ID)}
			}
			return a
		}
		for _, b := range a.Bad {
			d.k.Bad[b.Digest] = b
		}
	}
}

// round is one pass; false: there is nothing to do, ever.
func (d *device) round(t *testing.T, fails func(Step) bool) bool {
	t.Helper()
	a := d.judge()
	p := Make(d.now, d.target(), d.observe(), d.sup, numbers)
	for _, st := range p.Steps {
		if st.Restart {
			d.sup.Restarting[st.Container] = st.Run
		}
		if fails != nil && fails(st) {
			d.sup.Fail(d.now, st, d.err)
			continue
		}
		if err := d.apply(st); err != nil {
			t.Fatalf("step %s: %v", st.Key(), err)
		}
		d.sup.Done(st)
		if d.moment != nil {
			d.moment()
		}
	}
	if len(p.Steps) == 0 {
		if p.Wake.IsZero() || a.Settled && p.Wake.Sub(d.now) > time.Hour {
			return false
		}
		d.now = p.Wake
	}
	return true
}

func (d *device) run(t *testing.T, want *Desired) {
	t.Helper()
	d.want = want
	for range 1000 {
		if !d.round(t, nil) {
			return
		}
	}
	t.Fatalf("no end; log %v", d.log[max(0, len(d.log)-50):])
}

// short names containers in a log by service, replica and the number of their revision.
func (d *device) short(cs ...Component) []string {
	r := []string{}
	for i, c := range cs {
		for _, x := range c.Containers {
			r = append(r, x.ID, fmt.Sprintf("%s-%d.v%d", x.Service.Name, x.Replica, i+1))
		}
	}
	r = append(r, cs[0].Project.Name, "all")
	out := slices.Clone(d.log)
	for i := range out {
		out[i] = strings.NewReplacer(r...).Replace(out[i])
	}
	return out
}

func replicated(s workload.Service, n int, u workload.Update) workload.Service {
	s.Replicas, s.Update, s.Rollback = n, u, workload.Update{Order: u.Order, Parallelism: u.Parallelism}
	s.Networks = []workload.Attachment{{Network: "default"}}
	return s
}

func TestStartFirst(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*workload.Service)
	}{
		{"with a health check", func(s *workload.Service) { *s = healthy(*s) }},
		{"without one", func(*workload.Service) {}},
		{"with a port", func(s *workload.Service) {
			s.Ports = []workload.Port{{HostPort: 80, ContainerPort: 80, Protocol: "tcp"}}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice()
			web := func(image string) Component {
				s := replicated(service("web", image), 1, workload.Update{Order: workload.StartFirst})
				tc.edit(&s)
				return component("d", "app", s)
			}
			v1, v2 := web("1"), web("2")
			d.run(t, desired(1, deployment("d", v1)))
			d.log = nil
			d.moment = func() {
				for _, c := range d.containers {
					if c.Active && c.Status == workload.Running {
						return
					}
				}
				t.Errorf("no one answers: %v after %v", d.containers, d.log)
			}
			d.run(t, desired(2, deployment("d", v2)))
			want := []string{"create web-1.v2", "start web-1.v2", "activate web-1.v2", "stop web-1.v1", "remove web-1.v1"}
			if diff := cmp.Diff(want, d.short(v1, v2)); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStartFirstBecomesStopFirst(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*workload.Service)
		info workload.ImageInfo
		why  string
	}{
		{"host network", func(s *workload.Service) { s.Namespaces.Network = workload.HostNamespace }, workload.ImageInfo{}, "network"},
		{"volume", func(s *workload.Service) {
			s.Mounts = []workload.Mount{{Kind: workload.MountVolume, Source: "data", Target: "/d"}}
		}, workload.ImageInfo{}, "data"},
		{"image volume", func(*workload.Service) {}, workload.ImageInfo{Volumes: []string{"/var/lib/db"}}, "/var/lib/db"},
		{"device", func(s *workload.Service) { s.CDI = []string{"vendor.com/gpu=0"} }, workload.ImageInfo{}, "devices"},
		{"mac", func(s *workload.Service) { s.Networks[0].MAC = "02:42:ac:11:00:02" }, workload.ImageInfo{}, "address"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice()
			d.k.Images = map[string]workload.ImageInfo{}
			web := func(image string) Component {
				s := replicated(service("web", image), 1, workload.Update{Order: workload.StartFirst})
				tc.edit(&s)
				d.k.Images[s.Image.Name()] = tc.info
				return component("d", "app", s)
			}
			v1, v2 := web("1"), web("2")
			d.run(t, desired(1, deployment("d", v1)))
			d.log = nil
			d.run(t, desired(2, deployment("d", v2)))
			want := createFirst
			switch tc.name {
			case "mac":
				want = removeFirst
			case "host network": // it has no service address
				want = slices.DeleteFunc(slices.Clone(want), func(s string) bool { return s == "activate web-1.v2" })
			}
			if diff := cmp.Diff(want, d.short(v1, v2)); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			n := d.target().Deployments[0].Components[0].Notices
			if len(n) != 1 || !strings.Contains(n[0].Message, tc.why) {
				t.Errorf("notices %v, want one about %s", n, tc.why)
			}
		})
	}
}

// The two ways to replace a container that must not run beside the new one.
var (
	createFirst = []string{"create web-1.v2", "stop web-1.v1", "start web-1.v2", "activate web-1.v2", "remove web-1.v1"}
	removeFirst = []string{"stop web-1.v1", "remove web-1.v1", "create web-1.v2", "start web-1.v2"}
)

// stopFirst is a device that runs the first of two revisions of a service "web".
func stopFirst(t *testing.T, edit func(*workload.Project, *workload.Service)) (d *device, v1, v2 Component) {
	t.Helper()
	web := func(image string) Component {
		p := &workload.Project{
			Name: workload.ProjectName("d", "app"), Deployment: "d", Component: "app",
			Services: []workload.Service{replicated(service("web", image), 1, workload.Update{}), service("other", "1")},
		}
		p.Services[0].Restart = workload.Restart{}
		edit(p, &p.Services[0])
		return NewComponent("app", "1.0.0", p)
	}
	d, v1, v2 = newDevice(), web("1"), web("2")
	d.run(t, desired(1, deployment("d", v1)))
	d.log = nil
	return d, v1, v2
}

func TestStopFirst(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*workload.Project, *workload.Service)
		want []string
	}{
		{"plain", func(*workload.Project, *workload.Service) {}, createFirst},
		{"a volume", func(_ *workload.Project, s *workload.Service) {
			s.Mounts = []workload.Mount{{Kind: workload.MountVolume, Source: "data", Target: "/d"}}
		}, createFirst},
		{"a volume of a driver", func(p *workload.Project, s *workload.Service) {
			s.Mounts = []workload.Mount{{Kind: workload.MountVolume, Source: "data", Target: "/d"}}
			p.Volumes = []workload.Volume{{Name: "data", Options: map[string]string{"type": "nfs"}}}
		}, removeFirst},
		{"a network of the device", func(p *workload.Project, _ *workload.Service) {
			p.Networks = []workload.Network{{Name: "default", External: "plant"}}
		}, removeFirst},
		{"processes of another service", func(_ *workload.Project, s *workload.Service) {
			s.Namespaces.PID = workload.ServiceNamespace("other")
		}, removeFirst},
		{"network of another service", func(_ *workload.Project, s *workload.Service) {
			s.Networks, s.Namespaces.Network = nil, workload.ServiceNamespace("other")
		}, removeFirst},
		{"another service in its network", func(p *workload.Project, _ *workload.Service) {
			p.Services[1].Namespaces.Network = workload.ServiceNamespace("web")
		}, removeFirst},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, v1, v2 := stopFirst(t, tc.edit)
			d.run(t, desired(2, deployment("d", v2)))
			if diff := cmp.Diff(tc.want, d.short(v1, v2)); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

// until plans and applies until a condition holds. fails says which steps fail.
func (d *device) until(t *testing.T, done func() bool, fails func(Step) bool) {
	t.Helper()
	for range 100 {
		if done() {
			return
		}
		d.round(t, fails)
	}
	t.Fatalf("it does not come; log %v", d.log)
}

// The old container runs on while the new one cannot be created, unless that needs what the old one holds.
func TestStopFirstKeepsWhatRuns(t *testing.T) {
	for name, tc := range map[string]struct {
		err  error
		want []string
	}{
		"an error":   {errors.New("boom"), nil},
		"a conflict": {fault.ErrConflict, removeFirst},
	} {
		t.Run(name, func(t *testing.T) {
			d, v1, v2 := stopFirst(t, func(*workload.Project, *workload.Service) {})
			old := d.containers[v1.Containers[0].ID]
			d.err = tc.err
			d.want = desired(2, deployment("d", v2))
			for range 20 {
				d.round(t, func(st Step) bool { return st.Verb == Create && len(d.containers) == 2 })
			}
			if diff := cmp.Diff(tc.want, d.short(v1, v2), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
			if got := d.containers[old.ID]; tc.want == nil && got != old {
				t.Errorf("the old container is %+v, was %+v", got, old)
			}
		})
	}
}

// While the start of the new container is being prepared, the old one runs on; only what comes before its stop is prepared.
func TestStopFirstPreparesTheStart(t *testing.T) {
	d, v1, v2 := stopFirst(t, func(*workload.Project, *workload.Service) {})
	fresh := v2.Containers[0].ID
	d.want = desired(2, deployment("d", v2))
	d.until(t, func() bool { _, ok := d.containers[fresh]; return ok }, func(st Step) bool {
		if st.Verb == Create && !st.Ahead {
			t.Errorf("%s: its start is not prepared", st.Key())
		}
		return false
	})
	d.sup.Busy[fresh] = Create
	for _, st := range Make(d.now, d.target(), d.observe(), d.sup, numbers).Steps {
		t.Errorf("%s while the start is being prepared", st.Key())
	}
	delete(d.sup.Busy, fresh)
	d.until(t, func() bool { return d.containers[fresh].Status == workload.Running }, nil)
	if diff := cmp.Diff([]string{"create web-1.v2", "stop web-1.v1", "start web-1.v2"}, d.short(v1, v2)); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

// A removal that fails keeps the new container neither from starting nor from getting the requests.
func TestStopFirstWaitsForNoRemoval(t *testing.T) {
	d, v1, v2 := stopFirst(t, func(*workload.Project, *workload.Service) {})
	fresh := v2.Containers[0].ID
	d.want = desired(2, deployment("d", v2))
	d.until(t, func() bool { return d.containers[fresh].Active && d.containers[fresh].Status == workload.Running }, func(st Step) bool { return st.Verb == Remove })
	if diff := cmp.Diff([]string{"create web-1.v2", "stop web-1.v1", "start web-1.v2", "activate web-1.v2"}, d.short(v1, v2)); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

// A start that fails may need what the old container still has.
func TestStopFirstMakesRoomForAStart(t *testing.T) {
	d, v1, v2 := stopFirst(t, func(*workload.Project, *workload.Service) {})
	d.want = desired(2, deployment("d", v2))
	tries := 0
	d.until(t, func() bool { return d.containers[v2.Containers[0].ID].Status == workload.Running }, func(st Step) bool {
		if st.Verb == Start {
			tries++
		}
		return st.Verb == Start && tries == 1
	})
	if diff := cmp.Diff([]string{"create web-1.v2", "stop web-1.v1", "remove web-1.v1", "start web-1.v2"}, d.short(v1, v2)); diff != "" {
		t.Errorf("steps (-want +got):\n%s", diff)
	}
}

// Requests do not go to a replica that has ended while another one answers.
func TestStopFirstLeavesNoEndedBackend(t *testing.T) {
	d, v1, v2 := stopFirst(t, func(_ *workload.Project, s *workload.Service) { s.Replicas, s.Update.Parallelism = 2, 1 })
	d.want = desired(2, deployment("d", v2))
	first, second := v1.Containers[0].ID, v1.Containers[1].ID
	d.until(t, func() bool { return d.containers[first].Status == workload.Exited }, nil)
	if !d.containers[second].Active || d.containers[second].Status != workload.Running {
		t.Fatalf("%+v does not answer", d.containers[second])
	}
	d.round(t, nil)
	if o := d.containers[first]; o.Active {
		t.Errorf("%+v answers after %v", o, d.short(v1, v2))
	}
	d.run(t, d.want)
}

// A target that changes while an update is under way leaves nothing behind, and keeps what it needs.
func TestStopFirstChangesItsMind(t *testing.T) {
	for _, tc := range []struct {
		name       string
		old, fresh workload.Status // when it changes
	}{{"created", workload.Running, workload.Created}, {"stopped", workload.Exited, workload.Created}, {"started", workload.Exited, workload.Running}} {
		t.Run(tc.name, func(t *testing.T) {
			d, v1, v2 := stopFirst(t, func(*workload.Project, *workload.Service) {})
			first, second := v1.Containers[0].ID, v2.Containers[0].ID
			before := d.containers[first]
			d.want = desired(2, deployment("d", v2))
			d.until(t, func() bool { return d.containers[second].Status == tc.fresh && d.containers[first].Status == tc.old }, func(st Step) bool { return st.Verb == Remove })
			if tc.old == workload.Exited { // the loop notes it when the target changes
				d.sup.Restarting[first] = ""
			}
			d.run(t, desired(3, deployment("d", v1)))
			got := d.containers[first]
			if len(d.containers) != 2 || got.Status != workload.Running || tc.old == workload.Running && got != before {
				t.Errorf("containers %+v after %v", d.containers, d.log)
			}
		})
	}
}

func TestReplicasInTurns(t *testing.T) {
	for _, tc := range []struct {
		name     string
		u        workload.Update
		least    int // running at any moment
		atOnce   int // more than needed at any moment
		duration time.Duration
	}{
		{"one at a time", workload.Update{Parallelism: 1}, 2, 0, 0},
		{"two at a time", workload.Update{Parallelism: 2}, 1, 0, 0},
		{"all at once", workload.Update{}, 0, 0, 0},
		{"one at a time, start-first", workload.Update{Parallelism: 1, Order: workload.StartFirst}, 3, 1, 0},
		{"all, start-first", workload.Update{Order: workload.StartFirst}, 3, 3, 0},
		{"with a pause", workload.Update{Parallelism: 1, Delay: time.Minute}, 2, 0, 2 * time.Minute},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := newDevice()
			web := func(image string) Component {
				return component("d", "app", replicated(healthy(service("web", image)), 3, tc.u))
			}
			d.run(t, desired(1, deployment("d", web("1"))))
			least, most, begin := 3, 0, d.now
			d.moment = func() {
				n := 0
				for _, c := range d.containers {
					if c.Status == workload.Running {
						n++
					}
				}
				least, most = min(least, n), max(most, n)
			}
			d.run(t, desired(2, deployment("d", web("2"))))
			if least != tc.least || most != 3+tc.atOnce {
				t.Errorf("between %d and %d ran, want %d and %d; log %v", least, most, tc.least, 3+tc.atOnce, d.short(web("1"), web("2")))
			}
			if got := d.now.Sub(begin); got < tc.duration || tc.duration > 0 && got > tc.duration+time.Minute {
				t.Errorf("took %v, want %v", got, tc.duration)
			}
		})
	}
}

func TestScaling(t *testing.T) {
	d := newDevice()
	web := func(n int) Component {
		return component("d", "app", replicated(service("web", "1"), n, workload.Update{Parallelism: 1}))
	}
	d.run(t, desired(1, deployment("d", web(2))))
	before := d.observe()
	d.log = nil
	d.run(t, desired(2, deployment("d", web(4))))
	d.run(t, desired(3, deployment("d", web(1))))
	for _, c := range before.Containers {
		if c.Replica == 1 && d.containers[c.ID].PID != c.PID {
			t.Errorf("replica 1 was touched: %v", d.log)
		}
	}
	if len(d.containers) != 1 {
		t.Errorf("left %v", d.containers)
	}
}

func TestRollback(t *testing.T) {
	for _, order := range []workload.Order{workload.StopFirst, workload.StartFirst} {
		t.Run(string(order), func(t *testing.T) {
			d := newDevice()
			app := func(image string) Component {
				return component("d", "app", service("db", "1"), replicated(service("web", image), 1, workload.Update{Order: order}))
			}
			v1, v2 := app("1"), app("2")
			d.run(t, desired(1, deployment("d", v1)))
			before := d.containers[v1.Containers[0].ID]
			d.broken = map[string]bool{v2.Containers[1].Service.Image.Name(): true}
			if order == workload.StartFirst {
				d.moment = func() {
					if c := d.containers[v1.Containers[1].ID]; c.Status != workload.Running || !c.Active {
						t.Errorf("the old one does not answer: %+v", c)
					}
				}
			}
			d.run(t, desired(2, deployment("d", v2)))
			if c := d.containers[v1.Containers[1].ID]; len(d.containers) != 2 || c.Status != workload.Running || !c.Active {
				t.Errorf("containers %v, want those of the first revision", d.containers)
			}
			if d.containers[before.ID].PID != before.PID {
				t.Error("what did not change was restarted")
			}
			s := d.before["d"]
			e := OverallError(s)
			if e == nil || e.Code != string(codes.ContainerExited) || !strings.Contains(e.Message, "exited with code 1") || !strings.HasSuffix(e.Message, "; rolled back to generation 1") {
				t.Errorf("error %+v", e)
			}
			if s.Digest != d.want.Deployments[0].Digest || s.Generation != 2 {
				t.Errorf("status is about %s of %d", s.Digest, s.Generation)
			}
			d.log, d.moment, d.sup = nil, nil, NewSupervision() // another process
			d.run(t, desired(2, deployment("d", v2)))
			if i := slices.IndexFunc(d.log, func(x string) bool { return !strings.HasPrefix(x, "prepare") }); i >= 0 {
				t.Errorf("tried again: %v", d.log)
			}
			d.broken = nil
			d.run(t, desired(3, deployment("d", app("3"))))
			if s := d.before["d"]; s.State != "installed" {
				t.Errorf("state %s, want installed", s.State)
			}
		})
	}
}

func TestFailureActions(t *testing.T) {
	run := func(t *testing.T, u workload.Update, broken int) (*device, Component) {
		t.Helper()
		d := newDevice()
		app := func(image string) Component {
			return component("d", "app", replicated(service("web", image), 4, u))
		}
		v2 := app("2")
		d.run(t, desired(1, deployment("d", app("1"))))
		d.want = desired(2, deployment("d", v2))
		for range 300 { // what fails is tried forever
			d.round(t, nil)
			for i := range broken {
				if c := d.containers[v2.Containers[i].ID]; c.Status == workload.Running {
					c.Status, c.ExitCode, c.PID, c.Run, c.Began = workload.Exited, 1, 0, "", 0
					d.containers[c.ID] = c
				}
			}
		}
		return d, v2
	}
	count := func(d *device, c Component) (n int) {
		for _, x := range c.Containers {
			if _, ok := d.containers[x.ID]; ok {
				n++
			}
		}
		return n
	}
	t.Run("pause", func(t *testing.T) {
		d, v2 := run(t, workload.Update{Parallelism: 1, FailureAction: workload.ActPause}, 1)
		if n := count(d, v2); n != 1 || len(d.containers) != 4 {
			t.Errorf("%d new of %d, want 1 of 4", n, len(d.containers))
		}
		if e := OverallError(d.before["d"]); e == nil || !strings.Contains(e.Message, "paused") {
			t.Errorf("error %+v", e)
		}
	})
	t.Run("continue", func(t *testing.T) {
		d, v2 := run(t, workload.Update{Parallelism: 1, FailureAction: workload.ActContinue}, 1)
		if n := count(d, v2); n != 4 || d.before["d"].State != "failed" || len(d.k.Bad) != 0 {
			t.Errorf("%d new, state %s, %d bad; want 4, failed, 0", n, d.before["d"].State, len(d.k.Bad))
		}
	})
	t.Run("continue beside one that cannot be created", func(t *testing.T) {
		d := newDevice()
		app := func(image string) Component {
			return component("d", "app", replicated(service("web", image), 3, workload.Update{Parallelism: 1, FailureAction: workload.ActContinue}))
		}
		v1, v2 := app("1"), app("2")
		d.run(t, desired(1, deployment("d", v1)))
		d.want = desired(2, deployment("d", v2))
		for range 50 {
			d.round(t, func(st Step) bool { return st.Verb == Create && st.Unit.Replica == 1 })
		}
		if n := count(d, v2); n != 2 || d.containers[v1.Containers[0].ID].Status != workload.Running {
			t.Errorf("%d new, want 2 beside the old one: %v", n, d.short(v1, v2))
		}
	})
	t.Run("within the ratio", func(t *testing.T) {
		d, v2 := run(t, workload.Update{Parallelism: 1, MaxFailureRatio: 0.25}, 1)
		if n := count(d, v2); n != 4 || len(d.k.Bad) != 0 {
			t.Errorf("%d new, %d bad; want 4, 0", n, len(d.k.Bad))
		}
	})
	t.Run("beyond the ratio", func(t *testing.T) {
		d, v2 := run(t, workload.Update{Parallelism: 2, MaxFailureRatio: 0.25}, 2)
		if n := count(d, v2); n != 0 || len(d.k.Bad) != 1 {
			t.Errorf("%d new, %d bad; want 0, 1", n, len(d.k.Bad))
		}
	})
}

// A container that ends again and again runs for a moment when an agent that was started again sees it first. That it failed
// before the next update is forgotten only when its run has lasted.
func TestAilingOutlivesARestartOfTheAgent(t *testing.T) {
	d := newDevice()
	app := component("d", "app", service("job", "1"), service("web", "1"))
	d.run(t, desired(1, deployment("d", app)))
	id := app.Containers[0].ID
	ailing := map[string]uint64{id: 1}
	d.sup = NewSupervision() // another process
	d.sup.FailedBefore = ailing
	if d.sup.FailedBefore = d.judge().FailedBefore; !maps.Equal(d.sup.FailedBefore, ailing) {
		t.Fatalf("ailing %v at the first look, want %v", d.sup.FailedBefore, ailing)
	}
	wake := Make(d.now, d.target(), d.observe(), d.sup, numbers).Wake
	if want := d.now.Add(settleTime); wake.IsZero() || wake.After(want) {
		t.Errorf("the next look is at %v, want it by %v", wake, want)
	}
	d.now = d.now.Add(settleTime)
	if a := d.judge().FailedBefore; len(a) != 0 {
		t.Errorf("ailing %v after a run of %v", a, settleTime)
	}
}
