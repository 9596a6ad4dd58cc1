package wire

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const maxPeek = 8 << 10 // GHCR's delay is in the first line of the body of a 429

// RetryAfter returns the delay that a response requests: Retry-After as seconds, as an HTTP date (measured against the
// response's own Date, so that a wrong local clock does not matter) or as a Go duration, else GHCR's
// "retry-after: 1.16676ms" inside the body of a 429. The body stays readable.
func RetryAfter(resp *http.Response) (time.Duration, bool) {
	if v := strings.TrimSpace(resp.Header.Get("Retry-After")); v != "" {
		if d, ok := parseDelay(v, resp.Header.Get("Date")); ok {
			return d, true
		}
	}
	if resp.StatusCode != http.StatusTooManyRequests || resp.Body == nil {
		return 0, false
	}
	return delayIn(peek(resp, maxPeek))
}

func parseDelay(v, date string) (time.Duration, bool) {
	if strings.Trim(v, "0123456789") == "" {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil || n > int64(maxRetryAfter/time.Second) {
			return maxRetryAfter, true
		}
		return time.Duration(n) * time.Second, true
	}
	if at, err := http.ParseTime(v); err == nil {
		now, err := http.ParseTime(date)
		if err != nil {
			return 0, false
		}
		return clamp(at.Sub(now)), true
	}
	if d, err := time.ParseDuration(v); err == nil {
		return clamp(d), true
	}
	return 0, false
}

func clamp(d time.Duration) time.Duration { return min(max(d, 0), maxRetryAfter) }

// delayIn finds "retry-after: <Go duration>" in a body, in any case.
func delayIn(body []byte) (time.Duration, bool) {
	text := strings.ToLower(string(body))
	_, rest, ok := strings.Cut(text, "retry-after:")
	if !ok {
		return 0, false
	}
	rest = strings.TrimLeft(rest, " ")
	end := strings.IndexFunc(rest, func(r rune) bool { return !strings.ContainsRune("0123456789.nuµmsh", r) })
	if end >= 0 {
		rest = rest[:end]
	}
	rest = strings.TrimRight(rest, ".")
	d, err := time.ParseDuration(rest)
	if err != nil {
		return 0, false
	}
	return clamp(d), true
}

// peek reads up to n bytes of the body and puts them back.
func peek(resp *http.Response, n int64) []byte {
	head, _ := io.ReadAll(io.LimitReader(resp.Body, n)) // bytes that could not be read are read again when needed
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), resp.Body), resp.Body}
	return head
}
