package registry

import (
	"fmt"
	"path"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Platforms selects manifests of an image index: "linux/arm64" is for every variant of it. Empty: all.
type Platforms []string

// attestationOf is BuildKit's annotation on the entry of an attestation: the digest of its subject.
const attestationOf = "vnd.docker.reference.digest"

// of chooses from the manifests of an index. One without a platform is chosen, and an attestation together with its
// subject. If none matches the platforms, that is fault.ErrUnfit.
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
		what := fmt.Sprintf("it is for %s, not for %s", strings.Join(have, ", "), strings.Join(p, ", "))
		return nil, fault.WithSummary(fmt.Errorf("%s: %w", what, fault.ErrUnfit), what)
	}
	return slices.DeleteFunc(slices.Clone(manifests), func(m ocispec.Descriptor) bool {
		if of := m.Annotations[attestationOf]; of != "" {
			return !wanted[of]
		}
		return m.Platform != nil && !wanted[m.Digest.String()]
	}), nil
}
