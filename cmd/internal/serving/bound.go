package serving

import (
	"container/list"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
)

// bound counts the connections of a server.
type bound struct {
	most int

	mu    sync.Mutex
	all   map[net.Conn]place
	fresh *list.List // connections without a request so far, the oldest first
	idle  *list.List // those between requests
}

// place is where a connection waits; zero: it does not wait.
type place struct {
	in *list.List
	at *list.Element
}

// Bound keeps at most a number of connections of a server. For one more the one is closed that has waited longest: of those that have
// sent no request yet, so that handshakes of strangers close each other, then of those between requests. While a request is on each,
// the new one is closed.
func Bound(srv *http.Server, most int) {
	b := &bound{most: most, all: map[net.Conn]place{}, fresh: list.New(), idle: list.New()}
	srv.ConnState = b.changed
}

func (b *bound) changed(c net.Conn, state http.ConnState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	p, known := b.all[c]
	if !known && state != http.StateNew {
		return // closed to make room
	}
	if p.in != nil {
		p.in.Remove(p.at)
	}
	switch state {
	case http.StateNew:
		if len(b.all) >= b.most && !b.room() {
			hangUp(c)
			return
		}
		b.all[c] = place{b.fresh, b.fresh.PushBack(c)}
	case http.StateIdle:
		b.all[c] = place{b.idle, b.idle.PushBack(c)}
	case http.StateActive:
		b.all[c] = place{}
	default:
		delete(b.all, c)
	}
}

// room closes the connection that waits longest; false: none waits.
func (b *bound) room() bool {
	for _, l := range []*list.List{b.fresh, b.idle} {
		if first := l.Front(); first != nil {
			c, _ := l.Remove(first).(net.Conn)
			delete(b.all, c)
			hangUp(c)
			return true
		}
	}
	return false
}

// hangUp closes without a word: TLS would wait until the other side takes one.
func hangUp(c net.Conn) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	_ = c.Close()
}
