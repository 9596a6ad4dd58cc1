package compose

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// maxServices bounds one project: each service is a container with a network namespace.
const maxServices = 128

// maxContainers bounds the replicas of all services of one project.
const maxContainers = 256

// maxLabel is containerd's limit on a label's key and value together.
const maxLabel = 4096

// maxStopGrace bounds the wait of an update or a removal for one service. The agent's own limit on a stop is longer, so that SIGKILL
// is always sent.
const maxStopGrace = 10 * time.Minute

// foreignLabels is the prefix of containerd's own labels.
const foreignLabels = "containerd.io/"

// reservedLabels is the prefix of the agent's own labels.
const reservedLabels = "dev.longshore."

// translation translates a document to a project.
type translation struct {
	*document
	files     fs.FS // nil: files of the archive are not checked
	lock      *artifacts.Lock
	platform  string
	unpinned  bool
	publisher bool     // a device's values are not known: all profiles are active
	unfit     []string // images that are not made for this platform
	ports     []publication
	inactive  map[string]string            // services without containers here, and why
	inits     map[string]*composefile.Node // init containers with inherited keys, by name
	contents  map[*composefile.Node][]byte // configs and secrets that were read; nil: refused
	packed    map[string][]byte            // files of the archive that are mounted and were read
	unnamed   []string                     // names of anonymous volumes that several services mount
}

func (t *translation) translate(ctx context.Context, name string) (*workload.Project, error) {
	services := t.root.Get("services")
	if len(services.Keys) > maxServices {
		t.Fault(services, "", "more than %d services", maxServices)
		return nil, t.Err()
	}
	if !t.checkNames(services) || !t.sections() {
		return nil, t.Err() // names are paths in everything that follows
	}
	t.inits = map[string]*composefile.Node{}
	t.profiles(services)
	p := &workload.Project{Name: name}
	for _, k := range services.Keys {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("read %s: %w", t.File, context.Cause(ctx))
		}
		n := services.Fields[k]
		s := t.service(k, n)
		s.Ports = t.servicePorts(k, n.Get("ports"), s.Count())
		t.exposure(n, &s)
		t.hooks(n, &s)
		p.Services = append(p.Services, s)
	}
	t.checkPorts()
	containers := 0
	for i := range p.Services {
		containers += p.Services[i].Count()
	}
	if containers > maxContainers {
		t.Fault(services, "", "%d containers, more than %d", containers, maxContainers)
	}
	t.dependencies(p)
	t.networks(p)
	t.reachable(p)
	t.volumes(p)
	t.orders(p)
	if err := t.Err(); err != nil {
		return nil, err
	}
	if err := t.fits(); err != nil {
		return nil, err
	}
	t.privileges(p)
	for _, f := range t.Notices() {
		p.Notices = append(p.Notices, workload.Notice{Path: f.Path, Message: f.Message})
	}
	return p, nil
}

func (t *translation) checkNames(services *composefile.Node) bool {
	ok := true
	for _, k := range services.Keys {
		if !isHostname(k) {
			t.Fault(services.Fields[k], "use letters, digits, dots, dashes and underscores, at most 63", "%q is no name for a service", k)
			ok = false
		}
		if services.Fields[k].Kind != composefile.Map {
			t.Fault(services.Fields[k], "", "must be a mapping")
			ok = false
		}
	}
	return ok
}

// sectionName matches the keys that Compose allows in "networks:", "volumes:", "configs:" and "secrets:".
var sectionName = strict.Expression(`^[a-zA-Z0-9._-]+$`)

// networkName matches those that the device's own state of networks can have: it names each once for every service.
var networkName = strict.Short(`^[a-zA-Z0-9_][a-zA-Z0-9._-]*$`, 253)

// sections checks the form of networks, volumes, configs and secrets.
func (t *translation) sections() bool {
	ok := true
	for what, noun := range map[string]string{"networks": "a network", "volumes": "a volume", "configs": "a config", "secrets": "a secret"} {
		n := t.root.Get(what)
		if n.IsNull() {
			continue
		}
		if n.Kind != composefile.Map {
			t.Fault(n, "", "must be a mapping")
			ok = false
			continue
		}
		for _, k := range n.Keys {
			if !sectionName.MatchString(k) || strings.HasPrefix(k, "x-") || what == "networks" && !networkName.MatchString(k) {
				t.Fault(n.Fields[k], "", "%q is no name for %s", composefile.Clip(k), noun)
				ok = false
			} else if c := n.Fields[k]; !c.IsNull() && c.Kind != composefile.Map {
				t.Fault(c, "", "must be a mapping")
				ok = false
			}
		}
	}
	return ok
}

