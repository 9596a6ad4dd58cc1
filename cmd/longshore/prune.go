package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/rollout"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
)

const retentionText = "These generations always stay: the one that a device's tag names and all above it, its predecessor, the generations that these " +
	"repeat, those that a rollout may restore, those that another tag names, and those that do not match their tag. Signatures, attestations and freshness " +
	"statements of a removed state are removed with it; the garbage collection of the registry removes blobs. On a terminal the command asks for " +
	"confirmation. If the registry does not allow deletion, the exit code is 2, and if it keeps tags, 6; then nothing is lost. Repeat an interrupted run."

var pruneFlags = []cmdline.Flag{
	{Name: "keep", Value: historyLines, Usage: "`NUMBER` of newest generations to keep for each device"},
	{Name: "younger-than", Usage: "also keep generations published within this `TIME`, and those without a time: 30d, or since 2026-10-01T00:00:00Z"},
	{Name: "verify-key", Value: []string(nil), Usage: "public key `FILE` whose signature times count for --younger-than; a rollout must be signed with one of these keys; may be repeated"},
	{Name: "dry-run", Value: false, Usage: "print what would be removed, and remove nothing"},
	yesFlag,
}

var statePruneCommand = command{
	name: "prune", args: "HOST/PATH", min: 1, max: 1,
	usage: "remove old generations of devices",
	about: "Removes all but the newest --keep generations of each device in the repository, or of those of --device. The command looks " +
		"for rollouts beside the repository and above it, where fleets store them. It does not read device reports, which fleet " +
		"prune does. It stops at a rollout that no --verify-key has signed. If --fleet names your fleets and the rollout is of " +
		"another one, its devices keep all generations instead. " + retentionText,
	examples: []string{"--keep 20 --dry-run harbor.acme.example/plant/state", "--keep 20 --younger-than 90d --verify-key release.pub --device press-07 harbor.acme.example/plant/state"},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "device", Value: []string(nil), Alias: "d", Usage: "`ID` of a device; may be repeated; default: all", Offer: offerDevices},
		{Name: "fleet", Value: []string(nil), Usage: "`NAME` of your fleet; rollouts of other fleets need no signature by a --verify-key, and their devices keep all generations; may be repeated"},
	}, pruneFlags, registryFlags),
	run: (*call).statePrune,
}

var fleetPruneCommand = command{
	name: "prune", args: "[DIRECTORY]", max: 1,
	usage: "remove old generations of a fleet's devices",
	about: "Removes all but the newest --keep generations of each device in the files. For devices that the files no longer name, use " +
		"longshore state prune. With a fleet endpoint, the generations that devices report also stay, with their predecessors " +
		"and the generations that they repeat. " + retentionText,
	examples: []string{"--keep 20 --dry-run plant", "--keep 20 --select site=graz --endpoint https://fleet.acme.example plant"},
	flags:    slices.Concat([]cmdline.Flag{selectFlag}, pruneFlags, endpointFlags, registryFlags),
	run:      (*call).fleetPrune,
}

// pruneResult lists what is removed, or would be.
type pruneResult struct {
	Devices   []prunedDevice `json:"devices"` // with something to report
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
	Stays      []release.Old `json:"stays"` // old and still needed
}

// prunedOf describes the devices of a plan for one repository.
func prunedOf(repository string, plan *release.Pruning) (out []prunedDevice) {
	for _, d := range plan.Devices {
		out = append(out, prunedDevice{repository, d.Tag, append([]release.Old{}, d.Remove...), append([]release.Old{}, d.Stays...)})
	}
	return out
}

func (r pruneResult) text(w io.Writer) {
	const most = 20
	r.details(w, most)
	generations := printable.Counted(r.Removed, "generation")
	switch {
	case r.Removed == 0:
		row(w, "done", "nothing to remove: %s of %s stay", printable.Counted(r.Stay, "generation"), printable.Counted(r.Looked, "device"))
	case r.DryRun:
		row(w, "done", "%s of %s would be removed, %d stay; nothing has been removed", generations, printable.Counted(r.Looked, "device"), r.Stay)
	default:
		row(w, "done", "%s of %s removed, and %d signatures and statements with them; %d stay", generations, printable.Counted(r.Looked, "device"), r.Referrers, r.Stay)
	}
}

