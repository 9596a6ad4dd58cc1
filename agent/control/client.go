package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"syscall"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxAnswer bounds an answer: the status of a device with a thousand containers is far below.
const maxAnswer = 64 << 20

const (
	maxEvent   = 64 << 10 // of one event: its message is far shorter
	maxProblem = 64 << 10 // of an answer that says no
)

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
func (c *Client) Status(ctx context.Context) (*status.Status, error) {
	var s status.Status
	if err := c.call(ctx, http.MethodGet, "/v1/status", &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// Sync has the agent check the registry now and waits for the outcome.
func (c *Client) Sync(ctx context.Context) (status.SyncResult, error) {
	var r status.SyncResult
	err := c.call(ctx, http.MethodPost, "/v1/sync", &r)
	return r, err
}

// VerifyImage asks whether another program may use an image, see [agent.Agent.VerifyImage].
func (c *Client) VerifyImage(ctx context.Context, repository string, d digest.Digest) (agent.ImageVerdict, error) {
	var v agent.ImageVerdict
	q := url.Values{"repository": {repository}, "digest": {d.String()}}
	err := c.call(ctx, http.MethodGet, "/v1/image?"+q.Encode(), &v)
	return v, err
}

// Logs opens containers' output. The caller closes it.
func (c *Client) Logs(ctx context.Context, r status.LogRequest) (io.ReadCloser, error) {
	res, err := c.do(ctx, http.MethodGet, "/v1/logs?"+logQuery(r))
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// Containers lists the containers that the device needs or has.
func (c *Client) Containers(ctx context.Context) ([]status.Container, error) {
	var out []status.Container
	err := c.call(ctx, http.MethodGet, "/v1/containers", &out)
	return out, err
}

// Stats measures running containers; no targets: all.
func (c *Client) Stats(ctx context.Context, targets []string) ([]status.Usage, error) {
	var out []status.Usage
	err := c.call(ctx, http.MethodGet, "/v1/stats?"+url.Values{"target": targets}.Encode(), &out)
	return out, err
}

// Volumes lists the named volumes on the disk, with their sizes.
func (c *Client) Volumes(ctx context.Context) ([]status.Volume, error) {
	var out []status.Volume
	err := c.call(ctx, http.MethodGet, "/v1/volumes", &out)
	return out, err
}

// RemoveVolume deletes a volume that nothing uses, named as [status.SelectVolume] takes it, and waits until its space is free.
func (c *Client) RemoveVolume(ctx context.Context, name string) (status.Volume, error) {
	var v status.Volume
	err := c.call(ctx, http.MethodDelete, "/v1/volumes?"+url.Values{"name": {name}}.Encode(), &v)
	return v, err
}

// Metrics opens what Prometheus reads. The caller closes it.
func (c *Client) Metrics(ctx context.Context) (io.ReadCloser, error) {
	res, err := c.do(ctx, http.MethodGet, "/v1/metrics")
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// Changes lists the changes that the device may make.
func (c *Client) Changes(ctx context.Context) ([]status.Change, error) {
	var out []status.Change
	err := c.call(ctx, http.MethodGet, "/v1/changes", &out)
	return out, err
}

// Decide records a decision about a change, see [agent.Agent.Decide]. The agent knows by itself who asks.
func (c *Client) Decide(ctx context.Context, d Decision) (status.Change, error) {
	var out status.Change
	err := c.send(ctx, http.MethodPost, "/v1/decisions", d, &out)
	return out, err
}

// RollBack goes back to an earlier generation, see [agent.Agent.RollBack].
func (c *Client) RollBack(ctx context.Context, r Rollback) (status.Hold, error) {
	var out status.Hold
	err := c.send(ctx, http.MethodPost, "/v1/rollback", r, &out)
	return out, err
}

// Release ends a hold.
func (c *Client) Release(ctx context.Context) (status.Hold, error) {
	var out status.Hold
	err := c.call(ctx, http.MethodDelete, "/v1/hold", &out)
	return out, err
}

// Events calls tell with what happened, oldest first, until there are no more or, following, until ctx ends, which is no
// error.
func (c *Client) Events(ctx context.Context, r status.EventRequest, tell func(status.Event) error) error {
	q := url.Values{}
	set(q, "follow", "true", r.Follow)
	set(q, "since", stamp(r.Since), !r.Since.IsZero())
	set(q, "kind", string(r.Kind), r.Kind != "")
	res, err := c.do(ctx, http.MethodGet, "/v1/events?"+q.Encode())
	if err != nil {
		return err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(make([]byte, 4096), maxEvent)
	for lines.Scan() {
		var e status.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return fmt.Errorf("ask the agent at %s: read an event: %w: %w", c.path, fault.ErrInvalid, err)
		}
		if err := tell(e); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil && ctx.Err() == nil {
		return fmt.Errorf("ask the agent at %s: %w: %w", c.path, fault.ErrTemporary, err)
	}
	return nil
}

func (c *Client) call(ctx context.Context, method, path string, v any) error {
	return c.send(ctx, method, path, nil, v)
}

// send asks with a body of JSON; nil: without one.
func (c *Client) send(ctx context.Context, method, path string, body, v any) error {
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("ask the agent at %s: %w", c.path, err)
		}
		content = bytes.NewReader(data)
	}
	res, err := c.request(ctx, method, path, content)
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
	return c.request(ctx, method, path, nil)
}

func (c *Client) request(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, body)
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
	return nil, c.refusal(res)
}

// refusal reads an answer that is not fine.
func (c *Client) refusal(res *http.Response) error {
	var p problem
	if err := json.NewDecoder(io.LimitReader(res.Body, maxProblem)).Decode(&p); err != nil || p.Error == "" {
		p.Error = fmt.Sprintf("ask the agent at %s: it answers %s", c.path, res.Status)
	}
	p.Status = res.StatusCode
	return p.asError()
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

// answerError is an error of the agent: its message already says everything.
type answerError struct {
	message string
	kind    error
}

func (e *answerError) Error() string { return e.message }
func (e *answerError) Unwrap() error { return e.kind }
