package attack

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/testenv"
)

const (
	shortAttack   = 8 * time.Second
	nightlyAttack = time.Minute
	maxEndpoint   = 300 << 20   // bytes that the endpoint may take at its peak
	served        = time.Second // in which half of the others' reports are answered,
	busy          = 20          // or in so many times what half of those take at a server beside it that is not attacked
	others        = 10
	intruder      = "gateway-1"
)

// TestEndpointAttack has the holder of one token do its worst to a real fleet endpoint, with everything at once: bodies
// that come slowly, deployments and children as large and as many as it can, event streams, pages and lists, some of which
// it never reads. The endpoint stays small, and half of the other devices' reports are answered within a second; where the machine is
// busy, in the time that compares to an endpoint beside it.
func TestEndpointAttack(t *testing.T) {
	duration := shortAttack
	if testenv.Nightly() {
		duration = nightlyAttack
	}
	e, calm := startEndpoint(t), startEndpoint(t)
	calmToken := calm.token(t, other(0))
	tokens := map[string]string{intruder: e.token(t, intruder)}
	for i := range others {
		tokens[other(i)] = e.token(t, other(i))
		if code, body, err := e.report(t.Context(), other(i), tokens[other(i)]); err != nil || code/100 != 2 {
			t.Fatalf("%d %s, %v", code, body, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	x := &intrusion{endpoint: e, token: tokens[intruder], half: time.After(duration / 2)}
	var wg sync.WaitGroup
	for _, play := range []func(context.Context){x.slowBodies, x.deployments, x.children, x.streams, x.pages, x.unread} {
		wg.Go(func() { play(ctx) })
	}
	times, beside, peak := e.watch(ctx, t, tokens, func() {
		if code, body, err := calm.report(ctx, other(0), calmToken); ctx.Err() == nil && (err != nil || code/100 != 2) {
			t.Errorf("the endpoint that is not attacked answers %d %s, %v", code, body, err)
		}
	})
	cancel()
	wg.Wait()
	if len(times) == 0 {
		t.Fatal("no other device was answered")
	}
	median, worst := middle(times), slices.Max(times)
	if most := max(served, busy*middle(beside)); median > most {
		t.Errorf("half of the reports of others were answered within %v, the slowest in %v: half should be within %v", median, worst, most)
	}
	t.Logf("an endpoint that is not attacked answered half of its reports within %v", middle(beside).Round(time.Millisecond))
	t.Logf("in %v: %s; %d reports of others, half of them within %v, the slowest in %v; the endpoint took %d MiB at its peak, its database %d MiB",
		duration, x.String(), len(times), median.Round(time.Millisecond), worst.Round(time.Millisecond), peak>>20, e.stored(t)>>20)
	if peak > maxEndpoint {
		t.Errorf("the endpoint took %d MiB, at most %d are allowed", peak>>20, maxEndpoint>>20)
	}
	if x.deployed.Load() == 0 || x.born.Load() == 0 || x.slow.Load() == 0 || x.read.Load() == 0 || x.opened.Load() == 0 {
		t.Error("the attack was none")
	}
	code, _, err := e.get(t.Context(), "127.0.0.1", "/healthz")
	if err != nil || code != 200 {
		t.Errorf("/healthz = %d, %v", code, err)
	}
}

func other(i int) string { return fmt.Sprintf("press-%02d", i) }

// endpoint is a fleet endpoint in a process of its own.
type endpoint struct {
	url, host, database, program string
	pid                          int
	client                       *http.Client
}

func startEndpoint(t *testing.T) *endpoint {
	t.Helper()
	dir := t.TempDir()
	if err := testenv.BuildOwn(t.Context(), dir, "longshore-fleet"); err != nil {
		t.Fatal(err)
	}
	e := &endpoint{database: filepath.Join(dir, "fleet.db"), program: filepath.Join(dir, "longshore-fleet"), client: &http.Client{Timeout: time.Minute}}
	cmd := exec.CommandContext(t.Context(), e.program, "serve", "--database", e.database, "--listen", "127.0.0.1:0")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready, done := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			if m := regexp.MustCompile(`listening url=(\S+)`).FindStringSubmatch(lines.Text()); m != nil {
				ready <- m[1]
			}
		}
	}()
	t.Cleanup(func() {
		e.client.CloseIdleConnections()
		_ = cmd.Process.Signal(os.Interrupt)
		<-done
		_ = cmd.Wait()
	})
	select {
	case e.url = <-ready:
	case <-done:
		t.Fatal("the endpoint did not start")
	}
	e.host, e.pid = strings.TrimPrefix(e.url, "http://"), cmd.Process.Pid
	return e
}

func (e *endpoint) token(t *testing.T, device string) string {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), e.program, "token", "create", "--database", e.database, "--device", device).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// middle is the median; 0: of none.
func middle(times []time.Duration) time.Duration {
	if len(times) == 0 {
		return 0
	}
	return slices.Sorted(slices.Values(times))[len(times)/2]
}

