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

func (c *Client) Status(ctx context.Context) (*status.Status, error) {
	return ask[*status.Status](ctx, c, http.MethodGet, "/v1/status", nil)
}

// Sync has the agent check the registry now and waits for the outcome.
func (c *Client) Sync(ctx context.Context) (status.SyncResult, error) {
	return ask[status.SyncResult](ctx, c, http.MethodPost, "/v1/sync", nil)
}

// VerifyImage asks whether another program may use an image, see [agent.Agent.VerifyImage].
func (c *Client) VerifyImage(ctx context.Context, repository string, d digest.Digest) (agent.ImageVerdict, error) {
	q := url.Values{"repository": {repository}, "digest": {d.String()}}
	return ask[agent.ImageVerdict](ctx, c, http.MethodGet, "/v1/image?"+q.Encode(), nil)
}

// Logs opens containers' output. The caller closes it.
func (c *Client) Logs(ctx context.Context, r status.LogRequest) (io.ReadCloser, error) {
	return c.open(ctx, http.MethodGet, "/v1/logs?"+logQuery(r), nil)
}

// Containers lists the containers that the device needs or has.
func (c *Client) Containers(ctx context.Context) ([]status.Container, error) {
	return ask[[]status.Container](ctx, c, http.MethodGet, "/v1/containers", nil)
}

// Stats measures running containers; no targets: all.
func (c *Client) Stats(ctx context.Context, targets []string) ([]status.Usage, error) {
	return ask[[]status.Usage](ctx, c, http.MethodGet, "/v1/stats?"+url.Values{"target": targets}.Encode(), nil)
}

// Restart stops and starts containers, and waits until they have started.
func (c *Client) Restart(ctx context.Context, targets []string) ([]status.Container, error) {
	return ask[[]status.Container](ctx, c, http.MethodPost, "/v1/restart?"+url.Values{"target": targets}.Encode(), nil)
}

// Volumes lists the named volumes on the disk, with their sizes.
func (c *Client) Volumes(ctx context.Context) ([]status.Volume, error) {
	return ask[[]status.Volume](ctx, c, http.MethodGet, "/v1/volumes", nil)
}

// RemoveVolume deletes a volume that nothing uses, named as [status.SelectVolume] takes it, and waits until its space is free.
func (c *Client) RemoveVolume(ctx context.Context, name string) (status.Volume, error) {
	return ask[status.Volume](ctx, c, http.MethodDelete, "/v1/volumes?"+url.Values{"name": {name}}.Encode(), nil)
}

// Metrics opens what Prometheus reads. The caller closes it.
func (c *Client) Metrics(ctx context.Context) (io.ReadCloser, error) {
	return c.open(ctx, http.MethodGet, "/v1/metrics", nil)
}

// Changes lists the changes that the device may make.
func (c *Client) Changes(ctx context.Context) ([]status.Change, error) {
	return ask[[]status.Change](ctx, c, http.MethodGet, "/v1/changes", nil)
}

// Decide records a decision about a change, see [agent.Agent.Decide]. The agent knows by itself who asks.
func (c *Client) Decide(ctx context.Context, d Decision) (status.Change, error) {
	return ask[status.Change](ctx, c, http.MethodPost, "/v1/decisions", d)
}

// RollBack goes back to an earlier generation, see [agent.Agent.RollBack].
func (c *Client) RollBack(ctx context.Context, r Rollback) (status.Hold, error) {
	return ask[status.Hold](ctx, c, http.MethodPost, "/v1/rollback", r)
}

func (c *Client) Release(ctx context.Context) (status.Hold, error) {
	return ask[status.Hold](ctx, c, http.MethodDelete, "/v1/hold", nil)
}

// Events calls tell with what happened, oldest first, until there are no more or, following, until ctx ends, which is no
// error.
func (c *Client) Events(ctx context.Context, r status.EventRequest, tell func(status.Event) error) error {
	q := url.Values{}
	set(q, "follow", "true", r.Follow)
	set(q, "since", stamp(r.Since), !r.Since.IsZero())
	set(q, "kind", string(r.Kind), r.Kind != "")
	events, err := c.open(ctx, http.MethodGet, "/v1/events?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	defer events.Close()
	lines := bufio.NewScanner(events)
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

// ask returns an answer of JSON.
func ask[T any](ctx context.Context, c *Client, method, path string, body any) (T, error) {
	var out, none T
	answer, err := c.open(ctx, method, path, body)
	if err != nil {
		return none, err
	}
	defer answer.Close()
	if err := json.NewDecoder(io.LimitReader(answer, maxAnswer)).Decode(&out); err != nil {
		return none, fmt.Errorf("ask the agent at %s: read its answer: %w: %w", c.path, fault.ErrInvalid, err)
	}
	return out, nil
}

// open asks with a body of JSON, nil: without one, and returns the body of an answer that is fine. The caller closes it.
func (c *Client) open(ctx context.Context, method, path string, body any) (io.ReadCloser, error) {
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("ask the agent at %s: %w", c.path, err)
		}
		content = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, content)
	if err != nil {
		return nil, fmt.Errorf("ask the agent at %s: %w", c.path, err)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(err)
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, nil
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
