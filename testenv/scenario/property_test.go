package scenario

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
)

// property is something that a service's container is or has.
type property struct {
	soon  bool
	state func(r *run, s service) error                         // seen in what the agent and the runtime tell
	real  func(m *machine, o workload.Observation) error        // seen in the container itself
	ask   func(r *run, o workload.Observation) error            // asked over the network or of its output
	plan  func(c workload.Container, p *workload.Project) error // in memory: seen in what the agent asked the runtime for; nil: not at all
}

// properties are all there are; README.md explains them.
func properties() map[string]struct {
	usage, doc string
	parse      func(a *arguments) property
} {
	type row = struct {
		usage, doc string
		parse      func(a *arguments) property
	}
	return map[string]row{
		"running":   {"", "its process runs", stateOf(func(_ *run, o workload.Observation) error { return hasStatus(o, workload.Running) })},
		"created":   {"", "it is there, and never started", stateOf(func(_ *run, o workload.Observation) error { return hasStatus(o, workload.Created) })},
		"paused":    {"", "it is frozen", stateOf(func(_ *run, o workload.Observation) error { return hasStatus(o, workload.Paused) })},
		"exited":    {"CODE", "its process ended with a code", parseExited},
		"absent":    {"", "there is no container", func(*arguments) property { return property{state: absent} }},
		"healthy":   {"", "its health check says so", stateOf(func(r *run, o workload.Observation) error { return r.health(o, "healthy") })},
		"unhealthy": {"", "its health check says so", stateOf(func(r *run, o workload.Observation) error { return r.health(o, "unhealthy") })},
		"restarts":  {"N", "how often it was restarted", parseRestarts},
		"replicas":  {"N", "how many of its containers run", parseReplicas},
		"same":      {"", "its process is the one from before the last thing that was done", func(*arguments) property { return property{state: same} }},
		"replaced":  {"", "its container is another one than before the last thing that was done", func(*arguments) property { return property{state: replaced} }},
		"restarted": {"", "its container is the one from before the last thing that was done, its process is not", func(*arguments) property { return property{state: restarted} }},
		"after":     {"SERVICE", "its process started later than the other's", parseAfter},

		"env":     {"NAME=VALUE", "its first process has the variable", parseEnv},
		"args":    {"ARG ...", "its first process was started with just these arguments", parseArgs},
		"http":    {":PORT[/PATH] [contains TEXT]", "a server in its own network answers with 2xx", parseServiceHTTP},
		"reaches": {"URL [contains TEXT]", "a GET from inside of it is answered with 2xx", parseReaches},
		"runs":    {"COMMAND ...", "a command that is executed in it ends with 0", parseRuns},
		"log":     {"contains TEXT | lines N", "its output", parseLog},
		"file":    {"PATH [mode MODE] [owner UID:GID] [contains TEXT | is TEXT]", "a file that it sees", parseFile},
		"mount":   {"PATH [OPTION ...]", "what is mounted there, with options or a type", parseMount},
		"proc":    {"FILE contains TEXT", "of /proc/PID/FILE of its first process; runs of blanks count as one", parseProc},
		"limit":   {"LIMIT VALUE", "of its cgroup, version 1 or 2: " + strings.Join(sorted(limits()), ", "), parseLimit},
		"caps":    {"[+|-]NAME ...", "its first process has the capability, or has not", parseCaps},
		"user":    {"UID:GID", "of its first process", parseUser},
		"shares":  {"NAMESPACE device|SERVICE", "is in the same namespace (net, pid, ipc, uts, user, cgroup) as the device or another container", parseShares},
		"address": {"INTERFACE ADDRESS|any|none", "an IP address of an interface in its network", parseAddress},
		"mac":     {"INTERFACE MAC", "the hardware address of an interface", parseMAC},
		"route":   {"default [none | INTERFACE]", "its default route", parseRoute},
	}
}

