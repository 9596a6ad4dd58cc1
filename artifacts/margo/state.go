package margo

import (
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Media types of the desired state.
const (
	ManifestMediaType = "application/vnd.margo.manifest.v1+json"
	BundleMediaType   = "application/vnd.margo.bundle.v1+tar+gzip"
)

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

// URLs of rc.3, and of the 1.0.0 line with "/clients/{clientId}".
var (
	bundleURL     = strict.Expression(`^/api/v1(?:/clients/[^/]+)?/bundles/([^/]+)$`)
	deploymentURL = strict.Expression(`^/api/v1(?:/clients/[^/]+)?/deployments/([^/]+)/([^/]+)$`)
)

// BundlePath is the URL under which the management API serves a bundle.
func BundlePath(d digest.Digest) string { return "/api/v1/bundles/" + d.String() }

// DeploymentPath is the URL under which the management API serves a deployment.
func DeploymentPath(id string, d digest.Digest) string {
	return "/api/v1/deployments/" + id + "/" + d.String()
}

// ParseStateManifest reads a State Manifest (JSON) of rc.3 or of the 1.0.0 line.
func ParseStateManifest(file string, data []byte) (*StateManifest, error) {
	root, err := strict.JSON(file, data)
	if err != nil {
		return nil, err
	}
	m := &StateManifest{Deployments: []DeploymentRef{}}
	m.ManifestVersion = version(root.Need("manifestVersion"))
	deployments := root.Need("deployments")
	var ids []*strict.Node
	for _, n := range deployments.Items() {
		r := DeploymentRef{DeploymentID: uuid(n.Need("deploymentId")), Digest: ReadDigest(n.Need("digest")), SizeBytes: advisory(n.Get("sizeBytes"))}
		u := n.Need("url")
		r.URL = u.Text()
		if p := deploymentURL.Regexp().FindStringSubmatch(r.URL); u != nil && (p == nil || p[1] != r.DeploymentID || p[2] != r.Digest.String()) {
			u.Faultf("must be %q", DeploymentPath(r.DeploymentID, r.Digest))
		}
		ids = append(ids, n.Get("deploymentId"))
		m.Deployments = append(m.Deployments, r)
	}
	unique(ids, "deployment")
	bundle := root.Need("bundle")
	switch empty := len(m.Deployments) == 0; {
	case bundle == nil:
	case bundle.Kind() == strict.Null:
		if !empty {
			bundle.Faultf("must name the bundle of the %d deployments, is null", len(m.Deployments))
		}
	default:
		m.Bundle = bundleRef(bundle)
		if empty && deployments.Kind() == strict.List {
			bundle.Faultf("must be null when there are no deployments")
		}
	}
	return strict.Result(root, m)
}

func bundleRef(n *strict.Node) *BundleRef {
	b := &BundleRef{MediaType: n.Need("mediaType").OneOf(BundleMediaType), Digest: ReadDigest(n.Need("digest")), SizeBytes: advisory(n.Get("sizeBytes"))}
	u := n.Need("url")
	b.URL = u.Text()
	if p := bundleURL.Regexp().FindStringSubmatch(b.URL); u != nil && (p == nil || p[1] != b.Digest.String()) {
		u.Faultf("must be %q", BundlePath(b.Digest))
	}
	return b
}

// version reads a manifestVersion.
func version(n *strict.Node) uint64 {
	if v, ok := n.Value().(int64); ok && v == 0 {
		n.Faultf("must be 1 or more")
		return 0
	}
	return n.Uint64()
}

// advisory reads a size that nothing may rely on: a number that is no size counts as not told.
func advisory(n *strict.Node) uint64 {
	if v, ok := n.Value().(int64); ok && v >= 0 {
		return uint64(v)
	}
	if v, ok := n.Value().(uint64); ok {
		return v
	}
	if n != nil && n.Kind() != strict.Number {
		n.Uint64() // records the wrong kind
	}
	return 0
}
