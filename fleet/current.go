package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/release"
)

// published is a state in the registry.
type published struct {
	digest   digest.Digest
	manifest []byte
	index    *artifacts.StateIndex
}

// is the digest; "": there is no state.
func (s *published) is() digest.Digest {
	if s == nil {
		return ""
	}
	return s.digest
}

// standing has a device's states in the registry, and the next generation.
type standing struct {
	*release.Head[*published]
	base  *published // predecessor of the next generation; nil: none
	said  bool       // the next number is given by the user or the device: interrupted publications are not continued
	notes []string   // notes about an unusual next number, in sentences
}

// chain is the chain of a device's states.
func (p *planner) chain(a *Assignment) *release.Chain[*published] {
	c := &release.Chain[*published]{Repository: a.Repository, Tag: a.Device.ID.Tag()}
	c.Resolve = func(ctx context.Context, tag string) (ocispec.Descriptor, error) {
		return p.from.Resolve(ctx, a.Repository, tag)
	}
	c.Tagged = func(ctx context.Context, tag string) (ocispec.Descriptor, []byte, error) {
		return p.from.Tagged(ctx, a.Repository, tag)
	}
	c.Open = func(d digest.Digest, manifest []byte) (*published, uint64, error) {
		x, err := openState(a, d, manifest)
		if err != nil {
			return nil, 0, err
		}
		return x, x.index.Generation, nil
	}
	c.Verify = func(ctx context.Context, d digest.Digest) error { return p.trusted(ctx, a, d) }
	// The tags are listed once for all devices of a plan that are new or whose tag was deleted.
	c.Generations = func(ctx context.Context) ([]uint64, error) {
		all, err := p.histories.get(ctx, a.Repository, func(ctx context.Context) (map[string][]uint64, error) {
			tags, err := p.from.Tags(ctx, a.Repository)
			if errors.Is(err, fault.ErrNotFound) {
				return nil, nil
			}
			return release.Generations(tags), err
		})
		return all[c.Tag], err
	}
	return c
}

// look reads the state of a device's tag.
func (p *planner) look(ctx context.Context, a *Assignment) (*standing, error) {
	h, err := p.chain(a).ReadTag(ctx)
	if err != nil {
		return nil, err
	}
	s := &standing{Head: h}
	if h.Current == nil {
		return s, nil
	}
	s.base = h.Current.Value
	if h.Next == 0 {
		h.Refused = fmt.Errorf("%s:%s: generation %d has no next one: %w", a.Repository, a.Device.ID.Tag(), h.Number(), fault.ErrInvalid)
	}
	return s, nil
}

// climb follows the history upwards from there. Its error is [release.Unfit] if it is about this device only.
func (p *planner) climb(ctx context.Context, a *Assignment, s *standing) error {
	c := p.chain(a)
	if err := s.up(ctx, c.FollowHistory); err != nil {
		return err
	}
	if s.Current == nil && len(s.Skipped) > 0 && !s.Has(1) { // otherwise none below them is missing
		return fault.WithHint(fmt.Errorf("the device's tag is gone, and no generation of its history can be followed: %w", s.Reason),
			verifyKeyHint+"; remove the tags of states that none of your publishers has made")
	}
	return p.exceed(ctx, a, s, c)
}

// lost is the generation that a device reports as accepted, if the registry no longer has it, because a clean-up rule deleted the newest
// ones or the registry was restored from a backup. 0: none. The note is the reason why the report is not used.
func (p *planner) lost(ctx context.Context, a *Assignment, s *standing) (n uint64, note string) {
	if p.o.Accepted == nil {
		return 0, ""
	}
	n, err := p.o.Accepted(ctx, a.Device.ID)
	switch {
	case err != nil && s.Current == nil:
		return 0, fmt.Sprintf("whether the device has accepted a generation could not be found out: %v", err)
	case err != nil, n <= s.Number(), n < s.Next: // if the registry has generations up to there, it has probably lost none
		return 0, ""
	case n > artifacts.MaxReportedGeneration:
		return 0, fmt.Sprintf("the device reports that it has accepted generation %d: this is no number that is published, and ignored", n)
	}
	return n, ""
}

