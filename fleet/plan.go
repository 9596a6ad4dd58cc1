package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/schedule"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/registry/release"
)

// DefaultConcurrency is the number of devices that are processed at a time.
const DefaultConcurrency = 48

// inFlight is how many states are being published for each device that is looked at at a time: most of them wait until it
// is sure that no other publisher writes the same list of signatures. How many requests that makes is the [Publisher]'s to bound.
const inFlight = 4

// What a plan does with a device.
const (
	Publish = "publish" // its state becomes another one
	Same    = "same"    // its state matches the files
	Cannot  = "cannot"  // it cannot run its deployments, or its state has no acceptable successor
)

// Options of a plan.
type Options struct {
	Devices func(*Device) bool // nil: all
	// Verify reports whether a state in the registry may be followed; its number is chosen by its publisher. nil: each may.
	// Only states that are to change are asked for, unless Resign says all.
	Verify func(ctx context.Context, repository string, state digest.Digest) error
	// Services returns what a component runs with these parameters, on a platform ("": any). An error of it that wraps one of
	// fault's kinds keeps the component from devices. nil: plans do not say what restarts.
	Services func(ctx context.Context, archive *artifacts.Archive, env map[string]string, platform string) ([]Service, error)
	// Unused lists those of names that nothing in a component refers to, and the variables that its compose.yaml refers to. nil: every
	// parameter counts as used.
	Unused func(archive *artifacts.Archive, names []string) (unused, known []string, err error)
	// Layers lists what a pull of an image moves, as Compose files name it. nil: images count as a whole.
	Layers func(ctx context.Context, reference string, d digest.Digest) ([]ocispec.Descriptor, error)
	// Content looks at something that devices would load, before anything is published: whether all of it is where it has to
	// be. Each thing is asked for once. An error ends the plan. nil: nothing is looked at.
	Content func(ctx context.Context, c Content) (Finding, error)
	// Trusted reports whether devices would accept content, by its signers; it is called once for each digest. An error that wraps
	// fault.ErrTemporary ends the plan, any other excludes the content. nil: signers are not checked.
	Trusted func(ctx context.Context, c Content) error
	// Accepted returns the newest generation that a device has reported as accepted; 0: it has reported none. A registry that was
	// restored from a backup may have only older ones: the next generation is above both. An error keeps no device from what
	// comes. nil: the accepted generations of devices are unknown.
	Accepted    func(ctx context.Context, device artifacts.DeviceID) (uint64, error)
	Resign      bool      // ask Verify of states that stay as well, and sign those again that it does not let pass
	Expires     time.Time // of the states; zero: never. A state that ends in less than half of the time until then is published again
	Now         time.Time // for Expires, and for windows that do not open any more; zero: such windows are published
	Created     time.Time // of the artifacts; zero: left out
	Annotations map[string]string
	Concurrency int // devices looked at at a time, and a quarter of the states published at a time; 0: 48
	Keep        int // bytes of artifacts that a plan keeps for Publish, which makes the others again; 0: none
}

// Plan has the changes of publishing a fleet, and everything that is needed for it.
type Plan struct {
	Fleet   string
	Devices []*DevicePlan // by id

	c           *Compiled
	o           Options
	compressors *artifacts.Compressors
}

// DevicePlan is the plan of one device.
type DevicePlan struct {
	Device           artifacts.DeviceID
	Repository       string
	Action           string        // publish, same, cannot
	Tagged           digest.Digest // digest of the device's tag; "": none
	TaggedGeneration uint64        // generation that the device's tag names; 0: none
	Generation       uint64        // the next one; of Same the one that is there, 0 when there is none
	Previous         digest.Digest // its predecessor; "": none
	Digest           digest.Digest // of the state that is published, or is there
	Content          digest.Digest // what Digest would be if the state did not say of which commit it is
	Origin           Origin        // of the state that the device has; zero: it does not say
	Changes          []Change
	WindowsChange    *WindowsChange // nil: none
	Cost             Cost
	Reasons          []string // of Cannot; notes otherwise

	assignment *Assignment
	undone     bool                // it was already rolled back from the requested revision
	fresh      bool                // the published artifact did not exist when it was planned
	held       []digest.Digest     // blobs of its that are in the repository: what it follows has them
	resigned   []byte              // manifest of what is there and gets another signature; nil: something else is published
	artifact   *artifacts.Artifact // what is published, while there is room for it; nil: it is made again
	err        error               // why its state cannot be followed; nil: Reasons are of the device
}

