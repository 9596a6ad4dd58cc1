package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/trust"
)

// verifier holds artifacts against the trust policy as it is now, see [trust.Follower].
type verifier struct {
	policy   *trust.Follower
	registry *registry.Client
	now      func() time.Time // what signers' times are held against
	fresh    func() time.Time // what freshness statements are held against
}

var (
	_ signing.Mirrored  = (*registry.Repository)(nil) // else mirrors would have the last word
	_ intake.Reverifier = (*verifier)(nil)            // else a rollback by hand would not verify signatures
)

// Verify implements [intake.Verifier].
func (v *verifier) Verify(ctx context.Context, kind intake.Kind, repository string, d ocispec.Descriptor) (intake.Verdict, error) {
	policy, err := v.policy.Policy()
	if err != nil {
		return intake.Verdict{}, err
	}
	repo, err := v.place(ctx, repository)
	if err != nil {
		return intake.Verdict{}, err
	}
	var keeper signing.Keeper
	decision := policy.Decide(ctx, trust.VerifyRequest{
		Source: repo, Kind: string(kind), Subject: d, Now: v.now(), Keep: &keeper, Elsewhere: v.elsewhere,
	})
	out := verdict(decision, policy.Until(v.now()))
	if decision.Err != nil {
		return out, decision.Err
	}
	for _, p := range keeper.Pieces(decision.Statements()) {
		about, err := json.Marshal(p)
		if err != nil {
			return out, err
		}
		out.Kept = append(out.Kept, intake.Kept{About: about, Blob: p.Layer, Data: p.Data})
	}
	return out, nil
}

// Reverify implements [intake.Reverifier].
func (v *verifier) Reverify(ctx context.Context, part intake.Part, kept []intake.Kept, read func(context.Context, ocispec.Descriptor) ([]byte, error)) error {
	policy, err := v.policy.Policy()
	if err != nil {
		return err
	}
	src := signing.KeptSource{Repository: part.Repository, Read: read}
	for _, k := range kept {
		p := signing.Piece{}
		if err := json.Unmarshal(k.About, &p); err != nil {
			return fmt.Errorf("read kept signatures: %w: %w", fault.ErrInvalid, err)
		}
		p.Layer = k.Blob
		src.Pieces = append(src.Pieces, p)
	}
	return policy.Decide(ctx, trust.VerifyRequest{
		Source: src, Kind: string(part.Kind), Subject: part.Artifact, Now: v.now(),
		Elsewhere: func(_ context.Context, repository string) (signing.Source, error) {
			return signing.KeptSource{Repository: repository, Pieces: src.Pieces, Read: read}, nil
		},
	}).Err
}

// place is where an artifact's signatures are; a manager has none.
func (v *verifier) place(ctx context.Context, repository string) (signing.Source, error) {
	if margo.IsManager(repository) {
		return unsigned{name: repository}, nil
	}
	return v.elsewhere(ctx, repository)
}

// elsewhere opens a repository of signatures.
func (v *verifier) elsewhere(ctx context.Context, repository string) (signing.Source, error) {
	return v.registry.OpenName(ctx, repository)
}

// Freshness implements [intake.Fresher].
func (v *verifier) Freshness(ctx context.Context, repository string, d ocispec.Descriptor, tag string, generation uint64) (intake.Freshness, error) {
	policy, err := v.policy.Policy()
	if err != nil {
		return intake.Freshness{}, err
	}
	repo, err := v.place(ctx, repository)
	if err != nil {
		return intake.Freshness{}, err
	}
	f, err := policy.Freshness(ctx, trust.VerifyRequest{
		Source: repo, Kind: trust.KindState, Subject: d, Now: v.fresh(), Elsewhere: v.elsewhere,
	}, tag, generation)
	return intake.Freshness{
		Required: f.Required, Signers: f.Signers, By: strings.Join(f.By, ", "), IssuedAt: f.IssuedAt, NotAfter: f.NotAfter,
	}, err
}

func verdict(d *trust.Decision, until time.Time) intake.Verdict {
	out := intake.Verdict{SignedBy: d.SignedBy, Insecure: d.Insecure, Until: until}
	if d.Signatures == nil || d.Err != nil {
		return out
	}
	for i, s := range d.Signatures.Statements() {
		at := s.Time
		if !s.Proven.IsZero() {
			at = s.Proven
		}
		if i == 0 || at.Before(out.SignedAt) {
			out.SignedAt = at
		}
		if out.Keys == nil {
			out.Keys = map[string]digest.Digest{}
		}
		out.Keys[s.By] = s.Fingerprint
	}
	return out
}
