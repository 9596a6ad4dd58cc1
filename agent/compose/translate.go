package compose

import (
	"context"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts"
)

// maxServices bounds one project: each service is a container with a network namespace.
const maxServices = 128

// maxLabel is containerd's limit on a label's key and value together.
const maxLabel = 4096

// maxStopGrace keeps an update or a removal from waiting for one service for hours. The agent's own limit on a stop is
// longer, so that SIGKILL is always reached.
const maxStopGrace = 10 * time.Minute

// foreignLabels begin the labels that containerd takes for its own.
const foreignLabels = "containerd.io/"

// reservedLabels begin the labels that the agent finds its own objects by.
const reservedLabels = "dev.longshore."

// translation makes a project of a document.
type translation struct {
	*document
	files    fs.FS // nil: env files are not looked at
	lock     *artifacts.Lock
	platform string
	unpinned bool
	unfit    []string // images that are not made for this platform
	ports    []publication
	loaded   *types.Project
}

func (t *translation) translate(ctx context.Context, name string) (*workload.Project, error) {
	services := t.root.get("services")
	if len(services.keys) > maxServices {
		t.fault(services, "", "more than %d services", maxServices)
		return nil, t.err()
	}
	named := true
	for _, k := range services.keys {
		if !isHostname(k) {
			t.fault(services.fields[k], "use letters, digits, dots, dashes and underscores, at most 63", "%q is no name for a service", k)
			named = false
		}
	}
	if !named {
		return nil, t.err() // names are paths in everything that follows
	}
	// What has a short form is read entry by entry, so that a fault has its position and takes nothing else along.
	ports, mounts := map[string][]workload.Port{}, map[string][]workload.Mount{}
	for _, k := range services.keys {
		if s := services.fields[k]; s.kind == mapKind {
			ports[k] = t.servicePorts(s.get("ports"))
			mounts[k] = append(t.serviceMounts(s.get("volumes")), t.serviceTmpfs(s.get("tmpfs"))...)
			t.checkMounts(s, mounts[k])
			t.checkPairs(s.get("environment"))
			t.checkPairs(s.get("labels"))
			s.drop("ports")
			s.drop("volumes")
			s.drop("tmpfs")
		}
	}
	t.checkPorts()
	var err error
	if t.loaded, err = t.project(ctx, name); err != nil {
		return nil, err
	}
	p := &workload.Project{Name: name}
	for _, k := range services.keys {
		s := t.service(k, services.fields[k])
		s.Ports, s.Mounts = ports[k], mounts[k]
		p.Services = append(p.Services, s)
	}
	t.dependencies(p)
	t.networks(p)
	t.volumes(p)
	if err := t.err(); err != nil {
		return nil, err
	}
	if err := t.fits(); err != nil {
		return nil, err
	}
	return p, nil
}

func (t *translation) service(name string, n *node) workload.Service {
	c, ok := t.loaded.Services[name]
	if !ok {
		t.fault(n, "", "compose-go lost the service")
		return workload.Service{}
	}
	s := workload.Service{
		Name:       name,
		Image:      t.image(n),
		Command:    c.Command,
		Entrypoint: c.Entrypoint,
		WorkingDir: c.WorkingDir,
		User:       c.User,
		Hostname:   c.Hostname,
		Labels:     t.labels(n, c.Labels),
		Expose:     c.Expose,
		ReadOnly:   c.ReadOnly,
		StopSignal: t.stopSignal(n, c.StopSignal),
	}
	if s.Entrypoint != nil && len(s.Command) == 0 {
		s.Command = nil // Compose: an entrypoint of its own takes the image's command away
		if len(s.Entrypoint) == 0 && !t.cut[n.path+".command"] {
			t.fault(n.get("entrypoint"), "name the program with \"command:\"", "an empty entrypoint leaves nothing to run")
		}
	}
	s.Environment = t.environment(n, c)
	s.Health, s.NoHealth = t.health(n.get("healthcheck"), c.HealthCheck)
	s.Restart = t.restart(n, c.Restart)
	s.Resources = t.resources(n, c)
	s.Networks = t.attachments(n)
	t.plainFields(n, &s)
	if g := c.StopGracePeriod; g != nil {
		switch s.StopGrace = duration(g); {
		case s.StopGrace < 0:
			t.fault(n.get("stop_grace_period"), "", "must not be negative")
		case s.StopGrace > maxStopGrace:
			t.fault(n.get("stop_grace_period"), "a service that needs longer should save its work while it runs", "%v is longer than %v", s.StopGrace, maxStopGrace)
		case s.StopGrace == 0:
			s.StopGrace = 1 // a nanosecond: killed at once, where zero would mean the default
		}
	}
	if own := n.get(extOwnShim); own != nil {
		if s.OwnShim, ok = own.value.(bool); !ok && !own.isNull() {
			t.fault(own, "", "must be true or false")
		}
	}
	return s
}

