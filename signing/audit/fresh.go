package audit

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/trust"
)

// fresher is a judge that can check whether a state is the current one.
type fresher interface {
	// fresh checks a state's freshness; ok is false if none is required.
	fresh(ctx context.Context, src signing.Source, s Subject, tag string, generation uint64) (c Check, ok bool)
}

var _ fresher = Policy{}

func (p Policy) fresh(ctx context.Context, src signing.Source, s Subject, tag string, generation uint64) (Check, bool) {
	const name = "freshness"
	if s.Kind != trust.KindState || p.Attestation != "" {
		return Check{}, false
	}
	found, err := p.Freshness(ctx, trust.VerifyRequest{
		Source: src, Kind: trust.KindState, Subject: s.Descriptor, Now: p.Now, Elsewhere: p.Elsewhere,
	}, tag, generation)
	const hint = "renew it: longshore freshen"
	switch {
	case !found.Required && err == nil:
		return Check{}, false
	case err != nil:
		return fails(name, fault.WithHint(fmt.Errorf("%s of %s@%s: %w", name, src.Name(), s.Descriptor.Digest, err), hint)), true
	case !p.Now.Before(found.NotAfter):
		return fails(name, fault.WithHint(fmt.Errorf("%s of %s@%s: %w: it ended %s", name, src.Name(), s.Descriptor.Digest,
			fault.ErrRejected, found.NotAfter.UTC().Format(time.RFC3339)), hint)), true
	}
	return Check{
		Name: name, Result: Passed,
		Detail: fmt.Sprintf("until %s, by %s", found.NotAfter.UTC().Format(time.RFC3339), strings.Join(found.By, ", ")),
	}, true
}
