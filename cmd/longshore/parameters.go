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

// variables are the environment variables that the parameters set in a component, each with its parameters.
func (x parameterised) variables(component string) map[string][]string {
	out := map[string][]string{}
	for name, p := range x.parameters {
		for _, t := range p.Targets {
			if v := strings.TrimPrefix(t.Pointer, "ENV."); slices.Contains(t.Components, component) {
				out[v] = append(out[v], name)
			}
		}
	}
	return out
}

// targeted are the Compose components that parameters are for, each once.
func (x parameterised) targeted() []margo.Component {
	var out []margo.Component
	for _, p := range x.profiles {
		for _, c := range p.Components {
			same := func(o margo.Component) bool { return o.Name == c.Name && o.Properties == c.Properties }
			if p.Type == "compose" && len(x.variables(c.Name)) > 0 && !slices.ContainsFunc(out, same) {
				out = append(out, c)
			}
		}
	}
	return out
}

// checkParameters rejects parameters that no component takes: a misspelled one would be signed and published without any effect. Components
// that cannot be read are reported in a note, and their parameters pass.
func (c *call) checkParameters(x parameterised) error {
	taken, known := map[string]bool{}, map[string][]string{} // by parameter
	for _, p := range x.profiles {
		for _, o := range p.Components {
			for _, names := range x.variables(o.Name) {
				for _, name := range names {
					taken[name] = taken[name] || p.Type != "compose" // of others it is not known what they take
				}
			}
		}
	}
	for _, o := range x.targeted() {
		variables := x.variables(o.Name)
		var unused, all []string
		archive, err := c.componentArchive(c.Context, o)
		switch {
		case c.Context.Err() != nil:
			return c.Context.Err()
		case err != nil:
			fmt.Fprintf(c.stderr, "note: the parameters of component %s were not checked: %s\n", o.Name, fault.Summary(err))
		default:
			if unused, all, err = composefile.Unused(archive, slices.Sorted(maps.Keys(variables))); err != nil {
				return err
			}
		}
		for v, names := range variables {
			for _, name := range names {
				taken[name] = taken[name] || !slices.Contains(unused, v)
				known[name] = append(known[name], all...)
			}
		}
	}
	root, err := strict.YAML(x.file, x.data)
	if err != nil {
		return err
	}
	at := root
	for _, key := range x.path {
		at = at.Get(key)
	}
	for _, name := range slices.Sorted(maps.Keys(taken)) {
		if taken[name] {
			continue
		}
		t := x.parameters[name].Targets[0]
		v := strings.TrimPrefix(t.Pointer, "ENV.")
		hint := "remove the parameter"
		if best := strict.Nearest(v, known[name]); best != "" {
			hint = "did you mean " + best + "?"
		} else if len(known[name]) > 0 {
			slices.Sort(known[name])
			hint = "it uses " + strings.Join(slices.Compact(known[name]), ", ")
		}
		at.Get(name).HintFaultf(hint, "component %s does not use the variable %s", strings.Join(t.Components, ", "), v)
	}
	return root.Err()
}

// noteParameters prints a note that the parameters of a document were not checked, if it has any.
func (c *call) noteParameters(x parameterised) {
	if len(x.targeted()) > 0 {
		fmt.Fprintf(c.stderr, "note: %s: its parameters were not checked, because its components are in a registry; pushing it checks them\n", x.file)
	}
}

// componentArchive reads the Compose Archive of a component that a document names.
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
		if errors.Is(err, fault.ErrNotFound) {
			return nil, fmt.Errorf("there is no %s:%s: %w", name, o.Properties.Revision, fault.ErrNotFound)
		}
		if err != nil {
			return nil, err
		}
		pin = desc.Digest
	}
	return archiveAt(ctx, repo, pin)
}
