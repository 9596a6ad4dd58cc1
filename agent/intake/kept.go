package intake

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// What counted when a generation was accepted stays on the device as long as the generation: a list, which the generation names, and each
// signature and attestation by itself, so that generations share them. With them a rollback by hand is verified without the registry.

const (
	typeKept = "application/vnd.longshore.kept.v1+json"
	maxKept  = 16 << 20 // of the list: some 20,000 signatures
)

// haveKept reports whether what counted is on the device, undamaged.
func (in *Intake) haveKept(ctx context.Context, kept []Kept) bool {
	return !slices.ContainsFunc(kept, func(k Kept) bool {
		_, err := in.o.Content.Get(ctx, k.Blob.Digest)
		return err != nil
	})
}

// passed takes in the verdict about a part that the policy lets pass.
func (b *builder) passed(ctx context.Context, p Part, v Verdict) error {
	name := fmt.Sprintf("%s %s", p.Kind, p.Repository)
	if v.Insecure {
		b.insecure = append(b.insecure, name)
	}
	if p.Kind == KindState {
		name = string(p.Kind)
	}
	if part := signers(name, v); len(part) > 0 && !slices.Contains(b.signers, part[0]) {
		b.signers = append(b.signers, part...)
	}
	for _, k := range v.Kept {
		if k.Data != nil {
			b.spare(ctx, ocispec.Descriptor{MediaType: k.Blob.MediaType, Digest: k.Blob.Digest, Size: k.Blob.Size}, k.Data)
		}
		k.Data = nil
		if !slices.ContainsFunc(b.kept, k.same) {
			b.kept = append(b.kept, k)
		}
	}
	return interrupted(ctx)
}

// spare keeps what a state can do without: a disk that is full must not keep away the state that frees it.
func (b *builder) spare(ctx context.Context, d ocispec.Descriptor, data []byte) {
	if b.unkept != nil {
		return // all of it is needed
	}
	if err := b.in.o.Content.StageSpare(ctx, d, data); err != nil {
		b.unkept = fmt.Errorf("keep %s %w: %w", d.Digest, errLocal, err)
	}
}

// interrupted says that a check took too long, or that the agent ends; nil: neither.
func interrupted(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return codes.Wrap(codes.SourceUnreachable, err)
	}
	return nil
}

// judged completes a state with what a policy says about its parts, which b has taken in. The state names the policy only if all that counted is
// kept and the policy is still the same: otherwise it is verified again later, see [Intake.verifyAgain].
func (b *builder) judged(ctx context.Context, s *store.State, policy string) error {
	s.Policy, s.Signatures = "", ""
	s.Signers = b.signers[:min(len(b.signers), maxSigners)]
	s.Insecure = b.insecure
	data, err := json.Marshal(b.kept)
	if err != nil {
		return codes.Wrap(codes.Internal, err)
	}
	d := ocispec.Descriptor{MediaType: typeKept, Digest: digest.FromBytes(data), Size: int64(len(data))}
	if len(b.kept) > 0 {
		b.spare(ctx, d, data)
	}
	switch err := interrupted(ctx); {
	case err != nil:
		return err
	case b.unkept != nil || b.in.o.Fingerprint() != policy:
		return nil
	case len(b.kept) > 0:
		s.Signatures = d.Digest
	}
	s.Policy = policy
	return nil
}

// kept reads the list of what counted when a state was accepted.
func (in *Intake) kept(ctx context.Context, s store.State) ([]Kept, error) {
	if s.Signatures == "" {
		return nil, nil
	}
	c := fetcher{in: in, offline: true}
	data, err := c.blob(ctx, s.Repository, ocispec.Descriptor{Digest: s.Signatures}, maxKept, false)
	var kept []Kept
	if err == nil {
		if err = json.Unmarshal(data, &kept); err != nil {
			err = errors.Join(fault.ErrInvalid, err)
		}
	}
	if err != nil {
		return nil, codes.Wrap(codes.ContentDamaged, fmt.Errorf("read the signatures of generation %d: %w", s.Generation, err))
	}
	return kept, nil
}

