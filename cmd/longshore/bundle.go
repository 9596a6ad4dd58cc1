package main

import (
	"io"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/opencontainers/go-digest"
	"github.com/urfave/cli/v2"
)

func (p *program) bundlePushCommand() *cli.Command {
	return p.command("bundle", command{
		name: "push", args: "FILE... HOST/PATH:VERSION", min: 2, max: -1,
		usage: "push ApplicationDeployments as one bundle",
		about: "Checks the documents, packs them byte for byte into one reproducible archive, and pushes it. Use it in a state with " +
			"longshore state push --bundle.",
		examples: []string{
			"line-monitor.yaml vision.yaml harbor.acme.example/plant/bundles/press:2026.11",
			"--key release.key deployments/*.yaml harbor.acme.example/plant/bundles/press:2026.12",
		},
		flags: slices.Concat([]cli.Flag{overwriteFlag(), dirtyFlag(), dryRunFlag(), annotationFlag()}, signFlags(), registryFlags()),
		run:   p.bundlePush,
	})
}

type bundleResult struct {
	pushed
	Deployments []deploymentInfo `json:"deployments"`
}

type deploymentInfo struct {
	ID         string              `json:"id"`
	Name       string              `json:"name"`
	Digest     digest.Digest       `json:"digest"`
	Components []release.Component `json:"components"`
}

func describeDeployment(d artifacts.Deployment) deploymentInfo {
	return deploymentInfo{ID: d.Document.ID, Name: d.Document.Metadata.Name, Digest: d.Digest, Components: release.ComponentsOf(d)}
}

func (r bundleResult) text(w io.Writer) {
	label := "packed"
	for _, d := range r.Deployments {
		row(w, label, "%s %s", d.Name, versions(d.Components))
		label = ""
	}
	r.pushed.text(w)
}

// versions says which version a deployment has: of its one component, or of each.
func versions(all []release.Component) string {
	var out []string
	for _, c := range all {
		if len(all) == 1 {
			return c.Version
		}
		out = append(out, c.Name+" "+c.Version)
	}
	return strings.Join(out, ", ")
}

func (p *program) bundlePush(c *cli.Context, args []string) error {
	ref, err := tagged(args[len(args)-1], "bundle")
	if err != nil {
		return err
	}
	annotations, err := pairs("annotation", c.StringSlice("annotation"))
	if err != nil {
		return err
	}
	documents := args[:len(args)-1]
	o := artifacts.BundleOptions{Name: lastElement(ref), Version: ref.Tag}
	if o.Annotations, err = p.origin(c, annotations, documentsOf(documents)...); err != nil {
		return err
	}
	if o.Created, err = p.created(); err != nil {
		return err
	}
	r := bundleResult{Deployments: []deploymentInfo{}}
	for _, file := range documents {
		data, err := p.readDocument(file)
		if err != nil {
			return err
		}
		d, err := artifacts.ReadDeployment(file, data)
		if err != nil {
			return err
		}
		o.Deployments = append(o.Deployments, data)
		r.Deployments = append(r.Deployments, describeDeployment(*d))
	}
	a, err := artifacts.PackBundleArtifact(o)
	if err != nil {
		return err
	}
	s, err := p.session(c, nil, false)
	if err != nil {
		return err
	}
	defer s.Close()
	repo, err := s.Open(c.Context, ref)
	if err != nil {
		return err
	}
	if r.pushed, err = publish(c, repo, a, s.signer, once(c, ref.Tag)); err != nil {
		return err
	}
	return p.show(c, r)
}
