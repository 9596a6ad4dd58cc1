package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/schedule"
	"github.com/longshore-dev/longshore/registry/release"
)

// One is a change of the state of one device, without a fleet's files: a fleet of one device.
type One struct {
	Device     artifacts.DeviceID
	Repository string // of its states, "host/path"
	// Edit says what becomes of the deployments that the device has, in the newest state that Options.Verify lets pass; with
	// Replace it is given none. nil: nothing becomes of them.
	Edit func(ctx context.Context, had []artifacts.Deployment) (Edit, error)
	// Replace removes every deployment that Edit does not name. Without it they stay, byte for byte.
	Replace bool
	// Windows are those in which the device makes changes; nil: those of its newest state; the zero value: none, at any time.
	Windows    *schedule.Windows
	Generation uint64        // 0: the one after the current; else it must be above it
	To         uint64        // go back to this generation, in place of Edit and Replace; 0: not
	Proposal   bool          // go on with what is proposed, in place of Edit, Replace and Windows; the plan's artifact has no blobs: they are there
	Digest     digest.Digest // of the proposal that is meant; "": the only one
}

// Edit is a change of the deployments of one device.
type Edit struct {
	Deployments []release.Document // new ones, and those in place of others of the same id
	Remove      []string           // ids of those that are removed
	Notes       []string           // notes about unusual values, in sentences
}

// Next is the next generation of one device, ready to be published. Reasons are what is unusual, in sentences.
type Next struct {
	*DevicePlan
	Artifact    *artifacts.Artifact
	Publication Publication
	Expires     time.Time // zero: never
	Windows     schedule.Windows
	Repeats     digest.Digest // of the earlier generation whose content it has again; "": none
	Kept        []string      // names of the deployments that the change does not name

	plan *Plan
}

// Details writes what the next generation changes on the device, for people: as a plan of many devices does.
func (n *Next) Details(w io.Writer) { n.plan.Details(w) }

// Registries is the registry access of [PlanOne]: it lists only the device's tags of a repository.
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
	if one.To != 0 || one.Proposal {
		one.Replace = true // nothing is kept beside it
	}
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
		if errors.Is(err, fault.ErrNotFound) && !fault.Retryable(err) {
			err = fault.WithSummary(err, "it is not in "+one.Repository+": "+fault.ErrNotFound.Error())
		}
		if err == nil {
			a.repeats = goal.Value
			kept, err = p.deployments(ctx, a, goal.Value)
		}
		if err != nil {
			err = fmt.Errorf("go back to generation %d: %w", one.To, err)
			if fault.Hint(err) == "" {
				err = fault.WithHint(err, seeHistory(one))
			}
			return nil, err
		}
	}
	h, err := c.ReadTag(ctx)
	var tagged *published
	if err == nil {
		if h.Current != nil {
			tagged = h.Current.Value
		}
		err = c.FollowHistory(ctx, h)
	}
	if err == nil {
		err = h.Blind
	}
	if err != nil {
		return nil, fmt.Errorf("read the current generation: %w", err)
	}
	x := &onePlan{planner: p, a: a, one: one, s: &standing{Head: h}, tagged: tagged}
	if h.Current != nil {
		x.s.base = h.Current.Value
	}
	if err := x.check(); err != nil {
		return nil, err
	}
	if err := x.goOn(ctx, c); err != nil {
		return nil, err
	}
	switch {
	case one.Proposal:
		kept, err = x.proposed(ctx, from)
	case one.To == 0:
		kept, err = x.edited(ctx)
	}
	if err != nil {
		return nil, err
	}
	return x.next(ctx, kept)
}

// seeHistory is the hint about a generation that a device cannot go back to.
func seeHistory(one One) string {
	return "see what there is: longshore state history --device " + string(one.Device) + " " + one.Repository
}

