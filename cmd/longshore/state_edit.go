package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
)

// stateEdit reads what the flags of state push name. What it returns says what becomes of a device's deployments.
func (p *program) stateEdit(c *cli.Context, client *registry.Client, device artifacts.DeviceID) (func(context.Context, []artifacts.Deployment) (fleet.Edit, error), error) {
	documents, err := p.documents(c, client)
	if err != nil {
		return nil, err
	}
	v := variables{unset: c.StringSlice("unset")}
	if v.set, err = pairs("set", c.StringSlice("set")); err != nil {
		return nil, err
	}
	for _, name := range v.unset {
		if _, both := v.set[name]; both {
			return nil, misused(c, "--set and --unset both name %s", name)
		}
	}
	add := func(*fleet.Edit, context.Context, []artifacts.Deployment) error { return nil }
	switch said := c.String("component"); {
	case said != "":
		x, err := newChosen(c, client, device, said)
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
			return v.change(ctx, e, client, d)
		}
	}
	return func(ctx context.Context, had []artifacts.Deployment) (fleet.Edit, error) {
		e := fleet.Edit{Deployments: slices.Clone(documents)}
		err := add(&e, ctx, had)
		return e, err
	}, nil
}

// documents collects those that --deployment and --bundle name.
func (p *program) documents(c *cli.Context, client *registry.Client) ([]release.Document, error) {
	var out []release.Document
	for _, file := range c.StringSlice("deployment") {
		data, err := p.readDocument(file)
		if err != nil {
			return nil, err
		}
		out = append(out, release.Document{File: file, Data: data})
	}
	for _, s := range c.StringSlice("bundle") {
		repo, target, err := openTarget(c, client, s)
		if err != nil {
			return nil, err
		}
		bundle, err := release.ReadBundle(c.Context, repo.Upstream(), target)
		if err != nil {
			return nil, err
		}
		out = append(out, bundle...)
	}
	return out, nil
}

// chosen is the component of --component.
type chosen struct {
	release.Single
	said string
	repo *registry.Repository
}

func newChosen(c *cli.Context, client *registry.Client, device artifacts.DeviceID, said string) (*chosen, error) {
	ref, err := registry.ParseReference(said)
	if err != nil {
		return nil, err
	}
	if ref.Scheme != registry.SchemeOCI {
		return nil, misused(c, "--component %s: devices fetch components from registries only", said)
	}
	// Named by the user, unlike what documents name: it may be told the credentials of the flags.
	repo, err := originOf(c.Context, client, ref)
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

// onto puts the component on a device: new, or in place of the one that the deployment of its name has. Parameters that are not
// named stay, unless the component does not take them any more.
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
		if s.Before == nil && slices.ContainsFunc(release.ComponentsOf(d), func(c release.Component) bool { return c.Repository == s.Repository }) {
			name := d.Document.Metadata.Name
			e.Notes = append(e.Notes, fmt.Sprintf("%s has this component, too, and stays as it is: to change it, say --name %s", name, name))
		}
	}
	if err := v.known(now); err != nil {
		return err
	}
	if s.Digest != "" && len(now)+len(v.set) > 0 { // without a digest it is refused below
		archive, err := archiveAt(ctx, x.repo, s.Digest)
		if err != nil {
			return err
		}
		unused, known, err := composefile.Unused(archive, slices.Sorted(maps.Keys(v.set)))
		if err == nil {
			err = notTaken(unused, known)
		}
		if err != nil {
			return err
		}
		gone, _, err := composefile.Unused(archive, slices.DeleteFunc(now, v.names))
		if err != nil {
			return err
		}
		if len(gone) > 0 {
			e.Notes = append(e.Notes, fmt.Sprintf("%s %s does not take %s any more: dropped", s.Before.Document.Metadata.Name, s.Tag, strings.Join(gone, ", ")))
		}
		s.Unset = gone
	}
	s.Parameters, s.Unset = v.set, slices.Concat(v.unset, s.Unset)
	data, err := s.Deployment()
	e.Deployments = append(e.Deployments, release.Document{File: "--component " + x.said, Data: data})
	return err
}

// variables are those of --set and --unset.
type variables struct {
	set   map[string]string
	unset []string
}

func (v variables) names(name string) bool {
	_, set := v.set[name]
	return set || slices.Contains(v.unset, name)
}

