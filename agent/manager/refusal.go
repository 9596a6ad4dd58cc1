package manager

import (
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// refusal is an answer that is an error.
type refusal struct {
	code    int
	status  string         // "503 Service Unavailable"
	detail  string         // short, on one line
	problem *margo.Problem // nil: what answered is perhaps no manager
	after   time.Duration  // that the manager asks to wait; 0: it does not
}

// refused reads an answer that is an error. Its body is foreign text.
func (c *Client) refused(res *http.Response, body []byte) refusal {
	r := refusal{code: res.StatusCode, status: res.Status, detail: clip(strings.TrimSpace(string(body[:min(len(body), maxDetail)])))}
	if kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err == nil && kind == margo.ProblemMediaType {
		if p, err := margo.ParseProblem("problem", body); err == nil {
			r.problem = p
			detail := p.Title
			if p.Detail != "" {
				detail += ": " + p.Detail
			}
			for _, f := range p.Errors {
				detail += "; " + f.Field + ": " + f.Message
			}
			r.detail = clip(detail[:min(len(detail), maxDetail)])
			r.after = time.Duration(p.RetryAfterSeconds) * time.Second
		}
	}
	if d, ok := c.retryAfter(res.Header.Get("Retry-After")); ok {
		r.after = d
	}
	return r
}

// retryable is what the manager says of a retry; otherwise, where it says nothing.
func (r refusal) retryable(otherwise bool) bool {
	switch {
	case r.problem == nil:
		return otherwise
	case r.problem.Retryable != nil:
		return *r.problem.Retryable
	}
	return otherwise && r.problem.BackoffStrategy != "none"
}

// delayed attaches the pause that the manager asks for, as far as it gets it.
func (r refusal) delayed(err error) error {
	if r.after <= 0 {
		return err
	}
	err = fault.WithRetryAfter(err, min(r.after, maxDelay))
	if r.problem != nil && r.problem.BackoffStrategy == "fixed" { // whoever retries lets the pause grow by itself
		err = fault.WithSteady(err)
	}
	return err
}
