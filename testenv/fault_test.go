package testenv

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// faulty serves 1000 bytes behind faults.
func faulty(t *testing.T, rules ...Rule) (*Faults, *http.Client, string) {
	t.Helper()
	f := &Faults{}
	server := httptest.NewUnstartedServer(f.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Length", "1000")
		w.Header().Set("Docker-Content-Digest", "sha256:right")
		_, _ = w.Write(bytes.Repeat([]byte("x"), 1000))
	})))
	server.Start()
	t.Cleanup(server.Close)
	for _, r := range rules {
		f.Add(r)
	}
	return f, server.Client(), server.URL
}

func TestEffects(t *testing.T) {
	right := bytes.Repeat([]byte("x"), 1000)
	flipped := bytes.Clone(right)
	flipped[500] ^= 1
	tests := []struct {
		name   string
		effect Effect
		body   []byte
		status int // 0: no answer at all
		broken bool
		header [2]string
	}{
		{"cut", Cut(300), right[:300], 200, true, [2]string{"Content-Length", "1000"}},
		{"reset", Reset(), nil, 0, true, [2]string{}},
		{"lost answer", LoseAnswer(), nil, 0, true, [2]string{}},
		{"too many requests", Status(429, 7*time.Second), nil, 429, false, [2]string{"Retry-After", "7"}},
		{"unavailable", Status(503, 0), nil, 503, false, [2]string{"Retry-After", ""}},
		{"wrong digest", WrongDigest(), right, 200, false, [2]string{"Docker-Content-Digest", "sha256:" + strings.Repeat("0", 64)}},
		{"truncated", Truncate(10), right[:10], 200, false, [2]string{"Content-Length", "10"}},
		{"corrupt", Corrupt(), flipped, 200, false, [2]string{"Docker-Content-Digest", "sha256:right"}},
		{"swapped", Swap([]byte("other")), []byte("other"), 200, false, [2]string{"Docker-Content-Digest", "sha256:right"}},
		{"swapped as another", SwapAs([]byte("other"), "text/x", "sha256:other"), []byte("other"), 200, false, [2]string{"Docker-Content-Digest", "sha256:other"}},
		{"header changed", Header("Docker-Content-Digest", ""), right, 200, false, [2]string{"Docker-Content-Digest", ""}},
		{"delayed", Delay(time.Millisecond), right, 200, false, [2]string{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f, c, url := faulty(t, Rule{Method: "GET", Effect: tt.effect})
			resp, body, err := get(t, c, url+"/v2/")
			if (err != nil) != tt.broken {
				t.Fatalf("error = %v, want one: %v", err, tt.broken)
			}
			if got := 0; tt.status == 0 && resp != nil {
				t.Errorf("answer = %v, want %v", resp, got)
			}
			if tt.status == 0 {
				if f.Hits() == 0 { // a client may try an idempotent request again
					t.Error("Hits() = 0")
				}
				return
			}
			if resp.StatusCode != tt.status || tt.body != nil && !bytes.Equal(body, tt.body) {
				t.Errorf("answer = %d, %q, want %d, %q", resp.StatusCode, body, tt.status, tt.body)
			}
			if key, want := tt.header[0], tt.header[1]; key != "" && resp.Header.Get(key) != want {
				t.Errorf("header %s = %q, want %q", key, resp.Header.Get(key), want)
			}
			if got := f.Requests("GET", "^/v2/$"); len(got) != 1 || !got[0].Broken || got[0].Status != tt.status {
				t.Errorf("Requests = %+v, want one with status %d", got, tt.status)
			}
		})
	}
}

// A client that has read all of an answer finds its request counted, and a request that is still being handled holds up who waits for it.
func TestRequestIsCountedWithItsLastByte(t *testing.T) {
	f, read := &Faults{}, make(chan struct{})
	server := httptest.NewServer(f.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100000") // more than a server holds back
		_, _ = w.Write(make([]byte, 100_000))
		<-read
	})))
	t.Cleanup(server.Close)
	_, body, err := get(t, server.Client(), server.URL)
	if got := f.Requests("", ""); err != nil || len(body) != 100_000 || len(got) != 1 || got[0].Sent != 100_000 || got[0].Status != http.StatusOK {
		t.Errorf("%d bytes, %v; Requests = %+v, want the one", len(body), err, got)
	}
	close(read)
	f.Settle()
	f.Settle() // nothing to wait for
	if got := f.Requests("", ""); len(got) != 1 {
		t.Errorf("Requests = %+v, want each once", got)
	}
}

func TestStallEndsWithTheClientOrTheFaults(t *testing.T) {
	f, c, url := faulty(t)
	f.Add(Rule{Effect: f.Stall(10)})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body := make([]byte, 11)
	if n, err := io.ReadFull(resp.Body, body[:10]); err != nil {
		t.Fatalf("body = %q, %v, want 10 bytes", body[:n], err)
	}
	cancel()
	if n, err := resp.Body.Read(body); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("after 10 bytes: %q, %v, want the client's own end", body[:n], err)
	}
	done := make(chan error, 1)
	go func() {
		_, _, err := get(t, c, url)
		done <- err
	}()
	Eventually(t, time.Minute, "a second stalled request", func() error {
		if f.Hits() < 2 {
			return errors.New("not yet")
		}
		return nil
	})
	f.Clear()
	if err := <-done; err == nil {
		t.Error("a stalled request succeeded")
	}
	if _, _, err := get(t, c, url); err != nil {
		t.Errorf("after Clear: %v", err)
	}
}

func TestRulesChooseAndCount(t *testing.T) {
	f, c, url := faulty(t, Rule{Path: "/blobs/", Skip: 1, Times: 2, Effect: Status(503, 0)})
	var got []int
	for _, path := range []string{"/blobs/a", "/manifests/a", "/blobs/b", "/blobs/c", "/blobs/d"} {
		resp, _, err := get(t, c, url+path)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, resp.StatusCode)
	}
	want := []int{200, 200, 503, 503, 200}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("statuses = %v, want %v", got, want)
		}
	}
	if sent, _ := f.Bytes("GET", "/manifests/"); sent != 1000 {
		t.Errorf("sent = %d, want 1000", sent)
	}
	resp, err := c.Post(url+"/blobs/uploads/", "text/plain", strings.NewReader("12345"))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if _, received := f.Bytes("POST", ""); received != 5 {
		t.Errorf("received = %d, want 5", received)
	}
	f.Forget()
	if n := len(f.Requests("", "")); n != 0 {
		t.Errorf("%d requests after Forget", n)
	}
}
