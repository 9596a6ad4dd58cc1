// Package serving is what our programs that are servers share: where they listen, how connections are protected, how they end.
package serving

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Grace is how long requests under way may take when a server of many clients ends.
const Grace = 10 * time.Second

// Listen listens on a TCP address. The error says which program may have the port already.
func Listen(ctx context.Context, address, program string) (net.Listener, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", address)
	if err == nil {
		return l, nil
	}
	if op := (*net.OpError)(nil); errors.As(err, &op) {
		err = op.Err // without the address, which stands there already
	}
	hint := "choose another address with --listen"
	if errors.Is(err, syscall.EADDRINUSE) {
		err, hint = syscall.EADDRINUSE, "another program has this port, perhaps a "+program+" that runs already; or "+hint
	}
	return nil, fault.WithHint(fmt.Errorf("listen on %s: %w", address, err), hint)
}

// Loopback reports whether only this machine reaches an address, "host:port".
func Loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// Until serves until ctx ends, then lets requests under way finish within grace: with TLS if srv has a configuration for it.
func Until(ctx context.Context, srv *http.Server, l net.Listener, grace time.Duration, log *slog.Logger) error {
	failed := make(chan error, 1)
	go func() {
		if srv.TLSConfig != nil {
			failed <- srv.ServeTLS(l, "", "")
		} else {
			failed <- srv.Serve(l)
		}
	}()
	select {
	case err := <-failed:
		return fmt.Errorf("serve: %w", err)
	case <-ctx.Done():
	}
	log.Info("stopping")
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	err := srv.Shutdown(wait)
	if err != nil {
		err = errors.Join(fmt.Errorf("stop: %w", err), srv.Close())
	}
	<-failed
	return err
}
