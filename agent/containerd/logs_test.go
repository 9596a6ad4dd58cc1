package containerd_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/containerd/logs"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

func TestLogsOfAContainerOverRotation(t *testing.T) {
	r := newRig(t, func(o *containerd.Options) {
		o.Logs = logs.Limits{MaxSize: 32 << 10, MaxFiles: 10000, Interval: 3 * time.Millisecond}
	})
	img := r.pulled(nil)
	const lines = 100_000
	p := project("log", workload.Service{Name: "busy", Image: img, Command: []string{"lines", fmt.Sprint(lines)}})
	c := r.created(p)[0]
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	follow, err := r.Logs(ctx, c.ID, workload.LogOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer follow.Close()
	if err := r.Start(ctx, p, c); err != nil {
		t.Fatal(err)
	}
	s := bufio.NewScanner(follow)
	n := 0
	for n < lines && s.Scan() {
		n++
		if want := fmt.Sprintf("line %d", n); s.Text() != want {
			t.Fatalf("line %d = %q", n, s.Text())
		}
	}
	if n != lines {
		t.Fatalf("%d lines of %d were followed: %v", n, lines, s.Err())
	}
	r.exited(c.ID)
	if got := strings.Count(r.output(c.ID), "\n"); got != lines {
		t.Errorf("%d lines are kept, want %d", got, lines)
	}
	// The next run of the container appends, and so does the next revision of the service.
	if err := r.Start(ctx, p, c); err != nil {
		t.Fatal(err)
	}
	r.exited(c.ID)
	p.Services[0].Command = []string{"print", "the next revision"}
	next := r.up(p)[0]
	r.exited(next.ID)
	testenv.Eventually(t, time.Minute, "the tail", func() error { // the shim may still be copying it
		tail, err := r.Logs(ctx, next.ID, workload.LogOptions{Tail: 2})
		if err != nil {
			return err
		}
		defer tail.Close()
		got, err := io.ReadAll(tail)
		if want := fmt.Sprintf("line %d\nthe next revision\n", lines); err == nil && string(got) != want {
			err = fmt.Errorf("tail = %q, want %q", got, want)
		}
		return err
	})
	if _, err := r.Logs(ctx, "nobody", workload.LogOptions{}); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("Logs of no container = %v, want %v", err, fault.ErrNotFound)
	}
}
