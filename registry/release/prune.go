package release

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
)

// pruneConcurrency is the number of devices that are read or pruned at a time.
const pruneConcurrency = 16

// Retention defines which generations stay, in addition to those that always do: the one of a device's tag and those above it, its
// predecessor, those that these and needed ones repeat, and those of any other tag.
type Retention struct {
	Keep    int                                                               // newest generations of each device; at least 1
	Devices func(tag string) bool                                             // by the tags of their states; nil: all that have a history
	Younger time.Time                                                         // generations that were published after it stay, and those without a time; zero: age does not matter
	When    func(ctx context.Context, state digest.Digest) (time.Time, error) // when it was published; zero time: unknown. For Younger
	Needed  func(device artifacts.DeviceID) []Need                            // nil: only what the repository itself shows
}

// Need is a state of a device that stays at any age, with its predecessor and the state that it repeats, for a rollback.
type Need struct {
	All        bool          // every generation, because the device's is unknown
	Digest     digest.Digest // "": Generation is used
	Generation uint64
	Why        string
}

// Pruning is the result of a retention for the states of a repository.
type Pruning struct {
	Devices []*Pruned // with removals or notes, by tag
	Looked  int       // number of devices, including those without removals
	Stay    int       // generations that stay
}

// Pruned lists the removed generations of one device, and those that stay although they are not among the newest.
type Pruned struct {
	Tag    string // of the device's state
	Remove []Old  // the oldest first
	Stays  []Old

	tagged digest.Digest // digest of Tag
}

// OfDevices is a filter for the tags of devices; nil, every tag, for nil.
func OfDevices(devices []artifacts.DeviceID) func(tag string) bool {
	if devices == nil {
		return nil
	}
	tags := map[string]bool{}
	for _, d := range devices {
		tags[d.Tag()] = true
	}
	return func(tag string) bool { return tags[tag] }
}

// Old is an old generation.
type Old struct {
	Generation uint64        `json:"generation"`
	Tag        string        `json:"tag"`
	Digest     digest.Digest `json:"digest,omitempty"` // "": it could not be read
	Why        string        `json:"why,omitempty"`    // it stays

	proposal string // tag of its proposal, which is removed with it; "": none
}

// tags are the tags that are removed with it.
func (o Old) tags() []string {
	if o.proposal == "" {
		return []string{o.Tag}
	}
	return []string{o.Tag, o.proposal}
}

// pruner plans for one repository.
type pruner struct {
	repo      Repository
	o         Retention
	tags      map[string]bool
	histories map[string][]uint64 // generations by device tag, the newest first
	named     map[digest.Digest][]string
}

