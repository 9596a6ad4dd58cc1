package wire

import (
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync"
	"time"
)

// Transport is an [http.Transport] whose TLS files are read again when one of them changes: authorities and certificates are replaced
// behind a long-running agent's back. Use [NewTransport]; the caller closes its idle connections.
type Transport struct {
	o      TLS
	answer time.Duration
	proxy  func(*http.Request) (*url.URL, error)
	failed func(error)

	mu      sync.Mutex
	current *http.Transport
	seen    []os.FileInfo // of the files, when they were read last; nil: it is not there
}

// NewTransport makes a transport of its own. answer bounds the wait from the last byte of a request to the first of its answer: a
// registry stores a blob before it answers. failed is told when changed files cannot be used, once for each change: those before stay
// in use.
func NewTransport(o TLS, answer time.Duration, proxy func(*http.Request) (*url.URL, error), failed func(error)) (*Transport, error) {
	t := &Transport{o: o, answer: answer, proxy: proxy, failed: failed, seen: o.look()}
	var err error
	t.current, err = newTransport(o, answer, proxy)
	return t, err
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) { return t.now().RoundTrip(r) }

// CloseIdleConnections is that of [http.Transport].
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.current.CloseIdleConnections()
}

// now is the transport of the files as they are.
func (t *Transport) now() *http.Transport {
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := t.o.look()
	if slices.EqualFunc(seen, t.seen, unchanged) {
		return t.current
	}
	t.seen = seen // before they are read: what is written meanwhile is another change
	next, err := newTransport(t.o, t.answer, t.proxy)
	if err != nil {
		t.failed(err)
		return t.current
	}
	t.current.CloseIdleConnections()
	t.current = next
	return next
}

// look is what identifies the contents of the files.
func (o TLS) look() []os.FileInfo {
	files := slices.Clone(o.CAFiles)
	if o.LaterCAFile != "" {
		files = append(files, o.LaterCAFile)
	}
	for _, p := range o.Pairs {
		files = append(files, p[:]...)
	}
	out := make([]os.FileInfo, len(files))
	for i, f := range files {
		out[i], _ = os.Stat(f) // nil if it is not there
	}
	return out
}

func unchanged(a, b os.FileInfo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return os.SameFile(a, b) && a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}
