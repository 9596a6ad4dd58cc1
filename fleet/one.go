package fleet

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/registry/release"
)

// One is what one device is to run, said by documents in place of a fleet's files: a fleet of one device.
type One struct {
	Device      artifacts.DeviceID
	Repository  string             // of its states, "host/path"
	Deployments []release.Document // all of them, unless KeepOthers
	// KeepOthers takes over the deployments of the current generation that are not among Deployments. Without it they are
	// removed from the device.
	KeepOthers bool
	Generation uint64        // 0: the one after the current; else it must be above it
	To         uint64        // go back to this generation, in place of Deployments; 0: not
	Proposal   bool          // go on with what is proposed, in place of Deployments; the plan's artifact has no blobs: they are there
	Digest     digest.Digest // of the proposal that is meant; "": the only one
}

// Next is the next generation of one device, ready to be published.
type Next struct {
	*DevicePlan
	Artifact    *artifacts.Artifact
	Publication Publication
	Repeats     digest.Digest    // of the earlier generation whose content it has again; "": none
	Deployments []release.Change // by name
	Notes       []string         // what is unusual, in sentences
}

// Registries is what [PlanOne] asks: of the tags of a repository it lists those of the device only.
type Registries interface {
	Registry
	TagsWithPrefix(ctx context.Context, repository, prefix string) ([]string, error)
}

// PlanOne makes the state that follows the newest one of a device. Its components are pinned to what their tags mean now, unless they
// are pinned already. A push that was interrupted before the device's tag moved is taken up again when it was of the same
// content; else the next free generation follows it. A state in the registry that o.Verify does not let pass is not followed:
// neither its number nor its deployments are taken over.
func PlanOne(ctx context.Context, from Registries, o Options, one One) (*Next, error) {
	o.Keep = math.MaxInt
	p := newPlanner(&Compiled{Fleet: &Fleet{}}, from, o)
	a := &Assignment{Device: &Device{ID: one.Device}, Repository: one.Repository}
	c := p.chain(a)
	c.Past = true
	c.Generations = func(ctx context.Context) ([]uint64, error) {
		tags, err := from.TagsWithPrefix(ctx, one.Repository, c.Tag+".v")
		return release.Generations(tags)[c.Tag], err
	}
	var kept []artifacts.Deployment
	if one.To != 0 {
		goal, err := c.At(ctx, one.To)
		if err == nil {
			kept, err = p.deployments(ctx, a, goal.Value, nil)
		}
		if err == nil {
			a.repeats = goal.Value
			err = p.loadable(ctx, a, kept)
		}
		if err != nil {
			err = fmt.Errorf("go back to generation %d: %w", one.To, err)
			if fault.Hint(err) == "" {
				err = fault.WithHint(err, "see what there is: longshore state history --device "+string(one.Device)+" "+one.Repository)
			}
			return nil, err
		}
	}
	h, err := c.Look(ctx)
	if err == nil {
		err = c.Climb(ctx, h)
	}
	if err == nil {
		err = h.Blind
	}
	if err != nil {
		return nil, fmt.Errorf("read the current generation: %w", err)
	}
	x := &onePlan{planner: p, a: a, one: one, s: &standing{Head: h}}
	if h.Current != nil {
		x.s.base = h.Current.Value
	}
	if err := x.check(); err != nil {
		return nil, err
	}
	if err := x.goOn(ctx, c); err != nil {
		return nil, fmt.Errorf("read the current generation: %w", err)
	}
	switch {
	case one.Proposal:
		kept, err = x.proposed(ctx, from)
	case one.To == 0:
		kept, err = release.Pin(ctx, from, one.Device, one.Deployments)
	}
	if err != nil {
		return nil, err
	}
	return x.next(ctx, kept)
}

// onePlan is the plan of one device on its way.
type onePlan struct {
	*planner
	a     *Assignment
	one   One
	s     *standing
	notes []string

	proposal *published // what is published; nil: what is packed
}