// watch has the other devices report, one after the other, until ctx ends, and looks at the page now and then. calm is a report elsewhere. It
// returns how long each answer took, and each calm one, and the most memory that the endpoint took.
func (e *endpoint) watch(ctx context.Context, t *testing.T, tokens map[string]string, calm func()) (times, beside []time.Duration, peak int64) {
	for count := 0; ctx.Err() == nil; count++ {
		device := other(count % others)
		began := time.Now()
		code, body, err := e.report(ctx, device, tokens[device])
		took := time.Since(began)
		if ctx.Err() != nil {
			break
		}
		times = append(times, took)
		if err != nil || code/100 != 2 {
			t.Errorf("%s was answered %d after %v: %s, %v", device, code, took, body, err)
		}
		began = time.Now()
		calm()
		beside = append(beside, time.Since(began))
		if count%20 == 0 {
			if code, _, err := e.get(ctx, "127.0.0.1", "/"); ctx.Err() == nil && (err != nil || code != 200) {
				t.Errorf("the page is answered %d, %v", code, err)
			}
		}
		n, err := testenv.PeakMemory(e.pid)
		if err != nil {
			t.Error(err)
			break
		}
		peak = max(peak, n)
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return times, beside, peak
}

// stored is how much disk the database takes.
func (e *endpoint) stored(t *testing.T) (n int64) {
	t.Helper()
	for _, end := range []string{"", "-wal"} {
		info, err := os.Stat(e.database + end)
		if err != nil {
			t.Fatal(err)
		}
		n += info.Size()
	}
	return n
}

func (e *endpoint) report(ctx context.Context, device, token string) (int, string, error) {
	return e.send(ctx, "PUT", "/api/v1/capabilities/"+device, token, `{"properties":{"id":"`+device+`","vendor":"Acme","modelNumber":"P7","serialNumber":"1"}}`)
}

func (e *endpoint) send(ctx context.Context, method, path, token, body string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, method, e.url+path, strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	res, err := e.client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return res.StatusCode, string(text), err
}

// get asks for a view from an address of this machine, on a connection of its own.
func (e *endpoint) get(ctx context.Context, from, path string) (code int, size int64, err error) {
	tr := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext, DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.url+path, http.NoBody)
	if err != nil {
		return 0, 0, err
	}
	res, err := tr.RoundTrip(req)
	if err != nil {
		return 0, 0, err
	}
	defer res.Body.Close()
	size, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, size, err
}

// intrusion is what one device does.
type intrusion struct {
	*endpoint
	token string
	half  <-chan time.Time // of the attack

	slow, deployed, born, refused, opened, read, bytes, largest atomic.Int64
}

func (x *intrusion) String() string {
	return fmt.Sprintf("%d slow bodies, %d deployments and %d children taken, %d reports refused, %d streams, %d views of %d MiB, the largest %d KiB",
		x.slow.Load(), x.deployed.Load(), x.born.Load(), x.refused.Load(), x.opened.Load(), x.read.Load(), x.bytes.Load()>>20, x.largest.Load()>>10)
}

const (
	attackers = "127.0.0.66" // its address: others look from another one
	large     = 250_000      // bytes of a body, about what is taken
	workers   = 4
)

// crowd runs play in several goroutines, each again until ctx ends.
func crowd(ctx context.Context, n int, play func(i int)) {
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				play(i)
			}
		})
	}
	wg.Wait()
}

// connect opens a connection that ctx closes.
func (x *intrusion) connect(ctx context.Context) (net.Conn, bool) {
	c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(attackers)}}).DialContext(ctx, "tcp", x.host)
	if err != nil {
		return nil, false
	}
	context.AfterFunc(ctx, func() { _ = c.Close() })
	return c, true
}

