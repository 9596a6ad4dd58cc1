package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/site"
)

var sitePlanCommand = command{
	name: "plan", args: "HOST/PATH DESTINATION", min: 2, max: 2,
	usage: "show what a site needs and what it lacks",
	about: "Shows everything that the devices with states in HOST/PATH need, as a tree: states, trust policies, application packages, " +
		"components and images, with the size of each, including signatures and other referrers, and how much of it DESTINATION " +
		"lacks. Nothing is written. Exit code 4 means that something that devices need does not exist.",
	examples: []string{"harbor.acme.example/plant/state registry.graz.local:5000", "--device press-07 --history 2 -o json harbor.acme.example/plant/state registry.graz.local:5000"},
	flags:    slices.Concat(siteFlags, []cmdline.Flag{platformFlag}),
	run:      (*call).sitePlan,
}

type sitePlanResult struct {
	*site.Plan
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

func (r sitePlanResult) quietText() string { return fmt.Sprint(r.Lacks) }

func (r sitePlanResult) text(w io.Writer) {
	planned := map[string]site.Planned{}
	named := map[string]bool{}
	for _, a := range r.Artifacts {
		planned[a.Key()] = a
		for _, key := range a.Names {
			named[key] = true
		}
	}
	var top branch
	shown := map[string]bool{}
	var hang func(b *branch, a site.Planned)
	hang = func(b *branch, a site.Planned) {
		name := a.Repository
		if len(a.Tags) > 0 {
			name += ":" + strings.Join(a.Tags, ",")
		}
		if shown[a.Key()] {
			b.add("%s  %s  %s  see above", a.Kind, name, printable.Digest(a.Digest))
			return
		}
		shown[a.Key()] = true
		lacks := "complete"
		if a.Lacks > 0 {
			lacks = printable.Bytes(a.Lacks) + " to copy"
		}
		if a.Referrers > 0 {
			lacks += ", with " + printable.Counted(a.Referrers, "referrer")
		}
		child := b.add("%s  %s  %s  %s, %s", a.Kind, name, printable.Digest(a.Digest), printable.Bytes(a.Bytes), lacks)
		for _, key := range a.Names {
			hang(child, planned[key])
		}
	}
	for _, a := range r.Artifacts {
		if !named[a.Key()] {
			hang(&top, a)
		}
	}
	top.write(w, "")
	rows(w, "missing", slices.Concat(r.Problems, r.Absent))
	row(w, "in all", "%s, %s to copy", printable.Bytes(r.Bytes), printable.Bytes(r.Lacks))
}

func (c *call) sitePlan(args []string) error {
	s, err := c.carry(args[0], nil, false)
	if err != nil {
		return err
	}
	m := &site.Mirror{From: s.from, To: site.Snapshots(c.destination(args[1])).OpenName, Platforms: s.platforms}
	plan, err := m.Plan(c.Context, s.closure)
	if err != nil {
		return err
	}
	if err := c.show(sitePlanResult{plan, args[0], args[1]}); err != nil {
		return err
	}
	if err := plan.Err(); err != nil {
		return fmt.Errorf("site plan: %w", err)
	}
	return nil
}
