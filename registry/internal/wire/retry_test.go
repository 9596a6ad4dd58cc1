package wire_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

// answers is a transport that gives one answer after the other and notes when it was asked.
type answers struct {
	list []answer
	at   []time.Time
	body []string // what came with each request
}

type answer struct {
	status int
	header http.Header
	body   string
	err    error
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	n := min(len(a.at), len(a.list)-1)
	a.at = append(a.at, time.Now())
	if r.Body != nil {
		data, _ := io.ReadAll(r.Body)
		a.body = append(a.body, string(data))
	}
	one := a.list[n]
	if one.err != nil {
		return nil, one.err
	}
	if one.header == nil {
		one.header = http.Header{}
	}
	return &http.Response{StatusCode: one.status, Header: one.header, Body: io.NopCloser(strings.NewReader(one.body)), Request: r}, nil
}

func send(t *testing.T, rt http.RoundTripper, method, body string) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://registry.test/v2/", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return rt.RoundTrip(r)
}

func retryAfter(v string) http.Header { return http.Header{"Retry-After": {v}} }

func TestRetryObeysTheRegistry(t *testing.T) {
	date := http.Header{"Date": {"Fri, 20 Nov 2026 10:00:00 GMT"}, "Retry-After": {"Fri, 20 Nov 2026 10:00:07 GMT"}}
	past := http.Header{"Date": {"Fri, 20 Nov 2026 10:00:00 GMT"}, "Retry-After": {"Thu, 01 Jan 1970 00:00:00 GMT"}}
	tests := map[string]struct {
		first answer
		want  time.Duration // 0: a back-off of its own
	}{
		"seconds":                    {answer{status: 429, header: retryAfter("5")}, 5 * time.Second},
		"longer than oras-go allows": {answer{status: 429, header: retryAfter("40")}, 40 * time.Second},
		"of a 503":                   {answer{status: 503, header: retryAfter("2")}, 2 * time.Second},
		"at once":                    {answer{status: 429, header: retryAfter("0")}, 0},
		"HTTP date":                  {answer{status: 429, header: date}, 7 * time.Second},
		"HTTP date long ago":         {answer{status: 429, header: past}, 0},
		"Go duration in the header":  {answer{status: 429, header: retryAfter("1.5s")}, 1500 * time.Millisecond},
		"GHCR, in the body": {
			answer{status: 429, body: `{"errors":[{"code":"TOOMANYREQUESTS","message":"retry-after: 1.16676s, allowed: 44000/minute"}]}`},
			1166760 * time.Microsecond,
		},
		"GHCR, next to nothing": {
			answer{status: 429, body: `{"errors":[{"code":"TOOMANYREQUESTS","message":"retry-after: 1.16676ms, allowed: 44000/minute"}]}`},
			0,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &answers{list: []answer{tt.first, {status: 200}}}
				rt := wire.WithRetry(a, wire.Budget{Attempts: 5, Wait: time.Minute})
				resp, err := send(t, rt, http.MethodPut, "the body")
				if err != nil || resp.StatusCode != 200 || len(a.at) != 2 {
					t.Fatalf("RoundTrip = %v, %v after %d requests, want 200 after 2", resp, err, len(a.at))
				}
				switch got := a.at[1].Sub(a.at[0]); {
				case tt.want > 0 && got != tt.want:
					t.Errorf("waited %v, want %v", got, tt.want)
				case tt.want == 0 && (got < 100*time.Millisecond || got > 250*time.Millisecond):
					t.Errorf("waited %v, want a back-off", got)
				}
				if a.body[1] != "the body" {
					t.Errorf("second request's body = %q, want the same again", a.body[1])
				}
			})
		})
	}
}

func TestRetryByClass(t *testing.T) {
	tests := map[string]struct {
		first answer
		tries int
	}{
		"408":                {answer{status: 408}, 3},
		"429":                {answer{status: 429}, 3},
		"500":                {answer{status: 500}, 3},
		"502 web page":       {answer{status: 502, body: "<html>"}, 3},
		"503":                {answer{status: 503}, 3},
		"504":                {answer{status: 504}, 3},
		"501":                {answer{status: 501}, 1},
		"400":                {answer{status: 400}, 1},
		"401":                {answer{status: 401}, 1},
		"404":                {answer{status: 404}, 1},
		"416":                {answer{status: 416}, 1},
		"reset":              {answer{err: &net.OpError{Op: "read", Err: errors.New("connection reset by peer")}}, 3},
		"cut":                {answer{err: io.ErrUnexpectedEOF}, 3},
		"name server silent": {answer{err: &net.DNSError{IsTimeout: true}}, 3},
		"no such host":       {answer{err: &net.DNSError{IsNotFound: true}}, 1},
		"dial timed out":     {answer{err: &net.OpError{Op: "dial", Err: context.DeadlineExceeded}}, 1},
		"caller gave up":     {answer{err: context.Canceled}, 1},
		"wrong scheme":       {answer{err: http.ErrSchemeMismatch}, 1},
		"asks for too much":  {answer{status: 429, header: retryAfter("61")}, 1},
		"asks for ever":      {answer{status: 429, header: retryAfter("99999999999999999999")}, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &answers{list: []answer{tt.first}}
				resp, err := send(t, wire.WithRetry(a, wire.Budget{Attempts: 2, Wait: time.Minute}), http.MethodGet, "")
				if len(a.at) != tt.tries {
					t.Errorf("%d requests, want %d", len(a.at), tt.tries)
				}
				if (err == nil) != (tt.first.err == nil) || err == nil && resp.StatusCode != tt.first.status {
					t.Errorf("RoundTrip = %v, %v, want the last answer", resp, err)
				}
			})
		})
	}
}

