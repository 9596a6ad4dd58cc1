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
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	maxResolv      = 64 << 10 // bytes of the host's resolv.conf; real ones have a few hundred
	maxNameservers = 16       // more than any resolver asks
	resolvConf     = "/etc/resolv.conf"
	// resolvedConf is what systemd-resolved found out, where resolvConf names only its own loopback address.
	resolvedConf = "/run/systemd/resolve/resolv.conf"
)

// hosts is the hosts file of a container: complete, and true until the project's services change.
func (p *project) hosts(a *attachment) []byte {
	var b bytes.Buffer
	b.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	own := []string{a.Hostname}
	if short, _, ok := strings.Cut(a.Hostname, "."); ok && short != "" {
		own = append(own, short)
	}
	if len(a.Networks) > 0 {
		writeHost(&b, p.address(a, a.Networks[0]), own)
	} else {
		writeHost(&b, netip.AddrFrom4([4]byte{127, 0, 0, 1}), own)
	}
	seen := map[[2]string]bool{} // service and name
	for _, n := range a.Networks {
		for _, sv := range slices.Sorted(maps.Keys(p.Services)) {
			pl := p.Services[sv].Places[n]
			if pl == nil {
				continue
			}
			line := func(to netip.Addr, all ...string) {
				var names []string
				for _, name := range all {
					// A program that binds to its own name needs its own address, so the name must not also mean the service's.
					if key := [2]string{sv, name}; !seen[key] && !(sv == a.Service && slices.Contains(own, name)) {
						seen[key] = true
						names = append(names, name)
					}
				}
				writeHost(&b, to, names)
			}
			line(pl.VIP, append([]string{sv}, pl.Aliases...)...)
			if p.Services[sv].Replicas == 1 {
				line(pl.VIP, p.replicaNames(sv, n, 1)...)
			}
			for _, r := range slices.Sorted(maps.Keys(pl.Each)) {
				line(pl.Each[r], p.replicaNames(sv, n, r)...)
			}
		}
	}
	return b.Bytes()
}

// replicaNames is the name of one replica on a network, unless it is what a service or an alias there is called.
func (p *project) replicaNames(service, network string, replica int) []string {
	name := service + "-" + strconv.Itoa(replica)
	for sv, s := range p.Services {
		if pl := s.Places[network]; pl != nil && (sv == name || slices.Contains(pl.Aliases, name)) {
			return nil
		}
	}
	return []string{name}
}

func writeHost(b *bytes.Buffer, a netip.Addr, names []string) {
	if len(names) > 0 && a.IsValid() {
		fmt.Fprintf(b, "%s\t%s\n", a, strings.Join(names, " "))
	}
}

// filterResolv makes a container's resolv.conf of the host's. Servers that only the host can reach (loopback, IPv6: a
// container has no IPv6 route) are left out; usable tells whether any is left. What resolvers do not know is left out too.
func filterResolv(data []byte) (out []byte, usable bool) {
	var b bytes.Buffer
	servers := 0
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxResolv+1)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) < 2 || !printable(f) {
			continue
		}
		switch f[0] {
		case "nameserver":
			a, err := netip.ParseAddr(f[1])
			if err != nil || !a.Unmap().Is4() || a.Unmap().IsLoopback() || a.Unmap().IsUnspecified() || servers == maxNameservers {
				continue
			}
			servers++
			fmt.Fprintf(&b, "nameserver %s\n", a.Unmap())
		case "search", "domain", "options", "sortlist":
			fmt.Fprintln(&b, strings.Join(f, " "))
		}
	}
	return b.Bytes(), servers > 0
}

// printable tells whether fields hold only visible ASCII: a resolv.conf with anything else is not worth passing on.
func printable(fields []string) bool {
	for _, f := range fields {
		for _, r := range f {
			if r < '!' || r > '~' {
				return false
			}
		}
	}
	return true
}

// resolv reads the host's resolver configuration. A host without name servers is not an error: names of the project
// do not need one.
func resolv(paths ...string) ([]byte, error) {
	first := []byte(nil)
	for i, path := range paths {
		data, err := readBounded(path, maxResolv)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read the host's name servers: %w", err)
		}
		out, usable := filterResolv(data)
		if usable {
			return out, nil
		}
		if i == 0 {
			first = out
		}
	}
	return append([]byte("# the host has no name server that a container can reach\n"), first...), nil
}

// placeFile makes path hold data. An existing file is overwritten in place, because a container may have it mounted: a
// renamed one would not be seen in there.
func placeFile(path string, data []byte) error {
	old, err := readBounded(path, maxState)
	if err == nil && bytes.Equal(old, data) {
		return nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
		return writeQuick(path, data)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.WriteAt(data, 0)
	if err == nil {
		err = f.Truncate(int64(len(data)))
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
