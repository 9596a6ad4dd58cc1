package trust

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

// Place is a repository where policies are published.
type Place interface {
	signing.Store
	Tags(ctx context.Context) ([]string, error)
	// CompareAndSetTag points a tag that names was until now ("": nothing) at a manifest, and returns when it has held for a moment. What it
	// names is fault.ErrConflict where that is neither was nor the manifest. Of two at once at most one gets nil, mostly: see
	// [Proposal.sole].
	CompareAndSetTag(ctx context.Context, d ocispec.Descriptor, data []byte, tag string, was digest.Digest) error
}

// Signatory signs a policy; a sign.Signer is one.
type Signatory interface {
	Key() signing.Key // the zero Key of an identity
	Sign(ctx context.Context, st signing.Store, subject ocispec.Descriptor) ([]signing.Signature, error)
}

// Proposal is a version of the policy on its way.
type Proposal struct {
	*Candidate
	Policy    *Policy
	Before    *Policy // the version that it follows; nil: it is the first one
	Published bool    // its version's tag is there: devices follow it
	Tag       string  // where it is to be found
	Old, New  *Tally  // of the signers that the version before names, nil when this is the first one; and of its own
}

// Missing says who has still to sign, in words; "": no one.
func (p *Proposal) Missing() string {
	var out []string
	say := func(version uint64, t *Tally) {
		if t != nil && t.Counted < t.Threshold {
			out = append(out, fmt.Sprintf("%d more of version %d: %s", t.Threshold-t.Counted, version, strings.Join(t.Missing(), ", ")))
		}
	}
	say(p.Index.Version-1, p.Old)
	say(p.Index.Version, p.New)
	return strings.Join(out, "; ")
}

// Draft is what is proposed.
type Draft struct {
	Document, Root []byte // as they travel: see [Inline]
	Created        time.Time
	Annotations    map[string]string
	Replace        bool // in place of another proposal of the version
	Move           bool // to where its trust section says that the next version comes from: see [Moves]
}

