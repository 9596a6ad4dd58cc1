package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/network/ipam"
)

// repinNamespace pins a container's namespace again after its mount was removed while its processes run: their links still work,
// and a new namespace would disconnect them. It finds the namespace at the other end of the container's link, through any
// process in it. False: no process was found.
func (m *Manager) repinNamespace(p *ipam.Project, id string) (bool, error) {
	a := p.Attachments[id]
	i := slices.IndexFunc(a.Networks, func(n string) bool { return p.Networks[n].Routed() })
	if i < 0 {
		return false, nil
	}
	outer, err := linkByName(m.host.links, m.vethName(id, a.Networks[i]))
	if err != nil || outer == nil || !m.host.ours(outer.Attrs()) || outer.Attrs().NetNsID < 0 {
		return false, err
	}
	paths, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return false, nil
	}
	seen := map[string]bool{}
	for _, path := range paths {
		name, err := os.Readlink(path) // "net:[inode]": many processes share few namespaces
		if err != nil || seen[name] {
			continue // the process has ended, or its namespace was checked
		}
		seen[name] = true
		found, err := m.pinIf(path, id, outer.Attrs().NetNsID)
		if found || err != nil {
			return found, err
		}
	}
	return false, nil
}

// pinIf pins the namespace at path for a container when it has the id nsid in the host's namespace.
func (m *Manager) pinIf(path, id string, nsid int) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, nil // the process has ended
	}
	defer f.Close()
	if got, err := m.host.links.GetNetNsIdByFd(int(f.Fd())); err != nil || got != nsid {
		return false, nil // another namespace, or a kernel without ids
	}
	pinPath := m.netnsPath(id)
	err = os.MkdirAll(filepath.Dir(pinPath), 0o755)
	if err == nil {
		err = os.WriteFile(pinPath, nil, 0o444)
	}
	if err == nil {
		err = unix.Mount(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), pinPath, "", unix.MS_BIND, "")
	}
	if err != nil {
		return false, fmt.Errorf("pin the namespace again: %w", errors.Join(err, os.Remove(pinPath)))
	}
	m.log.Warn("pinned a running container's namespace again", "container", id)
	return true, nil
}
