package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// parameterised is a document with components and parameters for them. path leads to the parameters.
type parameterised struct {
	file       string
	data       []byte
	path       []string
	profiles   []margo.DeploymentProfile
	parameters map[string]margo.Parameter
}

func packageParameters(file string, data []byte, d *margo.ApplicationDescription) parameterised {
	x := parameterised{file: file, data: data, path: []string{"parameters"}, parameters: d.Parameters}
	for _, p := range d.DeploymentProfiles {
		x.profiles = append(x.profiles, p.DeploymentProfile)
	}
	return x
}

// description is the description in a package.
func description(a *artifacts.Artifact) []byte {
	i := slices.IndexFunc(a.Blobs, func(b artifacts.Blob) bool { return b.Descriptor.MediaType == artifacts.TypeDescription })
	return a.Blobs[i].Data
}

func deploymentParameters(file string, data []byte, d *margo.ApplicationDeployment) parameterised {
	return parameterised{file, data, []string{"spec", "parameters"}, []margo.DeploymentProfile{d.Spec.DeploymentProfile}, d.Spec.Parameters}
}

// components are those that the parameters are for, of the Compose type. others are the names of components of other types.
func (x parameterised) components() (compose []margo.Component, others []string) {
	for _, p := range x.profiles {
		for _, c := range p.Components {
			if p.Type != "compose" {
				others = append(others, c.Name)
			} else if !slices.ContainsFunc(compose, func(o margo.Component) bool { return o.Name == c.Name && o.Properties == c.Properties }) {
				compose = append(compose, c)
			}
		}
	}
	return compose, others
}

// checkParameters rejects parameters that no component takes: a misspelled one would be signed and published without any effect. A
// component that is not there is reported in a note, and its parameters pass.
func (c *call) checkParameters(x parameterised) error {
	components, others := x.components()
	parameters := maps.Clone(x.parameters)
	maps.DeleteFunc(parameters, func(_ string, p margo.Parameter) bool { // of others it is not known what they take
		return slices.ContainsFunc(p.Targets, func(t margo.ParameterTarget) bool {
			return slices.ContainsFunc(others, func(name string) bool { return slices.Contains(t.Components, name) })
		})
	})
	_, untaken, err := margo.Effects(parameters, components, func(o margo.Component, variables []string) (idle, uses []string, err error) {
		archive, err := c.componentArchive(c.Context, o)
		if errors.Is(err, fault.ErrNotFound) || errors.Is(err, fault.ErrUnsupported) {
			fmt.Fprintf(c.stderr, "note: the parameters of component %s were not checked: %s\n", o.Name, fault.Summary(err))
			return nil, nil, nil
		}
		if err != nil {
			return nil, nil, fmt.Errorf("check the parameters of component %s: %w", o.Name, err)
		}
		return composefile.Unused(archive, variables)
	})
	if err != nil || len(untaken) == 0 {
		return err
	}
	root, err := strict.YAML(x.file, x.data)
	if err != nil {
		return err
	}
	at := root
	for _, key := range x.path {
		at = at.Get(key)
	}
	for _, u := range untaken {
		at.Get(u.Parameter).HintFaultf(u.Hint(), "%s", u)
	}
	return root.Err()
}

// noteParameters prints a note that the parameters of a document were not checked, if it has any.
func (c *call) noteParameters(x parameterised) {
	components, _ := x.components()
	for _, p := range x.parameters {
		for _, t := range p.Targets {
			if slices.ContainsFunc(components, func(o margo.Component) bool { return slices.Contains(t.Components, o.Name) }) {
				fmt.Fprintf(c.stderr, "note: %s: the parameters were not checked: the components are in a registry, where a push checks them\n", x.file)
				return
			}
		}
	}
}

// componentArchive is an [archiveReader].
func (c *call) componentArchive(ctx context.Context, o margo.Component) (*artifacts.Archive, error) {
	name, ok := strings.CutPrefix(o.Properties.Repository, "oci://")
	if !ok {
		return nil, fmt.Errorf("%s is no registry: %w", o.Properties.Repository, fault.ErrUnsupported)
	}
	repo, err := c.registry.OpenName(ctx, name)
	if err != nil {
		return nil, err
	}
	repo = repo.Upstream()
	pin, pinned, err := o.Pinned()
	if err != nil {
		return nil, err
	}
	if !pinned {
		desc, err := repo.Resolve(ctx, o.Properties.Revision)
		if err != nil {
			return nil, err
		}
		pin = desc.Digest
	}
	return archiveAt(ctx, repo, pin)
}
