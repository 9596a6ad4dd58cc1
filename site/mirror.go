package site

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
)

// Mirrored counts the content that a mirror run copied.
type Mirrored struct {
	registry.Copied
	Artifacts int      `json:"artifacts"` // of the closure, without those that Since leaves out
	Done      int      `json:"-"`         // of these, at the destination
	Tags      int      `json:"tags"`      // that were set
	Devices   []string `json:"devices"`   // moved tags of devices, sorted
	Notes     []string `json:"notes,omitempty"`
}

// Mirror is a copy of a closure into the registries of a site.
type Mirror struct {
	From Source
	// To opens the site's repository for one of the closure, "host/path".
	To          func(ctx context.Context, repository string) (*registry.Repository, error)
	Tell        func(Mirrored) // called after each artifact is copied, by one goroutine at a time; nil: not called
	Concurrency int            // artifacts in progress, but more states, which mostly wait; 0: 4
	Platforms   []string       // of copied images, "linux/arm64"; empty: all
	Check       Check          // checks of the content that the closure's Site has
	// Since is the site's content, if To is not the site itself but media: artifacts that the site has completely are left out, and states
	// without new content. One state always stays, as the start for a reader. nil: nothing is left out.
	Since   *Inventory
	Omitted func(ocispec.Descriptor) // called for everything that is left out because of Since, one at a time; nil: not called

	mu   sync.Mutex
	made Mirrored
}

// Run copies everything and sets tags: of images, components and packages first, last those of devices, each after its history tag. It
// may be repeated after any interruption: existing content is not sent again. A device's tag at the site never moves back: a newer
// generation there is fault.ErrRollback, another state of the same generation fault.ErrConflict, before anything is copied.
func (m *Mirror) Run(ctx context.Context, c *Closure) (*Mirrored, error) {
	if err := c.Err(); err != nil {
		return nil, err
	}
	m.made = Mirrored{Artifacts: len(c.Needs), Devices: []string{}, Notes: slices.Clone(c.Absent)}
	var states, others []*Need
	for _, n := range c.Needs {
		if n.Kind == artifacts.KindState {
			states = append(states, n)
		} else {
			others = append(others, n)
		}
	}
	if m.Since != nil {
		var err error
		if states, others, err = m.news(ctx, states, others); err != nil {
			return nil, err
		}
		m.made.Artifacts = len(states) + len(others)
	}
	most := max(cmp.Or(m.Concurrency, 4), 1)
	mostStates := max(most, 64)
	for _, step := range []struct {
		needs []*Need
		most  int // at a time
		do    func(context.Context, *Need) error
	}{{states, mostStates, m.check}, {others, most, m.copy}, {states, mostStates, m.copy}, {states, mostStates, m.history}, {states, mostStates, m.move}} {
		if err := each(ctx, step.most, step.needs, step.do); err != nil {
			return &m.made, err
		}
	}
	slices.Sort(m.made.Devices)
	if len(m.made.Devices) == 0 {
		return &m.made, nil
	}
	return &m.made, m.again(ctx, others)
}

