package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/agent/network/nft"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Drift is the error of [Manager.Verify]: the host differs from the saved state. [Manager.Restore] repairs it.
type Drift struct {
	Things []string // one phrase each

	unreadable []string // those of Things that could not be read
}

func (d *Drift) Error() string {
	return fmt.Sprintf("container networks: %d differences: %s", len(d.Things), strings.Join(d.Things, "; "))
}

// Unwrap makes a Drift fault.ErrTemporary: it can be repaired.
func (d *Drift) Unwrap() error { return fault.ErrTemporary }

// Verify compares the host with the saved state and changes nothing. It returns a *[Drift] with everything that differs or cannot be read.
func (m *Manager) Verify(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ready(ctx); err != nil {
		return err
	}
	d, err := m.drift(ctx)
	if err != nil {
		return fmt.Errorf("verify the container networks: %w", err)
	}
	if len(d.Things) > 0 {
		return d
	}
	return nil
}

// drift lists what differs. What cannot be read counts as differing, so that the rest is still compared and repaired; the
// error is ctx's.
func (m *Manager) drift(ctx context.Context) (*Drift, error) {
	d := &Drift{}
	add := func(of, what string, err error) {
		if err != nil {
			what = fmt.Sprintf("cannot be read: %v", err)
			d.unreadable = append(d.unreadable, of+what)
		}
		if what != "" {
			d.Things = append(d.Things, of+what)
		}
	}
	there, err := m.present()
	add("interfaces ", "", err)
	for _, name := range slices.Sorted(maps.Keys(m.state.Projects)) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if there == nil {
			break
		}
		p := m.state.Projects[name]
		for _, n := range slices.Sorted(maps.Keys(p.Networks)) {
			if b := p.Networks[n]; b.Routed() {
				what, err := m.bridgeDrift(b, there)
				add(fmt.Sprintf("network %q of project %q: bridge %s ", n, name, b.Name), what, err)
			}
		}
		for _, id := range slices.Sorted(maps.Keys(p.Attachments)) {
			what, err := m.containerDrift(name, id, there)
			add(fmt.Sprintf("container %q: ", id), what, err)
		}
	}
	want := nft.ElementsOf(m.state)
	for f := range ipam.Families {
		if m.state.Uses(f) {
			forwards, err := m.forwards(f)
			what := "is off"
			if forwards {
				what = ""
			}
			add(forwardingSetting(f)+" ", what, err)
		}
		what, err := m.tables[f].Drift(want[f])
		if err != nil {
			add("rules ", "", err)
		}
		d.Things = append(d.Things, what...)
	}
	add("other firewalls ", "", m.noteDropChains())
	return d, nil
}

// present is what the host has, read once for all containers.
type present struct {
	links   map[string]netlink.Link
	servers resolver
}

