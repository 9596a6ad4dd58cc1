package attack

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/fleetserver"
)

const (
	idleConnections = 10_000
	authenticated   = 500      // of the idle connections, by a handshake
	hugeBody        = 1 << 30  // bytes
	mostRead        = 64 << 20 // bytes of a huge body that may leave its sender: what is read, and what the kernel holds
	mostManager     = 400 << 20
	witnesses       = 40
	pause           = 5 * time.Millisecond
)

// TestManagerAttack has an accepted client, and strangers, do their worst to a fleet manager by mutual TLS: ten thousand idle
// connections, bodies of a GiB, bodies that come slowly. The manager stays small, and another device is served on. Certificates that
// must be rejected, and requests about others' devices, are cases of testenv/conform.
func TestManagerAttack(t *testing.T) {
	box := testenv.NewBox(t)
	s, err := fleetserver.Start(t.Context(), box, fleetserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Publish(t.Context(), "press-07", 1, "web"); err != nil {
		t.Fatal(err)
	}
	good, err := s.HTTP("press-07")
	if err != nil {
		t.Fatal(err)
	}
	defer good.CloseIdleConnections()
	calm, err := fleetserver.Start(t.Context(), testenv.NewBox(t), fleetserver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := calm.Publish(t.Context(), "press-07", 1, "web"); err != nil {
		t.Fatal(err)
	}
	there, err := calm.HTTP("press-07")
	if err != nil {
		t.Fatal(err)
	}
	defer there.CloseIdleConnections()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	x := managerAttack{s, strings.TrimPrefix(s.URL, "https://")}
	var attacks sync.WaitGroup
	defer attacks.Wait()
	defer cancel()
	if err := x.idle(ctx); err != nil {
		t.Fatal(err)
	}
	attacks.Go(func() { x.slowBodies(ctx, t) })
	huge := make(chan struct{})
	attacks.Go(func() { defer close(huge); x.hugeBodies(ctx, t) })
	var times, beside []time.Duration
	for over := false; !over || len(times) < witnesses; {
		select {
		case <-huge:
			over = true
		case <-time.After(pause):
		}
		began := time.Now()
		a, err := s.Do(ctx, good, "GET", "/api/v1/deployments", nil)
		times = append(times, time.Since(began))
		if err != nil || a.Code != 200 {
			t.Fatalf("a device that does nothing wrong is answered %+v, %v", a, err)
		}
		began = time.Now()
		if a, err := calm.Do(ctx, there, "GET", "/api/v1/deployments", nil); err != nil || a.Code != 200 {
			t.Fatalf("a device of the manager that is not attacked is answered %+v, %v", a, err)
		}
		beside = append(beside, time.Since(began))
	}
	median, most := middle(times), max(served, busy*middle(beside))
	peak, err := testenv.PeakMemory(s.Process.PID())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("beside %d idle connections, slow and huge bodies: answers in %v in the median, %v at worst, and in %v at a server that is not attacked; the manager took %d MiB at its peak",
		idleConnections, median.Round(time.Millisecond), slices.Max(times).Round(time.Millisecond), middle(beside).Round(time.Millisecond), peak>>20)
	if median > most || peak > mostManager {
		t.Errorf("answers in %v in the median, at most %v are allowed; %d MiB, at most %d", median, most, peak>>20, mostManager>>20)
	}
}

type managerAttack struct {
	*fleetserver.Server
	address string
}

// idle opens connections that say nothing; some of them authenticate first.
func (x managerAttack) idle(ctx context.Context) error {
	config, err := x.TLS("intruder")
	if err != nil {
		return err
	}
	for i := range idleConnections {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", x.address)
		if err != nil {
			return fmt.Errorf("connection %d: %w", i, err)
		}
		context.AfterFunc(ctx, func() { _ = c.Close() })
		if i < authenticated {
			if err := tls.Client(c, config).HandshakeContext(ctx); err != nil {
				return fmt.Errorf("connection %d: %w", i, err)
			}
		}
	}
	return nil
}

// zeros is a body without an end but for a limit, that counts what is read of it.
type zeros struct{ read atomic.Int64 }

func (z *zeros) Read(p []byte) (int, error) {
	if z.read.Add(int64(len(p))) > hugeBody {
		return 0, io.EOF
	}
	clear(p)
	return len(p), nil
}

// hugeBodies sends bodies of a GiB, which must be rejected before they have arrived.
func (x managerAttack) hugeBodies(ctx context.Context, t *testing.T) {
	c, err := x.HTTP("intruder")
	if err != nil {
		t.Error(err)
		return
	}
	defer c.CloseIdleConnections()
	for _, path := range []string{"/api/v1/capabilities/intruder", "/api/v1/deployments/a3e2f5dc-912e-494f-8395-52cf3769bc06/status"} {
		method := http.MethodPut
		if strings.HasSuffix(path, "/status") {
			method = http.MethodPost
		}
		body := &zeros{}
		a, err := x.Do(ctx, c, method, path, body)
		switch {
		case err == nil && (a.Code != http.StatusBadRequest || !bytes.Contains(a.Body, []byte("larger than"))):
			t.Errorf("%s of 1 GiB is answered %d %s", path, a.Code, a.Body)
		case err != nil && !strings.Contains(err.Error(), "connection reset") && !strings.Contains(err.Error(), "broken pipe"):
			t.Errorf("%s of 1 GiB: %v", path, err)
		}
		if n := body.read.Load(); n > mostRead {
			t.Errorf("%s: %d MiB of a body were taken", path, n>>20)
		}
	}
}

// drip is a body that comes a byte at a time.
type drip struct{ ctx context.Context }

func (d drip) Read(p []byte) (int, error) {
	select {
	case <-d.ctx.Done():
		return 0, errors.New("over")
	case <-time.After(100 * time.Millisecond):
		p[0] = ' '
		return 1, nil
	}
}

// slowBodies keeps as many requests open as one client may have, and tries for more.
func (x managerAttack) slowBodies(ctx context.Context, t *testing.T) {
	c, err := x.HTTP("slow")
	if err != nil {
		t.Error(err)
		return
	}
	defer c.CloseIdleConnections()
	var wg sync.WaitGroup
	for range 3 * 16 {
		wg.Go(func() { _, _ = x.Do(ctx, c, "PUT", "/api/v1/capabilities/slow", drip{ctx}) })
	}
	wg.Wait()
}
