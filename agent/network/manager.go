package network

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Defaults of [Options].
const (
	DefaultPool  = "10.210.0.0/16"
	DefaultTable = "longshore"
)

const maxSalt = 16 // tries for an interface name that no other network has

// Options say where a manager keeps its things and which names it may use. Managers on one machine need different
// DataDir, RunDir, Pool and Table.
type Options struct {
	DataDir string       // network.json; survives reboots; needed
	RunDir  string       // pinned namespaces, hosts files; does not survive reboots; needed
	Pool    netip.Prefix // IPv4 addresses to hand out, /8 to /26; zero: DefaultPool
	Table   string       // nftables table; interface names derive from it; "": DefaultTable
	NetNS   string       // path of the network namespace that plays the host; "": the one of the process
	Logger  *slog.Logger // nil: silent
}

// Manager makes and keeps the networks of projects. Its methods may be called from several goroutines; they take turns.
type Manager struct {
	o    Options
	log  *slog.Logger
	host *host

	mu     sync.Mutex
	state  *state
	closed bool
	saved  []byte // the bytes in the data directory's file; nil: not known
	copied []byte // the bytes in the run directory's copy; nil: not known
	table  table
	names  []string // resolver configurations of the host, the first that a container can use counts
	lost   bool     // the saved state was damaged and could not be rebuilt: what looks like nobody's may be somebody's
	notes  []string // see Notes
}

// Attachment is what a container needs to know of its networks.
type Attachment struct {
	NetNS      string // path of the pinned network namespace
	HostsFile  string // to be mounted at /etc/hosts, read-only
	ResolvConf string // to be mounted at /etc/resolv.conf, read-only
	Hostname   string
}

// Open reads the saved state. It changes nothing in the kernel: call [Manager.Restore] before anything else after a
// start. A damaged state file is set aside and rebuilt from the run directory's copy; see [Manager.Notes]. The caller
// closes the manager.
func Open(o Options) (*Manager, error) {
	if o.DataDir == "" || o.RunDir == "" {
		return nil, fmt.Errorf("network manager: DataDir and RunDir are needed: %w", fault.ErrInvalid)
	}
	if !o.Pool.IsValid() {
		o.Pool = netip.MustParsePrefix(DefaultPool)
	}
	o.Pool, o.Table = o.Pool.Masked(), cmp.Or(o.Table, DefaultTable)
	if !o.Pool.Addr().Is4() || o.Pool.Bits() < minPoolBits || o.Pool.Bits() > maxPoolBits {
		return nil, fmt.Errorf("network pool %s: needs an IPv4 network of /%d to /%d: %w", o.Pool, minPoolBits, maxPoolBits, fault.ErrInvalid)
	}
	if !validName(o.Table) || len(o.Table) > 31 {
		return nil, fmt.Errorf("network table %q: %w", o.Table, fault.ErrInvalid)
	}
	for _, dir := range []string{o.DataDir, o.RunDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("network manager: %w", err)
		}
	}
	found, err := load(o.DataDir, o.RunDir)
	if err != nil {
		return nil, err
	}
	h, err := openHost(o.NetNS, o.Table)
	if err != nil {
		return nil, err
	}
	m := &Manager{o: o, log: o.Logger, host: h, state: found.state, saved: found.saved, copied: found.copied, lost: found.lost, notes: found.notes, table: table{name: o.Table}}
	m.names = []string{resolvConf, resolvedConf}
	if m.log == nil {
		m.log = slog.New(slog.DiscardHandler)
	}
	if !h.own {
		m.table.ns = h.ns
	}
	for _, n := range found.notes {
		m.log.Warn(n)
	}
	return m, nil
}

// Close lets go of the kernel's sockets. Networks stay.
func (m *Manager) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.host.close()
		m.closed = true
	}
	return nil
}

// ready tells whether a call may begin. A closed manager's sockets would silently be replaced by ones of another namespace.
func (m *Manager) ready(ctx context.Context) error {
	if m.closed {
		return fmt.Errorf("network manager: %w", os.ErrClosed)
	}
	return ctx.Err()
}

// Notes are things about this host that an operator should know, one sentence each: a setting that had to be changed, a
// damaged file that was set aside.
func (m *Manager) Notes() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.notes)
}