// plainFields checks what goes to the runtime as it is.
func (t *translation) plainFields(n *node, s *workload.Service) {
	if s.WorkingDir != "" && !strings.HasPrefix(s.WorkingDir, "/") {
		t.fault(n.get("working_dir"), "", "%q is not an absolute path", s.WorkingDir)
	}
	if s.Hostname != "" && !isHostname(s.Hostname) {
		t.fault(n.get("hostname"), "", "%q is no host name", s.Hostname)
	}
	for key, text := range map[string]string{"user": s.User, "working_dir": s.WorkingDir} {
		if strings.ContainsRune(text, 0) {
			t.fault(n.get(key), "", "holds a zero byte")
		}
	}
	for key, args := range map[string][]string{"command": s.Command, "entrypoint": s.Entrypoint} {
		if slices.ContainsFunc(args, func(a string) bool { return strings.ContainsRune(a, 0) }) {
			t.fault(n.get(key), "", "holds a zero byte")
		}
	}
}

// Underscores are no host names to the letter, but services carry them everywhere and resolvers take them.
var hostname = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9_])?$`)

func isHostname(s string) bool { return hostname.MatchString(s) }

// labels refuses what containerd could not keep or the agent would take for its own.
func (t *translation) labels(n *node, labels map[string]string) map[string]string {
	at := n.get("labels")
	for k, v := range labels {
		where := at
		if l := at.get(k); l != nil {
			where = l
		}
		switch {
		case strings.HasPrefix(k, reservedLabels):
			t.fault(where, "", "labels that begin with %s are the agent's own", reservedLabels)
		case strings.HasPrefix(k, foreignLabels):
			t.fault(where, "", "labels that begin with %s are containerd's own", foreignLabels)
		case k == "":
			t.fault(where, "", "a label needs a name")
		case len(k)+len(v) > maxLabel:
			t.fault(where, "", "label %s is longer than %d bytes", clipped(k), maxLabel)
		}
	}
	if len(labels) == 0 {
		return nil
	}
	return labels
}

func clipped(s string) string {
	const n = 40
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// restart reads Compose's restart: "no", "always", "unless-stopped", "on-failure[:max]".
func (t *translation) restart(n *node, s string) workload.Restart {
	policy, count, counted := strings.Cut(s, ":")
	r := workload.Restart{Policy: workload.RestartPolicy(policy)}
	switch r.Policy {
	case "", workload.RestartNo, workload.RestartAlways, workload.RestartUnlessStopped:
		if counted {
			t.fault(n.get("restart"), "", "only on-failure takes a number of attempts")
		}
		if r.Policy == workload.RestartNo {
			r.Policy = ""
		}
	case workload.RestartOnFailure:
		if counted {
			if _, err := fmt.Sscanf(count, "%d", &r.Max); err != nil || r.Max < 0 || fmt.Sprint(r.Max) != count {
				t.fault(n.get("restart"), "", "%q is no number of attempts", count)
			}
		}
	default:
		t.fault(n.get("restart"), "", "%q is none of no, always, on-failure[:attempts], unless-stopped", s)
	}
	return r
}

// stopSignal checks the name; real-time signals may be counted from either end.
func (t *translation) stopSignal(n *node, s string) string {
	if s != "" && !stopSignals.MatchString(strings.ToUpper(s)) {
		t.fault(n.get("stop_signal"), "", "%q is no signal", s)
	}
	return s
}

var stopSignals = regexp.MustCompile(`^(?:(?:SIG)?(?:HUP|INT|QUIT|ILL|TRAP|ABRT|BUS|FPE|KILL|USR[12]|SEGV|PIPE|ALRM|TERM|CONT|STOP|TSTP|TTIN|TTOU|URG|XCPU|XFSZ|VTALRM|PROF|WINCH|IO|PWR|SYS|RTMIN(?:\+[0-9]{1,2})?|RTMAX(?:-[0-9]{1,2})?)|[1-9]|[1-5][0-9]|6[0-4])$`)

// resources reads limits from both places where Compose has them; saying two different things is refused.
func (t *translation) resources(n *node, c types.ServiceConfig) workload.Resources {
	r := workload.Resources{NanoCPUs: nano(c.CPUS), MemoryBytes: int64(c.MemLimit)}
	limits := n.get("deploy", "resources", "limits")
	if c.Deploy != nil && c.Deploy.Resources.Limits != nil {
		l := c.Deploy.Resources.Limits
		r.NanoCPUs = t.agreed(limits.get("cpus"), "cpus", r.NanoCPUs, nano(l.NanoCPUs.Value()))
		r.MemoryBytes = t.agreed(limits.get("memory"), "mem_limit", r.MemoryBytes, int64(l.MemoryBytes))
		r.PIDs = l.Pids
	}
	if r.PIDs == -1 {
		r.PIDs = 0 // Compose: no limit
	}
	for key, v := range map[string]int64{"cpus": r.NanoCPUs, "memory": r.MemoryBytes, "pids": r.PIDs} {
		if v < 0 {
			t.fault(n, "", "the limit on %s must not be negative", key)
		}
	}
	return r
}

func (t *translation) agreed(at *node, other string, a, b int64) int64 {
	if a != 0 && b != 0 && a != b {
		t.fault(at, "", "says something else than %s", other)
	}
	if b != 0 {
		return b
	}
	return a
}

// nano turns cores into billionths, rounded to a millionth: float32, which compose-go uses, holds no more.
func nano(cores float32) int64 { return int64(float64(cores)*1e6+0.5) * 1000 }