// service translates what a service and its init containers have in common.
func (t *translation) service(name string, n *composefile.Node) workload.Service {
	s := workload.Service{
		Name:       name,
		Command:    t.command(n.Get("command")),
		Entrypoint: t.command(n.Get("entrypoint")),
		WorkingDir: t.Text(n.Get("working_dir")),
		User:       t.Text(n.Get("user")),
		Hostname:   t.Text(n.Get("hostname")),
		Labels:     t.labels(n, t.fileLabels(n, t.mapping(n.Get("labels")))),
		Expose:     t.texts(n.Get("expose")),
		ReadOnly:   t.flag(n.Get("read_only")),
		StopSignal: t.stopSignal(n.Get("stop_signal")),
	}
	s.Image = t.serviceImage(n)
	if s.Entrypoint != nil && len(s.Command) == 0 {
		s.Command = nil // Compose: the image's command is dropped if the service has an entrypoint
		if len(s.Entrypoint) == 0 && !t.omitted[n.Path+".command"] {
			t.Fault(n.Get("entrypoint"), "name the program with \"command:\"", "an empty entrypoint leaves nothing to run")
		}
	}
	s.Environment = t.environment(n)
	s.Health, s.NoHealth = t.health(n.Get("healthcheck"))
	s.Restart = t.restart(n.Get("restart"))
	s.Resources = t.resources(n)
	t.namespaces(n, &s)
	t.attachments(n, &s)
	t.confine(n, &s)
	t.devices(n, &s)
	t.deploy(n, &s)
	mounts, packed := t.serviceMounts(n.Get("volumes"))
	s.Mounts = append(mounts, t.serviceTmpfs(n.Get("tmpfs"))...)
	s.Files = append(t.serviceFiles(n), packed...)
	t.checkMounts(n, &s)
	t.plainFields(n, &s)
	t.stopGrace(n.Get("stop_grace_period"), &s)
	if own := n.Get(extOwnShim); own != nil {
		var ok bool
		if s.OwnShim, ok = own.Value.(bool); !ok && !own.IsNull() {
			t.Fault(own, "", "must be true or false")
		}
	}
	return s
}

func (t *translation) stopGrace(n *composefile.Node, s *workload.Service) {
	if n.IsNull() {
		return
	}
	switch s.StopGrace = t.duration(n); {
	case s.StopGrace > maxStopGrace:
		t.Fault(n, "a service that needs longer should save its work while it runs", "%v is longer than %v", s.StopGrace, maxStopGrace)
	case s.StopGrace == 0:
		s.StopGrace = 1 // a nanosecond: killed at once, where zero would mean the default
	}
}

// plainFields checks and sets values that the runtime gets unchanged.
func (t *translation) plainFields(n *composefile.Node, s *workload.Service) {
	if s.WorkingDir != "" && !strings.HasPrefix(s.WorkingDir, "/") {
		t.Fault(n.Get("working_dir"), "", "%q is not an absolute path", s.WorkingDir)
	}
	if s.Hostname != "" && !isHostname(s.Hostname) {
		t.Fault(n.Get("hostname"), "", "%q is no host name", s.Hostname)
	}
	if s.Domainname = t.Text(n.Get("domainname")); s.Domainname != "" && !isHostname(s.Domainname) {
		t.Fault(n.Get("domainname"), "", "%q is no name of a domain", s.Domainname)
	}
	for id := range strings.SplitSeq(s.User, ":") {
		if v, _ := strconv.ParseUint(id, 10, 32); v > math.MaxInt32 { // with an error 0, or the highest for one that is too large
			t.Fault(n.Get("user"), "", "%s is no number of a user or group: the highest is %d", composefile.Clip(id), math.MaxInt32)
		}
	}
	s.Annotations = t.mapping(n.Get("annotations"))
	s.Groups = t.texts(n.Get("group_add"))
	s.Init = t.flag(n.Get("init"))
	s.TTY = t.flag(n.Get("tty"))
	s.Stdin = t.flag(n.Get("stdin_open"))
	s.Runtime = t.Text(n.Get("runtime"))
	s.Umask = t.umask(n.Get("umask"))
	t.log(n.Get("logging"), s)
}

// umask is octal, as a number of YAML or as text.
func (t *translation) umask(n *composefile.Node) *uint32 {
	if n.IsNull() {
		return nil
	}
	return new(t.octal(n, 0o777))
}

