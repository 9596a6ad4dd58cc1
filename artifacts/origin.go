package artifacts

import (
	"encoding/json"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// WithoutOrigin is the digest that the manifest of one of our artifacts would have if it did not say where it comes from:
// two that differ in source and revision alone have the same. "" is no manifest.
func WithoutOrigin(manifest []byte) digest.Digest {
	var m ocispec.Manifest
	if json.Unmarshal(manifest, &m) != nil {
		return ""
	}
	delete(m.Annotations, ocispec.AnnotationSource)
	delete(m.Annotations, ocispec.AnnotationRevision)
	data, err := json.Marshal(m)
	if err != nil {
		return ""
	}
	return digest.FromBytes(data)
}
