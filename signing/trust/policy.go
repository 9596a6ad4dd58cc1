package trust

import (
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/keyless"
)

// Kinds of artifacts that a rule can speak about.
const (
	KindState     = "state"
	KindBundle    = "bundle"
	KindComponent = "component"
	KindImage     = "image"
	KindTrust     = "trust"
)

// Kinds lists them all.
func Kinds() []string { return []string{KindState, KindBundle, KindComponent, KindImage, KindTrust} }

// Policy says who must have signed an artifact of which repository (trust.yaml). The zero value rejects every state.
type Policy struct {
	Version uint64        // of a policy that travels, from 1; 0: it was put here by hand
	Expires time.Time     // afterwards every status tells so, and the policy goes on deciding; zero: never
	Signers []*Signer     // in the order of the document; those that rules list themselves come last
	Root    *keyless.Root // whose word counts about identities; nil: none
	Rules   []Rule
	Revoked []Revocation
	Trust   *Successor // nil: no other policy can follow this one
	// Generations takes back what a stolen key made devices believe to be their newest generation; nil: they only rise.
	Generations *Reset

	// Warnings are what is allowed and perhaps a slip, each with its position: "trust.yaml:4:5: keys[1]: …".
	Warnings []string

	expiresAt string // where it says so: as in Rule
}

// Rule speaks about artifacts of some kinds in some repositories. Among the rules for a kind the one with the longest
// matching scope decides alone.
type Rule struct {
	// Scope is "host/path" for one repository, "host/path/**" for all below it, "**" for all there are; "margo+https://host" for the
	// State Manifests of a manager, which are not signed and which no other scope reaches.
	Scope     string
	Artifacts []string // kinds; empty is KindState alone
	Quorum             // who must have signed; no signers with Reject or AllowUnsigned
	Reject    bool
	// AllowUnsigned accepts what has no signature. Beside signers, what is signed must be signed by them.
	AllowUnsigned bool
	Attestations  []Attestation // what else must have been said, each of them
	Freshness     *Quorum       // who says that a state is the current one; nil: no statement is needed
	// Signatures is the repository, "host/path", where signatures and statements are; "" is the artifact's own.
	Signatures string

	path string // in the document: "rules[2]"
	at   string // "trust.yaml:4:5: " there; "": it was made by hand
}

// Quorum is some number of different signers out of a list.
type Quorum struct {
	Signers   []*Signer
	Threshold int // 0 is 1
}

// Need is the threshold, at least 1.
func (q Quorum) Need() int { return max(1, q.Threshold) }

// Has reports whether a key with this fingerprint is among the signers.
func (q Quorum) Has(key digest.Digest) bool {
	return slices.ContainsFunc(q.Signers, func(s *Signer) bool { return s.Kind == SignerKey && s.Key.Fingerprint == key })
}

// Attestation is a statement that must have been made about an artifact.
type Attestation struct {
	Type string // predicate type
	Quorum
}

// Successor says where the policy that follows is, and who may write it.
type Successor struct {
	Repository string // "host/path"
	Quorum

	at string // as in Rule
}

// Revocation takes back a key or an artifact, whatever signatures say. One of Key and Digest is set.
type Revocation struct {
	Key    digest.Digest // fingerprint, as longshore and longshore-agent show it
	Digest digest.Digest
	Since  time.Time // for people: a revoked key counts for nothing, also before; zero: not told
	Reason string
}

// Reset is the way out of a fast-forward: a device that accepted a generation above To takes To for the newest that it
// accepted, once. What it runs stays.
type Reset struct {
	To uint64 `json:"resetTo"`
	// Version of the policy that it came with. It acts with that version and never again, although the versions that
	// follow may repeat it: else each of them would open the way to what was accepted since.
	Version uint64 `json:"version"`
}

// String says it in a few words.
func (r Reset) String() string {
	return fmt.Sprintf("above %d counts as %d, once, with version %d", r.To, r.To, r.Version)
}

// Kinds of signers.
const (
	SignerKey       = "key"
	SignerIdentity  = "identity"
	SignerAuthority = "authority"
)

// Signer is who may sign, under one name.
type Signer struct {
	Name      string
	Kind      string      // SignerKey, SignerIdentity or SignerAuthority
	Key       signing.Key // of a SignerKey
	NotBefore time.Time   // not trusted before; zero: always was
	NotAfter  time.Time   // not trusted from then on; zero: for ever

	at       func(now time.Time) signing.Verifier
	unlogged bool   // of a SignerIdentity
	about    string // who it is, for people and for comparison: equal means the same
}

// KeySigner is a signer with a key, called as the key is.
func KeySigner(k signing.Key) *Signer {
	return &Signer{
		Name: k.Name, Kind: SignerKey, Key: k,
		at: func(time.Time) signing.Verifier { return k }, about: k.Fingerprint.String(),
	}
}

// String says who the signer is: a fingerprint, or subject and issuer.
func (s *Signer) String() string { return s.about }

// stateAt is the state at a time: StateCounted, StateNotYetValid or StateExpired.
func (s *Signer) stateAt(now time.Time) State {
	switch {
	case now.Before(s.NotBefore):
		return StateNotYetValid
	case !s.NotAfter.IsZero() && !now.Before(s.NotAfter):
		return StateExpired
	}
	return StateCounted
}

// KeyRevoked finds the revocation of a key; nil: it is not revoked.
func (p *Policy) KeyRevoked(fingerprint digest.Digest) *Revocation {
	return p.revocation(func(r Revocation) bool { return fingerprint != "" && r.Key == fingerprint })
}

// DigestRevoked finds the revocation of an artifact; nil: it is not revoked.
func (p *Policy) DigestRevoked(d digest.Digest) *Revocation {
	return p.revocation(func(r Revocation) bool { return d != "" && r.Digest == d })
}

func (p *Policy) revocation(is func(Revocation) bool) *Revocation {
	if i := slices.IndexFunc(p.Revoked, is); i >= 0 {
		return &p.Revoked[i]
	}
	return nil
}

// Until is when time alone may change a decision next: a signer begins or ends. Zero: never.
func (p *Policy) Until(now time.Time) time.Time {
	var next time.Time
	for _, s := range p.Signers {
		for _, t := range []time.Time{s.NotBefore, s.NotAfter} {
			if t.After(now) && (next.IsZero() || t.Before(next)) {
				next = t
			}
		}
	}
	return next
}
