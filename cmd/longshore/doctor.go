package main

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
)

func (p *program) doctorCommand() *cli.Command {
	return p.command("", command{
		name: "doctor", args: "HOST/PATH", min: 1, max: 1,
		usage: "test what a registry supports, and how Longshore uses it",
		about: "Pushes a small artifact to the repository, under tags that begin with longshore-doctor, requests it in every way that " +
			"devices and publishers do, and deletes it again if the registry allows that. Use a repository that nothing else uses. " +
			"The command cannot detect when unused manifests are removed, or how many requests are allowed.",
		examples: []string{"harbor.acme.example/plant/doctor", "-o json ghcr.io/acme/doctor"},
		flags:    registryFlags(),
		run:      p.doctor,
	})
}

type diagnosis struct {
	Repository string             `json:"repository"`
	Findings   []registry.Finding `json:"findings"`
}

func (r diagnosis) essence() string { return "" }
func (r diagnosis) text(w io.Writer) {
	width := 0
	for _, f := range r.Findings {
		width = max(width, len(f.Ability))
	}
	for _, f := range r.Findings {
		fmt.Fprintf(w, "  %-*s  %-3s  %s\n", width, f.Ability, f.Answer, f.Means)
	}
}

func (p *program) doctor(c *cli.Context, args []string) error {
	ref, err := registry.ParseReference(args[0])
	if err != nil {
		if _, bare := registry.ParseReference(args[0] + "/doctor"); bare == nil {
			err = fault.WithHint(fmt.Errorf("doctor: %s: it needs a repository there to push to: %w", args[0], fault.ErrInvalid),
				"name one that nothing else uses: longshore doctor "+args[0]+"/doctor")
		}
		return err
	}
	if ref.Target() != "" {
		return misused(c, "%s: name a repository only", args[0])
	}
	repo, done, err := p.open(c, ref)
	if err != nil {
		return err
	}
	defer done()
	found, err := repo.Diagnose(c.Context, p.now())
	if len(found) > 0 {
		if err := p.show(c, diagnosis{ref.Name(), found}); err != nil {
			return err
		}
	}
	return err
}
