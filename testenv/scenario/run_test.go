package scenario

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// device is where a scenario runs: all that steps do behind the agent's back, and see past it. What makes no sense on it is
// answered with errContainers.
type device interface {
	env(t *testing.T) agenttest.Env
	options(o *agent.Options)
	kill(r *run, o workload.Observation) error
	exit(r *run, o workload.Observation, code uint32) error
	delete(r *run, o workload.Observation) error
	lose(r *run, o workload.Observation) error
	pause(r *run, o workload.Observation) error
	sicken(r *run, o workload.Observation, sick bool) error
	reboot(r *run) error
	restartContainerd(r *run) error
	breakFirewall(r *run) error
	breakBridge(r *run, network string) error
	breakDatabase(r *run) error // what the device keeps of agent.db, while the agent is stopped
	occupy(r *run, port int) error
	lock(project, text string) error // writes a project's update lock, as its application does; text "": removes it
	lacks(what string) string        // why the device lacks a feature; "": it has it
	// http asks a server: of the device itself where o is nil, else inside of a container's network.
	http(r *run, o *workload.Observation, url string) (string, error)
	look(r *run, o workload.Observation, p property) error
	log(r *run, o workload.Observation) (string, error)
}

// run is one scenario on one device.
type run struct {
	t       *testing.T
	s       *Scenario
	d       device
	w       *agenttest.World
	runtime agent.Runtime
	agent   *agenttest.Running
	apps    []agenttest.App
	rules   rules
	gen     uint64
	sync    chan status.SyncResult          // of the last deploy
	result  *status.SyncResult              // what came of it
	before  map[string]workload.Observation // what was there before the last thing that was done
}

// Run does a scenario on a device.
func (s *Scenario) run(t *testing.T, d device) {
	t.Helper()
	for _, n := range s.Needs {
		if why := d.lacks(n.What); why != "" {
			t.Skipf("%s: %s; %s", n.What, why, n.Why)
		}
	}
	r := &run{t: t, s: s, d: d, w: agenttest.NewWorld(t, d.env(t))}
	r.w.Edit = func(o *agent.Options) { d.options(o); r.rules.edit(o) }
	r.runtime = r.w.Runtime(t)
	r.agent = r.w.Start(t)
	over := 0
	var slow []string
	for _, step := range s.Steps {
		began := time.Now()
		err := step.act(r)
		if errors.Is(err, errContainers) {
			over++
			continue
		}
		if err != nil {
			t.Fatalf("%s:%d: %s: %v\n%s\nslow steps: %q", s.File, step.Line, step.Text, err, r.describe(), slow)
		}
		if took := time.Since(began); took > 2*time.Second {
			slow = append(slow, fmt.Sprintf("%d: %s: %v", step.Line, step.Text, took.Round(time.Millisecond)))
		}
	}
	if over > 0 {
		t.Logf("%d of %d steps passed over: they need real containers", over, len(s.Steps))
	}
	r.agent.Stop(t)
}

// describe shows the device when something went wrong.
func (r *run) describe() string {
	b, _ := json.MarshalIndent(r.agent.Status(), "", "  ") // plain values
	seen, err := r.observe()
	out := fmt.Sprintf("sync: %+v\nstatus: %s\ncontainers (%v):\n", r.outcome(), b, err)
	for _, name := range sorted(seen) {
		out += fmt.Sprintf("  %s: %+v\n", name, seen[name])
	}
	return out
}

// poll asks until check returns nil. In a bubble of testing/synctest the pauses take no time.
func (r *run) poll(limit time.Duration, check func() error) error {
	pause := firstLook
	for waited := time.Duration(0); ; waited += pause {
		err := check()
		if err == nil || errors.Is(err, errContainers) {
			return err
		}
		if waited >= limit {
			return fmt.Errorf("waited %v: %w", limit, err)
		}
		time.Sleep(pause)
		pause = min(2*pause, lastLook)
	}
}

