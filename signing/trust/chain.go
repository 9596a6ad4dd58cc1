package trust

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

// Why a policy is not followed by what is in the registry. Each error of the chain wraps one of these, and a sentinel of
// artifacts/fault beside it.
var (
	// ErrUnreachable: nothing is known to be wrong with the next version; it could not be read.
	ErrUnreachable = errors.New("trust repository not reached")
	// ErrMissing: the repository that the policy names for its next version does not have the policy itself.
	ErrMissing = errors.New("not the repository of this trust policy")
	// ErrNotNext: it breaks its format, is not the next version, or too few have signed it.
	ErrNotNext = errors.New("not the next trust policy")
	// ErrOlder: it is the version that is in use, or an older one, under the tag of the next.
	ErrOlder = errors.New("an older trust policy")
	// ErrUnusable: it is what its signers wanted, and a device that took it over could not go on from there.
	ErrUnusable = errors.New("a trust policy that cannot be used")
)

// Candidate is a trust artifact as it was found, before anyone believed it.
type Candidate struct {
	Descriptor ocispec.Descriptor // of Manifest
	Manifest   []byte
	Index      *artifacts.TrustIndex
	Document   []byte // the policy
	Root       []byte // sigstore trusted root; nil: none
}

// Step is one version of the policy that follows another.
type Step struct {
	*Candidate
	Repository string // where a [Follower] found it
	Policy     *Policy
	Old, New   *Tally // of the signers that the version before names, and of its own; nil: there are none to be asked
	// Parted is what a [Follower] had as the version before, where this one says that it follows another: two were published,
	// or the device was shown another one than others. "": it follows what was there, or that is unknown.
	Parted digest.Digest
}

// Fetch reads the trust artifact that has a digest. Nothing in it is believed, but that it hangs together.
func Fetch(ctx context.Context, src signing.Source, d digest.Digest) (*Candidate, error) {
	c, err := index(ctx, src, d)
	if err != nil {
		return nil, err
	}
	return c, c.read(ctx, src)
}

// index reads the manifest.
func index(ctx context.Context, src signing.Source, d digest.Digest) (*Candidate, error) {
	what := fmt.Sprintf("trust policy %s@%s", src.Name(), d)
	desc, data, err := src.Manifest(ctx, d)
	if err == nil && digest.FromBytes(data) != d {
		err = fmt.Errorf("got %s: %w", digest.FromBytes(data), fault.ErrDigestMismatch)
	}
	if err != nil {
		return nil, unread(what, err)
	}
	x, err := artifacts.OpenTrust(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w", what, ErrNotNext, err)
	}
	desc.Digest, desc.Size = d, int64(len(data))
	return &Candidate{Descriptor: desc, Manifest: data, Index: x}, nil
}

// read fetches the documents.
func (c *Candidate) read(ctx context.Context, src signing.Source) (err error) {
	c.Document, c.Root, err = c.Index.Read(func(d ocispec.Descriptor) ([]byte, error) {
		return src.Blob(ctx, d, max(artifacts.MaxTrustPolicy, artifacts.MaxTrustedRoot))
	})
	if err != nil {
		return unread(fmt.Sprintf("trust policy %s@%s", src.Name(), c.Descriptor.Digest), err)
	}
	return nil
}

// unread tells what may work later from bytes that are wrong.
func unread(what string, err error) error {
	if errors.Is(err, fault.ErrDigestMismatch) || errors.Is(err, fault.ErrTooLarge) || errors.Is(err, fault.ErrInvalid) || errors.Is(err, fault.ErrUnsupported) {
		return fmt.Errorf("%s: %w: %w", what, ErrNotNext, err)
	}
	return fmt.Errorf("%s: %w: %w", what, ErrUnreachable, err)
}

// ParseTravelling reads a policy as it travels: with everything inside, but for the trusted root beside it.
func ParseTravelling(document, root []byte) (*Policy, error) {
	used := false
	p, err := Parse(artifacts.TrustFile, document, func(path string) ([]byte, error) {
		if path == artifacts.TrustedRootFile && root != nil {
			used = true
			return root, nil
		}
		return nil, errors.New("a policy that travels has everything inside: write pem in place of file")
	})
	if err != nil {
		return nil, err
	}
	if root != nil && !used {
		return nil, fmt.Errorf("%s: there is a %s that the policy does not name: %w", artifacts.TrustFile, artifacts.TrustedRootFile, fault.ErrInvalid)
	}
	return p, nil
}

