// Package probe sends health probes from inside a network namespace: the container's image needs no tools.
package probe

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/process"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxBody is how many bytes of a response are read so that the server can finish it.
const maxBody = 64 << 10

// HTTP requests a path and accepts a status from 200 to 399. netns is the path of the namespace; "": the device's.
func HTTP(ctx context.Context, netns string, p workload.HTTPProbe) error {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialIn(ctx, netns, p.Port)
		},
	}
	client := &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	where := p.Path
	if !strings.HasPrefix(where, "/") {
		where = "/" + where
	}
	host := net.JoinHostPort("localhost", strconv.Itoa(int(p.Port)))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+where, nil)
	if err != nil {
		return failure.As(fault.ErrInvalid, err)
	}
	req.Header.Set("User-Agent", "longshore-probe")
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	// Only the status counts, also if the server cannot send the body.
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxBody))
	if res.StatusCode < 200 || res.StatusCode > 399 {
		return fmt.Errorf("GET %s answered %s", where, res.Status)
	}
	return nil
}

// TCP connects to a port. netns is the path of the namespace; "": the device's.
func TCP(ctx context.Context, netns string, port uint16) error {
	c, err := dialIn(ctx, netns, port)
	if err != nil {
		return err
	}
	return c.Close()
}

// dialIn connects to a port inside a network namespace. The thread that enters the namespace never runs anything else.
func dialIn(ctx context.Context, netns string, port uint16) (net.Conn, error) {
	var (
		c   net.Conn
		err error
	)
	process.DetachedThread(func() { c, err = enterAndDial(ctx, netns, port) }) // the dial ends with ctx
	return c, err
}

// enterAndDial connects from inside a namespace; "" is the device's own.
func enterAndDial(ctx context.Context, netns string, port uint16) (net.Conn, error) {
	if netns != "" {
		ns, err := os.Open(netns)
		if err != nil {
			return nil, err
		}
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return nil, fmt.Errorf("enter %s: %w", netns, err)
		}
	}
	var d net.Dialer
	dial := func(a netip.Addr) (net.Conn, error) {
		// One literal address: the socket is made on this thread, in this namespace.
		return d.DialContext(ctx, "tcp", netip.AddrPortFrom(a, port).String())
	}
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	c, first := dial(loopback)
	if first == nil || ctx.Err() != nil {
		return c, first
	}
	for _, a := range ownAddresses() {
		if a == loopback {
			continue
		}
		if c, err := dial(a); err == nil {
			return c, nil
		}
	}
	return nil, first
}

// ownAddresses are the addresses of the current thread's network namespace, those of the loopback first.
func ownAddresses() []netip.Addr {
	var out []netip.Addr
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			switch ip, ok := netip.AddrFromSlice(n.IP); {
			case !ok || ip.IsLinkLocalUnicast():
			case ip.IsLoopback():
				out = slices.Insert(out, 0, ip.Unmap())
			default:
				out = append(out, ip.Unmap())
			}
		}
	}
	return out
}