// image finds the images that a Compose file names.
var image = regexp.MustCompile(regexp.QuoteMeta(imageHost) + `/([a-z0-9-]+:[a-z0-9.-]+)`)

// imageHost is where the images of scenarios are.
const imageHost = "plant.example"

// deploy publishes a state in which app runs a revision, and asks the agent to look at it.
func (r *run) deploy(name, revision string, parameters [][2]string) error {
	files := r.s.Revisions[revision]
	c := agenttest.Comp{Name: name, Version: fmt.Sprintf("1.0.%d", r.gen+1), Compose: string(files["compose.yaml"].Data), Files: files}
	seen := map[string]bool{}
	for _, m := range image.FindAllStringSubmatch(c.Compose, -1) {
		if !seen[m[1]] {
			seen[m[1]] = true
			c.Services = append(c.Services, agenttest.Service{Name: m[1], Image: m[1]})
		}
	}
	a := agenttest.App{ID: len(r.apps) + 1, Name: name, Components: []agenttest.Comp{c}}
	var b strings.Builder
	for i, p := range parameters {
		fmt.Fprintf(&b, "    p%d:\n      value: %q\n      targets: [{pointer: %s, components: [%s]}]\n", i, p[1], p[0], name)
	}
	a.Parameters = b.String()
	i := slices.IndexFunc(r.apps, func(x agenttest.App) bool { return x.Name == name })
	if i < 0 {
		r.apps = append(r.apps, a)
	} else {
		a.ID = r.apps[i].ID
		r.apps[i] = a
	}
	return r.publish()
}

func (r *run) remove(name string) error {
	n := len(r.apps)
	r.apps = slices.DeleteFunc(slices.Clone(r.apps), func(x agenttest.App) bool { return x.Name == name })
	if len(r.apps) == n {
		return fmt.Errorf("there is no app %s", name)
	}
	return r.publish()
}

func (r *run) publish() error {
	r.gen++
	r.w.Publish(r.t, r.gen, r.apps...)
	r.ask()
	return nil
}

// ask lets the agent look at the registry now. The answer comes later.
func (r *run) ask() {
	reply := make(chan status.SyncResult, 1)
	r.sync, r.result = reply, nil
	a, ctx := r.agent, r.t.Context()
	go func() { // ends with the agent
		if res, err := a.Sync(ctx); err == nil {
			reply <- res
		}
	}()
}

// outcome is how the last sync ended, nil while it has not.
func (r *run) outcome() *status.SyncResult {
	if r.result == nil {
		select {
		case res := <-r.sync:
			r.result = &res
		default:
		}
	}
	return r.result
}

func (r *run) restartAgent() {
	r.agent.Stop(r.t)
	r.agent = r.w.Start(r.t)
}

// breakDatabase fills agent.db with zeros, as a disk may that lost its power.
func (r *run) breakDatabase() error {
	r.agent.Stop(r.t)
	r.w.Replace = true
	if err := errors.Join(os.WriteFile(r.w.Path, make([]byte, 1<<16), 0o600), r.d.breakDatabase(r)); err != nil {
		return err
	}
	r.agent = r.w.Start(r.t)
	return nil
}

func (r *run) offline(yes bool) {
	if !yes {
		r.w.Registry.Fail(nil)
		r.w.Fleet.Fail(nil)
		return
	}
	away := func() error { return fmt.Errorf("connection refused: %w", fault.ErrTemporary) }
	r.w.Registry.Fail(func(string) error { return away() })
	r.w.Fleet.Fail(func(store.Report) error { return away() })
}

// observe lists what is there: "app/service#replica"; what is not active of the same name gets its id in addition.
func (r *run) observe() (map[string]workload.Observation, error) {
	seen, err := r.runtime.Observe(r.t.Context())
	if err != nil {
		return nil, err
	}
	out := map[string]workload.Observation{}
	for _, o := range seen.Containers {
		name := fmt.Sprintf("%s/%s#%d", o.Component, o.Service, o.Replica)
		if other, ok := out[name]; ok {
			if !o.Active {
				other, o = o, other
			}
			out[name+" "+other.ID] = other
		}
		out[name] = o
	}
	return out, nil
}

