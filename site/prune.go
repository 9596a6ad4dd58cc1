package site

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
)

// Pruning lists the content that a site no longer needs.
type Pruning struct {
	States    []PrunedStates `json:"states"`
	Artifacts []*Need        `json:"artifacts"` // images, components and packages that only removed states name, in the order of removal

	site       Source
	signatures func(artifacts.Kind, string) string // nil: all are beside what they sign
	gone       *walk                               // content of removed states
	needed     map[digest.Digest]bool              // by what stays
	tags       map[string]*registry.TagList        // by repository
}

// PrunedStates are the old generations of one repository.
type PrunedStates struct {
	Repository string           `json:"repository"` // by its name at the source
	Plan       *release.Pruning `json:"-"`

	at *registry.Repository
}

// Pruned counts what was removed.
type Pruned struct {
	States    int `json:"states"`
	Artifacts int `json:"artifacts"`
	Referrers int `json:"referrers"` // of both
	Restored  int `json:"restored"`  // restored artifacts: a state that needs them was published meanwhile
}

// PlanPrune finds the content that the devices of a site no longer need. site opens the site's repositories by their names at the source;
// states are all repositories of states at the site, with the devices whose old generations may be removed, nil: all; history is how many
// generations below the current one stay; signatures is that of [Options]. These generations,
// the generations that [release.PlanPrune] keeps, and those that a device reports, stay with everything below them. An artifact is
// removed if a removed state names it and no remaining one does, and if its only tag is the one that a mirror sets. Missing content
// below a remaining state is fault.ErrUnfit.
func PlanPrune(ctx context.Context, site Source, states map[string][]artifacts.DeviceID, history int, signatures func(artifacts.Kind, string) string) (*Pruning, error) {
	p := &Pruning{site: site, signatures: signatures, States: []PrunedStates{}, Artifacts: []*Need{}, tags: map[string]*registry.TagList{}}
	stay, gone := newWalk(site), newWalk(site)
	p.gone = gone
	for _, name := range slices.Sorted(maps.Keys(states)) {
		repo, err := site.OpenName(ctx, name)
		if err != nil {
			return nil, err
		}
		one := PrunedStates{Repository: name, at: repo.Upstream()}
		if one.Plan, err = planStates(ctx, one.at, states[name], history); err != nil {
			return nil, err
		}
		p.States = append(p.States, one)
		removed := map[digest.Digest]bool{}
		for _, d := range one.Plan.Devices {
			for _, old := range d.Remove {
				removed[old.Digest] = true
			}
		}
		if err := stay.all(ctx, one.at, name, func(d digest.Digest) bool { return !removed[d] }); err != nil {
			return nil, err
		}
		if err := gone.all(ctx, one.at, name, func(d digest.Digest) bool { return removed[d] }); err != nil {
			return nil, err
		}
	}
	if len(stay.problems) > 0 {
		what := "it is not known what states that stay need: " + stay.problems[0]
		err := fault.WithSummary(fmt.Errorf("%s: %w", what, fault.ErrUnfit), what)
		return nil, fault.WithHint(err, "bring it to the site first: longshore mirror")
	}
	if err := stay.indexed(ctx, gone); err != nil {
		return nil, err
	}
	p.keep(stay)
	for _, n := range gone.closure().Needs {
		if n.Kind == artifacts.KindState || stay.needs[n.Key()] != nil {
			continue
		}
		mine, err := p.mirrored(ctx, n)
		if err != nil {
			return nil, err
		}
		if mine {
			p.Artifacts = append(p.Artifacts, n)
		}
	}
	return p, nil
}

// indexed adds the images that image indexes name, in the repositories that another walk found images in: a state may name such an
// image by itself, and another state the index.
func (w *walk) indexed(ctx context.Context, like *walk) error {
	in := map[string]bool{}
	for _, n := range like.needs {
		in[n.Repository] = in[n.Repository] || n.Kind == artifacts.KindImage
	}
	for _, n := range w.closure().Needs {
		if n.Kind != artifacts.KindImage || !in[n.Repository] {
			continue
		}
		repo, err := w.open(ctx, n.Repository)
		if err != nil {
			return err
		}
		images, err := repo.Below(ctx, n.Digest)
		if errors.Is(err, fault.ErrNotFound) && !fault.Retryable(err) {
			continue // the site has lost it
		}
		if err != nil {
			return err
		}
		for _, i := range images {
			w.add(artifacts.KindImage, n.Repository, i.Digest, below{}, "")
		}
	}
	return nil
}

func newWalk(from Source) *walk {
	return &walk{from: from, needs: map[string]*Need{}}
}

