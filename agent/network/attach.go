package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Attach creates those of a container's namespace, links, routes and files that are missing. The project must be prepared, the
// container must not run: changes that it made to its files are dropped. The first container of a service is its backend at
// once; every other one, also the first of another replica, after [Manager.Activate], or when no other is left. Call Attach
// before every start of the container: after a reboot it creates everything again.
func (m *Manager) Attach(ctx context.Context, project string, c workload.Container) (a workload.Attached, err error) {
	err = m.alone(ctx, fmt.Sprintf("attach container %q of project %q", c.ID, project), func() error {
		a, err = m.attach(ctx, project, c)
		return err
	})
	return a, err
}

func (m *Manager) attach(ctx context.Context, project string, c workload.Container) (workload.Attached, error) {
	next := m.state.Clone()
	changed, err := next.Attach(project, c)
	if err != nil {
		return workload.Attached{}, err
	}
	if changed {
		if err := m.commit(next); err != nil {
			return workload.Attached{}, err
		}
	}
	if err := ctx.Err(); err != nil {
		return workload.Attached{}, err
	}
	p := m.state.Projects[project]
	if err := m.ensureForwarding(); err != nil {
		return workload.Attached{}, err
	}
	if err := m.ensureContainer(ctx, project, p, c.ID); err != nil {
		return workload.Attached{}, err
	}
	if p.Attachments[c.ID].Joins == "" { // otherwise the files belong to a running container
		if err := m.ensureFiles(project, c.ID, true); err != nil {
			return workload.Attached{}, err
		}
	}
	if err := m.applyTables(m.state); err != nil {
		return workload.Attached{}, err
	}
	m.reportLater(m.updateFiles(m.state))
	return m.attachment(m.state.Projects[project], c.ID), nil
}

// attachment describes an attached container's networks.
func (m *Manager) attachment(p *ipam.Project, id string) workload.Attached {
	a, dir := p.Attachments[id], filepath.Join(m.filesDir(id), ownFiles)
	if other := p.Attachments[a.Joins]; other != nil {
		return m.attachment(p, a.Joins)
	}
	at := workload.Attached{
		NetNS: m.netnsPath(id), HostsFile: filepath.Join(dir, "hosts"), ResolvConf: filepath.Join(dir, "resolv.conf"), HostnameFile: filepath.Join(dir, "hostname"),
		Hostname: a.Hostname,
	}
	if a.Host {
		at.NetNS = ""
	}
	return at
}

// ensureContainer creates everything of one attached container except elements of the tables.
func (m *Manager) ensureContainer(ctx context.Context, name string, p *ipam.Project, id string) error {
	a := p.Attachments[id]
	if a.Host {
		return m.ensureFiles(name, id, false)
	}
	if a.Joins != "" {
		if p.Attachments[a.Joins] == nil {
			return nil // its namespace ends with it
		}
		return m.ensureContainer(ctx, name, p, a.Joins)
	}
	indexes := make([]int, len(a.Networks))
	for i, n := range a.Networks {
		if b := p.Networks[n]; b.Routed() {
			var err error
			if indexes[i], err = m.host.ensureBridge(b, b.Owner(name, n)); err != nil {
				return fmt.Errorf("network %q: %w", n, err)
			}
		}
	}
	path := m.netnsPath(id)
	ok, err := pinned(path)
	if err != nil {
		return err
	}
	if !ok {
		if ok, err = m.repinNamespace(p, id); err != nil {
			return err
		}
	}
	if !ok {
		if err := pin(path); err != nil {
			return err
		}
	}
	in, ns, err := openNamespace(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	defer in.Close()
	if err := raiseLoopback(in); err != nil {
		return err
	}
	var outer, inner []string
	for i, n := range a.Networks {
		switch b := p.Networks[n]; {
		case b.Routed():
			w := m.veth(p, id, i, indexes[i])
			err = m.host.ensureVeth(w, in, ns)
			outer, inner = append(outer, b.Name, w.outer), append(inner, w.inner)
		case b.CNI != "":
			if err = m.ensureCNI(ctx, name, id, i, in); err == nil {
				p = m.state.Projects[name] // the site gave it addresses
			}
		default:
			err = m.ensureMacvlan(p, id, i, in, ns)
		}
		if err != nil {
			return fmt.Errorf("network %q: %w", n, err)
		}
	}
	if err := m.ensureFiles(name, id, false); err != nil {
		return err
	}
	if err := waitCarrier(ctx, m.host.links, outer...); err != nil {
		return err
	}
	return waitCarrier(ctx, in, inner...)
}

// vethName is the host's end of a container's link to a network.
func (m *Manager) vethName(id, network string) string {
	return hashName(m.host.prefix, "v", id+"/"+network, 0)
}

// discardLink ends a container's link in the host: no packet passes it any more, and its name and addresses are free. The kernel takes
// tens of milliseconds to delete an interface, nearly all of it waiting: that goes on in the background, see [Manager.Close].
func (m *Manager) discardLink(name string) error {
	l, err := linkByName(m.host.links, name)
	if l == nil || err != nil {
		return err
	}
	gone := hashName(m.host.prefix, "x", name, l.Attrs().Index)
	if err = m.host.links.LinkSetDown(l); err == nil {
		err = m.host.links.LinkSetName(l, gone)
	}
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("take interface %s out of use: %w", name, err)
	}
	m.discarded.Go(func() {
		links, err := openHandle(m.host.ns, unix.NETLINK_ROUTE)
		if err == nil {
			err = removeLink(links, gone)
			links.Close()
		}
		if err != nil {
			m.log.Warn("an interface that is out of use stays until the networks are restored", "err", err)
		}
	})
	return nil
}

