package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/registry/release"
)

// maxBack bounds the generations of a device that are followed backwards.
const maxBack = 1000

// Back says what devices go back to. The zero Back is what each had before the generation that it has now; a device that
// went back already stays.
type Back struct {
	// Before is a time: devices get what they had then, and those that got nothing since stay.
	Before time.Time
	// Revision begins the revision of the files that something was published from (the annotation
	// org.opencontainers.image.revision): devices that have something of it get the newest that is not of it, others stay.
	Revision string
	// When returns when a state was published; zero: not known. Only Before needs it.
	When func(ctx context.Context, repository string, state digest.Digest) (time.Time, error)
}

// Rollback plans to give devices again what they had, each as a new generation: devices take nothing older than what they
// have accepted. Nothing but the devices' names and repositories is taken from the files. A device that nothing earlier is
// there for cannot go back, and does not keep the others. The plan is published as every other.
func (f *Fleet) Rollback(ctx context.Context, from Registry, o Options, b Back) (*Plan, error) {
	c := &Compiled{Fleet: f}
	for _, d := range f.Devices {
		a := &Assignment{Device: d}
		a.Repository, _ = f.Repository(d) // Read has reported what is missing
		c.Assignments = append(c.Assignments, a)
	}
	plan, err := c.planEach(ctx, from, o, "plan", func(ctx context.Context, p *planner, a *Assignment) (*DevicePlan, error) {
		return p.back(ctx, a, b)
	})
	if err == nil && b.Revision != "" {
		err = plan.concerns(b.Revision)
	}
	return plan, err
}

// concerns is an error when no device has anything of a revision, nor went back from it: it is mistyped rather than undone.
func (p *Plan) concerns(revision string) error {
	devices := map[string][]string{}
	for _, d := range p.Devices {
		if d.Action != Same || d.undone {
			return nil
		}
		has := cmp.Or(d.Origin.Revision, "no revision")
		if d.Generation == 0 {
			has = "nothing"
		}
		devices[has] = append(devices[has], string(d.Device))
	}
	var there []string
	for _, has := range slices.Sorted(maps.Keys(devices)) {
		there = append(there, has+" ("+some(devices[has])+")")
	}
	if len(there) == 0 {
		return nil
	}
	return fault.WithHint(fmt.Errorf("no device has a generation of revision %s: %w", revision, fault.ErrNotFound), "they have "+strings.Join(there, ", "))
}

// back plans the way back of one device.
func (p *planner) back(ctx context.Context, a *Assignment, b Back) (*DevicePlan, error) {
	d := &DevicePlan{Device: a.Device.ID, Repository: a.Repository, Action: Same, assignment: a}
	s, err := p.look(ctx, a)
	if err != nil {
		return nil, err
	}
	if d.Tagged = s.Tagged; s.Refused != nil {
		return d.cannot(s.Refused)
	}
	tagged := s.base
	if tagged != nil {
		d.TaggedGeneration = tagged.index.Generation
	}
	if err := p.climb(ctx, a, s); err != nil {
		return d.cannot(err)
	}
	if s.base == nil {
		d.Reasons = []string{"nothing was published for it"}
		return d, nil
	}
	d.Generation, d.Digest, d.Origin = s.base.index.Generation, s.base.digest, s.base.origin()
	goal, stays, err := p.earlier(ctx, a, s, b)
	if err != nil {
		return d.cannot(err)
	}
	if stays == "" && goal.same(s.base) && !s.Lags() {
		stays = fmt.Sprintf("it has the content of generation %d already", goal.index.Generation)
	}
	if stays != "" {
		d.undone, err = p.undid(ctx, a, s.base, b)
		if err != nil {
			return nil, err
		}
		d.Reasons = []string{stays}
		return d, nil
	}
	return d, p.again(ctx, d, a, s, tagged, goal)
}

// cannot excludes a device because of a permanent error; other errors end the plan.
func (d *DevicePlan) cannot(err error) (*DevicePlan, error) {
	if !release.Unfit(err) {
		return nil, err
	}
	d.Action, d.Reasons, d.err = Cannot, []string{fault.Summary(err)}, err
	return d, nil
}

// again plans to publish an earlier state of a device.
func (p *planner) again(ctx context.Context, d *DevicePlan, a *Assignment, s *standing, tagged, goal *published) error {
	kept, err := p.deployments(ctx, a, goal)
	if err != nil {
		_, err = d.cannot(fmt.Errorf("read generation %d: %w", goal.index.Generation, err))
		return err
	}
	a.repeats, a.Windows = goal, s.base.index.Windows // when the device may be changed is not a part of what it goes back to
	if why := Overdue(a.Windows, p.o.Now); why != "" {
		d.Action, d.Reasons = Cannot, []string{why}
		return nil
	}
	documents, digests := make([][]byte, len(kept)), make([]digest.Digest, len(kept))
	for i := range kept {
		documents[i], digests[i] = kept[i].Bytes, kept[i].Digest
		a.Placements = append(a.Placements, placementOf(&kept[i]))
	}
	if err := p.publication(d, a, s, documents, digests); err != nil {
		return err
	}
	if d.Generation != s.base.index.Generation {
		d.Reasons = append(d.Reasons, fmt.Sprintf("as generation %d", goal.index.Generation))
	}
	if err := p.explain(ctx, d, a, tagged, digests); err != nil {
		return err
	}
	if d.Action == Cannot {
		for i, why := range d.Reasons {
			d.Reasons[i] = fmt.Sprintf("generation %d cannot be had again: %s", goal.index.Generation, why)
		}
	}
	return nil
}

