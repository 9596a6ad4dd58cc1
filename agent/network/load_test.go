package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/testenv"
)

const (
	loadRate     = 200 // new connections a second, over all ways
	loadSwitches = 20
	loadPace     = 250 * time.Millisecond // between two switches
	loadPatience = 2 * time.Minute        // lost is what never comes; late is what a busy machine is
	loadDrain    = 250 * time.Millisecond // from a switch to the end of the old container: the agent waits 2 s
	loadPending  = 40                     // requests under way on one way: a machine that cannot keep up is asked less
	loadTold     = 5                      // failures of one way that are shown
)

// tally is what a way to a service saw.
type tally struct {
	mu       sync.Mutex
	asked    int
	failed   []error
	took     []time.Duration
	answered map[string]int
}

func (l *tally) note(name string, took time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	if err != nil {
		l.failed = append(l.failed, err)
		return
	}
	l.took = append(l.took, took)
	l.answered[name]++
}

// serve is an HTTP server in a container; what it gives back drains it, as SIGTERM makes a server do.
func serve(w *world, ns, name string) (drain func()) {
	w.t.Helper()
	var l net.Listener
	w.must(w.in(ns, func() (err error) { l, err = net.Listen("tcp4", ":80"); return err }))
	s := &http.Server{Handler: http.HandlerFunc(func(r http.ResponseWriter, _ *http.Request) {
		<-time.After(time.Duration(rand.IntN(20)) * time.Millisecond) // requests are under way at every switch
		_, _ = io.WriteString(r, name)
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	var once sync.Once
	drain = func() {
		once.Do(func() {
			<-time.After(loadDrain) // a connection that was led here before the switch may still be on its way
			w.accepted(l)           // a listener that closes resets what it has not accepted yet: no network can prevent that
			ctx, cancel := context.WithTimeout(context.Background(), loadPatience)
			defer cancel()
			err := s.Shutdown(ctx)
			<-done // only now every connection that was accepted is known to be open
			if err = errors.Join(err, s.Shutdown(ctx)); err != nil {
				w.t.Errorf("drain %s: %v", name, err)
			}
		})
	}
	w.t.Cleanup(drain)
	return drain
}

// accepted waits until no connection waits for Accept: the kernel tells how many do in the field that counts unacknowledged
// segments of others.
func (w *world) accepted(l net.Listener) {
	raw, err := l.(*net.TCPListener).SyscallConn()
	w.must(err)
	err = testenv.Await(context.Background(), loadPatience, func() error { // also after the test
		var waiting uint32
		err := raw.Control(func(fd uintptr) {
			if info, err := unix.GetsockoptTCPInfo(int(fd), unix.SOL_TCP, unix.TCP_INFO); err == nil {
				waiting = info.Unacked
			}
		})
		if err == nil && waiting > 0 {
			err = fmt.Errorf("%d connections wait for Accept", waiting)
		}
		return err
	})
	if err != nil {
		w.t.Error(err)
	}
}

// press asks url from a namespace, at a rate, until ctx ends. Each request has a connection of its own, unless kept: those
// share some that stay open.
func press(ctx context.Context, w *world, ns, url string, every time.Duration, kept bool) *tally {
	l := &tally{answered: map[string]int{}}
	tr := &http.Transport{
		DisableKeepAlives: !kept, MaxIdleConnsPerHost: 16,
		DialContext: func(ctx context.Context, network, to string) (c net.Conn, err error) {
			err = w.in(ns, func() error { c, err = (&net.Dialer{}).DialContext(ctx, network, to); return err })
			return c, err
		},
	}
	client := &http.Client{Transport: tr, Timeout: loadPatience}
	pending := make(chan struct{}, loadPending)
	w.t.Cleanup(tr.CloseIdleConnections)
	tick := time.NewTicker(every)
	defer tick.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case <-ctx.Done():
			return l
		case <-tick.C:
		}
		select {
		case pending <- struct{}{}:
		default:
			continue
		}
		wg.Go(func() {
			defer func() { <-pending }()
			begin := time.Now()
			r, err := client.Get(url)
			var body []byte
			if err == nil {
				body, err = io.ReadAll(r.Body)
				r.Body.Close()
			}
			l.note(string(body), time.Since(begin), err)
		})
	}
}

// TestNoConnectionIsLostBySwitches replaces the containers of a service again and again, start-first, while clients ask it in
// all ways there are.
func TestNoConnectionIsLostBySwitches(t *testing.T) {
	for _, replicas := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d replicas", replicas), func(t *testing.T) {
			w := newWorld(t)
			f := newFarm(w, replicas)
			drains := map[int]func(){}
			start := func(p *workload.Project, n int, name string) {
				a, err := w.m.Attach(w.ctx(), p.Name, replicaOf(p, "web", n))
				w.must(err)
				drain := serve(w, a.NetNS, name)
				f.change(p, n)
				if old := drains[n]; old != nil {
					old() // SIGTERM, then its connections end
				}
				drains[n] = drain
			}
			for n := range replicas {
				start(f.p, n+1, "0")
			}
			ctx, cancel := context.WithCancel(t.Context())
			ways := []struct {
				name, ns, url string
				kept          bool
			}{
				{"service name", f.client, "http://" + at(w.vip(f.p, "web", "default"), 80), false},
				{"published port from outside", w.lan, "http://" + at(w.hostAddr, 8080), false},
				{"published port from loopback", w.host, "http://127.0.0.1:8080", false},
				{"kept connections to the service name", f.client, "http://" + at(w.vip(f.p, "web", "default"), 80), true},
				{"kept connections to the published port", w.lan, "http://" + at(w.hostAddr, 8080), true},
			}
			loads := make([]*tally, len(ways))
			var wg sync.WaitGroup
			for i, way := range ways {
				wg.Go(func() {
					loads[i] = press(ctx, w, way.ns, way.url, time.Second*time.Duration(len(ways)-2)/loadRate, way.kept)
				})
			}
			pace := time.NewTicker(loadPace)
			defer pace.Stop()
			p := f.p
			for i := range loadSwitches {
				<-pace.C
				n := i%replicas + 1
				q := revised(p, "web", fmt.Sprint(i/replicas+1))
				w.prepare(q)
				old := map[int]string{}
				for _, id := range w.m.attached("line") {
					a := w.m.state.Projects["line"].Attachments[id]
					if a.Service == "web" {
						old[a.Replica] = id
					}
				}
				start(q, n, fmt.Sprint(i+1))
				w.must(w.m.Detach(w.ctx(), old[n]))
			}
			<-pace.C
			cancel()
			wg.Wait()
			for i, way := range ways {
				l := loads[i]
				slices.Sort(l.took)
				if len(l.took) == 0 {
					t.Fatalf("%s: nothing was answered of %d: %v", way.name, l.asked, l.failed)
				}
				t.Logf("%s: %d requests through %d switches, %d failed, median %v, 99%% %v, longest %v, %d containers answered", way.name, l.asked, loadSwitches,
					len(l.failed), l.took[len(l.took)/2].Round(time.Microsecond), l.took[len(l.took)*99/100].Round(time.Microsecond), l.took[len(l.took)-1].Round(time.Microsecond), len(l.answered))
				for _, err := range l.failed[:min(len(l.failed), loadTold)] {
					t.Errorf("%s: %v", way.name, err)
				}
				if len(l.answered) < loadSwitches/2 {
					t.Errorf("%s: only %v answered", way.name, l.answered)
				}
			}
			w.verified()
		})
	}
}