// Projects are the names of the projects that own anything, sorted.
func (m *Manager) Projects() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.state.Projects))
}

// Attached are the ids of a project's attached containers, sorted.
func (m *Manager) Attached(project string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.state.Projects[project]; p != nil {
		return slices.Sorted(maps.Keys(p.Attachments))
	}
	return nil
}

// Addresses are where a container is, by network. Empty when it is not attached.
func (m *Manager) Addresses(id string) map[string]netip.Addr {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]netip.Addr{}
	if _, p := m.state.find(id); p != nil {
		for _, n := range p.Attachments[id].Networks {
			out[n] = p.address(p.Attachments[id], n)
		}
	}
	return out
}

// ServiceAddress is the address that a service's name means on one of its networks; invalid when there is none.
func (m *Manager) ServiceAddress(project, service, network string) netip.Addr {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.state.Projects[project]; p != nil && p.Services[service] != nil && p.Services[service].Places[network] != nil {
		return p.Services[service].Places[network].VIP
	}
	return netip.Addr{}
}

// Answering are the ids of the containers that their services' addresses and ports lead to: all that [Manager.Switch] made
// answer, or the first that was attached while there is none.
func (m *Manager) Answering() map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]bool{}
	for _, p := range m.state.Projects {
		for s := range p.Services {
			for _, id := range p.answering(s) {
				out[id] = true
			}
		}
	}
	return out
}

// commit saves next, unless that is what is saved, and makes it the state. What is saved already is not written again,
// also not by the first call after a restart: a full disk must not keep what is prepared from starting. The copy in the run
// directory is what a damaged file is rebuilt from.
func (m *Manager) commit(next *state) error {
	data, err := encodeState(next)
	if err != nil {
		return err
	}
	if len(data) > maxState {
		return fmt.Errorf("save the state of the networks: more than %d bytes: %w", maxState, fault.ErrTooLarge)
	}
	if !bytes.Equal(data, m.saved) {
		m.saved = nil // until it is known to be written
		if err := writeDurable(filepath.Join(m.o.DataDir, stateFile), data); err != nil {
			return err
		}
		m.saved = data
	}
	m.state = next
	if bytes.Equal(data, m.copied) {
		return nil
	}
	m.copied = nil
	if err := writeQuick(filepath.Join(m.o.RunDir, stateFile), data); err != nil {
		return err
	}
	m.copied = data
	return nil
}

// applyTable makes the table follow s, and ends the tracked connections that would miss the change.
func (m *Manager) applyTable(s *state) error {
	before, after := m.table.applied, s.elements()
	if err := m.table.apply(after); err != nil {
		return err
	}
	if gone := staleAfter(before, after); !gone.empty() {
		_, err := m.host.links.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, gone)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return fmt.Errorf("end stale connections: %w", err)
		}
	}
	return nil
}

func (m *Manager) netnsPath(id string) string { return filepath.Join(m.o.RunDir, "netns", id) }
func (m *Manager) filesDir(id string) string  { return filepath.Join(m.o.RunDir, "files", id) }

// Prepare makes a project's networks and gives every service its addresses. What an earlier revision had and its containers
// still use stays until they are detached. A port that an attached container of another project has is fault.ErrConflict,
// until that container is detached.
func (m *Manager) Prepare(ctx context.Context, p *workload.Project) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ready(ctx); err != nil {
		return err
	}
	if err := m.prepare(p); err != nil {
		return fmt.Errorf("prepare the networks of project %q: %w", p.Name, err)
	}
	return nil
}

