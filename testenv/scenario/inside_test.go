package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/testenv"
)

// Bounds of what is read from containers.
const (
	maxAnswer   = 1 << 20
	askLimit    = 5 * time.Second
	threadNetNS = "/proc/thread-self/ns/net"
)

// inNetwork runs f in the network namespace at path.
func inNetwork(path string, f func() error) error {
	_, err := testenv.In(path, func() (any, error) { return nil, f() })
	return err
}

// makeHost makes the network namespace that plays a machine, with a loopback and an uplink that leads nowhere.
func makeHost(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return err
	}
	f.Close()
	done := make(chan error, 1)
	go func() { // ends with the thread
		runtime.LockOSThread()
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			lo, err := netlink.LinkByName("lo")
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(lo); err != nil {
				return err
			}
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "uplink"
			up := &netlink.Veth{LinkAttrs: attrs, PeerName: "wire"}
			if err := netlink.LinkAdd(up); err != nil {
				return fmt.Errorf("make the uplink: %w", err)
			}
			wire, err := netlink.LinkByName("wire")
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(wire); err != nil {
				return err
			}
			for _, a := range []string{"198.51.100.1/24", "2001:db8:100::1/64"} {
				addr, err := netlink.ParseAddr(a)
				if err != nil {
					return err
				}
				addr.Flags |= unix.IFA_F_NODAD
				if err := netlink.AddrAdd(up, addr); err != nil {
					return fmt.Errorf("address %s of the uplink: %w", a, err)
				}
			}
			if err := netlink.LinkSetUp(up); err != nil {
				return err
			}
			return unix.Mount(threadNetNS, path, "", unix.MS_BIND, "")
		}()
	}()
	if err := <-done; err != nil {
		return fmt.Errorf("make the network of a machine: %w", err)
	}
	return nil
}

func netnsOf(o workload.Observation) string { return fmt.Sprintf("/proc/%d/ns/net", o.PID) }

// http asks a server in the machine's or a container's network.
func (m *machine) http(r *run, o *workload.Observation, url string) (string, error) {
	ns := m.host
	if o != nil {
		if o.PID == 0 {
			return "", fmt.Errorf("container %s is %s", o.ID, o.Status)
		}
		ns = netnsOf(*o)
	}
	ctx, cancel := context.WithTimeout(r.t.Context(), askLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: testenv.DialIn(ns)}}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err == nil && resp.StatusCode/100 != 2 {
		err = errors.New(resp.Status)
	}
	return string(body), err
}

func (m *machine) log(r *run, o workload.Observation) (string, error) {
	rc, err := r.runtime.Logs(r.t.Context(), o.ID, workload.LogOptions{})
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(rc, maxAnswer))
	return string(text), errors.Join(err, rc.Close())
}

// occupy listens on a port of the machine until the scenario ends.
func (m *machine) occupy(_ *run, port int) error {
	return inNetwork(m.host, func() error {
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if err == nil {
			m.busy = append(m.busy, l)
		}
		return err
	})
}

// breakFirewall deletes every table, as a firewall's reload does.
func (m *machine) breakFirewall(r *run) error {
	return m.inHost(r.t.Context(), "nft", "flush", "ruleset")
}

func (m *machine) breakBridge(r *run, name string) error {
	return inNetwork(m.host, func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			if l.Type() == "bridge" && strings.HasSuffix(l.Attrs().Alias, "/"+name) {
				return netlink.LinkDel(l)
			}
		}
		return fmt.Errorf("there is no bridge of network %s", name)
	})
}

// proc reads a file of a container's first process in /proc.
func (m *machine) proc(o workload.Observation, file string) (string, error) {
	if o.PID == 0 {
		return "", fmt.Errorf("container %s is %s", o.ID, o.Status)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", o.PID, file))
	return string(text), err
}

// exec runs a command in a container, as a health check does.
func (m *machine) exec(o workload.Observation, argv ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), askLimit)
	defer cancel()
	r, err := containerd.New(ctx, m.o)
	if err != nil {
		return err
	}
	return errors.Join(r.Probe(ctx, o.ID, workload.Probe{Exec: argv}), r.Close())
}

func (m *machine) namespace(pid, kind string) (string, error) {
	return os.Readlink(fmt.Sprintf("/proc/%s/ns/%s", pid, kind))
}

func (m *machine) sharesDevice(o workload.Observation, kind string) error {
	mine, err := m.namespace("self", kind)
	if err != nil {
		return err
	}
	its, err := m.namespace(fmt.Sprint(o.PID), kind)
	if err == nil && mine != its {
		err = fmt.Errorf("it is in %s, the device in %s", its, mine)
	}
	return err
}

func (m *machine) shares(o, other workload.Observation, kind string) error {
	a, err := m.namespace(fmt.Sprint(o.PID), kind)
	if err != nil {
		return err
	}
	b, err := m.namespace(fmt.Sprint(other.PID), kind)
	if err == nil && a != b {
		err = fmt.Errorf("it is in %s, the other one in %s", a, b)
	}
	return err
}

// link is an interface in a container's network.
func (m *machine) link(o workload.Observation, name string, f func(l netlink.Link) error) error {
	return inNetwork(netnsOf(o), func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("interface %s: %w", name, err)
		}
		return f(l)
	})
}

func (m *machine) address(o workload.Observation, link, want string) error {
	err := m.link(o, link, func(l netlink.Link) error {
		all, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		var got []string
		for _, a := range all {
			if addr, ok := netip.AddrFromSlice(a.IP); ok && !a.IP.IsLinkLocalUnicast() {
				got = append(got, addr.Unmap().String())
			}
		}
		if want == "any" && len(got) > 0 || slices.Contains(got, want) {
			return nil
		}
		return fmt.Errorf("its addresses are %v", got)
	})
	if want == "none" {
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		return fmt.Errorf("the interface is there: %w", errors.Join(err))
	}
	return err
}

func (m *machine) mac(o workload.Observation, link, want string) error {
	return m.link(o, link, func(l netlink.Link) error {
		if got := l.Attrs().HardwareAddr.String(); got != want {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
}

func (m *machine) route(o workload.Observation, want string) error {
	return inNetwork(netnsOf(o), func() error {
		routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{}, 0)
		if err != nil {
			return err
		}
		got := "none"
		for _, r := range routes {
			if r.Dst != nil {
				if ones, _ := r.Dst.Mask.Size(); ones > 0 {
					continue
				}
			}
			if l, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
				got = l.Attrs().Name
			}
		}
		if want == "" && got != "none" || want == got {
			return nil
		}
		return fmt.Errorf("it is %s", got)
	})
}
