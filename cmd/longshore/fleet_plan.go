package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/rollout"
	"github.com/longshore-dev/longshore/registry"
)

// inDirectory puts a fleet's directory before the names of files that have faults.
func inDirectory(dir string, err error) error {
	var document *strict.Error
	if dir == "." || !errors.As(err, &document) {
		return err
	}
	out := &strict.Error{File: path.Join(filepath.ToSlash(dir), document.File)}
	for _, f := range document.Faults {
		if f.File != "" {
			f.File = path.Join(filepath.ToSlash(dir), f.File)
		}
		if f.Also != "" {
			f.Also = path.Join(filepath.ToSlash(dir), f.Also)
		}
		out.Faults = append(out.Faults, f)
	}
	return out
}

// parallelFlag bounds what a registry has to bear, too: see [program.client].
func parallelFlag() cli.Flag {
	return &cli.IntFlag{Name: "parallel", Value: 48, Usage: "`NUMBER` of devices processed, and of requests to one registry, at a time"}
}

func skipUnfitFlag() cli.Flag {
	return &cli.BoolFlag{Name: "skip-unfit", Usage: "skip devices that cannot run their deployments, instead of ending with exit code 6"}
}

func selectFlag() cli.Flag {
	return &cli.StringFlag{Name: "select", Usage: "`SELECTOR` of devices, as in fleet.yaml: site=graz, device=press-*; default: all"}
}

// planFlags choose what a plan is about.
func planFlags() []cli.Flag {
	return slices.Concat([]cli.Flag{
		selectFlag(),
		&cli.StringFlag{Name: "expires", Usage: "`TIME` from which devices report the states as stale: 2027-01-31T00:00:00Z, or 720h from now; states with less than half of that left are published again"},
		&cli.BoolFlag{Name: "resign", Usage: "also check the signers of unchanged states, and sign those again that none of --key, --verify-key and --policy accepts"},
		skipUnfitFlag(),
		parallelFlag(),
		annotationFlag(),
	}, vouchFlags(publishedNow, "; fleet plan and publish also check components and images with it"), endpointFlags())
}

func (p *program) fleetPlanCommand() *cli.Command {
	return p.command("fleet", command{
		name: "plan", args: "[DIRECTORY]", max: 1,
		usage: "show what publishing would change on each device, and what it costs",
		about: "Compares the fleet's files with the state of each device in the registry: new, changed and removed deployments with " +
			"their components, parameters and image digests; what restarts and what continues; the bytes that each device has to " +
			"load. Devices with the same changes are listed together. The plan also checks that everything is in its registry and " +
			"in the mirrors of --mirror, that --policy accepts it, and that no two deployments use the same port, serial line or " +
			"network. Nothing is pushed. Exit code 0 means no change, 1 that something would change, 6 that a device cannot get " +
			"its deployments. --out FILE saves the plan for fleet publish --plan.",
		examples: []string{"", "--select site=graz -o markdown plant", "--out plan.json --key release.key plant"},
		flags: slices.Concat([]cli.Flag{&cli.StringFlag{Name: "out", Usage: "also write the plan to `FILE`, for fleet publish --plan"}},
			planFlags(), contentFlags(), keyFlags(), registryFlags()),
		formats: append(outputFormats(), "markdown"),
		run:     p.fleetPlan,
	})
}

// planResult shows a plan.
type planResult struct{ *fleet.Plan }

func (r planResult) essence() string              { return "" }
func (r planResult) text(w io.Writer)             { r.Text(w) }
func (r planResult) markdown(w io.Writer)         { r.Markdown(w) }
func (r planResult) MarshalJSON() ([]byte, error) { return json.Marshal(r.Document()) }

func (p *program) fleetPlan(c *cli.Context, args []string) error {
	plan, s, err := p.planOnly(c, args)
	if err != nil {
		return err
	}
	defer s.Close()
	if file := c.String("out"); file != "" {
		data, err := json.MarshalIndent(plan.Document(), "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, append(data, '\n'), 0o644); err != nil {
			return err
		}
		if !c.Bool("quiet") {
			fmt.Fprintf(p.stderr, "wrote the plan to %s\n", file)
		}
	}
	if err := p.show(c, planResult{plan}); err != nil {
		return err
	}
	switch {
	case plan.Count(fleet.Cannot) > 0 && !c.Bool("skip-unfit"):
		return outcome.Told(outcome.Refused)
	case plan.Count(fleet.Publish) > 0:
		return outcome.Told(outcome.Differs)
	}
	return nil
}

