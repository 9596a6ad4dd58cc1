package artifacts

import (
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/margo"
)

// StateOptions say what a device is to run.
type StateOptions struct {
	Device      DeviceID
	Generation  uint64 // from 1
	Deployments [][]byte
	Expires     time.Time     // zero: never
	Previous    digest.Digest // "": none
	Created     time.Time     // zero: left out
	Annotations map[string]string
}

// PackState makes the state of one device.
func PackState(o StateOptions) (*Artifact, error) { return nil, errUnfinished }

// StateIndex is what the manifest of a device state says. Nothing in it is trusted before the manifest's signature is.
type StateIndex struct {
	Device      DeviceID
	Generation  uint64
	Expires     time.Time     // zero: never
	Previous    digest.Digest // "": none told
	Manifest    ocispec.Descriptor
	Bundle      *ocispec.Descriptor  // nil exactly when there is nothing to deploy
	Deployments []ocispec.Descriptor // may be empty when a foreign publisher pushed the bundle only
	Annotations map[string]string
}

// OpenState checks the manifest of a device state.
func OpenState(manifest []byte) (*StateIndex, error) { return nil, errUnfinished }

// State is a device's desired state, parsed and with every digest checked.
type State struct {
	Manifest      *margo.StateManifest
	ManifestBytes []byte
	Deployments   []Deployment // in the order of the manifest
}

// Read fetches and checks the state by its single documents; blobs that the caller keeps need not be fetched again.
// When the artifact has no such layers, it takes the bundle.
func (x *StateIndex) Read(blob func(ocispec.Descriptor) ([]byte, error)) (*State, error) {
	return nil, errUnfinished
}

// ReadBundle is Read in one request for all documents: the way of a device that has few of them.
func (x *StateIndex) ReadBundle(blob func(ocispec.Descriptor) ([]byte, error)) (*State, error) {
	return nil, errUnfinished
}
