package signing

import (
	"context"
	"fmt"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Kinds of artifacts that a rule can speak about.
const (
	KindState     = "state"
	KindComponent = "component"
	KindImage     = "image"
)

// Policy says which keys an artifact of which repository needs (trust.yaml).
type Policy struct {
	Rules []Rule
}

// Rule speaks about the artifacts of some kinds in some repositories. Exactly one of Keys, Reject and AllowUnsigned
// alone decides, but AllowUnsigned beside Keys lets pass what is not signed and refuses what is signed badly.
type Rule struct {
	// Scope is "host/path" for one repository, "host/path/**" for all below, "**" for all there are.
	Scope         string
	Artifacts     []string // kinds; empty is KindState
	Keys          []Key    // any one of them suffices
	Reject        bool
	AllowUnsigned bool
}

// ParsePolicy reads a trust.yaml. read opens the key files that it names, by their paths as they are written.
func ParsePolicy(file string, data []byte, read func(path string) ([]byte, error)) (*Policy, error) {
	return nil, fmt.Errorf("read %s: %w", file, fault.ErrUnsupported)
}

// Verify holds an artifact of a kind in st's repository against the policy. A nil error means: may be used. signedBy
// has the names of the keys that signed, in the rule's order, and insecure tells that nothing had to sign.
func (p *Policy) Verify(ctx context.Context, st Source, kind string, subject ocispec.Descriptor) (signedBy []string, insecure bool, err error) {
	return nil, false, fmt.Errorf("verify %s@%s: %w", st.Name(), subject.Digest, fault.ErrRejected)
}
