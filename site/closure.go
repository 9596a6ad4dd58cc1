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
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/cache"
	"github.com/longshore-dev/longshore/registry/release"
)

// Need is an artifact that a site must have.
type Need struct {
	Kind       artifacts.Kind `json:"kind"`       // state, trust, package, component, image
	Repository string         `json:"repository"` // "host/path"
	Digest     digest.Digest  `json:"digest"`
	Tags       []string       `json:"tags,omitempty"`  // tags that name it; of a state its history tag, and its device's tag if it is the current one
	Devices    []string       `json:"devices"`         // tags of the devices that need it, sorted
	Names      []string       `json:"names,omitempty"` // artifacts that it names, "host/path@digest", sorted: components and packages of a state, images of a component

	current    string          // of a state: the device's tag, if that names it
	number     uint64          // of a state: its generation
	there      bool            // the site has it completely: a tag there, which is set last, leads to it
	set        map[string]bool // its tags that name it at the site
	signatures string          // repository of its signatures, "host/path"; "": its own
}

// Closure is everything that a site must have, in the order of copying: an artifact comes before those that name it.
type Closure struct {
	Needs []*Need `json:"-"`
	// Problems are the reasons why something could not be found, one sentence each.
	Problems []string `json:"problems,omitempty"`
	// Absent are the reasons why application packages, old generations and states of chosen devices are missing, one sentence each. They are
	// not problems: devices never read packages, an old generation is for a rollback, and a new device may have no state yet.
	Absent []string `json:"absent,omitempty"`

	missing []string // of the problems: those that are content that does not exist
}

// Err is the first problem, of content that does not exist before others; nil: there is none.
func (c *Closure) Err() error {
	switch {
	case len(c.missing) > 0:
		return fault.WithHint(Missing(c.missing[0]), "push it again, with the same digest; check the registry's garbage collection")
	case len(c.Problems) > 0:
		return fault.WithSummary(fmt.Errorf("%s: %w", c.Problems[0], fault.ErrUnfit), c.Problems[0]) // no device is at fault
	}
	return nil
}

// Missing is a sentence about content that a closure needs and that does not exist: fault.ErrNotFound.
type Missing string

func (m Missing) Error() string { return string(m) }

// Is makes it fault.ErrNotFound.
func (m Missing) Is(target error) bool { return target == fault.ErrNotFound }

// Source opens repositories by name, "host/path".
type Source interface {
	OpenName(ctx context.Context, name string) (*registry.Repository, error)
}

// Check defines what a run checks at a site that may have the content. The zero value is CheckSignatures.
type Check string

// The values of Check. A device's tag at a site is set after everything below it.
const (
	CheckSignatures Check = ""     // below a tag that names the same state there, only new signatures and other referrers are checked
	CheckTags       Check = "tags" // nothing is checked below a tag that names the same state there
	CheckAll        Check = "all"  // every manifest and blob is checked, whatever the tags name
)

// Options of a closure. The zero value is the current state of every device.
type Options struct {
	Devices []artifacts.DeviceID // nil: every device that has a tag in the repository
	Lenient bool                 // devices without a tag there are named in the closure's Absent; otherwise they are an error
	Known   bool                 // what the place has is listed: what it lacks of Devices and Trust is named in the closure's Absent
	History int                  // number of earlier generations in addition to the current one
	Trust   []string             // repositories of trust policies, "host/path"
	// Signatures returns the repository, "host/path", with the signatures of artifacts of a kind in a repository, in addition to those that are
	// beside them; "": there is none. nil: all are beside them.
	Signatures func(kind artifacts.Kind, repository string) string
	// Site opens the site's repositories by their names at the source; nil: the site's content is unknown.
	Site  Source
	Check Check // for Site
	// Verify returns an error if a state must not be copied; nil: every state may. It is not called for a state that a tag at the
	// site names already. Close returns its error.
	Verify func(ctx context.Context, repo *registry.Repository, state digest.Digest) error
	// VerifyTrust returns an error if the versions of a trust policy must not be copied; nil: all may. Close returns its error.
	VerifyTrust func(ctx context.Context, repo *registry.Repository) error
	// Kept is a directory with blobs of states at the site that earlier runs have read, so that this run need not read them again.
	// Files in it are used only if their digest matches.
	Kept        cache.Folder
	Now         time.Time // of the run; files in Kept that were not used in the 30 days before it are removed
	Concurrency int       // requests in progress; 0: 8
}

