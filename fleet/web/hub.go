package web

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/fleet/status"
)

const (
	maxStreams   = 512
	coalesce     = 500 * time.Millisecond // between two events of one stream
	heartbeat    = 15 * time.Second       // an event although nothing changed: ages on the page move on, proxies keep the connection
	writeTimeout = 20 * time.Second       // a reader that does not read is let go
)

// Hub notifies pages of changes.
type Hub struct {
	now func() time.Time

	mu     sync.Mutex
	subs   map[chan struct{}]struct{}
	closed chan struct{}
	over   bool
}

// NewHub makes a hub. now must be the time of the machine: connections get deadlines by it.
func NewHub(now func() time.Time) *Hub {
	return &Hub{now: now, subs: map[chan struct{}]struct{}{}, closed: make(chan struct{})}
}

// Notify notifies every page. It does not block.
func (h *Hub) Notify() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.subs {
		select {
		case c <- struct{}{}:
		default: // notified already
		}
	}
}

// Close ends the streams, so that a server can shut down.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.over {
		h.over = true
		close(h.closed)
	}
}

func (h *Hub) subscribe() (changes chan struct{}, closed <-chan struct{}, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over || len(h.subs) >= maxStreams {
		return nil, nil, false
	}
	c := make(chan struct{}, 1)
	h.subs[c] = struct{}{}
	return c, h.closed, true
}

func (h *Hub) unsubscribe(c chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.subs, c)
}

// ServeHTTP streams "change" events: one at once, one after each change, one now and then.
func (h *Hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	changes, closed, ok := h.subscribe()
	if !ok {
		w.Header().Set("Retry-After", "10")
		status.Refuse(w, r, http.StatusServiceUnavailable, "too many pages are open")
		return
	}
	defer h.unsubscribe(changes)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx holds streams back otherwise
	out := http.NewResponseController(w)
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for n := 1; ; n++ {
		_ = out.SetWriteDeadline(h.now().Add(writeTimeout)) // not every writer knows deadlines
		if _, err := fmt.Fprintf(w, "event: change\nid: %d\nretry: 3000\ndata: %d\n\n", n, n); err != nil {
			return
		}
		if err := out.Flush(); err != nil {
			return
		}
		for pause, news := time.After(coalesce), false; pause != nil || !news; {
			select {
			case <-pause:
				pause = nil
			case <-changes:
				news = true
			case <-beat.C:
				news = true
			case <-closed:
				return
			case <-r.Context().Done():
				return
			}
		}
	}
}
