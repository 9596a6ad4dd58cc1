package main

import (
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
)

var doctorCommand = command{
	name: "doctor", args: "HOST/PATH", min: 1, max: 1,
	usage: "test what a registry supports, and how Longshore uses it",
	about: "Pushes a small artifact to the repository, under tags that begin with longshore-doctor, requests it in every way that " +
		"devices and publishers do, and deletes it again if the registry allows that. Use a repository that nothing else uses. " +
		"The command cannot detect when unused manifests are removed, or how many requests are allowed.",
	examples: []string{"harbor.acme.example/plant/doctor", "-o json ghcr.io/acme/doctor"},
	flags:    registryFlags,
	run:      (*call).doctor,
}

type diagnosis struct {
	Repository string             `json:"repository"`
	Findings   []registry.Finding `json:"findings"`
}

func (r diagnosis) text(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range r.Findings {
		fmt.Fprintf(t, "  %s\t%-3s\t%s\n", f.Ability, f.Answer, f.Means)
	}
	_ = t.Flush() // into memory
}

func (c *call) doctor(args []string) error {
	ref, err := registry.ParseReference(args[0])
	if err != nil {
		if _, bare := registry.ParseReference(args[0] + "/doctor"); bare == nil {
			err = fault.WithHint(fmt.Errorf("doctor: %s: it needs a repository to push to: %w", args[0], fault.ErrInvalid),
				"use one that nothing else uses: longshore doctor "+args[0]+"/doctor")
		}
		return err
	}
	if ref.Target() != "" {
		return c.misused("%s: name a repository only", args[0])
	}
	repo, err := c.open(ref)
	if err != nil {
		return err
	}
	found, err := repo.Diagnose(c.Context, c.now())
	if len(found) > 0 {
		if err := c.show(diagnosis{ref.Name(), found}); err != nil {
			return err
		}
	}
	return err
}