// keptArtifacts is how much of a plan is not made a second time: the states of 10,000 devices.
const keptArtifacts = 64 << 20

// planFleet reads a fleet's directory and plans as the flags say. What is only looked at need not be committed.
func (p *program) planFleet(c *cli.Context, s *session, dir string, look bool) (*fleet.Plan, error) {
	compiled, o, err := p.readyFleet(c, s, dir, look)
	if err != nil {
		return nil, err
	}
	return planReady(c, s.Client, compiled, o)
}

func planReady(c *cli.Context, client *registry.Client, compiled *fleet.Compiled, o fleet.Options) (*fleet.Plan, error) {
	plan, err := compiled.Plan(c.Context, registry.Upstream{Client: client}, o)
	if err != nil {
		return nil, err
	}
	return plan, someDevices(c, plan)
}

// readyFleet reads a fleet's directory, and all that planning it needs.
func (p *program) readyFleet(c *cli.Context, s *session, dir string, look bool) (*fleet.Compiled, fleet.Options, error) {
	f, err := readFleet(dir)
	if err != nil {
		return nil, fleet.Options{}, err
	}
	annotations, err := pairs("annotation", c.StringSlice("annotation"))
	if err != nil {
		return nil, fleet.Options{}, err
	}
	find := p.origin
	if look {
		find = p.lookAtOrigin
	}
	if annotations, err = find(c, annotations, material{dir: dir, files: f.Files(), alone: true}); err != nil {
		return nil, fleet.Options{}, err
	}
	return p.ready(c, s, f, dir, annotations)
}

// ready compiles a fleet of a directory; annotations are for every state.
func (p *program) ready(c *cli.Context, s *session, f *fleet.Fleet, dir string, annotations map[string]string) (*fleet.Compiled, fleet.Options, error) {
	o, err := p.fleetOptions(c, s.Client, s.signer)
	if err != nil {
		return nil, o, err
	}
	o.Annotations, o.Accepted = annotations, p.accepted(c, f)
	if err := p.equip(c, f); err != nil {
		return nil, o, err
	}
	compiled, err := compileFleet(c.Context, s.Client, dir, f)
	return compiled, o, err
}

// someDevices refuses a selector that means nothing.
func someDevices(c *cli.Context, plan *fleet.Plan) error {
	if len(plan.Devices) == 0 && c.String("select") != "" {
		return fmt.Errorf("--select %s: %w: no device of the fleet matches", c.String("select"), fault.ErrNotFound)
	}
	return nil
}

// fleetOptions are what the flags of a plan say.
func (p *program) fleetOptions(c *cli.Context, client *registry.Client, s *signer) (o fleet.Options, err error) {
	o.Keep, o.Now = keptArtifacts, p.now()
	if err := p.looking(c, client, &o); err != nil {
		return o, err
	}
	if o.Devices, err = selected(c); err != nil {
		return o, err
	}
	if o.Created, err = p.created(); err != nil {
		return o, err
	}
	if o.Expires, err = p.fleetExpires(c); err != nil {
		return o, err
	}
	if o.Annotations, err = pairs("annotation", c.StringSlice("annotation")); err != nil {
		return o, err
	}
	vouching, err := p.vouching(c, client, s)
	if err != nil {
		return o, err
	}
	if o.Resign = c.Bool("resign"); vouching == nil {
		if o.Resign {
			err = outcome.Usagef("", "--resign: whose signature counts? Give --key, --verify-key or --policy")
		}
		return o, err
	}
	o.Verify = func(ctx context.Context, repository string, state digest.Digest) error {
		repo, err := client.OpenName(ctx, repository)
		if err != nil {
			return err
		}
		return vouching(ctx, repo, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: state})
	}
	return o, nil
}

