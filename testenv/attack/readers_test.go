package attack

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

// Bounds on what readers of one enormous line may cost.
const (
	enormous    = 40 << 20 // bytes of the line
	tailBytes   = 32 << 10 // that --tail 1 may print: the limit of a line, and what escapes it
	sessionCost = 32 << 20 // bytes that all sessions together may add to the agent's memory
)

// TestReadersOfAnEnormousLine: a service has written a line without an end. Its tail is short, and readers of it that do not read
// cost the agent little memory, as many as there are.
func TestReadersOfAnEnormousLine(t *testing.T) {
	w := newWorld(t, "line", "10.201.0.0/16")
	installed(t, w, "big", fmt.Sprintf(`services:
  web:
    image: %s
    command: [cat, /line]
    logging: {driver: local, options: {max-size: 64m}}
`, toolbox(t, w, "plant/big:1", testenv.File{Path: "line", Data: bytes.Repeat([]byte("x"), enormous)})))
	must(t, "the service has run", w.Settled(t.Context(), 1, settleLimit))
	whole, err := w.Control(t.Context(), "logs", "big/web")
	if err != nil || len(whole) < enormous/2 {
		t.Fatalf("the log has %d bytes, %v: too few for what follows", len(whole), err)
	}
	tail, err := w.Control(t.Context(), "logs", "--tail", "1", "big/web")
	if err != nil || len(tail) == 0 || len(tail) > tailBytes {
		t.Errorf("logs --tail 1 has %d bytes, %v, want 1 to %d", len(tail), err, tailBytes)
	}

	before, err := testenv.PeakMemory(w.Agent.PID())
	must(t, "measure the agent", err)
	sessions := []func(){open(t, w, 100)}
	testenv.Eventually(t, tellLimit, "the sessions are at their limit", func() error {
		_, err := w.Control(t.Context(), "logs", "--tail", "1", "big/web")
		if err == nil || !strings.Contains(err.Error(), "sessions are open, which is the limit") {
			sessions = append(sessions, open(t, w, 4)) // an earlier session may have ended after the hundred were refused
			return fmt.Errorf("one more session: %v", err)
		}
		return nil
	})
	if _, err := w.Status(t.Context()); err != nil {
		t.Errorf("status beside them: %v", err)
	}
	for _, end := range sessions {
		end()
	}
	testenv.Eventually(t, tellLimit, "there is room for a session again", func() error {
		_, err := w.Control(t.Context(), "logs", "--tail", "1", "big/web")
		return err
	})
	defer open(t, w, 100)() // what the first ones cost is used again
	if _, err := w.Status(t.Context()); err != nil {
		t.Errorf("status beside others: %v", err)
	}
	after, err := testenv.PeakMemory(w.Agent.PID())
	must(t, "measure the agent", err)
	t.Logf("tail %d bytes; memory at most %d MiB before the sessions, %d MiB with them", len(tail), before>>20, after>>20)
	if after-before > sessionCost {
		t.Errorf("the agent had %d MiB and has %d MiB, want %d MiB more at most", before>>20, after>>20, sessionCost>>20)
	}
}

// open opens connections to the agent, each with a request for much, of which no answer is read. The function that it returns
// closes them.
func open(t *testing.T, w *world.World, n int) (done func()) {
	t.Helper()
	var all []net.Conn
	for i := range n {
		c, err := new(net.Dialer).DialContext(t.Context(), "unix", w.Path("run/agent.sock"))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
		what := []string{"/v1/logs", "/v1/logs?target=big&follow=true", "/v1/logs?stamps=true&prefix=true", "/v1/events?follow=true"}[i%4]
		if _, err := io.WriteString(c, "GET "+what+" HTTP/1.1\r\nHost: agent\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		for _, c := range all {
			_ = c.Close() // nothing is written to it any more
		}
	}
}
