// Command sensor stands for a machine on a production line: it publishes a reading to a NATS server every POLL_SECONDS,
// forever, through every outage of the server.
//
// Environment: BROKER (broker:4222), LINE (line-1), POLL_SECONDS (1), STATE_FILE (/data/sequence): where the number of the
// last reading is kept, so that counting goes on after a restart; its folder need not exist.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"math"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

type reading struct {
	Line        string    `json:"line"`
	Sequence    uint64    `json:"sequence"`
	Temperature float64   `json:"temperature"`
	Pressure    float64   `json:"pressure"`
	At          time.Time `json:"at"`
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	broker, line := env("BROKER", "broker:4222"), env("LINE", "line-1")
	seconds, err := strconv.ParseFloat(env("POLL_SECONDS", "1"), 64)
	if err != nil || seconds <= 0 {
		log.Fatalf("POLL_SECONDS: %q is no positive number", os.Getenv("POLL_SECONDS"))
	}
	every := time.Duration(seconds * float64(time.Second))
	file := env("STATE_FILE", "/data/sequence")
	var sequence uint64
	if data, err := os.ReadFile(file); err == nil {
		sequence, _ = strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
		log.Printf("going on after reading %d", sequence)
	}
	for ctx.Err() == nil {
		if err := publish(ctx, broker, line, file, every, &sequence); err != nil && ctx.Err() == nil {
			log.Printf("publish to %s: %v", broker, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(every, time.Second)):
		}
	}
}

func env(name, unset string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return unset
}

// publish holds one connection for as long as it lasts.
func publish(ctx context.Context, broker, line, file string, every time.Duration, sequence *uint64) error {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", broker)
	if err != nil {
		return err
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	if info, err := in.ReadString('\n'); err != nil || !strings.HasPrefix(info, "INFO ") {
		return fmt.Errorf("greeted with %q: %w", info, err)
	}
	if _, err := fmt.Fprint(conn, "CONNECT {\"verbose\":false,\"name\":\"sensor\"}\r\n"); err != nil {
		return err
	}
	log.Printf("connected to %s", broker)
	lost := make(chan error, 1)
	go func() { // ends when the connection is closed
		for {
			text, err := in.ReadString('\n')
			if err == nil && strings.HasPrefix(text, "PING") {
				_, err = fmt.Fprint(conn, "PONG\r\n")
			}
			if err != nil {
				lost <- err
				return
			}
		}
	}()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		*sequence++
		at := time.Now()
		swing := math.Sin(float64(at.UnixMilli()) / 10_000)
		data, err := json.Marshal(reading{line, *sequence, 60 + 5*swing, 4 + 0.3*swing, at.UTC()})
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(conn, "PUB readings.%s %d\r\n%s\r\n", line, len(data), data); err != nil {
			return err
		}
		_ = os.WriteFile(file, strconv.AppendUint(nil, *sequence, 10), 0o644) // without a volume there is no such folder
		select {
		case <-tick.C:
		case err := <-lost:
			return err
		case <-ctx.Done():
			return nil
		}
	}
}