// selected are the devices that --select means; nil: all.
func selected(c *cli.Context) (func(*fleet.Device) bool, error) {
	text := c.String("select")
	if text == "" {
		return nil, nil
	}
	sel, err := fleet.ParseSelector(text)
	if err != nil {
		return nil, outcome.Usagef("", "--select %q is no selector: %v", text, err)
	}
	return func(d *fleet.Device) bool { return d.Matches(sel) }, nil
}

func (p *program) fleetExpires(c *cli.Context) (time.Time, error) {
	return p.expires(c.String("expires"))
}

func (p *program) fleetPublishCommand() *cli.Command {
	return p.command("fleet", command{
		name: "publish", args: "[DIRECTORY]", max: 1,
		usage: "publish the states of a fleet",
		about: "Runs the checks of fleet plan and publishes every state that changes: signed, several at a time, each in the order " +
			"that devices rely on. With --plan FILE it publishes exactly the saved plan of fleet plan --out FILE, or nothing if " +
			"the files, a version or a published state have changed since (exit code 6). Repeat an interrupted run: it continues, " +
			"and pushes nothing if nothing is left to do. If two people publish for the same device at the same time, the later " +
			"one ends with exit code 6.\n\nIf the files define waves (rollout), publish starts each wave according to the device " +
			"reports at the fleet endpoint. It ends when the last wave has passed, or with exit code 6 when one has failed. You " +
			"can stop it at any time; the same command continues, on any machine. See also longshore fleet rollout.",
		examples: []string{
			"--key release.key plant", "--key release.key --plan plan.json plant",
			"--key release.key --endpoint https://fleet.acme.example plant",
		},
		flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "plan", Usage: "`FILE` of fleet plan --out: publish exactly this plan"},
			&cli.BoolFlag{Name: "dry-run", Usage: "print the plan with the resulting digests, and push nothing; exit code 6 if publishing would end with it"},
			&cli.BoolFlag{Name: "at-once", Usage: "publish to all devices now, without waves; a rollout in progress is ignored"},
			&cli.BoolFlag{Name: "again", Usage: "restart the rollout of a release that was halted or rolled back before"},
			unsignedFlag(), noWaitFlag(), lookFlag(), dirtyFlag(),
		}, planFlags(), contentFlags(), signFlags(), registryFlags()),
		run: p.fleetPublish,
	})
}

type fleetPublished struct {
	Fleet     string         `json:"fleet"`
	Published []fleetState   `json:"published"`
	Failed    []failedDevice `json:"failed,omitempty"` // what was tried and is not published; all others follow with the next run
	Same      int            `json:"same"`
	Skipped   int            `json:"skipped"` // devices that cannot run it
	Signed    bool           `json:"signed"`
	Bytes     int64          `json:"bytes"`
}

type failedDevice struct {
	Device string `json:"device"`
	Error  string `json:"error"`
}

// failedOf are the devices of a report whose states are not published.
func failedOf(r *fleet.Report) []failedDevice {
	var out []failedDevice
	for _, d := range slices.Sorted(maps.Keys(r.Failed)) {
		out = append(out, failedDevice{string(d), r.Failed[d].Error()})
	}
	return out
}

type fleetState struct {
	Device     string        `json:"device"`
	Reference  string        `json:"reference"`
	Generation uint64        `json:"generation"`
	Digest     digest.Digest `json:"digest"`
}

func (r fleetPublished) essence() string { return "" }

func (r fleetPublished) text(w io.Writer) {
	tellPublished(w, r.Published, true)
	signed := ", signed"
	if !r.Signed {
		signed = ", unsigned: devices refuse them unless their policy allows that"
	}
	if len(r.Published) == 0 {
		signed = ""
	}
	tellFailed(w, r.Failed)
	row(w, "done", "%s published%s; %s up to date", fleet.Counted(len(r.Published), "state"), signed, fleet.Counted(r.Same, "device"))
	if r.Skipped > 0 {
		row(w, "skipped", "%s cannot run it", fleet.Counted(r.Skipped, "device"))
	}
}

// mostTold is how many devices a result lists for people.
const mostTold = 20