// known refuses to take away what has no value now.
func (v variables) known(now []string) error {
	var all []error
	for _, name := range v.unset {
		if slices.Contains(now, name) {
			continue
		}
		all = append(all, meaning(fmt.Errorf("--unset %s: %w: it is not set", name, fault.ErrInvalid), name, now))
	}
	hint := "no parameter is set"
	if len(now) > 0 {
		hint = "these are set: " + strings.Join(now, ", ")
	}
	return fault.WithHint(errors.Join(all...), hint)
}

// change changes the parameters of a deployment that is there. Its components stay pinned as they are.
func (v variables) change(ctx context.Context, e *fleet.Edit, client *registry.Client, d *artifacts.Deployment) error {
	name := d.Document.Metadata.Name
	if err := v.known(d.Document.Variables()); err != nil {
		return err
	}
	takers, known, err := takers(ctx, client, d.Document, slices.Sorted(maps.Keys(v.set)))
	if err != nil {
		return err
	}
	doc, err := margo.ParseApplicationDeployment("deployment "+name, d.Bytes) // a copy
	if err != nil {
		return err
	}
	var unused []string
	for _, k := range slices.Sorted(maps.Keys(v.set)) {
		if len(takers[k]) == 0 {
			unused = append(unused, k)
		} else if err := doc.SetVariable(k, v.set[k], takers[k]); err != nil {
			return fmt.Errorf("deployment %s: %w", name, err)
		}
	}
	if err := notTaken(unused, known); err != nil {
		return err
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

// takers tells which components of a deployment take each variable, and which variables they take.
func takers(ctx context.Context, client *registry.Client, d *margo.ApplicationDeployment, variables []string) (map[string][]string, []string, error) {
	profile := d.Spec.DeploymentProfile
	if profile.Type != "compose" {
		err := fmt.Errorf("deployment %s: %w: it is of type %s, and has no environment variables", d.Metadata.Name, fault.ErrUnsupported, profile.Type)
		return nil, nil, fault.WithHint(err, release.DocumentHint)
	}
	out := map[string][]string{}
	var all []string
	for _, c := range profile.Components {
		if len(variables) == 0 {
			break
		}
		pin, _, err := c.Pinned()
		if err != nil {
			return nil, nil, err
		}
		repo, err := client.OpenName(ctx, strings.TrimPrefix(c.Properties.Repository, "oci://"))
		if err != nil {
			return nil, nil, err
		}
		archive, err := archiveAt(ctx, repo.Upstream(), pin)
		if err != nil {
			return nil, nil, err
		}
		unused, known, err := composefile.Unused(archive, variables)
		if err != nil {
			return nil, nil, err
		}
		for _, v := range variables {
			if !slices.Contains(unused, v) {
				out[v] = append(out[v], c.Name)
			}
		}
		all = append(all, known...)
	}
	slices.Sort(all)
	return out, slices.Compact(all), nil
}

// theDeployment is the one of a name or an id, or the only one.
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
		return nil, fault.WithHint(fmt.Errorf("%s has %d deployments: %w: which one?", device, len(had), fault.ErrInvalid), "say --name NAME; "+there)
	case len(found) > 1:
		err := fmt.Errorf("%s has %d deployments of the name %s: %w", device, len(found), name, fault.ErrConflict)
		return nil, fault.WithHint(err, "name it by its id: longshore state show -o json shows it")
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
	data, err := repo.Blob(ctx, x.Archive, artifacts.MaxArchive)
	if err != nil {
		return nil, err
	}
	archive, err := artifacts.ReadArchive(data)
	if err != nil {
		return nil, fmt.Errorf("component %s: %w", repo.Reference(), err)
	}
	return archive, nil
}

// notTaken refuses variables that a component has no use for: a name with a slip in it would be signed, published, and have no
// effect.
func notTaken(unused, known []string) error {
	hint := "its compose.yaml refers to no variable"
	if len(known) > 0 {
		hint = "it takes " + strings.Join(known, ", ")
	}
	var all []error
	for _, name := range unused {
		all = append(all, meaning(fmt.Errorf("--set %s: %w: nothing in the component has this name", name, fault.ErrInvalid), name, known))
	}
	return fault.WithHint(errors.Join(all...), hint)
}

// meaning adds to an error about a name which of the known ones is nearest.
func meaning(err error, name string, known []string) error {
	if meant := strict.Nearest(name, known); meant != "" {
		err = fmt.Errorf("%w; did you mean %s?", err, meant)
	}
	return err
}
