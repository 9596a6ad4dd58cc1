package soak

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/fleetserver"
)

// PollsOptions of devices that poll a fleet manager by mutual TLS.
type PollsOptions struct {
	Out       io.Writer
	Devices   int           // 0: 10,000
	Every     time.Duration // between two polls of a device; 0: one minute
	Duration  time.Duration // of the measurement, after each device has polled once; 0: two periods
	Reconnect bool          // a new connection, with a handshake, for each poll
}

// PollsFigures are what the devices met, and what the manager took.
type PollsFigures struct {
	Devices, Polls, Failed int
	Median, P99, Worst     time.Duration // until an answer, with the handshake where there is one
	First                  time.Duration // in which all devices got their first manifest
	Over                   time.Duration // of the measurement: late answers make it longer
	CPU                    float64       // seconds of the manager's processor time a second
	RSS                    int64         // bytes, at the end
	Registry               int           // requests that the registry got meanwhile
	FirstFailure           string
}

func (f PollsFigures) String() string {
	s := fmt.Sprintf("%d devices, %d polls, %d failed; answered in %.1f ms in the median, %.1f ms at the 99th percentile, %.0f ms at worst; the manager takes %.2f of a core and %d MiB; %d requests to the registry; first manifests in %.1f s",
		f.Devices, f.Polls, f.Failed, ms(f.Median), ms(f.P99), ms(f.Worst), f.CPU, f.RSS>>20, f.Registry, f.First.Seconds())
	if f.FirstFailure != "" {
		s += "; first failure: " + f.FirstFailure
	}
	return s
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

const (
	pollTimeout = 10 * time.Second
	pushers     = 16
	starters    = 32
	answerLimit = 1 << 20
	clockTicks  = 100 // a second, of /proc/PID/stat
)

// Polls has many devices poll one manager, each with its own certificate and connection, and measures.
func Polls(ctx context.Context, o PollsOptions) (f PollsFigures, err error) {
	o.Devices, o.Every = cmp.Or(o.Devices, 10_000), cmp.Or(o.Every, time.Minute)
	o.Duration = cmp.Or(o.Duration, 2*o.Every)
	box, err := testenv.OpenBox(ctx)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, box.Empty()) }()
	s, err := fleetserver.Start(ctx, box, fleetserver.Options{Registry: testenv.Referrers, Interval: max(o.Every/2, time.Second)})
	if err != nil {
		return f, err
	}
	fmt.Fprintf(o.Out, "publishing the states of %d devices\n", o.Devices)
	devices := make([]*poller, o.Devices)
	g, work := errgroup.WithContext(ctx)
	g.SetLimit(pushers)
	for i := range devices {
		d := &poller{device: fmt.Sprintf("press-%05d", i), address: strings.TrimPrefix(s.URL, "https://"), keep: !o.Reconnect, phase: rand.N(o.Every)}
		devices[i] = d
		g.Go(func() (err error) {
			d.config, err = s.TLS(d.device)
			return errors.Join(err, s.Publish(work, d.device, 1, "web"))
		})
	}
	if err := g.Wait(); err != nil {
		return f, err
	}
	defer func() {
		for _, d := range devices {
			d.close()
		}
	}()
	fmt.Fprintln(o.Out, "each device polls once")
	began := time.Now()
	g, work = errgroup.WithContext(ctx)
	g.SetLimit(starters)
	for _, d := range devices {
		g.Go(func() error { return d.poll(work, http.StatusOK) })
	}
	if err := g.Wait(); err != nil {
		return f, err
	}
	f.First = time.Since(began)
	fmt.Fprintf(o.Out, "each device polls every %v, for %v and, before, for one period that does not count\n", o.Every, o.Duration)
	_ = pollAll(ctx, devices, o.Every, o.Every) // looks at the registry spread over time
	s.Registry.Faults.Forget()
	pid := s.Process.PID()
	before, err := processorTime(pid)
	if err != nil {
		return f, err
	}
	began = time.Now()
	times := pollAll(ctx, devices, o.Every, o.Duration)
	after, err := processorTime(pid)
	if err != nil {
		return f, err
	}
	f.Over = time.Since(began)
	f.CPU = (after - before).Seconds() / f.Over.Seconds()
	f.Registry = len(s.Registry.Faults.Requests("", ""))
	memory, err := testenv.Account(fmt.Sprintf("/proc/%d/status", pid))
	f.RSS = int64(memory["VmRSS"]) << 10
	f.count(devices, times)
	return f, errors.Join(err, ctx.Err())
}

