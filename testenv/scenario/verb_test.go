package scenario

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
)

// verb is the first word of a step.
type verb struct {
	usage string // what follows it
	doc   string
	parse func(a *arguments) action
}

// errContainers says that a step has no meaning in memory.
var errContainers = errors.New("needs real containers")

// verbs are all there are; README.md explains them, and a test holds it to that.
func verbs() map[string]verb {
	all := map[string]verb{
		"deploy": {"REVISION [as APP] [with NAME=VALUE ...]", "publishes a new state in which APP runs REVISION, and asks the agent to look; a `wait` follows", parseDeploy},
		"remove": {"[APP]", "publishes a new state without APP", parseRemove},
		"wait":   {"[not] CONDITION", "waits until the condition holds", func(a *arguments) action { return parseHold(a, true) }},
		"expect": {"[not] CONDITION", "the condition holds now; what a process needs a moment for is asked again for some seconds", func(a *arguments) action { return parseHold(a, false) }},

		"reboot":     {"", "a power cycle: every process, the run directory, networks and cgroups are gone; the agent starts again", plainVerb(func(r *run) error { return r.d.reboot(r) }, needOwnDaemon)},
		"offline":    {"", "the registry and the fleet endpoint cannot be reached", plainVerb(func(r *run) error { r.offline(true); return nil }, "")},
		"online":     {"", "they can again", plainVerb(func(r *run) error { r.offline(false); return nil }, "")},
		"restart":    {"agent|containerd", "ends it as an upgrade does, and starts it again", parseRestart},
		"break":      {"firewall|bridge NETWORK|database", "deletes the firewall table, or a bridge, behind the agent's back; or spoils the agent's database while the agent is stopped", parseBreak},
		"occupy":     {":PORT", "another program of the device listens on a port", parseOccupy},
		"needs":      {"FEATURE \"REASON\"", "skips the scenario where the device lacks the feature: " + strings.Join(features(), ", "), parseNeeds},
		"containers": {"\"REASON\"", "the scenario runs on real containers only", func(a *arguments) action { a.p.need(needContainers, a.next("a reason")); return nil }},
		"permit":     {"", "the owner of the device allows privileged containers, from the beginning", func(a *arguments) action { a.p.need(needPermission, ""); return nil }},
		"memory":     {"\"REASON\"", "the scenario runs in memory only", func(a *arguments) action { a.p.need(needMemory, a.next("a reason")); return nil }},
	}
	for name, v := range map[string]struct {
		doc string
		do  func(r *run, o workload.Observation) error
	}{
		"kill":   {"ends the first process of a service's container with SIGKILL", func(r *run, o workload.Observation) error { return r.d.kill(r, o) }},
		"delete": {"deletes a service's container behind the agent's back", func(r *run, o workload.Observation) error { return r.d.delete(r, o) }},
		"lose":   {"deletes a service's container and its image behind the agent's back", func(r *run, o workload.Observation) error { return r.d.lose(r, o) }},
		"pause":  {"freezes a service's container behind the agent's back", func(r *run, o workload.Observation) error { return r.d.pause(r, o) }},
		"sicken": {"the toolbox in a service's container answers its health check with 503 from now on", func(r *run, o workload.Observation) error { return r.d.sicken(r, o, true) }},
		"heal":   {"it answers with 200 again", func(r *run, o workload.Observation) error { return r.d.sicken(r, o, false) }},
	} {
		all[name] = verb{"SERVICE", v.doc, func(a *arguments) action { return onService(a, v.do) }}
	}
	maps.Copy(all, decisionVerbs())
	all["exit"] = verb{"SERVICE CODE", "the toolbox in a service's container ends with a code", func(a *arguments) action {
		s, code := parseService(a), 0
		code = a.number("an exit code")
		return func(r *run) error {
			r.mark()
			o, err := r.one(s)
			if err != nil {
				return err
			}
			return r.d.exit(r, o, uint32(code))
		}
	}}
	return all
}

func plainVerb(do func(r *run) error, need string) func(a *arguments) action {
	return func(a *arguments) action {
		if need != "" {
			a.p.need(need, "")
		}
		return func(r *run) error {
			r.mark()
			return do(r)
		}
	}
}

// service names containers of an app: "web", "web#2" (a replica), "other/web".
type service struct {
	app, name string
	replica   int // 0: the only one
}