// placementOf is a deployment that was published already.
func placementOf(d *artifacts.Deployment) Placement {
	name, spec := d.Document.Metadata.Name, &d.Document.Spec
	return Placement{
		Deployment: &Deployment{Name: name}, Profile: &spec.DeploymentProfile, Parameters: spec.Parameters, kept: d,
		Release: &Release{Description: &margo.ApplicationDescription{
			ID: spec.ApplicationID, Metadata: margo.DescriptionMetadata{Version: versions(spec.DeploymentProfile)},
		}},
	}
}

// earlier finds the state to which a device is rolled back, or the reason why it is not.
func (p *planner) earlier(ctx context.Context, a *Assignment, s *standing, b Back) (goal *published, stays string, err error) {
	base := s.base
	if s.Lags() && base.index.Repeats != "" { // going back was interrupted before the tag moved
		if goal, err = p.read(ctx, a, base.index.Repeats); err == nil {
			err = p.trusted(ctx, a, goal.digest)
		}
		return goal, "", err
	}
	enough := func(context.Context, *published) (bool, error) { return true, nil }
	switch {
	case !b.Before.IsZero():
		enough = func(ctx context.Context, x *published) (bool, error) {
			at, err := b.When(ctx, a.Repository, x.digest)
			if err == nil && at.IsZero() {
				err = fault.WithHint(fmt.Errorf("generation %d does not say when it was published: %w", x.index.Generation, fault.ErrInvalid),
					"its signature says when: name who made it with --verify-key FILE")
			}
			return at.Before(b.Before), err
		}
		if old, err := enough(ctx, base); err != nil || old {
			return nil, "nothing was published for it since", err
		}
	case b.Revision != "":
		enough = func(_ context.Context, x *published) (bool, error) {
			return !strings.HasPrefix(x.index.Annotations[ocispec.AnnotationRevision], b.Revision), nil
		}
		if other, _ := enough(ctx, base); other {
			return nil, "what it has is of another revision", nil
		}
	case base.index.Repeats != "":
		return nil, fmt.Sprintf("generation %d goes back already", base.index.Generation), nil
	}
	goal = base
	for range maxBack {
		if goal, err = p.before(ctx, a, goal); err != nil {
			return nil, "", err
		}
		if done, err := enough(ctx, goal); err != nil {
			return nil, "", err
		} else if done {
			if err := p.trusted(ctx, a, goal.digest); err != nil {
				return nil, "", fmt.Errorf("generation %d: %w", goal.index.Generation, err)
			}
			return goal, "", nil
		}
	}
	return nil, "", fmt.Errorf("go back over more than %d generations: %w", maxBack, fault.ErrTooLarge)
}

// undid reports whether a state is already a rollback from the requested revision.
func (p *planner) undid(ctx context.Context, a *Assignment, s *published, b Back) (bool, error) {
	if b.Revision == "" || s.index.Repeats == "" {
		return false, nil
	}
	was, err := p.before(ctx, a, s)
	if err != nil {
		if permanent(err) {
			err = nil
		}
		return false, err
	}
	return strings.HasPrefix(was.origin().Revision, b.Revision), nil
}

// before is the generation that another one followed.
func (p *planner) before(ctx context.Context, a *Assignment, s *published) (*published, error) {
	d := s.index.Previous
	if d == "" {
		return nil, fmt.Errorf("generation %d is the first, there is nothing to go back to: %w", s.index.Generation, fault.ErrNotFound)
	}
	there, err := p.read(ctx, a, d)
	if errors.Is(err, fault.ErrNotFound) {
		return nil, fmt.Errorf("what was before generation %d is not there any more: %w", s.index.Generation, fault.ErrNotFound)
	}
	if err == nil && there.index.Generation >= s.index.Generation {
		err = fmt.Errorf("generation %d says that it follows generation %d: %w", s.index.Generation, there.index.Generation, fault.ErrInvalid)
	}
	return there, err
}

// same reports whether two states run the same.
func (s *published) same(other *published) bool {
	digests := other.documents()
	return s.digest == other.digest || (other.index.Bundle == nil) == (len(digests) == 0) && s.holds(digests)
}

// Notes are the annotations of a state about the origin of its content; they are kept.
func Notes(x *artifacts.StateIndex) map[string]string {
	out := map[string]string{}
	maps.Copy(out, x.Annotations)
	maps.DeleteFunc(out, func(key, _ string) bool {
		return strings.HasPrefix(key, "dev.longshore.") || key == ocispec.AnnotationTitle || key == ocispec.AnnotationVersion || key == ocispec.AnnotationCreated
	})
	return out
}
