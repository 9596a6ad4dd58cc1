package audit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/trust"
)

// Policy is a judge that decides like a device with this trust policy.
type Policy struct {
	*trust.Policy
	Now time.Time // for the validity of signers
	// Elsewhere opens the repository of signatures that a rule names; nil: not supported.
	Elsewhere func(ctx context.Context, repository string) (signing.Source, error)
	// Attestation is a predicate type: then only the rule's requirement for such statements is checked.
	Attestation string
}

// Ruling is the reason of a policy's decision: the rule, and the state of each of its signers.
type Ruling struct {
	Rule      *trust.Choice  `json:"rule,omitempty"` // nil: no rule matches
	Threshold int            `json:"threshold,omitempty"`
	Counted   int            `json:"counted"`
	Signers   []SignerResult `json:"signers,omitempty"`
	Noticed   []string       `json:"noticed,omitempty"` // signatures that do not count, and why
}

// SignerResult is one signer of a rule.
type SignerResult struct {
	Name   string      `json:"name"`
	Kind   string      `json:"kind"`
	About  string      `json:"about"` // a fingerprint, or subject and issuer
	State  trust.State `json:"state"`
	Reason string      `json:"reason,omitempty"`
}

// Judge implements [Judge].
func (p Policy) Judge(ctx context.Context, src signing.Source, s Subject) []Check {
	d := p.Decide(ctx, trust.VerifyRequest{
		Source: src, Kind: string(s.Kind), Subject: s.Descriptor, Now: p.Now, Thorough: true, Elsewhere: p.Elsewhere,
	})
	if p.Attestation != "" {
		return []Check{p.attestation(d)}
	}
	checks := []Check{p.signature(d, s)}
	for _, t := range d.Attestations {
		checks = append(checks, tallied("attestation", d, &t, t.Type))
	}
	return checks
}

// signature is the result for signatures. If they are sufficient and the decision is negative, that is because of attestations.
func (p Policy) signature(d *trust.Decision, s Subject) Check {
	c := Check{Name: "signature", Ruling: &Ruling{Rule: d.Rule}}
	switch {
	case d.Insecure:
		c.Result, c.Detail = Insecure, "not signed, and the policy has allowUnsigned"
	case d.Signatures != nil && (d.Signatures.Err == nil || d.Err == nil):
		return tallied("signature", d, d.Signatures, "")
	case d.Err != nil:
		c = fails("signature", d.Err)
		switch {
		case d.Signatures != nil:
			c.Ruling = ruling(d.Rule, d.Signatures)
		case d.Revoked == nil: // otherwise no rule was evaluated
			c.Ruling = &Ruling{Rule: d.Rule}
		}
	default:
		c.Result, c.Detail = NotAsked, "the policy requires no signature of "+string(s.Kind)+"s in this repository"
	}
	return c
}

// attestation is the result for one type of statements.
func (p Policy) attestation(d *trust.Decision) Check {
	for _, t := range d.Attestations {
		if t.Type == p.Attestation {
			return tallied("attestation", d, &t, t.Type)
		}
	}
	err := d.Err
	if err == nil {
		err = fmt.Errorf("verify %s %s@%s: %w: the policy requires no attestation %s there, so it trusts no signer of one", d.Kind, d.Repository, d.Digest, fault.ErrRejected, p.Attestation)
		err = fault.WithSummary(err, fmt.Sprintf("the rule for %s names no signers of attestations of type %s", d.Repository, p.Attestation))
	}
	return fails("attestation", err)
}

// tallied describes the count of a quorum, and why each of its signers counts or does not.
func tallied(name string, d *trust.Decision, t *trust.Tally, predicateType string) Check {
	c := Check{Name: name, Result: Passed, Signatures: SignedOf(t.Statements(), predicateType)}
	if t.Err != nil {
		c = fails(name, t.Of(name, d))
	} else if t.Threshold > 1 {
		c.Detail = fmt.Sprintf("%d of %d signers, %d needed", t.Counted, len(t.Signers), t.Threshold)
	}
	c.Ruling = ruling(d.Rule, t)
	return c
}

func ruling(rule *trust.Choice, t *trust.Tally) *Ruling {
	r := &Ruling{Rule: rule, Threshold: t.Threshold, Counted: t.Counted}
	for _, s := range t.Signers {
		r.Signers = append(r.Signers, SignerResult{s.Name, s.Kind, s.About, s.State, s.Reason})
	}
	for _, n := range slices.Concat(t.Bad, t.Others) {
		r.Noticed = append(r.Noticed, n.String())
	}
	if t.Unread != "" {
		r.Noticed = append(r.Noticed, "could not be read: "+t.Unread)
	}
	return r
}

// Unchecked implements [Judge].
func (p Policy) Unchecked() []Unchecked {
	out := []Unchecked{{"transparency log", "not contacted; log entries of identities are verified offline"}}
	if p.Attestation != "" {
		return append(out, Unchecked{"signatures", "only the attestation was verified"})
	}
	fresh := slices.ContainsFunc(p.Rules, func(r trust.Rule) bool { return r.Freshness != nil })
	if !fresh {
		out = append(out, Unchecked{"freshness", "no rule requires it"})
	}
	var asked []string
	for _, kind := range trust.Kinds() {
		if !slices.ContainsFunc(p.Rules, func(r trust.Rule) bool { return slices.Contains(r.Artifacts, kind) }) && kind != trust.KindState && kind != trust.KindTrust {
			asked = append(asked, kind+"s")
		}
	}
	if len(asked) > 0 {
		out = append(out, Unchecked{"signers of " + strings.Join(asked, ", "), "no rule covers them; the artifacts above name their digests"})
	}
	return out
}

var _ Judge = Policy{}
