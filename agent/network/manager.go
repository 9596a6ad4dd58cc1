package network

import (
	"context"
	"log/slog"
	"net/netip"

	"github.com/longshore-dev/longshore/agent/workload"
)

// Options say where a manager keeps its things and which names it may use. Managers on one machine need different
// DataDir, RunDir, Pool and Table.
type Options struct {
	DataDir string       // network.json; survives reboots; needed
	RunDir  string       // pinned namespaces, hosts files; does not survive reboots; needed
	Pool    netip.Prefix // IPv4 addresses to hand out; zero: 10.210.0.0/16
	Table   string       // nftables table; interface names derive from it; "": "longshore"
	NetNS   string       // path of the network namespace that plays the host; "": the one of the process
	Logger  *slog.Logger // nil: silent
}

// Manager makes and keeps the networks of projects. Its methods may be called from several goroutines.
type Manager struct{}

// Attachment is what a container needs to know of its networks.
type Attachment struct {
	NetNS      string // path of the pinned network namespace
	HostsFile  string // to be mounted at /etc/hosts, read-only
	ResolvConf string // to be mounted at /etc/resolv.conf, read-only
	Hostname   string
}

// Open reads the saved state. It changes nothing on the host; see [Manager.Restore].
func Open(o Options) (*Manager, error) { return &Manager{}, nil }

// Close lets go of the kernel's sockets. Networks stay.
func (m *Manager) Close() error { return nil }

// Prepare makes a project's networks and gives every service its addresses.
func (m *Manager) Prepare(ctx context.Context, p *workload.Project) error { return nil }

// Attach makes a container's namespace, links, routes and files.
func (m *Manager) Attach(ctx context.Context, project string, c workload.Container) (Attachment, error) {
	return Attachment{}, nil
}

// Switch makes a container the one that answers for its service.
func (m *Manager) Switch(ctx context.Context, project, service, containerID string) error { return nil }

// Detach removes a container's namespace, links and files. Gone is no error.
func (m *Manager) Detach(ctx context.Context, id string) error { return nil }

// Teardown removes all that a project has. Gone is no error.
func (m *Manager) Teardown(ctx context.Context, project string) error { return nil }

// Verify compares the host with the saved state.
func (m *Manager) Verify(ctx context.Context) error { return nil }

// Restore makes the host as the saved state says.
func (m *Manager) Restore(ctx context.Context) error { return nil }

// Projects are the names of the projects that own anything, sorted.
func (m *Manager) Projects() []string { return nil }

// Notes are things about this host that an operator should know, one sentence each.
func (m *Manager) Notes() []string { return nil }
