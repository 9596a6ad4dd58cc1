package main

import (
	"io"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"

	"github.com/longshore-dev/longshore/signing/audit"
)

var bundlePushCommand = command{
	name: "push", args: "FILE... HOST/PATH:VERSION", min: 2, max: -1,
	usage: "push a set of ApplicationDeployments",
	about: "Checks the documents, packs them unchanged into one archive, and pushes it. The same documents give the same digest. " +
		"Publish them to a device with longshore state push --bundle.",
	examples: []string{
		"line-monitor.yaml vision.yaml harbor.acme.example/plant/bundles/press:2026.11",
		"--key release.key deployments/*.yaml harbor.acme.example/plant/bundles/press:2026.12",
	},
	flags: slices.Concat([]cmdline.Flag{overwriteFlag, dirtyFlag, dryRunFlag, annotationFlag}, signFlags, registryFlags),
	run:   (*call).bundlePush,
}

type bundleResult struct {
	pushed
	Deployments []audit.Deployment `json:"deployments"`
}

func (r bundleResult) text(w io.Writer) {
	label := "packed"
	for _, d := range r.Deployments {
		row(w, label, "%s %s", d.Name, versions(d.Components))
		label = ""
	}
	r.pushed.text(w)
}

// versions lists the versions of a deployment's components.
func versions(all []artifacts.DeployedComponent) string {
	var out []string
	for _, c := range all {
		if len(all) == 1 {
			return c.Version
		}
		out = append(out, c.Name+" "+c.Version)
	}
	return strings.Join(out, ", ")
}

func (c *call) bundlePush(args []string) error {
	ref, err := tagged(args[len(args)-1], "bundle")
	if err != nil {
		return err
	}
	documents := args[:len(args)-1]
	o := artifacts.BundleOptions{Name: lastElement(ref), Version: ref.Tag}
	if o.Annotations, err = c.origin(false, documentsOf(documents)...); err != nil {
		return err
	}
	if o.Created, err = c.created(); err != nil {
		return err
	}
	var all []artifacts.Deployment
	for _, file := range documents {
		data, err := c.readDocument(file)
		if err != nil {
			return err
		}
		d, err := artifacts.ReadDeployment(file, data)
		if err != nil {
			return err
		}
		if err := c.checkParameters(deploymentParameters(file, data, d.Document)); err != nil {
			return err
		}
		o.Deployments = append(o.Deployments, data)
		all = append(all, *d)
	}
	r := bundleResult{Deployments: audit.Deployments(all)}
	a, err := artifacts.PackBundleArtifact(o)
	if err != nil {
		return err
	}
	if err := c.openSigner(false); err != nil {
		return err
	}
	repo, err := c.open(ref)
	if err != nil {
		return err
	}
	if r.pushed, err = c.publish(repo, a, c.once(ref.Tag)); err != nil {
		return err
	}
	return c.show(r)
}
