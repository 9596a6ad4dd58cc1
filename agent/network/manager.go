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
	"sync/atomic"
	"time"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/agent/network/nft"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Defaults of [Options].
const (
	DefaultPool  = "10.210.0.0/16"
	DefaultTable = "longshore"
)

const (
	maxSalt     = 16               // tries for an interface name that no other network has
	relinkLimit = 10 * time.Second // to restore a project's links after an error, also when the caller's context has ended
)

// Options of a manager. Managers on one machine need different DataDir, RunDir, Pool and Table.
type Options struct {
	Store   Store        // needed
	DataDir string       // cache of the CNI plugins; survives reboots; needed
	RunDir  string       // pinned namespaces, hosts files, a copy of the state; does not survive reboots; needed
	Pool    netip.Prefix // IPv4 addresses to hand out, /8 to /20; zero: DefaultPool
	Table   string       // nftables table; interface names derive from it; "": DefaultTable
	Shared  []Shared     // networks of the device that applications may join
	CNI     CNI          // networks of the site that they may join
	NetNS   string       // path of the network namespace that is the host's; "": the one of the process
	Logger  *slog.Logger // nil: silent
}

// Manager creates and maintains the networks of projects. Its methods may be called from several goroutines; they are serialized.
type Manager struct {
	o    Options
	log  *slog.Logger
	host *host

	mu            sync.Mutex
	state         *ipam.State
	closed        bool
	saved         []byte // the bytes in the store; nil: not known
	copied        []byte // the bytes in the copy; nil: not known
	tables        [ipam.Families]nft.Table
	names         []string // resolver configurations of the host; the first that a container can use is taken
	hosts         string   // the host's own hosts file
	stateLost     bool     // no state was found: objects without an owner may belong to running containers
	notes         []string // see Notes
	lastFileError string   // last error of reportLater; "": none since the last successful Restore

	backends atomic.Pointer[map[string]bool] // see ActiveBackends

	closing  chan struct{}  // closed by end: watchers end
	end      func()         // may be called again
	watchers sync.WaitGroup // of Watch

	discarded sync.WaitGroup // interfaces out of use that are being deleted
}

// Open reads the saved state. It changes nothing in the kernel: call [Manager.Restore] first after a start. When the state is lost
// or damaged, its copy in the run directory is used, or else an empty state; see [Manager.Notes]. The caller closes the
// manager.
func Open(o Options) (*Manager, error) {
	if o.Store == nil || o.DataDir == "" || o.RunDir == "" {
		return nil, fmt.Errorf("network manager: Store, DataDir and RunDir are needed: %w", fault.ErrInvalid)
	}
	if !o.Pool.IsValid() {
		o.Pool = netip.MustParsePrefix(DefaultPool)
	}
	o.Pool, o.Table = o.Pool.Masked(), cmp.Or(o.Table, DefaultTable)
	if !ipam.ValidName(o.Table) || len(o.Table) > 31 {
		return nil, fmt.Errorf("network table %q: %w", o.Table, fault.ErrInvalid)
	}
	for _, dir := range []string{o.DataDir, o.RunDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("network manager: %w", err)
		}
	}
	m := &Manager{o: o, log: o.Logger, closing: make(chan struct{})}
	m.end = sync.OnceFunc(func() { close(m.closing) })
	m.log = cmp.Or(m.log, slog.New(slog.DiscardHandler))
	if err := m.load(); err != nil {
		return nil, err
	}
	var err error
	if m.host, err = openHost(o.NetNS, o.Table); err != nil {
		return nil, err
	}
	m.backends.Store(&map[string]bool{})
	m.names, m.hosts = []string{resolvConf, resolvedConf}, hostsFile
	for f := range ipam.Families {
		if m.tables[f] = (nft.Table{Family: f, Name: o.Table}); !m.host.own {
			m.tables[f].NS = m.host.ns
		}
	}
	for _, n := range m.notes {
		m.log.Warn(n)
	}
	return m, nil
}

// Close ends the watchers of [Manager.Watch], waits until interfaces of detached containers are deleted, and closes the netlink
// sockets. Networks stay.
func (m *Manager) Close() error {
	m.end()
	m.watchers.Wait()
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.closed {
		m.discarded.Wait()
		for f := range m.tables {
			m.tables[f].Close()
		}
		m.host.close()
		m.closed = true
	}
	return nil
}