// Follow decides whether a candidate may take p's place: the next version, strict, signed by enough of the signers that p
// names and of those that it names itself, each by the rules of the policy that names them, and of use. src is the
// repository where it was found, with its signatures.
func (p *Policy) Follow(ctx context.Context, now time.Time, src signing.Source, d digest.Digest) (*Step, error) {
	what := fmt.Sprintf("trust policy %d (%s@%s)", p.Version+1, src.Name(), d)
	fail := func(kind, err error) (*Step, error) { return nil, fmt.Errorf("%s: %w: %w", what, kind, err) }
	if p.Trust == nil {
		return fail(ErrNotNext, fmt.Errorf("the policy in use has no trust section, so it accepts no other version: %w", fault.ErrRejected))
	}
	c, err := index(ctx, src, d)
	if err != nil {
		return nil, err
	}
	// The number is not proven yet; what it leads to here is a refusal, and its right name.
	switch v := c.Index.Version; {
	case v <= p.Version:
		return fail(ErrOlder, fmt.Errorf("it is version %d, and version %d is in use: %w", v, p.Version, fault.ErrRollback))
	case v != p.Version+1:
		return fail(ErrNotNext, fmt.Errorf("it is version %d: %w", v, fault.ErrInvalid))
	}
	s := &Step{Candidate: c}
	// Before anything is parsed: the signers in charge now must have signed it.
	if s.Old, err = p.endorsed(ctx, now, src, c.Descriptor); err != nil {
		return nil, fmt.Errorf("%s: signers of version %d: %w", what, p.Version, err)
	}
	if err := c.read(ctx, src); err != nil {
		return nil, err
	}
	if err := s.holds(ctx, now, src); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if err := p.resets(s.Policy); err != nil {
		return fail(ErrNotNext, err)
	}
	if err := p.admits(ctx, now, src, c.Descriptor); err != nil {
		return nil, fmt.Errorf("%s: rules of version %d: %w", what, p.Version, kindOf(err, ErrNotNext))
	}
	return s, nil
}

// holds reports what is wrong with a version by itself: its form, its use, its own signers and rules.
func (s *Step) holds(ctx context.Context, now time.Time, src signing.Source) (err error) {
	if s.Policy, err = s.Parse(); err != nil {
		return err
	}
	if err := s.Policy.Sound(now, src.Name()); err != nil {
		return err
	}
	if s.New, err = s.Policy.endorsed(ctx, now, src, s.Descriptor); err != nil {
		return fmt.Errorf("its own signers: %w", err)
	}
	if err := s.Policy.admits(ctx, now, src, s.Descriptor); err != nil {
		return fmt.Errorf("its own rules: %w", kindOf(err, ErrUnusable))
	}
	return nil
}

// resets refuses a reset of generations in the name of a version that has passed without it: a version acts once.
func (p *Policy) resets(next *Policy) error {
	g := next.Generations
	if g == nil || g.Version == next.Version || p.Generations != nil && *p.Generations == *g {
		return nil
	}
	return fault.WithHint(fmt.Errorf("generations: version %d had no such reset: %w", g.Version, fault.ErrInvalid),
		fmt.Sprintf("write version: %d there, the version that it comes with", next.Version))
}

// Begin decides whether a candidate may be the first version of a chain: all that can be asked of it is that it is well
// formed, of use, and signed by enough of its own signers. No device follows it that was not given it by hand.
func Begin(ctx context.Context, now time.Time, src signing.Source, d digest.Digest) (*Step, error) {
	what := fmt.Sprintf("trust policy %s@%s", src.Name(), d)
	c, err := Fetch(ctx, src, d)
	if err != nil {
		return nil, err
	}
	s := &Step{Candidate: c}
	if err := s.holds(ctx, now, src); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return s, nil
}

// Parse reads the candidate's policy, and holds its version against what the manifest says.
func (c *Candidate) Parse() (*Policy, error) {
	p, err := ParseTravelling(c.Document, c.Root)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotNext, err)
	}
	if p.Version != c.Index.Version {
		return nil, fmt.Errorf("%w: the document says version %d, the manifest %d: %w", ErrNotNext, p.Version, c.Index.Version, fault.ErrInvalid)
	}
	return p, nil
}

// kindOf names an error of a rule, unless it is that something could not be read.
func kindOf(err, kind error) error {
	if errors.Is(err, fault.ErrTemporary) || errors.Is(err, fault.ErrUnauthenticated) || errors.Is(err, fault.ErrDenied) {
		kind = ErrUnreachable
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// Endorsements tells who of the signers that p names for the next policy has signed what has a descriptor.
func (p *Policy) Endorsements(ctx context.Context, now time.Time, src signing.Source, subject ocispec.Descriptor) *Tally {
	return p.Count(ctx, src, subject, signing.PredicateSign, p.Trust.Quorum, now)
}

// endorsed is Endorsements where too few is an error.
func (p *Policy) endorsed(ctx context.Context, now time.Time, src signing.Source, subject ocispec.Descriptor) (*Tally, error) {
	t := p.Endorsements(ctx, now, src, subject)
	if t.Err == nil {
		return t, nil
	}
	return t, kindOf(t.Err, ErrNotNext)
}
