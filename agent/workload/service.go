package workload

import (
	"time"

	"github.com/opencontainers/go-digest"
)

// Service is one kind of container of a project. All fields except DependsOn, Replicas, Update and Rollback are in the hash of its
// containers. Zero fields are left out of the encoding, so that a new field does not restart containers of an older agent.
type Service struct {
	Name        string
	Image       Image
	Command     []string // nil: the image's CMD; also nil when Entrypoint replaced it
	Entrypoint  []string // nil: the image's ENTRYPOINT
	Environment []string // "KEY=value", sorted; on top of the image's
	WorkingDir  string   // "": the image's
	User        string   // "uid[:gid]" or names; "": the image's
	Hostname    string   // "": the service's name, with the replica's number where there are several
	Labels      map[string]string
	Ports       []Port
	Expose      []string     // metadata only
	Networks    []Attachment // in order of interfaces
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

	Replicas int    `json:",omitzero"` // 0: one; not part of the hash
	Update   Update `json:",omitzero"` // not part of the hash
	Rollback Update `json:",omitzero"` // not part of the hash

	Domainname  string            `json:",omitzero"`
	Annotations map[string]string `json:",omitempty"`
	Groups      []string          `json:",omitempty"` // names or numbers, beside those of User
	Umask       *uint32           `json:",omitempty"` // nil: the runtime's
	Init        bool              `json:",omitzero"`  // a first process that reaps and passes signals on
	TTY         bool              `json:",omitzero"`
	Stdin       bool              `json:",omitzero"` // keep standard input open
	Runtime     string            `json:",omitzero"` // "": the device's default
	Namespaces  Namespaces        `json:",omitzero"`
	Security    *Security         `json:",omitempty"` // nil: the default confinement
	Devices     []Device          `json:",omitempty"`
	DeviceRules []string          `json:",omitempty"` // "c 189:* rmw": may be used when it appears
	CDI         []string          `json:",omitempty"` // "vendor.com/class=name"
	GPUs        []DeviceRequest   `json:",omitempty"`
	Files       []File            `json:",omitempty"` // configs and secrets
	Hosts       []Host            `json:",omitempty"` // further lines of /etc/hosts
	DNS         DNS               `json:",omitzero"`
	Ulimits     []Ulimit          `json:",omitempty"` // sorted by name
	Sysctls     map[string]string `json:",omitempty"`
	Log         Log               `json:",omitzero"`
	PreStart    []PreStart        `json:",omitempty"` // in order, each to its end, before every start
	PostStart   []Hook            `json:",omitempty"`
	PreStop     []Hook            `json:",omitempty"`
}

// Count is how many containers the service has.
func (s *Service) Count() int { return max(s.Replicas, 1) }

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

// ImageInfo is the part of an image's configuration that plans depend on.
type ImageInfo struct {
	Health  *Health  `json:"health,omitempty"`  // Docker's HEALTHCHECK; nil: none
	Volumes []string `json:"volumes,omitempty"` // paths that want a volume, sorted
}

// Condition is what a dependency must have reached before a service starts.
type Condition string

// Conditions of Compose depends_on.
const (
	Started   Condition = "service_started"
	Healthy   Condition = "service_healthy"
	Completed Condition = "service_completed_successfully"
)

// Dependency orders services.
type Dependency struct {
	Service   string
	Condition Condition
	Optional  bool `json:",omitzero"` // required: false: a dependency that cannot be had does not hold this service back
	Restart   bool `json:",omitzero"` // restarted when an update replaced or restarted the dependency
}

// Hook is a command that runs in a running container.
type Hook struct {
	Command     []string
	User        string   `json:",omitzero"` // "": the container's
	Privileged  bool     `json:",omitzero"`
	WorkingDir  string   `json:",omitzero"`  // "": the container's
	Environment []string `json:",omitempty"` // "KEY=value", sorted; on top of the container's
}

// PreStart is a container that runs to its end before a service's container starts. It shares that container's networks
// and volumes.
type PreStart struct {
	Service    Service // of its own image, command, environment, user and mounts
	PerReplica bool    // false: once, before the first replica
}

// Log limits the kept output of a container. Zero values are the device's own limits.
type Log struct {
	None     bool  `json:",omitzero"` // keep nothing
	MaxSize  int64 `json:",omitzero"` // bytes of a file before it is rotated
	MaxFiles int   `json:",omitzero"` // rotated files kept
}