func (s service) String() string {
	out := s.name
	if s.app != "" {
		out = s.app + "/" + out
	}
	if s.replica > 0 {
		out = fmt.Sprintf("%s#%d", out, s.replica)
	}
	return out
}

func parseService(a *arguments) service {
	column := a.column()
	text := a.next("a service")
	var s service
	if app, rest, ok := strings.Cut(text, "/"); ok {
		s.app, text = app, rest
	}
	name, n, ok := strings.Cut(text, "#")
	s.name = name
	if ok {
		if _, err := fmt.Sscanf(n, "%d", &s.replica); err != nil || s.replica < 1 {
			a.fault(column, "%q is no number of a replica", n)
		}
	}
	if s.name == "" && !a.failed {
		a.fault(column, "%q is no service", text)
	}
	if s.app == "" && !a.failed {
		known := false
		for _, name := range a.p.s.Order {
			known = known || strings.Contains(string(a.p.s.Revisions[name]["compose.yaml"].Data), s.name+":")
		}
		if !known {
			a.fault(column, "no revision has a service %q", s.name)
		}
	}
	return s
}

func onService(a *arguments, do func(r *run, o workload.Observation) error) action {
	s := parseService(a)
	return func(r *run) error {
		r.mark()
		o, err := r.one(s)
		if err != nil {
			return err
		}
		return do(r, o)
	}
}

// firstApp is the app of a deploy without "as".
const firstApp = "app"

func parseDeploy(a *arguments) action {
	column := a.column()
	revision, app := a.next("a revision"), firstApp
	if !a.failed && a.p.s.Revisions[revision] == nil {
		a.fault(column, "there is no revision %q", revision)
	}
	a.p.apps = append(a.p.apps, revision)
	if a.maybe("as") {
		column = a.column()
		if app = a.next("an app's name"); !revisionName.MatchString(app) {
			a.fault(column, "%q is no name of an app", app)
		}
	}
	var parameters [][2]string
	if a.maybe("with") {
		for ok := true; ok; {
			column = a.column()
			name, value, pair := strings.Cut(a.next("NAME=VALUE"), "=")
			if !pair {
				a.fault(column, "want NAME=VALUE")
			}
			parameters = append(parameters, [2]string{name, value})
			ok = len(a.words) > 0 && !a.failed
		}
	}
	return func(r *run) error {
		r.mark()
		return r.deploy(app, revision, parameters)
	}
}

func parseRemove(a *arguments) action {
	app := firstApp
	if a.peek() != "" {
		app = a.next("")
	}
	return func(r *run) error {
		r.mark()
		return r.remove(app)
	}
}

func parseRestart(a *arguments) action {
	column := a.column()
	switch what := a.next("agent or containerd"); what {
	case "agent":
		return func(r *run) error {
			r.mark()
			r.restartAgent()
			return nil
		}
	case "containerd":
		a.p.need(needOwnDaemon, "")
		return func(r *run) error {
			r.mark()
			return r.d.restartContainerd(r)
		}
	default:
		a.fault(column, "%q is neither agent nor containerd", what)
	}
	return nil
}

func parseBreak(a *arguments) action {
	column := a.column()
	switch what := a.next("what to break"); what {
	case "firewall":
		return func(r *run) error { r.mark(); return r.d.breakFirewall(r) }
	case "database":
		return func(r *run) error { r.mark(); return r.breakDatabase() }
	case "bridge":
		network := a.next("a network")
		return func(r *run) error { r.mark(); return r.d.breakBridge(r, network) }
	default:
		a.fault(column, "%q is none of firewall, bridge and database", what)
	}
	return nil
}

func parseOccupy(a *arguments) action {
	column, port := a.column(), 0
	if w := a.next("a port"); true {
		if _, err := fmt.Sscanf(w, ":%d", &port); err != nil {
			a.fault(column, "%q is no port like :8080", w)
		}
	}
	return func(r *run) error { return r.d.occupy(r, port) }
}

func parseNeeds(a *arguments) action {
	column := a.column()
	what := a.next("a feature")
	if !slices.Contains(features(), what) {
		a.fault(column, "%q is none of %s", what, strings.Join(features(), ", "))
	}
	a.p.need(what, a.next("a reason"))
	return nil
}

