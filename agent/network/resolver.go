package network

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	maxHosts       = 1 << 20 // bytes of the host's hosts file; blocklists have some hundred thousand
	hostsFile      = "/etc/hosts"
	maxResolv      = 64 << 10 // bytes of the host's resolv.conf; real ones have a few hundred
	maxNameservers = 16       // more than any resolver uses
	resolvConf     = "/etc/resolv.conf"
	// resolvedConf has the servers of systemd-resolved, if resolvConf names only its loopback address.
	resolvedConf = "/run/systemd/resolve/resolv.conf"
)

// resolver is the host's name resolution, in the forms that containers need.
type resolver struct {
	raw, hosts []byte // as they are: for a container in the host's namespace
	four, six  []byte // for a container without and with a route out over IPv6

	asIs, servers error // of raw and hosts, and of four and six; only containers that need these files fail
}

// resolver reads the host's files.
func (m *Manager) resolver() resolver {
	var out resolver
	if out.four, out.servers = resolv(false, m.names...); out.servers == nil {
		out.six, out.servers = resolv(true, m.names...)
	}
	if out.raw, out.asIs = readHostFile(m.names[0], maxResolv); out.asIs == nil {
		out.hosts, out.asIs = readHostFile(m.hosts, maxHosts)
	}
	return out
}

// readHostFile reads a file of the host that a container in the host's namespace gets as it is. A missing file is empty.
func readHostFile(path string, limit int64) ([]byte, error) {
	data, err := bounded.File(os.Open, path, limit)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return data, nil
	}
	return nil, fault.WithHint(fmt.Errorf("copy the host's names for a container in the host's network: %w", err),
		"repair or shorten that file; containers with networks of their own do not need it")
}

// files are the contents of a container's files.
func (m *Manager) files(project, id string, r resolver) (map[string][]byte, error) {
	p := m.state.Projects[project]
	a := p.Attachments[id]
	if a.Host && r.asIs != nil {
		return nil, r.asIs
	}
	if !a.Host && r.servers != nil {
		return nil, r.servers
	}
	if a.Host {
		b := bytes.NewBuffer(slices.Clone(r.hosts))
		if n := len(r.hosts); n > 0 && r.hosts[n-1] != '\n' {
			b.WriteByte('\n')
		}
		p.ExtraHosts(b, a)
		return map[string][]byte{"hosts": b.Bytes(), "resolv.conf": override(r.raw, a.DNS), "hostname": []byte(a.Hostname + "\n")}, nil
	}
	servers := r.four
	if p.DefaultRoute(a, ipam.V6) != "" {
		servers = r.six
	}
	return map[string][]byte{"hosts": m.state.Hosts(project, a), "resolv.conf": override(servers, a.DNS), "hostname": []byte(a.Hostname + "\n")}, nil
}

// override replaces the host's settings with those of a project.
func override(data []byte, dns workload.DNS) []byte {
	if dns.IsZero() {
		return data
	}
	var b bytes.Buffer
	for line := range strings.Lines(string(data)) {
		key, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch {
		case dns.Servers != nil && (key == "nameserver" || strings.HasPrefix(key, "#")):
		case dns.Search != nil && (key == "search" || key == "domain"):
		case dns.Options != nil && key == "options":
		default:
			b.WriteString(strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	for _, s := range dns.Servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(dns.Search) > 0 && !slices.Equal(dns.Search, []string{"."}) {
		fmt.Fprintf(&b, "search %s\n", strings.Join(dns.Search, " "))
	}
	if len(dns.Options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(dns.Options, " "))
	}
	return b.Bytes()
}

// ensureAllFiles updates the existing files of a project's containers: services may have been added or removed.
// Those of projects that share a network with it follow. It tries all and joins the errors.
func (m *Manager) ensureAllFiles(project string) error {
	r := m.resolver()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(m.state.Projects)) {
		if name != project && !m.state.ShareNetwork(project, name) {
			continue
		}
		p := m.state.Projects[name]
		for _, id := range slices.Sorted(maps.Keys(p.Attachments)) {
			if _, err := os.Stat(m.filesDir(id)); errors.Is(err, fs.ErrNotExist) {
				continue // after a reboot, Attach or Restore makes them; one that joined another's namespace has none
			}
			if err := m.writeFiles(name, id, r, false); err != nil {
				errs = append(errs, fmt.Errorf("container %q: %w", id, err))
			}
		}
	}
	return errors.Join(errs...)
}

// updateHosts updates hosts files after backends changed: only files with addresses of containers, or of another project's
// services, change with them. It tries all and joins the errors.
func (m *Manager) updateHosts(s *ipam.State) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(s.Projects)) {
		for _, b := range s.Projects[name].Networks {
			if !b.Routed() || b.Shared != "" {
				errs = append(errs, m.ensureAllFiles(name))
				break
			}
		}
	}
	return errors.Join(errs...)
}

// filterResolv makes a container's resolv.conf of the host's. Servers that only the host can reach (loopback, IPv6 unless the
// container has a route there) are left out; usable reports whether any is left. Unknown directives are left out too.
func filterResolv(data []byte, six bool) (out []byte, usable bool) {
	var b bytes.Buffer
	servers := 0
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxResolv+1)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 2 || !ipam.Printable(f) {
			continue
		}
		switch f[0] {
		case "nameserver":
			a, err := netip.ParseAddr(f[1])
			a = a.Unmap()
			if err != nil || a.Is6() && !six || a.IsLoopback() || a.IsUnspecified() || a.Zone() != "" || a.IsLinkLocalUnicast() && a.Is6() || servers == maxNameservers {
				continue
			}
			servers++
			fmt.Fprintf(&b, "nameserver %s\n", a)
		case "search", "domain", "options", "sortlist":
			fmt.Fprintln(&b, strings.Join(f, " "))
		}
	}
	return b.Bytes(), servers > 0
}

// resolv reads the host's resolver configuration. A host without name servers is not an error: names of the project
// do not need one.
func resolv(six bool, paths ...string) ([]byte, error) {
	first := []byte(nil)
	for i, path := range paths {
		data, err := bounded.File(os.Open, path, maxResolv)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fault.WithHint(fmt.Errorf("read the host's name servers: %w", err), "repair or shorten that file")
		}
		out, usable := filterResolv(data, six)
		if usable {
			return out, nil
		}
		if i == 0 {
			first = out
		}
	}
	return append([]byte("# the host has no name server that a container can reach\n"), first...), nil
}
