package trust

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/signing"
)

// VerifyRequest is about one artifact.
type VerifyRequest struct {
	Source  signing.Source // the artifact's repository
	Kind    string
	Subject ocispec.Descriptor
	Now     time.Time // by the best clock there is
	// Thorough looks at everything there is, also where what was found suffices: for people.
	Thorough bool
	// Elsewhere opens the repository in which a rule says that signatures are. nil: there is no such way, and the answer
	// about such an artifact is no.
	Elsewhere func(ctx context.Context, repository string) (signing.Source, error)
	// Keep is given the good signatures and statements that are read; nil: nobody is.
	Keep *signing.Keeper
}

// Decide holds an artifact against the policy: revocations, the rule of its kind and repository, that rule's signers,
// and the attestations that it asks for. Freshness is not looked at: it is about when, and [Policy.Count] counts it.
//
// A state that no rule speaks about is rejected. So is everything else where some rule speaks about its kind: a component,
// image or bundle of which the whole policy says nothing passes, since a signed state names it by digest.
//
// Decision.Err wraps one of fault.ErrDigestRevoked, ErrRejected, the kinds of [Policy.Count], ErrNoAttestation and
// ErrBadAttestation, or why something could not be read.
func (p *Policy) Decide(ctx context.Context, q VerifyRequest) *Decision {
	d := &Decision{Repository: q.Source.Name(), Kind: q.Kind, Digest: q.Subject.Digest}
	if err := p.decide(ctx, q, d); err != nil {
		d.Err = fmt.Errorf("verify %s@%s: %w", d.Repository, d.Digest, err)
		if says := d.says(err); says != "" {
			d.Err = fault.WithSummary(d.Err, says)
		}
		d.SignedBy, d.Insecure = nil, false
	}
	return d
}

func (p *Policy) decide(ctx context.Context, q VerifyRequest, d *Decision) error {
	if !slices.Contains(Kinds(), q.Kind) {
		return fmt.Errorf("%w: kind %q", fault.ErrInvalid, q.Kind)
	}
	if v := p.DigestRevoked(q.Subject.Digest); v != nil {
		d.Revoked = v
		return fmt.Errorf("%w: %s", fault.ErrDigestRevoked, v)
	}
	rule, found := p.Match(q.Kind, d.Repository)
	if !found {
		return p.unspoken(q, d)
	}
	d.Rule = p.choice(q.Kind, d.Repository, rule)
	if rule.Reject {
		return fmt.Errorf("%w: the rule for %s", fault.ErrRejected, rule.Scope)
	}
	if len(rule.Quorum.Signers) == 0 && !rule.AllowUnsigned { // only a Policy that was put together by hand
		return fmt.Errorf("%w: the rule for %s has no key", fault.ErrRejected, rule.Scope)
	}
	st, err := q.place(ctx, rule)
	if err != nil {
		return err
	}
	if err := p.signatures(ctx, q, st, rule, d); err != nil {
		return err
	}
	return p.attestations(ctx, q, st, rule, d)
}

// unspoken decides where no rule matches.
func (p *Policy) unspoken(q VerifyRequest, d *Decision) error {
	spoken := slices.ContainsFunc(p.Rules, func(r Rule) bool { return slices.Contains(r.Kinds(), q.Kind) })
	if q.Kind != KindState && !spoken {
		return nil // what names it by digest vouches for it
	}
	err := fmt.Errorf("%w: no rule speaks about a %s there", fault.ErrRejected, q.Kind)
	if margo.IsManager(d.Repository) {
		return fault.WithHint(fmt.Errorf("%w, and the manager's State Manifests are not signed", err),
			"name the repository of signed states: state in agent.yaml; or accept unsigned ones of this manager: a rule with scope: "+d.Repository+" and allowUnsigned: true in the trust policy")
	}
	return fault.WithHint(err, "add a rule with scope: "+d.Repository+" and its keys to the trust policy")
}

// place is where signatures are.
func (q VerifyRequest) place(ctx context.Context, rule Rule) (signing.Source, error) {
	if !rule.keptElsewhere(q.Source.Name()) {
		return q.Source, nil
	}
	if q.Elsewhere == nil {
		return nil, fmt.Errorf("%w: signatures are in %s, which cannot be opened from here", fault.ErrUnsupported, rule.Signatures)
	}
	st, err := q.Elsewhere(ctx, rule.Signatures)
	if err != nil {
		return nil, fmt.Errorf("open %s for signatures: %w", rule.Signatures, err)
	}
	return st, nil
}

func (p *Policy) signatures(ctx context.Context, q VerifyRequest, st signing.Source, rule Rule, d *Decision) error {
	if len(rule.Quorum.Signers) == 0 {
		d.Insecure = true
		return nil
	}
	d.Signatures = p.count(ctx, st, signing.PredicateSign, rule.Quorum, q)
	if rule.AllowUnsigned && errors.Is(d.Signatures.Err, fault.ErrUnsigned) {
		d.Insecure = true
		return nil
	}
	d.SignedBy = d.Signatures.Names()
	return d.Signatures.Err
}

// attestations are looked for one after the other, all of them: a person wants to know each that is missing.
func (p *Policy) attestations(ctx context.Context, q VerifyRequest, st signing.Source, rule Rule, d *Decision) error {
	var first error
	for _, a := range rule.Attestations {
		t := p.count(ctx, st, a.Type, a.Quorum, q)
		d.Attestations = append(d.Attestations, *t)
		if t.Err != nil && first == nil {
			first = unattested(a, t.Err)
		}
	}
	return first
}

// unattested names what is wrong with an attestation: a revoked or expired key keeps its own name, everything else is
// about the attestation, so that a good signature is not searched for.
func unattested(a Attestation, err error) error {
	what := "attestation " + a.Type
	for kind, name := range map[error]error{
		fault.ErrUnsigned: fault.ErrNoAttestation, fault.ErrThreshold: fault.ErrNoAttestation, fault.ErrBadSignature: fault.ErrBadAttestation,
		fault.ErrTooLarge: fault.ErrBadAttestation,
	} {
		if errors.Is(err, kind) && !errors.Is(err, fault.ErrTemporary) {
			return fmt.Errorf("%s: %w: %v", what, name, err)
		}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// choice tells which rule decides, over which others.
func (p *Policy) choice(kind, repository string, rule Rule) *Choice {
	c := &Choice{Path: rule.path, Scope: rule.Scope, Artifacts: rule.Kinds(), Says: rule.Says()}
	for _, r := range p.Rules {
		if r.Scope != rule.Scope && r.reach(repository) > 0 && slices.Contains(r.Kinds(), kind) {
			c.Over = append(c.Over, fmt.Sprintf("%s (%s)", r.path, r.Scope))
		}
	}
	return c
}
