// Package approve has people and programs decide at a device about its changes: the real programs, containerd, other users of the machine,
// and a disk whose power is cut.
package approve

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1"
	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

func TestMain(m *testing.M) {
	testenv.SideBySide(2) // devices, which mostly wait
	goleak.VerifyTestMain(m, testenv.LeakOptions()...)
}

const (
	limit = 3 * time.Minute // an update lock counts until its owner has been away for one
	disk  = 1 << 30

	// Every Linux has these: gid 1 decides at the socket, uid 1 by files.
	group, owner = "daemon", "daemon"
	groupID      = 1
	ownerID      = 1
	member       = 4711 // a user of the group, without a name
	stranger     = 4712 // one who is not
)

// press is a device with two applications, line and other, of one service each. All of it is on a disk whose power can be cut.
type press struct {
	*world.World
	t          *testing.T
	disk       *testenv.Disk
	toolbox    v1.Image
	apps       map[string]string // what each one's Compose file says beside its image
	images     map[string]string // the newest, by application
	pushed     map[string]string // components, by application
	generation uint64
	policy     uint64 // version of the trust policy that was pushed last; 0: none
	kinds      string // of changes that wait; "": those of images, configuration and removals
	only       string // the deployment whose changes wait; "": all
	validFor   string // of an approval; "": an hour
	decisions  string // the directory
}

func newPress(t *testing.T, name, pool string) *press {
	t.Helper()
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "needs root")
	}
	for _, program := range []string{"setpriv", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			testenv.Unavailable(t, "%v", err)
		}
	}
	ctx := t.Context()
	box := testenv.NewBox(t)
	p := &press{t: t, apps: map[string]string{}, images: map[string]string{}, pushed: map[string]string{}}
	var err error
	p.disk, err = box.NewDisk(ctx, disk)
	p.must(err)
	daemon, err := testenv.StartContainerd(ctx, testenv.DaemonOptions{Box: box, Out: t.Output(), Root: filepath.Join(p.disk.Dir, "containerd")})
	p.must(err)
	p.World, err = world.New(ctx, world.Options{Box: box, Out: t.Output(), Name: name, Pool: pool, Poll: 10 * time.Minute, Containerd: daemon})
	p.must(err)
	p.toolbox, err = testenv.SoftwareImage(ctx, t.Output(), "toolbox", testenv.HostPlatform())
	p.must(err)
	_, err = p.Run(ctx, "longshore", "key", "generate", "release")
	p.must(err)
	p.decisions = filepath.Join(p.disk.Dir, "panel")
	return p
}

func (p *press) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// boot installs the first generation, undisturbed. flags are more of init.
func (p *press) boot(flags ...string) {
	p.t.Helper()
	p.publish("line", "other")
	p.must(p.Init(p.t.Context(), append([]string{"--data-dir", filepath.Join(p.disk.Dir, "agent")}, flags...)...))
	p.configure("")
	p.must(p.Boot(p.t.Context()))
	p.until("the agent answers", func() error {
		_, err := p.Status(p.t.Context())
		return err
	})
	p.synced()
	p.must(p.Settled(p.t.Context(), p.generation, limit))
}

// configure writes agent.yaml anew, with lines more at its end. The agent reads it when it starts.
func (p *press) configure(more string) {
	p.t.Helper()
	file := p.Path("etc/agent.yaml")
	data, err := os.ReadFile(file)
	p.must(err)
	head, _, _ := strings.Cut(string(data), "approvals:")
	text := fmt.Sprintf("%sapprovals: {changes: [%s], deployments: [%q], group: %s, directory: %s, owner: %s, validFor: %s}\n%s", head, cmp.Or(p.kinds, "images, configuration, removal"), cmp.Or(p.only, "*"), group, p.decisions, owner, cmp.Or(p.validFor, "1h"), more)
	p.must(os.WriteFile(file, []byte(text), 0o644))
	_, err = p.Run(p.t.Context(), "longshore-agent", "check-config", "--config", file)
	p.must(err)
}

func (p *press) restart(more string) {
	p.t.Helper()
	p.configure(more)
	p.again()
}

// again ends the agent and starts it as it is configured.
func (p *press) again() {
	p.t.Helper()
	p.must(p.Agent.Stop())
	p.must(p.Boot(p.t.Context()))
	p.answers()
}

// answers waits until the agent has read what it knew before.
func (p *press) answers() {
	p.t.Helper()
	p.until("the agent answers", func() error {
		s, err := p.Status(p.t.Context())
		if err == nil && len(s.Deployments) == 0 {
			err = errors.New("it has no deployments yet")
		}
		return err
	})
}

