// Package control lets programs on the device talk to the running agent: HTTP with JSON over a unix socket that only its
// owner may open. Entry points are [Listen] and [Serve] for the agent, [NewClient] for `longshore-agent status`, `sync`
// and `logs`.
package control

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"

	"github.com/longshore-dev/longshore/agent"
)

// Device is what can be asked; [agent.Agent] is one.
type Device interface {
	Status() agent.Status
	Sync(ctx context.Context) (agent.SyncResult, error)
	Logs(ctx context.Context, r agent.LogRequest) (io.ReadCloser, error)
}

var _ Device = (*agent.Agent)(nil)

// Listen opens the socket, mode 0600. It takes the place of a socket that nobody listens on any more; the caller holds
// the agent's store, so there is no second agent.
func Listen(path string) (net.Listener, error) { return nil, nil }

// Serve answers until ctx ends, then closes l and waits for the calls in progress, which end with ctx.
func Serve(ctx context.Context, l net.Listener, d Device, log *slog.Logger) error { return nil }

// Client asks a running agent.
type Client struct{ http *http.Client }

// NewClient talks to the agent that listens at path. Nothing is opened before the first call. When no agent listens the
// calls end in fault.ErrNotFound with a hint.
func NewClient(path string) *Client { return nil }

// Status asks how the device is.
func (c *Client) Status(ctx context.Context) (*agent.Status, error) { return nil, nil }

// Sync has the agent check the registry now and waits for the outcome.
func (c *Client) Sync(ctx context.Context) (agent.SyncResult, error) { return agent.SyncResult{}, nil }

// Logs opens containers' output. The caller closes it.
func (c *Client) Logs(ctx context.Context, r agent.LogRequest) (io.ReadCloser, error) {
	return nil, nil
}
