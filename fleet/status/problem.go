package status

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"

	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Types of problems that Margo registers and that are used here.
const (
	typeInvalidRequest  = margo.ProblemBase + "invalid-request"
	typeSemanticError   = margo.ProblemBase + "semantic-error"
	typeNotAuthorized   = margo.ProblemBase + "not-authorized"
	typeGatewayNotFound = margo.ProblemBase + "gateway-not-found"
	typeDeviceNotFound  = margo.ProblemBase + "device-not-found"
	typeBlank           = "about:blank"

	typeDeploymentNotFound = margo.ProblemBase + "deployment-not-found"
	typeInvalidBundle      = margo.ProblemBase + "invalid-bundle"
	typeCannotGenerate     = margo.ProblemBase + "server-cannot-generate-response"
)

// problem is an error answer, with the cause, which is logged and not sent.
type problem struct {
	margo.Problem
	cause error
}

func newProblem(kind, title string, status int, detail string) *problem {
	return &problem{Problem: margo.Problem{Type: kind, Title: title, Status: status, Detail: detail, Retryable: new(false)}}
}

func invalid(detail string) *problem {
	return newProblem(typeInvalidRequest, "Invalid request", http.StatusBadRequest, detail)
}

func notAuthorized(detail string) *problem {
	return newProblem(typeNotAuthorized, "Not authorized", http.StatusForbidden, detail)
}

func semantic(detail string, fields ...margo.ProblemField) *problem {
	p := newProblem(typeSemanticError, "Semantic error", http.StatusUnprocessableEntity, detail)
	p.Errors = fields
	return p
}

func gatewayNotFound(detail string) *problem {
	return newProblem(typeGatewayNotFound, "Gateway not found", http.StatusNotFound, detail)
}

func deviceNotFound(detail string) *problem {
	return newProblem(typeDeviceNotFound, "Device not found", http.StatusNotFound, detail)
}

func blank(status int, detail string) *problem {
	return newProblem(typeBlank, http.StatusText(status), status, detail)
}

// busy is a 503: nothing is wrong with the report.
func busy(detail string) *problem { return again(http.StatusServiceUnavailable, detail, busySeconds) }

// slower is a 429.
func slower() *problem {
	return again(http.StatusTooManyRequests, "this client sends more requests than it may", 1)
}

// crowded is a 429 for a device that has too many requests in progress.
func crowded(device string) *problem {
	return again(http.StatusTooManyRequests, fmt.Sprintf("%s has %d requests in progress, as many as one device may have", device, perDevice), 1)
}

func again(status int, detail string, seconds int) *problem {
	p := blank(status, detail)
	p.Retryable, p.RetryAfterSeconds, p.BackoffStrategy = new(true), seconds, "exponential"
	return p
}

// malformed is the answer to an invalid body: 400 if it is not a JSON object, 422 with all faults if its content is wrong.
func malformed(file string, body []byte, err error) *problem {
	root, bad := strict.JSON(file, body)
	if bad == nil && root.Kind() != strict.Object {
		bad = err
	}
	var faults *strict.Error
	if bad != nil || !errors.As(err, &faults) {
		p := invalid("the body is no JSON object that can be read")
		if errors.As(bad, &faults) {
			p.Errors = fields(faults)
		}
		return p
	}
	return semantic("the body is not what the specification asks for", fields(faults)...)
}

func fields(e *strict.Error) []margo.ProblemField {
	out := make([]margo.ProblemField, len(e.Faults))
	for i, f := range e.Faults {
		field := f.Path
		switch {
		case f.Missing != "" && field != "":
			field += "." + f.Missing
		case f.Missing != "":
			field = f.Missing
		case field == "": // the document as a whole
			field = "body"
		}
		out[i] = margo.ProblemField{Field: field, Message: f.Message}
	}
	return out
}

// because adds the cause.
func (p *problem) because(err error) *problem {
	p.cause = err
	return p
}

// answer logs the cause, if there is one, and writes the problem.
func (p *problem) answer(w http.ResponseWriter, r *http.Request, log *slog.Logger) {
	if p.cause != nil {
		log.Error("request", "method", r.Method, "path", r.URL.Path, "error", p.cause)
	}
	p.write(w, r)
}

func (p *problem) write(w http.ResponseWriter, r *http.Request) {
	p.Instance = r.URL.EscapedPath()
	b, err := p.Encode()
	if err != nil { // only with a title or status that this package does not write
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", margo.ProblemMediaType)
	h.Set("X-Content-Type-Options", "nosniff")
	if p.RetryAfterSeconds > 0 {
		h.Set("Retry-After", strconv.Itoa(p.RetryAfterSeconds))
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(b)
}

// Refuse answers with a problem detail about:blank, for handlers beside those of this package.
func Refuse(w http.ResponseWriter, r *http.Request, code int, detail string) {
	RefuseFor(w, r, code, detail, 0)
}

// RefuseFor is [Refuse], with the seconds after which the client may try again; 0: it says nothing about that.
func RefuseFor(w http.ResponseWriter, r *http.Request, code int, detail string, seconds int) {
	p := blank(code, detail)
	if seconds > 0 {
		p = again(code, detail, seconds)
	}
	p.write(w, r)
}
