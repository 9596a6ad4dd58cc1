package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/site"
)

var sitePruneCommand = command{
	name: "prune", args: "HOST/PATH... DESTINATION", min: 2, max: maxPrunedRepositories,
	usage: "remove from a site's registry what its devices no longer need",
	about: "Removes old generations with their signatures from the registry DESTINATION of a site, and the components, images and " +
		"application packages that only these generations name. Name every repository of states HOST/PATH whose devices use the " +
		"registry. For each device these generations stay, with everything that they name: the current one and all above it, " +
		"--history earlier ones, its predecessor, the generation that it repeats, those that other tags name, and those that " +
		"the device reports to the registry. Components, images and packages with a tag that longshore mirror does not set also " +
		"stay. The garbage collection of the registry removes blobs and images of single platforms. A mirror may run at the same " +
		"time. The command does not connect to HOST. On a terminal it asks for confirmation.",
	examples: []string{"--dry-run harbor.acme.example/plant/state registry.graz.local:5000", "--history 2 harbor.acme.example/plant/state harbor.acme.example/lab/state registry.graz.local:5000"},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "history", Value: 1, Usage: "`NUMBER` of generations before the current one to keep for each device"},
		{Name: "dry-run", Value: false, Usage: "print what would be removed, and remove nothing"},
		{Name: "policy", Usage: "trust.yaml `FILE` that names the repositories of signatures (rules[].signatures), if there are any"},
		yesFlag, hostPathsFlag,
	}, siteDeviceFlags, registryFlags),
	run: (*call).sitePrune,
}

const maxPrunedRepositories = 100

// sitePruneResult lists what is removed, or would be.
type sitePruneResult struct {
	Destination string         `json:"destination"`
	Devices     []prunedDevice `json:"devices"` // with something to report
	Looked      int            `json:"looked"`  // devices
	Stay        int            `json:"stay"`    // generations
	Artifacts   []*site.Need   `json:"artifacts"`
	Removed     site.Pruned    `json:"removed"`
	DryRun      bool           `json:"dryRun"`
}

func (r sitePruneResult) text(w io.Writer) {
	const most = 20
	pruneResult{Devices: r.Devices}.details(w, most)
	for i, n := range r.Artifacts {
		if i == most {
			row(w, "", "and %s more", printable.Counted(len(r.Artifacts)-most, "artifact"))
			break
		}
		row(w, string(n.Kind), "%s@%s", n.Repository, n.Digest)
	}
	generations, others := printable.Counted(r.Removed.States, "generation"), printable.Counted(r.Removed.Artifacts, "artifact")
	switch {
	case r.Removed.States+r.Removed.Artifacts == 0:
		row(w, "done", "nothing to remove: %s of %s stay", printable.Counted(r.Stay, "generation"), printable.Counted(r.Looked, "device"))
	case r.DryRun:
		row(w, "done", "%s and %s would be removed, %s stay; nothing has been removed", generations, others, printable.Counted(r.Stay, "generation"))
	default:
		row(w, "done", "%s and %s removed, and %d signatures and statements with them; %s stay", generations, others, r.Removed.Referrers, printable.Counted(r.Stay, "generation"))
	}
	if r.Removed.Restored > 0 {
		row(w, "restored", "%d of them, because a new state needs them", r.Removed.Restored)
	}
}

func (c *call) sitePrune(args []string) error {
	if n := c.Int("history"); n < 0 || n > maxHistory {
		return c.misused("--history %d is not from 0 to %d", n, maxHistory)
	}
	last := len(args) - 1
	states, chosen := map[string][]artifacts.DeviceID{}, 0
	for _, s := range args[:last] {
		name, o, err := c.siteOptions(s)
		if err != nil {
			return err
		}
		states[name] = o.Devices
		chosen += len(o.Devices)
	}
	elsewhere, err := c.signaturesElsewhere(c.policy)
	if err != nil {
		return err
	}
	plan, err := site.PlanPrune(c.Context, c.destination(args[last]), states, c.Int("history"), elsewhere)
	if err != nil {
		return err
	}
	r := sitePruneResult{Destination: args[last], Devices: []prunedDevice{}, Artifacts: plan.Artifacts, DryRun: c.Bool("dry-run")}
	r.Removed.Artifacts = len(plan.Artifacts)
	for _, one := range plan.States {
		r.Looked, r.Stay = r.Looked+one.Plan.Looked, r.Stay+one.Plan.Stay
		r.Devices = append(r.Devices, prunedOf(one.Repository, one.Plan)...)
		for _, d := range one.Plan.Devices {
			r.Removed.States += len(d.Remove)
		}
	}
	if chosen > 0 && r.Looked == 0 {
		return fmt.Errorf("%s: nothing was published there for the chosen devices: %w", args[last], fault.ErrNotFound)
	}
	if r.DryRun || r.Removed.States+r.Removed.Artifacts == 0 {
		return c.show(r)
	}
	if err := c.confirm(fmt.Sprintf("Remove %s and %s, and keep %s?", printable.Counted(r.Removed.States, "generation"), printable.Counted(r.Removed.Artifacts, "artifact"), printable.Counted(r.Stay, "generation"))); err != nil {
		return err
	}
	gone, err := plan.Remove(c.Context)
	if r.Removed = *gone; err != nil && gone.States+gone.Artifacts == gone.Restored {
		return err
	}
	return cmp.Or(c.show(r), err)
}
