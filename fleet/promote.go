package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/Masterminds/semver/v3"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/registry/release"
)

// Promoted is the exact version of an application that an environment has.
type Promoted struct {
	Application string
	Repository  string // "host/path" of the package or the component
	Version     string
	Digest      digest.Digest
	Components  map[string]*LockedComponent // of a package, that devices have: by "host/path:revision", as the package names them
	Devices     int                         // that have it

	release *Release
}

// Published finds out which exact versions the devices of a fleet have by what is published for them, which says it: not by
// what tags name now. A version that only some states name counts if it leads to what the other devices have too. Each
// version found makes, with the files as they are, the very documents that every device has; when none does, or devices have
// different ones, that is an error which wraps fault.ErrConflict. Of o, Devices, Verify and Concurrency count.
//
// only names applications; nil means all. runs, which may be nil, says why a device does not run a deployment, by its id, of
// the state that is published for it, "" when it does; one that does not is an error that wraps fault.ErrConflict.
func (c *Compiled) Published(
	ctx context.Context, from Registry, o Options, only []string, runs func(t artifacts.RolloutTarget, deployment string) string,
) ([]*Promoted, error) {
	p := &promoter{c: c, from: from, o: o, has: map[*Device]*had{}}
	if err := p.read(ctx); err != nil {
		return nil, err
	}
	var out []*Promoted
	var waiting []error
	for _, a := range c.Fleet.Applications {
		at := p.placed(a)
		if len(at) == 0 || only != nil && !slices.Contains(only, a.Name) {
			continue
		}
		found, err := p.find(ctx, a, at)
		if err != nil {
			return nil, err
		}
		if runs != nil {
			waiting = append(waiting, p.waiting(a, at, runs)...)
		}
		out = append(out, found)
	}
	return out, errors.Join(waiting...)
}

// promoter finds the versions of an environment.
type promoter struct {
	c    *Compiled
	from Registry
	o    Options
	has  map[*Device]*had
}

// had is the published state of a device.
type had struct {
	state     artifacts.RolloutTarget
	documents map[string]*artifacts.Deployment // by id
	packages  map[string]artifacts.ApplicationVersion
}