// publish gives applications a new image, one state after the other.
func (p *press) publish(apps ...string) {
	p.t.Helper()
	for _, app := range apps {
		p.release(app)
	}
}

// release publishes a state in which an application has a new image.
func (p *press) release(app string, flags ...string) {
	p.t.Helper()
	p.push(app)
	p.publishes(app, flags...)
}

// publishes has the next state name the newest component of an application.
func (p *press) publishes(app string, flags ...string) {
	p.t.Helper()
	p.must(p.Release(p.t.Context(), p.pushed[app], flags...))
	p.Registry.Faults.Forget()
}

// push makes a component of an application with a new image, for the next generation.
func (p *press) push(app string) {
	p.t.Helper()
	ctx := p.t.Context()
	p.generation++
	tag := fmt.Sprintf("1.0.%d", p.generation)
	img, err := testenv.AppendLayers(p.toolbox, []testenv.File{{Path: "lib/" + app, Data: []byte(tag)}})
	p.must(err)
	pushed, err := p.Registry.Push(ctx, "plant/"+app+":"+tag, img)
	p.must(err)
	p.images[app] = pushed.Tagged()
	p.component(app)
}

// component makes a component of an application with its newest image, for the present generation.
func (p *press) component(app string) {
	p.t.Helper()
	var err error
	p.pushed[app], err = p.Component(p.t.Context(), app, fmt.Sprintf("1.0.%d", p.generation),
		fmt.Sprintf("services:\n  main:\n    image: %s\n    command: [sleep]\n    restart: always\n%s", p.images[app], p.apps[app]))
	p.must(err)
}

// synced has the agent look now, and waits for what comes of it; that changes wait is no error.
func (p *press) synced() {
	p.t.Helper()
	if _, err := p.Control(p.t.Context(), "sync", "--timeout", "1m"); exit(err) > 1 {
		p.t.Fatal(err)
	}
}

// exit is the exit code of a program that an error is about; -1: it is about something else.
func exit(err error) int {
	var e *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.ExitCode()
	}
	return -1
}

// until polls.
func (p *press) until(what string, check func() error) {
	p.t.Helper()
	if err := testenv.Await(p.t.Context(), limit, check); err != nil {
		p.t.Fatalf("%s: %v\n%s", what, err, p.Logs())
	}
}

// change is what is to be made of an application; nil: nothing.
func (p *press) change(ctx context.Context, app string) (*status.Change, error) {
	text, err := p.Control(ctx, "changes", "-o", "json")
	if err != nil {
		return nil, err
	}
	var all []status.Change
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return nil, err
	}
	for i, c := range all {
		if c.Deployment == app {
			return &all[i], nil
		}
	}
	return nil, nil
}

// waits waits until the change of an application does, for a reason.
func (p *press) waits(app string, code codes.Code) status.Change {
	p.t.Helper()
	var c *status.Change
	p.until(fmt.Sprintf("%s waits: %s", app, code), func() (err error) {
		c, err = p.change(p.t.Context(), app)
		switch {
		case err != nil:
			return err
		case c == nil || c.Waiting == nil || c.Waiting.Code != code || !c.Begun.IsZero():
			return fmt.Errorf("the change is %+v", c)
		}
		return nil
	})
	return *c
}

// applied waits until an application runs the newest image that was pushed of it, in one container, and nothing of it is left to change.
func (p *press) applied(app string) {
	p.t.Helper()
	p.until(app+" is changed", func() error {
		c, err := p.change(p.t.Context(), app)
		if err == nil && c != nil {
			err = fmt.Errorf("its change is %+v, it waits for %+v", c, c.Waiting)
		}
		if err != nil {
			return err
		}
		return p.runs(app, p.pushed[app], p.images[app])
	})
}

