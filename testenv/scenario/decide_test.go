package scenario

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/approval"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
)

// person is who decides in scenarios.
const person = "user ana (1000)"

// rules are what agent.yaml says about changes. A scenario sets them on the way, and the agent starts again with them.
type rules struct {
	approvals approval.Policy
	closed    bool      // the window for changes is, until opens
	opens     time.Time // zero: never
}

// edit gives them to an agent.
func (x *rules) edit(o *agent.Options) {
	o.Approvals = x.approvals
	if opens := x.opens; x.closed {
		o.ChangeWindow = func(now time.Time) (bool, bool, time.Time) { return opens.IsZero() || now.Before(opens), false, opens }
	}
}

// decisionVerbs are what the people and applications beside a device do.
func decisionVerbs() map[string]verb {
	return map[string]verb{
		"approvals": {"[KIND ...] [valid DURATION|automatic DURATION]", "from now on these kinds of changes wait for an approval: " + strings.Join(kindNames(), ", ") + "; the agent starts again", parseApprovals},
		"window":    {"never|opens in DURATION", "from now on changes wait for this window; the agent starts again", parseWindow},
		"approve":   {"[APP]", "somebody approves the change that waits", func(a *arguments) action { return decision(a, store.Approved) }},
		"reject":    {"[in APP] REASON", "somebody rejects it", func(a *arguments) action { return decision(a, store.Rejected) }},
		"postpone":  {"[in APP] DURATION", "somebody postpones it", func(a *arguments) action { return decision(a, store.Postponed) }},
		"rollback":  {"[GENERATION]", "somebody has the device go back, and stay there", parseRollback},
		"release":   {"", "somebody ends that", plainVerb(func(r *run) error { _, err := r.agent.Release(r.t.Context(), person, "command"); return err }, "")},
		"lock":      {"[in APP] TEXT", "the application writes its update lock", parseLock},
		"unlock":    {"[APP]", "the application removes it", func(a *arguments) action { app := a.app(); return func(r *run) error { return r.lock(app, "") } }},
	}
}

func kindNames() (out []string) {
	for _, k := range plan.Kinds() {
		out = append(out, string(k))
	}
	return out
}

// app takes an app's name from the end of a line.
func (a *arguments) app() string {
	if a.peek() == "" {
		return firstApp
	}
	return a.next("")
}

// inApp takes "in APP", which may be left out.
func (a *arguments) inApp() string {
	if a.maybe("in") {
		return a.next("an app")
	}
	return firstApp
}

func (a *arguments) duration() time.Duration {
	column := a.column()
	text := a.next("a duration")
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		a.fault(column, "%q is no duration like 3s", text)
	}
	return d
}

func parseApprovals(a *arguments) action {
	var p approval.Policy
	for a.peek() != "" && !a.failed {
		if a.maybe("valid") {
			p.ValidFor = a.duration()
			break
		}
		if a.maybe("automatic") {
			p.AutomaticAfter = a.duration()
			break
		}
		column, k := a.column(), plan.Kind(a.next(""))
		if !slices.Contains(plan.Kinds(), k) {
			a.fault(column, "%q is none of %s", k, strings.Join(kindNames(), ", "))
		}
		p.Kinds = append(p.Kinds, k)
	}
	return func(r *run) error {
		r.mark()
		r.rules.approvals = p
		r.restartAgent()
		return nil
	}
}

func parseWindow(a *arguments) action {
	var in time.Duration
	if column := a.column(); !a.maybe("never") {
		if !a.maybe("opens") || !a.maybe("in") {
			a.fault(column, "want never, or opens in DURATION")
		}
		in = a.duration()
	}
	return func(r *run) error {
		r.mark()
		if r.rules.closed, r.rules.opens = true, (time.Time{}); in > 0 {
			r.rules.opens = time.Now().Add(in)
		}
		r.restartAgent()
		return nil
	}
}

func decision(a *arguments, v store.Verdict) action {
	q := agent.DecisionRequest{Verdict: v, By: person, Via: "command"}
	var later time.Duration
	switch v {
	case store.Approved:
		q.Deployment = a.app()
	case store.Rejected:
		q.Deployment, q.Reason = a.inApp(), a.next("a reason")
	case store.Postponed:
		q.Deployment, later = a.inApp(), a.duration()
	}
	return func(r *run) error {
		r.mark()
		c, err := r.change(q.Deployment)
		if err != nil {
			return err
		}
		q := q
		if q.ID = c.ID; later > 0 {
			q.Until = time.Now().Add(later)
		}
		_, err = r.agent.Decide(r.t.Context(), q)
		return err
	}
}

func parseRollback(a *arguments) action {
	to := 0
	if a.peek() != "" {
		to = a.number("a generation")
	}
	return func(r *run) error {
		r.mark()
		_, err := r.agent.RollBack(r.t.Context(), agent.RollbackRequest{To: uint64(to), By: person, Via: "command", Reason: "by hand"})
		return err
	}
}

func parseLock(a *arguments) action {
	app := a.inApp()
	text := a.next("what the file says")
	return func(r *run) error {
		r.mark()
		return r.lock(app, text)
	}
}

// lock writes what an app's update lock says; "": it is removed.
func (r *run) lock(app, text string) error {
	i := slices.IndexFunc(r.apps, func(x agenttest.App) bool { return x.Name == app })
	if i < 0 {
		return fmt.Errorf("there is no app %s", app)
	}
	return r.d.lock(r.apps[i].Project(app), text)
}

// change is the one of an app that is not applied yet.
func (r *run) change(app string) (status.Change, error) {
	all, err := r.agent.Changes(r.t.Context())
	if err != nil {
		return status.Change{}, err
	}
	for _, c := range all {
		if c.Deployment == app {
			return c, nil
		}
	}
	return status.Change{}, fmt.Errorf("%s has no change; there are %+v", app, all)
}

// waits is nil when the change of an app waits, and was not begun.
func (r *run) waits(app string, code codes.Code, text string) error {
	c, err := r.change(app)
	if err != nil {
		return err
	}
	if c.Generation != r.gen || !c.Begun.IsZero() || c.Waiting == nil || c.Waiting.Code != code || !strings.Contains(c.Waiting.Message, text) {
		return fmt.Errorf("the change of generation %d, begun %v, waits for %+v", c.Generation, c.Begun, c.Waiting)
	}
	if st := r.agent.Status(); !strings.HasPrefix(string(st.Phase), "awaiting-") {
		return fmt.Errorf("the device is %q", st.Phase)
	}
	return nil
}

// decided is nil when the device remembers who decided on the change of an app.
func (r *run) decided(app string, v store.Verdict) error {
	c, err := r.change(app)
	if err != nil {
		return err
	}
	by, via := person, "command"
	if v == "automatic" {
		v, by, via = store.Approved, "automaticAfter "+r.rules.approvals.AutomaticAfter.String(), "automatic"
	}
	if d := c.Decision; d == nil || d.Verdict != v || d.By != by || d.Via != via || d.At.IsZero() {
		return fmt.Errorf("the decision is %+v", d)
	}
	return nil
}

// held is nil when somebody keeps the device at a generation, which runs completely.
func (r *run) held(generation uint64) error {
	st := r.agent.Status()
	switch h := st.Hold; {
	case h == nil:
		return errors.New("it is not held")
	case h.Generation != generation || h.By != person:
		return fmt.Errorf("the hold is %+v", *h)
	case st.Committed == nil || st.Committed.Generation != generation:
		return fmt.Errorf("committed is %+v", st.Committed)
	}
	return nil
}