// pollAll polls at a phase of each device's own, until the duration is over.
func pollAll(ctx context.Context, devices []*poller, every, duration time.Duration) (times []time.Duration) {
	end := time.Now().Add(duration)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, d := range devices {
		wg.Go(func() {
			for next := time.Now().Add(d.phase); next.Before(end); next = next.Add(every) {
				if delay.For(ctx, time.Until(next)) != nil {
					return
				}
				began := time.Now()
				if err := d.poll(ctx, http.StatusNotModified); err != nil && d.err == nil {
					d.err = err
				}
				took := time.Since(began)
				mu.Lock()
				times = append(times, took)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return times
}

func (f *PollsFigures) count(devices []*poller, times []time.Duration) {
	f.Devices, f.Polls = len(devices), len(times)
	for _, d := range devices {
		if d.err != nil {
			f.Failed++
			f.FirstFailure = cmp.Or(f.FirstFailure, d.err.Error())
		}
	}
	if len(times) == 0 {
		return
	}
	slices.Sort(times)
	f.Median, f.P99, f.Worst = times[len(times)/2], times[len(times)*99/100], times[len(times)-1]
}

// poller is a device: less than a client of net/http, of which ten thousand would be what is measured.
type poller struct {
	device  string
	address string
	config  *tls.Config
	keep    bool // the connection
	etag    string
	conn    *tls.Conn
	phase   time.Duration // of its polls
	err     error         // the first
}

func (p *poller) close() {
	if p.conn != nil {
		_ = p.conn.Close()
		p.conn = nil
	}
}

// poll asks for the manifest, with the ETag of the one before. A connection that the manager has closed meanwhile is replaced, as
// every HTTP client does.
func (p *poller) poll(ctx context.Context, want int) error {
	if !p.keep {
		defer p.close()
	}
	reused := p.conn != nil
	err := p.ask(ctx, want)
	if err != nil {
		p.close()
	}
	if err != nil && reused {
		err = p.ask(ctx, want)
	}
	return err
}

func (p *poller) ask(ctx context.Context, want int) error {
	if p.conn == nil {
		plain, err := (&net.Dialer{Timeout: pollTimeout}).DialContext(ctx, "tcp", p.address)
		if err != nil {
			return err
		}
		p.conn = tls.Client(plain, p.config)
	}
	if err := p.conn.SetDeadline(time.Now().Add(pollTimeout)); err != nil {
		return err
	}
	request := "GET /api/v1/deployments HTTP/1.1\r\nHost: " + p.address + "\r\n"
	if p.etag != "" {
		request += "If-None-Match: " + p.etag + "\r\n"
	}
	if _, err := io.WriteString(p.conn, request+"\r\n"); err != nil {
		return err
	}
	res, err := http.ReadResponse(bufio.NewReaderSize(p.conn, 1<<10), nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(res.Body, answerLimit)); err != nil {
		return err
	}
	if res.StatusCode != want {
		return fmt.Errorf("%s was answered %s", p.device, res.Status)
	}
	if tag := res.Header.Get("ETag"); tag != "" {
		p.etag = tag
	}
	return nil
}

// processorTime is what a process has used, in user and system mode.
func processorTime(pid int) (time.Duration, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(data), ") ") // the name may have spaces
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * time.Second / clockTicks, errors.Join(err, err2)
}
