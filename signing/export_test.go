package signing

import "github.com/opencontainers/go-digest"

// What the tests of this package see of it: they sign, and so stand outside.
const (
	MaxReferrers   = maxReferrers
	MaxPieces      = maxPieces
	MaxBundleBytes = maxBundleBytes
)

var (
	OpenBundle    = openBundle
	OpenLegacy    = openLegacy
	OpenStatement = openStatement
)

// About returns the claims beside a digest; false when the statement is not about it.
func (p *payload) About(d digest.Digest) (map[string]string, bool) { return p.about(d) }

// PredicateType is what the statement says that it is.
func (p *payload) PredicateType() string { return p.predicateType }

// Digest is what a payload is about.
func (s *simpleSigning) Digest() string { return s.digest }

// Usable reports whether a key can check anything.
func (k Key) Usable() bool { return len(k.verifiers) > 0 }
