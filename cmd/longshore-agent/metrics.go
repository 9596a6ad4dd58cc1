package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/longshore-dev/longshore/agent/metrics"
	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/cmd/internal/serving"
)

const (
	listenRetry  = 10 * time.Second // before an address that is taken is tried again
	metricsLimit = 15 * time.Second // of one answer, and of a request
	maxScrapers  = 8                // answers at a time: each asks containerd
	stopLimit    = time.Second      // for answers under way when the agent ends
)

// quiet logs nothing: that the agent ends is one message.
var quiet = slog.New(slog.DiscardHandler)

// serveMetrics answers Prometheus until ctx ends.
func serveMetrics(ctx context.Context, address string, d metrics.Device, log *slog.Logger) {
	keepListening(ctx, "metrics", address, log, func(l net.Listener) error {
		log.Info("metrics are served", "url", "http://"+l.Addr().String()+"/metrics")
		return answer(ctx, l, d, log)
	})
}

// keepListening serves what is at an address until ctx ends; "": nothing. An address that cannot be had keeps no workload from running: it is
// tried again and again.
func keepListening(ctx context.Context, what, address string, log *slog.Logger, serve func(net.Listener) error) {
	if address == "" {
		return
	}
	told := false
	for ctx.Err() == nil {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err == nil {
			err, told = serve(l), false
		}
		if err != nil && ctx.Err() == nil && !told {
			told = true
			log.Error("an address is not served; it is tried again", "what", what, "address", address, "err", err)
		}
		_ = delay.For(ctx, listenRetry)
	}
}

// answer serves until ctx ends or the listener breaks.
func answer(ctx context.Context, l net.Listener, d metrics.Device, log *slog.Logger) error {
	slots := make(chan struct{}, maxScrapers)
	h := metrics.Handler(d, log)
	srv := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
				h.ServeHTTP(w, r)
			default:
				http.Error(w, "too many ask at once", http.StatusServiceUnavailable)
			}
		}),
		ReadHeaderTimeout: metricsLimit, ReadTimeout: metricsLimit, WriteTimeout: metricsLimit, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	return serving.Until(ctx, srv, l, stopLimit, quiet)
}
