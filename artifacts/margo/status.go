package margo

import (
	"slices"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// DeploymentStatus is a device's report on one deployment (DeploymentStatusManifest).
type DeploymentStatus struct {
	DeploymentID           string            `json:"deploymentId"`
	DeviceID               string            `json:"deviceId,omitempty"`
	AdoptedManifestVersion uint64            `json:"adoptedManifestVersion"`
	Status                 OverallStatus     `json:"status"`
	Components             []ComponentStatus `json:"components"` // never null in JSON
}

// OverallStatus sums up the components by precedence (SPEC section 4.2).
type OverallStatus struct {
	State State        `json:"state"`
	Error *StatusError `json:"error,omitempty"`
}

// ComponentStatus is the state of one component.
type ComponentStatus struct {
	Name  string       `json:"name"`
	State State        `json:"state"`
	Error *StatusError `json:"error,omitempty"`
}

// StatusError says what failed. Source is the deployment's metadata.name or the component's name.
type StatusError struct {
	Code    string `json:"code"`
	Source  string `json:"source"`
	Message string `json:"message"`
}

// precedence orders the states: the first one that any component has is the deployment's. (The specification's text names
// removing twice; the later one can only be removed.)
var precedence = []State{StateFailed, StateRemoving, StateInstalling, StatePending, StateRemoved, StateInstalled}

// Overall sums up the states of components. Without components it is installed: nothing is missing.
func Overall(components []ComponentStatus) State {
	at := len(precedence) - 1
	for _, c := range components {
		if i := slices.Index(precedence, c.State); i >= 0 {
			at = min(at, i)
		}
	}
	return precedence[at]
}

// ParseDeploymentStatus reads a report on a deployment (JSON). An error with nothing in it counts as none.
func ParseDeploymentStatus(file string, data []byte) (*DeploymentStatus, error) {
	return parse(strict.JSON, statusOf, file, data)
}

// ParseDeploymentStatusYAML reads a report on a deployment in its YAML form.
func ParseDeploymentStatusYAML(file string, data []byte) (*DeploymentStatus, error) {
	return parse(strict.YAML, statusOf, file, data)
}

func statusOf(root *strict.Node) (*DeploymentStatus, error) {
	s := &DeploymentStatus{
		DeploymentID:           uuid(root.Need("deploymentId")),
		DeviceID:               root.Get("deviceId").Matching(deviceFormat, "a device id"),
		AdoptedManifestVersion: version(root.Need("adoptedManifestVersion")),
		Components:             []ComponentStatus{},
	}
	status := root.Need("status")
	s.Status.State, s.Status.Error = stateAndError(status)
	var names []*strict.Node
	for _, n := range root.Need("components").Items() {
		c := ComponentStatus{Name: n.Need("name").Filled()}
		c.State, c.Error = stateAndError(n)
		s.Components = append(s.Components, c)
		names = append(names, n.Get("name"))
	}
	unique(names, "component")
	return strict.Result(root, s)
}

func stateAndError(n *strict.Node) (State, *StatusError) {
	state := State(n.Need("state").OneOf("pending", "installing", "installed", "failed", "removing", "removed"))
	e := n.Get("error")
	told := StatusError{Code: e.Get("code").Text(), Source: e.Get("source").Text(), Message: e.Get("message").Text()}
	if told == (StatusError{}) {
		return state, nil
	}
	return state, &told
}
