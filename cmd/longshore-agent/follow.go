package main

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/trust"
)

// followPolicy reads the trust policy that decides on the device, and the one that is kept.
func followPolicy(file string, st *store.Store, client *registry.Client, now func() time.Time) *trust.Follower {
	return trust.NewFollower(trust.FollowerOptions{
		File: file, Read: func(name string, limit int64) ([]byte, error) { return bounded.File(os.Open, name, limit) }, Written: written, Keep: keeper{st}, Now: now,
		Open: func(ctx context.Context, repository string) (signing.Source, error) {
			return client.OpenName(ctx, repository)
		},
	})
}

func written(path string) time.Time {
	if fi, err := os.Stat(path); err == nil {
		return fi.ModTime()
	}
	return time.Time{}
}

// keeper keeps the policy that came from the registry in agent.db.
type keeper struct{ store *store.Store }

var _ trust.Keeper = keeper{}

func (k keeper) Load() (*trust.Kept, error) {
	var x *store.Trust
	err := k.store.View(func(tx *store.Tx) (err error) { x, err = tx.Trust(); return err })
	if x == nil || err != nil {
		return nil, err
	}
	return &trust.Kept{
		Version: x.Version, Digest: x.Digest, Repository: x.Repository, Anchor: x.Anchor, File: x.File,
		AcceptedAt: x.AcceptedAt, SignedBy: x.SignedBy, Document: x.Policy, Root: x.Root,
	}, nil
}

func (k keeper) LoadHeld() (*trust.Held, error) {
	var x *store.HeldTrust
	err := k.store.View(func(tx *store.Tx) (err error) { x, err = tx.HeldTrust(); return err })
	if x == nil || err != nil {
		return nil, err
	}
	h := trust.Held{Anchor: x.Anchor, Version: x.Version}
	for _, v := range x.Revoked {
		h.Revoked = append(h.Revoked, trust.Revocation(v))
	}
	return &h, nil
}

func (k keeper) SaveHeld(h trust.Held) error {
	x := store.HeldTrust{Anchor: h.Anchor, Version: h.Version}
	for _, v := range h.Revoked {
		x.Revoked = append(x.Revoked, store.Revocation(v))
	}
	return k.store.Update(func(tx *store.Tx) error { return tx.SetHeldTrust(x) })
}

func (k keeper) Save(x trust.Kept) error {
	return k.store.Update(func(tx *store.Tx) error {
		err := tx.SetTrust(store.Trust{
			Version: x.Version, Digest: x.Digest, Repository: x.Repository, Anchor: x.Anchor, File: x.File,
			AcceptedAt: x.AcceptedAt, SignedBy: x.SignedBy, Policy: x.Document, Root: x.Root,
		})
		if g := x.Generations; g != nil && err == nil { // with the version: a power cut must not come between
			_, err = tx.ResetGenerations(store.Reset{To: g.To, Version: g.Version}, x.AcceptedAt)
		}
		return err
	})
}

// trustPort is the agent's view of the policy.
type trustPort struct {
	policy *trust.Follower
	file   string
	now    func() time.Time
}

var _ intake.Trust = trustPort{}

// Refresh implements [intake.Trust].
func (p trustPort) Refresh(ctx context.Context, hold func(intake.TrustVersion) bool) (taken []intake.TrustVersion, held *intake.TrustVersion, err error) {
	var next intake.TrustVersion
	var ask func(before *trust.Policy, s *trust.Step) bool
	if hold != nil {
		ask = func(before *trust.Policy, s *trust.Step) bool {
			next = trustVersion(s)
			next.Changes = trust.Difference(before, s.Policy)
			return hold(next)
		}
	}
	steps, waits, err := p.policy.Refresh(ctx, ask)
	for _, s := range steps {
		taken = append(taken, trustVersion(s))
	}
	if waits != nil {
		held = &next
	}
	return taken, held, withTrustCode(err)
}

func trustVersion(s *trust.Step) intake.TrustVersion {
	return intake.TrustVersion{Version: s.Policy.Version, Digest: s.Descriptor.Digest, SignedBy: s.Old.Names(), Parted: s.Parted}
}

// withTrustCode gives an error of a follower its code. What may be an attack comes before what may pass.
func withTrustCode(err error) error {
	for _, k := range []struct {
		kind error
		code codes.Code
	}{
		{trust.ErrOlder, codes.TrustRollback},
		{fault.ErrConfig, codes.Config}, // the registry was not asked
		{trust.ErrNotNext, codes.TrustInvalid},
		{trust.ErrUnusable, codes.TrustUnusable},
		{trust.ErrMissing, codes.TrustMissing},
		{trust.ErrUnreachable, codes.TrustUnreachable},
	} {
		if errors.Is(err, k.kind) {
			return &codes.Error{Code: k.code, Err: err}
		}
	}
	return err
}

// Status implements [intake.Trust].
func (p trustPort) Status() status.Trust {
	f := p.policy.InForce()
	s := status.Trust{Source: status.TrustFromFile, File: p.file, Digest: f.FileSum, Since: f.Written}
	if f.Err != nil {
		s.Problem = "trust policy: " + f.Err.Error()
		return s
	}
	s.Version, s.Expires, s.Expired = f.Policy.Version, f.Policy.Expires, f.Policy.Expired(p.now())
	if t := f.Policy.Trust; t != nil {
		s.Repository = t.Repository
	}
	if k := f.Kept; k != nil {
		s.Source, s.Digest, s.Since, s.SignedBy = status.TrustFromRegistry, k.Digest, k.AcceptedAt, k.SignedBy
	}
	if g := f.Policy.Generations; g != nil {
		s.Generations = &status.GenerationReset{To: g.To, Version: g.Version}
	}
	if f.Override {
		s.Note = p.file + " was changed and does not count: the registry's version is newer"
	}
	return s
}

// Signers implements [intake.Trust].
func (p trustPort) Signers() []string {
	policy := p.policy.InForce().Policy
	if policy == nil {
		return nil
	}
	names := []string{}
	for _, s := range policy.Signers {
		if policy.KeyRevoked(s.Key.Fingerprint) == nil {
			names = append(names, s.Name)
		}
	}
	return names
}

// Revoked implements [intake.Trust].
func (p trustPort) Revoked(keys, content []digest.Digest) []store.Revocation {
	policy := p.policy.InForce().Policy
	if policy == nil {
		return nil
	}
	var out []store.Revocation
	for _, v := range policy.Revoked {
		if slices.Contains(keys, v.Key) || slices.Contains(content, v.Digest) {
			out = append(out, store.Revocation(v))
		}
	}
	return out
}
