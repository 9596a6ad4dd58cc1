package intake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// HintStatement names what a freshness statement hints at: see [clock.Clock.Hint].
const HintStatement = "freshness statement"

// freshness asks for the freshness of a state. known is what was known of the same one; an earlier good statement by the same
// policy still counts. An error says that this could not be found out; what is known stays as it is.
func (in *Intake) freshness(ctx context.Context, d ocispec.Descriptor, generation uint64, known *store.Fresh, policy string) (*store.Fresh, error) {
	if in.o.Fresher == nil {
		return nil, nil
	}
	if known != nil && (known.Digest != d.Digest || known.Policy != policy) {
		known = nil
	}
	out := store.Fresh{Digest: d.Digest, Policy: policy, LookedAt: in.o.Now().UTC()}
	f, err := in.o.Fresher.Freshness(ctx, in.o.Repository, d, in.o.Tag, generation)
	out.Required = f.Required
	switch {
	case err != nil && !f.Required, err != nil && unknown(err):
		return nil, codes.Wrap(sourceCode(err, codes.SourceUnreachable), fmt.Errorf("look for a freshness statement about %s@%s: %w", in.o.Repository, d.Digest, err))
	case !f.Required:
		return &out, nil
	}
	in.times.Keep(clock.Freshness, f.Signers)
	if known != nil && !in.reached(known.By, known.IssuedAt) {
		known = nil
	}
	if f.By != "" && !in.reached(f.By, f.IssuedAt) {
		err = fmt.Errorf("the one by %s is dated %s, and it is %s: %w", f.By, f.IssuedAt.UTC().Format(time.RFC3339), in.times.clock.Now().UTC().Format(time.RFC3339), fault.ErrRejected)
		f.By = ""
	}
	if f.By != "" && (known == nil || !f.NotAfter.Before(known.NotAfter)) {
		out.By, out.IssuedAt, out.NotAfter = f.By, f.IssuedAt.UTC(), f.NotAfter.UTC()
		out.Withheld = known != nil && known.Withheld && known.NotAfter.Equal(out.NotAfter)
		switch now := in.times.clock.Now(); {
		case now.Before(out.NotAfter):
			in.times.clock.Hint(HintStatement, time.Time{})
		case known == nil || known.IssuedAt.Before(out.IssuedAt): // made since the last look, and it has ended already
			in.times.clock.HintLimit(HintStatement, out.NotAfter)
		}
	} else if known != nil {
		out.By, out.IssuedAt, out.NotAfter, out.Withheld = known.By, known.IssuedAt, known.NotAfter, known.Withheld
	}
	if out.NotAfter.IsZero() && err != nil {
		return &out, codes.Wrap(codes.StateStale, fmt.Errorf("no freshness statement about %s@%s: %w", in.o.Repository, d.Digest, err))
	}
	if !in.times.clock.Now().Before(out.NotAfter) {
		return &out, codes.Errorf(codes.StateStale, "the freshness statement about %s@%s by %s ended %s, and it is %s: %w", in.o.Repository, d.Digest,
			out.By, out.NotAfter.Format(time.RFC3339), in.times.clock.Now().UTC().Format(time.RFC3339), fault.ErrRejected)
	}
	out.Withheld = false
	return &out, nil
}

// reached takes the date of a freshness statement as a proof of the time, and reports whether it is that late then. A date that
// the clock does not follow counts for nothing: its end would never come.
func (in *Intake) reached(by string, issued time.Time) bool {
	in.times.prove(clock.Proof{Kind: clock.Freshness, By: by, Time: issued})
	return !issued.After(in.times.clock.Now().Add(clock.Slack))
}

// unknown reports whether an error leaves open if there is a good statement: a signer or a source could not be asked.
func unknown(err error) bool {
	if errors.Is(err, fault.ErrTemporary) {
		return true
	}
	return !slices.ContainsFunc([]error{fault.ErrUnsigned, fault.ErrBadSignature, fault.ErrRejected, fault.ErrNotFound, fault.ErrTooLarge, fault.ErrDigestMismatch},
		func(kind error) bool { return errors.Is(err, kind) })
}