// ready returns an error after Close or with an ended context. netlink would silently replace a closed manager's sockets with
// ones of another namespace.
func (m *Manager) ready(ctx context.Context) error {
	if m.closed {
		return fmt.Errorf("network manager: %w", os.ErrClosed)
	}
	return ctx.Err()
}

// alone does one thing at a time; what names it in an error.
func (m *Manager) alone(ctx context.Context, what string, do func() error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ready(ctx); err != nil {
		return err
	}
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Notes are facts about this host that an operator should know, one sentence each: a setting that was changed, a damaged state.
func (m *Manager) Notes() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.notes)
}

// Projects are the names of the projects in the state, sorted.
func (m *Manager) Projects() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.state.Projects))
}

// Addresses are a container's addresses by network: IPv4, or IPv6 where it has no other. Empty when it is not attached.
func (m *Manager) Addresses(id string) map[string]netip.Addr {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[string]netip.Addr{}
	if _, p := m.state.Find(id); p != nil {
		for _, n := range p.Attachments[id].Networks {
			if out[n] = p.Address(p.Attachments[id], n, ipam.V4); !out[n].IsValid() {
				out[n] = p.Address(p.Attachments[id], n, ipam.V6)
			}
		}
	}
	return out
}

// commit saves next and makes it the state. A state that is saved already is not written again, also not by the first call after a
// restart: a full disk must not keep prepared containers from starting.
func (m *Manager) commit(next *ipam.State) error {
	data, err := ipam.Encode(next)
	if err != nil {
		return err
	}
	return m.save(next, data)
}

// save is commit with next's bytes.
func (m *Manager) save(next *ipam.State, data []byte) error {
	if !bytes.Equal(data, m.saved) {
		if err := m.o.Store.SaveNetworks(data); err != nil {
			return fmt.Errorf("save the state of the networks: %w", err)
		}
		m.saved = data
	}
	m.saveCopy(data)
	m.state = next
	return nil
}

// applyTables applies s to the nftables tables, and removes the conntrack entries of connections that would miss the change. The
// next call tries again to remove those that could not be removed.
func (m *Manager) applyTables(s *ipam.State) error {
	want := nft.ElementsOf(s)
	for f := range ipam.Families {
		t := &m.tables[f]
		if t.Tracked == nil && t.Applied == nil && want[f] != nil { // the first call after a start
			if _, err := t.Drift(want[f]); err != nil {
				return err
			}
		}
		if t.Tracked == nil {
			t.Tracked = t.Applied
		}
		if err := t.Apply(want[f]); err != nil {
			return err
		}
		if gone := nft.StaleAfter(f, t.Tracked, want[f]); !gone.Empty() {
			if err := m.host.forget(f, gone); err != nil {
				return fmt.Errorf("end stale connections: %w", err)
			}
		}
		t.Tracked = want[f]
	}
	return nil
}

// updateFiles updates the hosts files of containers after s was applied to the tables, and publishes its active backends.
func (m *Manager) updateFiles(s *ipam.State) error {
	err := m.updateHosts(s)
	m.backends.Store(new(s.Backends()))
	return err
}

// reportLater logs an error about files of containers: a call must not fail for them. [Manager.Repair] finds the files out of date,
// tries again and returns what fails. The same error is logged once, until [Manager.Restore] succeeds.
func (m *Manager) reportLater(err error) {
	if err != nil && err.Error() != m.lastFileError {
		m.lastFileError = err.Error()
		m.log.Warn("files of containers are not up to date; repairing them is tried again", "err", err)
	}
}

func (m *Manager) netnsPath(id string) string { return filepath.Join(m.o.RunDir, "netns", id) }
func (m *Manager) filesDir(id string) string  { return filepath.Join(m.o.RunDir, "files", id) }

// Prepare creates a project's networks and gives every service its addresses. Networks that containers of an earlier revision still
// use stay until these are detached. A port of an attached container of another project is fault.ErrConflict until that
// container is detached.
func (m *Manager) Prepare(ctx context.Context, p *workload.Project) error {
	return m.alone(ctx, fmt.Sprintf("prepare the networks of project %q", p.Name), func() error { return m.prepare(ctx, p) })
}

