package status_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
)

// handler is the API on a database of its own, and the token of a device.
func handler(tb testing.TB, devices ...string) (http.Handler, []string) {
	tb.Helper()
	st, err := store.Open(context.WithoutCancel(tb.Context()), filepath.Join(tb.TempDir(), "fleet.db"), slog.New(slog.DiscardHandler))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = st.Close() })
	var tokens []string
	for _, d := range devices {
		text, tok, err := status.Mint(artifacts.DeviceID(d), time.Unix(1, 0))
		if err != nil {
			tb.Fatal(err)
		}
		if err := st.AddToken(tb.Context(), tok); err != nil {
			tb.Fatal(err)
		}
		tokens = append(tokens, text)
	}
	return status.API(status.Options{
		Store: st, Now: func() time.Time { return time.Unix(2, 0) }, Logger: slog.New(slog.DiscardHandler), Rate: 1e9, Burst: 1 << 30,
	}), tokens
}

// BenchmarkIntake is a status report from the request to the answer, 64 at a time, without the network.
func BenchmarkIntake(b *testing.B) {
	const devices = 200
	var names []string
	for i := range devices {
		names = append(names, fmt.Sprintf("dev-%03d", i))
	}
	h, tokens := handler(b, names...)
	body := report("", margo.StateInstalled, component("web", margo.StateInstalled), component("db", margo.StateInstalled))
	var n atomic.Uint64
	b.SetParallelism(32)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			i := n.Add(1)
			req := httptest.NewRequestWithContext(b.Context(), "POST", "/api/v1/deployments/"+dep+"/status", strings.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Authorization", "Bearer "+tokens[i%devices])
			req.Header.Set(status.HeaderEpoch, epoch)
			req.Header.Set(status.HeaderSequence, fmt.Sprint(i))
			rec := httptest.NewRecorder()
			if h.ServeHTTP(rec, req); rec.Code != 200 && rec.Code != 201 {
				b.Errorf("%d %s", rec.Code, rec.Body)
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reports/s")
}

// FuzzReports holds both bodies to one of the answers of the specification, whatever comes.
func FuzzReports(f *testing.F) {
	f.Add([]byte(caps(press)))
	f.Add([]byte(report(press, margo.StateInstalled, component("a", margo.StateInstalled))))
	f.Add([]byte(`{"properties":{"id":"press-07"},"x-longshore-extensions":7}`))
	f.Add([]byte(`{`))
	h, tokens := handler(f, press)
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, q := range []request{put(press, ""), post("")} {
			req := httptest.NewRequestWithContext(t.Context(), q.method, q.path, bytes.NewReader(body))
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("Authorization", "Bearer "+tokens[0])
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, req)
			switch rec.Code {
			case 200, 201, 400, 403, 422:
			default:
				t.Errorf("%s %s %q = %d %s", q.method, q.path, body, rec.Code, rec.Body)
			}
		}
	})
}