// mark remembers what is there before something is done.
func (r *run) mark() {
	seen, err := r.observe()
	if err == nil {
		r.before = seen
	}
}

func (s service) key() string {
	app := s.app
	if app == "" {
		app = firstApp
	}
	return fmt.Sprintf("%s/%s#%d", app, s.name, max(s.replica, 1))
}

// one is a service's container, with an error when there is none.
func (r *run) one(s service) (workload.Observation, error) {
	seen, err := r.observe()
	if err != nil {
		return workload.Observation{}, err
	}
	o, ok := seen[s.key()]
	if !ok {
		return o, fmt.Errorf("there is no container of %s; there are %v", s, sorted(seen))
	}
	return o, nil
}

func sorted[V any](m map[string]V) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// deployment is an app as the agent's status shows it.
func (r *run) deployment(name string) (*status.Deployment, error) {
	st := r.agent.Status()
	for i := range st.Deployments {
		if st.Deployments[i].Name == name {
			return &st.Deployments[i], nil
		}
	}
	return nil, fmt.Errorf("the status knows no app %s", name)
}

// current is nil when the device runs the state that was published last, or changes to it.
func (r *run) current() error {
	st := r.agent.Status()
	if st.Running == nil || st.Running.Generation != r.gen {
		return fmt.Errorf("the device is not at generation %d", r.gen)
	}
	return nil
}

func (r *run) installed(app string) error {
	if err := r.current(); err != nil {
		return err
	}
	d, err := r.deployment(app)
	if err != nil {
		return err
	}
	if d.State != margo.StateInstalled {
		return fmt.Errorf("%s is %s", app, d.State)
	}
	if st := r.agent.Status(); len(r.apps) == 1 && (st.Phase != status.PhaseInSync || st.Committed == nil || st.Committed.Generation != r.gen) {
		return fmt.Errorf("the device is %q", st.Phase)
	}
	return nil
}

func (r *run) failed(app string, code codes.Code, text string) error {
	if st := r.agent.Status(); st.Accepted == nil || st.Accepted.Generation != r.gen {
		return fmt.Errorf("generation %d is not accepted", r.gen)
	}
	// What cannot be loaded never becomes the running state: the result of sync has the error.
	if res := r.outcome(); res != nil && res.Outcome == status.SyncFailed && res.Code == code && strings.Contains(res.Message, text) {
		return nil
	}
	d, err := r.deployment(app)
	if err != nil {
		return err
	}
	if d.State != margo.StateFailed || d.Error == nil {
		return fmt.Errorf("%s is %s", app, d.State)
	}
	if d.Error.Code != string(code) || !strings.Contains(d.Error.Message, text) {
		return fmt.Errorf("%s failed with %s: %s", app, d.Error.Code, d.Error.Message)
	}
	return nil
}

func (r *run) refused(code codes.Code, text string) error {
	res := r.outcome()
	if res == nil {
		return errors.New("no answer yet")
	}
	if res.Outcome != status.SyncRefused || res.Code != code || !strings.Contains(res.Message, text) {
		return fmt.Errorf("the answer is %+v", *res)
	}
	return nil
}

func (r *run) problem(code codes.Code, text string) error {
	st := r.agent.Status()
	for _, p := range st.Problems {
		if p.Code == code && strings.Contains(p.Message, text) {
			return nil
		}
	}
	return fmt.Errorf("the problems are %+v", st.Problems)
}

func (r *run) removed(app string) error {
	if err := r.current(); err != nil {
		return err
	}
	if _, err := r.deployment(app); err == nil {
		return fmt.Errorf("the status knows %s", app)
	}
	seen, err := r.observe()
	if err != nil {
		return err
	}
	for name := range seen {
		if strings.HasPrefix(name, app+"/") {
			return fmt.Errorf("container %s is there", name)
		}
	}
	return nil
}
