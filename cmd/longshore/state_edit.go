package main

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

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
)

// stateEdit returns how the flags of state push change a device's deployments.
func (c *call) stateEdit(device artifacts.DeviceID) (func(context.Context, []artifacts.Deployment) (fleet.Edit, error), error) {
	documents, err := c.documents()
	if err != nil {
		return nil, err
	}
	v := variables{unset: c.StringSlice("unset")}
	if v.set, err = c.pairs("set"); err != nil {
		return nil, err
	}
	for _, name := range v.unset {
		if _, both := v.set[name]; both {
			return nil, c.misused("--set and --unset both name %s", name)
		}
	}
	add := func(*fleet.Edit, context.Context, []artifacts.Deployment) error { return nil }
	switch said := c.String("component"); {
	case said != "":
		x, err := c.newChosen(device, said)
		if err != nil {
			return nil, err
		}
		add = func(e *fleet.Edit, ctx context.Context, had []artifacts.Deployment) error {
			return x.onto(ctx, e, had, v)
		}
	case len(v.set)+len(v.unset) > 0:
		add = func(e *fleet.Edit, ctx context.Context, had []artifacts.Deployment) error {
			d, err := theDeployment(had, c.String("name"), device)
			if err != nil {
				return err
			}
			return v.change(ctx, e, c.componentArchive, d)
		}
	}
	if len(documents) == 0 && c.String("component") == "" && len(v.set)+len(v.unset) == 0 && !c.Bool("empty") { // --windows alone
		add = func(_ *fleet.Edit, _ context.Context, had []artifacts.Deployment) error {
			if len(had) > 0 {
				return nil
			}
			return fault.WithHint(fmt.Errorf("%s runs nothing: %w", device, fault.ErrNotFound), "publish something with --component or --deployment, too; or an empty state with --empty")
		}
	}
	return func(ctx context.Context, had []artifacts.Deployment) (fleet.Edit, error) {
		e := fleet.Edit{Deployments: slices.Clone(documents)}
		err := add(&e, ctx, had)
		return e, err
	}, nil
}

