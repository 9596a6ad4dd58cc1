package approve

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/testenv"
)

// One device and everybody who may decide on its changes, or tries to.
func TestRoads(t *testing.T) {
	t.Parallel()
	p := newPress(t, "roads", "10.206.0.0/16")
	p.apps["line"] = "    volumes: [\"update-lock:/lock\"]\nvolumes: {update-lock: {}}\n"
	p.boot()
	for _, step := range []struct {
		name string
		do   func(p *press)
	}{
		{"who may not decide, and what is no decision", strangers},
		{"a member of the group", func(p *press) {
			c := p.waits("line", codes.ApprovalNeeded)
			if _, err := p.as(member, "approve", "line"); err != nil {
				p.t.Fatal(err)
			}
			p.applied("line")
			if n := p.told(c, fmt.Sprintf("approved by user %d", member)); n != 1 {
				p.t.Errorf("told %d times", n)
			}
		}},
		{"root, after a member rejected it", func(p *press) {
			p.publish("line")
			p.synced()
			c := p.waits("line", codes.ApprovalNeeded)
			if _, err := p.as(member, "reject", "--reason", "the shift ends", "line"); err != nil {
				p.t.Fatal(err)
			}
			if w := p.waits("line", codes.ChangeRejected).Waiting.Message; !strings.Contains(w, fmt.Sprintf("user %d: the shift ends", member)) {
				p.t.Errorf("it waits: %s", w)
			}
			_, err := p.Control(p.t.Context(), "approve", "--id", c.ID.String(), "line")
			p.must(err)
			p.applied("line")
		}},
		{"a file of the owner", func(p *press) {
			p.publish("line")
			p.synced()
			c := p.waits("line", codes.ApprovalNeeded)
			p.decide("hmi-1", control.Decision{Deployment: "line", ID: c.ID, Verdict: store.Approved})
			if r := p.result("hmi-1"); r.Error != "" || r.Change == nil || r.Change.Decision == nil || r.Change.Decision.Via != "file" {
				p.t.Errorf("result %+v", r)
			}
			p.applied("line")
			if n := p.told(c, "approved by user "+owner+", file hmi-1"); n != 1 {
				p.t.Errorf("told %d times: %+v", n, p.events(status.EventChange))
			}
		}},
		{"a rejection and postponements by file", byFile},
		{"who may not by HTTP, and a postponement", overHTTP},
		{"nobody, for the application that asks nobody", leftOut},
		{"all at once", together},
		{"approved and rejected at once", opposed},
		{"a removal", func(p *press) {
			p.release("line", "--replace")
			p.synced()
			if c := p.waits("other", codes.ApprovalNeeded); len(c.Kinds) != 1 || c.Kinds[0] != plan.Removal {
				p.t.Errorf("the change is %+v", c)
			}
			_, err := p.Control(p.t.Context(), "approve", "--all")
			p.must(err)
			p.applied("line")
			p.must(p.Settled(p.t.Context(), p.generation, limit))
			if d, err := p.deployment("other"); err == nil {
				p.t.Errorf("it is still there: %+v", d)
			}
		}},
		{"a window, and an approval that ends before it", windows},
		{"a lock whose owner is gone", lostOwner},
		{"back by hand", backByHand},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			p.t = t
			step.do(p)
		}) {
			t.Log(p.Logs())
			return
		}
	}
	p.t = t
}

