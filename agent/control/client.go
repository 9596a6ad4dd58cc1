package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"syscall"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxAnswer bounds an answer: the status of a device with a thousand containers is far below.
const maxAnswer = 64 << 20

// Client asks a running agent.
type Client struct {
	path string
	http *http.Client
}

// NewClient talks to the agent that listens at path. Nothing is opened before the first call. When no agent listens the
// calls end in fault.ErrNotFound with a hint. Only the callers' contexts bound a call.
func NewClient(path string) *Client {
	return &Client{path, &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
		DisableKeepAlives: true, // one call, one connection: nothing to close afterwards
	}}}
}

// Status asks how the device is.
func (c *Client) Status(ctx context.Context) (*agent.Status, error) {
	var s agent.Status
	if err := c.call(ctx, http.MethodGet, "/v1/status", &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// Sync has the agent check the registry now and waits for the outcome.
func (c *Client) Sync(ctx context.Context) (agent.SyncResult, error) {
	var r agent.SyncResult
	err := c.call(ctx, http.MethodPost, "/v1/sync", &r)
	return r, err
}

// Logs opens containers' output. The caller closes it.
func (c *Client) Logs(ctx context.Context, r agent.LogRequest) (io.ReadCloser, error) {
	q := url.Values{}
	if r.Deployment != "" {
		q.Set("deployment", r.Deployment)
	}
	if r.Service != "" {
		q.Set("service", r.Service)
	}
	if r.Tail > 0 {
		q.Set("tail", strconv.Itoa(r.Tail))
	}
	if r.Follow {
		q.Set("follow", "true")
	}
	res, err := c.do(ctx, http.MethodGet, "/v1/logs?"+q.Encode())
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

func (c *Client) call(ctx context.Context, method, path string, v any) error {
	res, err := c.do(ctx, method, path)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(io.LimitReader(res.Body, maxAnswer)).Decode(v); err != nil {
		return fmt.Errorf("ask the agent at %s: read its answer: %w: %w", c.path, fault.ErrInvalid, err)
	}
	return nil
}

// do returns an answer that is fine; the caller closes its body.
func (c *Client) do(ctx context.Context, method, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the agent at %s: %w", c.path, err)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(err)
	}
	if res.StatusCode == http.StatusOK {
		return res, nil
	}
	defer res.Body.Close()
	var p problem
	if err := json.NewDecoder(io.LimitReader(res.Body, 64<<10)).Decode(&p); err != nil || p.Error == "" {
		p.Error = res.Status
	}
	kind := fault.ErrTemporary
	switch res.StatusCode {
	case http.StatusNotFound:
		kind = fault.ErrNotFound
	case http.StatusBadRequest:
		kind = fault.ErrInvalid
	}
	return nil, fault.WithHint(&answerError{p.Error, kind}, p.Hint)
}

func (c *Client) unreachable(err error) error {
	switch {
	case errors.Is(err, os.ErrPermission):
		return fault.WithHint(fmt.Errorf("ask the agent at %s: %w: %w", c.path, fault.ErrDenied, syscall.EACCES), "run it as root: sudo longshore-agent …")
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fault.WithHint(fmt.Errorf("ask the agent at %s: it does not run: %w", c.path, fault.ErrNotFound), "start it: systemctl start longshore-agent")
	}
	return fmt.Errorf("ask the agent at %s: %w: %w", c.path, fault.ErrTemporary, err)
}

// answerError is an error that the agent told: its words already say everything.
type answerError struct {
	message string
	kind    error
}

func (e *answerError) Error() string { return e.message }
func (e *answerError) Unwrap() error { return e.kind }