// parseProperty reads "SERVICE PROPERTY ...".
func parseProperty(a *arguments) *condition {
	s := parseService(a)
	column := a.column()
	word := a.next("a property")
	if a.failed {
		return nil
	}
	row, ok := properties()[word]
	if !ok {
		a.fault(column, "%q is no property of a service", word)
		return nil
	}
	p := row.parse(a)
	return &condition{soon: p.soon, holds: func(r *run) error {
		if p.state != nil {
			return p.state(r, s)
		}
		o, err := r.one(s)
		if err != nil {
			return err
		}
		if p.ask != nil {
			return p.ask(r, o)
		}
		return r.d.look(r, o, p)
	}}
}

func stateOf(f func(r *run, o workload.Observation) error) func(*arguments) property {
	return func(*arguments) property {
		return property{state: func(r *run, s service) error {
			o, err := r.one(s)
			if err != nil {
				return err
			}
			return f(r, o)
		}}
	}
}

func hasStatus(o workload.Observation, want workload.Status) error {
	if o.Status != want {
		return fmt.Errorf("it is %s (exit code %d)", o.Status, o.ExitCode)
	}
	return nil
}

func parseExited(a *arguments) property {
	code := uint32(a.number("an exit code"))
	return stateOf(func(_ *run, o workload.Observation) error {
		if err := hasStatus(o, workload.Exited); err != nil || o.ExitCode == code {
			return err
		}
		return fmt.Errorf("it exited with %d", o.ExitCode)
	})(a)
}

func absent(r *run, s service) error {
	if o, err := r.one(s); err == nil {
		return fmt.Errorf("container %s is %s", o.ID, o.Status)
	}
	return nil
}

// health is what the agent's status says of a container.
func (r *run) health(o workload.Observation, want string) error {
	for _, d := range r.agent.Status().Deployments {
		for _, c := range d.Components {
			for _, s := range c.Services {
				if s.Container != o.ID {
					continue
				}
				if string(s.Health) != want {
					return fmt.Errorf("it is %q: %s", s.Health, s.Output)
				}
				return nil
			}
		}
	}
	return fmt.Errorf("the status does not know container %s", o.ID)
}

func parseRestarts(a *arguments) property {
	n := a.number("a number")
	return stateOf(func(r *run, o workload.Observation) error {
		for _, d := range r.agent.Status().Deployments {
			for _, c := range d.Components {
				for _, s := range c.Services {
					if s.Container == o.ID && s.Restarts != n {
						return fmt.Errorf("it was restarted %d times", s.Restarts)
					}
				}
			}
		}
		return nil
	})(a)
}

func parseReplicas(a *arguments) property {
	n := a.number("a number")
	return property{state: func(r *run, s service) error {
		seen, err := r.observe()
		if err != nil {
			return err
		}
		prefix, _, _ := strings.Cut(s.key(), "#")
		got := 0
		for name, o := range seen {
			if strings.HasPrefix(name, prefix+"#") && o.Status == workload.Running {
				got++
			}
		}
		if got != n {
			return fmt.Errorf("%d run", got)
		}
		return nil
	}}
}

// pair is a container before the last thing that was done, and now.
func (r *run) pair(s service) (before, now workload.Observation, err error) {
	now, err = r.one(s)
	if err != nil {
		return before, now, err
	}
	before, ok := r.before[s.key()]
	if !ok {
		err = fmt.Errorf("%s was not there before", s)
	}
	return before, now, err
}

func same(r *run, s service) error {
	before, now, err := r.pair(s)
	if err == nil && (before.ID != now.ID || before.PID != now.PID) {
		err = fmt.Errorf("it was %s (%d), and is %s (%d)", before.ID, before.PID, now.ID, now.PID)
	}
	return err
}

func replaced(r *run, s service) error {
	before, now, err := r.pair(s)
	if err == nil && before.ID == now.ID {
		err = fmt.Errorf("it still is %s", now.ID)
	}
	if err == nil {
		err = hasStatus(now, workload.Running)
	}
	return err
}