// Underscores are not allowed in host names, but common in names of services and accepted by resolvers.
var hostname = strict.Short(`^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9_])?$`, 63)

func isHostname(s string) bool { return hostname.MatchString(s) }

// labels rejects labels that containerd cannot store or that are reserved.
func (t *translation) labels(n *composefile.Node, labels map[string]string) map[string]string {
	at := cmp.Or(n.Get("labels"), n)
	for k, v := range labels {
		where := at
		if l := at.Get(k); l != nil {
			where = l
		}
		switch {
		case strings.HasPrefix(k, reservedLabels):
			t.Fault(where, "", "labels that begin with %s are the agent's own", reservedLabels)
		case strings.HasPrefix(k, foreignLabels):
			t.Fault(where, "", "labels that begin with %s are containerd's own", foreignLabels)
		case k == "":
			t.Fault(where, "", "a label needs a name")
		case len(k)+len(v) > maxLabel:
			t.Fault(where, "", "label %s is longer than %d bytes", composefile.Clip(k), maxLabel)
		}
	}
	if len(labels) == 0 {
		return nil
	}
	return labels
}

// restart reads Compose's restart: "no", "always", "unless-stopped", "on-failure[:max]".
func (t *translation) restart(n *composefile.Node) workload.Restart {
	s := t.Text(n)
	policy, count, counted := strings.Cut(s, ":")
	r := workload.Restart{Policy: workload.RestartPolicy(policy)}
	switch r.Policy {
	case "", workload.RestartNo, workload.RestartAlways, workload.RestartUnlessStopped:
		if counted {
			t.Fault(n, "", "only on-failure takes a number of attempts")
		}
		if r.Policy == workload.RestartNo {
			r.Policy = ""
		}
	case workload.RestartOnFailure:
		if counted {
			if _, err := fmt.Sscanf(count, "%d", &r.Max); err != nil || r.Max < 0 || fmt.Sprint(r.Max) != count {
				t.Fault(n, "", "%q is no number of attempts", count)
			}
		}
	default:
		t.Fault(n, "", "%q is none of no, always, on-failure[:attempts], unless-stopped", s)
	}
	return r
}

// stopSignal checks the name; real-time signals may be counted from either end.
func (t *translation) stopSignal(n *composefile.Node) string {
	s := t.Text(n)
	if s != "" && !stopSignals.MatchString(strings.ToUpper(s)) {
		t.Fault(n, "", "%q is no signal", s)
	}
	return s
}

var stopSignals = strict.Expression(`^(?:(?:SIG)?(?:HUP|INT|QUIT|ILL|TRAP|ABRT|BUS|FPE|KILL|USR[12]|SEGV|PIPE|ALRM|TERM|CONT|STOP|TSTP|TTIN|TTOU|URG|XCPU|XFSZ|VTALRM|PROF|WINCH|IO|PWR|SYS|RTMIN(?:\+[0-9]{1,2})?|RTMAX(?:-[0-9]{1,2})?)|[1-9]|[1-5][0-9]|6[0-4])$`)

// maxLogFiles is how many rotated files a service may ask for; the device's budget applies as well.
const maxLogFiles = 100

func (t *translation) log(n *composefile.Node, s *workload.Service) {
	if !t.isMapping(n) {
		return
	}
	driver := t.Text(n.Get("driver"))
	switch driver { // those with a rotated log file, like ours
	case "", "json-file", "local", "none":
	default:
		t.Fault(n.Get("driver"), "leave it out: what a service writes is kept on the device, and longshore-agent logs shows it",
			"logging driver %q is not possible on a device: json-file, local and none are", composefile.Clip(driver))
		return
	}
	s.Log.None = driver == "none"
	for _, o := range t.pairsOf(n.Get("options")) {
		switch o.key {
		case "max-size":
			v, err := parseBytes(o.value)
			if err != nil || v == 0 {
				t.Fault(o.at, "", "%q is no size", composefile.Clip(o.value))
			}
			s.Log.MaxSize = v
		case "max-file":
			v := t.integer(o.at, 1, maxLogFiles)
			s.Log.MaxFiles = int(v)
		case "compress", "mode", "max-buffer-size", "tag", "labels", "labels-regex", "env", "env-regex", "cache-disabled", "cache-max-size", "cache-max-file", "cache-compress":
			t.Notice(o.at, "no effect: a device's logs never block and hold what the service writes")
		default:
			t.Fault(o.at, "max-size and max-file are honoured", "unknown option %q of the log", composefile.Clip(o.key))
		}
	}
}
