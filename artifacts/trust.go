package artifacts

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

const (
	// TypeTrust is the artifact type of a trust policy that travels, and the media type of the policy in it.
	TypeTrust = "application/vnd.longshore.trust.v1+yaml"
	// TypeTrustedRoot is the media type of a sigstore trusted root.
	TypeTrustedRoot = "application/vnd.dev.sigstore.trustedroot+json"
	// AnnotationTrustVersion is the version of the policy inside.
	AnnotationTrustVersion = "dev.longshore.trust.version"

	// TrustFile and TrustedRootFile are what the layers are called, as files beside each other: a policy names the second.
	TrustFile       = "trust.yaml"
	TrustedRootFile = "trusted_root.json"

	MaxTrustPolicy = 256 << 10 // bytes of a policy; a thousand keys have that
	MaxTrustedRoot = 512 << 10 // bytes of a trusted root; sigstore's own has 10 KiB
)

// TrustOptions are a trust policy that is to travel.
type TrustOptions struct {
	Version     uint64        // from 1; what the policy itself says
	Policy      []byte        // the document, with every key inside
	TrustedRoot []byte        // sigstore's; nil: the policy names none
	Previous    digest.Digest // of the version before; "": none
	Created     time.Time     // zero: left out
	Annotations map[string]string
}

// PackTrust makes the artifact of a trust policy. What the policy says is the caller's to check. Same options, same digest.
func PackTrust(o TrustOptions) (_ *Artifact, err error) {
	defer during(&err, "pack trust policy %d", o.Version)
	switch {
	case o.Version == 0:
		return nil, fmt.Errorf("a policy that travels has a version from 1: %w", fault.ErrInvalid)
	case len(o.Policy) == 0:
		return nil, fmt.Errorf("it is empty: %w", fault.ErrInvalid)
	case len(o.Policy) > MaxTrustPolicy:
		return nil, fmt.Errorf("%d bytes, more than %d: %w", len(o.Policy), MaxTrustPolicy, fault.ErrTooLarge)
	case len(o.TrustedRoot) > MaxTrustedRoot:
		return nil, fmt.Errorf("%s: %d bytes, more than %d: %w", TrustedRootFile, len(o.TrustedRoot), MaxTrustedRoot, fault.ErrTooLarge)
	case o.Previous != "" && !margo.ValidDigest(o.Previous):
		return nil, fmt.Errorf("previous %q is not %s: %w", o.Previous, margo.DigestForm, fault.ErrInvalid)
	}
	layers := []Blob{layer(TypeTrust, TrustFile, o.Policy)}
	if len(o.TrustedRoot) > 0 {
		layers = append(layers, layer(TypeTrustedRoot, TrustedRootFile, o.TrustedRoot))
	}
	version := strconv.FormatUint(o.Version, 10)
	return pack(TypeTrust, layers, o.Created, map[string]string{
		AnnotationTrustVersion:    version,
		AnnotationPrevious:        o.Previous.String(),
		ocispec.AnnotationTitle:   TrustFile,
		ocispec.AnnotationVersion: version,
	}, o.Annotations)
}

// TrustIndex is what the manifest of a trust policy says. Nothing in it is trusted before the manifest's signatures are.
type TrustIndex struct {
	Version     uint64
	Previous    digest.Digest // "": none told
	Policy      ocispec.Descriptor
	TrustedRoot *ocispec.Descriptor // nil: none
	Annotations map[string]string
}

// OpenTrust checks the manifest of a trust policy: its types, its annotations, its layers and their sizes.
func OpenTrust(manifest []byte) (_ *TrustIndex, err error) {
	defer during(&err, "open trust policy")
	i, err := open(manifest, TypeTrust)
	if err != nil {
		return nil, err
	}
	x := &TrustIndex{Annotations: i.annotations, Policy: i.layers[0]}
	if x.Version, err = i.number(AnnotationTrustVersion); err != nil {
		return nil, err
	}
	if x.Previous, err = i.digest(AnnotationPrevious); err != nil {
		return nil, err
	}
	if err := layerIs("first layer", x.Policy, TypeTrust, MaxTrustPolicy); err != nil {
		return nil, err
	}
	switch rest := i.layers[1:]; {
	case len(rest) > 1:
		return nil, fmt.Errorf("%d layers, want the policy and at most a trusted root: %w", len(i.layers), fault.ErrInvalid)
	case len(rest) == 1:
		if err := layerIs("second layer", rest[0], TypeTrustedRoot, MaxTrustedRoot); err != nil {
			return nil, err
		}
		x.TrustedRoot = &rest[0]
	}
	return x, nil
}

// Read fetches the policy and the trusted root, nil when there is none; the bytes are hashed here whatever blob did.
func (x *TrustIndex) Read(blob func(ocispec.Descriptor) ([]byte, error)) (policy, root []byte, err error) {
	if policy, err = fetch(blob, x.Policy); err != nil {
		return nil, nil, fmt.Errorf("read trust policy %d: %w", x.Version, err)
	}
	if x.TrustedRoot != nil {
		if root, err = fetch(blob, *x.TrustedRoot); err != nil {
			return nil, nil, fmt.Errorf("read trust policy %d: trusted root: %w", x.Version, err)
		}
	}
	return policy, root, nil
}

// TrustTag is the tag that one version of the policy has for ever: "v7".
func TrustTag(version uint64) string { return "v" + strconv.FormatUint(version, 10) }

// TrustProposalTag is the tag under which a version waits for signatures: "v7.proposal".
func TrustProposalTag(version uint64) string { return TrustTag(version) + proposed }

// ParseTrustTag reads a tag of a trust repository; false for tags that are neither of the two.
func ParseTrustTag(tag string) (version uint64, proposal, ok bool) {
	bare, proposal := strings.CutSuffix(tag, proposed)
	version, err := strconv.ParseUint(strings.TrimPrefix(bare, "v"), 10, 64)
	if err != nil || version == 0 || TrustTag(version) != bare {
		return 0, false, false
	}
	return version, proposal, true
}
