package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
)

const retentionText = "What always stays: what a device's tag names and everything above it, what that one follows and what it repeats, what " +
	"a kept one repeats, what any other tag names, and what is not what its tag says. Signatures, attestations and statements about a " +
	"state go with it; blobs are the registry's to collect. At a terminal it is asked whether to go on. A registry that lets nobody " +
	"delete, or keeps tags, says so (exit code 2 or 6), and nothing is lost. A run that ended early is repeated."

func pruneFlags() []cli.Flag {
	return []cli.Flag{
		&cli.IntFlag{Name: "keep", Value: historyLines, Usage: "`NUMBER` of generations of each device that stay, the newest"},
		&cli.StringFlag{Name: "younger-than", Usage: "`TIME` within which what was published stays too, and what does not say when: 720h, or since 2026-10-01T00:00:00Z"},
		&cli.StringSliceFlag{Name: "verify-key", Usage: "public key `FILE` whose signatures tell when something was published, for --younger-than; may be repeated"},
		&cli.BoolFlag{Name: "dry-run", Usage: "show what would be removed, and remove nothing"},
		&cli.BoolFlag{Name: "yes", Usage: "do not ask whether to go on"},
	}
}

func (p *program) statePruneCommand() *cli.Command {
	return p.command("state", command{
		name: "prune", args: "HOST/PATH", min: 1, max: 1,
		usage: "remove old generations of devices",
		about: "Removes what is older than the newest generations of each device that has a history in the repository, or of those that " +
			"--device names. " + retentionText,
		examples: []string{"--keep 20 --dry-run harbor.acme.example/plant/state", "--keep 20 --younger-than 2160h --verify-key release.pub --device press-07 harbor.acme.example/plant/state"},
		flags: slices.Concat([]cli.Flag{
			&cli.StringSliceFlag{Name: "device", Aliases: []string{"d"}, Usage: "`ID` of a device; may be repeated; else all"},
		}, pruneFlags(), registryFlags()),
		run: p.statePrune,
	})
}

func (p *program) fleetPruneCommand() *cli.Command {
	return p.command("fleet", command{
		name: "prune", args: "[DIRECTORY]", max: 1,
		usage: "remove old generations of a fleet's devices",
		about: "Removes what is older than the newest generations of each device that the files name. What devices have that the files " +
			"no longer name stays: longshore state prune is for these. " + retentionText,
		examples: []string{"--keep 20 --dry-run plant", "--keep 20 --select site=graz plant"},
		flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "select", Usage: "`SELECTOR` of devices, as in fleet.yaml: site=graz, device=press-*; else all"},
		}, pruneFlags(), registryFlags()),
		run: p.fleetPrune,
	})
}

// pruneResult is what is removed, or would be.
type pruneResult struct {
	Devices   []prunedDevice `json:"devices"` // that something is to be told of
	Looked    int            `json:"looked"`  // devices
	Removed   int            `json:"removed"` // generations
	Referrers int            `json:"referrers"`
	Stay      int            `json:"stay"`
	DryRun    bool           `json:"dryRun"`
}

type prunedDevice struct {
	Repository string        `json:"repository"`
	Tag        string        `json:"tag"`
	Remove     []release.Old `json:"remove"`
	Stays      []release.Old `json:"stays"` // older than the newest, and needed
}

func (r pruneResult) essence() string { return "" }

func (r pruneResult) text(w io.Writer) {
	const most = 20
	r.details(w, most)
	generations := count(r.Removed, "generation")
	switch {
	case r.Removed == 0:
		row(w, "done", "nothing to remove: %s of %s stay", count(r.Stay, "generation"), count(r.Looked, "device"))
	case r.DryRun:
		row(w, "done", "%s of %s would be removed, %d stay; nothing has been removed", generations, count(r.Looked, "device"), r.Stay)
	default:
		row(w, "done", "%s of %s removed, and %d signatures and statements with them; %d stay", generations, count(r.Looked, "device"), r.Referrers, r.Stay)
	}
}

// details lists what goes of which device, and what stays and why.
func (r pruneResult) details(w io.Writer, most int) {
	for i, d := range r.Devices {
		if i == most {
			row(w, "", "and %s more", count(len(r.Devices)-most, "device"))
			return
		}
		if n := len(d.Remove); n > 0 {
			row(w, "remove", "%s:%s  %s", d.Repository, d.Tag, numbers(d.Remove))
		}
		for _, s := range d.Stays {
			row(w, "stays", "%s:%s  generation %d: %s", d.Repository, d.Tag, s.Generation, s.Why)
		}
	}
}

// numbers writes generations: "generations 1 to 4, 6".
func numbers(all []release.Old) string {
	out := ""
	for i := 0; i < len(all); {
		j := i
		for j+1 < len(all) && all[j+1].Generation == all[j].Generation+1 {
			j++
		}
		if out != "" {
			out += ", "
		}
		if out += fmt.Sprint(all[i].Generation); j > i {
			out += fmt.Sprintf(" to %d", all[j].Generation)
		}
		i = j + 1
	}
	if len(all) == 1 {
		return "generation " + out
	}
	return "generations " + out
}

