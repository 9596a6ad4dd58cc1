package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Drift is the error of [Manager.Verify]: the host is not as the saved state says. [Manager.Restore] mends it.
type Drift struct {
	Things []string // one phrase each
}

func (d *Drift) Error() string {
	return fmt.Sprintf("container networks: %d things are not as they should be: %s", len(d.Things), strings.Join(d.Things, "; "))
}

// Unwrap makes a Drift fault.ErrTemporary: it can be mended.
func (d *Drift) Unwrap() error { return fault.ErrTemporary }

// Verify compares the host with the saved state and changes nothing. What differs is a *[Drift].
func (m *Manager) Verify(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ready(ctx); err != nil {
		return err
	}
	things, err := m.drift(ctx)
	if err != nil {
		return fmt.Errorf("verify the container networks: %w", err)
	}
	if len(things) > 0 {
		return &Drift{things}
	}
	return nil
}

func (m *Manager) drift(ctx context.Context) ([]string, error) {
	var out []string
	servers, err := resolv(m.names...)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(m.state.Projects)) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		p := m.state.Projects[name]
		for _, n := range slices.Sorted(maps.Keys(p.Networks)) {
			what, err := m.bridgeDrift(p.Networks[n])
			if err != nil {
				return nil, err
			}
			if what != "" {
				out = append(out, fmt.Sprintf("network %q of project %q: bridge %s %s", n, name, p.Networks[n].Name, what))
			}
		}
		for _, id := range slices.Sorted(maps.Keys(p.Attachments)) {
			what, err := m.containerDrift(p, id, servers)
			if err != nil {
				return nil, err
			}
			if what != "" {
				out = append(out, fmt.Sprintf("container %q: %s", id, what))
			}
		}
	}
	if len(m.state.Projects) > 0 {
		forwards, err := m.forwards()
		if err != nil {
			return nil, err
		}
		if !forwards {
			out = append(out, "net.ipv4.ip_forward is off")
		}
		what, err := m.table.drift(m.state.elements())
		if err != nil {
			return nil, err
		}
		out = append(out, what...)
	}
	return out, nil
}

func (m *Manager) bridgeDrift(b *bridge) (string, error) {
	l, err := byName(m.host.links, b.Name)
	switch {
	case err != nil:
		return "", err
	case l == nil:
		return "is gone", nil
	case l.Type() != "bridge" || !m.host.ours(l.Attrs()):
		return "is somebody else's", nil
	case l.Attrs().Flags&net.FlagUp == 0:
		return "is down", nil
	}
	ok, err := hasAddress(m.host.links, l, netip.PrefixFrom(b.gateway(), b.Subnet.Bits()))
	if err == nil && !ok {
		return "has lost its address", nil
	}
	return "", err
}

func (m *Manager) containerDrift(p *project, id string, servers []byte) (string, error) {
	a := p.Attachments[id]
	ok, err := pinned(m.netnsPath(id))
	if err != nil {
		return "", err
	}
	if !ok {
		return "its namespace is gone", nil
	}
	in, ns, err := inside(m.netnsPath(id))
	if err != nil {
		return "", err
	}
	defer ns.Close()
	defer in.Close()
	for i, n := range a.Networks {
		outer, err := byName(m.host.links, m.wireName(id, n))
		if err != nil {
			return "", err
		}
		inner, err := byName(in, fmt.Sprintf("eth%d", i))
		if err != nil {
			return "", err
		}
		if outer == nil || inner == nil || outer.Attrs().ParentIndex != inner.Attrs().Index {
			return fmt.Sprintf("its link to network %q is gone", n), nil
		}
		br, err := byName(m.host.links, p.Networks[n].Name)
		if err != nil {
			return "", err
		}
		if br == nil || outer.Attrs().MasterIndex != br.Attrs().Index {
			return fmt.Sprintf("its link to network %q is not in the bridge", n), nil
		}
		if (outer.Attrs().Flags & inner.Attrs().Flags & net.FlagUp) == 0 {
			return fmt.Sprintf("its link to network %q is down", n), nil
		}
		if ok, err := hasAddress(in, inner, netip.PrefixFrom(p.address(a, n), 32)); err != nil || !ok {
			return fmt.Sprintf("it has lost its address on network %q", n), err
		}
	}
	for f, want := range map[string][]byte{"hosts": p.hosts(a), "resolv.conf": servers} {
		data, err := readBounded(filepath.Join(m.filesDir(id), f), maxState)
		switch {
		case err != nil:
			return "its file " + f + " is gone", nil
		case !bytes.Equal(data, want):
			return "its file " + f + " is out of date", nil
		}
	}
	return "", nil
}