// Signatures are the names of what was kept of a state's signatures: nothing else names them. Of a list that is damaged it is the list: the
// others are of no use without it. An error: it cannot be read now.
func (in *Intake) Signatures(ctx context.Context, s store.State) (out []digest.Digest, err error) {
	kept, err := in.kept(ctx, s)
	if errors.Is(err, fault.ErrNotFound) || errors.Is(err, fault.ErrDigestMismatch) || errors.Is(err, fault.ErrInvalid) {
		err = nil
	}
	if s.Signatures != "" {
		out = append(out, s.Signatures)
	}
	for _, k := range kept {
		out = append(out, k.Blob.Digest)
	}
	return out, err
}

// Reverify reads a state that was accepted from the device, and holds it and all its parts against the trust policy as it is now, by what counted
// when they were accepted. The source is not asked.
func (in *Intake) Reverify(ctx context.Context, s store.State) (*plan.Desired, error) {
	d, b, err := in.load(ctx, s, true)
	v, ok := in.o.Verifier.(Reverifier)
	if err != nil || !ok {
		return d, err
	}
	kept, err := in.kept(ctx, s)
	if err != nil {
		return nil, err
	}
	var lost error // a file that is missing or damaged
	read := func(ctx context.Context, blob ocispec.Descriptor) ([]byte, error) {
		data, err := in.o.Content.Get(ctx, blob.Digest)
		if err != nil {
			lost = err
		}
		return data, err
	}
	for _, p := range b.parts {
		err := v.Reverify(ctx, p, kept, read)
		switch {
		case err == nil:
			continue
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case lost != nil:
			return nil, codes.Wrap(codes.ContentDamaged, fmt.Errorf("read the signatures of generation %d: %w", s.Generation, lost))
		case errors.Is(err, fault.ErrUnsigned) && s.Policy == "":
			err = fmt.Errorf("the device has no signatures of it: they could not be kept when it was verified: %w", err)
		case errors.Is(err, fault.ErrUnsigned) && len(kept) == 0:
			err = fmt.Errorf("the device has no signatures of it, because the policy asked for none when it was verified: %w", err)
		}
		return nil, codes.Wrap(verdictCode(p.Kind, err), err)
	}
	return d, nil
}

// verifyAgain holds the accepted state against another trust policy than the one it was accepted by: it may have been signed again, by signers who
// count now. It also brings again what counted and is not on the device: a rollback by hand needs it later.
func (in *Intake) verifyAgain(ctx context.Context, q *Query) (*store.State, error) {
	policy := in.o.Fingerprint()
	if _, ok := in.o.Verifier.(Reverifier); !ok || q.Accepted.Policy == policy && (q.Whole || in.hasAll(ctx, *q.Accepted)) {
		return nil, nil
	}
	_, b, err := in.load(ctx, *q.Accepted, true)
	if err != nil {
		return nil, err
	}
	s := *q.Accepted
	for _, p := range b.parts {
		v, err := in.verify(ctx, p.Kind, p.Repository, p.Artifact)
		if err == nil {
			err = b.passed(ctx, p, v)
		}
		if err != nil {
			return nil, err
		}
		if p.Kind == KindState {
			s.SignedBy = v.SignedBy
		}
	}
	if err := b.judged(ctx, &s, policy); err != nil || b.unkept != nil {
		return nil, codes.Wrap(codes.Of(cmp.Or(err, b.unkept)), cmp.Or(err, b.unkept))
	}
	if s.Policy == "" {
		return nil, nil // the policy changed again
	}
	if err := in.sync(ctx); err != nil {
		return nil, err
	}
	return &s, nil
}

// hasAll reports whether all that counted when a state was accepted is on the device, undamaged.
func (in *Intake) hasAll(ctx context.Context, s store.State) bool {
	kept, err := in.kept(ctx, s)
	return err == nil && in.haveKept(ctx, kept)
}