// tellPublished lists the first of what was published.
func tellPublished(w io.Writer, all []fleetState, signed bool) {
	for i, s := range all {
		if i == mostTold {
			row(w, "", "and %d more", len(all)-mostTold)
			break
		}
		row(w, "pushed", "%s  generation %d  %s", s.Reference, s.Generation, short(s.Digest))
	}
	if !signed && len(all) > 0 {
		row(w, "unsigned", "devices refuse them unless their policy allows that")
	}
}

// dryRun shows a plan with what would be pushed.
type dryRun struct{ planResult }

func (r dryRun) text(w io.Writer) {
	r.Details(w)
	n := 0
	for _, d := range r.Devices {
		if d.Action != fleet.Publish {
			continue
		}
		if n++; n <= mostTold {
			row(w, "would push", "%s:%s  generation %d  %s", d.Repository, d.Device.Tag(), d.Generation, d.Digest)
		}
	}
	if n > mostTold {
		row(w, "", "and %d more", n-mostTold)
	}
	fmt.Fprintln(w, r.Summary())
}

// tellFailed lists the first of what is not published; why is told as the run's error.
func tellFailed(w io.Writer, all []failedDevice) {
	for _, d := range all[:min(len(all), mostTold)] {
		row(w, "failed", "%s", d.Device)
	}
	if len(all) > mostTold {
		row(w, "", "and %d more", len(all)-mostTold)
	}
}

// statesOf are the published states of a report.
func statesOf(r *fleet.Report) []fleetState {
	out := []fleetState{}
	for _, d := range r.Published {
		out = append(out, fleetState{string(d.Device), d.Repository + ":" + d.Device.Tag(), d.Generation, d.Digest})
	}
	return out
}

func (p *program) fleetPublish(c *cli.Context, args []string) error {
	if err := whoSigns(c); err != nil {
		return err
	}
	var promise *fleet.SavedPlan
	if file := c.String("plan"); file != "" {
		data, err := bounded.File(os.Open, file, fleet.MaxPlan)
		if err != nil {
			return err
		}
		if promise, err = fleet.ReadSavedPlan(file, data); err != nil {
			return err
		}
		if !promise.Expires.IsZero() { // a duration would be another time now
			if err := c.Set("expires", promise.Expires.Format(time.RFC3339)); err != nil {
				return err
			}
		}
	}
	s, err := p.session(c, nil, true)
	if err != nil {
		return err
	}
	defer s.Close()
	compiled, o, err := p.readyFleet(c, s, fleetDirectory(args), false)
	if err != nil {
		return err
	}
	if err := p.noteThreshold(c, compiled.Fleet, o); err != nil {
		return err
	}
	if compiled.Fleet.Staged() && !c.Bool("at-once") && !c.Bool("dry-run") {
		return p.rollOut(c, s, compiled, o, rollout.Start{Saved: promise, Again: c.Bool("again"), Skip: c.Bool("skip-unfit")}, func(r result) error { return p.show(c, r) })
	}
	plan, err := planReady(c, s.Client, compiled, o)
	if err != nil {
		return err
	}
	if promise != nil {
		if err := plan.Keep(promise); err != nil {
			return err
		}
	}
	unfit := plan.Count(fleet.Cannot) > 0 && !c.Bool("skip-unfit")
	if c.Bool("dry-run") {
		if err := p.show(c, dryRun{planResult{plan}}); err != nil || !unfit {
			return err
		}
		return outcome.Told(outcome.Refused)
	}
	if unfit {
		return plan.Unfit()
	}
	show, done := p.progress(c, "published")
	r, err := p.publishPlan(c, plan, s, show)
	done()
	if r != nil { // also when it ended early: what is published is published
		err = cmp.Or(err, p.show(c, r))
	}
	return err
}

// publishPlan publishes a plan. There is a result with an error too when something was published.
func (p *program) publishPlan(c *cli.Context, plan *fleet.Plan, s *session, show func(fleet.Progress)) (*fleetPublished, error) {
	report, err := plan.Publish(c.Context, fleetPublisher{s}, show)
	if err != nil && len(report.Published) == 0 {
		return nil, err
	}
	return &fleetPublished{
		Fleet: plan.Fleet, Published: statesOf(report), Failed: failedOf(report), Same: plan.Count(fleet.Same), Skipped: plan.Count(fleet.Cannot),
		Signed: s.signer != nil, Bytes: report.Bytes,
	}, err
}
