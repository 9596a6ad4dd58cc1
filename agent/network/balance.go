package network

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/network/ipam"
)

const (
	tcpEstablished = 1 // the kernel's TCP_ESTABLISHED
	tcpOpening     = 3 // TCP_SYN_RECV
	drainLimit     = time.Second
	drainInterval  = 5 * time.Millisecond // between two looks
	drainQuiet     = 3                    // looks in a row that find nothing waiting: what was read last is being worked on
)

// Switch makes a container the one of its replica that answers: by the service's name, by the replica's own, and at the
// published ports, which connections share evenly among the replicas that were switched to. New connections go there at
// once; those that exist stay where they are, datagrams move. When it returns, the container that answered before has
// taken up what was opened to it, unless that takes longer than a second: it may be asked to end without a connection lost.
func (m *Manager) Switch(ctx context.Context, project, service, containerID string) error {
	return m.changeBackends(ctx, fmt.Sprintf("switch service %q of project %q to container %q", service, project, containerID), func(s *ipam.State) (bool, error) {
		return s.Activate(project, service, containerID)
	})
}

// Leave takes a container out of those that answer, until [Manager.Switch]: it is unhealthy, or about to stop. The last one
// that answers goes on doing so, as does one that is not attached: both are no error.
func (m *Manager) Leave(ctx context.Context, containerID string) error {
	return m.changeBackends(ctx, fmt.Sprintf("take container %q out of its service", containerID), func(s *ipam.State) (bool, error) {
		return s.Deactivate(containerID), nil
	})
}

// changeBackends changes who answers.
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

// applyBackends returns the containers that answered before and do no more.
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
	before := m.Answering() // also where nothing changed: an earlier call may have got only as far as the saved state
	m.reportLater(m.updateFiles(m.state))
	var left []string
	after := m.Answering()
	for id := range before {
		if !after[id] {
			left = append(left, id)
		}
	}
	return left, nil
}

// drain waits until a container's programs have taken up the connections that reached it: one that waits in the kernel is
// reset when its program stops listening, and one whose first bytes were not read yet is closed by many a server that ends.
func (m *Manager) drain(ctx context.Context, id string) error {
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
	ctx, cancel := context.WithTimeout(ctx, drainLimit)
	defer cancel()
	pause := time.NewTicker(drainInterval)
	defer pause.Stop()
	for calm := 0; ; {
		waiting, err := waiting(in)
		if err != nil {
			return err
		}
		if calm++; waiting > 0 {
			calm = 0
		}
		if calm == drainQuiet {
			return nil
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				m.log.Warn("connections wait for a container that is about to end", "container", id, "connections", waiting)
				return nil
			}
			return ctx.Err()
		case <-pause.C:
		}
	}
}

// waiting counts connections to a container that are being opened, wait to be accepted or to be read, or sent nothing yet.
// A kernel that cannot tell has none.
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

// Answering are the ids of the containers that their services' addresses and ports lead to in the kernel, as last applied: all
// that [Manager.Switch] made answer, or the first that was attached while there is none. None before [Manager.Restore]. It
// does not wait for other calls, nor for a plugin of the site's. The caller must not change it.
func (m *Manager) Answering() map[string]bool { return *m.backends.Load() }

// setBackends makes s what [Manager.Answering] returns.
func (m *Manager) setBackends(s *ipam.State) {
	ids := s.Backends()
	m.backends.Store(&ids)
}
