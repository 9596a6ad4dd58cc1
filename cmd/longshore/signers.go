package main

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/audit"
	"github.com/longshore-dev/longshore/signing/trust"
)

// signersInfo is who signed an artifact.
type signersInfo struct {
	Signers []signerInfo `json:"signers"` // verified ones; without a key or a policy to verify with, all that say so
	// Unverified is why a device would refuse the signatures, where they were verified; "": it would not, or nobody asked.
	Unverified string `json:"unverified,omitempty"`
	Unread     string `json:"unread,omitempty"` // why some that say so could not be read
}

type signerInfo struct {
	Name     string        `json:"name,omitempty"` // that the policy or the key file gives; "": not verified
	Key      digest.Digest `json:"key,omitempty"`  // fingerprint
	Identity string        `json:"identity,omitempty"`
	Issuer   string        `json:"issuer,omitempty"`
	Time     string        `json:"time,omitempty"` // when, as the signer says, or proven by a timestamp or a log
	Verified bool          `json:"verified"`
}

// String is the signer for people.
func (s signerInfo) String() string {
	key := ""
	if s.Key != "" {
		key = "key " + short(s.Key)
	}
	return oneLine(cmp.Or(s.Name, s.Identity, key, "a key that is not told"))
}

// String is all of them for people.
func (i signersInfo) String() string {
	if i.Unverified != "" {
		return "! not verified"
	}
	var all []string
	for _, s := range i.Signers {
		all = append(all, s.String())
	}
	if len(all) == 0 {
		return "no signature"
	}
	return strings.Join(all, ", ")
}

// time is when the first of them signed; "": nobody says.
func (i signersInfo) time() string {
	first := ""
	for _, s := range i.Signers {
		if t, err := time.Parse(time.RFC3339, s.Time); err == nil && (first == "" || stamp(t) < first) {
			first = stamp(t)
		}
	}
	return first
}

// signersOf finds out who signed artifacts of a kind: verified by --verify-key and --policy, if the flags name one, else as the
// signatures say.
func (p *program) signersOf(c *cli.Context, client *registry.Client, kind string) (of func(context.Context, *registry.Repository, ocispec.Descriptor) (signersInfo, error), verifies bool, err error) {
	policy, err := p.policy(c)
	if err != nil {
		return nil, false, err
	}
	trusted, err := trustees(c, nil)
	if err != nil {
		return nil, false, err
	}
	return func(ctx context.Context, repo *registry.Repository, subject ocispec.Descriptor) (signersInfo, error) {
		i := signersInfo{Signers: []signerInfo{}}
		signed, err := p.signedAt(ctx, repo)
		if err != nil {
			return i, err
		}
		var told error // why nobody has verified it
		if len(trusted) > 0 {
			found, err := signing.Examine(ctx, signed, subject, signing.Query{PredicateType: signing.PredicateSign, Verifiers: trusted})
			if err != nil {
				return i, err
			}
			if i.verified("", found.Good); len(found.Good) == 0 {
				told = found.Err()
			}
		}
		if policy != nil && len(i.Signers) == 0 {
			d := policy.Decide(ctx, trust.Question{Source: repo, Kind: kind, Subject: subject, Now: p.now(), Elsewhere: elsewhere(client)})
			if told = d.Err; d.Signatures != nil && d.Err == nil {
				for _, s := range d.Signatures.Signers {
					if s.State == trust.StateCounted {
						i.verified(s.Name, s.Signatures[:1])
					}
				}
			}
		}
		switch {
		case errors.Is(told, fault.ErrTemporary) || ctx.Err() != nil:
			return i, told
		case told != nil:
			i.Unverified = told.Error()
			return i, nil
		case len(trusted) > 0 || policy != nil:
			return i, nil
		}
		claims, err := audit.Claimed(ctx, signed, subject)
		for _, s := range claims {
			i.Signers = append(i.Signers, signerInfo{Key: s.Key, Identity: s.Identity, Issuer: s.Issuer, Time: cmp.Or(s.Time, s.Logged)})
		}
		if err != nil {
			i.Unread = err.Error()
		}
		return i, ctx.Err()
	}, policy != nil || len(trusted) > 0, nil
}

// verified adds good signatures; name is who made them, "" where they say it.
func (i *signersInfo) verified(name string, all []signing.Signature) {
	for _, s := range all {
		at := s.Time
		if !s.Proven.IsZero() {
			at = s.Proven
		}
		i.Signers = append(i.Signers, signerInfo{
			Name: cmp.Or(name, s.By), Key: s.Fingerprint, Identity: s.Identity, Issuer: s.Issuer, Time: stamp(at), Verified: true,
		})
	}
}