func (o Options) concurrency() int { return cmp.Or(o.Concurrency, 8) }

// Close finds everything that the devices with states in a repository need. It reads from the registries themselves, not from
// mirrors. Missing content that a state names is a problem of the closure; an error means that a query failed.
func Close(ctx context.Context, from Source, states string, o Options) (*Closure, error) {
	w := newWalk(from)
	w.o, w.repository = o, states
	repo, err := w.open(ctx, states)
	if err != nil {
		return nil, err
	}
	wanted, err := w.states(ctx, repo)
	if err != nil {
		return nil, err
	}
	o.Kept.RemoveOlder(o.Now.Add(-keptAge))
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(o.concurrency())
	for _, d := range wanted {
		g.Go(func() error { return w.device(inner, repo, d) })
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
	from       Source
	repository string // of the states, by the requested name
	o          Options

	mu       sync.Mutex
	needs    map[string]*Need // by "repository@digest"
	problems []string
	missing  []string
	absent   []string
	locks    sync.Map // by component, "repository@digest": func() ([]artifacts.LockedImage, error), its images
	packages sync.Map // by package, "repository@digest": func() error, why it is missing
}

func (w *walk) open(ctx context.Context, name string) (*registry.Repository, error) {
	repo, err := w.from.OpenName(ctx, name)
	if err != nil {
		return nil, err
	}
	return repo.Upstream(), nil // a mirror may be outdated
}

// wanted are the generations of a device that are needed.
type wanted struct {
	tag     string
	history []uint64 // generations that have a tag, the newest first
}

// states lists the needed generations of the repository.
func (w *walk) states(ctx context.Context, repo *registry.Repository) ([]wanted, error) {
	tags, err := repo.Tags(ctx)
	if err != nil {
		return nil, err
	}
	known := release.Generations(tags)
	has := func(tag string) bool { // tags are sorted, and many
		_, there := slices.BinarySearch(tags, tag)
		return there
	}
	devices := slices.Sorted(maps.Keys(known))
	if w.o.Devices != nil {
		devices = nil
		for _, id := range w.o.Devices {
			if !has(id.Tag()) {
				if w.o.Lenient || w.o.Known {
					w.note(&w.absent, "%s is left out: nothing was published for it", id)
					continue
				}
				err := fmt.Errorf("%s: nothing was published for %s: %w", repo.Name(), id, fault.ErrNotFound)
				return nil, fault.WithHint(err, "publish a state: longshore state push --device "+string(id)+" …")
			}
			devices = append(devices, id.Tag())
		}
	}
	var out []wanted
	for _, tag := range devices {
		if !has(tag) {
			continue // its tag was removed: no device uses it
		}
		out = append(out, wanted{tag, known[tag][:min(len(known[tag]), w.o.History+1)]})
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: no device has a state there: %w", repo.Name(), fault.ErrNotFound)
	}
	return out, nil
}

// device adds the state that a device's tag names, and its history.
func (w *walk) device(ctx context.Context, repo *registry.Repository, d wanted) error {
	now, err := w.state(ctx, repo, d.tag, d.tag)
	if err != nil {
		return err
	}
	for _, number := range d.history {
		tag := artifacts.HistoryTag(d.tag, number)
		if number == now.number && now.set[d.tag] && w.listed(ctx, w.repository, tag) { // copied together with it
			w.mu.Lock()
			insert(&now.Tags, tag)
			now.set[tag] = true
			w.mu.Unlock()
			continue
		}
		_, err := w.state(ctx, repo, d.tag, tag)
		if errors.Is(err, fault.ErrNotFound) && !fault.Retryable(err) {
			w.note(&w.absent, "an old generation is left out: %v", err) // it, or something that it names, was removed
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// state adds the state that a tag of a device names.
func (w *walk) state(ctx context.Context, repo *registry.Repository, device, tag string) (*Need, error) {
	desc, manifest, err := repo.Tagged(ctx, tag)
	if err != nil {
		return nil, err
	}
	x, err := artifacts.OpenState(manifest)
	if err != nil {
		return nil, fmt.Errorf("%s:%s: %w", repo.Name(), tag, err)
	}
	if x.Device.Tag() != device {
		err := fmt.Errorf("%s:%s names a state of device %q: %w", repo.Name(), tag, x.Device, fault.ErrConflict)
		return nil, fault.WithHint(err, "the tag was moved: publish the state of the device again")
	}
	if tag != device && tag != artifacts.HistoryTag(device, x.Generation) { // it would stand in the way of the real one
		err := fmt.Errorf("%s:%s names generation %d: %w", repo.Name(), tag, x.Generation, fault.ErrConflict)
		return nil, fault.WithHint(err, "the tag was moved: find out who writes there, and remove the tag")
	}
	there, err := w.atSite(ctx, w.repository, tag, desc.Digest)
	if err != nil {
		return nil, err
	}
	if !there && w.o.Verify != nil {
		if err := w.o.Verify(ctx, repo, desc.Digest); err != nil {
			return nil, fmt.Errorf("%s:%s: %w", repo.Name(), tag, err)
		}
	}
	w.mu.Lock()
	n := w.need(artifacts.KindState, w.repository, desc.Digest)
	insert(&n.Tags, tag)
	insert(&n.Devices, device)
	n.number, n.there, n.set[tag] = x.Generation, n.there || there, there
	if tag == device {
		n.current = device
	}
	w.mu.Unlock()
	if there && w.o.Check == CheckTags {
		return n, nil
	}
	for _, name := range slices.Sorted(maps.Keys(x.Applications)) {
		if err := w.application(ctx, below{n, device, "", there}, x.Applications[name]); err != nil {
			return nil, err
		}
	}
	deployments, err := w.deployments(ctx, repo, desc.Digest, x, there)
	if err != nil {
		return nil, err
	}
	for _, d := range deployments {
		for _, c := range d.Document.Spec.DeploymentProfile.Components {
			if err := w.component(ctx, below{n, device, d.Document.Spec.DeploymentProfile.Type, there}, c); err != nil {
				return nil, err
			}
		}
	}
	return n, nil
}

// deployments reads the deployments of a state; of one that the site has, its bundle alone.
func (w *walk) deployments(ctx context.Context, repo *registry.Repository, d digest.Digest, x *artifacts.StateIndex, there bool) ([]artifacts.Deployment, error) {
	bundle := func(desc ocispec.Descriptor) ([]byte, error) { return w.blob(ctx, w.repository, repo, desc, there) }
	if there {
		return bundled(x, bundle)
	}
	s, err := release.Read(ctx, repo, d.String())
	if err != nil {
		return nil, err
	}
	if w.o.Kept != "" && x.Bundle != nil {
		// The next run needs it. It costs no request: the copy gets it from the snapshot, and reports errors.
		_, _ = bundle(*x.Bundle)
	}
	return s.State.Deployments, nil
}

// bundled reads the deployments of a state from its bundle.
func bundled(x *artifacts.StateIndex, blob func(ocispec.Descriptor) ([]byte, error)) ([]artifacts.Deployment, error) {
	if x.Bundle == nil {
		return nil, nil
	}
	data, err := blob(*x.Bundle)
	if err != nil {
		return nil, err
	}
	out, err := artifacts.ReadBundle(data)
	if err != nil {
		return nil, fmt.Errorf("bundle %s: %w", x.Bundle.Digest, err)
	}
	return out, nil
}

// blob reads a small blob of a repository: from the files of earlier runs, from the site if that has it, or from the source. The site
// comes first because the link to the source may be slow.
func (w *walk) blob(ctx context.Context, name string, repo *registry.Repository, desc ocispec.Descriptor, there bool) ([]byte, error) {
	return kept{w.o.Kept, w.o.Now}.blob(desc, func() ([]byte, error) {
		if there {
			at, err := w.o.Site.OpenName(ctx, name)
			if err == nil {
				if data, err := at.Blob(ctx, desc, artifacts.MaxArchive); err == nil {
					return data, nil
				}
			}
		}
		return repo.Blob(ctx, desc, artifacts.MaxArchive)
	})
}

// atSite reports whether a tag at the site names a digest, so that the site has everything below it.
func (w *walk) atSite(ctx context.Context, repository, tag string, d digest.Digest) (bool, error) {
	if w.o.Site == nil || w.o.Check == CheckAll {
		return false, nil
	}
	to, err := w.o.Site.OpenName(ctx, repository)
	if err != nil || !to.MayHave(tag) {
		return false, err
	}
	there, err := to.ResolveUpstream(ctx, tag)
	return there == d, err
}

// listed reports whether the site has a tag, as it was listed there.
func (w *walk) listed(ctx context.Context, repository, tag string) bool {
	to, err := w.o.Site.OpenName(ctx, repository)
	return err == nil && to.MayHave(tag)
}

// below describes the artifact that names a component.
type below struct {
	by     *Need // nil: nothing
	device string
	kind   string // of the deployment profile
	there  bool   // the site has it completely
}

// component adds a component and the images that it names.
func (w *walk) component(ctx context.Context, from below, c margo.Component) error {
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
	component := w.add(artifacts.KindComponent, name, d, from, strings.ReplaceAll(c.Properties.Revision, "+", "_"))
	if from.kind != "compose" {
		return nil // images of a chart are unknown
	}
	locked, _ := w.locks.LoadOrStore(component.Key(), sync.OnceValues(func() ([]artifacts.LockedImage, error) { return w.images(ctx, name, d, from.there) }))
	images, err := locked.(func() ([]artifacts.LockedImage, error))()
	if passing(ctx, err) {
		return err
	}
	if err != nil {
		w.problem("component %s@%s: %v", name, d, err)
		if errors.Is(err, fault.ErrNotFound) {
			w.note(&w.missing, "component %s@%s: %v", name, d, err)
		}
		return nil
	}
	from.by = component
	for _, i := range images {
		ref, err := registry.ParseImage(i.Reference)
		if err != nil {
			w.problem("component %s@%s: %v", name, d, err)
			continue
		}
		w.add(artifacts.KindImage, ref.Name(), i.Digest, from, "")
	}
	return nil
}

// application adds the package that a state was made of, if the state names its repository. A missing one is left out.
func (w *walk) application(ctx context.Context, from below, a artifacts.ApplicationVersion) error {
	if a.Repository == "" {
		return nil
	}
	look, _ := w.packages.LoadOrStore(a.Repository+"@"+a.Digest.String(), sync.OnceValue(func() error { return w.isPackage(ctx, a) }))
	err := look.(func() error)()
	if ctx.Err() != nil || errors.Is(err, fault.ErrTemporary) {
		return err
	}
	if err != nil {
		w.note(&w.absent, "package %s:%s is left out, devices do not need it: %v", a.Repository, a.Version, err)
		return nil
	}
	w.add(artifacts.KindPackage, a.Repository, a.Digest, from, a.Version)
	return nil
}

// isPackage reads a package's manifest: the reference in the state is signed, but may name any artifact.
func (w *walk) isPackage(ctx context.Context, a artifacts.ApplicationVersion) error {
	repo, err := w.open(ctx, a.Repository)
	if err != nil {
		return err
	}
	_, manifest, err := repo.Manifest(ctx, a.Digest)
	if err != nil {
		return err
	}
	if _, err = artifacts.OpenPackage(manifest); err != nil {
		err = fmt.Errorf("%s: %w", a.Digest, err)
	}
	return err
}

// passing reports whether an error is temporary, so that the content may exist.
func passing(ctx context.Context, err error) bool {
	return err != nil && (ctx.Err() != nil || errors.Is(err, fault.ErrTemporary) || errors.Is(err, fault.ErrUnauthenticated) || errors.Is(err, fault.ErrDenied))
}

// images reads the lock of a component, which the site may have.
func (w *walk) images(ctx context.Context, name string, d digest.Digest, there bool) ([]artifacts.LockedImage, error) {
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
	archive, err := x.Read(func(d ocispec.Descriptor) ([]byte, error) { return w.blob(ctx, name, repo, d, there) })
	if err != nil {
		return nil, err
	}
	if archive.Lock == nil {
		return nil, fmt.Errorf("it has no %s: which images it needs is not known: %w", artifacts.LockFile, fault.ErrUnsupported)
	}
	return archive.Lock.Images, nil
}

// trust adds the versions of a trust policy.
func (w *walk) trust(ctx context.Context, name string) error {
	repo, err := w.open(ctx, name)
	if err != nil {
		return err
	}
	tags, err := repo.Tags(ctx)
	if w.o.Known && errors.Is(err, fault.ErrNotFound) && !fault.Retryable(err) {
		err = nil
	}
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
		there, err := w.atSite(ctx, name, tag, d.Digest)
		if err != nil {
			return err
		}
		w.add(artifacts.KindTrust, name, d.Digest, below{there: there}, tag)
		found = true
	}
	if !found && w.o.Known {
		w.note(&w.absent, "%s is left out: no trust policy is there", name)
		return nil
	}
	if !found {
		return fault.WithHint(fmt.Errorf("%s: no trust policy is there: %w", name, fault.ErrNotFound), "publish it: longshore trust push FILE "+name)
	}
	if w.o.VerifyTrust != nil {
		return w.o.VerifyTrust(ctx, repo)
	}
	return nil
}

// add adds a need.
func (w *walk) add(kind artifacts.Kind, repository string, d digest.Digest, from below, tag string) *Need {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.need(kind, repository, d)
	insert(&n.Tags, tag)
	insert(&n.Devices, from.device)
	n.there = n.there || from.there
	if from.by != nil {
		insert(&from.by.Names, n.Key())
	}
	return n
}

// need returns the entry of an artifact, which it creates if necessary. The caller holds w.mu.
func (w *walk) need(kind artifacts.Kind, repository string, d digest.Digest) *Need {
	fresh := &Need{Kind: kind, Repository: repository, Digest: d, Devices: []string{}, set: map[string]bool{}}
	n := w.needs[fresh.Key()]
	if n == nil {
		n = fresh
		if w.o.Signatures != nil {
			n.signatures = w.o.Signatures(kind, repository)
		}
		w.needs[n.Key()] = n
	}
	return n
}

// Key names the artifact, "host/path@digest".
func (n *Need) Key() string { return n.Repository + "@" + n.Digest.String() }

// insert adds a string to a sorted list unless it is there or "".
func insert(into *[]string, s string) {
	if i, there := slices.BinarySearch(*into, s); s != "" && !there {
		*into = slices.Insert(*into, i, s)
	}
}

func (w *walk) problem(format string, args ...any) { w.note(&w.problems, format, args...) }

// note adds a sentence to a list of w, once.
func (w *walk) note(into *[]string, format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	insert(into, fmt.Sprintf(format, args...))
}

// closure returns the sorted result.
func (w *walk) closure() *Closure {
	order := []artifacts.Kind{artifacts.KindImage, artifacts.KindComponent, artifacts.KindPackage, artifacts.KindTrust, artifacts.KindState}
	out := &Closure{Needs: slices.Collect(maps.Values(w.needs)), Problems: w.problems, Absent: w.absent, missing: w.missing}
	slices.SortFunc(out.Needs, func(a, b *Need) int {
		return cmp.Or(slices.Index(order, a.Kind)-slices.Index(order, b.Kind), strings.Compare(a.Repository, b.Repository),
			cmp.Compare(a.number, b.number), strings.Compare(a.Digest.String(), b.Digest.String()))
	})
	return out
}
