package main

import (
	"cmp"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/site"
)

// reportsFlags make export and import copy reports instead of states.
func reportsFlags(usage string) []cmdline.Flag {
	return []cmdline.Flag{
		{Name: "reports", Value: false, Category: reportCategory, Usage: usage},
		{Name: "device-keys", Category: reportCategory, Usage: "`DIR` with public keys, DEVICE-TAG.pub: copy only reports that are signed with the device's key"},
	}
}

// handFlags configure the fleet endpoint that import hands reports in to.
var handFlags = slices.Concat([]cmdline.Flag{
	{Name: "endpoint", Category: endpointCategory, Usage: "`URL` of the fleet endpoint to hand the reports in to; it must run with --report-keys"},
}, endpointFlags[1:])

// signedReport verifies reports with the keys in a directory; nil without a directory.
func (c *call) signedReport(dir string) func(tag string, bundle []byte) error {
	if dir == "" {
		return nil
	}
	return func(tag string, bundle []byte) error {
		file := filepath.Join(dir, strings.TrimSuffix(tag, artifacts.CurrentTag(""))+".pub")
		keys, err := publicKeys([]string{file})
		if err != nil {
			return err
		}
		_, _, err = signing.ReadStatement(c.Context, bundle, keys)
		return err
	}
}

type reportsResult struct {
	Source      string               `json:"source"`
	Destination string               `json:"destination"`
	Carried     int                  `json:"carried"`
	Reports     []site.CarriedReport `json:"reports"`
}

func (r reportsResult) text(w io.Writer) {
	count := map[string]int{}
	for _, x := range r.Reports {
		count[x.Outcome]++
	}
	row(w, "carried", "%s to %s", printable.Counted(r.Carried, "report"), r.Destination)
	row(w, "", "%d already there, %d older than the existing ones", count[site.ReportThere], count[site.ReportOlder])
	for _, x := range r.Reports {
		if x.Reason != "" {
			row(w, x.Outcome, "%s: %s", x.Tag, oneLine(x.Reason))
		}
		if x.Note != "" {
			row(w, "note", "%s: %s", x.Tag, oneLine(x.Note))
		}
	}
}

// exportReports copies the reports of a site's devices to a medium.
func (c *call) exportReports(repository, medium string) error {
	check, end := c.checkMedia()
	err := site.PrepareReports(c.Context, medium, check)
	if end(); err != nil {
		return err
	}
	return c.carryReports(repository, string(registry.SchemeLayout)+":"+site.ReportsPath(medium))
}

// importReports copies the reports on a medium to a registry, or hands them in to a fleet endpoint.
func (c *call) importReports(args []string) error {
	at := c.String("endpoint")
	if len(args) > 2 || len(args) == 1 && at == "" || len(args) == 2 && c.typedEndpoint() {
		return c.misused("--reports needs one directory, and either the repository HOST/PATH of the reports or --endpoint")
	}
	source := string(registry.SchemeLayout) + ":" + site.ReportsPath(args[0])
	if len(args) == 2 {
		return c.carryReports(source, args[1])
	}
	for _, f := range budgetFlags {
		if c.IsSet(f.Name) {
			return c.misused("--%s cannot be used with --endpoint: reports are small, and handed in at once", f.Name)
		}
	}
	e, err := c.http(&fleet.Fleet{})
	if err != nil {
		return err
	}
	defer e.Close()
	from, err := c.reportsAt(source)
	if err != nil {
		return err
	}
	reports, err := site.HandReports(c.Context, from, c.signedReport(c.String("device-keys")), e.Hand)
	if err != nil && len(reports) == 0 {
		return err
	}
	shown := c.showReports(source, at, reports)
	return cmp.Or(err, shown)
}

// typedEndpoint reports whether --endpoint was typed: the environment may name one for other commands.
func (c *call) typedEndpoint() bool {
	return slices.ContainsFunc(c.args, func(s string) bool {
		name, _, _ := strings.Cut(s, "=")
		return name == "--endpoint" || name == "-endpoint"
	})
}

// reportsAt opens a repository of reports.
func (c *call) reportsAt(name string) (*registry.Repository, error) {
	ref, err := registry.ParseReference(name)
	if err != nil {
		return nil, err
	}
	if ref.Target() != "" {
		return nil, c.misused("%s: name the repository without a tag: the reports of all devices are copied", name)
	}
	repo, err := c.registry.Open(c.Context, ref)
	if err != nil {
		return nil, err
	}
	return repo.Upstream(), nil
}

func (c *call) carryReports(source, destination string) error {
	from, err := c.reportsAt(source)
	if err != nil {
		return err
	}
	to, err := c.reportsAt(destination)
	if err != nil {
		return err
	}
	save := func() error { return nil }
	if ref := to.Reference(); ref.Scheme == registry.SchemeLayout {
		if save, err = c.registry.HoldIndex(ref.Repository); err != nil {
			return err
		}
	}
	reports, err := site.CarryReports(c.Context, from, to, c.signedReport(c.String("device-keys")))
	if err = cmp.Or(err, save()); err != nil {
		return err
	}
	return c.showReports(source, destination, reports)
}

// showReports shows what became of reports; one that was left out is an error.
func (c *call) showReports(source, destination string, reports []site.CarriedReport) error {
	r := reportsResult{Source: shownReference(source), Destination: shownReference(destination), Reports: reports}
	invalid := false
	for _, x := range reports {
		if x.Outcome == site.ReportCarried {
			r.Carried++
		}
		invalid = invalid || x.Outcome == site.ReportInvalid
	}
	if len(reports) == 0 {
		return fault.WithHint(fmt.Errorf("%s: there are no reports of devices: %w", shownReference(source), fault.ErrNotFound), "set report.registry: true in agent.yaml of the devices; if it has report.repository, name that repository")
	}
	err := c.show(r)
	if err == nil && invalid {
		err = outcome.Told(outcome.Verification)
	}
	return err
}

// shownReference is a reference as the user typed it.
func shownReference(place string) string {
	return strings.TrimPrefix(place, string(registry.SchemeLayout)+":")
}