func (m *Manager) prepare(ctx context.Context, p *workload.Project) error {
	before := m.state
	next := before.Clone()
	if err := next.Prepare(p, &chooser{m: m, next: next, project: p.Name}); err != nil {
		return err
	}
	host := m.listening()
	for _, s := range p.Services {
		if err := host.check(s.Name, next.Projects[p.Name].Services[s.Name].Ports, before.Ports(p.Name), next.Uses(ipam.V6)); err != nil {
			return err
		}
	}
	moved, err := m.renumber(ctx, p.Name, next)
	if err == nil {
		err = m.establish(ctx, p.Name, moved)
	}
	if err != nil && len(moved) > 0 { // containers that run have lost links, and no later Prepare sees that
		again, cancel := context.WithTimeout(context.WithoutCancel(ctx), relinkLimit)
		defer cancel()
		err = errors.Join(err, m.restoreProject(again, p.Name))
	}
	return err
}

// renumber removes the links and bridges of a project that next does not have, or has with other addresses, and then makes next
// the state. It removes first, because only the current state says what to remove: an interrupted call can be repeated, and
// until then [Manager.Restore] creates what the saved state lacks. It returns the attached containers that need new links or
// another MTU, also with an error. It removes nothing when next cannot be encoded.
func (m *Manager) renumber(ctx context.Context, name string, next *ipam.State) ([]string, error) {
	data, err := ipam.Encode(next)
	if err != nil {
		return nil, err
	}
	before, after := m.state.Projects[name], next.Projects[name]
	moved, err := m.removeMoved(ctx, before, after)
	if err == nil {
		err = m.removeBridges(next, before, after)
	}
	if err == nil {
		err = m.save(next, data)
	}
	return moved, err
}

// establish applies the state of a project: bridges, rules, names, and the links of the containers that were moved.
func (m *Manager) establish(ctx context.Context, name string, moved []string) error {
	if err := m.ensureForwarding(); err != nil {
		return err
	}
	if err := m.noteDropChains(); err != nil {
		return err
	}
	own := m.state.Projects[name]
	for _, n := range slices.Sorted(maps.Keys(own.Networks)) {
		if own.Networks[n].Routed() {
			if _, err := m.host.ensureBridge(own.Networks[n], own.Networks[n].Owner(name, n)); err != nil {
				return fmt.Errorf("network %q: %w", n, err)
			}
		}
	}
	if err := m.applyTables(m.state); err != nil {
		return err
	}
	for _, id := range moved {
		if err := m.ensureContainer(ctx, name, own, id); err != nil {
			return fmt.Errorf("container %q: %w", id, err)
		}
	}
	m.reportLater(m.ensureAllFiles(name))
	m.reportLater(m.updateFiles(m.state))
	return nil
}

// removeMoved removes links to networks whose addresses changed. It returns the attached containers of these links, and those on
// networks whose MTU changed; with an error, those that were processed before it.
func (m *Manager) removeMoved(ctx context.Context, before, after *ipam.Project) ([]string, error) {
	if before == nil {
		return nil, nil
	}
	var moved []string
	for _, n := range slices.Sorted(maps.Keys(before.Networks)) {
		b := before.Networks[n]
		if after.Networks[n] == nil || after.Networks[n].Same(b) && after.Networks[n].MTU == b.MTU {
			continue
		}
		keep := after.Networks[n].Same(b)
		for _, id := range slices.Sorted(maps.Keys(before.Attachments)) {
			a := before.Attachments[id]
			if i := slices.Index(a.Networks, n); i >= 0 {
				if !slices.Contains(moved, id) {
					moved = append(moved, id)
				}
				if keep {
					continue
				}
				if err := m.removeContainerLink(ctx, before, id, i); err != nil {
					return moved, err
				}
			}
		}
		if !keep && b.Routed() && b.Shared == "" {
			if err := removeLink(m.host.links, b.Name); err != nil {
				return moved, fmt.Errorf("network %q: %w", n, err)
			}
		}
	}
	return moved, nil
}

// removeBridges deletes the bridges of a project that next does not have.
func (m *Manager) removeBridges(next *ipam.State, before, after *ipam.Project) error {
	if before == nil {
		return nil
	}
	for n, b := range before.Networks {
		if !b.Routed() || after != nil && after.Networks[n] != nil && after.Networks[n].Name == b.Name || b.Shared != "" && next.Joined(b.Shared) {
			continue
		}
		if err := removeLink(m.host.links, b.Name); err != nil {
			return fmt.Errorf("network %q: %w", n, err)
		}
	}
	return nil
}
