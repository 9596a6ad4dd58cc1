package workload

import (
	"errors"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Conflict is a reason why a service cannot run on this device as it is now, found before anything is stopped.
type Conflict struct {
	Project    string // Project.Name
	Deployment string // Margo deployment id
	Component  string
	Service    string
	Path       string // in the Compose file: "services.web.ports"
	Reason     error  // wraps fault.ErrConflict: it is in use; ErrUnfit: this machine cannot; ErrRejected: it is not allowed
}

// Error names the component, the place in its Compose file and the reason.
func (c Conflict) Error() string { return c.Component + ": " + c.Path + ": " + c.Reason.Error() }

// Unwrap is the reason.
func (c Conflict) Unwrap() error { return c.Reason }

// Conflicts are all that were found. Those of one deployment do not concern others.
type Conflicts []Conflict

// Error has a line for each conflict.
func (cs Conflicts) Error() string {
	lines := make([]string, len(cs))
	for n, c := range cs {
		lines[n] = c.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the conflicts for errors.Is and errors.As.
func (cs Conflicts) Unwrap() []error {
	out := make([]error, len(cs))
	for n, c := range cs {
		out[n] = c
	}
	return out
}

// Of are the conflicts of one deployment; nil when there are none.
func (cs Conflicts) Of(deployment string) Conflicts {
	var out Conflicts
	for _, c := range cs {
		if c.Deployment == deployment {
			out = append(out, c)
		}
	}
	return out
}

// NewConflict is a conflict of a service of p at a key of it, "" for the service itself. kind is one of the sentinels that a
// [Conflict] may wrap; hint may be "".
func NewConflict(p *Project, service, key string, kind error, message, hint string) Conflict {
	err := error(&reason{message, kind})
	if hint != "" {
		err = fault.WithHint(err, hint)
	}
	path := "services." + service
	if key != "" {
		path += "." + key
	}
	return Conflict{Project: p.Name, Deployment: p.Deployment, Component: p.Component, Service: service, Path: path, Reason: err}
}

// reason is an error that is a sentinel without repeating its text.
type reason struct {
	message string
	kind    error
}

func (r *reason) Error() string        { return r.message }
func (r *reason) Is(target error) bool { return errors.Is(r.kind, target) }