// Propose packs the next version of the policy, checks it against the one that is published, signs it, and puts it under the
// tag of proposals. It is published at once when the signers suffice for the old version and for the new one. Another
// proposal of the same version, or another policy under the version's tag, is fault.ErrConflict. A version that names another
// repository for the next one is [ErrMissing], unless that repository has it too or the draft says Move.
func Propose(ctx context.Context, now time.Time, at Place, m Moves, d Draft, by ...Signatory) (*Proposal, error) {
	p, err := ParseTravelling(d.Document, d.Root)
	if err != nil {
		return nil, err
	}
	what := fmt.Sprintf("propose trust policy %d in %s", p.Version, at.Name())
	before, err := genuine(ctx, now, at)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if err := p.proposable(ctx, now, at.Name(), m, before); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	o := artifacts.TrustOptions{Version: p.Version, Policy: d.Document, TrustedRoot: d.Root, Created: d.Created, Annotations: d.Annotations}
	if before != nil {
		o.Previous = before.Descriptor.Digest
	}
	a, err := artifacts.PackTrust(o)
	if err != nil {
		return nil, err
	}
	if before != nil && before.Index.Version == p.Version && bytes.Equal(before.Document, d.Document) && bytes.Equal(before.Root, d.Root) { // a command that is repeated
		done := &Proposal{Candidate: before.Candidate, Policy: before.Policy, Published: true, Tag: artifacts.TrustTag(p.Version)}
		done.New = p.Endorsements(ctx, now, at, before.Descriptor)
		return done, nil
	}
	if before != nil && before.Index.Version >= p.Version {
		return nil, fault.WithHint(fmt.Errorf("%s: version %d is published: %w", what, before.Index.Version, fault.ErrConflict),
			fmt.Sprintf("look at it with longshore trust show, and make yours version %d", before.Index.Version+1))
	}
	tag := artifacts.TrustProposalTag(p.Version)
	if _, err = alone(ctx, at, tag, a.Descriptor.Digest, d.Replace); err == nil {
		err = Entitled(p, before, by)
	}
	if err == nil && !d.Move {
		_, err = p.arrived(ctx, at, m, a.Descriptor.Digest)
	}
	for _, b := range a.Blobs {
		if err == nil {
			err = at.PushBlob(ctx, b.Descriptor, b.Data)
		}
	}
	subject := ocispec.Descriptor{MediaType: a.Descriptor.MediaType, Digest: a.Descriptor.Digest, Size: a.Descriptor.Size}
	if err == nil {
		err = at.PushManifest(ctx, subject, a.Manifest, "")
	}
	if err == nil {
		err = signAll(ctx, at, subject, by)
	}
	if err == nil && d.Move && p.moves(at) {
		err = announce(ctx, at, m, p.Trust.Repository, subject, a.Manifest, tag, d.Replace)
	}
	if err == nil {
		err = put(ctx, at, subject, a.Manifest, tag, d.Replace)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return advance(ctx, now, at, m, before, subject.Digest)
}

// Pending reads the proposal of the version that is next. It is fault.ErrNotFound where nothing is proposed.
func Pending(ctx context.Context, now time.Time, at Place) (*Published, error) {
	_, p, err := underWay(ctx, now, at)
	return p, err
}

// Endorse signs the proposal that is under way, and publishes it when enough have. seen, if not "", is the one that the
// signer has looked at: another one is fault.ErrConflict.
func Endorse(ctx context.Context, now time.Time, at Place, m Moves, seen digest.Digest, by ...Signatory) (*Proposal, error) {
	what := "sign the proposed trust policy in " + at.Name()
	before, p, err := underWay(ctx, now, at)
	if err == nil && seen != "" && seen != p.Descriptor.Digest {
		err = fmt.Errorf("the proposal is %s now: %w", p.Descriptor.Digest, fault.ErrConflict)
	}
	if err == nil {
		err = p.Policy.proposable(ctx, now, at.Name(), m, before)
	}
	if err == nil {
		err = Entitled(p.Policy, before, by)
	}
	if err == nil {
		err = signAll(ctx, at, p.Descriptor, by)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return advance(ctx, now, at, m, before, p.Descriptor.Digest)
}

// Publishable tells what would be wrong with publishing the policy, whatever is published already. It is stricter than
// devices are.
func (p *Policy) Publishable(now time.Time) error {
	repository := ""
	if p.Trust != nil {
		repository = p.Trust.Repository
	}
	if err := p.Sound(now, repository); err != nil {
		return err
	}
	if doubts := p.Doubts(now); len(doubts) > 0 {
		return fmt.Errorf("%w: %s: %w", ErrUnusable, strings.Join(doubts, "; "), fault.ErrRejected)
	}
	return nil
}

// proposable reports whether a policy may be published after another; nil: as the first one.
func (p *Policy) proposable(ctx context.Context, now time.Time, repository string, m Moves, before *Published) error {
	if err := p.Publishable(now); err != nil {
		return err
	}
	if err := p.Sound(now, repository); err != nil {
		return err
	}
	switch {
	case before == nil && p.Trust.Repository != repository:
		return fault.WithHint(fmt.Errorf("its trust section names %s: %w", p.Trust.Repository, fault.ErrInvalid),
			"publish the first version where it says that the next one comes from")
	case before == nil:
		return nil
	case before.Policy.Trust == nil || before.Policy.Trust.Repository != repository && before.settled(ctx, m):
		return fmt.Errorf("version %d says that the next one is somewhere else: %w", before.Index.Version, fault.ErrInvalid)
	case p.Version > before.Index.Version+1:
		return fmt.Errorf("version %d is published, the next one is %d: %w", before.Index.Version, before.Index.Version+1, fault.ErrInvalid)
	case p.Version == before.Index.Version+1:
		return before.Policy.resets(p)
	}
	return nil
}

// Entitled refuses keys whose signature on p, which follows before, would count for nothing. before is nil for the first version.
func Entitled(p *Policy, before *Published, by []Signatory) error {
	for _, s := range by {
		k := s.Key()
		if k.Fingerprint == "" {
			continue // an identity: only its signature tells
		}
		if p.Trust.Has(k.Fingerprint) || before != nil && before.Policy.Trust.Has(k.Fingerprint) {
			continue
		}
		return fault.WithHint(fmt.Errorf("key %s (%s) is neither among the signers now nor among the new ones: %w", k.Name, k.Fingerprint, fault.ErrRejected),
			"sign with a key that trust.signers names")
	}
	return nil
}

func signAll(ctx context.Context, at Place, subject ocispec.Descriptor, by []Signatory) error {
	for _, s := range by {
		if _, err := s.Sign(ctx, at, subject); err != nil {
			return err
		}
	}
	return nil
}

// alone returns what a tag names, and refuses to take its place; "": nothing.
func alone(ctx context.Context, at signing.Source, tag string, d digest.Digest, replace bool) (digest.Digest, error) {
	there, err := at.Resolve(ctx, tag)
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return "", nil
	case err != nil:
		return "", err
	case there.Digest != d && !replace:
		return "", fault.WithHint(fmt.Errorf("%s is %s, another proposal: %w", tag, there.Digest, fault.ErrConflict),
			"look at it with longshore trust show, and sign it, or put yours in its place with --replace")
	}
	return there.Digest, nil
}

// put points a tag at what was pushed.
func put(ctx context.Context, at Place, subject ocispec.Descriptor, manifest []byte, tag string, replace bool) error {
	was, err := alone(ctx, at, tag, subject.Digest, replace) // a moment before, not before the signing
	if err != nil {
		return err
	}
	if err = at.CompareAndSetTag(ctx, subject, manifest, tag, was); errors.Is(err, fault.ErrConflict) {
		if _, taken := alone(ctx, at, tag, subject.Digest, false); taken != nil {
			return taken
		}
	}
	return err
}

// advance counts signatures, and publishes what has enough of them.
func advance(ctx context.Context, now time.Time, at Place, m Moves, before *Published, d digest.Digest) (*Proposal, error) {
	c, err := Fetch(ctx, at, d)
	if err != nil {
		return nil, err
	}
	p := &Proposal{Candidate: c, Tag: artifacts.TrustProposalTag(c.Index.Version)}
	if p.Policy, err = c.Parse(); err != nil {
		return nil, err
	}
	p.New = p.Policy.Endorsements(ctx, now, at, c.Descriptor)
	if before != nil {
		p.Before = before.Policy
		p.Old = before.Policy.Endorsements(ctx, now, at, c.Descriptor)
	}
	for _, t := range []*Tally{p.Old, p.New} {
		switch {
		case t == nil || t.Holds():
		case t.Unread != "":
			return nil, t.Err
		default:
			return p, nil
		}
	}
	if _, err := before.admits(ctx, now, at, d); err != nil {
		return nil, err
	}
	if err := p.moveFirst(ctx, now, at, m, before); err != nil {
		return nil, fmt.Errorf("publish trust policy %d in %s: %w", c.Index.Version, at.Name(), err)
	}
	err = put(ctx, at, c.Descriptor, c.Manifest, artifacts.TrustTag(c.Index.Version), false)
	if err == nil {
		err = p.sole(ctx, now, at, before)
	}
	if err != nil {
		return nil, fmt.Errorf("publish trust policy %d in %s: %w", c.Index.Version, at.Name(), err)
	}
	p.Published, p.Tag = true, artifacts.TrustTag(c.Index.Version)
	return p, nil
}

// sole looks at the tag of proposals once more when the version's tag is set. No registry compares before it sets a tag.
//
// Say A and B publish the same version and both get nil. Each sets the proposal's tag, then finds the version's tag free and
// sets it, then sees its own there, then looks here. Let A be the last of them to set the proposal's tag. B sees itself here,
// so before that; then A finds the version's tag taken. So it is B that is told, here, and it may have set the version's tag
// over A's: it gives it back, if what it sees can be published. What cannot be published was never reported as published.
func (p *Proposal) sole(ctx context.Context, now time.Time, at Place, before *Published) error {
	tag := artifacts.TrustProposalTag(p.Index.Version)
	there, err := at.Resolve(ctx, tag)
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return nil
	case err != nil:
		return err
	case there.Digest == p.Descriptor.Digest:
		return nil
	}
	other, err := before.admits(ctx, now, at, there.Digest)
	switch {
	case errors.Is(err, ErrUnreachable):
		return err
	case err != nil:
		return nil //nolint:nilerr // it is not published yet, and finds this one in its place
	}
	err = at.CompareAndSetTag(ctx, other.Descriptor, other.Manifest, artifacts.TrustTag(p.Index.Version), p.Descriptor.Digest)
	if err != nil && !errors.Is(err, fault.ErrConflict) {
		return err
	}
	return fault.WithHint(fmt.Errorf("%s is %s: another one was published meanwhile: %w", tag, there.Digest, fault.ErrConflict),
		"look at it with longshore trust show, and make yours the next version")
}

