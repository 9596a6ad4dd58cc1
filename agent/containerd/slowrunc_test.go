package containerd_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/testenv"
)

// TestSlowRunc: a runc that does not end is told as such, and not as the signal that ends it. The container starts when runc is
// quick again.
func TestSlowRunc(t *testing.T) {
	var slow string
	r := newRig(t, func(o *containerd.Options) {
		slow = filepath.Join(t.TempDir(), "slow-runc")
		o.Runtimes = map[string]string{"slow": slow}
	})
	img := r.pulled(nil)
	for _, command := range []string{"create", "start"} {
		t.Run(command, func(t *testing.T) {
			text := "#!/bin/sh\ncase \" $* \" in *\" " + command + " \"*) [ -e " + slow + "." + command + " ] || exec sleep 600;; esac\nexec " + testenv.Program(t, "runc") + " \"$@\"\n"
			if err := os.WriteFile(slow, []byte(text), 0o755); err != nil {
				t.Fatal(err)
			}
			s := server(img)
			s.Runtime = "slow"
			p := project("slow-"+command, s)
			c := r.created(p)[0]
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			err := r.Start(ctx, p, c)
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "in time: containerd, runc or the disk is slow") ||
				strings.Contains(err.Error(), "signal: killed") {
				t.Errorf("Start with a slow runc = %v, want what was slow", err)
			}
			if o := r.seen(c.ID); o.Status != workload.Created {
				t.Errorf("after that the container is %s, want %s", o.Status, workload.Created)
			}
			if err := os.WriteFile(slow+"."+command, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, time.Minute, "it starts", func() error { return r.start(c) }) // the shim of before may still be ending
			r.serving(c.ID)
		})
	}
}
