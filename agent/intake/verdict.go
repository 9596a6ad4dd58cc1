package intake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxSigners bounds what is remembered of who signed a generation.
const maxSigners = 256

// verdicts remembers what the verifier let pass, so that an unchanged component costs nothing when its neighbour changes.
type verdicts struct {
	mu     sync.Mutex
	policy string
	passed map[string]Verdict
}

// maxVerdicts bounds the memory; beyond it everything is asked again.
const maxVerdicts = 4096

// verify asks the verifier, once per artifact and policy, and names what it says.
func (in *Intake) verify(ctx context.Context, kind Kind, repository string, d ocispec.Descriptor) (Verdict, error) {
	key := string(kind) + " " + repository + "@" + d.Digest.String()
	policy := in.o.Fingerprint()
	in.verdicts.mu.Lock()
	if in.verdicts.policy != policy || len(in.verdicts.passed) >= maxVerdicts || in.verdicts.passed == nil {
		in.verdicts.policy, in.verdicts.passed = policy, map[string]Verdict{}
	}
	v, ok := in.verdicts.passed[key]
	in.verdicts.mu.Unlock()
	if ok && (v.Until.IsZero() || in.o.Now().Before(v.Until)) && in.haveKept(ctx, v.Kept) {
		return v, nil
	}
	v, err := in.o.Verifier.Verify(ctx, kind, repository, d)
	if err != nil {
		return v, codes.Wrap(verdictCode(kind, err), fmt.Errorf("verify %s %s@%s: %w", kind, repository, d.Digest, err))
	}
	same := in.o.Fingerprint() == policy
	in.verdicts.mu.Lock()
	defer in.verdicts.mu.Unlock()
	if same && in.verdicts.policy == policy {
		remembered := v
		remembered.Kept = slices.Clone(v.Kept)
		for i := range remembered.Kept {
			remembered.Kept[i].Data = nil // megabytes, of attestations
		}
		in.verdicts.passed[key] = remembered
	}
	return v, nil
}

// VerifyImage asks the policy about an image that no state may have named.
func (in *Intake) VerifyImage(ctx context.Context, repository string, d digest.Digest) (Verdict, error) {
	if err := hashable(d); err != nil {
		return Verdict{}, codes.Wrap(codes.ImageDigest, err)
	}
	return in.verify(ctx, KindImage, repository, ocispec.Descriptor{Digest: d})
}

func verdictCode(kind Kind, err error) codes.Code {
	of := map[Kind][3]codes.Code{
		KindState:     {codes.SignatureMissing, codes.SignatureInvalid, codes.SignatureRejected},
		KindComponent: {codes.ComponentUnsigned, codes.ComponentSignature, codes.ComponentRejected},
		KindImage:     {codes.ImageUnsigned, codes.ImageSignature, codes.ImageRejected},
	}[kind]
	switch {
	case errors.Is(err, fault.ErrTemporary):
		return codes.SourceUnreachable
	case errors.Is(err, fault.ErrDigestRevoked):
		return codes.DigestRevoked
	case errors.Is(err, fault.ErrKeyRevoked):
		return codes.KeyRevoked
	case errors.Is(err, fault.ErrKeyExpired):
		return codes.KeyExpired
	case errors.Is(err, fault.ErrThreshold):
		return codes.SignatureThreshold
	case errors.Is(err, fault.ErrNoAttestation):
		return codes.AttestationMissing
	case errors.Is(err, fault.ErrBadAttestation):
		return codes.AttestationInvalid
	case errors.Is(err, fault.ErrUnsigned):
		return of[0]
	case errors.Is(err, fault.ErrBadSignature):
		return of[1]
	case errors.Is(err, fault.ErrRejected):
		return of[2]
	case errors.Is(err, fault.ErrTooLarge), errors.Is(err, fault.ErrDigestMismatch): // what is there as a signature is none
		return of[1]
	}
	return sourceCode(err, of[0])
}

// signers lists who signed something, for the record.
func signers(what string, v Verdict) []store.Signer {
	var out []store.Signer
	for name, key := range v.Keys {
		out = append(out, store.Signer{What: what, Name: name, Key: key})
	}
	slices.SortFunc(out, func(a, b store.Signer) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Key, b.Key)) })
	return out
}