// Restore makes the host as the saved state says: after a start, a reboot, or when somebody removed something. It also
// removes what carries our marks and no state knows. All is tried; the first errors are told together.
func (m *Manager) Restore(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ready(ctx); err != nil {
		return err
	}
	var errs []error
	if err := m.restoreTable(); err != nil {
		errs = append(errs, err)
	}
	for _, name := range slices.Sorted(maps.Keys(m.state.Projects)) {
		if err := m.restoreProject(ctx, name); err != nil {
			errs = append(errs, fmt.Errorf("project %q: %w", name, err))
		}
	}
	if m.lost {
		m.log.Warn("the saved state of the networks was lost: nothing is swept until the next start")
	} else if err := m.sweep(); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("restore the container networks: %w", err)
	}
	return nil
}

// restoreTable comes first: rules must stand before containers can be reached.
func (m *Manager) restoreTable() error {
	if len(m.state.Projects) == 0 {
		if there, err := m.table.exists(); err != nil || !there || m.lost {
			return err
		}
		return m.table.remove()
	}
	if err := m.ensureForwarding(); err != nil {
		return err
	}
	if err := m.noteDroppers(); err != nil {
		return err
	}
	want := m.state.elements()
	what, err := m.table.drift(want)
	if err != nil {
		return err
	}
	if len(what) == 0 {
		m.table.applied = want
		return nil
	}
	m.log.Info("restoring the container networks' rules", "drift", what)
	m.table.applied = nil
	return m.applyTable(m.state)
}

func (m *Manager) restoreProject(ctx context.Context, name string) error {
	p := m.state.Projects[name]
	var errs []error
	for _, n := range slices.Sorted(maps.Keys(p.Networks)) {
		if _, err := m.host.ensureBridge(p.Networks[n], name+"/"+n); err != nil {
			errs = append(errs, fmt.Errorf("network %q: %w", n, err))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(p.Attachments)) {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		if err := m.ensureContainer(ctx, name, p, id); err != nil {
			errs = append(errs, fmt.Errorf("container %q: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// sweep removes interfaces, namespaces and files of ours that belong to nothing.
func (m *Manager) sweep() error {
	links, ids := map[string]bool{}, map[string]bool{}
	for _, p := range m.state.Projects {
		for _, b := range p.Networks {
			links[b.Name] = true
		}
		for id, a := range p.Attachments {
			ids[id] = true
			for _, n := range a.Networks {
				links[m.wireName(id, n)] = true
			}
		}
	}
	list, err := whole(m.host.links.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range list {
		if a := l.Attrs(); m.host.ours(a) && !links[a.Name] {
			m.log.Info("removing an interface that belongs to nothing", "interface", a.Name, "alias", a.Alias)
			if err := removeLink(m.host.links, a.Name); err != nil {
				return err
			}
		}
	}
	for dir, remove := range map[string]func(string) error{"netns": unpin, "files": os.RemoveAll} {
		entries, err := os.ReadDir(filepath.Join(m.o.RunDir, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("list the run directory: %w", err)
		}
		for _, e := range entries {
			if ids[e.Name()] {
				continue
			}
			if err := remove(filepath.Join(m.o.RunDir, dir, e.Name())); err != nil {
				return fmt.Errorf("remove what belongs to nothing: %w", err)
			}
		}
	}
	return nil
}
