package serving_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/cmd/internal/serving"
)

// Connections that send nothing, or nothing more, do not keep others out; one with a request is never closed for another.
func TestBound(t *testing.T) {
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	working, finish := make(chan struct{}), make(chan struct{})
	srv := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/long" {
			working <- struct{}{}
			<-finish
		}
	})}
	serving.Bound(srv, 3)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	defer func() { _ = srv.Close(); <-done }()
	dial := func() net.Conn {
		t.Helper()
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		return c
	}
	send := func(c net.Conn, path string) {
		t.Helper()
		if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	answered := func(c net.Conn) error {
		line, err := bufio.NewReader(c).ReadString('\n')
		if err == nil && !strings.Contains(line, "200") {
			t.Errorf("answer %q", line)
		}
		return err
	}
	long := dial()
	send(long, "/long")
	<-working
	var silent []net.Conn
	for range 50 {
		silent = append(silent, dial())
	}
	polite := dial()
	send(polite, "/")
	if err := answered(polite); err != nil {
		t.Errorf("a request beside 50 silent connections: %v", err)
	}
	for i, c := range silent[:48] {
		if _, err := c.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
			t.Errorf("silent connection %d is open: %v", i, err)
		}
	}
	for range 2 { // now with two more requests under way there is no room at all
		c := dial()
		send(c, "/long")
		<-working
	}
	late := dial()
	if _, err := late.Read(make([]byte, 1)); err == nil || strings.Contains(err.Error(), "timeout") {
		t.Errorf("a fourth connection is open: %v", err)
	}
	close(finish)
	if err := answered(long); err != nil {
		t.Errorf("the first request: %v", err)
	}
}
