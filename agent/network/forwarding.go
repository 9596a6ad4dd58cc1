package network

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// forwardingSetting is the sysctl that enables routing of a family.
func forwardingSetting(f ipam.Family) string {
	if f == ipam.V6 {
		return "net/ipv6/conf/all/forwarding"
	}
	return "net/ipv4/ip_forward"
}

// forwards reports whether the host routes a family.
func (m *Manager) forwards(f ipam.Family) (bool, error) {
	on := false
	err := m.host.do(func() error {
		v, err := sysctl(forwardingSetting(f))
		on = v == "1"
		return err
	})
	return on, err
}

// ensureForwarding enables routing for the families that the state needs, and notes if it was off.
func (m *Manager) ensureForwarding() error {
	for f := range ipam.Families {
		if !m.state.Uses(f) {
			continue
		}
		if err := m.host.do(func() error { return m.forward(f) }); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) forward(f ipam.Family) error {
	v, err := sysctl(forwardingSetting(f))
	if err != nil || v == "1" {
		return err
	}
	if f == ipam.V6 {
		if err := keepAdvertisements(); err != nil {
			return err
		}
	}
	if err := setSysctl(forwardingSetting(f), "1"); err != nil {
		return err
	}
	if f == ipam.V6 {
		m.note("net.ipv6.conf.all.forwarding was 0 and is now 1: this host forwards IPv6 packets between its interfaces")
		return nil
	}
	m.note("net.ipv4.ip_forward was 0 and is now 1: this host forwards packets between its interfaces")
	return nil
}

// keepAdvertisements lets interfaces still get IPv6 addresses and routes from a router: a host that forwards ignores router
// advertisements unless accept_ra is 2.
func keepAdvertisements() error {
	paths, err := filepath.Glob("/proc/sys/net/ipv6/conf/*/accept_ra")
	if err != nil {
		return fmt.Errorf("list IPv6 interfaces: %w", err)
	}
	for _, p := range paths {
		name, _ := filepath.Rel("/proc/sys", p)
		v, err := sysctl(name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && v != "1" {
			continue // the interface was removed, or does not accept advertisements
		}
		if err == nil {
			err = setSysctl(name, "2")
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// checkProtocol refuses one that the kernel lacks.
func checkProtocol(name string) error {
	if name != "sctp" {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return fault.WithHint(fmt.Errorf("this kernel has no SCTP: %w", fault.ErrUnsupported), "load the module sctp, or use a kernel that has it")
	}
	_ = unix.Close(fd)
	return nil
}
