package trust

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

// Fresh is what is known of how long a state is the current one.
type Fresh struct {
	Required bool     // the rule asks for a statement; without it the rest is empty
	Signers  []string // who may make one, in the rule's order
	By       []string // who made what counts: as many as the rule asks for; none: there is none
	IssuedAt time.Time
	NotAfter time.Time // it has ended from then on
}

// Freshness finds until when enough signers of the state's rule say that the tag names this generation. Whether that has
// ended is for the caller, who knows what it has heard before. The errors are those of [signing.FindFreshness]; with one,
// Required and Signers are set all the same. Where all that could be read has ended, and something could not be read, that is
// an error: it may be the statement that renews.
func (p *Policy) Freshness(ctx context.Context, q VerifyRequest, tag string, generation uint64) (Fresh, error) {
	rule, found := p.Match(KindState, q.Source.Name())
	if !found || rule.Freshness == nil {
		return Fresh{}, nil
	}
	out := Fresh{Required: true, Signers: names(rule.Freshness.Signers)}
	c := count{policy: p, quorum: *rule.Freshness, now: q.Now}
	trustees := make([]signing.Verifier, len(c.quorum.Signers))
	for i, s := range c.quorum.Signers {
		trustees[i] = numbered{s.at(q.Now), i}
	}
	st, err := q.place(ctx, rule)
	if err != nil {
		return out, err
	}
	// What is dated further ahead than any clock is behind would be valid for decades.
	var ahead *signing.FreshnessSignature
	timely := func(all []signing.FreshnessSignature) []signing.FreshnessSignature {
		return slices.DeleteFunc(all, func(f signing.FreshnessSignature) bool {
			late := f.IssuedAt.After(q.Now.Add(signing.MaxAhead))
			if late {
				ahead = &f
			}
			return late
		})
	}
	// reached takes the statements that last longest until they are enough.
	reached := func(all []signing.FreshnessSignature) (map[int]int, int) {
		good := make([]signing.Signature, len(all))
		for i, f := range all {
			good[i] = f.Signature
		}
		for n := c.quorum.Need(); n <= len(good); n++ {
			if m := c.match(good[:n]); len(m) >= c.quorum.Need() {
				return m, n
			}
		}
		return nil, 0
	}
	all, err := signing.FindFreshness(ctx, st, q.Subject, signing.FreshnessQuery{
		Tag: tag, Generation: generation, Verifiers: trustees,
		Enough: func(all []signing.FreshnessSignature) bool {
			all = slices.DeleteFunc(timely(all), func(f signing.FreshnessSignature) bool { return !q.Now.Before(f.NotAfter) })
			_, n := reached(all)
			return n > 0
		},
	})
	all = timely(all)
	counted, n := reached(all)
	if n > 0 {
		for _, at := range slices.Sorted(maps.Keys(counted)) {
			out.By = append(out.By, c.quorum.Signers[at].Name)
		}
		out.NotAfter, out.IssuedAt = all[n-1].NotAfter, all[0].IssuedAt
		for _, f := range all[:n] {
			if f.IssuedAt.Before(out.IssuedAt) {
				out.IssuedAt = f.IssuedAt
			}
		}
		if q.Now.Before(out.NotAfter) {
			err = nil
		}
		return out, err
	}
	by := strings.Join(out.Signers, ", ")
	switch {
	case err == nil && ahead != nil:
		return out, fmt.Errorf("freshness: %w: statement %s is dated %s, and it is %s", fault.ErrRejected, ahead.Digest,
			ahead.IssuedAt.UTC().Format(time.RFC3339), q.Now.UTC().Format(time.RFC3339))
	case err == nil:
		return out, fmt.Errorf("freshness: %w: %d of %s are needed, and count now", fault.ErrUnsigned, c.quorum.Need(), by)
	case errors.Is(err, fault.ErrTemporary), !errors.Is(err, fault.ErrUnsigned) && !errors.Is(err, fault.ErrBadSignature):
		return out, err
	case errors.Is(err, fault.ErrBadSignature):
		return out, fmt.Errorf("%w: no good freshness statement by %s", fault.ErrBadSignature, by)
	}
	return out, fmt.Errorf("%w: no freshness statement by %s", fault.ErrUnsigned, by)
}