// news are the artifacts of a closure that the site's inventory does not have completely, and the states that lead to them.
func (m *Mirror) news(ctx context.Context, states, others []*Need) (newStates, newOthers []*Need, err error) {
	has := m.Since.sets()
	var mu sync.Mutex
	whole, told := map[*Need][]ocispec.Descriptor{}, map[string]bool{} // told: devices
	err = each(ctx, 8, slices.Concat(states, others), func(ctx context.Context, n *Need) error {
		all, err := m.whole(ctx, has[n.Repository], n)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		whole[n] = all
		for _, device := range n.Devices {
			told[device] = told[device] || all == nil
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	for i, n := range slices.Concat(states, others) {
		isState := i < len(states)
		leads := isState && slices.ContainsFunc(n.Devices, func(device string) bool { return told[device] })
		last := i == len(states)-1 && len(newStates) == 0
		switch {
		case isState && (whole[n] == nil || leads || last):
			newStates = append(newStates, n)
		case !isState && whole[n] == nil:
			newOthers = append(newOthers, n)
		case m.Omitted != nil:
			for _, d := range whole[n] {
				m.Omitted(d)
			}
		}
	}
	return newStates, newOthers, nil
}

// whole lists an artifact with everything that refers to it; nil: it is copied, because the site does not have all of it, or because
// earlier content of the media has another state of the device.
func (m *Mirror) whole(ctx context.Context, has map[digest.Digest]bool, n *Need) ([]ocispec.Descriptor, error) {
	// The versions of a policy are read one by one, and an inventory does not list signatures in other repositories.
	if !has[n.Digest] || n.Kind == artifacts.KindTrust || n.signatures != "" {
		return nil, nil
	}
	if n.current != "" {
		to, err := m.To(ctx, n.Repository)
		if err != nil {
			return nil, err
		}
		if there, err := to.ResolveUpstream(ctx, n.current); err != nil || there != "" {
			return nil, err
		}
	}
	from, err := m.From.OpenName(ctx, n.Repository)
	if err != nil {
		return nil, err
	}
	all, err := from.Upstream().Everything(ctx, n.Digest, m.only(n)...)
	if slices.ContainsFunc(all, func(d ocispec.Descriptor) bool { return !has[d.Digest] }) {
		return nil, err
	}
	return all, err
}

// again checks the content of new states once more: a prune that ran before their tags were set may have removed it.
func (m *Mirror) again(ctx context.Context, needs []*Need) error {
	return each(ctx, 4, needs, func(ctx context.Context, n *Need) error {
		to, err := m.To(ctx, n.Repository)
		if err != nil {
			return err
		}
		there, err := to.Exists(ctx, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: n.Digest})
		if err != nil || there {
			return err
		}
		from, err := m.From.OpenName(ctx, n.Repository)
		if err != nil {
			return err
		}
		to, err = to.Elsewhere(ctx, to.Name()) // a snapshot would list removed signatures
		if errors.Is(err, fault.ErrUnsupported) {
			return nil // a layout is not pruned
		}
		if err != nil {
			return err
		}
		lost := *n
		lost.there = false
		_, err = m.bring(ctx, &lost, from.Upstream(), to.Upstream())
		return err
	})
}

// check rejects a device's state that is older than the one at the site.
func (m *Mirror) check(ctx context.Context, n *Need) error {
	if n.current == "" || n.set[n.current] {
		return nil
	}
	to, err := m.To(ctx, n.Repository)
	if err != nil {
		return err
	}
	there, err := to.ResolveUpstream(ctx, n.current)
	if err != nil {
		return err
	}
	return n.follows(ctx, to, there)
}

// follows rejects a device's state if the one that its tag names at the site, "" for none, is newer or another of the same generation.
func (n *Need) follows(ctx context.Context, to *registry.Repository, there digest.Digest) error {
	if there == "" || there == n.Digest {
		return nil
	}
	_, manifest, err := to.Manifest(ctx, there)
	if err != nil {
		return err
	}
	x, err := artifacts.OpenState(manifest)
	switch {
	case err != nil:
		return fmt.Errorf("%s:%s: %w", to.Name(), n.current, err)
	case x.Generation > n.number:
		err := fmt.Errorf("%s:%s is generation %d, and generation %d was to be copied over it: %w", to.Name(), n.current, x.Generation, n.number, fault.ErrRollback)
		return fault.WithHint(err, "the site is ahead: publish a newer generation, or find out who published there")
	case x.Generation == n.number:
		return fmt.Errorf("%s:%s is another generation %d, %s: %w", to.Name(), n.current, n.number, there, fault.ErrConflict)
	}
	return nil
}

// copy copies an artifact with everything that it names and that refers to it. A state's tags are set later.
func (m *Mirror) copy(ctx context.Context, n *Need) error {
	from, err := m.From.OpenName(ctx, n.Repository)
	if err != nil {
		return err
	}
	from = from.Upstream()
	to, err := m.To(ctx, n.Repository)
	if err != nil {
		return err
	}
	made, err := m.bring(ctx, n, from, to)
	if err == nil && n.signatures != "" && !(n.there && m.Check == CheckTags) {
		err = m.distant(ctx, n, made)
	}
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.made.Add(made)
	m.made.Done++
	if m.Tell != nil {
		m.Tell(m.made)
	}
	return nil
}

// distant copies the signatures of an artifact that are in another repository, and counts them in made.
func (m *Mirror) distant(ctx context.Context, n *Need, made *registry.Copied) error {
	from, err := m.From.OpenName(ctx, n.signatures)
	if err != nil {
		return err
	}
	to, err := m.To(ctx, n.signatures)
	if err != nil {
		return err
	}
	more, err := to.CopyReferrersFrom(ctx, from.Upstream(), n.Digest)
	made.Add(more)
	return err
}

// bring is copy between two repositories.
func (m *Mirror) bring(ctx context.Context, n *Need, from, to *registry.Repository) (*registry.Copied, error) {
	if n.there {
		made, err := m.later(ctx, n, from, to)
		if made != nil || err != nil {
			return made, err
		}
	}
	var tags []string
	switch n.Kind {
	case artifacts.KindState:
	case artifacts.KindTrust:
		tags = n.Tags
	case artifacts.KindComponent, artifacts.KindPackage:
		tags = n.Tags[:1]
	default:
		tags = []string{m.imageTag(n.Digest)}
	}
	made, err := to.CopyFrom(ctx, from, n.Digest, first(tags), m.only(n)...)
	if errors.Is(err, fault.ErrConflict) && (n.Kind == artifacts.KindComponent || n.Kind == artifacts.KindPackage) {
		m.note(fmt.Sprintf("%s:%s names something else at the site: the %s is there by its digest", to.Name(), tags[0], n.Kind))
		made, err = to.CopyFrom(ctx, from, n.Digest, digestTag(n.Digest), m.only(n)...)
	}
	return made, err
}

// later copies new referrers of an artifact that the site has; nil: the site has lost the artifact.
func (m *Mirror) later(ctx context.Context, n *Need, from, to *registry.Repository) (*registry.Copied, error) {
	if m.Check == CheckTags {
		return &registry.Copied{}, nil
	}
	if len(n.set) == 0 && n.Kind != artifacts.KindImage { // a tag above it does not prove that it exists
		there, err := to.Exists(ctx, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: n.Digest})
		if err != nil || !there {
			return nil, err
		}
	}
	about := []digest.Digest{n.Digest}
	if n.Kind == artifacts.KindImage {
		children, err := to.Below(ctx, n.Digest, m.Platforms...)
		if errors.Is(err, fault.ErrNotFound) && !fault.Retryable(err) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		whole := to.Listed(digestTag(n.Digest)) // otherwise other platforms may have been copied before
		for _, c := range children {
			if !whole {
				there, err := to.Exists(ctx, c)
				if err != nil || !there {
					return nil, err
				}
			}
			about = append(about, c.Digest)
		}
	}
	all := &registry.Copied{}
	for _, d := range about {
		made, err := to.CopyReferrersFrom(ctx, from, d)
		if err != nil {
			return nil, err
		}
		all.Add(made)
	}
	return all, nil
}

// only are the platforms for which a need is copied.
func (m *Mirror) only(n *Need) []string {
	if n.Kind != artifacts.KindImage {
		return nil
	}
	return m.Platforms
}

func first(all []string) string {
	if len(all) == 0 {
		return ""
	}
	return all[0]
}

func (m *Mirror) note(s string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.made.Notes = append(m.made.Notes, s)
}

// digestTag is a tag for an image that is only named by its digest, because registries remove untagged manifests. It names an image with
// all its platforms.
func digestTag(d digest.Digest) string { return "digest-" + d.Encoded() }

// partTag is digestTag of an image of some platforms.
func partTag(d digest.Digest) string { return digestTag(d) + "-part" }

func (m *Mirror) imageTag(d digest.Digest) string {
	if len(m.Platforms) > 0 {
		return partTag(d)
	}
	return digestTag(d)
}

// history sets the history tags of a state. A tag that names another state is a conflict.
func (m *Mirror) history(ctx context.Context, n *Need) error {
	for _, tag := range n.Tags {
		if tag == n.current {
			continue
		}
		if err := m.tag(ctx, n, tag, false); err != nil {
			return err
		}
	}
	return nil
}

// move moves a device's tag to its current state.
func (m *Mirror) move(ctx context.Context, n *Need) error {
	if n.current == "" {
		return nil
	}
	return m.tag(ctx, n, n.current, true)
}

func (m *Mirror) tag(ctx context.Context, n *Need, tag string, moves bool) error {
	if n.set[tag] {
		return nil
	}
	to, err := m.To(ctx, n.Repository)
	if err != nil {
		return err
	}
	was, err := to.ResolveUpstream(ctx, tag)
	if err != nil || was == n.Digest {
		return err
	}
	if was != "" && !moves {
		return fmt.Errorf("%s:%s names %s, not %s: %w", to.Name(), tag, was, n.Digest, fault.ErrConflict)
	}
	if moves { // another generation may have been published meanwhile
		if err := n.follows(ctx, to, was); err != nil {
			return err
		}
	}
	if err := to.CompareAndMoveTag(ctx, tag, was, n.Digest); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.made.Tags++
	if moves {
		m.made.Devices = append(m.made.Devices, tag)
	}
	return nil
}