// strangers leaves a change that waits.
func strangers(p *press) {
	p.publish("line")
	p.synced()
	c := p.waits("line", codes.ApprovalNeeded)
	before := p.processes()

	root := p.Path("run/agent.sock")
	for what, try := range map[string]func() (string, error){
		"a user without the group":  func() (string, error) { return p.as(stranger, "approve", "line") },
		"a member at root's socket": func() (string, error) { return p.as(member, "approve", "--socket", root, "line") },
		"another change's id": func() (string, error) {
			return p.as(member, "approve", "--id", "sha256:"+strings.Repeat("0", 64), "line")
		},
		"an application without a change":  func() (string, error) { return p.Control(p.t.Context(), "approve", "other") },
		"a rejection without a reason":     func() (string, error) { return p.as(member, "reject", "line") },
		"a generation that is not here":    func() (string, error) { return p.as(member, "rollback", "--to", "77") },
		"a release of what is not held":    func() (string, error) { return p.as(member, "release") },
		"postponed for longer than it may": func() (string, error) { return p.as(member, "postpone", "--for", "9000h", "line") },
	} {
		if out, err := try(); exit(err) <= 0 || strings.Contains(fmt.Sprint(err), "panic") {
			p.t.Errorf("%s: %q, %v", what, out, err)
		}
	}
	if _, err := p.as(stranger, "approve", "line"); !strings.Contains(fmt.Sprint(err), "permission denied") {
		p.t.Errorf("a user without the group is told %v", err)
	}
	// What belongs to root alone is not answered to members: neither output nor processes in containers, nor the volumes.
	config := p.Path("etc/operators.yaml")
	p.must(os.WriteFile(config, fmt.Appendf(nil, "device: %s\nstate: oci://%s\nrunDir: %s\n", p.Device, p.Reference("plant/state"), p.Path("run-operators")), 0o644))
	for command, args := range map[string][]string{"logs": {"line"}, "exec": {"line", "/toolbox", "env"}, "volumes": nil, "ps": nil, "events": nil, "stats": nil} {
		if out, err := p.as(member, command, append([]string{"--config", config}, args...)...); exit(err) <= 0 {
			p.t.Errorf("a member gets an answer to %s: %q, %v", command, out, err)
		}
	}
	if out, err := p.as(member, "changes"); err != nil || !strings.Contains(out, "line") {
		p.t.Errorf("a member sees %q, %v", out, err)
	}
	if out, err := p.as(member, "status"); err != nil || !strings.Contains(out, "waiting for approval") {
		p.t.Errorf("a member sees %q, %v", out, err)
	}

	good := fmt.Sprintf(`{"deployment": "line", "id": %q, "verdict": "approved"}`, c.ID)
	old := time.Now().Add(-time.Hour)
	file := func(text string, uid int, mode os.FileMode) func(string) error {
		return func(f string) error {
			for _, do := range []func() error{
				func() error { return os.WriteFile(f+".new", []byte(text), 0o600) }, func() error { return os.Chown(f+".new", uid, uid) },
				func() error { return os.Chmod(f+".new", mode) }, func() error { return os.Chtimes(f+".new", old, old) }, func() error { return os.Rename(f+".new", f) },
			} {
				if err := do(); err != nil {
					return err
				}
			}
			return nil
		}
	}
	bad := map[string]struct {
		make func(file string) error
		want string
	}{
		"directory": {func(f string) error { return os.Mkdir(f, 0o755) }, "no regular file"},
		"symlink":   {func(f string) error { return os.Symlink(p.Path("etc/agent.yaml"), f) }, "no regular file"},
		"half":      {file(good[:len(good)/2], ownerID, 0o644), "read the request"},
		"stranger":  {file(good, stranger, 0o644), "neither root nor"},
		"everybody": {file(good, ownerID, 0o666), "lets others write"},
		"large":     {file(strings.Repeat(" ", 17<<10)+good, ownerID, 0o644), "more than"},
		"stale":     {file(strings.Replace(good, c.ID.String(), "sha256:"+strings.Repeat("0", 64), 1), ownerID, 0o644), "that waits is " + c.ID.String()},
	}
	for name, x := range bad {
		p.must(x.make(filepath.Join(p.decisions, name+".decision")))
	}
	for name, x := range bad {
		if r := p.result(name); r.Change != nil || !strings.Contains(r.Error, x.want) {
			p.t.Errorf("%s: %+v, want %q", name, r, x.want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(p.decisions, "*.decision")); len(left) > 0 {
		p.t.Errorf("still there: %v", left)
	}
	if now := p.waits("line", codes.ApprovalNeeded); now.ID != c.ID || now.Decision != nil {
		p.t.Errorf("somebody decided: %+v", now)
	}
	p.unmoved(before, "nobody who may has decided")
}

// byFile: what the owner rejects and postpones by files waits, with the reason, until a later file approves it.
func byFile(p *press) {
	p.publish("line")
	p.synced()
	c := p.waits("line", codes.ApprovalNeeded)
	before := p.processes()
	decide := func(name, refused string, d control.Decision) {
		p.t.Helper()
		d.Deployment, d.ID = "line", c.ID
		p.decide(name, d)
		switch r := p.result(name); {
		case refused == "" && (r.Error != "" || r.Change == nil || r.Change.Decision == nil || r.Change.Decision.Verdict != d.Verdict):
			p.t.Errorf("%s: %+v", name, r)
		case refused != "" && (r.Change != nil || !strings.Contains(r.Error, refused)):
			p.t.Errorf("%s: %+v, want an error with %q", name, r, refused)
		}
	}
	decide("hmi-3", "reason", control.Decision{Verdict: store.Rejected})
	decide("hmi-4", "", control.Decision{Verdict: store.Rejected, Reason: "line 3 is busy"})
	if w := p.waits("line", codes.ChangeRejected).Waiting.Message; !strings.Contains(w, owner) || !strings.Contains(w, "hmi-4: line 3 is busy") {
		p.t.Errorf("it waits: %s", w)
	}
	decide("hmi-5", "until", control.Decision{Verdict: store.Postponed})
	decide("hmi-6", "", control.Decision{Verdict: store.Postponed, Until: time.Now().Add(time.Hour), Reason: "batch 17"})
	if w := p.waits("line", codes.ChangePostponed).Waiting; !strings.Contains(w.Message, "batch 17") || w.Until.Before(time.Now().Add(50*time.Minute)) {
		p.t.Errorf("it waits: %+v", w)
	}
	decide("hmi-7", "", control.Decision{Verdict: store.Postponed, Until: time.Now().Add(10 * time.Second)})
	p.waits("line", codes.ApprovalNeeded)
	p.unmoved(before, "rejected and postponed")
	decide("hmi-8", "", control.Decision{Verdict: store.Approved})
	p.applied("line")
}

// overHTTP: the group decides at its socket with any program that speaks HTTP; nobody else does, and nothing else is answered.
func overHTTP(p *press) {
	p.publish("line")
	p.synced()
	c := p.waits("line", codes.ApprovalNeeded)
	before := p.processes()
	approve := control.Decision{Deployment: "line", ID: c.ID, Verdict: store.Approved}
	if out, err := p.curl(stranger, "http://agent/v1/changes"); exit(err) != 7 { // curl's code: it could not connect
		p.t.Errorf("a stranger is answered %s, %v", out, err)
	}
	another := approve
	another.ID = digest.FromString("another")
	p.posts(member, http.StatusConflict, "/v1/decisions", another)
	p.posts(member, http.StatusNotFound, "/v1/decisions", control.Decision{Deployment: "none", ID: c.ID, Verdict: store.Approved})
	for _, body := range []string{"", "{", `[]`, `{"deployment": "line", "id": "` + c.ID.String() + `", "verdict": "perhaps"}`, `{"deployment": "line", "by": "root"}`, strings.Repeat(" ", 17<<10)} {
		p.posts(member, http.StatusBadRequest, "/v1/decisions", body)
	}
	p.posts(member, http.StatusNotFound, "/v1/rollback", control.Rollback{To: 77})
	for _, path := range []string{"/v1/exec", "/v1/logs", "/v1/volumes", "/v1/containers", "/v1/events", "/v1/metrics", "/v1/image", "/v1/stats"} {
		p.posts(member, http.StatusNotFound, path, "{}")
	}
	p.posts(member, http.StatusOK, "/v1/decisions", control.Decision{Deployment: "line", ID: c.ID, Verdict: store.Postponed, Until: time.Now().Add(time.Hour)})
	p.waits("line", codes.ChangePostponed)
	p.unmoved(before, "postponed")
	p.posts(member, http.StatusOK, "/v1/decisions", approve)
	p.applied("line")
}

// leftOut: of two applications that change, one waits, and the other moves.
func leftOut(p *press) {
	p.only = "line"
	p.restart("")
	line := p.process("line")
	p.publish("line", "other")
	p.synced()
	c := p.waits("line", codes.ApprovalNeeded)
	p.applied("other")
	if now := p.waits("line", codes.ApprovalNeeded); now.ID != c.ID || p.process("line") != line {
		p.t.Errorf("line moved, or its change did: %+v, was %+v", now, c)
	}
	_, err := p.as(member, "approve", "line")
	p.must(err)
	p.applied("line")
	p.only = ""
	p.restart("")
}

// together: root, a member and a file approve at the same moment. One of them is the reason, the change is made once.
func together(p *press) {
	p.publish("line")
	p.synced()
	c := p.waits("line", codes.ApprovalNeeded)
	var all sync.WaitGroup
	errs := make([]error, 2)
	all.Go(func() { _, errs[0] = p.Control(p.t.Context(), "approve", "--id", c.ID.String(), "line") })
	all.Go(func() { _, errs[1] = p.as(member, "approve", "--id", c.ID.String(), "line") })
	p.decide("hmi-2", control.Decision{Deployment: "line", ID: c.ID, Verdict: store.Approved})
	all.Wait()
	refused := 0
	for _, text := range []string{fmt.Sprint(errs[0]), fmt.Sprint(errs[1]), p.result("hmi-2").Error} {
		switch {
		case text == "" || text == "<nil>":
		case strings.Contains(text, "has begun at"), strings.Contains(text, "no change of a deployment"):
			refused++
		default:
			p.t.Errorf("refused: %s", text)
		}
	}
	if refused == 3 {
		p.t.Error("everybody was refused")
	}
	p.applied("line")
	approvals, created := 0, 0
	for _, e := range p.events(status.EventChange) {
		if e.Digest == c.ID && strings.HasPrefix(e.Message, "approved by ") {
			approvals++
		}
	}
	for _, e := range p.events(status.EventCreated) {
		if e.Deployment == "line" && e.Time.After(c.Since) {
			created++
		}
	}
	if approvals != 3-refused || created != 1 {
		p.t.Errorf("%d approvals were taken and %d refused, %d containers created", approvals, refused, created)
	}
}

// opposed has two processes decide differently. The second one is told, unless it has seen the decision of the first.
func opposed(p *press) {
	p.publish("line")
	p.synced()
	c := p.waits("line", codes.ApprovalNeeded)
	var both sync.WaitGroup
	var approve, reject error
	both.Go(func() { _, approve = p.Control(p.t.Context(), "approve", "line") })
	both.Go(func() { _, reject = p.as(member, "reject", "--reason", "the shift ends", "line") })
	both.Wait()
	verdicts := []string{}
	for _, e := range p.events(status.EventChange) {
		if verdict, _, ok := strings.Cut(e.Message, " by "); ok && e.Digest == c.ID {
			verdicts = append(verdicts, verdict)
		}
	}
	taken := 0
	for _, err := range []error{approve, reject} {
		switch {
		case err == nil:
			taken++
		case !strings.Contains(err.Error(), "meanwhile") && !strings.Contains(err.Error(), "has begun at") && !strings.Contains(err.Error(), "no change of a deployment"):
			p.t.Errorf("refused: %v", err)
		}
	}
	if taken != len(verdicts) || taken == 0 {
		p.t.Fatalf("approve: %v, reject: %v, recorded %v", approve, reject, verdicts)
	}
	if verdicts[len(verdicts)-1] == "rejected" { // also behind an approval, while locks are read once more
		p.waits("line", codes.ChangeRejected)
		_, err := p.Control(p.t.Context(), "approve", "line")
		p.must(err)
	}
	p.applied("line")
	created := 0
	for _, e := range p.events(status.EventCreated) {
		if e.Deployment == "line" && e.Time.After(c.Since) {
			created++
		}
	}
	if created != 1 {
		p.t.Errorf("%d containers were created", created)
	}
}

func windows(p *press) {
	zone := time.Now().UTC()
	closed := fmt.Sprintf("changes: {windows: [{hours: %q, zone: UTC}]}\n", zone.Add(11*time.Hour).Format("15:04")+"-"+zone.Add(12*time.Hour).Format("15:04"))
	p.validFor = "20s"
	p.restart(closed)
	p.publish("line")
	p.synced()
	c := p.waits("line", codes.ApprovalNeeded)
	before := p.processes()
	_, err := p.Control(p.t.Context(), "approve", "line")
	p.must(err)
	if w := p.waits("line", codes.OutsideWindow); w.Waiting.Until.IsZero() || w.Decision == nil || w.Decision.Verdict != store.Approved {
		p.t.Errorf("it waits: %+v, %+v", w.Waiting, w.Decision)
	}
	p.waits("line", codes.ApprovalNeeded) // validFor is over
	p.unmoved(before, "outside of the window, after the approval ended")

	// A window that never opens any more is told, and keeps changes away.
	file := p.Path("etc/over.yaml")
	data, err := os.ReadFile(p.Path("etc/agent.yaml"))
	p.must(err)
	over := "changes: {windows: [{only: [2020-01-01], zone: UTC}]}\n"
	p.must(os.WriteFile(file, []byte(strings.Replace(string(data), closed, over, 1)), 0o600))
	if _, err := p.Run(p.t.Context(), "longshore-agent", "check-config", "--config", file); exit(err) <= 0 || !strings.Contains(err.Error(), "does not open any more") {
		p.t.Errorf("check-config of a window that is over: %v", err)
	}
	p.must(p.Agent.Stop())
	p.must(os.Rename(file, p.Path("etc/agent.yaml")))
	p.must(p.Boot(p.t.Context()))
	p.answers()
	_, err = p.as(member, "approve", "line")
	p.must(err)
	if w := p.waits("line", codes.OutsideWindow); !strings.Contains(w.Waiting.Message, "none begins") {
		p.t.Errorf("it waits: %+v", w.Waiting)
	}
	p.unmoved(before, "no window opens")

	p.validFor = ""
	p.restart("")
	if p.told(c, fmt.Sprintf("approved by user %d", member)) != 1 {
		p.t.Errorf("who approved is told no more: %+v", p.events(status.EventChange))
	}
	if c, err := p.change(p.t.Context(), "line"); err != nil || c != nil && c.Waiting != nil { // it may be valid still, and even applied
		_, err = p.Control(p.t.Context(), "approve", "line")
		p.must(err)
	}
	p.applied("line")
}

// lostOwner: the container that locks is gone, and cannot come back because nobody has its image any more.
func lostOwner(p *press) {
	d, err := p.deployment("line")
	p.must(err)
	x := d.Components[0].Services[0]
	locks, err := filepath.Glob(filepath.Join(p.disk.Dir, "agent", "volumes", "*", "update-lock", "_data"))
	if err != nil || len(locks) != 1 {
		p.t.Fatal(locks, err)
	}
	p.must(os.WriteFile(filepath.Join(locks[0], "lock"), []byte(`{"owner": "line 3"}`), 0o644))
	image := x.Image[strings.LastIndexByte(x.Image, '@')+1:]
	p.publish("line")
	p.Registry.Faults.Add(testenv.Rule{Path: "/plant/line/manifests/" + image, Effect: testenv.Status(404, 0)})
	p.synced()
	p.waits("line", codes.ApprovalNeeded)
	_, err = p.as(member, "approve", "line")
	p.must(err)
	if w := p.waits("line", codes.UpdateLocked); !strings.Contains(w.Waiting.Message, "locked by line 3") {
		p.t.Errorf("it waits: %+v", w.Waiting)
	}
	// The agent may make the container again from what is still there of its image, so it is lost until that fails.
	p.until("the change begins", func() error {
		for _, args := range [][]string{
			{"images", "rm", "--sync", x.Image},
			{"tasks", "kill", "--signal", "SIGKILL", x.Container},
			{"tasks", "rm", "--force", x.Container},
			{"containers", "rm", x.Container},
		} {
			_, _ = p.Containerd.Ctr(p.t.Context(), append([]string{"--namespace", p.Namespace}, args...)...) // it may be gone
		}
		c, err := p.change(p.t.Context(), "line")
		if err == nil && c != nil && c.Begun.IsZero() {
			err = fmt.Errorf("it waits for %+v", c.Waiting)
		}
		return err
	})
	p.applied("line")
	if !slices.ContainsFunc(p.events(status.EventChange), func(e status.Event) bool {
		return strings.Contains(e.Message, "the update lock of line 3 is ignored: its owner is gone")
	}) {
		p.t.Errorf("the lock is ignored silently: %+v", p.events(status.EventChange))
	}
	p.Registry.Faults.Clear()
	p.must(os.Remove(filepath.Join(locks[0], "lock")))
}

func backByHand(p *press) {
	ctx := p.t.Context()
	first, err := p.Status(ctx)
	p.must(err)
	p.publish("line")
	p.synced()
	p.waits("line", codes.ApprovalNeeded)
	_, err = p.Control(ctx, "approve", "line")
	p.must(err)
	p.applied("line")
	p.must(p.Settled(ctx, p.generation, limit))
	now := p.processes()

	// What the policy has revoked is no place to go back to.
	policy := p.Path("etc/trust.yaml")
	data, err := os.ReadFile(policy)
	p.must(err)
	p.must(os.WriteFile(policy, fmt.Appendf(nil, "%s\nrevoked: [{digest: %q, reason: burns coils}]\n", data, first.Committed.Digest), 0o600))
	p.restart("")
	if _, err := p.as(member, "rollback"); exit(err) != 6 || !strings.Contains(err.Error(), "revoked") || !strings.Contains(err.Error(), first.Committed.Digest.String()) {
		p.t.Errorf("back to what is revoked: %v", err)
	}
	p.unmoved(now, "a rollback was refused")
	p.must(os.WriteFile(policy, data, 0o600))
	p.restart("")

	_, err = p.as(member, "rollback", "--reason", "line 3 stops")
	p.must(err)
	p.until("it is held", func() error {
		s, err := p.Status(ctx)
		if err != nil {
			return err
		}
		if s.Hold == nil || s.Hold.Generation != first.Committed.Generation || s.Hold.By != fmt.Sprintf("user %d", member) || s.Committed.Generation != first.Committed.Generation {
			return fmt.Errorf("hold %+v, committed %+v", s.Hold, s.Committed)
		}
		return nil
	})
	held := p.processes()
	p.restart("")
	p.synced()
	p.unmoved(held, "held, after a restart and a look at the registry")
	_, err = p.as(member, "release")
	p.must(err)
	p.waits("line", codes.ApprovalNeeded)
	p.unmoved(held, "released, and not approved")
	_, err = p.as(member, "approve", "line")
	p.must(err)
	p.applied("line")
	var told []string
	for _, e := range p.events(status.EventHold) {
		told = append(told, e.Message)
	}
	if text := strings.Join(told, "; "); !strings.Contains(text, fmt.Sprintf("rolled back by user %d: line 3 stops; released by user %d", member, member)) {
		p.t.Errorf("told: %s", text)
	}
}