func (m *Manager) prepare(p *workload.Project) error {
	before := m.state
	next := before.clone()
	var live []netip.Prefix // looked up only when a network is new
	choose := func(network string) (bridge, error) {
		if live == nil {
			var err error
			if live, err = m.host.foreign(); err != nil {
				return bridge{}, err
			}
		}
		return m.choose(next, p.Name, network, live)
	}
	if err := next.prepare(p, choose); err != nil {
		return err
	}
	for _, s := range p.Services {
		if err := m.checkListeners(s.Name, portsOf(s.Ports), before.portsOf(p.Name)); err != nil {
			return err
		}
	}
	if err := m.commit(next); err != nil {
		return err
	}
	if err := m.ensureForwarding(); err != nil {
		return err
	}
	if err := m.noteDroppers(); err != nil {
		return err
	}
	own := m.state.Projects[p.Name]
	for _, n := range slices.Sorted(maps.Keys(own.Networks)) {
		if _, err := m.host.ensureBridge(own.Networks[n], p.Name+"/"+n); err != nil {
			return fmt.Errorf("network %q: %w", n, err)
		}
	}
	if err := m.applyTable(m.state); err != nil {
		return err
	}
	if err := m.ensureAllFiles(own); err != nil {
		return err
	}
	return m.removeBridges(before.Projects[p.Name], own)
}

// removeBridges deletes the bridges that a project had and has no more.
func (m *Manager) removeBridges(before, after *project) error {
	if before == nil {
		return nil
	}
	for n, b := range before.Networks {
		if after != nil && after.Networks[n] != nil && after.Networks[n].Name == b.Name {
			continue
		}
		if err := removeLink(m.host.links, b.Name); err != nil {
			return fmt.Errorf("network %q: %w", n, err)
		}
	}
	return nil
}

// choose gives a new network a subnet that nothing on this host uses, and an interface name.
func (m *Manager) choose(s *state, project, network string, live []netip.Prefix) (bridge, error) {
	key := project + "/" + network
	names := map[string]bool{}
	for _, p := range s.Projects {
		for _, b := range p.Networks {
			live, names[b.Name] = append(live, b.Subnet), true
		}
	}
	subnet, ok := chooseSubnet(m.o.Pool, key, func(p netip.Prefix) bool {
		return slices.ContainsFunc(live, p.Overlaps)
	})
	if !ok {
		return bridge{}, fault.WithHint(fmt.Errorf("network %q: %w %s: %w", network, errNoSubnet, m.o.Pool, fault.ErrConflict),
			"set network.pool to a range that no interface or route of this device uses")
	}
	for salt := range maxSalt {
		if name := hashName(m.host.prefix, "b", key, salt); !names[name] {
			return bridge{Subnet: subnet, Name: name}, nil
		}
	}
	return bridge{}, fmt.Errorf("network %q: no interface name left: %w", network, fault.ErrConflict)
}

// forwards tells whether the host routes.
func (m *Manager) forwards() (bool, error) {
	on := false
	err := m.host.do(func() error {
		v, err := sysctl("net/ipv4/ip_forward")
		on = v == "1"
		return err
	})
	return on, err
}

// ensureForwarding lets the host route, and notes when it did not before.
func (m *Manager) ensureForwarding() error {
	return m.host.do(func() error {
		v, err := sysctl("net/ipv4/ip_forward")
		if err != nil || v == "1" {
			return err
		}
		if err := setSysctl("net/ipv4/ip_forward", "1"); err != nil {
			return err
		}
		m.note("net.ipv4.ip_forward was 0 and is now 1: this host forwards packets between its interfaces")
		return nil
	})
}

// Switch makes a container the one of its replica that answers: by the service's name, by the replica's own, and at the
// published ports, which connections share evenly among the replicas that were switched to. New connections go there at
// once; those that exist stay where they are, datagrams move.
func (m *Manager) Switch(ctx context.Context, project, service, containerID string) error {
	return m.balance(ctx, fmt.Sprintf("switch service %q of project %q to container %q", service, project, containerID), func(s *state) (bool, error) {
		return s.activate(project, service, containerID)
	})
}

// Leave takes a container out of those that answer, until [Manager.Switch]: it is unhealthy, or about to stop. The last one
// that answers goes on doing so, as does one that is not attached: both are no error.
func (m *Manager) Leave(ctx context.Context, containerID string) error {
	return m.balance(ctx, fmt.Sprintf("take container %q out of its service", containerID), func(s *state) (bool, error) {
		return s.leave(containerID), nil
	})
}

// balance changes who answers.
func (m *Manager) balance(ctx context.Context, what string, change func(*state) (bool, error)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ready(ctx); err != nil {
		return err
	}
	next := m.state.clone()
	changed, err := change(next)
	if err == nil && changed {
		err = m.commit(next)
	}
	if err == nil {
		err = m.applyTable(m.state)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