// onePlan is the plan of one device on its way.
type onePlan struct {
	*planner
	a      *Assignment
	one    One
	s      *standing
	tagged *published      // what the device's tag names; nil: nothing, or nothing that may be followed
	named  map[string]bool // ids of the deployments that the change names, in lower case
	kept   []string        // names of the others
	notes  []string

	proposal *published // the published artifact; nil: the packed one
}

// edited are the deployments of the next state: what the change says, and the others unless they are replaced.
func (x *onePlan) edited(ctx context.Context) ([]artifacts.Deployment, error) {
	var had []artifacts.Deployment
	var err error
	if !x.one.Replace && x.s.base != nil {
		if had, err = x.deployments(ctx, x.a, x.s.base); err != nil {
			return nil, x.lose(fmt.Errorf("read the deployments of generation %d: %w", x.s.Number(), err))
		}
	}
	var e Edit
	if x.one.Edit != nil {
		if e, err = x.one.Edit(ctx, had); err != nil {
			return nil, err
		}
	}
	x.notes = e.Notes
	out, err := release.Pin(ctx, x.from, x.one.Device, e.Deployments)
	if err != nil {
		return nil, err
	}
	named := map[string]bool{}
	for _, id := range e.Remove {
		named[strings.ToLower(id)] = true
	}
	for _, d := range out {
		named[strings.ToLower(d.Document.ID)] = true
	}
	x.named = named
	for _, d := range had {
		if !named[strings.ToLower(d.Document.ID)] {
			out, x.kept = append(out, d), append(x.kept, d.Document.Metadata.Name)
		}
	}
	slices.SortFunc(out, func(a, b artifacts.Deployment) int { return strings.Compare(a.Document.ID, b.Document.ID) })
	slices.Sort(x.kept)
	return out, nil
}

// lose adds a hint if the device's deployments cannot be kept.
func (x *onePlan) lose(err error) error {
	hint := "say all that the device is to run with longshore state push --replace"
	if x.s.Current == nil {
		hint += " --generation NUMBER"
	}
	if fault.Distrusted(err) || errors.Is(err, fault.ErrConflict) {
		hint = verifyKeyHint + "; else " + hint
	}
	if fault.Retryable(err) || errors.Is(err, context.Canceled) {
		return err
	}
	return fault.WithHint(err, hint)
}

const verifyKeyHint = "if another key of yours signed it, name it with --verify-key FILE"

// check returns an error if the current state cannot be verified.
func (x *onePlan) check() error {
	const number = "say which number is next with --generation"
	const other = verifyKeyHint + "; else "
	h, at, said := x.s.Head, x.a.Repository+":", x.one.Generation
	tag := at + x.one.Device.Tag()
	switch {
	case h.Refused != nil && !x.one.Replace:
		return x.lose(fmt.Errorf("read the current state %s: %w", tag, h.Refused))
	case h.Current == nil && h.Reason != nil && !x.one.Replace:
		return x.lose(fmt.Errorf("read the current state %s%s: %w", at, h.Skipped[0], h.Reason))
	case h.Refused != nil && h.Current == nil && said == 0:
		return fault.WithHint(fmt.Errorf("continue from %s: %w", tag, h.Refused), other+number)
	case h.Current == nil && h.Reason != nil && said == 0:
		return fault.WithHint(fmt.Errorf("continue from %s%s: %w", at, h.Skipped[0], h.Reason), other+number)
	case len(h.Skipped) > release.MaxSkipped && said == 0:
		return fault.WithHint(fmt.Errorf("continue from %s%s: more than %d generations are like it: %w", at, h.Skipped[0], release.MaxSkipped, h.Reason),
			"another publisher seems to have made them; remove them, or "+number)
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
		return fmt.Errorf("read the current generation: %w", err)
	}
	if x.s.said && !x.one.Replace { // it runs what the registry has lost
		return x.lose(fmt.Errorf("read what %s runs: %s: %w", x.one.Device, x.s.notes[len(x.s.notes)-1], fault.ErrNotFound))
	}
	return x.check()
}