// parseHold reads "wait" and "expect".
func parseHold(a *arguments, wait bool) action {
	no := a.maybe("not")
	c := parseCondition(a)
	if c == nil {
		return nil
	}
	return func(r *run) error {
		check := func() error { return c.holds(r) }
		if no {
			check = func() error {
				switch err := c.holds(r); {
				case errors.Is(err, errContainers):
					return err
				case err == nil:
					return errors.New("it holds")
				}
				return nil
			}
		}
		switch {
		case wait:
			return r.poll(r.w.Patience, check)
		case c.soon && !no:
			return r.poll(soonLimit, check)
		}
		return check()
	}
}

// condition is what can be waited for and expected.
type condition struct {
	soon  bool // needs a moment to come about: expect asks again
	holds func(r *run) error
}

// outcomes are conditions of the app, or of the last sync.
func outcomes() map[string]verb {
	return map[string]verb{
		"installed":   {"[APP]", "APP runs completely, at the newest state", nil},
		"committed":   {"", "the newest state is the one that the device counts as applied", nil},
		"reported":    {"STATE [in APP]", "the fleet endpoint was told at any time that APP is in a state, at the newest state of the device", nil},
		"failed":      {"CODE [in APP] [contains TEXT]", "APP does not, for a reason with this code, and the status tells so", nil},
		"rolled-back": {"CODE [in APP] [contains TEXT]", "APP failed with this code, and the revision before runs", nil},
		"refused":     {"CODE [contains TEXT]", "the newest state was refused before anything was touched", nil},
		"removed":     {"[APP]", "nothing of APP is left but its volumes", nil},
		"problem":     {"CODE [contains TEXT]", "the device's status tells of a problem", nil},
		"waits":       {"CODE [in APP] [contains TEXT]", "the change of APP to the newest state waits, for a reason with this code", nil},
		"decided":     {"approved|rejected|postponed|automatic [in APP]", "the device remembers who decided so on the change of APP", nil},
		"held":        {"GENERATION", "somebody keeps the device at a generation, which runs completely", nil},
		"notice":      {"TEXT", "the agent said at admission that a key is honoured in another way than its author may expect", nil},
	}
}

func parseCondition(a *arguments) *condition {
	column, first := a.column(), a.peek()
	if first == "" {
		a.fault(column, "a condition is missing")
		return nil
	}
	if _, ok := outcomes()[first]; ok {
		a.next("")
		return parseOutcome(a, first)
	}
	if first == "device" {
		a.next("")
		return parseDevice(a)
	}
	return parseProperty(a)
}

func parseOutcome(a *arguments, what string) *condition {
	switch what {
	case "committed":
		return &condition{holds: func(r *run) error { return r.committed() }}
	case "reported":
		state, app := a.next("a state"), firstApp
		if a.maybe("in") {
			app = a.next("an app")
		}
		return &condition{holds: func(r *run) error { return r.reported(app, state) }}
	case "held":
		generation := a.number("a generation")
		return &condition{holds: func(r *run) error { return r.held(uint64(generation)) }}
	case "decided":
		v := store.Verdict(a.next("a verdict"))
		app := a.inApp()
		return &condition{holds: func(r *run) error { return r.decided(app, v) }}
	case "notice":
		text := a.next("a text")
		return &condition{holds: func(r *run) error { return r.notice(text) }}
	case "installed", "removed":
		app := firstApp
		if a.peek() != "" {
			app = a.next("")
		}
		if what == "removed" {
			return &condition{holds: func(r *run) error { return r.removed(app) }}
		}
		return &condition{holds: func(r *run) error { return r.installed(app) }}
	}
	code := codes.Code(a.next("a code"))
	app := firstApp
	if what != "refused" && what != "problem" && a.maybe("in") {
		app = a.next("an app")
	}
	text := a.maybeText()
	return &condition{holds: func(r *run) error {
		switch what {
		case "refused":
			return r.refused(code, text)
		case "problem":
			return r.problem(code, text)
		case "waits":
			return r.waits(app, code, text)
		case "rolled-back":
			return r.rolledBack(app, code, text)
		}
		return r.failed(app, code, text)
	}}
}

// Limits of waiting.
const (
	soonLimit = time.Minute
	firstLook = 5 * time.Millisecond // pauses between looks grow from here
	lastLook  = 100 * time.Millisecond
)
