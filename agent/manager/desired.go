package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

const pathManifest = "/api/v1/deployments"

// answer is desired state, or that it has not changed.
type answer struct {
	body      []byte
	etag      string // "": none was sent
	unchanged bool
}

// get reads at most limit bytes, after their Content-Encoding is undone. etag is sent as If-None-Match; "": nothing is. Without an
// answer that can be used the error wraps one of fault.ErrTemporary, ErrNotFound, ErrUnauthenticated, ErrDenied and ErrInvalid,
// with fault.NoRetry where the manager says that a retry does not help.
func (c *Client) get(ctx context.Context, path, media, etag string, limit int64) (answer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	h := http.Header{}
	h.Set("Accept", media+", "+margo.ProblemMediaType+";q=0.1")
	if etag != "" {
		h.Set("If-None-Match", etag)
	}
	res, err := c.send(ctx, http.MethodGet, path, h, nil)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	body := &patient{res.Body, c.o.Timeout, time.AfterFunc(c.o.Timeout, func() { cancel(errSilent) })}
	defer body.timer.Stop()
	switch {
	case res.StatusCode == http.StatusNotModified && etag != "":
		return answer{unchanged: true, etag: res.Header.Get("ETag")}, nil
	case res.StatusCode != http.StatusOK:
		text, _ := io.ReadAll(io.LimitReader(body, maxAnswer)) // whatever there is
		return answer{}, c.withheld(res, c.refused(res, text))
	}
	// What is asked for by its digest may be called anything.
	if kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); path == pathManifest && (err != nil || kind != media) {
		return answer{}, fault.WithHint(fmt.Errorf("it answers with %q in place of %s: %w", clip(res.Header.Get("Content-Type")), media, fault.ErrTemporary),
			"a proxy or a login page answers in place of the manager, or source.margo lacks a path")
	}
	data, err := bounded.Read(body, limit)
	switch {
	case errors.Is(err, fault.ErrTooLarge):
		return answer{etag: res.Header.Get("ETag")}, err
	case err != nil:
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return answer{}, fmt.Errorf("the answer was cut off: %w: %w", fault.ErrTemporary, err)
	}
	return answer{body: data, etag: res.Header.Get("ETag")}, nil
}

// withheld is why a manager does not give desired state. The type of a problem counts more than the status code.
func (c *Client) withheld(res *http.Response, r refusal) error {
	err := fmt.Errorf("%s: %s", r.status, r.detail)
	if r.code >= 300 && r.code < 400 {
		return fault.WithHint(fmt.Errorf("%s to %q, which is not followed: %w", r.status, clip(res.Header.Get("Location")), fault.ErrInvalid), "check source.margo in agent.yaml")
	}
	kind, hint, known := fault.ErrTemporary, "a proxy answers in place of the manager, or source.margo lacks a path", r.problem != nil
	switch name := r.typeName(); {
	case name == "not-authorized", r.code == http.StatusForbidden && name == "":
		kind, hint = fault.ErrDenied, "let the manager accept this device as a client"
	case r.code == http.StatusUnauthorized:
		kind, hint = fault.ErrUnauthenticated, "check the credentials below source in agent.yaml"
	case strings.HasSuffix(name, "-not-found"), name == "invalid-bundle", known && name == "" && r.code == http.StatusNotFound:
		kind, hint = fault.ErrNotFound, ""
	case r.code == http.StatusNotFound:
		kind = fault.ErrNotFound
	case name == "invalid-request", name == "semantic-error", name == "server-cannot-generate-response":
		kind, hint = fault.ErrInvalid, ""
	case r.code >= 500, r.code == http.StatusTooManyRequests, r.code == http.StatusRequestTimeout:
		hint = ""
	case known:
		kind, hint = fault.ErrInvalid, ""
	}
	err = fmt.Errorf("%w: %w", err, kind)
	if hint != "" {
		err = fault.WithHint(err, hint)
	}
	if known && !r.retryable(true) {
		err = fault.WithNoRetry(err)
	}
	return r.delayed(err)
}

// typeName is the part of a problem's type that Margo registers; "": another, or none.
func (r refusal) typeName() string {
	if r.problem == nil {
		return ""
	}
	name, _ := strings.CutPrefix(r.problem.Type, margo.ProblemBase)
	if name == r.problem.Type {
		return ""
	}
	return name
}

var errSilent = errors.New("no byte came for too long")

// patient is an answer that may take its time as long as bytes come.
type patient struct {
	r     io.Reader
	pause time.Duration
	timer *time.Timer
}

func (p *patient) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if n > 0 {
		p.timer.Reset(p.pause)
	}
	return n, err
}