func TestRetryIsBounded(t *testing.T) {
	for name, first := range map[string]answer{
		"that asks for nothing": {status: 429, header: retryAfter("0")},
		"that asks for seconds": {status: 429, header: retryAfter("7")},
		"that says nothing":     {status: 503},
	} {
		t.Run("a registry "+name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := &answers{list: []answer{first}}
				if _, err := send(t, wire.WithRetry(a, wire.Budget{Attempts: 50, Wait: time.Minute}), http.MethodGet, ""); err != nil {
					t.Fatal(err)
				}
				if took := a.at[len(a.at)-1].Sub(a.at[0]); took > time.Minute || len(a.at) > 12 {
					t.Errorf("%d requests in %v, want at most a minute and 12", len(a.at), took)
				}
			})
		})
	}
}

// A registry that is away costs the waits once, and not once for each request; it gets them again when it has answered.
func TestRetriesOfARegistryThatIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := answer{err: &net.OpError{Op: "dial", Err: errors.New("connection refused")}}
		a := &answers{list: []answer{refused}}
		trips := wire.WithRetry(a, wire.Budget{Attempts: 5, Wait: time.Minute})
		tries := func() int {
			t.Helper()
			before := len(a.at)
			if resp, err := send(t, trips, http.MethodGet, ""); err == nil {
				resp.Body.Close()
			}
			return len(a.at) - before
		}
		if n := tries(); n != 6 {
			t.Errorf("the first request: %d tries, want 6", n)
		}
		start := time.Now()
		for range 10 {
			if n := tries(); n != 1 || time.Since(start) != 0 {
				t.Errorf("a further request: %d tries in %v, want 1 without a wait", n, time.Since(start))
			}
		}
		a.list = append(make([]answer, len(a.at)), answer{status: 200}, refused)
		if n := tries(); n != 1 {
			t.Errorf("it is back: %d tries", n)
		}
		if n := tries(); n != 6 {
			t.Errorf("it is away again: %d tries, want 6", n)
		}
	})
}

func TestRetryEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://registry.test/", nil)
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = wire.WithRetry(&answers{list: []answer{{status: 429, header: retryAfter("30")}}}, wire.Budget{Wait: time.Minute}).RoundTrip(r)
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 3*time.Second {
			t.Errorf("RoundTrip = %v after %v, want the deadline after 3s", err, time.Since(start))
		}
	})
}

// slow is a body whose nth read never brings anything until it is ended.
type slow struct {
	ctx  context.Context
	left int
}

func (s *slow) Read(b []byte) (int, error) {
	if s.left--; s.left < 0 {
		<-s.ctx.Done()
		return 0, s.ctx.Err()
	}
	b[0] = 'x'
	return 1, nil
}

func (s *slow) Close() error { return nil }

type bodies func(*http.Request) io.ReadCloser

func (f bodies) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 200, Body: f(r), Header: http.Header{}, Request: r}, nil
}

func TestStallEndsABodyThatBringsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := wire.WithStall(bodies(func(r *http.Request) io.ReadCloser { return &slow{r.Context(), 3} }), 10*time.Second)
		resp, err := send(t, rt, http.MethodGet, "")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // a slow reader is not the registry's fault
		start := time.Now()
		data, err := io.ReadAll(resp.Body)
		if string(data) != "xxx" || err == nil || !strings.Contains(err.Error(), "nothing arrived") {
			t.Errorf("ReadAll = %q, %v, want xxx and a stall", data, err)
		}
		if took := time.Since(start); took != 10*time.Second {
			t.Errorf("ended after %v, want 10s", took)
		}
		if err := resp.Body.Close(); err != nil {
			t.Errorf("Close = %v", err)
		}
	})
}

// drip is a body that brings size bytes after each pause, without end.
type drip struct {
	ctx   context.Context
	size  int
	pause time.Duration
}

func (d *drip) Read(b []byte) (int, error) {
	select {
	case <-time.After(d.pause):
		return min(d.size, len(b)), nil
	case <-d.ctx.Done():
		return 0, d.ctx.Err()
	}
}