// PlanPrune finds the generations that a retention does not keep. It removes nothing.
func PlanPrune(ctx context.Context, repo Repository, o Retention) (*Pruning, error) {
	if o.Keep < 1 {
		return nil, fmt.Errorf("keep %d generations: %w: at least 1 has to stay", o.Keep, fault.ErrInvalid)
	}
	list, err := repo.Tags(ctx)
	if err != nil {
		return nil, err
	}
	p := &pruner{repo: repo, o: o, tags: map[string]bool{}, histories: Generations(list), named: map[digest.Digest][]string{}}
	for _, t := range list {
		p.tags[t] = true
	}
	out := &Pruning{}
	var long []string
	for _, tag := range slices.Sorted(maps.Keys(p.histories)) {
		if o.Devices != nil && !o.Devices(tag) {
			continue
		}
		out.Looked++
		if out.Stay += len(p.histories[tag]); len(p.histories[tag]) > o.Keep {
			long = append(long, tag)
		}
	}
	if len(long) == 0 {
		return out, nil
	}
	if err := p.people(ctx, list); err != nil {
		return nil, err
	}
	found := make([]*Pruned, len(long))
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(pruneConcurrency)
	for i, tag := range long {
		g.Go(func() (err error) {
			found[i], err = p.device(inner, tag)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for _, d := range found {
		if out.Stay -= len(d.Remove); len(d.Remove)+len(d.Stays) > 0 {
			out.Devices = append(out.Devices, d)
		}
	}
	return out, nil
}

// people resolves tags that are neither a device's nor of its history: people may have set them, so they stay.
func (p *pruner) people(ctx context.Context, list []string) error {
	var ask []string
	for _, t := range list {
		device, _, history := cutHistory(t)
		switch {
		case strings.HasPrefix(t, "sha256-"), strings.HasSuffix(t, ".current"): // lists of signatures, reports of devices
		case p.proposed(t):
		case history && p.tags[device], !history && p.histories[t] != nil:
		default:
			ask = append(ask, t)
		}
	}
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(pruneConcurrency)
	for _, t := range ask {
		g.Go(func() error {
			d, err := p.repo.Resolve(ctx, t)
			if Unfit(err) {
				return nil
			}
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			p.named[d.Digest] = append(p.named[d.Digest], t)
			return nil
		})
	}
	return g.Wait()
}

// proposed reports whether a tag is of the proposal of a generation with a history tag: such a tag protects nothing.
func (p *pruner) proposed(tag string) bool {
	history, ok := artifacts.CutProposal(tag)
	return ok && p.tags[history]
}

// keeper decides which generations of one device stay.
type keeper struct {
	*pruner
	tag    string
	keep   map[digest.Digest]string // why
	needed []Need
	asked  bool // ask was called
	opened map[digest.Digest]*artifacts.StateIndex
}

// at reads the state of a tag, of generation n; 0: any. err: it could not be read; problem: it does not match its tag.
func (k *keeper) at(ctx context.Context, tag string, n uint64) (d digest.Digest, x *artifacts.StateIndex, problem, err error) {
	desc, manifest, err := k.repo.Tagged(ctx, tag)
	if Unfit(err) {
		return "", nil, err, nil
	}
	if err != nil {
		return "", nil, nil, err
	}
	x, problem, err = k.read(desc.Digest, n, func() ([]byte, error) { return manifest, nil })
	return desc.Digest, x, problem, err
}

// open reads a state of the device, of that generation; 0: any.
func (k *keeper) open(ctx context.Context, d digest.Digest, n uint64) (x *artifacts.StateIndex, problem, err error) {
	return k.read(d, n, func() ([]byte, error) {
		_, manifest, err := k.repo.Manifest(ctx, d)
		return manifest, err
	})
}

// read is open with what brings the manifest, if that was not read before.
func (k *keeper) read(d digest.Digest, n uint64, bring func() ([]byte, error)) (x *artifacts.StateIndex, problem, err error) {
	if x = k.opened[d]; x == nil {
		manifest, err := bring()
		if err == nil {
			x, err = artifacts.OpenState(manifest)
		}
		if Unfit(err) {
			return nil, err, nil
		}
		if err != nil {
			return nil, nil, err
		}
		k.opened[d] = x
	}
	switch {
	case x.Device.Tag() != k.tag:
		return nil, fmt.Errorf("it is the state of %s: %w", x.Device, fault.ErrConflict), nil
	case n != 0 && x.Generation != n:
		return nil, fmt.Errorf("it is generation %d: %w", x.Generation, fault.ErrConflict), nil
	}
	k.ask(x.Device)
	return x, nil, nil
}

// ask gets the needed generations, once.
func (k *keeper) ask(device artifacts.DeviceID) {
	if !k.asked && k.o.Needed != nil {
		k.needed = k.o.Needed(device)
	}
	k.asked = true
}

// need is why a generation is needed; "": it is not.
func (k *keeper) need(d digest.Digest, n uint64) string {
	for _, o := range k.needed {
		if o.All || o.Digest != "" && o.Digest == d || o.Digest == "" && o.Generation == n {
			return o.Why
		}
	}
	return ""
}

// stay keeps a state that another one names.
func (k *keeper) stay(d digest.Digest, why string, n uint64) {
	if d != "" && k.keep[d] == "" {
		k.keep[d] = fmt.Sprintf(why, n)
	}
}

// follow keeps the predecessor of a needed state and the state that it repeats.
func (k *keeper) follow(x *artifacts.StateIndex) {
	k.stay(x.Previous, "generation %d, which is needed, follows it", x.Generation)
	k.stay(x.Repeats, "generation %d, which is needed, repeats it", x.Generation)
}

// device decides about one device. It reads the generation of the device's tag and those above, the needed ones, and the
// candidates. A generation that is only among the newest does not need the one that it repeats: it has that content itself.
func (p *pruner) device(ctx context.Context, tag string) (*Pruned, error) {
	out := &Pruned{Tag: tag}
	all := p.histories[tag]
	k := &keeper{pruner: p, tag: tag, keep: map[digest.Digest]string{}, opened: map[digest.Digest]*artifacts.StateIndex{}}
	above, first, current := p.o.Keep, p.o.Keep, uint64(0)
	if p.tags[tag] {
		d, x, problem, err := k.at(ctx, tag, 0)
		if err != nil {
			return nil, err
		}
		if out.tagged = d; problem != nil {
			return out.spare(all[first:], "what "+tag+" names is no state of the device"), nil
		}
		for above = 0; above < len(all) && all[above] > x.Generation; { // publication in progress, or interrupted
			above++
		}
		first, current = max(first, above), x.Generation
		k.keep[x.Repeats], k.keep[x.Previous] = tag+" repeats it", tag+" follows it"
		k.keep[out.tagged] = tag + " names it"
		if i := slices.IndexFunc(k.needed, func(o Need) bool { return o.All }); i >= 0 {
			return out.spare(all[first:], k.needed[i].Why), nil
		}
	}
	if first == len(all) {
		return out, nil
	}
	if err := k.newest(ctx, all[:first], above, current); err != nil {
		return nil, err
	}
	for _, n := range all[first:] {
		old, err := k.old(ctx, n)
		if err != nil {
			return nil, err
		}
		if old.Why != "" {
			out.Stays = append(out.Stays, old)
		} else {
			out.Remove = append(out.Remove, old)
		}
	}
	slices.Reverse(out.Remove)
	return out, nil
}

// spare keeps old generations without reading them.
func (d *Pruned) spare(old []uint64, why string) *Pruned {
	for _, n := range old {
		d.Stays = append(d.Stays, Old{Generation: n, Tag: artifacts.HistoryTag(d.Tag, n), Why: why})
	}
	return d
}

// newest keeps the generations that those name that stay by their number: the first ones, above the tag's generation, or all if
// there is no tag, and the needed ones.
func (k *keeper) newest(ctx context.Context, all []uint64, above int, current uint64) error {
	for i, n := range all {
		if i >= above && (n == current || k.need("", n) == "") {
			continue
		}
		d, x, problem, err := k.at(ctx, artifacts.HistoryTag(k.tag, n), n)
		if err != nil {
			return err
		}
		if k.keep[d] = "one of the newest"; problem != nil {
			continue
		}
		if k.stay(x.Repeats, "generation %d repeats it", n); k.need(d, n) != "" {
			k.follow(x)
		}
	}
	for _, o := range k.needed {
		if o.Digest == "" {
			continue
		}
		x, problem, err := k.open(ctx, o.Digest, 0)
		if err != nil {
			return err
		}
		if problem == nil {
			k.follow(x)
		}
	}
	return nil
}

// old decides about a generation that does not stay by its number.
func (k *keeper) old(ctx context.Context, n uint64) (Old, error) {
	o := Old{Generation: n, Tag: artifacts.HistoryTag(k.tag, n)}
	if t := artifacts.ProposalTag(k.tag, n); k.tags[t] {
		o.proposal = t
	}
	d, x, problem, err := k.at(ctx, o.Tag, n)
	if err != nil {
		return o, err
	}
	if o.Digest = d; problem != nil {
		o.Why = "it is not what its tag says: " + problem.Error()
		return o, nil
	}
	if o.Why = k.need(d, n); o.Why != "" {
		k.follow(x)
		return o, nil
	}
	if o.Why = cmp.Or(k.keep[d], k.others(d)); o.Why == "" {
		o.Why, err = k.young(ctx, d)
	}
	return o, err
}

// others returns a tag of a state that is neither the device's nor of its history; "": none.
func (k *keeper) others(d digest.Digest) string {
	for _, other := range k.named[d] {
		if device, _, history := cutHistory(other); !history || device != k.tag {
			return other + " names it"
		}
	}
	return ""
}

// young is why a state stays because of its age; "": it does not.
func (k *keeper) young(ctx context.Context, d digest.Digest) (string, error) {
	if k.o.Younger.IsZero() {
		return "", nil
	}
	at, err := k.o.When(ctx, d)
	switch {
	case err != nil && !Unfit(err):
		return "", err
	case err != nil || at.IsZero():
		return "it does not say when it was published", nil
	case at.After(k.o.Younger):
		return "published " + at.UTC().Format(time.RFC3339), nil
	}
	return "", nil
}

// Remover removes content of a repository.
type Remover interface {
	Resolve(ctx context.Context, tag string) (ocispec.Descriptor, error)
	Tags(ctx context.Context) ([]string, error)
	RemoveManifest(ctx context.Context, d digest.Digest, tags ...string) error
	RemoveReferrers(ctx context.Context, subject digest.Digest, tags *registry.TagList) (int, error)
}

// Gone counts the removed content.
type Gone struct {
	States    int
	Referrers int // signatures, attestations and statements about them
}

// Remove executes the plan: it removes each state with everything that refers to it; signatures is the repository of these, nil:
// that of the states. The signatures of a removed state are removed even if the rest is interrupted. The counts are also valid with an
// error. A device whose tag has moved to a generation of the plan keeps everything, and its error wraps fault.ErrConflict.
func (p *Pruning) Remove(ctx context.Context, states, signatures Remover) (*Gone, error) {
	if signatures == nil {
		signatures = states
	}
	list, err := signatures.Tags(ctx)
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		return &Gone{}, err
	}
	tags := registry.NewTagList(list)
	all := 0
	for _, d := range p.Devices {
		all += len(d.Remove)
	}
	out := &Gone{}
	var mu sync.Mutex
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(pruneConcurrency)
	for _, d := range p.Devices {
		g.Go(func() error {
			if len(d.Remove) == 0 || inner.Err() != nil {
				return inner.Err()
			}
			if err := d.still(inner, states); err != nil {
				return err
			}
			for _, old := range d.Remove {
				if err := states.RemoveManifest(inner, old.Digest, old.tags()...); err != nil {
					return err
				}
				n, err := signatures.RemoveReferrers(context.WithoutCancel(inner), old.Digest, tags)
				mu.Lock()
				out.States, out.Referrers = out.States+1, out.Referrers+n
				mu.Unlock()
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return out, fmt.Errorf("%d of %d old generations removed: %w", out.States, all, err)
	}
	return out, ctx.Err()
}

// still checks that the device's tag does not name a generation of the plan.
func (d *Pruned) still(ctx context.Context, states Remover) error {
	desc, err := states.Resolve(ctx, d.Tag)
	if errors.Is(err, fault.ErrNotFound) && d.tagged == "" {
		return nil
	}
	if err != nil {
		return err
	}
	if slices.ContainsFunc(d.Remove, func(o Old) bool { return o.Digest == desc.Digest }) {
		return fmt.Errorf("%s names %s now, which was to be removed: %w", d.Tag, desc.Digest, fault.ErrConflict)
	}
	return nil
}
