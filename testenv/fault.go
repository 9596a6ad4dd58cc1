package testenv

import (
	"bytes"
	"cmp"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Faults stands in front of an http.Handler, breaks what its rules say, and counts everything that passes.
// The zero value breaks nothing and is ready once Wrap was called.
type Faults struct {
	mu       sync.Mutex
	rules    []*Rule
	requests []*Request
	handling int           // requests
	idle     chan struct{} // closed when handling is 0 again
	released chan struct{} // closed by Clear: ends all stalls
}

// Rule says which requests an effect is for. Of several rules that match, the first added that is not used up counts.
type Rule struct {
	Method string // "": any; "GET" does not match HEAD
	Path   string // regular expression for the path, unanchored; "": any
	Agent  string // regular expression for the header User-Agent, unanchored; "": any
	Skip   int    // first leave so many matching requests alone
	Times  int    // then break so many; 0: all
	Effect Effect

	path  *regexp.Regexp
	agent *regexp.Regexp
	seen  int
	hits  int
}

// Effect answers a request in the place of next, or by help of it.
type Effect func(w http.ResponseWriter, r *http.Request, next http.Handler)

// Request is what went over the wire for one request.
type Request struct {
	Method   string
	Path     string
	Query    string
	Range    string // header
	Agent    string // header User-Agent
	Header   http.Header
	Status   int   // 0: the connection was broken before an answer
	Sent     int64 // body bytes to the client
	Received int64 // body bytes from the client
	Broken   bool  // a rule applied
	Plain    bool  // it came without TLS
}

// Add adds a rule. It panics when path or agent is no regular expression: that is a bug in a test.
func (f *Faults) Add(r Rule) {
	r.path, r.agent = regexp.MustCompile(r.Path), regexp.MustCompile(r.Agent)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, &r)
}

// Clear removes all rules and lets stalled requests go.
func (f *Faults) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
	if f.released != nil {
		close(f.released)
		f.released = nil
	}
}

// Hits is how many requests the rules now in force have broken.
func (f *Faults) Hits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, r := range f.rules {
		n += r.hits
	}
	return n
}

// Requests returns what has been asked since the last Forget, in the order of completion: those with the method ("": any)
// whose path matches the regular expression ("": any). A client that has its answer finds the request here.
func (f *Faults) Requests(method, path string) []Request {
	re := regexp.MustCompile(path)
	f.mu.Lock()
	defer f.mu.Unlock()
	var found []Request
	for _, r := range f.requests {
		if (method == "" || r.Method == method) && re.MatchString(r.Path) {
			found = append(found, *r)
		}
	}
	return found
}

// Bytes sums the bodies of such requests: sent to clients and received from them.
func (f *Faults) Bytes(method, path string) (sent, received int64) {
	for _, r := range f.Requests(method, path) {
		sent += r.Sent
		received += r.Received
	}
	return sent, received
}

// Settle waits until no request is being handled: what a client that was killed has sent may still be on its way into the storage.
func (f *Faults) Settle() {
	f.mu.Lock()
	idle := f.idle
	f.mu.Unlock()
	if idle != nil {
		<-idle
	}
}

// handle counts the requests that are being handled.
func (f *Faults) handle(more int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch f.handling += more; {
	case f.handling == 0:
		close(f.idle)
		f.idle = nil
	case f.idle == nil:
		f.idle = make(chan struct{})
	}
}

// Forget starts counting anew.
func (f *Faults) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = nil
}

// choose returns the effect for a request, nil for none.
func (f *Faults) choose(r *http.Request) Effect {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, rule := range f.rules {
		if rule.Method != "" && rule.Method != r.Method || !rule.path.MatchString(r.URL.Path) || !rule.agent.MatchString(r.UserAgent()) {
			continue
		}
		rule.seen++
		if rule.seen <= rule.Skip || rule.Times > 0 && rule.hits >= rule.Times {
			continue
		}
		rule.hits++
		return rule.Effect
	}
	return nil
}

// stalls returns the channel that ends all stalls.
func (f *Faults) stalls() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.released == nil {
		f.released = make(chan struct{})
	}
	return f.released
}

// Wrap puts the faults in front of next.
func (f *Faults) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.handle(1)
		defer f.handle(-1)
		effect, asked := f.choose(r), r.Header.Clone()
		body := &countReader{ReadCloser: r.Body}
		r.Body = body
		var noted *Request
		cw := &countWriter{ResponseWriter: w}
		cw.note = func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if noted == nil {
				noted = &Request{}
				f.requests = append(f.requests, noted)
			}
			*noted = Request{
				Method: r.Method, Path: r.URL.Path, Query: r.URL.RawQuery, Range: r.Header.Get("Range"),
				Agent: r.UserAgent(), Header: asked, Status: cw.status, Sent: cw.n, Received: body.n.Load(), Broken: effect != nil, Plain: r.TLS == nil,
			}
		}
		defer cw.note() // also when the effect breaks the connection by a panic
		if effect == nil {
			next.ServeHTTP(cw, r)
			return
		}
		effect(cw, r, next)
	})
}

// Cut breaks the connection after n bytes of the answer's body. Such answers carry the full Content-Length.
func Cut(n int64) Effect {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(&cutWriter{ResponseWriter: w, left: n}, r)
		_ = http.NewResponseController(w).Flush() // what is before the cut does arrive
		panic(http.ErrAbortHandler)
	}
}

