package signing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// PredicateFreshness is the in-toto predicate type of freshness statements: until when a state counts as the current one.
	PredicateFreshness = "https://longshore.dev/freshness/v1"

	// MaxFreshness is the longest validity of a freshness statement, and so the longest time for which a stolen key can freeze devices.
	MaxFreshness = 400 * 24 * time.Hour
	minFreshness = time.Minute
	// MaxAhead is how far ahead of the local clock a statement may be dated, because the local clock may be wrong.
	// It is as far as a device's clock follows one (agent/clock).
	MaxAhead = 10 * 365 * 24 * time.Hour

	freshnessReferrers = 32 // of one state that are read, the newest first
	maxTagLength       = 128
)

// Freshness states that a tag names a state at a time, and until when that is valid.
type Freshness struct {
	Tag        string    `json:"tag"`
	Generation uint64    `json:"generation"`
	IssuedAt   time.Time `json:"issuedAt"` // whole seconds, UTC
	NotAfter   time.Time `json:"notAfter"` // it has ended from then on
}

// Check rejects a statement that readers would reject.
func (f Freshness) Check() error {
	life := f.NotAfter.Sub(f.IssuedAt)
	switch {
	case f.Tag == "" || len(f.Tag) > maxTagLength:
		return fmt.Errorf("freshness: tag %.130q: %w", f.Tag, fault.ErrInvalid)
	case f.Generation == 0:
		return fmt.Errorf("freshness: generation 0: %w", fault.ErrInvalid)
	case f.IssuedAt.Year() < 2000 || f.IssuedAt.Year() > 9999 || f.NotAfter.Year() > 9999:
		return fmt.Errorf("freshness: issued %v: %w", f.IssuedAt, fault.ErrInvalid)
	case life < minFreshness || life > MaxFreshness:
		return fmt.Errorf("freshness: it lasts %v, and %v to %v is possible: %w", life, minFreshness, MaxFreshness, fault.ErrInvalid)
	}
	return nil
}

// ParseFreshness reads the predicate of a statement: these members, all of them, and no others.
func ParseFreshness(predicate []byte) (Freshness, error) {
	var f Freshness
	all, err := Members(predicate)
	if err != nil {
		return f, fmt.Errorf("freshness: %w: %w", fault.ErrInvalid, err)
	}
	var issued, until string
	into := map[string]any{"tag": &f.Tag, "generation": &f.Generation, "issuedAt": &issued, "notAfter": &until}
	for name, raw := range all {
		v, known := into[name]
		if !known {
			return f, fmt.Errorf("freshness: member %.64q is not known: %w", name, fault.ErrUnsupported)
		}
		if err := json.Unmarshal(raw, v); err != nil {
			return f, fmt.Errorf("freshness: %s: %w: %w", name, fault.ErrInvalid, err)
		}
	}
	if f.IssuedAt, err = readTime("issuedAt", issued); err != nil {
		return f, err
	}
	if f.NotAfter, err = readTime("notAfter", until); err != nil {
		return f, err
	}
	return f, f.Check()
}

// readTime reads a time only in the format of [Freshness.Statement].
func readTime(name, s string) (time.Time, error) {
	const form = "2006-01-02T15:04:05Z"
	t, err := time.Parse(form, s)
	if err != nil || t.Format(form) != s { // Parse also accepts fractions
		return t, fmt.Errorf("freshness: %s: %.64q is no time like 2026-11-20T12:00:00Z: %w", name, s, fault.ErrInvalid)
	}
	return t, nil
}

// FreshnessSignature is one good freshness statement.
type FreshnessSignature struct {
	Signature
	Freshness
}

// FreshnessQuery is about the state of a tag.
type FreshnessQuery struct {
	Tag        string
	Generation uint64
	Verifiers  []Verifier
	// Enough reports whether no further statement needs to be read. The newest come first, as far as the registry shows it.
	// nil: all are read.
	Enough func([]FreshnessSignature) bool
}

// FindFreshness reads the newest freshness statements about a state and returns those that a verifier accepts and
// that are about this tag and generation. The caller checks whether they have expired. The errors are those of
// [Verify]; other statements may be returned together with an error.
func FindFreshness(ctx context.Context, st Source, subject ocispec.Descriptor, q FreshnessQuery) ([]FreshnessSignature, error) {
	var odd error
	read := func(good []Signature) []FreshnessSignature {
		var out []FreshnessSignature
		for _, s := range good {
			f, err := ParseFreshness(s.Predicate)
			switch {
			case err != nil:
				odd = fmt.Errorf("statement %s by %s: %w", s.Digest, s.By, err)
			case f.Tag != q.Tag || f.Generation != q.Generation:
				odd = fmt.Errorf("statement %s by %s is about %s, generation %d: %w", s.Digest, s.By, f.Tag, f.Generation, fault.ErrInvalid)
			default:
				out = append(out, FreshnessSignature{s, f})
			}
		}
		return out
	}
	query := Query{PredicateType: PredicateFreshness, Verifiers: q.Verifiers, Limit: freshnessReferrers}
	if q.Enough != nil {
		query.Stop = func(good []Signature) bool { return q.Enough(read(good)) }
		query.Enough = query.Stop
	}
	found, err := Examine(ctx, st, subject, query)
	if err != nil {
		return nil, err
	}
	all := read(found.Good)
	slices.SortStableFunc(all, func(a, b FreshnessSignature) int { return b.NotAfter.Compare(a.NotAfter) })
	switch {
	case len(all) > 0 && (found.Unread == nil || errors.Is(found.Unread, fault.ErrTooLarge)):
		return all, nil
	case found.Unread != nil:
		return all, fmt.Errorf("freshness of %s@%s: %w", st.Name(), subject.Digest, found.Unread)
	case odd != nil:
		return nil, fmt.Errorf("freshness of %s@%s: %w: %w", st.Name(), subject.Digest, fault.ErrBadSignature, odd)
	}
	return nil, fmt.Errorf("freshness of %s@%s: %w", st.Name(), subject.Digest, found.Err())
}
