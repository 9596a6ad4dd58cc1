package site

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
)

// Need is an artifact that a site must have.
type Need struct {
	Kind       artifacts.Kind `json:"kind"`       // state, trust, component, image
	Repository string         `json:"repository"` // "host/path"
	Digest     digest.Digest  `json:"digest"`
	Tags       []string       `json:"tags,omitempty"` // that name it; of a state its history tag, and its device's tag when it is the current one
	Devices    []string       `json:"devices"`        // tags of the devices that need it, sorted

	current string // of a state: the device's tag, when it names it
	number  uint64 // of a state: its generation
}

// Closure is everything that a site must have, sorted by the order in which it is copied: what is named before what names it.
type Closure struct {
	Needs []*Need `json:"-"`
	// Problems are why something could not be found, a sentence each.
	Problems []string `json:"problems,omitempty"`
}

// Source opens repositories by name, "host/path".
type Source interface {
	OpenName(ctx context.Context, name string) (*registry.Repository, error)
}

// Options of a closure. The zero value asks for the current state of every device.
type Options struct {
	Devices []artifacts.DeviceID // nil: every device that has a tag in the repository
	History int                  // earlier generations to have besides the current one
	Trust   []string             // repositories of trust policies, "host/path"
	// Verify tells whether a state may be copied; nil: every state. An error is the closure's.
	Verify func(ctx context.Context, repo *registry.Repository, state digest.Digest) error
	// VerifyTrust tells whether the versions of a trust policy may be copied; nil: all. An error is the closure's.
	VerifyTrust func(ctx context.Context, repo *registry.Repository) error
	Concurrency int // requests in progress; 0: 8
}

func (o Options) concurrency() int { return cmp.Or(o.Concurrency, 8) }

// Close finds what the devices whose states are in a repository need. It reads from the registries themselves, not from
// mirrors. What a state names and is not there is a problem of the closure; an error says that something could not be asked.
func Close(ctx context.Context, from Source, states string, o Options) (*Closure, error) {
	w := &walk{from: from, o: o, needs: map[string]*Need{}, locks: map[string]*lock{}}
	repo, err := w.open(ctx, states)
	if err != nil {
		return nil, err
	}
	wanted, err := w.states(ctx, repo)
	if err != nil {
		return nil, err
	}
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(o.concurrency())
	for _, s := range wanted {
		g.Go(func() error { return w.state(inner, repo, s) })
	}
	for _, name := range o.Trust {
		g.Go(func() error { return w.trust(inner, name) })
	}
	if err := errors.Join(g.Wait(), ctx.Err()); err != nil {
		return nil, err
	}
	return w.closure(), nil
}

// walk follows the names.
type walk struct {
	from Source
	o    Options

	mu       sync.Mutex
	needs    map[string]*Need // by "repository@digest"
	problems []string
	locks    map[string]*lock // by component, "repository@digest"
}

// lock is what the lock of a component names, read once.
type lock struct {
	once   sync.Once
	images []artifacts.LockedImage
	err    error
}

func (w *walk) open(ctx context.Context, name string) (*registry.Repository, error) {
	repo, err := w.from.OpenName(ctx, name)
	if err != nil {
		return nil, err
	}
	return repo.Upstream(), nil // a mirror may show what was
}

// generation is a state that is wanted.
type generation struct {
	tag     string // of the device
	number  uint64 // 0: what the device's tag names
	history string // its history tag; "": not known yet
}