// documents reads those of --deployment and --bundle.
func (c *call) documents() ([]release.Document, error) {
	var out []release.Document
	for _, file := range c.StringSlice("deployment") {
		data, err := c.readDocument(file)
		if err != nil {
			return nil, err
		}
		out = append(out, release.Document{File: file, Data: data})
	}
	for _, s := range c.StringSlice("bundle") {
		repo, target, err := c.openTarget(s)
		if err != nil {
			return nil, err
		}
		bundle, err := release.ReadBundle(c.Context, repo.Upstream(), target)
		if err != nil {
			return nil, err
		}
		out = append(out, bundle...)
	}
	for _, x := range out {
		d, err := margo.ParseApplicationDeployment(x.File, x.Data)
		if err != nil {
			return nil, err
		}
		if err := c.checkParameters(deploymentParameters(x.File, x.Data, d)); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// chosen is the component of --component.
type chosen struct {
	release.Single
	said string
	repo *registry.Repository
}

func (c *call) newChosen(device artifacts.DeviceID, said string) (*chosen, error) {
	ref, err := registry.ParseReference(said)
	if err != nil {
		return nil, err
	}
	if ref.Scheme != registry.SchemeOCI {
		return nil, c.misused("--component %s: devices fetch components from registries only", said)
	}
	// The user named it, so it may get the credentials of the flags; repositories that documents name may not.
	repo, err := c.upstream(ref)
	if err != nil {
		return nil, err
	}
	if ref.Tag != "" && ref.Digest == "" {
		desc, err := repo.Resolve(c.Context, ref.Tag)
		if err != nil {
			return nil, err
		}
		ref.Digest = desc.Digest
	}
	return &chosen{said: said, repo: repo, Single: release.Single{
		Device: device, Repository: ref.Name(), Tag: ref.Tag, Digest: ref.Digest, Name: c.String("name"), Namespace: c.String("namespace"),
	}}, nil
}

// onto deploys the component, or replaces that of the deployment with its name. Other parameters stay, unless the component no
// longer uses them.
func (x *chosen) onto(ctx context.Context, e *fleet.Edit, had []artifacts.Deployment, v variables) error {
	s := x.Single
	id, err := s.ID()
	if err != nil {
		return err
	}
	var now []string
	if i := slices.IndexFunc(had, func(d artifacts.Deployment) bool { return strings.EqualFold(d.Document.ID, id) }); i >= 0 {
		s.Before = &had[i]
		now = s.Before.Document.Variables()
	}
	for _, d := range had {
		if s.Before == nil && slices.ContainsFunc(d.Components(), func(c artifacts.DeployedComponent) bool { return c.Repository == s.Repository }) {
			name := d.Document.Metadata.Name
			e.Notes = append(e.Notes, fmt.Sprintf("%s has the same component and is unchanged: to change it, use --name %s", name, name))
		}
	}
	if err := v.known(now); err != nil {
		return err
	}
	if s.Digest != "" && len(now)+len(v.set) > 0 { // without a digest it is rejected below
		archive, err := archiveAt(ctx, x.repo, s.Digest)
		if err != nil {
			return err
		}
		only := []margo.Component{{Name: path.Base(s.Repository)}}
		_, untaken, err := margo.Effects(v.parameters(only), only, func(_ margo.Component, names []string) (idle, uses []string, err error) {
			return composefile.Unused(archive, names)
		})
		if err == nil {
			err = notTaken(untaken)
		}
		if err != nil {
			return err
		}
		gone, _, err := composefile.Unused(archive, slices.DeleteFunc(now, v.names))
		if err != nil {
			return err
		}
		if len(gone) > 0 {
			e.Notes = append(e.Notes, fmt.Sprintf("%s %s no longer uses %s: removed", s.Before.Document.Metadata.Name, s.Tag, strings.Join(gone, ", ")))
		}
		s.Unset = gone
	}
	s.Parameters, s.Unset = v.set, slices.Concat(v.unset, s.Unset)
	data, err := s.Deployment()
	e.Deployments = append(e.Deployments, release.Document{File: "--component " + x.said, Data: data})
	return err
}

// variables are the variables of --set and --unset.
type variables struct {
	set   map[string]string
	unset []string
}

func (v variables) names(name string) bool {
	_, set := v.set[name]
	return set || slices.Contains(v.unset, name)
}

// parameters are those of --set, for all components.
func (v variables) parameters(components []margo.Component) map[string]margo.Parameter {
	var names []string
	for _, c := range components {
		names = append(names, c.Name)
	}
	out := map[string]margo.Parameter{}
	for name, value := range v.set {
		out[name] = margo.Parameter{Value: value, Targets: []margo.ParameterTarget{{Pointer: name, Components: names}}}
	}
	return out
}

// known rejects --unset of variables that have no value.
func (v variables) known(now []string) error {
	hint := "no parameter is set"
	if len(now) > 0 {
		hint = "set are: " + strings.Join(now, ", ")
	}
	var all []error
	for _, name := range v.unset {
		if slices.Contains(now, name) {
			continue
		}
		all = append(all, fault.WithHint(meaning(fmt.Errorf("--unset %s: %w: it is not set", name, fault.ErrInvalid), name, now), hint))
	}
	return errors.Join(all...)
}

// change changes the parameters of an existing deployment, whose components stay pinned.
func (v variables) change(ctx context.Context, e *fleet.Edit, read archiveReader, d *artifacts.Deployment) error {
	name := d.Document.Metadata.Name
	if err := v.known(d.Document.Variables()); err != nil {
		return err
	}
	takers, untaken, err := v.takers(ctx, read, d.Document)
	if err != nil {
		return err
	}
	doc, err := margo.ParseApplicationDeployment("deployment "+name, d.Bytes) // a copy
	if err != nil {
		return err
	}
	if err := notTaken(untaken); err != nil {
		return err
	}
	for _, k := range slices.Sorted(maps.Keys(v.set)) {
		if err := doc.SetVariable(k, v.set[k], takers[k]); err != nil {
			return fmt.Errorf("deployment %s: %w", name, err)
		}
	}
	for _, k := range v.unset {
		doc.UnsetVariable(k)
	}
	data, err := doc.Encode()
	if err != nil {
		return fault.WithHint(err, release.DocumentHint)
	}
	e.Deployments = append(e.Deployments, release.Document{File: "deployment " + name, Data: data})
	return nil
}

// archiveReader reads the Compose Archive of a component that a document names.
type archiveReader func(context.Context, margo.Component) (*artifacts.Archive, error)

// takers are the components of a deployment that take each variable of --set, and the variables that none takes.
func (v variables) takers(ctx context.Context, read archiveReader, d *margo.ApplicationDeployment) (map[string][]string, []margo.Untaken, error) {
	profile := d.Spec.DeploymentProfile
	if profile.Type != "compose" {
		err := fmt.Errorf("deployment %s: %w: its type is %s, which has no environment variables", d.Metadata.Name, fault.ErrUnsupported, profile.Type)
		return nil, nil, fault.WithHint(err, release.DocumentHint)
	}
	return margo.Effects(v.parameters(profile.Components), profile.Components, func(c margo.Component, names []string) (idle, uses []string, err error) {
		archive, err := read(ctx, c)
		if err != nil {
			return nil, nil, err
		}
		return composefile.Unused(archive, names)
	})
}

// theDeployment finds a deployment by its name or id; without a name it returns the only one.
func theDeployment(had []artifacts.Deployment, name string, device artifacts.DeviceID) (*artifacts.Deployment, error) {
	var names []string
	var found []*artifacts.Deployment
	for i, d := range had {
		names = append(names, d.Document.Metadata.Name)
		if name == "" || d.Document.Metadata.Name == name || strings.EqualFold(d.Document.ID, name) {
			found = append(found, &had[i])
		}
	}
	slices.Sort(names)
	there := "it has " + strings.Join(names, ", ")
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(had) == 0:
		return nil, fault.WithHint(fmt.Errorf("%s runs nothing: %w", device, fault.ErrNotFound), "publish something with --component or --deployment")
	case name == "":
		return nil, fault.WithHint(fmt.Errorf("%s has %d deployments: %w: name one", device, len(had), fault.ErrInvalid), "use --name NAME; "+there)
	case len(found) > 1:
		err := fmt.Errorf("%s has %d deployments with the name %s: %w", device, len(found), name, fault.ErrConflict)
		return nil, fault.WithHint(err, "name its id: longshore state show -o json shows it")
	}
	return nil, fault.WithHint(meaning(fmt.Errorf("%s has no deployment %s: %w", device, name, fault.ErrNotFound), name, names), there)
}

// archiveAt reads the archive of a component.
func archiveAt(ctx context.Context, repo *registry.Repository, component digest.Digest) (*artifacts.Archive, error) {
	_, manifest, err := repo.Manifest(ctx, component)
	if err != nil {
		return nil, err
	}
	x, err := artifacts.OpenComponent(manifest)
	if err != nil {
		return nil, fmt.Errorf("component %s: %w", repo.Reference(), err)
	}
	archive, err := x.Read(func(d ocispec.Descriptor) ([]byte, error) { return repo.Blob(ctx, d, artifacts.MaxArchive) })
	if err != nil {
		return nil, fmt.Errorf("component %s: %w", repo.Reference(), err)
	}
	return archive, nil
}

// notTaken rejects variables of --set that no component uses: a misspelled name would be published without any effect.
func notTaken(untaken []margo.Untaken) error {
	var all []error
	for _, u := range untaken {
		all = append(all, fault.WithHint(fmt.Errorf("--set %s: %w: %s", u.Parameter, fault.ErrInvalid, u), u.Hint()))
	}
	return errors.Join(all...)
}

// meaning adds the most similar known name to an error about a name.
func meaning(err error, name string, known []string) error {
	if meant := strict.Nearest(name, known); meant != "" {
		err = fmt.Errorf("%w; did you mean %s?", err, meant)
	}
	return err
}
