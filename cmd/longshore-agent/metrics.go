package main

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/longshore-dev/longshore/agent/metrics"
)

const (
	listenRetry  = 10 * time.Second // before an address that is taken is tried again
	metricsLimit = 15 * time.Second // of one answer, and of a request
	maxScrapers  = 8                // answers at a time: each asks containerd
)

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
		if ctx.Err() == nil {
			wait(ctx, listenRetry)
		}
	}
}

// answer serves until ctx ends or the listener breaks.
func answer(ctx context.Context, l net.Listener, d metrics.Device, log *slog.Logger) error {
	slots := make(chan struct{}, maxScrapers)
	h := metrics.Handler(d, log)
	return serveUntil(ctx, l, &http.Server{
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
	})
}

// serveUntil serves until ctx ends or the listener breaks, with TLS if srv has a configuration for it.
func serveUntil(ctx context.Context, l net.Listener, srv *http.Server) error {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if srv.Shutdown(end) != nil {
			_ = srv.Close() // what is left does not end by itself
		}
	})
	serve := srv.Serve
	if srv.TLSConfig != nil {
		serve = func(l net.Listener) error { return srv.ServeTLS(l, "", "") }
	}
	err := serve(l)
	if stop() {
		return err
	}
	<-done
	return nil
}