func (d *drip) Close() error { return nil }

// Who sends a byte now and then must not keep a device waiting for ever; a slow link may.
func TestStallEndsABodyThatDrips(t *testing.T) {
	for _, tt := range []struct {
		name  string
		size  int
		pause time.Duration
		want  time.Duration // until it is ended; 0: never
	}{
		{"a byte a second", 1, time.Second, 10 * time.Second},
		{"a byte just before the limit", 1, 9 * time.Second, 10 * time.Second},
		{"63 bytes a second", 63, time.Second, 10 * time.Second},
		{"80 bytes a second", 80, time.Second, 0},
		{"a kilobyte every nine seconds", 1024, 9 * time.Second, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := wire.WithStall(bodies(func(r *http.Request) io.ReadCloser { return &drip{r.Context(), tt.size, tt.pause} }), 10*time.Second)
				resp, err := send(t, rt, http.MethodGet, "")
				if err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				_, err = io.CopyN(io.Discard, resp.Body, int64(tt.size)*1000)
				switch took := time.Since(start); {
				case tt.want == 0 && err != nil:
					t.Errorf("ended after %v: %v", took, err)
				case tt.want != 0 && (err == nil || took != tt.want || !errors.Is(err, fault.ErrTemporary)):
					t.Errorf("ended after %v with %v, want a stall after %v", took, err, tt.want)
				}
				if err := resp.Body.Close(); err != nil {
					t.Errorf("Close = %v", err)
				}
			})
		})
	}
}

// A place that kept one request waiting is not waited for again, until a while has passed.
func TestRest(t *testing.T) {
	for _, tt := range []struct {
		name  string
		base  http.RoundTripper
		rests bool
	}{
		{"a body that stalls", bodies(func(r *http.Request) io.ReadCloser { return &slow{r.Context(), 3} }), true},
		{"a body that is cut", bodies(func(*http.Request) io.ReadCloser { return io.NopCloser(&cut{}) }), false},
		{"no answer in time", bodiesOrError(func(*http.Request) error { return &net.DNSError{IsTimeout: true} }), true},
		{"refused", bodiesOrError(func(*http.Request) error { return errors.New("refused") }), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked, told := 0, 0
				rt := wire.WithRest(wire.WithStall(counted(func(r *http.Request) (*http.Response, error) {
					asked++
					return tt.base.RoundTrip(r)
				}), 10*time.Second), 30*time.Second, func(error) { told++ })
				ask := func() error {
					resp, err := send(t, rt, http.MethodGet, "")
					if err == nil {
						_, err = io.ReadAll(resp.Body)
						err = errors.Join(err, resp.Body.Close())
					}
					return err
				}
				first, second := ask(), ask()
				if first == nil || second == nil {
					t.Errorf("errors = %v, %v", first, second)
				}
				if want := map[bool]int{true: 1, false: 2}[tt.rests]; asked != want {
					t.Errorf("asked %d times, want %d", asked, want)
				}
				if tt.rests && !errors.Is(second, fault.ErrTemporary) {
					t.Errorf("while it rests = %v, want %v", second, fault.ErrTemporary)
				}
				time.Sleep(31 * time.Second)
				before := asked
				if _ = ask(); asked != before+1 {
					t.Error("not asked again after the rest")
				}
				if want := map[bool]int{true: 1, false: 0}[tt.rests]; told != want {
					t.Errorf("told %d times, want %d", told, want)
				}
			})
		})
	}
}

type counted func(*http.Request) (*http.Response, error)

func (f counted) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

type cut struct{}

func (*cut) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestStallEndsARequestThatIsNotTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := bodiesOrError(func(r *http.Request) error {
			buf := make([]byte, 1)
			for range 3 { // slowly, and then not at all
				time.Sleep(6 * time.Second)
				if _, err := r.Body.Read(buf); err != nil {
					return err
				}
			}
			<-r.Context().Done()
			return r.Context().Err()
		})
		start := time.Now()
		_, err := send(t, wire.WithStall(base, 10*time.Second), http.MethodPut, "a body")
		if err == nil || !strings.Contains(err.Error(), "nothing") || time.Since(start) != 28*time.Second {
			t.Errorf("RoundTrip = %v after %v, want a stall after 28s", err, time.Since(start))
		}
		base = func(r *http.Request) error {
			_, err := io.Copy(io.Discard, r.Body)
			time.Sleep(time.Minute) // it stores what it got; that has a limit of its own
			return err
		}
		if _, err := send(t, wire.WithStall(base, 10*time.Second), http.MethodPut, "a body"); err != nil {
			t.Errorf("RoundTrip of what was taken = %v", err)
		}
	})
}

type bodiesOrError func(*http.Request) error

func (f bodiesOrError) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := f(r); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: 201, Body: http.NoBody, Header: http.Header{}, Request: r}, nil
}
