package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
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
}

func newDevice() *device {
	return &device{
		model: newModel(), now: t0, sup: NewSupervision(), before: map[string]store.Status{},
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
			d.sup.Fail(d.now, st, fmt.Errorf("no luck"), numbers)
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
			want := []string{"stop web-1.v1", "remove web-1.v1", "create web-1.v2", "start web-1.v2"}
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
	if want := d.now.Add(numbers.Settle); wake.IsZero() || wake.After(want) {
		t.Errorf("the next look is at %v, want it by %v", wake, want)
	}
	d.now = d.now.Add(numbers.Settle)
	if a := d.judge().FailedBefore; len(a) != 0 {
		t.Errorf("ailing %v after a run of %v", a, numbers.Settle)
	}
}