// Published is a version that devices follow.
type Published struct {
	*Candidate
	Policy *Policy
}

// admits decides as a device would that has b, so that nothing is published that devices refuse; nil: as one that has nothing.
func (b *Published) admits(ctx context.Context, now time.Time, at Place, d digest.Digest) (*Step, error) {
	if b == nil {
		return Begin(ctx, now, at, d)
	}
	return b.Policy.Follow(ctx, now, at, d)
}

// Newest reads the highest version that is published, to be changed. It is fault.ErrNotFound where there is none.
func Newest(ctx context.Context, now time.Time, at Place) (*Published, error) {
	p, err := genuine(ctx, now, at)
	if p == nil && err == nil {
		err = fault.WithHint(fmt.Errorf("%s: no trust policy is published: %w", at.Name(), fault.ErrNotFound),
			"write the first one with longshore trust init, and publish it with longshore trust push")
	}
	return p, err
}

// genuine reads the highest version that is published; nil: none is. One that is not signed by enough of its own signers and of those of
// the version before is refused: the next one would sign what it says, and no device could follow it.
func genuine(ctx context.Context, now time.Time, at Place) (*Published, error) {
	p, err := Latest(ctx, at)
	if p == nil || err != nil {
		return nil, err
	}
	if err := p.Signed(ctx, now, at); err != nil {
		tag := artifacts.TrustTag(p.Policy.Version)
		err = fmt.Errorf("%s:%s: %w", at.Name(), tag, err)
		if !fault.Retryable(err) {
			err = fault.WithHint(err, "compare it with the policy of a device: longshore trust history --policy FILE; then point the tag "+tag+" at the version that devices have, or remove it if they have none")
		}
		return nil, err
	}
	return p, nil
}

