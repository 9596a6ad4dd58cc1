package status

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	gateSlots      = 8
	gatePerAddress = 4
	gateWaiting    = 64 // requests of one address, with those that wait
	gateWait       = 5 * time.Second
)

// Gate bounds how many views are worked on at once, and how many of them for one address: an answer is held in memory until
// its reader has taken it. Others wait for a moment, and are answered 503 then. Use [NewGate].
type Gate struct {
	slots chan struct{}

	mu   sync.Mutex
	from map[string]*visitor
}

// visitor is an address that asks.
type visitor struct {
	slots    chan struct{}
	requests int
}

// NewGate makes a gate, for all views of a server.
func NewGate() *Gate {
	return &Gate{slots: make(chan struct{}, gateSlots), from: map[string]*visitor{}}
}

// Wrap lets requests through the gate.
func (g *Gate) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		address, _, err := net.SplitHostPort(r.RemoteAddr)
		if err != nil {
			address = r.RemoteAddr
		}
		leave, ok := g.enter(r.Context(), address)
		if !ok {
			busy("too many views are asked for at once").write(w, r)
			return
		}
		defer leave()
		next.ServeHTTP(w, r)
	})
}

func (g *Gate) enter(ctx context.Context, address string) (leave func(), ok bool) {
	g.mu.Lock()
	v := g.from[address]
	if v == nil {
		v = &visitor{slots: make(chan struct{}, gatePerAddress)}
		g.from[address] = v
	}
	if v.requests >= gateWaiting {
		g.mu.Unlock()
		return nil, false
	}
	v.requests++
	g.mu.Unlock()
	quit := func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if v.requests--; v.requests == 0 {
			delete(g.from, address)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, gateWait)
	defer cancel()
	select {
	case v.slots <- struct{}{}:
	case <-ctx.Done():
		quit()
		return nil, false
	}
	select {
	case g.slots <- struct{}{}:
	case <-ctx.Done():
		<-v.slots
		quit()
		return nil, false
	}
	return func() { <-g.slots; <-v.slots; quit() }, true
}
