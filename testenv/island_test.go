package testenv

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"
)

// From an island its machine can be reached, and nothing else; attempts are seen.
func TestIsland(t *testing.T) {
	i := NewIsland(t)
	s := Registry(t, Referrers, WithAddress(i.Address+":0"))
	host, port, err := net.SplitHostPort(s.Host)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := i.Command(t.Context(), "bash", "-c", "exec 3<>/dev/tcp/"+host+"/"+port+" && printf 'GET /v2/ HTTP/1.0\\r\\n\\r\\n' >&3 && head -1 <&3").Output(); err != nil || len(out) == 0 {
		t.Errorf("the registry cannot be reached: %q, %v", out, err)
	}
	if n := i.Strays(t); n != 0 {
		t.Errorf("%d packets went elsewhere, want none", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	attempt := i.Command(ctx, "bash", "-c", "exec 3<>/dev/tcp/192.0.2.1/443")
	if err := attempt.Start(); err != nil {
		t.Fatal(err)
	}
	Eventually(t, time.Minute, "an attempt to reach something else is counted", func() error {
		if i.Strays(t) == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	cancel()
	if err := attempt.Wait(); err == nil {
		t.Error("an address without a server answers")
	}
}
