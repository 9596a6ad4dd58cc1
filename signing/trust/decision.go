package trust

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

// State is how a signer stands.
type State string

// States of a signer.
const (
	StateCounted     State = "counted"
	StateAbsent      State = "absent"        // nothing by it
	StateUnread      State = "unread"        // nothing by it, and something could not be read that may be
	StateRepeated    State = "repeated"      // it is the same as another that counts
	StateNotYetValid State = "not-yet-valid" // it signed, and is not trusted yet
	StateExpired     State = "expired"       // it signed, and is not trusted any more
	StateRevoked     State = "revoked"       // it signed, and its key is revoked
	StateBad         State = "bad"           // something in its name is broken or forged
)

// Decision is what a policy says about one artifact, and everything that was looked at on the way. A nil Err means: may be
// used.
type Decision struct {
	Repository string
	Kind       string
	Digest     digest.Digest
	// Rule is the one that decides; nil: none speaks about it.
	Rule *Choice
	// Insecure: no signature was required, because the policy explicitly says so.
	Insecure bool
	// SignedBy are the signers that count, in the rule's order.
	SignedBy     []string
	Signatures   *Tally // nil: not asked for
	Attestations []Tally
	Revoked      *Revocation // of the artifact
	Err          error
}

// Choice is which rule decides, and why.
type Choice struct {
	Path      string   `json:"path"` // "rules[2]"
	Scope     string   `json:"scope"`
	Artifacts []string `json:"artifacts"`
	Says      string   `json:"says"` // "2 of release-a, release-b, ci", "reject", "allowUnsigned"
	// Over are the other rules that match, which are less specific: "rules[3] (**)".
	Over []string `json:"over,omitempty"`
}

// Tally is how far a quorum is reached.
type Tally struct {
	Type      string // predicate type; signing.PredicateSign: signatures
	Threshold int
	Counted   int
	Signers   []SignerResult   // each of the quorum, in its order
	Bad       []signing.Remark // broken or forged
	Others    []signing.Remark // by other signers
	Unread    string           // what could not be read
	Err       error            // nil: reached
}

// SignerResult is one signer of a quorum.
type SignerResult struct {
	Name   string
	Kind   string // SignerKey, SignerIdentity or SignerAuthority
	About  string // who it is: a fingerprint, or subject and issuer
	State  State
	Reason string // why it does not count
	// Signatures are the good ones by it, the one that counts first.
	Signatures []signing.Signature
}

// Holds reports whether enough count.
func (t *Tally) Holds() bool { return t.Err == nil }

// Names are the signers that count, in the quorum's order.
func (t *Tally) Names() []string {
	var out []string
	for _, s := range t.Signers {
		if s.State == StateCounted {
			out = append(out, s.Name)
		}
	}
	return out
}

// Missing are the names of those that have not signed.
func (t *Tally) Missing() []string {
	var out []string
	for _, s := range t.Signers {
		if s.State == StateAbsent || s.State == StateUnread {
			out = append(out, s.Name)
		}
	}
	return out
}

// says is why the decision is no, one sentence for people; "" if something could not be read.
func (d *Decision) says(err error) string {
	name := d.Kind + " " + signing.Brief(d.Repository, d.Digest)
	switch {
	case fault.Retryable(err):
		return ""
	case d.Revoked != nil:
		return name + " is " + d.Revoked.String()
	case d.Rule == nil && errors.Is(err, fault.ErrRejected):
		return fmt.Sprintf("the policy has no rule for a %s in %s", d.Kind, d.Repository)
	case d.Signatures != nil && d.Signatures.Err != nil:
		if why := d.Signatures.says(); why != "" {
			return name + " " + why
		}
	case errors.Is(err, fault.ErrRejected) && d.Rule != nil:
		return fmt.Sprintf("the policy rejects %s: the rule for %s says so", name, d.Rule.Scope)
	}
	for _, t := range d.Attestations {
		if why := t.says(); why != "" {
			return name + " " + why
		}
	}
	return ""
}

// Of is Err with the name of the artifact that the decision is about, and a summary. name is what t counts.
func (t *Tally) Of(name string, d *Decision) error {
	err := fmt.Errorf("verify %s %s of %s@%s: %w", name, t.Type, d.Repository, d.Digest, t.Err)
	if says := t.says(); says != "" {
		err = fault.WithSummary(err, d.Kind+" "+signing.Brief(d.Repository, d.Digest)+" "+says)
	}
	return err
}

// says is Err for people, without the name of the artifact: "is signed by key sha256:66b53686176b…, which the policy does not
// trust"; "" if the quorum is reached, or something could not be read.
func (t *Tally) says() string {
	var names, bad []string
	for _, s := range t.Signers {
		names = append(names, s.Name)
		switch s.State {
		case StateExpired, StateNotYetValid, StateRevoked:
			bad = append(bad, s.Name+" ("+s.Reason+")")
		}
	}
	wanted := strings.Join(names, ", ")
	if len(names) > 1 {
		wanted = fmt.Sprintf("%d of %s", t.Threshold, wanted)
	}
	made, lacks := "is signed by ", "is not signed; the policy requires a signature by "+wanted
	if t.Type != signing.PredicateSign {
		made, lacks = "has an attestation of type "+t.Type+" by ", "has no attestation of type "+t.Type+" by "+wanted
	}
	other := signing.Signers(t.Others)
	switch {
	case t.Err == nil || fault.Retryable(t.Err):
		return ""
	case len(bad) > 0:
		return made + strings.Join(bad, ", ") + "; the policy requires " + wanted
	case t.Counted > 0:
		return made + strings.Join(t.Names(), ", ") + "; the policy requires " + wanted
	case errors.Is(t.Err, fault.ErrKeyRevoked) && other != "":
		return made + other + ", which the policy has revoked"
	case len(t.Bad) == 0 && other != "":
		return made + other + ", which the policy does not trust; it trusts " + wanted
	case len(t.Bad)+len(t.Others) > 0:
		return lacks + "; found: " + signing.Reasons(slices.Concat(t.Bad, t.Others))
	}
	return lacks
}

// Statements are what counts: one signature or statement of each signer that does.
func (t *Tally) Statements() []signing.Signature {
	var out []signing.Signature
	for _, s := range t.Signers {
		if s.State == StateCounted {
			out = append(out, s.Signatures[0])
		}
	}
	return out
}

// Statements are what counts: of the signatures, and of the attestations that the rule asks for.
func (d *Decision) Statements() []signing.Signature {
	var out []signing.Signature
	if d.Signatures != nil {
		out = d.Signatures.Statements()
	}
	for _, t := range d.Attestations {
		out = append(out, t.Statements()...)
	}
	return out
}

// Says puts the rule into a few words: "2 of release-a, release-b", "reject".
func (r *Rule) Says() string {
	var parts []string
	switch {
	case r.Reject:
		return "reject"
	case len(r.Quorum.Signers) > 0:
		parts = append(parts, r.Quorum.String())
	}
	if r.AllowUnsigned {
		parts = append(parts, "allowUnsigned")
	}
	for _, a := range r.Attestations {
		parts = append(parts, "attestation "+a.Type+" by "+a.Quorum.String())
	}
	if r.Freshness != nil {
		parts = append(parts, "freshness by "+r.Freshness.String())
	}
	return strings.Join(parts, ", ")
}

// String is "2 of a, b, c".
func (q Quorum) String() string {
	if len(q.Signers) == 1 {
		return q.Signers[0].Name
	}
	return fmt.Sprintf("%d of %s", q.Need(), strings.Join(names(q.Signers), ", "))
}