// CutUpload breaks the connection after n bytes of the request's body.
func CutUpload(n int64) Effect {
	return func(_ http.ResponseWriter, r *http.Request, _ http.Handler) {
		_, _ = io.CopyN(io.Discard, r.Body, n)
		panic(http.ErrAbortHandler)
	}
}

// Reset breaks the connection without an answer. The request has no effect on the server.
func Reset() Effect { return CutUpload(0) }

// LoseAnswer lets the server do what was asked and then breaks the connection without an answer.
func LoseAnswer() Effect {
	return func(_ http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	}
}

// Stall sends n bytes of the answer's body and then nothing, until the client goes or the faults are cleared; then it
// breaks the connection. With n < 0 not even the header is sent.
func (f *Faults) Stall(n int64) Effect {
	released := f.stalls() // now: the rules may be cleared while a request is on its way to the wait below
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if n >= 0 {
			next.ServeHTTP(&cutWriter{ResponseWriter: w, left: n}, r)
			_ = http.NewResponseController(w).Flush()
		}
		select {
		case <-released:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	}
}

// Delay answers correctly, later.
func Delay(d time.Duration) Effect {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		select {
		case <-time.After(d):
			next.ServeHTTP(w, r)
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
}

// Status answers with a code and a registry's error body. retryAfter, when positive, goes into the header, in seconds.
func Status(code int, retryAfter time.Duration) Effect {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		if retryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(retryAfter.Seconds())))
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, `{"errors":[{"code":"`+errorCode(code)+`","message":"injected by a test"}]}`)
	}
}

// errorCode is the distribution specification's name for a status.
func errorCode(status int) string {
	return cmp.Or(map[int]string{
		http.StatusUnauthorized: "UNAUTHORIZED", http.StatusForbidden: "DENIED", http.StatusNotFound: "NAME_UNKNOWN", http.StatusTooManyRequests: "TOOMANYREQUESTS",
	}[status], "UNKNOWN")
}

// WrongDigest answers with the right bytes and a Docker-Content-Digest header that is not theirs.
func WrongDigest() Effect {
	return Rewrite(func(h http.Header, body []byte) []byte {
		h.Set("Docker-Content-Digest", "sha256:"+string(bytes.Repeat([]byte("0"), 64)))
		return body
	})
}

// Truncate answers with the first n bytes as if they were all: Content-Length fits them.
func Truncate(n int) Effect {
	return Rewrite(func(_ http.Header, body []byte) []byte { return body[:min(n, len(body))] })
}

// Corrupt answers with one bit of the body flipped, in the middle; headers stay as they are.
func Corrupt() Effect {
	return Rewrite(func(_ http.Header, body []byte) []byte {
		if len(body) > 0 {
			body[len(body)/2] ^= 1
		}
		return body
	})
}

// Swap answers with other bytes; every header but Content-Length stays as it is, also the digest.
func Swap(other []byte) Effect {
	return Rewrite(func(http.Header, []byte) []byte { return other })
}

// SwapAs is [Swap] with a Content-Type and digest header to match, as a hostile registry would send it.
func SwapAs(other []byte, mediaType, digest string) Effect {
	return Rewrite(func(h http.Header, _ []byte) []byte {
		h.Set("Content-Type", mediaType)
		h.Set("Docker-Content-Digest", digest)
		return other
	})
}

// Header answers with a header changed; "" removes it.
func Header(key, value string) Effect {
	return Rewrite(func(h http.Header, body []byte) []byte {
		h.Set(key, value)
		if value == "" {
			h.Del(key)
		}
		return body
	})
}

// Rewrite lets change see a whole successful answer before it is sent. Answers to HEAD have no body, and what change says
// of its length counts.
func Rewrite(change func(http.Header, []byte) []byte) Effect {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		answer := httptest.NewRecorder()
		next.ServeHTTP(answer, r)
		body := answer.Body.Bytes()
		maps.Copy(w.Header(), answer.Header())
		if answer.Code == http.StatusOK || answer.Code == http.StatusPartialContent {
			body = change(w.Header(), body)
			if r.Method != http.MethodHead {
				w.Header().Set("Content-Length", strconv.Itoa(len(body)))
			}
		}
		w.WriteHeader(answer.Code)
		_, _ = w.Write(body)
	}
}

type countWriter struct {
	http.ResponseWriter
	status int
	n      int64
	note   func()
}

func (w *countWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *countWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	w.n += int64(len(p))
	if w.Header().Get("Content-Length") == strconv.FormatInt(w.n, 10) {
		w.note() // with these bytes the client has all of the answer, before the handler returns
	}
	n, err := w.ResponseWriter.Write(p)
	w.n -= int64(len(p) - n)
	return n, err
}

// Unwrap lets http.ResponseController through.
func (w *countWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

type countReader struct {
	io.ReadCloser
	n atomic.Int64
}

func (r *countReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	r.n.Add(int64(n))
	return n, err
}

// cutWriter takes the first left bytes and errs from then on.
type cutWriter struct {
	http.ResponseWriter
	left int64
}

func (w *cutWriter) Write(p []byte) (int, error) {
	if int64(len(p)) <= w.left {
		w.left -= int64(len(p))
		return w.ResponseWriter.Write(p)
	}
	n, err := w.ResponseWriter.Write(p[:w.left])
	w.left = 0
	if err == nil {
		err = io.ErrClosedPipe
	}
	return n, err
}

func (w *cutWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
