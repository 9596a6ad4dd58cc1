package containerd

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/cgroup"
	"github.com/longshore-dev/longshore/agent/containerd/deadline"
	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/process"
	"github.com/longshore-dev/longshore/agent/containerd/spec"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// probeWait bounds a probe whose caller's context does not.
	probeWait = time.Minute
	// maxProbeBody is how much of an answer is read so that the server can finish sending it.
	maxProbeBody = 64 << 10
)

// Probe asks a running container once. HTTP and TCP are asked from inside its network namespace, on the loopback
// addresses first and then on its others; the image needs no tools for it.
func (r *Runtime) Probe(ctx context.Context, id string, p workload.Probe) error {
	ctx, cancel := context.WithTimeout(r.in(ctx), probeWait)
	defer cancel()
	var err error
	switch {
	case len(p.Exec) > 0:
		err = r.probeExec(ctx, id, p.Exec)
	case p.HTTP != nil:
		err = r.probeHTTP(ctx, id, *p.HTTP)
	case p.TCP != 0:
		err = r.probeTCP(ctx, id, p.TCP)
	default:
		err = fmt.Errorf("an empty probe: %w", fault.ErrInvalid)
	}
	if err != nil {
		return fmt.Errorf("probe container %s: %w", id, failure.Classify(err))
	}
	return nil
}

func (r *Runtime) probeExec(ctx context.Context, id string, argv []string) (err error) {
	box, rec, err := r.own(ctx, id)
	if err != nil {
		return err
	}
	limits, group := rec.Container.Service.Resources, r.group(rec.Container.Service.Resources, id)
	before := cgroup.ForksRefused(group)
	defer func() { err = cgroup.Crowded(err, limits, group, before) }()
	var s oci.Spec
	if err := typeurl.UnmarshalTo(box.Spec, &s); err != nil {
		return err
	}
	proc, err := typeurl.MarshalAnyToProto(spec.Process(&s, argv))
	if err != nil {
		return err
	}
	svc, exec := r.client.TaskService(), "probe-"+strings.ToLower(rand.Text())
	begin, begun := deadline.Outlast(ctx)
	defer begun()
	defer func() { // also where no answer came: the process may be there all the same
		if cerr := r.endExec(ctx, id, exec); cerr != nil {
			r.log.Warn("clean up after a probe", "container", id, "error", cerr)
		}
	}()
	if _, err := svc.Exec(begin, &tasks.ExecProcessRequest{ContainerID: id, ExecID: exec, Spec: proc}); err != nil {
		return errgrpc.ToNative(err)
	}
	if _, err := svc.Start(begin, &tasks.StartRequest{ContainerID: id, ExecID: exec}); err != nil {
		return errgrpc.ToNative(err)
	}
	res, err := svc.Wait(ctx, &tasks.WaitRequest{ContainerID: id, ExecID: exec})
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%q did not end in time: %w", argv[0], ctx.Err())
		}
		return errgrpc.ToNative(err)
	}
	if res.ExitStatus != 0 {
		return fmt.Errorf("%q exited with %d", argv[0], res.ExitStatus)
	}
	return nil
}

func (r *Runtime) probeHTTP(ctx context.Context, id string, p workload.HTTPProbe) error {
	_, rec, err := r.own(ctx, id)
	if err != nil {
		return err
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialIn(ctx, rec.NetNS, p.Port)
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
	// Only the status counts; a server that cannot send its body is told apart by the next probe.
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxProbeBody))
	if res.StatusCode < 200 || res.StatusCode > 399 {
		return fmt.Errorf("GET %s answered %s", where, res.Status)
	}
	return nil
}

func (r *Runtime) probeTCP(ctx context.Context, id string, port uint16) error {
	_, rec, err := r.own(ctx, id)
	if err != nil {
		return err
	}
	c, err := dialIn(ctx, rec.NetNS, port)
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

// ownAddresses are the addresses of the current thread's network namespace.
func ownAddresses() []netip.Addr {
	var out []netip.Addr
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok && !ip.IsLinkLocalUnicast() {
				out = append(out, ip.Unmap())
			}
		}
	}
	slices.SortFunc(out, func(a, b netip.Addr) int { // loopback first
		switch {
		case a.IsLoopback() == b.IsLoopback():
			return a.Compare(b)
		case a.IsLoopback():
			return -1
		}
		return 1
	})
	return out
}
