// Package workload is what the agent runs, as plain values: projects, services, containers and what was observed of them.
//
// It is pure: no I/O, no clock, no containerd. A translator (agent/compose, later Helm's) makes a [Project], the plan
// compares it with what a runtime [Observed], and a runtime (agent/containerd) realises it. Identity is content: a
// container's name holds the hash of everything that shaped it, so "already there" and "unchanged" are the same question.
package workload

import (
	"net/netip"
	"time"

	"github.com/opencontainers/go-digest"
)

// Project is one Compose project on this device, with nothing left to look up.
type Project struct {
	Name       string // unique on the device, [a-z0-9-]{1,32}; see [ProjectName]
	Deployment string // Margo deployment id
	Component  string // Margo component name
	Generation uint64 // of the state that asked for it; not part of any hash
	Services   []Service
	Networks   []Network
	Volumes    []Volume
}

// Service is one kind of container of a project. Everything here but DependsOn shapes the container and so its hash.
type Service struct {
	Name        string
	Image       Image
	Command     []string // nil: the image's CMD; also nil when Entrypoint replaced it
	Entrypoint  []string // nil: the image's ENTRYPOINT
	Environment []string // "KEY=value", sorted; on top of the image's
	WorkingDir  string   // "": the image's
	User        string   // "uid[:gid]" or names; "": the image's
	Hostname    string   // "": the service's name
	Labels      map[string]string
	Ports       []Port
	Expose      []string     // metadata only
	Networks    []Attachment // in order; the first is the default route
	Mounts      []Mount
	DependsOn   []Dependency // not part of the hash
	Health      *Health      // nil: none, or the image's own when it has one
	NoHealth    bool         // healthcheck.disable: ignore the image's too
	Restart     Restart
	ReadOnly    bool
	Resources   Resources
	StopSignal  string        // "": the image's, else SIGTERM
	StopGrace   time.Duration // 0: 10 s
	OwnShim     bool          // x-longshore-own-shim: not in the project's shared shim
}

// Image is a container image pinned by digest.
type Image struct {
	Repository string        // registry host and path, without tag: "harbor.example/plant/caddy"
	Tag        string        // as written, for people only
	Digest     digest.Digest // of the manifest or index; never empty once admitted
	Platform   string        // "linux/arm64"; "": this machine's
	Size       int64         // compressed bytes of this platform as locked; 0: unknown
}

// Name is the reference by digest that containerd keeps the image under.
func (i Image) Name() string { return i.Repository + "@" + i.Digest.String() }

// Port publishes a container's port on the host.
type Port struct {
	HostIP        netip.Addr // zero: every address
	HostPort      uint16     // never 0: a device does not choose ports at random
	ContainerPort uint16
	Protocol      string // "tcp" or "udp"
}

// Attachment joins a service to one of its project's networks.
type Attachment struct {
	Network string   // Network.Name
	Aliases []string // beside the service's own name, which always resolves
}

// Network is one bridge of a project.
type Network struct {
	Name   string // Compose key, unique in the project
	Labels map[string]string
}

// Volume is a named volume. It outlives containers, updates and the removal of its project.
type Volume struct {
	Name   string // Compose key, unique in the project
	Labels map[string]string
}

// MountKind tells the three kinds of mounts apart.
type MountKind string

// Kinds of mounts.
const (
	MountVolume MountKind = "volume" // Source is Volume.Name; "" is a volume of the replica's and target's own, which goes with the project
	MountBind   MountKind = "bind"   // Source is an absolute path on the host
	MountTmpfs  MountKind = "tmpfs"
)

// Mount puts something at Target in the container.
type Mount struct {
	Kind      MountKind
	Source    string
	Target    string
	ReadOnly  bool
	Create    bool   // bind: make the host directory when it is missing
	TmpfsMax  int64  // tmpfs: bytes, 0: no limit of its own
	TmpfsPerm uint32 // tmpfs: mode bits, 0: 1777
}

// Condition is what a dependency must have reached before a service starts.
type Condition string

// Conditions of Compose depends_on.
const (
	Started Condition = "service_started"
	Healthy Condition = "service_healthy"
)

// Dependency orders services.
type Dependency struct {
	Service   string
	Condition Condition
}

// Health is how a running container is judged.
type Health struct {
	Probe       Probe
	Interval    time.Duration // > 0
	Timeout     time.Duration // > 0
	Retries     int           // > 0: failures in a row until unhealthy
	StartPeriod time.Duration // failures in it do not count
}

// Probe is one question to a container: exactly one of Exec, HTTP and TCP is set.
type Probe struct {
	Exec []string   // argv in the container; exit 0 is good
	HTTP *HTTPProbe // from inside the container's network namespace; 2xx and 3xx are good
	TCP  uint16     // port that must accept, from inside the container's network namespace
}

// HTTPProbe is a GET.
type HTTPProbe struct {
	Port uint16
	Path string // "": "/"
}

// RestartPolicy is Compose's restart.
type RestartPolicy string

// Restart policies.
const (
	RestartNo            RestartPolicy = "no"
	RestartAlways        RestartPolicy = "always"
	RestartOnFailure     RestartPolicy = "on-failure"
	RestartUnlessStopped RestartPolicy = "unless-stopped"
)

// Restart says what follows an exit.
type Restart struct {
	Policy RestartPolicy // "": no, as Compose has it
	Max    int           // on-failure: attempts; 0: no limit
}

// Resources are hard limits; zero is none.
type Resources struct {
	NanoCPUs    int64 // 1e9 is one core
	MemoryBytes int64
	PIDs        int64
}
