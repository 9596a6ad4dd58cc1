package containerd

import (
	"context"
	"log/slog"
	"time"

	"github.com/longshore-dev/longshore/agent/containerd/images"
	"github.com/longshore-dev/longshore/agent/containerd/logs"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Defaults of [Options].
const (
	DefaultAddress     = "/run/containerd/containerd.sock"
	DefaultNamespace   = "longshore"
	DefaultSnapshotter = "overlayfs"
)

// Options say which containerd, whose objects, and where things are kept.
type Options struct {
	Address     string // containerd's socket; "": DefaultAddress
	Namespace   string // "": DefaultNamespace
	Snapshotter string // "": DefaultSnapshotter
	Device      string // goes into the labels; needed
	DataDir     string // volumes and logs, survives reboots; needed
	RunDir      string // short-lived mounts, does not survive reboots; needed

	Endpoints func(repository string) ([]images.Endpoint, error) // where a repository, with its host, is really served, in order; needed for Pull
	Journal   images.Journal                                     // needed
	Networks  Networks                                           // needed

	Downloads int // layers fetched at a time; 0: DefaultDownloads
	Unpacks   int // layers unpacked at a time; 0: DefaultUnpacks

	MinFree images.Space // what pulls leave free of containerd's and the agent's file systems

	AllowPrivileged bool              // run what workload.Privileges lists; refused otherwise
	Places          []workload.Place  // of this device, beside those of every one, that containers without privileges must not have: the agent's configuration
	Runtimes        map[string]string // other OCI runtimes that services may ask for by name: containerd's name of one, or the path of what stands in for runc
	Program         string            // path of this program, statically linked, for what it does in containers and beside them; "": services with init or tty are refused
	CDIDirs         []string          // of device specifications; nil: /etc/cdi and /var/run/cdi
	AllowNoSeccomp  bool              // run containers without a system call filter where runc cannot make one
	NoNewPrivileges bool              // set no_new_privs on every container

	Logs   logs.Limits
	Logger *slog.Logger     // nil: silent
	Now    func() time.Time // needed
}

// Attachment is what a container gets from its networks.
type Attachment struct {
	NetNS        string // path of the pinned namespace
	HostsFile    string
	ResolvConf   string
	HostnameFile string
	Hostname     string
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
