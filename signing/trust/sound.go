package trust

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

// Sound tells what would keep a device that took the policy over from ever getting another one: no one who may sign the
// next, too few of them that are neither revoked nor expired, its own trust artifacts rejected, or their signatures asked for
// where devices do not look. A threshold that could never have been met is refused by [Parse]. Keys of rules may have
// expired: see [Policy.Doubts]; a device that was away for long may be on its way to a version that has new ones.
//
// repository is where the policy is published.
func (p *Policy) Sound(now time.Time, repository string) error {
	unusable := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s: %w", ErrUnusable, fmt.Sprintf(format, args...), fault.ErrRejected)
	}
	switch {
	case p.Version == 0:
		return unusable("it has no version")
	case p.Trust == nil:
		return unusable("it has no trust section, so no signer could sign the next version")
	}
	if n := len(p.lasting(p.Trust.Quorum, now)); n < p.Trust.Need() {
		return unusable("%strust: %d must sign the next one, and only %d of its signers could: the others are revoked or expired", p.Trust.at, p.Trust.Need(), n)
	}
	for _, at := range []string{repository, p.Trust.Repository} {
		switch r, found := p.Match(KindTrust, at); {
		case found && r.Reject:
			return unusable("%sthe rule for %s rejects the trust policies of %s", r.at, r.Scope, at)
		case found && r.keptElsewhere(at):
			return unusable("%sthe rule for %s wants the signatures of the trust policies of %s in %s, and they are beside them", r.at, r.Scope, at, r.Signatures)
		}
	}
	return nil
}

// Doubts lists what is no reason to refuse the policy once it is published, and a reason not to publish it: it has expired,
// or rules ask for what can not be signed any more because keys have.
func (p *Policy) Doubts(now time.Time) []string {
	var out []string
	if p.Expired(now) {
		out = append(out, fmt.Sprintf("%sit expired %s", p.expiresAt, p.Expires.UTC().Format(time.RFC3339)))
	}
	doubt := func(r Rule, what string, q Quorum) {
		if n := len(p.lasting(q, now)); len(q.Signers) > 0 && n < q.Need() {
			out = append(out, fmt.Sprintf("%s%s (%s): %s: %d must sign, and only %d of %s are neither revoked nor expired",
				r.at, r.path, r.Scope, what, q.Need(), n, strings.Join(names(q.Signers), ", ")))
		}
	}
	for _, r := range p.Rules {
		doubt(r, "signers", r.Quorum)
		for _, a := range r.Attestations {
			doubt(r, "attestation "+a.Type, a.Quorum)
		}
		if r.Freshness != nil {
			doubt(r, "freshness", *r.Freshness)
		}
	}
	return out
}

func names(all []*Signer) []string {
	out := make([]string, len(all))
	for i, s := range all {
		out[i] = s.Name
	}
	return out
}

// Expired reports whether the policy's own date has passed.
func (p *Policy) Expired(now time.Time) bool { return !p.Expires.IsZero() && !now.Before(p.Expires) }

// lasting lists the different signers of a quorum that can sign now or later.
func (p *Policy) lasting(q Quorum, now time.Time) []*Signer {
	var out []*Signer
	seen := map[string]bool{}
	for _, s := range q.Signers {
		if s.stateAt(now) != StateExpired && p.KeyRevoked(s.Key.Fingerprint) == nil && !seen[s.about] {
			seen[s.about] = true
			out = append(out, s)
		}
	}
	return out
}

// admits holds a trust artifact against the rules, if one speaks about its kind.
func (p *Policy) admits(ctx context.Context, now time.Time, src signing.Source, subject ocispec.Descriptor) error {
	if v := p.DigestRevoked(subject.Digest); v != nil {
		return fmt.Errorf("%w: %s", fault.ErrDigestRevoked, v)
	}
	if _, found := p.Match(KindTrust, src.Name()); !found {
		return nil
	}
	return p.Decide(ctx, VerifyRequest{Source: src, Kind: KindTrust, Subject: subject, Now: now}).Err
}

// Anchor names who may sign the next policy and where it comes from: what a travelling policy descends from. "" when no
// other can follow.
func (p *Policy) Anchor() string {
	if p.Trust == nil {
		return ""
	}
	var all []string
	for _, s := range p.Trust.Signers {
		all = append(all, s.Kind+" "+s.about)
	}
	slices.Sort(all)
	return digest.FromString(fmt.Sprint(p.Trust.Repository, " ", p.Trust.Need(), " ", strings.Join(slices.Compact(all), "\n"))).String()
}

// passed counts the moments at which a signer begins or ends that have passed.
func (p *Policy) passed(now time.Time) int {
	n := 0
	for _, s := range p.Signers {
		for _, at := range []time.Time{s.NotBefore, s.NotAfter} {
			if !at.IsZero() && !now.Before(at) {
				n++
			}
		}
	}
	return n
}