func restarted(r *run, s service) error {
	before, now, err := r.pair(s)
	switch {
	case err != nil:
		return err
	case before.ID != now.ID:
		return fmt.Errorf("it was %s, and is %s", before.ID, now.ID)
	case before.PID == now.PID:
		return fmt.Errorf("its process still is %d", now.PID)
	}
	return hasStatus(now, workload.Running)
}

func parseAfter(a *arguments) property {
	other := parseService(a)
	return property{state: func(r *run, s service) error {
		o, err := r.one(s)
		if err != nil {
			return err
		}
		first, err := r.one(other)
		if err != nil {
			return err
		}
		return r.d.look(r, o, property{
			real: func(*machine, workload.Observation) error {
				if o.StartedAt.Before(first.StartedAt) { // equal: the kernel counts in ticks
					return fmt.Errorf("it started at %v, %s at %v", o.StartedAt, other, first.StartedAt)
				}
				return nil
			},
			ask: func(r *run, o workload.Observation) error { return r.d.(*memory).after(o, first) },
		})
	}}
}

func parseEnv(a *arguments) property {
	column := a.column()
	want := a.next("NAME=VALUE")
	if !strings.Contains(want, "=") {
		a.fault(column, "want NAME=VALUE")
	}
	name, _, _ := strings.Cut(want, "=")
	in := func(all []string) error {
		if slices.Contains(all, want) {
			return nil
		}
		for _, e := range all {
			if strings.HasPrefix(e, name+"=") {
				return fmt.Errorf("it is %s", e)
			}
		}
		return fmt.Errorf("there is no %s", name)
	}
	return property{
		real: func(m *machine, o workload.Observation) error {
			all, err := m.proc(o, "environ")
			if err != nil {
				return err
			}
			return in(strings.Split(all, "\x00"))
		},
		plan: func(c workload.Container, _ *workload.Project) error { return in(c.Service.Environment) },
	}
}

func parseArgs(a *arguments) property {
	want := a.rest()
	return property{soon: true, real: func(m *machine, o workload.Observation) error {
		text, err := m.proc(o, "cmdline")
		if err != nil {
			return err
		}
		if got := strings.Split(strings.TrimSuffix(text, "\x00"), "\x00"); !slices.Equal(got, want) {
			return fmt.Errorf("they are %q", got)
		}
		return nil
	}}
}

// parseURL reads ":PORT/PATH".
func parseURL(a *arguments) (url, text string) {
	column := a.column()
	w := a.next(":PORT/PATH")
	port, path, _ := strings.Cut(strings.TrimPrefix(w, ":"), "/")
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || !strings.HasPrefix(w, ":") {
		a.fault(column, "%q is not like :8080 or :8080/path", w)
	}
	return fmt.Sprintf("http://127.0.0.1:%s/%s", port, path), a.maybeText()
}

func contains(got string, err error, text string) error {
	if err == nil && !strings.Contains(got, text) {
		err = fmt.Errorf("the answer is %q", strings.TrimSpace(got))
	}
	return err
}

func parseServiceHTTP(a *arguments) property {
	url, text := parseURL(a)
	return property{soon: true, ask: func(r *run, o workload.Observation) error {
		got, err := r.d.http(r, &o, url)
		return contains(got, err, text)
	}}
}

// parseDevice reads what the device itself can be expected to be like.
func parseDevice(a *arguments) *condition {
	column := a.column()
	switch w := a.next("http"); w {
	case "http":
		url, text := parseURL(a)
		return &condition{soon: true, holds: func(r *run) error {
			got, err := r.d.http(r, nil, url)
			return contains(got, err, text)
		}}
	default:
		a.fault(column, "%q is nothing that a device can be asked: http", w)
	}
	return nil
}