// next plans the generation with these deployments.
func (x *onePlan) next(ctx context.Context, deployments []artifacts.Deployment) (*Next, error) {
	n := &Next{DevicePlan: &DevicePlan{Device: x.one.Device, Repository: x.a.Repository, Tagged: x.s.Tagged, assignment: x.a}, Kept: x.kept, Expires: x.o.Expires}
	n.plan = &Plan{c: x.c, Devices: []*DevicePlan{n.DevicePlan}}
	if err := x.setWindows(); err != nil {
		return nil, err
	}
	n.Windows = x.a.Windows
	documents, digests := make([][]byte, len(deployments)), make([]digest.Digest, len(deployments))
	for i := range deployments {
		documents[i], digests[i] = deployments[i].Bytes, deployments[i].Digest
		at := placementOf(&deployments[i])
		at.named = x.named[strings.ToLower(deployments[i].Document.ID)]
		x.a.Placements = append(x.a.Placements, at)
		if err := clashes(deployments[i].Document); err != nil {
			return nil, err
		}
	}
	if x.proposal != nil {
		x.adopt(n)
	} else if err := x.publication(n.DevicePlan, x.a, x.s, documents, digests); err != nil {
		return nil, err
	}
	resumed, before := x.s.Lags() && n.Digest == x.s.Current.Digest, x.s.base
	if resumed {
		before = x.tagged
	}
	n.Reasons = x.reasons(resumed)
	if err := x.explain(ctx, n.DevicePlan, x.a, before, digests); err != nil {
		return nil, err
	}
	if n.Action == Cannot {
		return nil, x.unfit(n.Reasons)
	}
	if x.one.Generation != 0 && !resumed {
		if x.one.Generation == x.s.Number() {
			return nil, x.older()
		}
		if err := x.free(ctx, n); err != nil {
			return nil, err
		}
	}
	var err error
	if n.Artifact = n.artifact; n.Artifact == nil {
		if n.Artifact, err = x.pack(x.a, n.Generation, n.Previous, documents); err != nil {
			return nil, err
		}
	}
	if x.a.repeats != nil {
		if n.Repeats = x.a.repeats.digest; n.Previous == n.Repeats {
			return nil, fault.WithHint(fmt.Errorf("go back to generation %d: it is the newest: %w", x.one.To, fault.ErrConflict), seeHistory(x.one))
		}
	}
	n.Publication = n.DevicePlan.publication(x.o)
	return n, nil
}

// setWindows settles the windows of the next generation.
func (x *onePlan) setWindows() error {
	switch {
	case x.proposal != nil:
		x.a.Windows = x.proposal.index.Windows
	case x.one.Windows != nil:
		x.a.Windows = *x.one.Windows
	case x.s.base != nil:
		x.a.Windows = x.s.base.index.Windows
	}
	if why := Overdue(x.a.Windows, x.o.Now); why != "" {
		return fault.WithHint(fmt.Errorf("state of %s: %s: %w", x.one.Device, why, fault.ErrInvalid),
			"the device would never make another change: name other windows with --windows FILE, or --windows none")
	}
	return nil
}

// unfit is the reason why no device could run or load the deployments.
func (x *onePlan) unfit(why []string) error {
	all := strings.Join(why, "; ")
	if x.one.To != 0 {
		return fault.WithHint(fmt.Errorf("go back to generation %d: it cannot be had again: %w: %s", x.one.To, fault.ErrUnfit, all),
			"push the missing content again, with the same digest; or choose another generation; --no-content skips this check")
	}
	return fault.WithHint(fmt.Errorf("state of %s: %w: %s", x.one.Device, fault.ErrUnfit, all),
		"correct what is wrong and push the component again; --no-content does not look whether content is at its registry")
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

// reasons lists unusual values.
func (x *onePlan) reasons(resumed bool) []string {
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