// check refuses to go on from what cannot be verified.
func (x *onePlan) check() error {
	const number = "say which number is next with --generation"
	const other = "if another key of yours signed it, name it with --verify-key FILE; else "
	h, at, said := x.s.Head, x.a.Repository+":", x.one.Generation
	tag := at + x.one.Device.Tag()
	switch {
	case h.Refused != nil && x.one.KeepOthers:
		return fault.WithHint(fmt.Errorf("keep what %s names: %w", tag, h.Refused), other+"name all deployments, without --keep-others")
	case h.Refused != nil && h.Current == nil && said == 0:
		return fault.WithHint(fmt.Errorf("follow what %s names: %w", tag, h.Refused), other+number)
	case h.Current == nil && h.Reason != nil && said == 0:
		return fault.WithHint(fmt.Errorf("follow %s%s: %w", at, h.Skipped[0], h.Reason), other+number)
	case len(h.Skipped) > release.MaxSkipped && said == 0:
		return fault.WithHint(fmt.Errorf("follow %s%s: more than %d generations like it: %w", at, h.Skipped[0], release.MaxSkipped, h.Reason),
			"somebody seems to have made them; remove them, or "+number)
	case h.Current != nil && (said != 0 && said < h.Number() || said == h.Number() && !h.Lags()):
		return x.older()
	case h.Next == 0 && said == 0:
		return fmt.Errorf("%s: generation %d has no next one: %w", tag, h.Number(), fault.ErrInvalid)
	}
	return nil
}

func (x *onePlan) older() error {
	n := x.s.Number()
	err := fmt.Errorf("generation %d of %s: %w: generation %d is there, and devices take nothing older", x.one.Generation, x.one.Device, fault.ErrRollback, n)
	return fault.WithHint(err, fmt.Sprintf("to go back to older content, publish it again as generation %d", n+1))
}

// goOn settles which number is next: the one that is asked for, or one above what the device has accepted.
func (x *onePlan) goOn(ctx context.Context, c *release.Chain[*published]) error {
	if n := x.one.Generation; n != 0 {
		x.s.said = n != x.s.Number()
		x.s.Next = n
		return nil
	}
	if err := x.exceed(ctx, x.a, x.s, c); err != nil {
		return err
	}
	return x.check()
}

// next plans the generation with these deployments.
func (x *onePlan) next(ctx context.Context, deployments []artifacts.Deployment) (*Next, error) {
	n := &Next{DevicePlan: &DevicePlan{Device: x.one.Device, Repository: x.a.Repository, Tagged: x.s.Tagged, assignment: x.a}}
	deployments, err := x.compare(ctx, n, deployments)
	if err != nil {
		return nil, err
	}
	documents, digests := make([][]byte, len(deployments)), make([]digest.Digest, len(deployments))
	for i := range deployments {
		documents[i], digests[i] = deployments[i].Bytes, deployments[i].Digest
		x.a.Placements = append(x.a.Placements, placementOf(&deployments[i]))
		if err := clashes(deployments[i].Document); err != nil {
			return nil, err
		}
	}
	if x.one.To == 0 {
		found, err := x.planner.check(ctx, x.a)
		if err != nil {
			return nil, err
		}
		if x.notes = append(x.notes, found.Notes...); len(found.Wrong) > 0 {
			err := fmt.Errorf("state of %s: %w: %s", x.one.Device, fault.ErrUnfit, strings.Join(found.Wrong, "; "))
			return nil, fault.WithHint(err, "correct what is wrong and push the component again; --no-content does not look whether content is at its registry")
		}
	}
	if x.proposal != nil {
		x.adopt(n)
	} else if err := x.publication(n.DevicePlan, x.a, x.s, documents, digests); err != nil {
		return nil, err
	}
	resumed := x.s.Lags() && n.Digest == x.s.Current.Digest
	if x.one.Generation != 0 && !resumed {
		if x.one.Generation == x.s.Number() {
			return nil, x.older()
		}
		if err := x.free(ctx, n); err != nil {
			return nil, err
		}
	}
	if n.Artifact = n.artifact; n.Artifact == nil {
		if n.Artifact, err = x.pack(x.a, n.Generation, n.Previous, documents); err != nil {
			return nil, err
		}
	}
	if x.a.repeats != nil {
		if n.Repeats = x.a.repeats.digest; n.Previous == n.Repeats {
			return nil, fmt.Errorf("go back to generation %d: it is the newest: %w", x.one.To, fault.ErrConflict)
		}
	}
	n.Publication, n.Notes = n.DevicePlan.publication(x.o), x.tell(resumed)
	return n, nil
}

// clashes refuses a deployment that no device takes, for what its parameters say together.
func clashes(d *margo.ApplicationDeployment) error {
	if d.Spec.DeploymentProfile.Type != "compose" {
		return nil
	}
	for _, c := range d.Spec.DeploymentProfile.Components {
		if _, err := d.Environment(c.Name); err != nil {
			return fmt.Errorf("deployment %s: %w", d.Metadata.Name, err)
		}
	}
	return nil
}