// details lists what is removed of each device, and what stays and why.
func (r pruneResult) details(w io.Writer, most int) {
	for i, d := range r.Devices {
		if i == most {
			row(w, "", "and %s more", printable.Counted(len(r.Devices)-most, "device"))
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

// numbers formats generations: "generations 1 to 4, 6".
func numbers(all []release.Old) string {
	of := make([]uint64, len(all))
	for i, x := range all {
		of[i] = x.Generation
	}
	if len(all) == 1 {
		return "generation " + spans(of)
	}
	return "generations " + spans(of)
}

// spans formats sorted numbers: "1 to 4, 6".
func spans(all []uint64) string {
	out := ""
	for i := 0; i < len(all); {
		j := i
		for j+1 < len(all) && all[j+1] == all[j]+1 {
			j++
		}
		if out != "" {
			out += ", "
		}
		if out += fmt.Sprint(all[i]); j > i {
			out += fmt.Sprintf(" to %d", all[j])
		}
		i = j + 1
	}
	return out
}

func (c *call) statePrune(args []string) error {
	ref, err := c.repositoryOnly(args[0])
	if err != nil {
		return err
	}
	if ref.Scheme == registry.SchemeLayout {
		return c.misused("%s: a layout keeps all its states; name a repository in a registry, HOST/PATH", args[0])
	}
	keep, err := c.retention()
	if err != nil {
		return err
	}
	devices, err := c.deviceIDs()
	if err != nil {
		return err
	}
	if _, err := c.registry.Open(c.Context, ref); err != nil {
		return err
	}
	stay := needs{}
	if err := c.rolloutsAround(ref.Name(), stay); err != nil {
		return err
	}
	return c.prune("state prune", map[string][]artifacts.DeviceID{ref.Name(): devices}, keep, stay)
}

// needs are states that stay at any age, by repository and device.
type needs map[string]map[artifacts.DeviceID][]release.Need

func (n needs) add(repository string, device artifacts.DeviceID, need release.Need) {
	if n[repository] == nil {
		n[repository] = map[artifacts.DeviceID][]release.Need{}
	}
	n[repository][device] = append(n[repository][device], need)
}

// rollout adds what a rollout may publish or restore.
func (n needs) rollout(ctx context.Context, l rollout.Store) error {
	r, err := l.Needs(ctx)
	if err != nil || r == nil {
		return err
	}
	for _, t := range r.Targets {
		for _, d := range []digest.Digest{t.Former, t.Digest} {
			if d != "" {
				n.add(t.Repository, t.Device, release.Need{Digest: d, Why: fmt.Sprintf("rollout %d of %s, which is %s, may need it", r.Number, r.Fleet, r.Phase)})
			}
		}
	}
	return nil
}

// reported adds the generations that devices report.
func (n needs) reported(f *fleet.Fleet, seen map[artifacts.DeviceID]*rollout.DeviceReport) {
	for _, d := range f.Devices {
		at, _ := f.Repository(d) // Read has checked it
		for _, g := range seen[d.ID].Generations() {
			n.add(at, d.ID, release.Need{Generation: g, Why: "the device reports it"})
		}
	}
}

// rolloutsAround adds what rollouts need. It looks where a fleet with states in the repository stores them.
func (c *call) rolloutsAround(repository string, stay needs) error {
	o, err := c.fleetOptions()
	if err != nil {
		return err
	}
	for at := path.Dir(repository); at != "."; at = path.Dir(at) {
		l := rollout.Store{Registry: at, From: registry.Upstream{Client: c.registry}, Verify: o.Verify}
		fleets, err := l.Fleets(c.Context)
		if errors.Is(err, fault.ErrDenied) || errors.Is(err, fault.ErrUnauthenticated) { // many registries answer this if nothing is there
			fmt.Fprintf(c.stderr, "note: rollouts in %s could not be read, so their needs are unknown: %v\n", l.Repository(), err)
			continue
		}
		if errors.Is(err, fault.ErrInvalid) && !strings.Contains(at, "/") {
			continue // such a repository cannot be directly below this host
		}
		if err != nil {
			return err
		}
		for _, l.Fleet = range fleets {
			err := stay.rollout(c.Context, l)
			if fault.Distrusted(err) {
				err = c.foreign(l, stay, err)
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// foreign makes the devices of an untrusted rollout keep everything, if --fleet shows that it is of another fleet.
func (c *call) foreign(l rollout.Store, stay needs, untrusted error) error {
	mine := c.StringSlice("fleet")
	if len(mine) == 0 {
		return fault.WithHint(untrusted, "if you signed it with another key, add --verify-key FILE; if it is not your fleet, name your fleets with --fleet NAME")
	}
	if slices.Contains(mine, l.Fleet) {
		return untrusted
	}
	r, err := l.Unverified(c.Context)
	if err != nil || r == nil {
		return cmp.Or(err, untrusted)
	}
	for _, t := range r.Targets {
		stay.add(t.Repository, t.Device, release.Need{All: true, Why: "rollout " + fmt.Sprint(r.Number) + " of " + l.Fleet + ", which none of your keys has signed, may need it"})
	}
	fmt.Fprintf(c.stderr, "note: rollout %d of %s is not signed by any of your keys: %s may need all generations\n", r.Number, l.Fleet, printable.Counted(len(r.Targets), "device"))
	return nil
}

func (c *call) fleetPrune(args []string) error {
	keep, err := c.retention()
	if err != nil {
		return err
	}
	f, err := readFleet(fleetDirectory(args))
	if err != nil {
		return err
	}
	o, err := c.fleetOptions()
	if err != nil {
		return err
	}
	at := f.Repositories(o.Devices)
	if len(at) == 0 && o.Devices != nil {
		return c.noneSelected()
	}
	stay := needs{}
	if err := stay.rollout(c.Context, rollout.Of(f, registry.Upstream{Client: c.registry}, nil, o.Verify)); err != nil {
		return err
	}
	seen, err := c.deviceReports(f, o.Devices)
	if err != nil {
		return err
	}
	stay.reported(f, seen)
	return c.prune("fleet prune", at, keep, stay)
}

// pruned is the plan for one repository.
type pruned struct {
	repo, signatures *registry.Repository
	plan             *release.Pruning
}

// retention is what the flags of [pruneFlags] keep. It is read before any registry is.
type retention struct {
	release.Retention
	when func(ctx context.Context, repository string, d digest.Digest) (time.Time, error)
}

func (c *call) retention() (o retention, err error) {
	if o.Keep = c.Int("keep"); o.Keep < 1 {
		return o, c.misused("--keep %d: at least 1 generation must stay", o.Keep)
	}
	if c.String("younger-than") == "" {
		return o, nil
	}
	if o.Younger, err = c.pastTime("younger-than"); err == nil {
		o.when, err = c.publishedAt()
	}
	return o, err
}

// prune plans and removes in each repository; without devices, for all that are there.
func (c *call) prune(command string, at map[string][]artifacts.DeviceID, keep retention, stay needs) error {
	var all []pruned
	r := pruneResult{Devices: []prunedDevice{}, DryRun: c.Bool("dry-run")}
	for _, name := range slices.Sorted(maps.Keys(at)) {
		o := keep
		o.Devices, o.Needed = release.OfDevices(at[name]), func(id artifacts.DeviceID) []release.Need { return stay[name][id] }
		one, err := c.planPrune(name, o)
		if errors.Is(err, fault.ErrNotFound) && command == "fleet prune" {
			continue // nothing was published there yet
		}
		if err != nil {
			return err
		}
		if len(at[name]) > 0 && one.plan.Looked == 0 && command == "state prune" {
			return fmt.Errorf("%s in %s: nothing was published for it: %w", at[name][0], name, fault.ErrNotFound)
		}
		all = append(all, one)
		r.Looked, r.Stay = r.Looked+one.plan.Looked, r.Stay+one.plan.Stay
		for _, d := range one.plan.Devices {
			r.Removed += len(d.Remove)
		}
		r.Devices = append(r.Devices, prunedOf(name, one.plan)...)
	}
	if r.DryRun || r.Removed == 0 {
		return c.show(r)
	}
	if err := c.confirm(fmt.Sprintf("Remove %s of %s, and keep %d?", printable.Counted(r.Removed, "generation"), printable.Counted(r.Looked, "device"), r.Stay)); err != nil {
		return err
	}
	r.Removed = 0
	for _, one := range all {
		var signatures release.Remover
		if one.signatures != nil {
			signatures = one.signatures
		}
		gone, err := one.plan.Remove(c.Context, one.repo, signatures)
		if r.Removed, r.Referrers = r.Removed+gone.States, r.Referrers+gone.Referrers; err != nil {
			if r.Removed == 0 {
				return err
			}
			return cmp.Or(err, c.show(r))
		}
	}
	return c.show(r)
}

// planPrune plans for one repository, without its mirrors, which may show old content.
func (c *call) planPrune(name string, o retention) (pruned, error) {
	repo, err := c.registry.OpenName(c.Context, name)
	if err != nil {
		return pruned{}, err
	}
	one := pruned{repo: repo.Upstream()}
	if place := c.getenv(signatureVariable); place != "" {
		if one.signatures, err = signatureRepository(c.Context, repo, place); err != nil {
			return one, err
		}
	}
	if o.when != nil {
		o.When = func(ctx context.Context, d digest.Digest) (time.Time, error) { return o.when(ctx, name, d) }
	}
	one.plan, err = release.PlanPrune(c.Context, one.repo, o.Retention)
	return one, err
}
