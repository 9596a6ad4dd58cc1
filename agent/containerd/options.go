package containerd

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
)

// Defaults of [Options].
const (
	DefaultAddress     = "/run/containerd/containerd.sock"
	DefaultNamespace   = "longshore"
	DefaultSnapshotter = "overlayfs"
	DefaultDownloads   = 3 // layers in flight: few, so that on a slow link some layers complete
	DefaultUnpacks     = 4 // layers unpacked side by side, where the snapshotter can

	DefaultLogMaxSize  = 10 << 20
	DefaultLogMaxFiles = 3
	DefaultLogBudget   = 256 << 20
	DefaultLogEvery    = 2 * time.Second
)

// Options say which containerd, whose objects, and where things are kept.
type Options struct {
	Address     string // containerd's socket; "": DefaultAddress
	Namespace   string // "": DefaultNamespace
	Snapshotter string // "": DefaultSnapshotter
	Device      string // goes into the labels; needed
	DataDir     string // volumes and logs, survives reboots; needed
	RunDir      string // short-lived mounts, does not survive reboots; needed

	Endpoints func(host string) ([]Endpoint, error) // where a registry host is really served, in order; needed for Pull
	Journal   Journal                               // needed
	Networks  Networks                              // needed

	Downloads int // layers fetched at a time; 0: DefaultDownloads
	Unpacks   int // layers unpacked at a time; 0: DefaultUnpacks

	MinFree Space // what pulls leave free of containerd's and the agent's file systems

	AllowPrivileged bool              // run privileged containers and hooks; refused otherwise
	Runtimes        map[string]string // other OCI runtimes that services may ask for by name: containerd's name of one, or the path of what stands in for runc
	Program         string            // path of this program, statically linked, for what it does in containers and beside them; "": services with init or tty are refused
	CDIDirs         []string          // of device specifications; nil: /etc/cdi and /var/run/cdi
	AllowNoSeccomp  bool              // run containers without a system call filter where runc cannot make one
	NoNewPrivileges bool              // set no_new_privs on every container

	Logs   LogLimits
	Logger *slog.Logger     // nil: silent
	Now    func() time.Time // needed
}

// LogLimits bound what containers may write.
type LogLimits struct {
	MaxSize  int64 // bytes of a file before it is rotated; 0: DefaultLogMaxSize
	MaxFiles int   // rotated files kept of a replica beside the current one; 0: DefaultLogMaxFiles
	Budget   int64 // bytes of all files on the device, rotated and current; 0: DefaultLogBudget

	Every time.Duration // between two looks at the files; 0: DefaultLogEvery
}

// Endpoint is one server of a registry host's content: a mirror or the host itself.
type Endpoint struct {
	Scheme      string // "https" or "http"
	Host        string // with port where it is not the scheme's
	Path        string // prefix of the distribution API; "": "/v2"
	Client      *http.Client
	Credentials func(ctx context.Context, host string) (user, secret string, err error) // nil: anonymous
}

// Journal remembers, durably, which images are safe to use after a power cut. It is implemented by the agent's store.
// Calls return when the entry is on the disk.
type Journal interface {
	Unpacking(image string) error
	Durable(image string) error
	IsDurable(image string) (bool, error)
	Forget(image string) error // with entries that begin with it and a space
}

// Attachment is what a container gets from its networks.
type Attachment struct {
	NetNS      string // path of the pinned namespace
	HostsFile  string
	ResolvConf string
	Hostname   string
}

// Networks makes projects' networks and containers' places in them. Every call may be repeated, also after a reboot.
type Networks interface {
	Prepare(ctx context.Context, p *workload.Project) error
	Attach(ctx context.Context, project string, c workload.Container) (Attachment, error)
	Detach(ctx context.Context, id string) error
	Teardown(ctx context.Context, project string) error
	Switch(ctx context.Context, project, service, id string) error
	Leave(ctx context.Context, id string) error
	// Admit tells in workload.Clashes what of the projects' networks and ports this device cannot give. It changes nothing.
	Admit(ctx context.Context, projects []*workload.Project) error
	// Answering are the ids of the containers that their services' addresses lead to.
	Answering() map[string]bool
}
