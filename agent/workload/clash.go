package workload

import (
	"errors"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Clash is a reason why a service cannot run on this device as it is now, found before anything is stopped.
type Clash struct {
	Project    string // Project.Name
	Deployment string // Margo deployment id
	Component  string
	Service    string
	Path       string // in the Compose file: "services.web.ports"
	Reason     error  // wraps fault.ErrConflict: somebody holds it; ErrUnfit: this machine cannot; ErrRejected: it may not
}

// Error names the component, the place in its Compose file and the reason.
func (c Clash) Error() string { return c.Component + ": " + c.Path + ": " + c.Reason.Error() }

// Unwrap is the reason.
func (c Clash) Unwrap() error { return c.Reason }

// Clashes are all that was found. Those of one deployment say nothing about others.
type Clashes []Clash

// Error has a line for each clash.
func (cs Clashes) Error() string {
	lines := make([]string, len(cs))
	for n, c := range cs {
		lines[n] = c.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap gives the clashes to errors.Is and errors.As.
func (cs Clashes) Unwrap() []error {
	out := make([]error, len(cs))
	for n, c := range cs {
		out[n] = c
	}
	return out
}

// Of are the clashes of one deployment; nil when there are none.
func (cs Clashes) Of(deployment string) Clashes {
	var out Clashes
	for _, c := range cs {
		if c.Deployment == deployment {
			out = append(out, c)
		}
	}
	return out
}

// NewClash is a clash of a service of p at a key of it, "" for the service itself. kind is one of the sentinels that a
// [Clash] may wrap; hint may be "".
func NewClash(p *Project, service, key string, kind error, message, hint string) Clash {
	err := error(&reason{message, kind})
	if hint != "" {
		err = fault.WithHint(err, hint)
	}
	path := "services." + service
	if key != "" {
		path += "." + key
	}
	return Clash{Project: p.Name, Deployment: p.Deployment, Component: p.Component, Service: service, Path: path, Reason: err}
}

// reason is a sentence that stands for a sentinel without repeating its words.
type reason struct {
	message string
	kind    error
}

func (r *reason) Error() string        { return r.message }
func (r *reason) Is(target error) bool { return errors.Is(r.kind, target) }
