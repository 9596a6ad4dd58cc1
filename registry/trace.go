package registry

import (
	"log/slog"
	"net/http"
	"time"
)

// traced logs every request and its result, including retries and requests for tokens. Of an address it logs
// scheme, host and path, because queries and headers may contain secrets.
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
