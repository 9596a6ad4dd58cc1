package attack

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"sync"

	"github.com/longshore-dev/longshore/testenv"
)

// Memory keeps a registry's answers of one moment, to give them again later. The zero value is empty.
type Memory struct {
	mu      sync.Mutex
	answers map[string]*httptest.ResponseRecorder // by method and path
}

// Keep lets answers pass and remembers the newest of each.
func (m *Memory) Keep() testenv.Effect {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		seen := httptest.NewRecorder()
		next.ServeHTTP(seen, r)
		m.mu.Lock()
		if m.answers == nil {
			m.answers = map[string]*httptest.ResponseRecorder{}
		}
		m.answers[r.Method+" "+r.URL.Path] = seen
		m.mu.Unlock()
		give(w, seen)
	}
}

// Replay answers with the remembered answers. A request without one gets the current answer.
func (m *Memory) Replay() testenv.Effect {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		m.mu.Lock()
		seen := m.answers[r.Method+" "+r.URL.Path]
		m.mu.Unlock()
		if seen == nil {
			next.ServeHTTP(w, r)
			return
		}
		give(w, seen)
	}
}

func give(w http.ResponseWriter, seen *httptest.ResponseRecorder) {
	for k, v := range seen.Header() {
		w.Header()[k] = v
	}
	w.WriteHeader(seen.Code)
	_, _ = bytes.NewReader(seen.Body.Bytes()).WriteTo(w)
}
