package manager

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// Headers of our own: on every report, so that a fleet endpoint can drop what it has already, and on every request, so that it knows
// the device where a token is for several.
const (
	HeaderDevice   = "Longshore-Device"   // id of this device
	HeaderSequence = "Longshore-Sequence" // number of the report within the epoch, decimal
	HeaderEpoch    = "Longshore-Epoch"    // UUID of the agent's database
	HeaderInterval = "Longshore-Interval" // seconds until the next report at the latest, decimal: Margo's status has no member for it
)

// Deliver implements [outbox.Reporter]: it sends one report. fault.ErrTemporary means that it should be sent again, after
// fault.RetryAfter if told: all but the answers that say that the report itself is at fault.
func (c *Client) Deliver(ctx context.Context, r store.Report) (created bool, err error) {
	method, path := http.MethodPost, "/api/v1/deployments/"+url.PathEscape(r.Subject)+"/status"
	if r.Kind == store.KindCapabilities {
		method, path = http.MethodPut, "/api/v1/capabilities/"+escapeDevice(r.Subject)
	}
	h := http.Header{}
	h.Set("Content-Type", "application/json")
	h.Set("Accept", "application/json, "+margo.ProblemMediaType)
	h.Set(HeaderSequence, strconv.FormatUint(r.Sequence, 10))
	h.Set(HeaderEpoch, c.o.Epoch)
	if c.o.Interval > 0 {
		h.Set(HeaderInterval, strconv.FormatInt(int64(c.o.Interval/time.Second), 10))
	}
	ctx, cancel := context.WithTimeout(ctx, c.o.Timeout)
	defer cancel()
	res, err := c.send(ctx, method, path, h, r.Body)
	if err != nil {
		return false, fmt.Errorf("report to %s: %w", c.base, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		return res.StatusCode == http.StatusCreated, nil // taken, whatever became of the answer's body
	}
	if err != nil {
		return false, fmt.Errorf("report to %s: %s: %w: %w", c.base, res.Status, fault.ErrTemporary, err)
	}
	return false, c.judge(c.refused(res, body))
}

// judge decides what is worth sending again. Only the API itself can say that a report is at fault, by a problem of a type that
// it knows: proxies, captive portals and wrong addresses answer 400 and 422 as well, and what they say passes. Who is not let
// in, or asks at the wrong place, has a setting to correct: the report waits for that.
func (c *Client) judge(r refusal) error {
	err := fmt.Errorf("report to %s: %s: %s", c.base, r.status, r.detail)
	if r.problem != nil && final(r.code) && registered(r.problem.Type) && !r.retryable(false) {
		return fmt.Errorf("%w: %w", err, fault.ErrInvalid)
	}
	err = fmt.Errorf("%w: %w", err, fault.ErrTemporary)
	switch {
	case r.code == http.StatusUnauthorized, r.code == http.StatusForbidden:
		hint := "check tokenFile in agent.yaml; a new token: longshore-fleet token create --device " + c.o.Device
		if c.o.TLS != nil {
			hint = "the manager knows the certificate and does not accept it for this device: see the clients file of longshore-fleet serve"
		}
		err = fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrUnauthenticated), hint)
	case r.code == http.StatusNotFound:
		hint := "check fleet.url in agent.yaml"
		if i := strings.LastIndexByte(c.o.Device, '/'); i > 0 {
			hint += "; the gateway " + c.o.Device[:i] + " must report its own capabilities first"
		}
		err = fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrNotFound), hint)
	case final(r.code):
		err = fmt.Errorf("%w: %w", err, fault.ErrInvalid)
	}
	return r.delayed(err)
}

// final reports whether a status code speaks about the report itself.
func final(status int) bool {
	return slices.Contains([]int{
		http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity, http.StatusConflict,
	}, status)
}

// registered reports whether the API may answer a report with a type of problem.
func registered(kind string) bool {
	return slices.Contains([]string{"about:blank", margo.ProblemBase + "invalid-request", margo.ProblemBase + "semantic-error"}, kind)
}

// escapeDevice keeps the slashes of a child device's id, which the path has too.
func escapeDevice(id string) string {
	parts := strings.Split(id, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, "/")
}
