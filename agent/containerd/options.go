package containerd

import (
	"context"
	"log/slog"
	"time"

	"github.com/longshore-dev/longshore/agent/containerd/images"
	"github.com/longshore-dev/longshore/agent/containerd/logs"
	"github.com/longshore-dev/longshore/agent/containerd/runspec"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Defaults of [Options].
const (
	DefaultAddress     = "/run/containerd/containerd.sock"
	DefaultNamespace   = "longshore"
	DefaultSnapshotter = "overlayfs"
)

// Options of a runtime.
type Options struct {
	Address     string // containerd's socket; "": DefaultAddress
	Namespace   string // "": DefaultNamespace
	Snapshotter string // "": DefaultSnapshotter
	Device      string // goes into the labels; needed
	DataDir     string // volumes and logs, survives reboots; needed
	RunDir      string // short-lived mounts, does not survive reboots; needed

	Endpoints func(repository string) ([]images.Endpoint, error) // the endpoints of a repository, in order; needed for Pull
	Journal   images.Journal                                     // needed
	Networks  Networks                                           // needed

	MinFree images.Space // free space that pulls leave on the file systems of containerd and the agent

	AllowPrivileged bool              // run services with the privileges of workload.Privileges; rejected otherwise
	Places          []workload.Place  // of this device that unprivileged containers must not mount, in addition to those of every device: the agent's configuration
	Runtimes        map[string]string // other OCI runtimes that services may use, by name: containerd's name of one, or the path of a replacement for runc
	Program         string            // path of this program, for init and tty; "": services with them are rejected
	Dynamic         bool              // Program is linked dynamically: services with init are rejected
	CDIDirs         []string          // of device specifications; nil: /etc/cdi and /var/run/cdi
	AllowNoSeccomp  bool              // run containers without a system call filter if runc does not support one

	Telemetry runspec.Telemetry // where containers send measurements

	Logs   logs.Limits
	Logger *slog.Logger     // nil: silent
	Now    func() time.Time // needed
}

// Networks creates the networks of projects and attaches containers to them. Every call may be repeated, also after a reboot.
type Networks interface {
	Prepare(ctx context.Context, p *workload.Project) error
	Attach(ctx context.Context, project string, c workload.Container) (workload.Attached, error)
	Detach(ctx context.Context, id string) error
	Teardown(ctx context.Context, project string) error
	Activate(ctx context.Context, project, service, id string) error
	Deactivate(ctx context.Context, id string) error
	// Admit returns workload.Conflicts when this device cannot provide the projects' networks and ports. It changes nothing.
	Admit(ctx context.Context, projects []*workload.Project) error
	// ActiveBackends are the ids of the containers that receive their services' connections.
	ActiveBackends() map[string]bool
}