func parseReaches(a *arguments) property {
	url, text := a.next("a URL"), a.maybeText()
	return property{soon: true, real: func(m *machine, o workload.Observation) error {
		return m.exec(o, "/toolbox", "get", url, text)
	}}
}

func parseRuns(a *arguments) property {
	column := a.column()
	argv := a.rest()
	if len(argv) == 0 {
		a.fault(column, "a command is missing")
	}
	return property{soon: true, real: func(m *machine, o workload.Observation) error { return m.exec(o, argv...) }}
}

func parseLog(a *arguments) property {
	column := a.column()
	if a.maybe("lines") {
		n := a.number("a number of lines")
		return property{soon: true, ask: func(r *run, o workload.Observation) error {
			got, err := r.d.log(r, o)
			if lines := strings.Count(got, "\n"); err == nil && lines != n {
				err = fmt.Errorf("it has %d lines", lines)
			}
			return err
		}}
	}
	text := a.maybeText()
	if text == "" {
		a.fault(column, "want: log contains TEXT, or log lines N")
	}
	return property{soon: true, ask: func(r *run, o workload.Observation) error {
		got, err := r.d.log(r, o)
		return contains(got, err, text)
	}}
}

func parseProc(a *arguments) property {
	file, column := a.next("a file"), a.column()
	text := a.maybeText()
	if text == "" {
		a.fault(column, "want: contains TEXT")
	}
	return property{soon: true, real: func(m *machine, o workload.Observation) error {
		got, err := m.proc(o, file)
		return contains(strings.Join(strings.Fields(got), " "), err, text)
	}}
}

func parseUser(a *arguments) property {
	column := a.column()
	uid, gid, ok := strings.Cut(a.next("UID:GID"), ":")
	if !ok {
		a.fault(column, "want UID:GID")
	}
	return property{real: func(m *machine, o workload.Observation) error {
		text, err := m.proc(o, "status")
		for key, want := range map[string]string{"Uid:": uid, "Gid:": gid} {
			if f := field(text, key); err == nil && (len(f) == 0 || f[0] != want) {
				err = fmt.Errorf("%s %v", key, f)
			}
		}
		return err
	}}
}

// field is a line of a file such as /proc/PID/status, without its key.
func field(text, key string) []string {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			return strings.Fields(rest)
		}
	}
	return nil
}

func parseShares(a *arguments) property {
	column := a.column()
	kind := a.next("a namespace")
	if !slices.Contains([]string{"net", "pid", "ipc", "uts", "user", "cgroup", "mnt"}, kind) {
		a.fault(column, "%q is no kind of namespace", kind)
	}
	if a.maybe("device") {
		return property{real: func(m *machine, o workload.Observation) error { return m.sharesDevice(o, kind) }}
	}
	other := parseService(a)
	return property{state: func(r *run, s service) error {
		o, err := r.one(s)
		if err != nil {
			return err
		}
		x, err := r.one(other)
		if err != nil {
			return err
		}
		return r.d.look(r, o, property{real: func(m *machine, o workload.Observation) error { return m.shares(o, x, kind) }})
	}}
}

func parseAddress(a *arguments) property {
	link, column := a.next("an interface"), a.column()
	want := a.next("an address")
	if _, err := netip.ParseAddr(want); err != nil && want != "any" && want != "none" {
		a.fault(column, "%q is no address", want)
	}
	return property{soon: true, real: func(m *machine, o workload.Observation) error { return m.address(o, link, want) }}
}

func parseMAC(a *arguments) property {
	link, want := a.next("an interface"), a.next("a hardware address")
	return property{real: func(m *machine, o workload.Observation) error { return m.mac(o, link, want) }}
}

func parseRoute(a *arguments) property {
	column := a.column()
	if !a.maybe("default") {
		a.fault(column, "want: route default")
	}
	want := ""
	if a.peek() != "" {
		want = a.next("")
	}
	return property{real: func(m *machine, o workload.Observation) error { return m.route(o, want) }}
}