type planner struct {
	c        *Compiled
	from     Registry
	o        Options
	archives archives
	loaded   once[[]Service]
	cost     once[*load]
	looked   once[Finding] // components with their images
	single   once[Finding] // one thing each
	judged   once[struct{}]
	checked  once[Finding] // devices that are alike
	idle     once[Finding]
	kept     atomic.Int64 // bytes of artifacts

	histories once[map[string][]uint64] // by repository; only used if a device's tag was deleted

	compressors *artifacts.Compressors
}

func newPlanner(c *Compiled, from Registry, o Options) *planner {
	return &planner{c: c, from: from, o: o, archives: archives{from: from}, compressors: &artifacts.Compressors{}}
}

// Plan compares what the files say with what each device has in the registry. The error says that a registry could not be
// asked; what is wrong with single devices is in the plan.
func (c *Compiled) Plan(ctx context.Context, from Registry, o Options) (*Plan, error) {
	return c.planEach(ctx, from, o, "plan", func(ctx context.Context, p *planner, a *Assignment) (*DevicePlan, error) { return p.device(ctx, a) })
}

// planEach plans every device that is chosen, several at a time. what is the verb in errors.
func (c *Compiled) planEach(
	ctx context.Context, from Registry, o Options, what string, device func(context.Context, *planner, *Assignment) (*DevicePlan, error),
) (*Plan, error) {
	p := newPlanner(c, from, o)
	plan := &Plan{Fleet: c.Fleet.Name, c: c, o: o, compressors: p.compressors}
	var chosen []*Assignment
	for _, a := range c.Assignments {
		if o.Devices == nil || o.Devices(a.Device) {
			chosen = append(chosen, a)
		}
	}
	plan.Devices = make([]*DevicePlan, len(chosen))
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(o.concurrency())
	for i, a := range chosen {
		if inner.Err() != nil {
			break
		}
		g.Go(func() (err error) {
			plan.Devices[i], err = device(inner, p, a)
			if err != nil {
				err = fmt.Errorf("%s %s: %w", what, a.Device.ID, err)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return plan, ctx.Err()
}

func (o Options) concurrency() int {
	if o.Concurrency > 0 {
		return o.Concurrency
	}
	return DefaultConcurrency
}

// device plans one device.
func (p *planner) device(ctx context.Context, a *Assignment) (*DevicePlan, error) {
	d := &DevicePlan{Device: a.Device.ID, Repository: a.Repository, assignment: a}
	s, err := p.look(ctx, a)
	if err != nil {
		return nil, err
	}
	d.Tagged = s.Tagged
	d.Origin = s.base.origin()
	if s.base != nil {
		d.TaggedGeneration = s.base.index.Generation
	}
	if len(a.Unfit) > 0 {
		d.Action, d.Reasons = Cannot, a.Unfit
		return d, nil
	}
	documents, err := a.Documents(p.c.Fleet)
	if err != nil {
		return nil, err
	}
	digests := digestsOf(documents)
	switch {
	case s.Refused != nil:
		d.Action, d.Reasons, d.err = Cannot, []string{fault.Summary(s.Refused)}, s.Refused
		return d, nil
	case s.base == nil && len(documents) == 0:
		d.Action = Same
		return d, nil
	case s.base != nil && s.base.index.Windows.JSON() != a.Windows.JSON(): // a change, also if all else stays
	case s.base.holds(digests) && !s.base.lasts(p.o.Now, p.o.Expires):
		d.Reasons = append(d.Reasons, s.base.ends())
	case s.base.holds(digests):
		// Unless the tag was moved back, or newer ones are lost: then devices have gone on, and take nothing older.
		_, err := p.from.Resolve(ctx, a.Repository, artifacts.HistoryTag(a.Device.ID.Tag(), s.Next))
		switch {
		case errors.Is(err, fault.ErrNotFound), errors.Is(err, fault.ErrInvalid): // or cut off by a publisher that was killed
			if lost, _ := p.lost(ctx, a, s); lost > 0 {
				break
			}
			d.Action, d.Generation, d.Digest, d.Content = Same, s.base.index.Generation, s.base.digest, artifacts.WithoutOrigin(s.base.manifest)
			return d, p.resign(ctx, d, a, s.base, documents)
		case err != nil:
			return nil, err
		}
	}
	tagged := s.base
	if err := p.climb(ctx, a, s); err != nil {
		if release.Unfit(err) {
			d.Action, d.Reasons, d.err = Cannot, []string{fault.Summary(err)}, err
			return d, nil
		}
		return nil, err
	}
	if why := Overdue(a.Windows, p.o.Now); why != "" {
		d.Action, d.Reasons = Cannot, append(d.Reasons, why)
		return d, nil
	}
	if err := p.publication(d, a, s, documents, digests); err != nil {
		return nil, err
	}
	return d, p.explain(ctx, d, a, tagged, digests)
}

// contentOf is a set of documents, and the windows in which it is applied, in one digest.
func contentOf(documents []digest.Digest, windows schedule.Windows) digest.Digest {
	sorted := slices.Sorted(slices.Values(documents))
	var b strings.Builder
	for _, d := range sorted {
		b.WriteString(d.String() + "\n")
	}
	return digest.FromString(b.String() + windows.JSON())
}

// publication decides which artifact is published, as which generation.
func (p *planner) publication(d *DevicePlan, a *Assignment, s *standing, documents [][]byte, digests []digest.Digest) error {
	d.Action, d.Generation = Publish, s.Next
	if s.base != nil {
		d.Previous = s.base.digest
	}
	if len(s.Skipped) > 0 {
		d.Reasons = append(d.Reasons, fmt.Sprintf("%d generations of the history were not followed: %v", len(s.Skipped), s.Reason))
	}
	d.Reasons = append(d.Reasons, s.notes...)
	if s.Blind != nil {
		d.Reasons = append(d.Reasons, fmt.Sprintf("nothing is tagged for it, and whether there are older generations could not be found out: %v", s.Blind))
	}
	if s.Lags() && !s.said && s.base.holds(digests) { // interrupted before the tag moved: the same again
		again, err := p.pack(a, s.base.index.Generation, s.base.index.Previous, documents)
		if err != nil {
			return err
		}
		if again.Descriptor.Digest == s.base.digest {
			d.Generation, d.Previous, d.Digest = s.base.index.Generation, s.base.index.Previous, s.base.digest
			d.Content = artifacts.WithoutOrigin(again.Manifest)
			return nil
		}
	}
	next, err := p.pack(a, d.Generation, d.Previous, documents)
	if err != nil {
		return err
	}
	d.Digest, d.Content, d.fresh = next.Descriptor.Digest, artifacts.WithoutOrigin(next.Manifest), true
	if s.base != nil {
		for _, l := range s.base.index.Deployments {
			if slices.Contains(digests, l.Digest) {
				d.held = append(d.held, l.Digest)
			}
		}
	}
	if p.kept.Add(next.Size()) <= int64(p.o.Keep) {
		d.artifact = next
	}
	return nil
}

func (p *planner) pack(a *Assignment, generation uint64, previous digest.Digest, documents [][]byte) (*artifacts.Artifact, error) {
	return artifacts.PackState(stateOptions(p.o, p.compressors, a, generation, previous, documents))
}

func stateOptions(o Options, compressors *artifacts.Compressors, a *Assignment, generation uint64, previous digest.Digest, documents [][]byte) artifacts.StateOptions {
	so := artifacts.StateOptions{
		Device: a.Device.ID, Generation: generation, Deployments: documents, Expires: o.Expires, Windows: a.Windows, Previous: previous, Created: o.Created,
		Annotations: o.Annotations, Applications: a.packages(), Compressors: compressors,
	}
	if a.repeats != nil {
		so.Repeats, so.Annotations, so.Applications = a.repeats.digest, Notes(a.repeats.index), a.repeats.index.Applications
		maps.Copy(so.Annotations, o.Annotations)
	}
	return so
}

// explain adds the changes on the device, and their cost.
func (p *planner) explain(ctx context.Context, d *DevicePlan, a *Assignment, tagged *published, digests []digest.Digest) error {
	var before []artifacts.Deployment
	unchanged := map[string]bool{}
	d.WindowsChange = changeOfWindows(tagged, a.Windows)
	if tagged != nil {
		var err error
		if before, err = p.deployments(ctx, a, tagged, digests...); permanent(err) { // a fault of one device does not affect others
			d.Reasons = append(d.Reasons, fmt.Sprintf("what it has could not be read, and counts as nothing: %v", err))
			before, err = nil, nil
		}
		if err != nil {
			return err
		}
		there := tagged.documents()
		for i, at := range a.Placements {
			unchanged[a.id(at)] = slices.Contains(there, digests[i])
		}
	}
	platform := platformOf(a.Device)
	changes, cannot, err := p.compare(ctx, a, platform, before, unchanged)
	if err != nil {
		return err
	}
	var had, now []margo.DeploymentProfile
	for _, b := range before {
		had = append(had, b.Document.Spec.DeploymentProfile)
	}
	for _, at := range a.Placements {
		now = append(now, *at.Profile)
		if unchanged[a.id(at)] {
			had = append(had, *at.Profile)
		}
	}
	cost, missing, err := p.price(ctx, platform, had, now)
	if permanent(err) {
		missing, err = err.Error(), nil
	}
	if err != nil {
		return err
	}
	found, err := p.runnable(ctx, a)
	if err != nil {
		return err
	}
	if missing != "" && len(found.Wrong) == 0 { // otherwise that has more details
		cannot = append(cannot, missing)
	}
	for _, w := range found.Wrong {
		if !slices.ContainsFunc(cannot, func(why string) bool { return strings.HasSuffix(why, w) }) {
			cannot = append(cannot, w)
		}
	}
	d.Reasons = append(d.Reasons, found.Notes...)
	d.Changes, d.Cost = changes, cost
	if len(cannot) > 0 {
		d.Action, d.Reasons = Cannot, cannot
	}
	return nil
}

// Group is the first group of the device; "" when it is in none.
func (d *DevicePlan) Group() string {
	if all := d.assignment.Device.Groups; len(all) > 0 {
		return all[0].Name
	}
	return ""
}

// Deployments is how many deployments the files put on the device.
func (d *DevicePlan) Deployments() int { return len(d.assignment.Placements) }

// Only is a part of the plan: of the devices that are chosen.
func (p *Plan) Only(chosen func(*DevicePlan) bool) *Plan {
	part := &Plan{Fleet: p.Fleet, c: p.c, o: p.o, compressors: p.compressors}
	for _, d := range p.Devices {
		if chosen(d) {
			part.Devices = append(part.Devices, d)
		}
	}
	return part
}

// Definition is the fleet that the plan is of.
func (p *Plan) Definition() *Fleet { return p.c.Fleet }

// Count is the number of devices with an action.
func (p *Plan) Count(action string) int {
	n := 0
	for _, d := range p.Devices {
		if d.Action == action {
			n++
		}
	}
	return n
}

var digests = strict.Expression(`sha256:[0-9a-f]{64}`)

// Unfit is an error about all devices that cannot get their deployments, grouped by reason; nil if all can.
// It wraps fault.ErrUnfit, or why the device's state in the registry cannot be followed.
func (p *Plan) Unfit() error {
	return p.unfit("change the files; or leave such devices as they are with --skip-unfit")
}

// unfit is Unfit with a hint of the caller's, which may be "".
func (p *Plan) unfit(hint string) error {
	devices, kinds := map[string][]string{}, map[string]error{}
	var reasons []string
	for _, d := range p.Devices {
		if d.Action != Cannot {
			continue
		}
		why := strings.Join(d.Reasons, "; ")
		if d.err != nil { // each names its tag and its digests
			why = digests.Regexp().ReplaceAllString(strings.ReplaceAll(why, ":"+d.Device.Tag(), ""), "")
		}
		if devices[why] == nil {
			reasons, kinds[why] = append(reasons, why), d.err
		}
		devices[why] = append(devices[why], string(d.Device))
	}
	var all []error
	for _, why := range reasons {
		if err := kinds[why]; err == nil {
			err := fmt.Errorf("%s: %w: %s", some(devices[why]), fault.ErrUnfit, why)
			if strings.Contains(why, nothingKnown) {
				err = fault.WithHint(err, nothingKnownHint)
			} else if hint != "" {
				err = fault.WithHint(err, hint)
			}
			all = append(all, err)
		} else {
			hint := fault.Hint(err)
			switch {
			case errors.Is(err, fault.ErrKeyRevoked), errors.Is(err, fault.ErrDigestRevoked):
				hint = "look at what the device has, and sign it again if it is good: longshore sign"
			case fault.Distrusted(err):
				hint = verifyKeyHint
			}
			all = append(all, fault.WithHint(fmt.Errorf("%s: %w", some(devices[why]), err), hint))
		}
	}
	return errors.Join(all...)
}
