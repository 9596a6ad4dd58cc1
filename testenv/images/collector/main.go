// Command collector is the front of the line-monitoring application: it subscribes to all readings on a NATS server and
// serves the newest of each line over HTTP.
//
//	/          page for people, made from the title in TITLE_FILE
//	/readings  JSON: {"version": …, "received": n, "lines": {"line-1": {…}}}
//	/healthz   200 while the broker is connected
//
// "collector health" asks /healthz of a collector in the same container: a health check for images without a shell.
//
// Environment: BROKER (broker:4222), LISTEN (:8080), TITLE_FILE (/srv/title).
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	maxReading = 64 << 10    // of one message
	drain      = time.Second // for requests that are being answered at the end
)

type state struct {
	mu        sync.Mutex
	Title     string                     `json:"title"`
	Received  uint64                     `json:"received"`
	Lines     map[string]json.RawMessage `json:"lines"`
	Connected bool                       `json:"connected"`
}

func main() {
	listen := env("LISTEN", ":8080")
	if len(os.Args) == 2 && os.Args[1] == "health" {
		_, port, _ := net.SplitHostPort(listen)
		client := &http.Client{Timeout: 2 * time.Second}
		resp, err := client.Get("http://127.0.0.1:" + port + "/healthz")
		if err != nil || resp.StatusCode != http.StatusOK {
			log.Fatalf("not healthy: %v %v", resp, err)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	title, err := os.ReadFile(env("TITLE_FILE", "/srv/title"))
	if err != nil {
		log.Fatal(err)
	}
	s := &state{Title: strings.TrimSpace(string(title)), Lines: map[string]json.RawMessage{}}
	var wg sync.WaitGroup
	wg.Go(func() { s.collect(ctx, env("BROKER", "broker:4222")) })
	server := &http.Server{Addr: listen, Handler: s.routes(), ReadHeaderTimeout: 5 * time.Second}
	wg.Go(func() {
		<-ctx.Done()
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
		defer cancel()
		_ = server.Shutdown(bounded)
	})
	log.Printf("%q listens on %s", s.Title, listen)
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
	wg.Wait()
}

func env(name, unset string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return unset
}

// collect subscribes again and again until ctx ends.
func (s *state) collect(ctx context.Context, broker string) {
	for ctx.Err() == nil {
		err := s.subscribe(ctx, broker)
		s.mu.Lock()
		s.Connected = false
		s.mu.Unlock()
		if ctx.Err() == nil {
			log.Printf("subscribe at %s: %v", broker, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(250 * time.Millisecond):
		}
	}
}

func (s *state) subscribe(ctx context.Context, broker string) error {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", broker)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if _, err := fmt.Fprint(conn, "CONNECT {\"verbose\":false,\"name\":\"collector\"}\r\nSUB readings.> 1\r\nPING\r\n"); err != nil {
		return err
	}
	in := bufio.NewReader(conn)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return err
		}
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		switch fields[0] {
		case "PING":
			if _, err := fmt.Fprint(conn, "PONG\r\n"); err != nil {
				return err
			}
		case "PONG": // the subscription is in force
			s.mu.Lock()
			s.Connected = true
			s.mu.Unlock()
			log.Printf("connected to %s", broker)
		case "-ERR":
			return errors.New(strings.TrimSpace(line))
		case "MSG":
			if err := s.take(in, fields); err != nil {
				return err
			}
		}
	}
}

// take reads the payload of a message: MSG <subject> <sid> [reply] <bytes>.
func (s *state) take(in *bufio.Reader, fields []string) error {
	n, err := strconv.Atoi(fields[len(fields)-1])
	if err != nil || n < 0 || n > maxReading {
		return fmt.Errorf("message of %q bytes", fields[len(fields)-1])
	}
	data := make([]byte, n+2)
	if _, err := io.ReadFull(in, data); err != nil {
		return err
	}
	data = data[:n]
	if !json.Valid(data) || len(fields) < 2 {
		return nil // not a reading: not our fault
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Received++
	s.Lines[strings.TrimPrefix(fields[1], "readings.")] = data
	return nil
}

var page = template.Must(template.New("page").Parse(`<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2">
<title>{{.Title}}</title><h1>{{.Title}}</h1><p>{{.Received}} readings</p>
<table>{{range $line, $reading := .Lines}}<tr><th>{{$line}}<td>{{printf "%s" $reading}}{{end}}</table>
`))

func (s *state) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_ = page.Execute(w, s)
	})
	mux.HandleFunc("GET /readings", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.Connected {
			http.Error(w, "no broker", http.StatusServiceUnavailable)
		}
	})
	return mux
}
