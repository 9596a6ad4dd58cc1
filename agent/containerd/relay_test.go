package containerd_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/containerd/logs"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/testenv"
)

// smallLogs puts the logs of a rig on a disk of their own; the returned function takes it away.
func smallLogs(t *testing.T, dataDir string, kind string) (dir string, remove func()) {
	t.Helper()
	dir = filepath.Join(dataDir, "logs")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if kind == "tmpfs" {
		return dir, testenv.SmallDisk(t, dir, 4<<20)
	}
	ctr := testenv.NewBox(t)
	disk, err := ctr.NewDisk(t.Context(), 8<<20)
	if err != nil {
		testenv.Unavailable(t, "make a small disk: %v", err)
	}
	if err := unix.Mount(disk.Dir, dir, "", unix.MS_BIND, ""); err != nil {
		testenv.Unavailable(t, "mount a small disk: %v", err)
	}
	return dir, func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}
}

// fillDisk writes until not a byte more is taken.
func fillDisk(t *testing.T, dir string) (ballast string) {
	t.Helper()
	ballast = filepath.Join(dir, "ballast")
	f, err := os.OpenFile(ballast, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return ballast
}

// say has a container write lines to both of its outputs, and tells how long its answer took.
func (r *rig) say(id, text string, lines int, patience time.Duration) (time.Duration, error) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	where := url.URL{Scheme: "http", Host: netip.AddrPortFrom(r.nets.Addresses(id)["default"], 8080).String(), Path: "/log"}
	where.RawQuery = url.Values{"text": {text}, "n": {fmt.Sprint(lines)}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, where.String(), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	begin := time.Now()
	res, err := r.client().Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err != nil || string(b) != "logged\n" {
		return 0, fmt.Errorf("%s: %q, %w", res.Status, b, err)
	}
	return time.Since(begin), nil
}

// A disk that is filled to its last byte takes no container down: what writes to its output goes on and answers, also over
// a replacement of the agent, and its log goes on when there is room again.
func TestAFullDiskBlocksNoContainer(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"tmpfs", "ext4"} {
		t.Run(kind, func(t *testing.T) { fullDisk(t, kind) })
	}
}

func fullDisk(t *testing.T, kind string) {
	var disk string
	var remove func()
	r := newRig(t, func(o *containerd.Options) { disk, remove = smallLogs(t, o.DataDir, kind) })
	defer remove()
	img := r.pulled(nil)
	quiet := server(img)
	quiet.Name = "quiet"
	p := project("full", server(img), quiet)
	cs := r.up(p)
	loud := cs[0].ID
	for _, c := range cs {
		r.serving(c.ID)
	}
	if _, err := r.say(loud, "before", 10, 30*time.Second); err != nil {
		t.Fatal(err)
	}
	ballast := fillDisk(t, disk)
	long := strings.Repeat("x", 100)
	var worst time.Duration
	for n := range 40 { // 200 kB each: three pipes full
		took, err := r.say(loud, fmt.Sprintf("full %d %s", n, long), 2000, time.Minute)
		if err != nil {
			t.Fatalf("answer %d on a full disk: %v", n, err)
		}
		worst = max(worst, took)
	}
	t.Logf("the slowest answer on a full disk took %v", worst)
	if got := r.get(cs[1].ID, "/"); got != "hello\n" {
		t.Errorf("the quiet neighbour says %q", got)
	}
	_, logs, err := r.Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dropped := uint64(0)
	for _, l := range logs {
		dropped += l.Dropped
	}
	if dropped < 4<<20 {
		t.Errorf("%d dropped bytes are counted, want most of 8 MB", dropped)
	}

	// The next agent finds the same.
	if err := r.Runtime.Close(); err != nil {
		t.Fatal(err)
	}
	r.Runtime = r.open()
	r.seen(loud)
	for n := range 10 {
		if _, err := r.say(loud, fmt.Sprintf("second agent %d %s", n, long), 2000, time.Minute); err != nil {
			t.Fatalf("answer %d with another agent: %v", n, err)
		}
	}

	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	r.logged(loud, "there is room again")
	if out := r.output(loud); !strings.Contains(out, "before 1\n") || !strings.Contains(out, "bytes of output were dropped: no space left on the device\n") {
		t.Errorf("the log tells neither what was before nor that something is missing: %.300q …", out)
	}
	r.logged(cs[1].ID, "the neighbour's")

	// The next start has a shim's copier again.
	if err := errors.Join(r.Stop(t.Context(), loud), r.start(cs[0])); err != nil {
		t.Fatal(err)
	}
	r.serving(loud)
	r.logged(loud, "after a restart")
	for _, c := range r.observed() {
		if err := r.Remove(t.Context(), c.ID); err != nil {
			t.Error(err)
		}
	}
	if err := r.Teardown(t.Context(), p.Name); err != nil && !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}
}

