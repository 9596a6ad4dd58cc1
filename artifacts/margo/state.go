package margo

import "github.com/opencontainers/go-digest"

// StateManifest is the complete desired state of one client (UnsignedAppStateManifest).
type StateManifest struct {
	ManifestVersion uint64          `json:"manifestVersion"` // 1 .. 2^64-1, strictly increasing per client
	Bundle          *BundleRef      `json:"bundle"`          // nil exactly when Deployments is empty
	Deployments     []DeploymentRef `json:"deployments"`     // never null in JSON
}

// BundleRef names the archive that holds every deployment of a StateManifest.
type BundleRef struct {
	MediaType string        `json:"mediaType"`
	Digest    digest.Digest `json:"digest"`
	SizeBytes uint64        `json:"sizeBytes,omitempty"` // advisory, never used for integrity; 0: not told
	URL       string        `json:"url"`
}

// DeploymentRef names one ApplicationDeployment by the digest of its YAML bytes.
type DeploymentRef struct {
	DeploymentID string        `json:"deploymentId"`
	Digest       digest.Digest `json:"digest"`
	SizeBytes    uint64        `json:"sizeBytes,omitempty"` // advisory; 0: not told
	URL          string        `json:"url"`
}
