package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// lookups at a time, of applications and components.
const lookups = 4

// Registry is a fleet's read access to registries. Repositories are "host/path".
type Registry interface {
	Tags(ctx context.Context, repository string) ([]string, error)
	Resolve(ctx context.Context, repository, tag string) (ocispec.Descriptor, error)
	Tagged(ctx context.Context, repository, tag string) (ocispec.Descriptor, []byte, error)
	Manifest(ctx context.Context, repository string, d digest.Digest) (ocispec.Descriptor, []byte, error)
	Blob(ctx context.Context, repository string, desc ocispec.Descriptor, limit int64) ([]byte, error)
}

// Release is an application as the registry has it now.
type Release struct {
	Application *Application
	Repository  string
	Tag         string
	Digest      digest.Digest // of the package or the component that the tag names
	Description *margo.ApplicationDescription

	free bool                      // without a description: every parameter is an environment variable
	pins map[string]*pinnedRelease // components by "repository:revision"
}

// pinnedRelease is the current version of a component's tag.
type pinnedRelease struct {
	repository, revision string
	digest               digest.Digest
	archive              ocispec.Descriptor // of a Compose component
	err                  error              // why it cannot be deployed
}

// Resolve looks up every application of the fleet: the tag that its version or range means now, its description, and the
// digests of its components. The error is a *[strict.Error] for what the files ask for and is not there; any other says that
// a registry could not be asked.
func Resolve(ctx context.Context, f *Fleet, from Registry) (map[string]*Release, error) {
	out := make([]*Release, len(f.Applications))
	missing := make([]error, len(f.Applications))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(lookups)
	for i, a := range f.Applications {
		g.Go(func() (err error) {
			out[i], err = resolve(ctx, f, a, from)
			if permanent(err) {
				missing[i], err = err, nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	sink, all := &faults{}, map[string]*Release{}
	for i, a := range f.Applications {
		if err := missing[i]; err != nil {
			at := a.version
			if a.Locked != nil {
				at = a.Locked.at
			}
			sink.add(at, fault.Hint(err), "%v", err)
			continue
		}
		all[a.Name] = out[i]
	}
	return all, sink.err()
}

// permanent reports whether an error is about the content itself, not about a failed query.
func permanent(err error) bool {
	if errors.Is(err, fault.ErrTemporary) {
		return false
	}
	return slices.ContainsFunc([]error{fault.ErrNotFound, fault.ErrInvalid, fault.ErrUnsupported, fault.ErrTooLarge, fault.ErrDigestMismatch},
		func(kind error) bool { return errors.Is(err, kind) })
}

func resolve(ctx context.Context, f *Fleet, a *Application, from Registry) (*Release, error) {
	r := &Release{Application: a, Repository: Absolute(f.Registry, a.Package+a.Component), free: a.Component != "", pins: map[string]*pinnedRelease{}}
	if err := r.find(ctx, from); err != nil {
		return nil, err
	}
	if r.free {
		if err := r.describe(ctx, from); err != nil {
			return nil, err
		}
	} else if err := r.open(ctx, from); err != nil {
		return nil, err
	}
	for _, p := range r.Description.DeploymentProfiles {
		for _, c := range p.Components {
			key := c.Properties.Repository + ":" + c.Properties.Revision
			if r.pins[key] != nil {
				continue
			}
			pin, err := r.pinComponent(ctx, from, p.Type, c)
			if err != nil {
				return nil, err
			}
			r.pins[key] = pin
		}
	}
	return r, nil
}

// find settles the tag and its digest.
func (r *Release) find(ctx context.Context, from Registry) error {
	a := r.Application
	if a.Locked != nil {
		r.Tag = a.Locked.Version
	} else if r.Tag = a.Channel; r.Tag == "" {
		want, err := parseVersion(a.Version)
		if err != nil {
			return fmt.Errorf("%w: %w", fault.ErrInvalid, err)
		}
		if r.Tag = want.exact; r.Tag == "" {
			tags, err := from.Tags(ctx, r.Repository)
			if errors.Is(err, fault.ErrNotFound) {
				tags, err = nil, nil
			}
			if err != nil {
				return err
			}
			if r.Tag = want.best(tags); r.Tag == "" {
				return fault.WithHint(fmt.Errorf("no version of %s is in %s: %w", r.Repository, a.Version, fault.ErrNotFound), offered(tags))
			}
		}
	}
	desc, err := from.Resolve(ctx, r.Repository, r.Tag)
	if errors.Is(err, fault.ErrNotFound) {
		hint := ""
		if tags, err := from.Tags(ctx, r.Repository); err == nil {
			hint = offered(tags)
		}
		return fault.WithHint(fmt.Errorf("there is no %s:%s: %w", r.Repository, r.Tag, fault.ErrNotFound), hint)
	}
	if err == nil && a.Locked != nil && desc.Digest != a.Locked.Digest {
		return fault.WithHint(fmt.Errorf("%s:%s is %s, the lock says %s: %w", r.Repository, r.Tag, desc.Digest, a.Locked.Digest, fault.ErrInvalid),
			"the version was pushed anew: find out by whom, and promote it again if it is to be so")
	}
	r.Digest = desc.Digest
	return err
}

// offered lists the existing versions.
func offered(tags []string) string {
	const most = 5
	all := slices.DeleteFunc(slices.Clone(tags), func(t string) bool { return strings.HasPrefix(t, "sha256-") })
	if len(all) == 0 {
		return "nothing has been pushed there; look at the repository's name"
	}
	return "there are: " + strings.Join(all[max(0, len(all)-most):], ", ")
}

// open reads the application package.
func (r *Release) open(ctx context.Context, from Registry) error {
	where := r.Repository + ":" + r.Tag
	_, manifest, err := from.Manifest(ctx, r.Repository, r.Digest)
	if err != nil {
		return err
	}
	x, err := artifacts.OpenPackage(manifest)
	if err != nil {
		return fault.WithHint(fmt.Errorf("%s: %w", where, err), "push it with: longshore app push")
	}
	r.Description, err = x.Read(func(d ocispec.Descriptor) ([]byte, error) {
		return from.Blob(ctx, r.Repository, d, artifacts.MaxDocument)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	if v := r.Description.Metadata.Version; (r.Application.Channel == "" || r.Application.Locked != nil) && v != r.Tag {
		return fmt.Errorf("%s: it says that it is version %s: %w", where, v, fault.ErrInvalid)
	}
	return nil
}

// describe makes up the description of a component that has none.
func (r *Release) describe(ctx context.Context, from Registry) error {
	where, name := r.Repository+":"+r.Tag, path.Base(r.Repository)
	if !margo.ValidComponentName(name) {
		return fmt.Errorf("%s: %q is no name of a component (lower-case letters, digits, dashes): %w", where, name, fault.ErrInvalid)
	}
	revision := r.Tag
	if r.Application.Channel != "" && r.Application.Locked == nil {
		_, manifest, err := from.Manifest(ctx, r.Repository, r.Digest)
		if err != nil {
			return err
		}
		x, err := artifacts.OpenComponent(manifest)
		if err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
		revision = x.Version
	}
	if !margo.ValidRevision(revision) {
		return fmt.Errorf("%s: %q is no version of a component: %w", where, revision, fault.ErrInvalid)
	}
	c := margo.Component{Name: name, Properties: margo.ComponentProperties{Repository: "oci://" + r.Repository, Revision: revision, Wait: true}}
	c.Extensions = margo.Extensions{margo.PinExtension: map[string]any{"digest": r.Digest.String()}}
	r.Description = &margo.ApplicationDescription{
		ID: r.Application.Name, Metadata: margo.DescriptionMetadata{Name: r.Application.Name, Version: revision},
		DeploymentProfiles: []margo.DescribedProfile{{ID: name, DeploymentProfile: margo.DeploymentProfile{Type: "compose", Components: []margo.Component{c}}}},
	}
	return nil
}

// pinComponent finds out what a component's tag means, or what the lock says that it means. What cannot be deployed is reported
// when something wants to.
func (r *Release) pinComponent(ctx context.Context, from Registry, kind string, c margo.Component) (*pinnedRelease, error) {
	repository, ok := strings.CutPrefix(c.Properties.Repository, "oci://")
	p := &pinnedRelease{repository: repository, revision: c.Properties.Revision}
	if !ok {
		p.err = fmt.Errorf("component %s is in no registry: %w", c.Name, fault.ErrUnsupported)
		return p, nil
	}
	if l := r.Application.Locked; l != nil && !r.free {
		locked := l.Components[repository+":"+p.revision]
		if locked == nil {
			p.err = fmt.Errorf("component %s: %s:%s is not in the lock: %w", c.Name, repository, p.revision, fault.ErrInvalid)
			return p, nil
		}
		if p.digest = locked.Digest; locked.Repository != "" {
			p.repository = locked.Repository
		}
	}
	err := p.find(ctx, from, kind, c)
	if permanent(err) {
		p.err, err = fmt.Errorf("component %s: %w", c.Name, err), nil
	}
	return p, err
}

func (p *pinnedRelease) find(ctx context.Context, from Registry, kind string, c margo.Component) error {
	pinned, there, err := c.Pinned()
	if err != nil {
		return err
	}
	switch {
	case there && p.digest != "" && p.digest != pinned:
		return fmt.Errorf("%s:%s is %s in the lock, and %s in the package: %w", p.repository, p.revision, p.digest, pinned, fault.ErrInvalid)
	case p.digest != "":
		pinned = p.digest
	case !there:
		desc, err := from.Resolve(ctx, p.repository, p.revision)
		if err != nil {
			return err
		}
		pinned = desc.Digest
	}
	p.digest = pinned
	_, manifest, err := from.Manifest(ctx, p.repository, pinned)
	if err != nil {
		return err
	}
	if kind == "helm" {
		if _, err := artifacts.OpenChart(manifest); err != nil {
			return fault.WithHint(fmt.Errorf("%s:%s: %w", p.repository, p.revision, err), "push the chart with: longshore component push, or helm push")
		}
	}
	if kind != "compose" {
		return nil
	}
	x, err := artifacts.OpenComponent(manifest)
	if err != nil {
		return fault.WithHint(fmt.Errorf("%s:%s: %w", p.repository, p.revision, err), "push it with: longshore component push")
	}
	if x.Version != "" && x.Version != p.revision {
		return fmt.Errorf("%s:%s says that it is version %s: %w", p.repository, p.revision, x.Version, fault.ErrInvalid)
	}
	p.archive = x.Archive
	return nil
}

// pinned is a profile with every component pinned, or why that is not possible.
func (r *Release) pinned(p margo.DeploymentProfile) (margo.DeploymentProfile, error) {
	p.Components = slices.Clone(p.Components)
	for i, c := range p.Components {
		pin := r.pins[c.Properties.Repository+":"+c.Properties.Revision]
		if pin.err != nil {
			return p, pin.err
		}
		x, _ := c.Extensions[margo.PinExtension].(map[string]any)
		x = maps.Clone(x)
		if x == nil {
			x = map[string]any{}
		}
		x["digest"] = pin.digest.String()
		c.Properties.Repository = "oci://" + pin.repository
		c.Extensions = maps.Clone(c.Extensions)
		if c.Extensions == nil {
			c.Extensions = margo.Extensions{}
		}
		c.Extensions[margo.PinExtension] = x
		p.Components[i] = c
	}
	return p, nil
}

// Version is the display name of the release.
func (r *Release) Version() string { return r.Description.Metadata.Version }
