package margo

import "github.com/longshore-dev/longshore/artifacts/strict"

// ProblemBase is the base of the problem types that Margo registers.
const ProblemBase = "https://docs.margo.org/specification/problem-types#"

// ProblemMediaType is the Content-Type of a [Problem] (RFC 9457).
const ProblemMediaType = "application/problem+json"

// Problem is an error answer of the management API (RFC 9457 with Margo's members).
type Problem struct {
	Type              string         `json:"type"`
	Title             string         `json:"title"`
	Status            int            `json:"status"`
	Detail            string         `json:"detail,omitempty"`
	Instance          string         `json:"instance,omitempty"`
	Retryable         *bool          `json:"retryable,omitempty"`
	RetryAfterSeconds int            `json:"retryAfterSeconds,omitempty"`
	BackoffStrategy   string         `json:"backoffStrategy,omitempty"` // none, fixed, exponential
	Errors            []ProblemField `json:"errors,omitempty"`
}

// ProblemField is one fault of a request's body.
type ProblemField struct {
	Field   string `json:"field"`
	Message string `json:"message"`
}

// ParseProblem reads an error answer of the management API (JSON). Members that it does not know are ignored.
func ParseProblem(file string, data []byte) (*Problem, error) {
	return parse(strict.JSON, problemOf, file, data)
}

// ParseProblemYAML reads an error answer in its YAML form.
func ParseProblemYAML(file string, data []byte) (*Problem, error) {
	return parse(strict.YAML, problemOf, file, data)
}

func problemOf(root *strict.Node) (*Problem, error) {
	p := &Problem{
		Type:            root.Need("type").Filled(),
		Title:           root.Need("title").Text(),
		Detail:          root.Get("detail").Text(),
		Instance:        root.Get("instance").Text(),
		BackoffStrategy: root.Get("backoffStrategy").OneOf("none", "fixed", "exponential"),
	}
	status := root.Need("status")
	if p.Status = int(status.Int64()); status.Kind() == strict.Number && (p.Status < 100 || p.Status > 599) {
		status.Faultf("must be an HTTP status code")
	}
	after := root.Get("retryAfterSeconds")
	if s := after.Int64(); s < 0 || s > 1<<31-1 {
		after.Faultf("must be from 0 to 2147483647")
	} else {
		p.RetryAfterSeconds = int(s)
	}
	if r := root.Get("retryable"); r != nil {
		p.Retryable = new(r.Bool())
	}
	for _, e := range root.Get("errors").Items() {
		p.Errors = append(p.Errors, ProblemField{Field: e.Get("field").Text(), Message: e.Get("message").Text()})
	}
	return strict.Result(root, p)
}