// free makes sure that the history tag of a number that was asked for is free; of every other it is known.
func (x *onePlan) free(ctx context.Context, n *Next) error {
	tag := artifacts.HistoryTag(x.one.Device.Tag(), n.Generation)
	there, err := x.from.Resolve(ctx, x.a.Repository, tag)
	if errors.Is(err, fault.ErrNotFound) || err == nil && there.Digest == n.Digest {
		return nil
	}
	if err == nil {
		err = fault.WithHint(fmt.Errorf("%s:%s names %s already: %w", x.a.Repository, tag, there.Digest, fault.ErrConflict), "look at it, and choose another generation")
	}
	return err
}

// tell says what was unusual.
func (x *onePlan) tell(resumed bool) []string {
	h, tag := x.s.Head, x.one.Device.Tag()
	var out []string
	if h.Refused != nil {
		out = append(out, fmt.Sprintf("what %s named was not followed: %v", tag, h.Refused))
	}
	switch {
	case resumed:
		out = append(out, fmt.Sprintf("generation %d says the same already, and %s did not name it: it does now", h.Number(), tag))
	case h.Lags():
		out = append(out, fmt.Sprintf("generation %d is the newest, although %s does not name it: this follows it", h.Number(), tag))
	}
	if len(h.Skipped) > 0 {
		first := h.Skipped[:min(len(h.Skipped), 3)]
		out = append(out, fmt.Sprintf("not followed: %s (%d in all): %v", strings.Join(first, ", "), len(h.Skipped), h.Reason))
	}
	return slices.Concat(out, x.s.notes, x.notes)
}

// compare says what changes, and returns the deployments of the next state.
func (x *onePlan) compare(ctx context.Context, n *Next, deployments []artifacts.Deployment) ([]artifacts.Deployment, error) {
	known, there := map[digest.Digest]bool{}, map[digest.Digest]bool{}
	for _, d := range deployments {
		known[d.Digest] = true
	}
	was := map[string]artifacts.Deployment{}
	if x.s.base != nil {
		before, err := x.deployments(ctx, x.a, x.s.base, known)
		if lasting(err) && !x.one.KeepOthers {
			x.notes = append(x.notes, fmt.Sprintf("what it has could not be read, and counts as nothing: %v", err))
			err = nil
		}
		if err != nil {
			return nil, err
		}
		for _, d := range before {
			was[d.Document.ID] = d
		}
		for _, l := range x.s.base.index.Deployments {
			there[l.Digest] = true
		}
	}
	out := slices.Clone(deployments)
	for _, d := range deployments {
		c := changeOf(d, release.New)
		if old, changed := was[d.Document.ID]; there[d.Digest] {
			c.Change = release.Unchanged
		} else if changed {
			c.Change, c.Was = release.Changed, release.ComponentsOf(old)
			delete(was, d.Document.ID)
		}
		n.Deployments = append(n.Deployments, c)
	}
	for _, d := range was {
		c := changeOf(d, release.Unchanged)
		if x.one.KeepOthers {
			out = append(out, d)
		} else {
			c.Change, c.Was, c.Components = release.Removed, c.Components, nil
		}
		n.Deployments = append(n.Deployments, c)
	}
	slices.SortFunc(n.Deployments, func(a, b release.Change) int {
		return strings.Compare(a.Name+"\n"+a.Deployment, b.Name+"\n"+b.Deployment)
	})
	slices.SortFunc(out, func(a, b artifacts.Deployment) int { return strings.Compare(a.Document.ID, b.Document.ID) })
	return out, nil
}

func changeOf(d artifacts.Deployment, kind string) release.Change {
	return release.Change{Deployment: d.Document.ID, Name: d.Document.Metadata.Name, Change: kind, Components: release.ComponentsOf(d)}
}

const goneHint = "push what is gone again, by the same digest; or go back to another generation; --no-content does not look"

// loadable refuses deployments that the device could not load again.
func (p *planner) loadable(ctx context.Context, a *Assignment, deployments []artifacts.Deployment) error {
	found, err := p.prefetch(ctx, assigned(a.Device, deployments), "")
	if err == nil && len(found.Wrong) > 0 {
		err = fault.WithHint(fmt.Errorf("it cannot be had again: %w: %s", fault.ErrUnfit, strings.Join(found.Wrong, "; ")),
			goneHint)
	}
	return err
}