// exceed makes the generation above the accepted one the next one, if the registry has lost that, because the device rejects
// older numbers. The history is followed upwards from there.
func (p *planner) exceed(ctx context.Context, a *Assignment, s *standing, c *release.Chain[*published]) error {
	n, note := p.lost(ctx, a, s)
	if note != "" {
		s.notes = append(s.notes, note)
	}
	if n == 0 {
		return nil
	}
	was := s.Current
	s.Next = n + 1
	if err := s.up(ctx, c.FindNext); err != nil || s.Current != was { // the registry has it
		return err
	}
	there := "no generation"
	if was != nil {
		there = fmt.Sprintf("no generation above %d", was.Number)
	}
	s.said, s.notes = true, append(s.notes, fmt.Sprintf("the registry has %s of this device, which has accepted generation %d: this is the one above", there, n))
	return nil
}

// up follows the history upwards, and bases the next generation on the newest one.
func (s *standing) up(ctx context.Context, climb func(context.Context, *release.Head[*published]) error) error {
	if err := climb(ctx, s.Head); err != nil {
		return err
	}
	if len(s.Skipped) > release.MaxSkipped {
		return fault.WithHint(fmt.Errorf("more than %d generations above what the device's tag names cannot be followed: %w", release.MaxSkipped, s.Reason),
			"another publisher seems to have made them; remove their tags")
	}
	if s.Current != nil {
		s.base = s.Current.Value
	}
	return nil
}

func (p *planner) trusted(ctx context.Context, a *Assignment, d digest.Digest) error {
	if p.o.Verify == nil {
		return nil
	}
	return p.o.Verify(ctx, a.Repository, d)
}

func (p *planner) read(ctx context.Context, a *Assignment, d digest.Digest) (*published, error) {
	_, manifest, err := p.from.Manifest(ctx, a.Repository, d)
	if err != nil {
		return nil, err
	}
	return openState(a, d, manifest)
}

func openState(a *Assignment, d digest.Digest, manifest []byte) (*published, error) {
	x, err := artifacts.OpenState(manifest)
	if err != nil {
		return nil, fmt.Errorf("%s@%s: %w", a.Repository, d, err)
	}
	if x.Device != a.Device.ID {
		return nil, fmt.Errorf("%s@%s is the state of %s: %w", a.Repository, d, x.Device, fault.ErrConflict)
	}
	return &published{digest: d, manifest: manifest, index: x}, nil
}

// deployments reads the documents of a state, except the known ones.
func (p *planner) deployments(ctx context.Context, a *Assignment, s *published, known ...digest.Digest) ([]artifacts.Deployment, error) {
	blob := func(d ocispec.Descriptor) ([]byte, error) {
		return p.from.Blob(ctx, a.Repository, d, artifacts.MaxArchive)
	}
	if len(s.index.Deployments) == 0 {
		state, err := s.index.Read(blob)
		if err != nil {
			return nil, err
		}
		return slices.DeleteFunc(slices.Clone(state.Deployments), func(d artifacts.Deployment) bool { return slices.Contains(known, d.Digest) }), nil
	}
	var out []artifacts.Deployment
	for _, l := range s.index.Deployments {
		if slices.Contains(known, l.Digest) {
			continue
		}
		data := artifacts.Carried(l)
		if data == nil {
			var err error
			if data, err = blob(l); err != nil {
				return nil, err
			}
		}
		if digest.FromBytes(data) != l.Digest {
			return nil, fmt.Errorf("%s@%s: %w", a.Repository, l.Digest, fault.ErrDigestMismatch)
		}
		d, err := artifacts.ReadDeployment(l.Digest.String(), data)
		if err != nil {
			return nil, err
		}
		out = append(out, *d)
	}
	return out, nil
}

// lasts reports whether a state expires late enough if an expiry is required: after half of the time until then, so that
// frequent publishing with a duration changes nothing each time, and no state expires.
func (s *published) lasts(now, asked time.Time) bool {
	end := s.index.Expires
	return asked.IsZero() || !end.IsZero() && end.Sub(now) >= asked.Sub(now)/2
}

// ends describes the former expiry of a state that gets another one.
func (s *published) ends() string {
	if s.index.Expires.IsZero() {
		return "it has no end, and gets one"
	}
	return "it would end at " + s.index.Expires.UTC().Format(time.RFC3339) + ", and gets a later end"
}

// holds reports whether a state has exactly these documents.
func (s *published) holds(documents []digest.Digest) bool {
	if s == nil || len(s.index.Deployments) != len(documents) || (s.index.Bundle == nil) != (len(documents) == 0) {
		return false
	}
	there := s.documents()
	return !slices.ContainsFunc(documents, func(d digest.Digest) bool { return !slices.Contains(there, d) })
}

// documents are the digests of a state's documents.
func (s *published) documents() (out []digest.Digest) {
	for _, l := range s.index.Deployments {
		out = append(out, l.Digest)
	}
	return out
}
