package artifacts

import (
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/margo"
)

// Deployment is one ApplicationDeployment with the exact bytes that its digest is of.
type Deployment struct {
	Document *margo.ApplicationDeployment
	Bytes    []byte
	Digest   digest.Digest
}

// ReadDeployment parses one ApplicationDeployment and keeps its bytes.
func ReadDeployment(file string, data []byte) (*Deployment, error) { return nil, errUnfinished }

// PackBundle makes the archive of exactly the given ApplicationDeployments.
func PackBundle(deployments [][]byte) ([]byte, error) { return nil, errUnfinished }

// ReadBundle unpacks a bundle archive and parses its deployments, sorted by id.
func ReadBundle(data []byte) ([]Deployment, error) { return nil, errUnfinished }

// BundleOptions say what a deployment bundle holds.
type BundleOptions struct {
	Name        string // title, may be ""
	Version     string // may be ""
	Deployments [][]byte
	Created     time.Time // zero: left out
	Annotations map[string]string
}

// PackBundleArtifact makes a deployment bundle: the archive, then each deployment as a layer of its own.
func PackBundleArtifact(o BundleOptions) (*Artifact, error) { return nil, errUnfinished }

// BundleIndex is what the manifest of a deployment bundle says.
type BundleIndex struct {
	Name        string
	Version     string
	Archive     ocispec.Descriptor
	Deployments []ocispec.Descriptor // may be empty when a foreign publisher pushed the archive only
	Annotations map[string]string
}

// OpenBundle checks the manifest of a deployment bundle.
func OpenBundle(manifest []byte) (*BundleIndex, error) { return nil, errUnfinished }

// Read fetches and checks the deployments through the archive, sorted by id.
func (x *BundleIndex) Read(blob func(ocispec.Descriptor) ([]byte, error)) ([]Deployment, error) {
	return nil, errUnfinished
}
