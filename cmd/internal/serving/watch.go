package serving

import (
	"log/slog"
	"net/http"
	"time"
)

// writeTimeout is how long a client may take nothing of an answer, of any size.
const writeTimeout = time.Minute

// Watched logs requests as debug messages, and cuts clients that take nothing of an answer for a minute. It is for answers of any
// size, where [http.Server.WriteTimeout] would cut slow clients.
func Watched(next http.Handler, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := &answer{ResponseWriter: w, control: http.NewResponseController(w), status: http.StatusOK}
		start := time.Now()
		next.ServeHTTP(a, r)
		log.Debug("request", "method", r.Method, "path", r.URL.Path, "range", r.Header.Get("Range"), "status", a.status,
			"bytes", a.bytes, "time", time.Since(start).Round(time.Millisecond), "from", r.RemoteAddr)
	})
}

// answer counts what is sent.
type answer struct {
	http.ResponseWriter
	control *http.ResponseController
	status  int
	bytes   int64
}

// WriteHeader implements [http.ResponseWriter].
func (a *answer) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (a *answer) Write(b []byte) (int, error) {
	_ = a.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // a writer without deadlines has its own limits
	n, err := a.ResponseWriter.Write(b)
	a.bytes += int64(n)
	return n, err
}