// runs reports whether an application runs a component and an image that were pushed, in one container.
func (p *press) runs(app, component, image string) error {
	tag := func(reference string) string { return reference[strings.LastIndexByte(reference, ':')+1:] }
	want, made := tag(component), tag(image)
	d, err := p.deployment(app)
	if err != nil {
		return err
	}
	x := d.Components[0]
	there := x.Revision == want && x.State == "installed"
	if len(d.Running) > 0 { // another revision waits
		there = d.Running[0].Revision == want
	}
	if !there || len(x.Services) != 1 || x.Services[0].PID == 0 {
		return fmt.Errorf("%s is to run %s, it is %+v", app, want, d)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/lib/%s", x.Services[0].PID, app))
	if err == nil && string(text) != made {
		err = fmt.Errorf("the image of %s says %q, want %q", app, text, made)
	}
	return err
}

func (p *press) deployment(app string) (*status.Deployment, error) {
	s, err := p.Status(p.t.Context())
	if err != nil {
		return nil, err
	}
	for i := range s.Deployments {
		if s.Deployments[i].Name == app {
			return &s.Deployments[i], nil
		}
	}
	return nil, fmt.Errorf("there is no deployment %s: %+v", app, s.Deployments)
}

// processes are the containers of the device and their first processes. nothing moved while they stay the same.
func (p *press) processes() map[string]uint32 {
	p.t.Helper()
	s, err := p.Status(p.t.Context())
	p.must(err)
	return world.Processes(s)
}

func (p *press) unmoved(before map[string]uint32, after string) {
	p.t.Helper()
	if now := p.processes(); !maps.Equal(before, now) {
		p.t.Errorf("%s: the processes were %v, are %v", after, before, now)
	}
}

// as runs a command of the device as another user, at the operators' socket.
func (p *press) as(uid int, command string, args ...string) (string, error) {
	argv := append(asUser(uid), filepath.Join(p.Bin, "longshore-agent"), command)
	return p.Box.Output(p.t.Context(), append(p.Environment(), "LONGSHORE_SOCKET="+p.Path("run-operators/agent.sock")), append(argv, args...)...)
}

func asUser(uid int) []string {
	groups := "--clear-groups"
	if uid == member {
		groups = fmt.Sprintf("--groups=%d", groupID)
	}
	return []string{"setpriv", fmt.Sprintf("--reuid=%d", uid), fmt.Sprintf("--regid=%d", uid), groups}
}

// posts sends a request with curl as another user, at the operators' socket, and returns the answer, which must have a status.
func (p *press) posts(uid, status int, path string, body any) string {
	p.t.Helper()
	data, ok := body.(string)
	if !ok {
		text, err := json.Marshal(body)
		p.must(err)
		data = string(text)
	}
	out, err := p.curl(uid, "--data", data, "http://agent"+path)
	p.must(err)
	answer, code, _ := strings.Cut(out, "\n\n")
	if code != fmt.Sprint(status) {
		p.t.Errorf("POST %s %s = %s %s, want %d", path, data, code, answer, status)
	}
	return answer
}

// curl prints the answer to a request at the operators' socket, an empty line, and its status.
func (p *press) curl(uid int, args ...string) (string, error) {
	argv := append(asUser(uid), "curl", "--silent", "--show-error", "--write-out", "\n%{http_code}", "--unix-socket", p.Path("run-operators/agent.sock"))
	return p.Box.Output(p.t.Context(), nil, append(argv, args...)...)
}

// decide puts a decision of the owner into the directory, complete and durable.
func (p *press) decide(name string, d control.Decision) {
	p.t.Helper()
	data, err := json.Marshal(d)
	p.must(err)
	hidden := filepath.Join(p.decisions, "."+name)
	p.must(os.WriteFile(hidden, data, 0o644))
	p.must(os.Chown(hidden, ownerID, ownerID))
	p.synchronize(hidden)
	p.must(os.Rename(hidden, filepath.Join(p.decisions, name+".decision")))
	p.synchronize(p.decisions)
}

// synchronize writes a file or a directory to the disk.
func (p *press) synchronize(name string) {
	p.t.Helper()
	f, err := os.Open(name)
	p.must(err)
	p.must(errors.Join(f.Sync(), f.Close()))
}

// result waits for what became of a decision.
func (p *press) result(name string) (r control.Result) {
	p.t.Helper()
	p.until(name+".result", func() error {
		data, err := os.ReadFile(filepath.Join(p.decisions, name+".result"))
		if err != nil {
			return err
		}
		return json.Unmarshal(data, &r)
	})
	return r
}

// events are those of a kind, as the agent tells them now.
func (p *press) events(kind status.EventKind) (out []status.Event) {
	p.t.Helper()
	text, err := p.Control(p.t.Context(), "events", "--kind", string(kind), "-o", "json")
	p.must(err)
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var e status.Event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			p.t.Fatal(err)
		}
		out = append(out, e)
	}
}

// told reports how often the events have a message about a change.
func (p *press) told(c status.Change, message string) (n int) {
	p.t.Helper()
	for _, e := range p.events(status.EventChange) {
		if e.Digest == c.ID && e.Message == message {
			n++
		}
	}
	return n
}
