package margo

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
