package site

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/longshore-dev/longshore/artifacts/delay"
)

// thinLink is a TCP proxy in the place of a slow network connection: this machine's kernel may have no netem.
type thinLink struct {
	Address string // where it listens
	Delay   time.Duration
	Down    atomic.Int64 // bytes from the target to clients
	Up      atomic.Int64 // bytes from clients to the target

	listener net.Listener
	end      context.CancelFunc
	wait     sync.WaitGroup
}

// newThinLink listens on address for one test and leads to target: perSecond bytes in each direction, and each piece later by
// delay. The link is cut by Cut, or by the test's end.
func newThinLink(t testing.TB, address, target string, perSecond int, delay time.Duration) *thinLink {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	k := &thinLink{Address: l.Addr().String(), Delay: delay, listener: l, end: cancel}
	down, up := rate.NewLimiter(rate.Limit(perSecond), pieceBytes), rate.NewLimiter(rate.Limit(perSecond), pieceBytes)
	k.wait.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // cut
			}
			k.wait.Go(func() {
				defer client.Close()
				server, err := (&net.Dialer{}).DialContext(ctx, "tcp", target)
				if err != nil {
					return
				}
				defer server.Close()
				stop := context.AfterFunc(ctx, func() { _, _ = client.Close(), server.Close() })
				defer stop()
				var both sync.WaitGroup
				both.Go(func() { k.pass(ctx, server, client, up, &k.Up) })
				both.Go(func() { k.pass(ctx, client, server, down, &k.Down) })
				both.Wait()
			})
		}
	})
	t.Cleanup(k.Cut)
	return k
}

const pieceBytes = 16 << 10

// pass copies one direction of a connection.
func (k *thinLink) pass(ctx context.Context, to, from net.Conn, limit *rate.Limiter, count *atomic.Int64) {
	defer func() { // the other direction may go on
		if half, ok := to.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}()
	piece := make([]byte, pieceBytes)
	for {
		n, err := from.Read(piece)
		if n > 0 {
			if limit.WaitN(ctx, n) != nil || delay.For(ctx, k.Delay) != nil {
				return
			}
			if _, err := to.Write(piece[:n]); err != nil {
				return
			}
			count.Add(int64(n))
		}
		if err != nil {
			if err != io.EOF {
				_ = to.Close()
			}
			return
		}
	}
}

// Cut ends the link with all that goes over it.
func (k *thinLink) Cut() {
	_ = k.listener.Close()
	k.end()
	k.wait.Wait()
}