// read reads the published states of the devices.
func (p *promoter) read(ctx context.Context) error {
	look := &planner{c: p.c, from: p.from, o: p.o}
	var mu sync.Mutex
	wrong := make([]error, len(p.c.Assignments))
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(p.o.concurrency())
	for i, a := range p.c.Assignments {
		if p.o.Devices != nil && !p.o.Devices(a.Device) || len(a.Placements)+len(a.Unfit) == 0 {
			continue
		}
		g.Go(func() error {
			h, err := p.device(inner, look, a)
			if err != nil && !release.Unfit(err) {
				return fmt.Errorf("read the state of %s: %w", a.Device.ID, err)
			}
			if wrong[i] = err; err == nil {
				mu.Lock()
				defer mu.Unlock()
				p.has[a.Device] = h
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for i, err := range wrong { // of many the first: they mostly have one cause
		if err != nil {
			return fault.WithHint(fmt.Errorf("read the state of %s: %w", p.c.Assignments[i].Device.ID, err), fault.Hint(err))
		}
	}
	return nil
}

// device reads the published state of one device.
func (p *promoter) device(ctx context.Context, look *planner, a *Assignment) (*had, error) {
	s, err := look.look(ctx, a)
	if err == nil && s.Refused != nil {
		err = s.Refused
	}
	if err == nil && s.base == nil {
		err = fault.WithHint(fmt.Errorf("nothing is published for it: %w", fault.ErrNotFound), "publish there first: longshore fleet publish; or leave it out with --select")
	}
	if err == nil {
		err = look.trusted(ctx, a, s.base.digest)
	}
	if err != nil {
		return nil, err
	}
	all, err := look.deployments(ctx, a, s.base)
	h := &had{documents: map[string]*artifacts.Deployment{}, packages: s.base.index.Applications, state: artifacts.RolloutTarget{
		Device: a.Device.ID, Repository: a.Repository, Generation: s.base.index.Generation, Digest: s.base.digest, Deployments: len(all),
	}}
	for i := range all {
		h.documents[strings.ToLower(all[i].Document.ID)] = &all[i]
	}
	return h, err
}

// waiting reports deployments of an application that devices do not run as they are published.
func (p *promoter) waiting(a *Application, at []*Assignment, runs func(artifacts.RolloutTarget, string) string) []error {
	var names []string
	devices := map[string][]string{} // by deployment
	for _, x := range at {
		for _, placement := range x.Placements {
			name := placement.Deployment.Name
			if placement.Release.Application != a {
				continue
			}
			why := runs(p.has[x.Device].state, artifacts.DeploymentID(x.Device.ID, name))
			if why == "" {
				continue
			}
			if devices[name] == nil {
				names = append(names, name)
			}
			devices[name] = append(devices[name], string(x.Device.ID)+": "+why)
		}
	}
	var all []error
	for _, name := range names {
		all = append(all, fault.WithHint(fmt.Errorf("%s: deployment %s does not run as it is published: %w: %s", a.Name, name, fault.ErrConflict, some(devices[name])),
			"promote again when it does, or leave devices out with --select; longshore fleet status shows what each reports"))
	}
	return all
}

// placed is where an application is to run.
func (p *promoter) placed(a *Application) []*Assignment {
	var out []*Assignment
	for _, x := range p.c.Assignments {
		if p.has[x.Device] != nil && slices.ContainsFunc(x.Placements, func(at Placement) bool { return at.Release.Application == a }) {
			out = append(out, x)
		}
	}
	return out
}

// published is the document of a deployment that a device has.
func (p *promoter) published(d *Device, deployment string) *artifacts.Deployment {
	return p.has[d].documents[artifacts.DeploymentID(d.ID, deployment)]
}

// find finds the version of an application that produces the published documents.
func (p *promoter) find(ctx context.Context, a *Application, at []*Assignment) (*Promoted, error) {
	pins, err := p.pins(a, at)
	if err != nil {
		return nil, err
	}
	versions := p.versions(a, at, pins)
	if len(versions) == 0 {
		return nil, fault.WithHint(fmt.Errorf("%s: what is published does not say which version it is: %w", a.Name, fault.ErrConflict), "publish it by longshore fleet publish")
	}
	why := ""
	for _, v := range versions {
		r, err := p.released(ctx, a, v, pins)
		if err != nil && !permanent(err) {
			return nil, err
		}
		if err != nil {
			why = err.Error()
			continue
		}
		releases := maps.Clone(p.c.Releases)
		releases[a.Name] = r
		c, err := Compile(p.c.Fleet, releases)
		if err != nil {
			why = fmt.Sprintf("%s does not go with the files: %v", v.Version, err)
			continue
		}
		if why = p.makes(c, a, at); why == "" {
			return promoted(a, r, pins, len(at)), nil
		}
	}
	return nil, fault.WithHint(fmt.Errorf("%s: no version makes what is published, as the files are now: %s: %w", a.Name, why, fault.ErrConflict),
		"see what differs with longshore fleet plan, and publish there first")
}

// versions are the versions that the states name, the newest first. A component's is in its documents. A package that was
// moved to another repository is the same one.
func (p *promoter) versions(a *Application, at []*Assignment, pins map[string]digest.Digest) []artifacts.ApplicationVersion {
	var out []artifacts.ApplicationVersion
	add := func(v artifacts.ApplicationVersion) {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	for key, d := range pins {
		if _, revision, ok := cutRevision(key); ok && a.Component != "" {
			add(artifacts.ApplicationVersion{Version: revision, Digest: d})
		}
	}
	for _, x := range at {
		if v, ok := p.has[x.Device].packages[a.Name]; ok && a.Package != "" {
			add(artifacts.ApplicationVersion{Version: v.Version, Digest: v.Digest})
		}
	}
	slices.SortFunc(out, func(a, b artifacts.ApplicationVersion) int {
		x, errX := semver.StrictNewVersion(strings.ReplaceAll(a.Version, "_", "+"))
		y, errY := semver.StrictNewVersion(strings.ReplaceAll(b.Version, "_", "+"))
		if errX == nil && errY == nil && !x.Equal(y) {
			return y.Compare(x)
		}
		return strings.Compare(b.Version+b.Digest.String(), a.Version+a.Digest.String())
	})
	return out
}

// released reads a version that was published, with its components as they were.
func (p *promoter) released(ctx context.Context, a *Application, v artifacts.ApplicationVersion, pins map[string]digest.Digest) (*Release, error) {
	exact := *a
	exact.Version, exact.Channel = v.Version, ""
	if a.Locked == nil || a.Locked.Version != v.Version {
		exact.Locked = nil
	}
	r, err := resolve(ctx, p.c.Fleet, &exact, p.from)
	if err != nil {
		return nil, err
	}
	if r.Digest != v.Digest {
		return nil, fmt.Errorf("%s:%s is %s now, and was %s when it was published: %w", r.Repository, v.Version, printable.Digest(r.Digest), printable.Digest(v.Digest), fault.ErrInvalid)
	}
	for _, x := range r.pins {
		if d := pins[x.repository+":"+x.revision]; d != "" {
			x.digest, x.err = d, nil
		}
	}
	r.Application = a
	return r, nil
}

// pins are what the components of an application are pinned to on the devices, by "host/path:revision".
func (p *promoter) pins(a *Application, at []*Assignment) (map[string]digest.Digest, error) {
	out, first := map[string]digest.Digest{}, map[string]artifacts.DeviceID{}
	for _, x := range at {
		for _, placement := range x.Placements {
			if placement.Release.Application != a {
				continue
			}
			doc := p.published(x.Device, placement.Deployment.Name)
			if doc == nil {
				return nil, fault.WithHint(fmt.Errorf("%s: %s has nothing of %s published: %w", a.Name, x.Device.ID, placement.Deployment.Name, fault.ErrConflict),
					"publish there first: longshore fleet publish")
			}
			for _, c := range doc.Document.Spec.DeploymentProfile.Components {
				key := strings.TrimPrefix(c.Properties.Repository, "oci://") + ":" + c.Properties.Revision
				if there := out[key]; there != "" && there != pinOf(c) {
					return nil, fmt.Errorf("%s: %s is %s on %s, and %s on %s: %w", a.Name, key, printable.Digest(there), first[key], printable.Digest(pinOf(c)), x.Device.ID, fault.ErrConflict)
				}
				out[key], first[key] = pinOf(c), x.Device.ID
			}
		}
	}
	return out, nil
}

// makes says what of an application's documents a compilation does not make as they are published; "" when it makes all.
func (p *promoter) makes(c *Compiled, a *Application, at []*Assignment) string {
	want := map[*Device]bool{}
	for _, x := range at {
		want[x.Device] = true
	}
	for _, x := range c.Assignments {
		if !want[x.Device] {
			continue
		}
		for _, placement := range x.Placements {
			if placement.Release.Application != a {
				continue
			}
			data, err := x.Document(c.Fleet, placement).Encode()
			doc := p.published(x.Device, placement.Deployment.Name)
			if err != nil || doc == nil || digest.FromBytes(data) != doc.Digest {
				return fmt.Sprintf("%s has another %s than %s makes", x.Device.ID, placement.Deployment.Name, placement.Release.Version())
			}
			want[x.Device] = false
		}
	}
	for _, x := range at {
		if want[x.Device] {
			return fmt.Sprintf("%s could not run it", x.Device.ID)
		}
	}
	return ""
}

// promoted describes a version. Components of profiles that no device has are untested: what their tags name now
// is not promoted.
func promoted(a *Application, r *Release, pins map[string]digest.Digest, devices int) *Promoted {
	out := &Promoted{
		Application: a.Name, Repository: r.Repository, Version: r.Version(), Digest: r.Digest, Components: map[string]*LockedComponent{}, Devices: devices,
		release: r,
	}
	if r.free {
		return out
	}
	for key, x := range r.pins {
		if pins[x.repository+":"+x.revision] == "" {
			continue
		}
		key = strings.TrimPrefix(key, "oci://")
		c := &LockedComponent{Digest: x.digest}
		if key != x.repository+":"+x.revision {
			c.Repository = x.repository
		}
		out.Components[key] = c
	}
	return out
}

// Carrier copies promoted content to the repositories of another environment.
type Carrier interface {
	// Carry brings an artifact with its signatures from one repository to another, by digest, and sets tag there. Where both
	// are the same it makes sure that the tag names the digest. Another digest there is fault.ErrConflict.
	Carry(ctx context.Context, from, to string, d digest.Digest, tag string) error
}

// Promotion is the new version of an application in another environment.
type Promotion struct {
	*Promoted
	To   string  // "host/path" of the package or the component there
	Was  string  // version in the lock until now; "": none
	Now  *Locked // the new entry in the lock
	Same bool    // the lock had it already
}

// Promote settles what the versions of another environment become in this fleet. only names applications, nil means all that
// both have. What contradicts the files is an error that wraps fault.ErrInvalid.
func (f *Fleet) Promote(source *Fleet, versions []*Promoted, only []string) ([]*Promotion, error) {
	for _, name := range only {
		if !slices.ContainsFunc(versions, func(v *Promoted) bool { return v.Application == name }) {
			return nil, fmt.Errorf("application %s: no device of %s has it: %w", name, source.Name, fault.ErrNotFound)
		}
	}
	var out []*Promotion
	var all []error
	for _, v := range versions {
		i := slices.IndexFunc(f.Applications, func(a *Application) bool { return a.Name == v.Application })
		if only != nil && !slices.Contains(only, v.Application) || i < 0 && only == nil {
			continue
		}
		if i < 0 {
			all = append(all, fmt.Errorf("application %s: fleet %s has none of this name: %w", v.Application, f.Name, fault.ErrNotFound))
			continue
		}
		p, err := f.promote(source, f.Applications[i], v)
		if err != nil {
			all = append(all, err)
			continue
		}
		out = append(out, p)
	}
	return out, errors.Join(all...)
}

func (f *Fleet) promote(source *Fleet, a *Application, v *Promoted) (*Promotion, error) {
	was := source.application(v.Application)
	if (was.Component != "") != (a.Component != "") {
		return nil, fmt.Errorf("application %s: a component in one of the fleets, and a package in the other: %w", a.Name, fault.ErrInvalid)
	}
	if why := a.allows(v.Version); why != "" {
		return nil, fault.WithHint(fmt.Errorf("application %s: %s has %s, and %s allows %s only: %w", a.Name, source.Name, v.Version, a.version.file, a.Version, fault.ErrInvalid),
			"change the version there: a range, or a channel, leaves it to the lock")
	}
	if err := f.untried(source, a, v); err != nil {
		return nil, err
	}
	p := &Promotion{Promoted: v, To: Absolute(f.Registry, a.Package+a.Component), Now: &Locked{Version: v.Version, Digest: v.Digest, Components: map[string]*LockedComponent{}}}
	for key, c := range v.Components {
		one := *c
		repository := c.at(key)
		if below, inside := strings.CutPrefix(repository, source.Registry+"/"); inside && source.Registry != f.Registry {
			one.Repository = f.Registry + "/" + below
		}
		if named, _, _ := cutRevision(key); one.Repository == named {
			one.Repository = ""
		}
		p.Now.Components[key] = &one
	}
	if l := f.Lock[a.Name]; l != nil {
		p.Was = l.Version
		p.Same = l.Version == v.Version && l.Digest == v.Digest && maps.EqualFunc(l.Components, p.Now.Components, func(a, b *LockedComponent) bool { return *a == *b })
	}
	return p, nil
}

// untried reports devices that would get a profile of which no device of the other environment has every component. Devices
// of which nothing is known are left out.
func (f *Fleet) untried(source *Fleet, a *Application, v *Promoted) error {
	if v.release.free {
		return nil
	}
	r := *v.release
	r.Application = a
	c := &compiler{fits: map[fitKey]string{}}
	devices, missing := map[string][]string{}, map[string]string{} // by profile
	for _, d := range f.Devices {
		for _, dep := range f.Deployments {
			if dep.Application != a.Name || !d.Matches(dep.Select) || d.Matches(dep.Exclude) {
				continue
			}
			p, _ := c.choose(d, dep, &r)
			if p == nil {
				continue
			}
			for _, x := range p.Components {
				if key := strings.TrimPrefix(x.Properties.Repository, "oci://") + ":" + x.Properties.Revision; v.Components[key] == nil {
					devices[p.ID], missing[p.ID] = append(devices[p.ID], string(d.ID)), key
					break
				}
			}
		}
	}
	var all []error
	for _, id := range slices.Sorted(maps.Keys(devices)) {
		all = append(all, fault.WithHint(fmt.Errorf("application %s: %s gets profile %s, and no device of %s has %s of it published: %w",
			a.Name, some(slices.Compact(devices[id])), id, source.Name, missing[id], fault.ErrConflict),
			"publish it to a device of "+source.Name+" first, or name another profile with profile:"))
	}
	return errors.Join(all...)
}

// at is where a component is that a package names by key.
func (c *LockedComponent) at(key string) string {
	if c.Repository != "" {
		return c.Repository
	}
	repository, _, _ := cutRevision(key)
	return repository
}

func (f *Fleet) application(name string) *Application {
	i := slices.IndexFunc(f.Applications, func(a *Application) bool { return a.Name == name })
	return f.Applications[i] // versions come from its own applications
}

// Carry brings everything that is promoted to where the lock says that it is: components first, so that a package is never
// there without them.
func (p *Promotion) Carry(ctx context.Context, by Carrier) error {
	for _, key := range slices.Sorted(maps.Keys(p.Now.Components)) {
		from, to := p.Components[key].at(key), p.Now.Components[key].at(key)
		if from == to {
			continue // devices get it by its digest, whatever its tag is
		}
		_, revision, _ := cutRevision(key)
		if err := by.Carry(ctx, from, to, p.Now.Components[key].Digest, revision); err != nil {
			return fmt.Errorf("promote %s %s: %w", p.Application, p.Version, err)
		}
	}
	if err := by.Carry(ctx, p.Repository, p.To, p.Digest, p.Version); err != nil {
		return fmt.Errorf("promote %s %s: %w", p.Application, p.Version, err)
	}
	return nil
}

// Locks is the fleet's lock with the promoted versions.
func (f *Fleet) Locks(all []*Promotion) Lock {
	out := Lock{}
	maps.Copy(out, f.Lock)
	for _, p := range all {
		out[p.Application] = p.Now
	}
	return out
}
