package registry

import (
	"log/slog"
	"net/http"
	"time"
)

// traced tells the log about every request and what came of it, retries and tokens included. Of an address it tells
// scheme, host and path: queries may hold secrets, as headers do.
type traced struct {
	http.RoundTripper
	log  *slog.Logger
	date func(time.Time) // nil: not called
}

func (t traced) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(r)
	if err == nil && t.date != nil {
		if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
			t.date(at)
		}
	}
	if t.log.Enabled(r.Context(), slog.LevelDebug) {
		address := r.URL.Scheme + "://" + r.URL.Host + r.URL.Path
		if err != nil {
			t.log.DebugContext(r.Context(), "request", "method", r.Method, "address", address, "error", err)
		} else {
			t.log.DebugContext(r.Context(), "request", "method", r.Method, "address", address, "status", resp.StatusCode)
		}
	}
	return resp, err
}
