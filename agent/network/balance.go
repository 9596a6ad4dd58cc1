package network

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/artifacts/delay"
)

const (
	tcpEstablished = 1 // the kernel's TCP_ESTABLISHED
	tcpOpening     = 3 // TCP_SYN_RECV
	drainLimit     = time.Second
	drainInterval  = 5 * time.Millisecond // between two queries; doubles while connections wait: each lists all that the container has
	drainSlow      = 80 * time.Millisecond
	drainQuiet     = 3 // consecutive queries without a waiting connection: the last ones were read and are being processed
)

// Activate makes a container the backend of its replica: for the service's name, for the replica's own name, and for the
// published ports. Connections are shared evenly among the active replicas. New connections go to the container at once;
// established ones stay, datagrams move. When Activate returns, the previous backend has accepted the connections that were
// opened to it, unless that takes longer than drainLimit: it can be stopped without losing a connection.
func (m *Manager) Activate(ctx context.Context, project, service, containerID string) error {
	return m.changeBackends(ctx, fmt.Sprintf("switch service %q of project %q to container %q", service, project, containerID), func(s *ipam.State) (bool, error) {
		return s.Activate(project, service, containerID)
	})
}

// Deactivate removes a container from its service's backends until [Manager.Activate]: it is unhealthy, or about to stop. The last
// backend stays. A container that is not attached is no error.
func (m *Manager) Deactivate(ctx context.Context, containerID string) error {
	return m.changeBackends(ctx, fmt.Sprintf("take container %q out of its service", containerID), func(s *ipam.State) (bool, error) {
		return s.Deactivate(containerID), nil
	})
}

// changeBackends changes the active backends and drains those that are no longer active.
func (m *Manager) changeBackends(ctx context.Context, what string, change func(*ipam.State) (bool, error)) error {
	left, err := m.applyBackends(ctx, change)
	for _, id := range left {
		if err == nil {
			err = m.drain(ctx, id)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// applyBackends returns the containers that were backends before and are not any more.
func (m *Manager) applyBackends(ctx context.Context, change func(*ipam.State) (bool, error)) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.ready(ctx); err != nil {
		return nil, err
	}
	next := m.state.Clone()
	changed, err := change(next)
	if err != nil {
		return nil, err
	}
	if changed {
		if err := m.commit(next); err != nil {
			return nil, err
		}
	}
	if err := m.applyTables(m.state); err != nil {
		return nil, err
	}
	before := m.ActiveBackends() // also if nothing changed: an earlier call may have been interrupted after it saved the state
	m.reportLater(m.updateFiles(m.state))
	var left []string
	after := m.ActiveBackends()
	for id := range before {
		if !after[id] {
			left = append(left, id)
		}
	}
	return left, nil
}

// drain waits until a container's programs have accepted the connections that reached it. The kernel resets a connection that
// was not accepted when its program stops listening, and many servers close one whose first bytes they did not read yet.
func (m *Manager) drain(ctx context.Context, id string) error {
	ok, err := pinned(m.netnsPath(id))
	if err != nil || !ok {
		return err
	}
	in, ns, err := openNamespace(m.netnsPath(id), unix.NETLINK_INET_DIAG)
	if err != nil {
		return err
	}
	defer ns.Close()
	defer in.Close()
	left, err := settle(ctx, func() (int, error) { return waiting(in) })
	if err == nil && left > 0 {
		m.log.Warn("connections wait for a container that is about to end", "container", id, "connections", left)
	}
	return err
}

// settle queries how many connections wait until none did [drainQuiet] times in a row, for drainLimit at most, and returns how many still wait.
func settle(ctx context.Context, waiting func() (int, error)) (int, error) {
	limited, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	for calm, pause := 0, drainInterval; ; {
		n, err := waiting()
		if err != nil {
			return 0, err
		}
		if calm++; n > 0 {
			calm = 0
		} else {
			pause = drainInterval
		}
		if calm == drainQuiet {
			return 0, nil
		}
		if delay.For(limited, pause) != nil {
			return n, ctx.Err()
		}
		pause = min(2*pause, drainSlow)
	}
}

// waiting counts connections to a container that are being opened, wait to be accepted or to be read, or sent nothing yet. It is
// 0 where the kernel does not list them.
func waiting(in *netlink.Handle) (int, error) {
	count := 0
	for f := range ipam.Families {
		list, err := completeList(func() ([]*netlink.InetDiagTCPInfoResp, error) { return in.SocketDiagTCPInfo(uint8(socket(f))) })
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("list the container's connections: %w", err)
		}
		listens := map[uint16]bool{}
		for _, x := range list {
			if s := x.InetDiagMsg; s.State == tcpListen {
				listens[s.ID.SourcePort] = true
				count += int(s.RQueue)
			}
		}
		for _, x := range list {
			switch s := x.InetDiagMsg; {
			case s.State == tcpOpening:
				count++
			case s.State != tcpEstablished || !listens[s.ID.SourcePort]:
			case s.RQueue > 0, x.TCPInfo != nil && x.TCPInfo.Bytes_received == 0:
				count++
			}
		}
	}
	return count, nil
}

// ActiveBackends are the ids of the containers that their services' addresses and ports lead to in the kernel, as last applied: those
// of [Manager.Activate], or the first that was attached while there is none. It is empty before [Manager.Restore]. It does not
// wait for other calls or for a CNI plugin. The caller must not change it.
func (m *Manager) ActiveBackends() map[string]bool { return *m.backends.Load() }