// removeContainerLink removes a container's link to one of its networks.
func (m *Manager) removeContainerLink(ctx context.Context, p *ipam.Project, id string, index int) error {
	a := p.Attachments[id]
	n := a.Networks[index]
	var err error
	if b := p.Networks[n]; b.Routed() {
		err = removeLink(m.host.links, m.vethName(id, n))
	} else if b.CNI != "" {
		err = m.detachCNI(ctx, id, a.Interfaces()[index])
	} else {
		err = m.removeInner(id, a.Interfaces()[index])
	}
	if err != nil {
		return fmt.Errorf("network %q: %w", n, err)
	}
	return nil
}

// removeInner removes an interface that has no end outside of the container.
func (m *Manager) removeInner(id, name string) error {
	ok, err := pinned(m.netnsPath(id))
	if err != nil || !ok {
		return err
	}
	in, ns, err := openNamespace(m.netnsPath(id))
	if err != nil {
		return err
	}
	defer ns.Close()
	defer in.Close()
	return removeLink(in, name)
}

// Detach removes a container's namespace, links and files. A missing one is not an error. If it was the last backend of its
// service, another attached container of the service becomes the backend. The container's process should have ended.
func (m *Manager) Detach(ctx context.Context, id string) error {
	return m.alone(ctx, fmt.Sprintf("detach container %q", id), func() error { return m.detach(ctx, []string{id}) })
}

// detach removes containers from the table first, then from the kernel, and from the state last, so that an interrupted
// call can be repeated.
func (m *Manager) detach(ctx context.Context, ids []string) error {
	before, next := m.state, m.state.Clone()
	for _, id := range ids {
		next.Detach(id)
	}
	if err := m.applyTables(next); err != nil {
		return err
	}
	for _, id := range ids {
		if !ipam.ValidName(id) {
			continue // never attached, and not usable in a path
		}
		name, p := before.Find(id)
		if p != nil {
			for i, n := range p.Attachments[id].Networks {
				if p.Networks[n].Routed() {
					if err := m.discardLink(m.vethName(id, n)); err != nil {
						return fmt.Errorf("network %q: %w", n, err)
					}
				} else if err := m.removeContainerLink(ctx, p, id, i); err != nil {
					return err
				}
			}
			if err := m.removeBridges(next, p, next.Projects[name]); err != nil {
				return err
			}
		}
		if err := unpin(m.netnsPath(id)); err != nil {
			return err
		}
		if err := removeFiles(m.filesDir(id)); err != nil {
			return err
		}
	}
	for _, id := range ids {
		if name, _ := before.Find(id); name != "" {
			if err := m.commit(next); err != nil {
				return err
			}
			m.reportLater(m.updateFiles(next))
			return nil
		}
	}
	return nil
}

// Teardown removes everything of a project: containers' links and namespaces, networks, addresses, names and ports. A missing
// one is not an error.
func (m *Manager) Teardown(ctx context.Context, project string) error {
	return m.alone(ctx, fmt.Sprintf("tear down the networks of project %q", project), func() error { return m.teardown(ctx, project) })
}

func (m *Manager) teardown(ctx context.Context, project string) error {
	p := m.state.Projects[project]
	if p == nil {
		return nil
	}
	if err := m.detach(ctx, slices.Sorted(maps.Keys(p.Attachments))); err != nil {
		return err
	}
	next := m.state.Clone()
	delete(next.Projects, project)
	if err := m.applyTables(next); err != nil {
		return err
	}
	if err := m.removeBridges(next, m.state.Projects[project], nil); err != nil {
		return err
	}
	m.discarded.Wait() // nothing of the project is left afterwards
	if err := m.commit(next); err != nil {
		return err
	}
	m.reportLater(m.updateFiles(next))
	return nil
}
