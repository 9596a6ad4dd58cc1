package containerd_test

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// A container that a person makes of our image, with ctr, gets all labels of the image: it is theirs all the same.
func TestForeignContainersAreIgnored(t *testing.T) {
	var log lines
	r := newRig(t, func(o *containerd.Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	img := r.pulled(nil)
	p := project("line", server(img))
	c := p.Containers()[0]
	ctr := func(args ...string) {
		t.Helper()
		if out, err := r.daemon.Ctr(t.Context(), append([]string{"-n", r.o.Namespace}, args...)...); err != nil {
			t.Fatal(out, err)
		}
	}
	labels := []string{"--label", "dev.longshore.device=" + r.o.Device} // what ctr copies from the image, in whatever release
	for _, kv := range []string{"project=line", "service=web", "replica=1", "hook=" + c.ID} {
		labels = append(labels, "--label", "dev.longshore."+kv) // what an image could bring along
	}
	for _, id := range []string{"debug", c.ID} {
		ctr(append(append([]string{"containers", "create", "--snapshotter", r.o.Snapshotter}, labels...), img.Name(), id, "/toolbox", "sleep")...)
	}
	for range 3 {
		if seen, err := r.Observe(t.Context()); err != nil || len(seen.Containers) != 0 {
			t.Fatalf("observed %+v, %v, want none", seen.Containers, err)
		}
	}
	for _, id := range []string{"debug", c.ID} {
		if n := log.count("container=" + id); n != 1 {
			t.Errorf("%d lines about %s, want 1:\n%s", n, id, log.String())
		}
	}
	if err := r.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	err := r.Create(t.Context(), p, c)
	if !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), "not made by this agent") || !strings.Contains(fault.Hint(err), "ctr -n "+r.o.Namespace) {
		t.Errorf("Create = %v, hint %q, want a conflict that names the container", err, fault.Hint(err))
	}
	for what, err := range map[string]error{"Stop": r.Stop(t.Context(), c.ID), "Remove": r.Remove(t.Context(), c.ID)} {
		if !errors.Is(err, fault.ErrConflict) {
			t.Errorf("%s = %v, want a conflict", what, err)
		}
	}
	if err := r.Teardown(t.Context(), "line"); err != nil {
		t.Errorf("Teardown beside a foreign container: %v", err)
	}
	ctr("containers", "delete", c.ID)
	r.up(p)
	if seen, err := r.Observe(t.Context()); err != nil || len(seen.Containers) != 1 {
		t.Errorf("observed %+v, %v, want ours", seen.Containers, err)
	}
	ctr("containers", "info", "debug") // nothing removed it
	ctr("containers", "delete", "debug")
}

// lines is a log that a test can read while it is written.
type lines struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lines) count(part string) int {
	n := 0
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, part+" ") || strings.Contains(line, part+"\n") {
			n++
		}
	}
	return n
}