func (p *program) statePrune(c *cli.Context, args []string) error {
	ref, err := registry.ParseReference(args[0])
	if err != nil {
		return err
	}
	if ref.Target() != "" {
		return outcome.Usagef("state prune", "state prune: %s: name the repository only", args[0])
	}
	var devices []artifacts.DeviceID
	for _, s := range c.StringSlice("device") {
		id, err := artifacts.ParseDeviceID(s)
		if err != nil {
			return err
		}
		devices = append(devices, id)
	}
	client, err := p.client(c)
	if err != nil {
		return err
	}
	defer client.Close()
	if _, err := client.Open(c.Context, ref); err != nil {
		return err
	}
	return p.prune(c, client, "state prune", map[string][]artifacts.DeviceID{ref.Name(): devices})
}

func (p *program) fleetPrune(c *cli.Context, args []string) error {
	f, err := readFleet(fleetDirectory(args))
	if err != nil {
		return err
	}
	choose, err := selected(c)
	if err != nil {
		return err
	}
	client, err := p.client(c)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := openFleet(c.Context, client, f); err != nil {
		return err
	}
	at := f.Repositories(choose)
	if len(at) == 0 && choose != nil {
		return fmt.Errorf("--select %s: %w: no device of the fleet matches", c.String("select"), fault.ErrNotFound)
	}
	return p.prune(c, client, "fleet prune", at)
}

// pruned is what is to be done in one repository.
type pruned struct {
	repo, signatures *registry.Repository
	plan             *release.Pruning
}

// prune plans, shows and does it, in each repository. No devices: all that there are.
func (p *program) prune(c *cli.Context, client *registry.Client, command string, at map[string][]artifacts.DeviceID) error {
	var all []pruned
	r := pruneResult{Devices: []prunedDevice{}, DryRun: c.Bool("dry-run")}
	for _, name := range slices.Sorted(maps.Keys(at)) {
		one, err := p.planPrune(c, client, command, name, at[name])
		if errors.Is(err, fault.ErrNotFound) && command == "fleet prune" {
			continue // nothing was published there yet
		}
		if err != nil {
			return err
		}
		all = append(all, one)
		r.Looked, r.Stay = r.Looked+one.plan.Looked, r.Stay+one.plan.Stay
		for _, d := range one.plan.Devices {
			shown := prunedDevice{name, d.Tag, d.Remove, d.Stays}
			if shown.Remove == nil {
				shown.Remove = []release.Old{}
			}
			if shown.Stays == nil {
				shown.Stays = []release.Old{}
			}
			r.Devices = append(r.Devices, shown)
			r.Removed += len(d.Remove)
		}
	}
	if r.DryRun || r.Removed == 0 {
		return p.show(c, r)
	}
	if err := p.confirm(c, fmt.Sprintf("Remove %s of %s, and keep %d?", count(r.Removed, "generation"), count(r.Looked, "device"), r.Stay)); err != nil {
		return err
	}
	r.Removed = 0
	for _, one := range all {
		var signatures release.Remover
		if one.signatures != nil {
			signatures = one.signatures
		}
		gone, err := one.plan.Remove(c.Context, one.repo, signatures, nil)
		if r.Removed, r.Referrers = r.Removed+gone.States, r.Referrers+gone.Referrers; err != nil {
			if r.Removed == 0 {
				return err
			}
			return cmp.Or(err, p.show(c, r))
		}
	}
	return p.show(c, r)
}

// planPrune plans for one repository, as the registry itself has it: a mirror may show what is older.
func (p *program) planPrune(c *cli.Context, client *registry.Client, command, name string, devices []artifacts.DeviceID) (pruned, error) {
	repo, err := client.OpenName(c.Context, name)
	if err != nil {
		return pruned{}, err
	}
	one := pruned{repo: repo.Upstream()}
	if place := p.getenv(signatureRepository); place != "" {
		if one.signatures, err = besides(c.Context, repo, place); err != nil {
			return one, err
		}
	}
	o := release.Retention{Keep: c.Int("keep")}
	if o.Keep < 1 {
		return one, outcome.Usagef(command, "--keep %d: at least 1 generation has to stay", o.Keep)
	}
	if devices != nil {
		tags := map[string]bool{}
		for _, d := range devices {
			tags[d.Tag()] = true
		}
		o.Devices = func(tag string) bool { return tags[tag] }
	}
	if s := c.String("younger-than"); s != "" {
		if o.Younger, err = p.past(command, "younger-than", s); err != nil {
			return one, err
		}
		when, err := p.publishedAt(c, client, nil)
		if err != nil {
			return one, err
		}
		o.When = func(ctx context.Context, d digest.Digest) (time.Time, error) { return when(ctx, name, d) }
	}
	one.plan, err = release.PlanPrune(c.Context, one.repo, o)
	return one, err
}