// slowBodies opens as many requests as it can whose bodies come a byte at a time: in the second half, for then it has no
// request left for anything else.
func (x *intrusion) slowBodies(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-x.half:
	}
	crowd(ctx, 600, func(int) {
		c, ok := x.connect(ctx)
		if !ok {
			return
		}
		defer c.Close()
		x.slow.Add(1)
		fmt.Fprintf(c, "PUT /api/v1/capabilities/%s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{", intruder, x.token, large)
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if _, err := c.Write([]byte(" ")); err != nil {
				return
			}
		}
	})
}

func (x *intrusion) took(code int, counter *atomic.Int64) {
	if code/100 == 2 {
		counter.Add(1)
	} else {
		x.refused.Add(1)
	}
}

// deployments reports deployments that are large in each way that there is.
func (x *intrusion) deployments(ctx context.Context) {
	var next atomic.Int64
	crowd(ctx, workers, func(i int) {
		id := fmt.Sprintf("a3e2f5dc-912e-494f-8395-%012d", next.Add(1))
		var components bytes.Buffer
		if i%2 == 0 {
			for n := range large / 60 {
				fmt.Fprintf(&components, `%s{"name":"c%d","state":"failed"}`, strings.Repeat(",", min(n, 1)), n)
			}
		} else {
			fmt.Fprintf(&components, `{"name":"c","state":"failed","error":{"code":"x","source":"c","message":%q}}`, strings.Repeat("x", large))
		}
		code, _, err := x.send(ctx, "POST", "/api/v1/deployments/"+id+"/status", x.token, fmt.Sprintf(
			`{"deploymentId":%q,"adoptedManifestVersion":1,"status":{"state":"failed"},"components":[%s]}`, id, components.Bytes()))
		if err == nil {
			x.took(code, &x.deployed)
		}
	})
}

// children registers devices behind it, with large capabilities and small ones, and removes some.
func (x *intrusion) children(ctx context.Context) {
	var next atomic.Int64
	crowd(ctx, workers, func(i int) {
		id, more := intruder, ""
		if i > 0 {
			id = fmt.Sprintf("%s/child-%d", intruder, next.Add(1))
		}
		if i%3 == 0 {
			more = fmt.Sprintf(`,"x-longshore-extensions":{"insecure":["%s"]},"x-acme-extensions":{"y":"%s"}`, strings.Repeat(`x","`, large/10), strings.Repeat("y", large/2))
		}
		path := "/api/v1/capabilities/" + id
		code, _, err := x.send(ctx, "PUT", path, x.token, `{"properties":{"id":"`+id+`","vendor":"Acme","modelNumber":"P7","serialNumber":"1"}`+more+`}`)
		if err == nil {
			x.took(code, &x.born)
		}
		if i%50 == 49 {
			_, _, _ = x.send(ctx, "DELETE", path, x.token, "")
		}
	})
}

// streams opens event streams and reads none of them.
func (x *intrusion) streams(ctx context.Context) {
	var all []net.Conn
	defer func() {
		for _, c := range all {
			_ = c.Close()
		}
	}()
	for range 700 {
		c, ok := x.connect(ctx)
		if !ok {
			return
		}
		all = append(all, c)
		fmt.Fprint(c, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
		x.opened.Add(1)
	}
	<-ctx.Done()
}

func views() []string {
	return []string{
		"/", "/fragment", "/fleet/v1/devices?limit=1000", "/fleet/v1/devices?limit=200&capabilities=true", "/fleet/v1/deployments?limit=1000",
		"/fleet/v1/devices/" + intruder, "/fleet/v1/devices?refusing=true", "/fleet/v1/deployments?state=failed&limit=1000", "/metrics",
	}
}

// pages asks for everything that can be looked at.
func (x *intrusion) pages(ctx context.Context) {
	crowd(ctx, 20, func(i int) {
		all := views()
		code, size, err := x.get(ctx, attackers, all[i%len(all)])
		if err == nil && code == 200 {
			x.read.Add(1)
			x.bytes.Add(size)
			x.largest.Store(max(x.largest.Load(), size))
		}
	})
}

// unread asks for the largest views and does not read what comes.
func (x *intrusion) unread(ctx context.Context) {
	crowd(ctx, 100, func(i int) {
		c, ok := x.connect(ctx)
		if !ok {
			return
		}
		defer c.Close()
		all := slices.DeleteFunc(views(), func(s string) bool { return s == "/metrics" })
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", cmp.Or(all[i%len(all)], "/"))
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Second):
		}
	})
}
