package attack

import (
	"context"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/testenv"
)

// A second agent with folders of its own, for the same device on the same containerd: it ends at once and names the first one,
// whose containers run on. When the first one was killed, its successor is not kept out.
func TestSecondAgent(t *testing.T) {
	t.Parallel()
	p := newPlant(t)
	d := newDevice(t, p, 19, testenv.Registry(t, testenv.Referrers), setup{})
	data, err := os.ReadFile(d.path("etc/agent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(d.path("data"), d.path("data2"), d.path("run"), d.path("run2")).Replace(string(data))
	if err := os.WriteFile(d.path("etc/second.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	d.begin(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := d.run(ctx, "longshore-agent", "run", "--config", d.path("etc/second.yaml"))
	if err == nil || ctx.Err() != nil {
		t.Fatalf("the second agent ran: %s", out)
	}
	for _, part := range []string{"another agent drives its containers", "data directory " + d.path("data")} {
		if text := out + err.Error(); !strings.Contains(text, part) || strings.Contains(text, "panic") {
			t.Errorf("the second agent says %q, want %q in it", text, part)
		}
	}
	if now := processes(d.status(t)); !maps.Equal(now, processes(d.before)) {
		t.Errorf("containers %v, before %v", now, processes(d.before))
	}
	d.agent.Kill()
	<-d.agent.Done()
	if err := d.agent.Start(); err != nil {
		t.Fatal(err)
	}
	d.settled(t, uint64(d.pushed))
	if now := processes(d.status(t)); !maps.Equal(now, processes(d.before)) {
		t.Errorf("after a restart: containers %v, before %v", now, processes(d.before))
	}
	if err := d.customer.end(); err != nil {
		t.Error(err)
	}
}
