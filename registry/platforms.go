package registry

import (
	"fmt"
	"path"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Platforms says which manifests of an image index are wanted: "linux/arm64" is for every variant of it. Empty: all.
type Platforms []string

// attestationOf is what BuildKit writes into the entry of an attestation: the digest of the manifest that it is about.
const attestationOf = "vnd.docker.reference.digest"

// of chooses from the manifests of an index. One that says nothing about a platform is wanted, an attestation as what it is
// about is. That there is nothing for any of the platforms is fault.ErrUnfit.
func (p Platforms) of(manifests []ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	if len(p) == 0 || len(manifests) == 0 {
		return manifests, nil
	}
	wanted := map[string]bool{}
	var have []string
	for _, m := range manifests {
		if m.Platform == nil || m.Annotations[attestationOf] != "" {
			continue
		}
		name := path.Join(m.Platform.OS, m.Platform.Architecture, m.Platform.Variant)
		have = append(have, name)
		if slices.ContainsFunc(p, func(one string) bool { return name == one || strings.HasPrefix(name, one+"/") }) {
			wanted[m.Digest.String()] = true
		}
	}
	if len(wanted) == 0 && len(have) > 0 {
		return nil, fmt.Errorf("it is for %s, not for %s: %w", strings.Join(have, ", "), strings.Join(p, ", "), fault.ErrUnfit)
	}
	return slices.DeleteFunc(slices.Clone(manifests), func(m ocispec.Descriptor) bool {
		if of := m.Annotations[attestationOf]; of != "" {
			return !wanted[of]
		}
		return m.Platform != nil && !wanted[m.Digest.String()]
	}), nil
}