// planStates chooses the generations to remove.
func planStates(ctx context.Context, repo *registry.Repository, devices []artifacts.DeviceID, history int) (*release.Pruning, error) {
	tags, err := repo.Tags(ctx)
	if err != nil {
		return nil, err
	}
	reported := map[string][]release.Need{}
	var mu sync.Mutex
	err = each(ctx, reportsAtOnce, tags, func(ctx context.Context, report string) error {
		tag, ok := strings.CutSuffix(report, artifacts.CurrentTag(""))
		if !ok {
			return nil
		}
		running, err := reportedStates(ctx, repo, report)
		if err != nil && !release.Unfit(err) {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			reported[tag] = []release.Need{{All: true, Why: "what the device runs cannot be read from " + report}}
		}
		for _, g := range running {
			reported[tag] = append(reported[tag], release.Need{Digest: g.Digest, Why: "the device reports that it has it"})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return release.PlanPrune(ctx, repo, release.Retention{
		Devices: release.OfDevices(devices), Keep: history + 1, Needed: func(id artifacts.DeviceID) []release.Need { return reported[id.Tag()] },
	})
}

// reportedStates are the states that a device reports. The report is not verified: a forged one only keeps more.
func reportedStates(ctx context.Context, repo *registry.Repository, tag string) ([]artifacts.CurrentGeneration, error) {
	_, manifest, err := repo.Tagged(ctx, tag)
	if err != nil {
		return nil, err
	}
	c, _, err := readReport(ctx, repo, manifest)
	if err != nil {
		return nil, err
	}
	return c.States(), nil
}

// all reads every tagged state of a repository for which wanted returns true.
func (w *walk) all(ctx context.Context, repo *registry.Repository, name string, wanted func(digest.Digest) bool) error {
	tags, err := repo.Tags(ctx)
	if err != nil {
		return err
	}
	states := map[string]bool{}
	for device, numbers := range release.Generations(tags) {
		states[device] = true
		for _, n := range numbers {
			states[artifacts.HistoryTag(device, n)] = true
		}
	}
	return each(ctx, w.o.concurrency(), tags, func(ctx context.Context, tag string) error {
		if strings.HasPrefix(tag, "sha256-") || strings.HasSuffix(tag, artifacts.CurrentTag("")) {
			return nil
		}
		return w.tagged(ctx, repo, name, tag, states[tag], wanted)
	})
}

// tagged reads the state that a tag names; state: by its name a state of a device, whether this version can read it or not.
func (w *walk) tagged(ctx context.Context, repo *registry.Repository, name, tag string, state bool, wanted func(digest.Digest) bool) error {
	desc, manifest, err := repo.Tagged(ctx, tag)
	if err == nil && !wanted(desc.Digest) {
		return nil
	}
	var x *artifacts.StateIndex
	if err == nil {
		x, err = artifacts.OpenState(manifest)
	}
	if release.Unfit(err) {
		if state && !errors.Is(err, fault.ErrNotFound) {
			w.problem("%s:%s: %v", repo.Name(), tag, err)
		}
		return nil // not a state, or removed meanwhile
	}
	if err != nil {
		return err
	}
	w.add(artifacts.KindState, name, desc.Digest, below{}, tag)
	for _, a := range x.Applications {
		if a.Repository != "" { // also if it does not exist
			w.add(artifacts.KindPackage, a.Repository, a.Digest, below{device: tag}, a.Version)
		}
	}
	deployments, err := bundled(x, func(b ocispec.Descriptor) ([]byte, error) { return repo.Blob(ctx, b, artifacts.MaxArchive) })
	if release.Unfit(err) {
		w.problem("%s:%s: %v", repo.Name(), tag, err)
		return nil
	}
	if err != nil {
		return err
	}
	for _, d := range deployments {
		profile := d.Document.Spec.DeploymentProfile
		for _, c := range profile.Components {
			if err := w.component(ctx, below{device: tag, kind: profile.Type}, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// mirrored reports whether an artifact at the site has only the tag that a mirror sets.
func (p *Pruning) mirrored(ctx context.Context, n *Need) (bool, error) {
	repo, err := p.site.OpenName(ctx, n.Repository)
	if err != nil {
		return false, err
	}
	tags, err := p.tagsOf(ctx, repo.Upstream(), n)
	mine := false
	for _, tag := range tags {
		if tag != digestTag(n.Digest) && tag != partTag(n.Digest) && !(n.Kind != artifacts.KindImage && slices.Contains(n.Tags, tag)) {
			return false, nil
		}
		mine = true
	}
	return mine, err
}

// tagsOf lists the tags of an artifact at the site.
func (p *Pruning) tagsOf(ctx context.Context, repo *registry.Repository, n *Need) ([]string, error) {
	list, err := p.listed(ctx, repo, n.Repository)
	if err != nil {
		return nil, err
	}
	return repo.TagsOf(ctx, n.Digest, list)
}

// listed are the tags of a repository at the site.
func (p *Pruning) listed(ctx context.Context, repo *registry.Repository, name string) (*registry.TagList, error) {
	if p.tags[name] == nil {
		list, err := repo.Tags(ctx)
		if err != nil && (!errors.Is(err, fault.ErrNotFound) || fault.Retryable(err)) {
			return nil, err
		}
		p.tags[name] = registry.NewTagList(list)
	}
	return p.tags[name], nil
}

// keep records what stays.
func (p *Pruning) keep(stay *walk) {
	p.needed = map[digest.Digest]bool{}
	for _, n := range stay.needs {
		p.needed[n.Digest] = true
	}
}

// removeApart removes the signatures in other repositories of what was removed.
func (p *Pruning) removeApart(ctx context.Context, out *Pruned) error {
	for _, n := range p.gone.closure().Needs {
		name := p.signatures(n.Kind, n.Repository)
		if name == "" || p.needed[n.Digest] {
			continue
		}
		repo, err := p.site.OpenName(ctx, n.Repository)
		if err != nil {
			return err
		}
		if there, err := repo.ResolveUpstream(ctx, n.Digest.String()); err != nil || there != "" {
			if err != nil {
				return err
			}
			continue
		}
		if repo, err = p.site.OpenName(ctx, name); err != nil {
			return err
		}
		list, err := p.listed(ctx, repo.Upstream(), name)
		if err != nil {
			return err
		}
		removed, err := repo.Upstream().RemoveReferrers(ctx, n.Digest, list)
		if out.Referrers += removed; err != nil {
			return err
		}
	}
	return nil
}

// Remove executes the plan: it removes images, then the components that name them, then packages and states, each with its signatures. So the
// next run completes an interrupted one. A mirror may run at the same time: after the removal the
// states are read again, and content that one of them needs is restored; a mirror checks everything once more after it has
// set the devices' tags. The registry's garbage collection removes blobs, and images of single platforms, which then have no tag.
// The counts are also valid with an error.
func (p *Pruning) Remove(ctx context.Context) (*Pruned, error) {
	out := &Pruned{}
	taken, err := p.take(ctx, out)
	for _, one := range p.States {
		if err != nil {
			break
		}
		var gone *release.Gone
		gone, err = one.Plan.Remove(ctx, one.at, nil)
		out.States, out.Referrers = out.States+gone.States, out.Referrers+gone.Referrers
	}
	ctx = context.WithoutCancel(ctx) // needed content is restored, whatever ended the removal
	for len(taken) > 0 {
		back, failed := p.restore(ctx, taken)
		if out.Restored += back; failed != nil {
			return out, errors.Join(err, failed)
		}
		if back == 0 {
			break
		}
	}
	if p.signatures != nil { // last: they are not restored
		err = errors.Join(err, p.removeApart(ctx, out))
	}
	return out, err
}

// take removes images, components and packages.
func (p *Pruning) take(ctx context.Context, out *Pruned) (map[string]*registry.Removed, error) {
	taken := map[string]*registry.Removed{}
	clear(p.tags) // the plan may be old
	for _, n := range p.Artifacts {
		repo, err := p.site.OpenName(ctx, n.Repository)
		if err != nil {
			return taken, err
		}
		mine, err := p.mirrored(ctx, n) // a tag may have been added since the plan
		if err != nil {
			return taken, err
		}
		if !mine {
			continue
		}
		r, err := repo.Upstream().RemoveWithReferrers(ctx, n.Digest, p.tags[n.Repository])
		if r != nil {
			taken[n.Key()] = r
			out.Artifacts++
			out.Referrers += r.Referrers()
		}
		if err != nil {
			return taken, err
		}
	}
	return taken, nil
}

// restore restores removed content that a state needs. The images of a component are known only after it is restored, so it is repeated.
func (p *Pruning) restore(ctx context.Context, taken map[string]*registry.Removed) (back int, err error) {
	now := newWalk(p.site)
	for _, one := range p.States {
		if err := now.all(ctx, one.at, one.Repository, func(digest.Digest) bool { return true }); err != nil {
			return 0, err
		}
	}
	if err := now.indexed(ctx, p.gone); err != nil {
		return 0, err
	}
	p.keep(now)
	for key, r := range taken {
		if now.needs[key] == nil {
			continue
		}
		if err := r.Restore(ctx); err != nil {
			return back, err
		}
		delete(taken, key)
		back++
	}
	return back, nil
}