// Signed reports whether enough of the signers that the version names have signed it, and of those that the version before it in
// the repository names, if that is there. Signers whose time is over count: they may have been replaced because of that.
func (p *Published) Signed(ctx context.Context, now time.Time, at Place) error {
	former, err := p.Former(ctx, at)
	if err != nil {
		return err
	}
	for _, by := range []*Published{p, former} {
		switch {
		case by == nil:
		case by.Policy.Trust == nil:
			return fmt.Errorf("version %d names no signers of versions: %w", by.Policy.Version, fault.ErrRejected)
		default:
			if t := by.Policy.Endorsements(ctx, now, at, p.Descriptor); t.Err != nil && !errors.Is(t.Err, fault.ErrKeyExpired) {
				return fmt.Errorf("signers of version %d: %w", by.Policy.Version, t.Err)
			}
		}
	}
	return nil
}

// Latest reads the highest version that is published, without looking at signatures; nil: none is.
func Latest(ctx context.Context, at Place) (*Published, error) {
	versions, _, err := versions(ctx, at)
	if err != nil || len(versions) == 0 {
		return nil, err
	}
	return published(ctx, at, versions[len(versions)-1])
}

func published(ctx context.Context, at signing.Source, version uint64) (*Published, error) {
	p, err := open(ctx, at, artifacts.TrustTag(version))
	if err == nil && p.Policy.Version != version {
		return nil, fmt.Errorf("%s:%s is version %d: %w: %w", at.Name(), artifacts.TrustTag(version), p.Policy.Version, ErrOlder, fault.ErrRollback)
	}
	return p, err
}

// open reads what a tag or a digest names.
func open(ctx context.Context, at signing.Source, target string) (*Published, error) {
	d, err := at.Resolve(ctx, target)
	if err != nil {
		return nil, err
	}
	c, err := Fetch(ctx, at, d.Digest)
	if err != nil {
		return nil, err
	}
	p, err := c.Parse()
	if err != nil {
		return nil, fmt.Errorf("trust policy %s@%s: %w", at.Name(), d.Digest, err)
	}
	return &Published{c, p}, nil
}

// versions lists what the tags of a repository name, in order.
func versions(ctx context.Context, at Place) (versions, proposals []uint64, err error) {
	tags, err := at.Tags(ctx)
	if errors.Is(err, fault.ErrNotFound) { // a repository without content
		return nil, nil, nil
	}
	for _, t := range tags {
		if v, proposal, ok := artifacts.ParseTrustTag(t); ok && proposal {
			proposals = append(proposals, v)
		} else if ok {
			versions = append(versions, v)
		}
	}
	slices.Sort(versions)
	slices.Sort(proposals)
	return versions, proposals, err
}

// underWay reads the version that is published, nil if none is, and the proposal of the one that is next.
func underWay(ctx context.Context, now time.Time, at Place) (before, proposal *Published, err error) {
	before, err = genuine(ctx, now, at)
	if err != nil {
		return nil, nil, err
	}
	_, proposals, err := versions(ctx, at)
	if err != nil {
		return nil, nil, err
	}
	next := uint64(0)
	switch {
	case before != nil:
		next = before.Index.Version + 1
	case len(proposals) > 0:
		next = proposals[len(proposals)-1]
	}
	if !slices.Contains(proposals, next) {
		return nil, nil, fault.WithHint(fmt.Errorf("nothing is proposed: %w", fault.ErrNotFound), "propose a version with: longshore trust push FILE "+at.Name())
	}
	proposal, err = open(ctx, at, artifacts.TrustProposalTag(next))
	return before, proposal, err
}