// logged has a container write a line and waits until its log has it.
func (r *rig) logged(id, text string) {
	r.t.Helper()
	testenv.Eventually(r.t, time.Minute, "the log goes on", func() error {
		if _, err := r.say(id, text, 2, 30*time.Second); err != nil {
			return err
		}
		if out := r.output(id); !strings.Contains(out, text+" 1\n") || !strings.Contains(out, text+" 2\n") {
			return fmt.Errorf("its end is %q", out[max(0, len(out)-200):])
		}
		return nil
	})
}

func (r *rig) observed() []workload.Observation {
	r.t.Helper()
	o, err := r.Observe(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return o.Containers
}

func TestAServicesOwnLimits(t *testing.T) {
	r := newRig(t, func(o *containerd.Options) { o.Logs = logs.Limits{Interval: 20 * time.Millisecond} })
	img := r.pulled(nil)
	silent, small := server(img), server(img)
	silent.Name, silent.Log = "silent", workload.Log{None: true}
	small.Name, small.Log = "small", workload.Log{MaxSize: 32 << 10, MaxFiles: 1}
	cs := r.up(project("own", silent, small))
	for _, c := range cs {
		r.serving(c.ID)
		for n := range 20 {
			if _, err := r.say(c.ID, fmt.Sprint(n, strings.Repeat("x", 100)), 200, time.Minute); err != nil {
				t.Fatal(err)
			}
		}
	}
	if out := r.output(cs[0].ID); out != "" {
		t.Errorf("a service that keeps nothing has a log: %.100q", out)
	}
	dir := filepath.Join(r.o.DataDir, "logs", "own")
	testenv.Eventually(t, time.Minute, "the log is within its limits", func() error {
		files, err := filepath.Glob(filepath.Join(dir, "small-1.log*"))
		if err != nil {
			return err
		}
		var sum int64
		for _, f := range files {
			if info, err := os.Stat(f); err == nil {
				sum += info.Size()
			}
		}
		if len(files) > 3 || sum > 3*32<<10 {
			return fmt.Errorf("%d files of %d bytes: %v", len(files), sum, files)
		}
		return nil
	})
	// Another agent knows the limits from what it sees.
	if err := r.Runtime.Close(); err != nil {
		t.Fatal(err)
	}
	r.Runtime = r.open()
	r.observed()
	if _, err := r.say(cs[1].ID, strings.Repeat("y", 100), 2000, time.Minute); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, time.Minute, "the log is within its limits again", func() error {
		if info, err := os.Stat(filepath.Join(dir, "small-1.log")); err != nil || info.Size() > 40<<10 {
			return fmt.Errorf("%v, %w", info, err)
		}
		return nil
	})
}

func TestUsageOfRealContainers(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	web := server(img)
	web.Resources = workload.Resources{MemoryBytes: 64 << 20, PIDs: 50}
	c := r.up(project("usage", web))[0]
	r.serving(c.ID)
	usage := func() workload.Usage {
		t.Helper()
		u, logs, err := r.Usage(t.Context())
		if err != nil || len(u) != 1 || len(logs) != 1 || u[0].ID != c.ID || logs[0].Service != "web" || logs[0].Project != "usage" {
			t.Fatalf("Usage = %+v, %+v, %v", u, logs, err)
		}
		return u[0]
	}
	before := usage()
	if before.MemoryLimit != 64<<20 || before.PIDsLimit != 50 || before.PIDs == 0 || before.Memory == 0 || before.Memory > 64<<20 || before.CPU <= 0 || before.At.IsZero() {
		t.Errorf("Usage = %+v", before)
	}
	for range 200 {
		r.get(c.ID, "/env")
	}
	after := usage()
	if after.CPU <= before.CPU || after.NetworkReceived < before.NetworkReceived+200*50 || after.NetworkTransmitted <= before.NetworkTransmitted {
		t.Errorf("after 200 requests: %+v, before: %+v", after, before)
	}
	if err := r.Stop(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if u, logs, err := r.Usage(t.Context()); err != nil || len(u) != 0 || len(logs) != 1 {
		t.Errorf("Usage of what has ended = %+v, %+v, %v", u, logs, err)
	}
}
