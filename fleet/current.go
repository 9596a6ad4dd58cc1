package fleet

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// MaxSkipped is how many history tags in a row may name something that cannot be followed.
const MaxSkipped = 32

// published is a state in the registry.
type published struct {
	digest   digest.Digest
	manifest []byte
	index    *artifacts.StateIndex
}

// standing is what a device has in the registry, and which generation is next.
type standing struct {
	tagged   digest.Digest // what the device's tag names; "": nothing
	base     *published    // what the next generation follows; nil: nothing
	next     uint64        // number of the next generation
	lags     bool          // base is above what the tag names: a publication was interrupted
	skipped  int           // history tags that were not followed
	reason   error         // why the first of them was not
	blind    error         // why the tags could not be listed, where the device's own is gone
	notState error         // why what the tag names cannot be followed
}

// look reads what a device's tag names.
func (p *planner) look(ctx context.Context, a *Assignment) (*standing, error) {
	s := &standing{next: 1}
	desc, err := p.from.Resolve(ctx, a.Repository, a.Device.ID.Tag())
	if errors.Is(err, fault.ErrNotFound) {
		return s, nil
	}
	if errors.Is(err, fault.ErrInvalid) { // cut off by a publisher that was killed: as good as nothing
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	s.tagged = desc.Digest
	if s.base, err = p.read(ctx, a, desc.Digest); lasting(err) || errors.Is(err, fault.ErrConflict) {
		s.notState = err
		return s, nil
	}
	if s.base != nil {
		s.next = s.base.index.Generation + 1
	}
	return s, err
}

// probe goes up the history from what the tag names: a publication may have ended before the tag moved, or somebody has
// moved it back.
func (p *planner) probe(ctx context.Context, a *Assignment, s *standing) error {
	if s.base != nil {
		if err := p.vouched(ctx, a, s.base.digest); err != nil {
			return fmt.Errorf("what %s:%s names: %w", a.Repository, a.Device.ID.Tag(), err)
		}
	} else if err := p.restart(ctx, a, s); err != nil {
		return err
	}
	for s.skipped <= MaxSkipped {
		tag := artifacts.HistoryTag(a.Device.ID.Tag(), s.next)
		desc, err := p.from.Resolve(ctx, a.Repository, tag)
		if errors.Is(err, fault.ErrNotFound) {
			return nil
		}
		if err != nil && !errors.Is(err, fault.ErrInvalid) {
			return err
		}
		var there *published
		if err == nil {
			there, err = p.generation(ctx, a, desc.Digest, s.next)
		}
		switch {
		case err == nil:
			s.base, s.lags = there, true
		case errors.Is(err, fault.ErrTemporary), ctx.Err() != nil:
			return err
		default:
			if s.skipped++; s.reason == nil {
				s.reason = err
			}
		}
		s.next++
	}
	return fault.WithHint(fmt.Errorf("more than %d generations above what the device's tag names cannot be followed: %w", MaxSkipped, s.reason),
		"somebody seems to have made them; remove their tags")
}

// restart goes to the newest generation that there is of a device whose tag names nothing: it is new, or somebody has deleted
// it, and the first generations may be pruned. Devices take nothing older than what they have. Only all tags tell which it
// is: no single one has to be there, and not every registry lists in order, so a list cannot be begun in the middle. They
// are listed once for all such devices of a plan.
func (p *planner) restart(ctx context.Context, a *Assignment, s *standing) error {
	histories, err := p.histories.get(ctx, a.Repository, func(ctx context.Context) (map[string][]uint64, error) { return p.listed(ctx, a.Repository) })
	if errors.Is(err, fault.ErrTemporary) || errors.Is(err, fault.ErrTooLarge) || ctx.Err() != nil {
		return err
	}
	s.blind = err // not everybody may list tags
	all := histories[a.Device.ID.Tag()]
	var first error
	for i, n := range all {
		if i == MaxSkipped {
			break
		}
		desc, err := p.from.Resolve(ctx, a.Repository, artifacts.HistoryTag(a.Device.ID.Tag(), n))
		var there *published
		if err == nil {
			there, err = p.generation(ctx, a, desc.Digest, n)
		}
		if err == nil {
			s.base, s.lags, s.next = there, true, n+1
			return nil
		}
		if errors.Is(err, fault.ErrTemporary) || ctx.Err() != nil {
			return err
		}
		if first == nil {
			first = err
		}
	}
	if first == nil || slices.Contains(all, 1) { // probe tells what it skips
		return nil
	}
	return fault.WithHint(fmt.Errorf("the device's tag is gone, and no generation of its history can be followed: %w", first),
		"if another key of yours signed it, name it with --verify-key FILE; remove the tags of what nobody of yours has made")
}

// listed are the generations in a repository that have a history tag, by the tag of their device, the newest first.
func (p *planner) listed(ctx context.Context, repository string) (map[string][]uint64, error) {
	tags, err := p.from.Tags(ctx, repository)
	if errors.Is(err, fault.ErrNotFound) {
		return nil, nil
	}
	out := map[string][]uint64{}
	for _, t := range tags {
		i := strings.LastIndex(t, ".v")
		if i < 0 {
			continue
		}
		if n, err := strconv.ParseUint(t[i+2:], 10, 64); err == nil && n > 0 && n < math.MaxUint64 && artifacts.HistoryTag(t[:i], n) == t {
			out[t[:i]] = append(out[t[:i]], n)
		}
	}
	for _, all := range out {
		slices.Sort(all)
		slices.Reverse(all)
	}
	return out, err
}

// generation reads the state that a history tag names.
func (p *planner) generation(ctx context.Context, a *Assignment, d digest.Digest, n uint64) (*published, error) {
	there, err := p.read(ctx, a, d)
	if err == nil && there.index.Generation != n {
		err = fmt.Errorf("%s:%s is generation %d: %w", a.Repository, artifacts.HistoryTag(a.Device.ID.Tag(), n), there.index.Generation, fault.ErrConflict)
	}
	if err == nil {
		err = p.vouched(ctx, a, d)
	}
	return there, err
}

func (p *planner) vouched(ctx context.Context, a *Assignment, d digest.Digest) error {
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
	x, err := artifacts.OpenState(manifest)
	if err != nil {
		return nil, fmt.Errorf("%s@%s: %w", a.Repository, d, err)
	}
	if x.Device != a.Device.ID {
		return nil, fmt.Errorf("%s@%s is the state of %s: %w", a.Repository, d, x.Device, fault.ErrConflict)
	}
	return &published{digest: d, manifest: manifest, index: x}, nil
}

// deployments reads those documents of a state whose digests are not among known.
func (p *planner) deployments(ctx context.Context, a *Assignment, s *published, known map[digest.Digest]bool) ([]artifacts.Deployment, error) {
	blob := func(d ocispec.Descriptor) ([]byte, error) {
		return p.from.Blob(ctx, a.Repository, d, artifacts.MaxArchive)
	}
	if len(s.index.Deployments) == 0 {
		state, err := s.index.Read(blob)
		if err != nil {
			return nil, err
		}
		var out []artifacts.Deployment
		for _, d := range state.Deployments {
			if !known[d.Digest] {
				out = append(out, d)
			}
		}
		return out, nil
	}
	var out []artifacts.Deployment
	for _, l := range s.index.Deployments {
		if known[l.Digest] {
			continue
		}
		data, err := blob(l)
		if err != nil {
			return nil, err
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

// lasts tells whether a state ends late enough for one who asks for an end: after half of the time until then, so that
// publishing again and again with a duration changes nothing each time, and lets no state expire.
func (s *published) lasts(now, asked time.Time) bool {
	end := s.index.Expires
	return asked.IsZero() || !end.IsZero() && end.Sub(now) >= asked.Sub(now)/2
}

// ends says when a state that gets another end would have ended.
func (s *published) ends() string {
	if s.index.Expires.IsZero() {
		return "it has no end, and gets one"
	}
	return "it would end at " + s.index.Expires.UTC().Format(time.RFC3339) + ", and gets a later end"
}

// holds tells whether a state is of exactly these documents.
func (s *published) holds(documents []digest.Digest) bool {
	if s == nil || len(s.index.Deployments) != len(documents) || (s.index.Bundle == nil) != (len(documents) == 0) {
		return false
	}
	there := make(map[digest.Digest]bool, len(documents))
	for _, l := range s.index.Deployments {
		there[l.Digest] = true
	}
	for _, d := range documents {
		if !there[d] {
			return false
		}
	}
	return true
}
