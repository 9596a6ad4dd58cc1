// Package margo holds the documents of the Margo specification, 1.0.0-rc.3, as Go types.
//
// The types are what a valid document says; the Parse functions are the only way in for foreign bytes. They refuse what
// the specification refuses, tell every fault of a document with file, line, column and path, and keep digests true by
// never writing a document that they read.
package margo

// Extensions are the "x-<name>-extensions" members of an object, by full key. Unknown ones are kept, never an error.
type Extensions map[string]any

// State of a deployment or of one component (DeploymentStatusManifest, rc.3).
type State string

// The states of rc.3.
const (
	StatePending    State = "pending"
	StateInstalling State = "installing"
	StateInstalled  State = "installed"
	StateFailed     State = "failed"
	StateRemoving   State = "removing"
	StateRemoved    State = "removed"
)
