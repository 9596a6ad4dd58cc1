package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/audit"
	"github.com/longshore-dev/longshore/signing/trust"
)

// signersInfo describes the signers of an artifact.
type signersInfo struct {
	Signers []signerInfo `json:"signers"` // verified ones; without a key or a policy, the claimed ones
	// Unverified is why a device would refuse the signatures; "": it would not, or they were not verified.
	Unverified string `json:"unverified,omitempty"`
	Unread     string `json:"unread,omitempty"` // why some of them could not be read
}

type signerInfo struct {
	Name     string        `json:"name,omitempty"` // from the policy or the key file; "": not verified
	Key      digest.Digest `json:"key,omitempty"`  // fingerprint
	Identity string        `json:"identity,omitempty"`
	Issuer   string        `json:"issuer,omitempty"`
	Time     string        `json:"time,omitempty"` // as the signer claims, or as a timestamp or a log proves
	Verified bool          `json:"verified"`
}

// String describes the signer for people.
func (s signerInfo) String() string {
	key := ""
	if s.Key != "" {
		key = "key " + printable.Digest(s.Key)
	}
	return oneLine(cmp.Or(s.Name, s.Identity, key, "an unknown key"))
}

// String lists the signers for people.
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

// time is when the first of them signed; "" if it is unknown.
func (i signersInfo) time() string {
	first := ""
	for _, s := range i.Signers {
		if t, err := time.Parse(time.RFC3339, s.Time); err == nil && (first == "" || stamp(t) < first) {
			first = stamp(t)
		}
	}
	return first
}

// untrusted reports whether a device would refuse the signatures.
func (i signersInfo) untrusted() bool { return i.Unverified != "" }

// unverified is an error if a history lists what has no trusted signature.
func unverified[T interface{ untrusted() bool }](where, what string, all []T) error {
	n := 0
	for _, x := range all {
		if x.untrusted() {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	has := "have"
	if n == 1 {
		has = "has"
	}
	return outcome.WithCode(fmt.Errorf("%s: %d of %s %s no trusted signature", where, n, printable.Counted(len(all), what), has), outcome.Verification)
}

type findSigners func(context.Context, *registry.Repository, ocispec.Descriptor) (signersInfo, error)

// signersOf returns a function that finds the signers of states and records of rollouts: those that --verify-key or --policy verifies, or,
// without these flags, those that the signatures claim.
func (c *call) signersOf() (of findSigners, verifies bool, err error) {
	trusted, err := c.verifiers(nil)
	if err != nil {
		return nil, false, err
	}
	return func(ctx context.Context, repo *registry.Repository, subject ocispec.Descriptor) (signersInfo, error) {
		i := signersInfo{Signers: []signerInfo{}}
		signed, err := c.signaturesOf(ctx, repo)
		if err != nil {
			return i, err
		}
		var untrusted error // why it is not verified
		if len(trusted) > 0 {
			found, err := signing.Examine(ctx, signed, subject, signing.Query{PredicateType: signing.PredicateSign, Verifiers: trusted})
			if err != nil {
				return i, err
			}
			if i.verified("", found.Good); len(found.Good) == 0 {
				untrusted = found.Of(signed, subject)
			}
		}
		if c.policy != nil && len(i.Signers) == 0 {
			d := c.decide(ctx, repo, trust.KindState, subject)
			if untrusted = d.Err; d.Signatures != nil && d.Err == nil {
				for _, s := range d.Signatures.Signers {
					if s.State == trust.StateCounted {
						i.verified(s.Name, s.Signatures[:1])
					}
				}
			}
		}
		switch {
		case errors.Is(untrusted, fault.ErrTemporary) || ctx.Err() != nil:
			return i, untrusted
		case untrusted != nil:
			i.Unverified = fault.Summary(untrusted)
			return i, nil
		case len(trusted) > 0 || c.policy != nil:
			return i, nil
		}
		claims, err := audit.Claimed(ctx, signed, subject)
		for _, s := range claims {
			i.Signers = append(i.Signers, signerInfo{Key: s.Key, Identity: s.Identity, Issuer: s.Issuer, Time: cmp.Or(s.Time, s.Logged)})
		}
		if err != nil {
			i.Unread = fault.Summary(err)
		}
		return i, ctx.Err()
	}, c.policy != nil || len(trusted) > 0, nil
}

// verified adds valid signatures by name; "" means the name in the signature.
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