// states lists what is wanted of the repository.
func (w *walk) states(ctx context.Context, repo *registry.Repository) ([]generation, error) {
	tags, err := repo.Tags(ctx)
	if err != nil {
		return nil, err
	}
	known := release.Generations(tags)
	devices := slices.Sorted(maps.Keys(known))
	if w.o.Devices != nil {
		devices = nil
		for _, id := range w.o.Devices {
			if !slices.Contains(tags, id.Tag()) {
				err := fmt.Errorf("%s: nothing was published for %s: %w", repo.Name(), id, fault.ErrNotFound)
				return nil, fault.WithHint(err, "publish a state: longshore state push --device "+string(id)+" …")
			}
			devices = append(devices, id.Tag())
		}
	}
	var out []generation
	for _, tag := range devices {
		if !slices.Contains(tags, tag) {
			continue // its tag was removed: no device follows it
		}
		out = append(out, generation{tag: tag})
		for _, n := range known[tag][:min(len(known[tag]), w.o.History+1)] {
			out = append(out, generation{tag: tag, number: n, history: artifacts.HistoryTag(tag, n)})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: no device has a state there: %w", repo.Name(), fault.ErrNotFound)
	}
	return out, nil
}

// state follows what a state names.
func (w *walk) state(ctx context.Context, repo *registry.Repository, g generation) error {
	target := cmp.Or(g.history, g.tag)
	s, err := release.Read(ctx, repo, target)
	if g.history != "" && errors.Is(err, fault.ErrNotFound) {
		return nil // removed meanwhile
	}
	if err != nil {
		return err
	}
	if w.o.Verify != nil {
		if err := w.o.Verify(ctx, repo, s.Descriptor.Digest); err != nil {
			return fmt.Errorf("%s:%s: %w", repo.Name(), target, err)
		}
	}
	n := w.add(artifacts.KindState, repo.Name(), s.Descriptor.Digest, g.tag, target)
	w.mu.Lock()
	if n.number = s.Index.Generation; g.history == "" {
		n.current = g.tag
	}
	w.mu.Unlock()
	for _, d := range s.State.Deployments {
		for _, c := range d.Document.Spec.DeploymentProfile.Components {
			if err := w.component(ctx, g.tag, d.Document.Spec.DeploymentProfile.Type, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// component follows what a component names.
func (w *walk) component(ctx context.Context, device, kind string, c margo.Component) error {
	name, ok := strings.CutPrefix(c.Properties.Repository, "oci://")
	d, pinned, err := c.Pinned()
	switch {
	case err != nil || !ok:
		w.problem("component %s: %q is in no registry", c.Name, c.Properties.Repository)
		return nil
	case !pinned:
		w.problem("component %s:%s has no digest: its publisher did not pin it", name, c.Properties.Revision)
		return nil
	}
	w.add(artifacts.KindComponent, name, d, device, strings.ReplaceAll(c.Properties.Revision, "+", "_"))
	if kind != "compose" {
		return nil // images of a chart are not known
	}
	w.mu.Lock()
	l := w.locks[name+"@"+d.String()]
	if l == nil {
		l = &lock{}
		w.locks[name+"@"+d.String()] = l
	}
	w.mu.Unlock()
	l.once.Do(func() { l.images, l.err = w.images(ctx, name, d) })
	images, err := l.images, l.err
	if passing(ctx, err) {
		return err
	}
	if err != nil {
		w.problem("component %s@%s: %v", name, d, err)
		return nil
	}
	for _, i := range images {
		ref, err := registry.ParseImage(i.Reference)
		if err != nil {
			w.problem("component %s@%s: %v", name, d, err)
			continue
		}
		w.add(artifacts.KindImage, ref.Name(), i.Digest, device, "")
	}
	return nil
}

// passing reports whether an error says nothing about the content: it may be had at another time.
func passing(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || errors.Is(err, fault.ErrTemporary) || errors.Is(err, fault.ErrUnauthenticated) || errors.Is(err, fault.ErrDenied))
}

// images reads the lock of a component.
func (w *walk) images(ctx context.Context, name string, d digest.Digest) ([]artifacts.LockedImage, error) {
	repo, err := w.open(ctx, name)
	if err != nil {
		return nil, err
	}
	_, manifest, err := repo.Manifest(ctx, d)
	if err != nil {
		return nil, err
	}
	x, err := artifacts.OpenComponent(manifest)
	if err != nil {
		return nil, err
	}
	data, err := repo.Blob(ctx, x.Archive, artifacts.MaxArchive)
	if err != nil {
		return nil, err
	}
	archive, err := artifacts.ReadArchive(data)
	if err != nil {
		return nil, err
	}
	if archive.Lock == nil {
		return nil, fmt.Errorf("it has no %s: which images it needs is not known: %w", artifacts.LockFile, fault.ErrUnsupported)
	}
	return archive.Lock.Images, nil
}

// trust follows the versions of a trust policy.
func (w *walk) trust(ctx context.Context, name string) error {
	repo, err := w.open(ctx, name)
	if err != nil {
		return err
	}
	tags, err := repo.Tags(ctx)
	if err != nil {
		return err
	}
	found := false
	for _, tag := range tags {
		if _, proposal, ok := artifacts.ParseTrustTag(tag); !ok || proposal {
			continue
		}
		d, err := repo.Resolve(ctx, tag)
		if err != nil {
			return err
		}
		w.add(artifacts.KindTrust, name, d.Digest, "", tag)
		found = true
	}
	if !found {
		return fmt.Errorf("%s: no trust policy is there: %w", name, fault.ErrNotFound)
	}
	if w.o.VerifyTrust != nil {
		return w.o.VerifyTrust(ctx, repo)
	}
	return nil
}

// add takes note of a need.
func (w *walk) add(kind artifacts.Kind, repository string, d digest.Digest, device, tag string) *Need {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := repository + "@" + d.String()
	n := w.needs[key]
	if n == nil {
		n = &Need{Kind: kind, Repository: repository, Digest: d, Devices: []string{}}
		w.needs[key] = n
	}
	for into, s := range map[*[]string]string{&n.Tags: tag, &n.Devices: device} {
		if i, there := slices.BinarySearch(*into, s); s != "" && !there {
			*into = slices.Insert(*into, i, s)
		}
	}
	return n
}

func (w *walk) problem(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := fmt.Sprintf(format, args...); !slices.Contains(w.problems, s) {
		w.problems = append(w.problems, s)
	}
}

// closure sorts what was found.
func (w *walk) closure() *Closure {
	order := []artifacts.Kind{artifacts.KindImage, artifacts.KindComponent, artifacts.KindTrust, artifacts.KindState}
	out := &Closure{Needs: slices.Collect(maps.Values(w.needs)), Problems: slices.Sorted(slices.Values(w.problems))}
	slices.SortFunc(out.Needs, func(a, b *Need) int {
		return cmp.Or(slices.Index(order, a.Kind)-slices.Index(order, b.Kind), strings.Compare(a.Repository, b.Repository),
			cmp.Compare(a.number, b.number), strings.Compare(a.Digest.String(), b.Digest.String()))
	})
	return out
}
