package margo

import (
	"errors"

	"github.com/opencontainers/go-digest"
)

var errUnfinished = errors.New("not there yet")

// ParseStateManifest reads a State Manifest (JSON).
func ParseStateManifest(file string, data []byte) (*StateManifest, error) { return nil, errUnfinished }

// ParseApplicationDeployment reads an ApplicationDeployment (YAML).
func ParseApplicationDeployment(file string, data []byte) (*ApplicationDeployment, error) {
	return nil, errUnfinished
}

// ParseApplicationDescription reads a margo.yaml.
func ParseApplicationDescription(file string, data []byte) (*ApplicationDescription, error) {
	return nil, errUnfinished
}

// ParseDeviceCapabilities reads what a device tells of itself (JSON).
func ParseDeviceCapabilities(file string, data []byte) (*DeviceCapabilities, error) {
	return nil, errUnfinished
}

// ParseDeploymentStatus reads a report on a deployment (JSON).
func ParseDeploymentStatus(file string, data []byte) (*DeploymentStatus, error) {
	return nil, errUnfinished
}

// ParseProblem reads an error answer of the management API (JSON).
func ParseProblem(file string, data []byte) (*Problem, error) { return nil, errUnfinished }

// Check tells whether a device fits. Nil constraints fit every device; the error is a fault.ErrUnfit.
func (c *DeviceConstraints) Check(d *DeviceCapabilities) error { return errUnfinished }

// Overall sums up the states of components.
func Overall(components []ComponentStatus) State { return StatePending }

// EnvironmentValue is the value as Compose's interpolation gets it.
func (p Parameter) EnvironmentValue() (string, error) { return "", errUnfinished }

// Pin writes the digests of components, by name, into an ApplicationDeployment and leaves every other byte as it is.
func Pin(file string, deployment []byte, pins map[string]digest.Digest) ([]byte, error) {
	return nil, errUnfinished
}

// Pinned is the digest that the publisher resolved for the component; false when there is none.
func (c Component) Pinned() (digest.Digest, bool, error) { return "", false, errUnfinished }

// Encode writes the document, the same bytes for the same content.
func (m *StateManifest) Encode() ([]byte, error) { return nil, errUnfinished }

// Encode writes the document, the same bytes for the same content.
func (s *DeploymentStatus) Encode() ([]byte, error) { return nil, errUnfinished }

// Encode writes the document, the same bytes for the same content.
func (c *DeviceCapabilities) Encode() ([]byte, error) { return nil, errUnfinished }

// Encode writes the document, the same bytes for the same content.
func (p *Problem) Encode() ([]byte, error) { return nil, errUnfinished }