func (m *Manager) present() (*present, error) {
	list, err := completeList(m.host.links.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	links := make(map[string]netlink.Link, len(list))
	for _, l := range list {
		links[l.Attrs().Name] = l
	}
	return &present{links: links, servers: m.resolver()}, nil
}

func (m *Manager) containerDrift(name, id string, there *present) (string, error) {
	p := m.state.Projects[name]
	a := p.Attachments[id]
	if a.Joins != "" {
		return "", nil // it only shares another container's namespace
	}
	if a.Host {
		return m.fileDrift(name, id, there.servers)
	}
	ok, err := pinned(m.netnsPath(id))
	if err != nil {
		return "", err
	}
	if !ok {
		return "its namespace is gone", nil
	}
	in, ns, err := openNamespace(m.netnsPath(id))
	if err != nil {
		return "", err
	}
	defer ns.Close()
	defer in.Close()
	lo, err := linkByName(in, "lo")
	if err != nil {
		return "", err
	}
	if lo == nil || lo.Attrs().Flags&net.FlagUp == 0 {
		return "its loopback is down", nil
	}
	for i, n := range a.Networks {
		what, err := m.linkDrift(p, id, i, in, there)
		if err != nil {
			return "", err
		}
		if what != "" {
			return fmt.Sprintf("its link to network %q %s", n, what), nil
		}
	}
	return m.fileDrift(name, id, there.servers)
}

// linkDrift describes how a container's link to one of its networks differs from what it should be.
func (m *Manager) linkDrift(p *ipam.Project, id string, index int, in *netlink.Handle, there *present) (string, error) {
	a := p.Attachments[id]
	b := p.Networks[a.Networks[index]]
	var w veth
	if b.CNI != "" {
		w = m.cniLink(p, id, index)
	} else if b.Routed() {
		w = m.veth(p, id, index, 0)
	} else {
		w = m.macvlan(p, id, index)
	}
	inner, err := linkByName(in, w.inner)
	if err != nil {
		return "", err
	}
	if inner == nil {
		return "is gone", nil
	}
	up := inner.Attrs().Flags
	if b.Routed() {
		outer := there.links[w.outer]
		if outer == nil || outer.Attrs().ParentIndex != inner.Attrs().Index {
			return "is gone", nil
		}
		if br := there.links[b.Name]; br == nil || outer.Attrs().MasterIndex != br.Attrs().Index {
			return "is not in the bridge", nil
		}
		up &= outer.Attrs().Flags
	}
	switch {
	case up&net.FlagUp == 0:
		return "is down", nil
	case w.mtu != 0 && inner.Attrs().MTU != w.mtu:
		return fmt.Sprintf("has the MTU %d", inner.Attrs().MTU), nil
	}
	for f := range ipam.Families {
		e := w.ends[f]
		if !e.address.IsValid() {
			continue
		}
		if ok, err := hasAddress(in, inner, e.address); err != nil || !ok {
			return "has lost its address", err
		}
		if ok, err := e.routed(in); err != nil || !ok {
			return "has lost its route", err
		}
	}
	return "", nil
}

// fileDrift describes the first of a container's files that is missing or out of date.
func (m *Manager) fileDrift(name, id string, servers resolver) (string, error) {
	files, err := m.files(name, id, servers)
	if err != nil {
		return "", err
	}
	for f, want := range files {
		if _, err := os.Lstat(filepath.Join(m.filesDir(id), ownFiles, f)); err != nil {
			return "its file " + f + " is gone", nil
		}
		data, err := bounded.File(os.Open, filepath.Join(m.filesDir(id), f), ipam.MaxState) // changes by the container are allowed
		if err != nil || !bytes.Equal(data, want) {
			return "its file " + f + " is out of date", nil
		}
	}
	return "", nil
}

// Repair repairs what [Manager.Verify] finds and returns a phrase for each repaired thing, also together with an error about
// the others. A thing that could not be read before does not count as repaired: it may have been correct.
func (m *Manager) Repair(ctx context.Context) (repaired []string, err error) {
	err = m.Verify(ctx)
	var drift *Drift
	if !errors.As(err, &drift) {
		return nil, err
	}
	err = m.Restore(ctx)
	left := &Drift{}
	if err == nil {
		return drift.without(left), nil
	}
	if unknown := m.Verify(ctx); unknown != nil && !errors.As(unknown, &left) {
		return nil, err
	}
	return drift.without(left), err
}

// without lists the things that were read and no longer differ.
func (d *Drift) without(left *Drift) []string {
	var out []string
	for _, thing := range d.Things {
		if !slices.Contains(d.unreadable, thing) && !slices.Contains(left.Things, thing) {
			out = append(out, thing)
		}
	}
	return out
}

// Restore applies the saved state to the host: after a start, a reboot, or when something was removed. It also removes objects with
// our marks that the state does not have. It tries everything and joins the errors.
func (m *Manager) Restore(ctx context.Context) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ready(ctx); err != nil {
		return err
	}
	errs := []error{m.ensureForwarding(), m.noteDropChains()}
	tables := m.restoreTables()
	errs = append(errs, tables)
	for _, name := range slices.Sorted(maps.Keys(m.state.Projects)) {
		if err := m.restoreProject(ctx, name); err != nil {
			errs = append(errs, fmt.Errorf("project %q: %w", name, err))
		}
	}
	if tables == nil {
		errs = append(errs, m.updateFiles(m.state))
	}
	if m.stateLost {
		m.log.Info("no state of the networks is saved: objects without an owner are kept until the next start")
	} else if err := errors.Join(m.collectCNI(ctx), m.collectGarbage()); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("restore the container networks: %w", err)
	}
	m.lastFileError = ""
	return nil
}

// restoreTables comes first: the rules must exist before containers can be reached.
func (m *Manager) restoreTables() error {
	want := nft.ElementsOf(m.state)
	for f := range ipam.Families {
		t := &m.tables[f]
		if want[f] == nil && m.stateLost {
			t.Absent = true // an existing table may be another program's
			continue
		}
		what, err := t.Drift(want[f])
		if err != nil {
			return err
		}
		if len(what) > 0 {
			m.log.Info("restoring the container networks' rules", "drift", what)
		}
	}
	return m.applyTables(m.state)
}

func (m *Manager) restoreProject(ctx context.Context, name string) error {
	p := m.state.Projects[name]
	var errs []error
	for _, n := range slices.Sorted(maps.Keys(p.Networks)) {
		if !p.Networks[n].Routed() {
			continue
		}
		if _, err := m.host.ensureBridge(p.Networks[n], p.Networks[n].Owner(name, n)); err != nil {
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

// collectGarbage removes interfaces, namespaces and files of ours that the state does not have.
func (m *Manager) collectGarbage() error {
	m.discarded.Wait()
	links, ids := map[string]bool{}, map[string]bool{}
	for _, p := range m.state.Projects {
		for _, b := range p.Networks {
			links[b.Name] = true
		}
		for id, a := range p.Attachments {
			ids[id] = true
			for _, n := range a.Networks {
				links[m.vethName(id, n)] = true
			}
		}
	}
	list, err := completeList(m.host.links.LinkList)
	if err != nil {
		return fmt.Errorf("list interfaces: %w", err)
	}
	var errs []error
	for _, l := range list {
		if a := l.Attrs(); m.host.ours(a) && !links[a.Name] {
			m.log.Info("removing an interface without an owner", "interface", a.Name, "alias", a.Alias)
			errs = append(errs, removeLink(m.host.links, a.Name))
		}
	}
	for dir, remove := range map[string]func(string) error{"netns": unpin, "files": removeFiles} {
		entries, err := os.ReadDir(filepath.Join(m.o.RunDir, dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("list the run directory: %w", err))
		}
		for _, e := range entries {
			if ids[e.Name()] {
				continue
			}
			if err := remove(filepath.Join(m.o.RunDir, dir, e.Name())); err != nil {
				errs = append(errs, fmt.Errorf("remove objects without an owner: %w", err))
			}
		}
	}
	return errors.Join(errs...)
}
