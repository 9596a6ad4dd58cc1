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

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/rollout"
	"github.com/longshore-dev/longshore/registry"
)

// inDirectory adds a fleet's directory to the names of files in an error.
func inDirectory(dir string, err error) error {
	document, ok := errors.AsType[*strict.Error](err)
	if dir == "." || !ok {
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

// parallelFlag also limits the requests to one registry: see [call.connect].
var parallelFlag = cmdline.Flag{Name: "parallel", Value: 48, Usage: "`NUMBER` of devices processed, and of requests to one registry, at a time"}

var skipUnfitFlag = cmdline.Flag{Name: "skip-unfit", Value: false, Usage: "skip devices that cannot get their deployments, instead of ending with exit code 6"}

var selectFlag = cmdline.Flag{Name: "select", Usage: "`SELECTOR` of devices, as in fleet.yaml: site=graz, device=press-*; default: all", Offer: offerSelectors}

// planFlags are the flags of all commands that plan.
var planFlags = slices.Concat([]cmdline.Flag{
	selectFlag,
	{Name: "expires", Usage: "`TIME` from which devices report the states as stale: 2027-01-31T00:00:00Z, or 30d from now; states with less than half of that left are published again"},
	{Name: "resign", Value: false, Usage: "also check the signers of unchanged states, and sign a state again if none of --key, --verify-key and --policy accepts it"},
	skipUnfitFlag,
	parallelFlag,
	annotationFlag,
}, signedByFlags(publishedNow, "; fleet plan and publish also check components and images with it"), endpointFlags)

var fleetPlanCommand = command{
	name: "plan", args: "[DIRECTORY]", max: 1,
	usage: "show what publishing would change on each device, and how much it would load",
	about: "Compares the fleet's files with the state of each device in the registry. It shows new, changed and removed deployments " +
		"with their components, parameters and image digests, the services that restart, and the bytes that each device has to " +
		"load. Devices with the same changes are listed together. The plan also checks that everything is in its registry and " +
		"in the mirrors of --mirror, that --policy accepts it, and that no two deployments use the same port, serial port or " +
		"network. Nothing is pushed. Exit code 0 means no change, 1 a change, 6 that a device cannot get its deployments. --out " +
		"FILE saves the plan for fleet publish --plan.",
	examples: []string{"", "--select site=graz -o markdown plant", "--out plan.json --key release.key plant"},
	flags: slices.Concat([]cmdline.Flag{{Name: "out", Usage: "also write the plan to `FILE`, for fleet publish --plan"}},
		planFlags, contentFlags, keyFlags, registryFlags),
	formats: slices.Concat(outputFormats, []string{"markdown"}),
	run:     (*call).fleetPlan,
}

// planResult shows a plan.
type planResult struct{ *fleet.Plan }

func (r planResult) text(w io.Writer)             { r.Text(w) }
func (r planResult) markdown(w io.Writer)         { r.Markdown(w) }
func (r planResult) MarshalJSON() ([]byte, error) { return json.Marshal(r.Document()) }

func (c *call) fleetPlan(args []string) error {
	plan, err := c.planToShow(args)
	if err != nil {
		return err
	}
	if file := c.String("out"); file != "" {
		data, err := json.MarshalIndent(plan.Document(), "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(file, append(data, '\n'), 0o644); err != nil {
			return err
		}
		if !c.Bool("quiet") {
			fmt.Fprintf(c.stderr, "wrote the plan to %s\n", file)
		}
	}
	if err := c.show(planResult{plan}); err != nil {
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

// keptArtifacts is how many bytes of packed states a plan keeps in memory: those of 10,000 devices.
const keptArtifacts = 64 << 20

func (c *call) planReady(compiled *fleet.Compiled, o fleet.Options) (*fleet.Plan, error) {
	plan, err := compiled.Plan(c.Context, registry.Upstream{Client: c.registry}, o)
	if err != nil {
		return nil, err
	}
	return plan, c.checkSelection(plan)
}

// readyFleet reads a fleet's directory and everything that a plan needs. With look, its files may be uncommitted.
func (c *call) readyFleet(dir string, look bool) (*fleet.Compiled, fleet.Options, error) {
	f, err := readFleet(dir)
	if err != nil {
		return nil, fleet.Options{}, err
	}
	annotations, err := c.origin(look, sources{dir: dir, files: f.Files(), alone: true})
	if err != nil {
		return nil, fleet.Options{}, err
	}
	return c.ready(f, dir, annotations)
}

// ready compiles a fleet; annotations are for every state.
func (c *call) ready(f *fleet.Fleet, dir string, annotations map[string]string) (*fleet.Compiled, fleet.Options, error) {
	o, err := c.fleetOptions()
	if err != nil {
		return nil, o, err
	}
	o.Annotations, o.Accepted = annotations, c.accepted(f)
	compiled, err := c.compile(dir, f)
	return compiled, o, err
}

// noneSelected is the error of a selector that matches no device.
func (c *call) noneSelected() error {
	return fault.WithHint(fmt.Errorf("--select %s: %w: no device of the fleet matches", c.String("select"), fault.ErrNotFound),
		"select by labels as devices have them in the files (site=graz), or by device=ID")
}

// checkSelection rejects a selector that matches no device.
func (c *call) checkSelection(plan *fleet.Plan) error {
	if len(plan.Devices) == 0 && c.String("select") != "" {
		return c.noneSelected()
	}
	return nil
}

// fleetOptions are the options of a plan for a fleet.
func (c *call) fleetOptions() (fleet.Options, error) {
	o, err := c.planOptions()
	if err != nil {
		return o, err
	}
	o.Keep, o.Resign = keptArtifacts, c.Bool("resign")
	if o.Resign && o.Verify == nil {
		return o, outcome.Usagef("", "--resign needs --key, --verify-key or --policy")
	}
	o.Devices, err = c.selected()
	return o, err
}

// planOptions are the options of every plan.
func (c *call) planOptions() (o fleet.Options, err error) {
	o.Now = c.now()
	if err := c.contentOptions(&o); err != nil {
		return o, err
	}
	if o.Created, err = c.created(); err != nil {
		return o, err
	}
	if o.Expires, err = c.expires(c.String("expires")); err != nil {
		return o, err
	}
	o.Annotations = c.annotations
	stateVerifier, err := c.stateVerifier(c.signer)
	if stateVerifier == nil {
		return o, err
	}
	o.Verify = func(ctx context.Context, repository string, state digest.Digest) error {
		repo, err := c.registry.OpenName(ctx, repository)
		if err != nil {
			return err
		}
		return stateVerifier(ctx, repo, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: state})
	}
	return o, nil
}

// selected returns the filter of --select; nil means all devices.
func (c *call) selected() (func(*fleet.Device) bool, error) {
	text := c.String("select")
	if text == "" {
		return nil, nil
	}
	sel, err := fleet.ParseSelector(text)
	if err != nil {
		return nil, outcome.Usagef("", "--select %q is not a selector: %v", text, err)
	}
	return func(d *fleet.Device) bool { return d.Matches(sel) }, nil
}

var fleetPublishCommand = command{
	name: "publish", args: "[DIRECTORY]", max: 1,
	usage: "publish the states of a fleet",
	about: "Runs the checks of fleet plan, and signs and publishes every changed state, several at a time. With --plan FILE it " +
		"publishes exactly the saved plan of fleet plan --out FILE, or nothing if the files, a version or a published state " +
		"have changed since (exit code 6). Repeat an interrupted run: it publishes only what is left. If two people publish for " +
		"the same device at the same time, the later one ends with exit code 6.\n\nIf the files define waves (rollout), publish " +
		"starts each wave according to the device reports at the fleet endpoint. It ends when the last wave has passed, or " +
		"with exit code 6 when one has failed. You can stop it at any time; the same command continues, on any machine. See " +
		"also longshore fleet rollout.\n\nStates that need several signers by --policy are proposed. The other signers run the same " +
		"command on the same files, with their own keys; the last signature publishes each state.",
	examples: []string{
		"--key release.key plant", "--key release.key --plan plan.json plant",
		"--key release.key --endpoint https://fleet.acme.example plant",
	},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "plan", Usage: "`FILE` of fleet plan --out: publish exactly this plan"},
		{Name: "dry-run", Value: false, Usage: "print the plan with the resulting digests, and push nothing; the exit code is that of publishing"},
		{Name: "at-once", Value: false, Usage: "publish to all devices now, without waves; a rollout in progress is ignored"},
		{Name: "again", Value: false, Usage: "restart the rollout of a release that was halted or rolled back before"},
		unsignedFlag, noWaitFlag, lookFlag, dirtyFlag,
	}, proposalFlags, planFlags, contentFlags, signFlags, registryFlags),
	run: (*call).fleetPublish,
}

type fleetPublished struct {
	Fleet     string          `json:"fleet"`
	Published []fleetState    `json:"published"`
	Proposed  []fleetProposal `json:"proposed,omitempty"` // states that others have to sign, too
	Failed    []failedDevice  `json:"failed,omitempty"`   // states that could not be published; the next run publishes the others
	Same      int             `json:"same"`
	Skipped   int             `json:"skipped"` // devices that cannot get their deployments
	Signed    bool            `json:"signed"`
	Bytes     int64           `json:"bytes"`
}

type failedDevice struct {
	Device string `json:"device"`
	Error  string `json:"error"`
}

// failedOf are the devices whose states could not be published.
func failedOf(r *fleet.Report) []failedDevice {
	var out []failedDevice
	for _, d := range slices.Sorted(maps.Keys(r.Failed)) {
		out = append(out, failedDevice{string(d), fault.Summary(r.Failed[d])})
	}
	return out
}

type fleetState struct {
	Device     string        `json:"device"`
	Reference  string        `json:"reference"`
	Generation uint64        `json:"generation"`
	Digest     digest.Digest `json:"digest"`
}

func (r fleetPublished) text(w io.Writer) {
	printPublished(w, r.Published, true)
	printProposed(w, r.Proposed)
	signed := ", signed"
	if !r.Signed {
		signed = ", unsigned: devices refuse them unless their policy allows unsigned states"
	}
	if len(r.Published) == 0 {
		signed = ""
	}
	printFailed(w, r.Failed)
	row(w, "done", "%s published%s%s; %s up to date", printable.Counted(len(r.Published), "state"), signed, andProposed(r.Proposed), printable.Counted(r.Same, "device"))
	if r.Skipped > 0 {
		row(w, "skipped", "%s cannot get their deployments", printable.Counted(r.Skipped, "device"))
	}
}

// maxListed is the number of devices that a result lists as text.
const maxListed = 20

// printPublished lists the first published states.
func printPublished(w io.Writer, all []fleetState, signed bool) {
	firsts(w, all, func(s fleetState) {
		row(w, "pushed", "%s  generation %d  %s", s.Reference, s.Generation, printable.Digest(s.Digest))
	})
	if !signed && len(all) > 0 {
		row(w, "unsigned", "devices refuse them unless their policy allows unsigned states")
	}
}

// dryRun is a plan with the states that would be pushed.
type dryRun struct {
	planResult
	to *fleetPublisher
}

func (r dryRun) text(w io.Writer) {
	r.Details(w)
	published := slices.DeleteFunc(slices.Clone(r.Devices), func(d *fleet.DevicePlan) bool { return d.Action != fleet.Publish })
	firsts(w, published, func(d *fleet.DevicePlan) {
		what, tag := "would push", d.Device.Tag()
		if r.to.several[d.Repository] {
			what, tag = "would propose", artifacts.ProposalTag(tag, d.Generation)
		}
		row(w, what, "%s:%s  generation %d  %s", d.Repository, tag, d.Generation, d.Digest)
	})
	fmt.Fprintln(w, r.Summary())
}

// printFailed lists the first devices that failed; the error of the run has the cause.
func printFailed(w io.Writer, all []failedDevice) {
	firsts(w, all, func(d failedDevice) { row(w, "failed", "%s", d.Device) })
}

// statesOf are the published states.
func statesOf(r *fleet.Report) []fleetState {
	out := []fleetState{}
	for _, d := range r.Published {
		out = append(out, fleetState{string(d.Device), d.Repository + ":" + d.Device.Tag(), d.Generation, d.Digest})
	}
	return out
}

func (c *call) fleetPublish(args []string) error {
	if err := c.whoSigns(); err != nil {
		return err
	}
	var saved *fleet.SavedPlan
	if file := c.String("plan"); file != "" {
		data, err := bounded.File(os.Open, file, fleet.MaxPlan)
		if err != nil {
			return err
		}
		if saved, err = fleet.ReadSavedPlan(file, data); err != nil {
			return err
		}
		if !saved.Expires.IsZero() { // a duration would give another time now
			if err := c.Set("expires", saved.Expires.Format(time.RFC3339)); err != nil {
				return err
			}
		}
	}
	if err := c.openSigner(true); err != nil {
		return err
	}
	compiled, o, err := c.readyFleet(fleetDirectory(args), false)
	if err != nil {
		return err
	}
	staged := compiled.Fleet.Staged() && !c.Bool("at-once")
	if staged && c.Bool("dry-run") {
		if err := c.refuseWaves(compiled.Fleet, o, hintWaves); err != nil { // as the run itself
			return err
		}
	}
	if staged && !c.Bool("dry-run") {
		return c.rollOut(compiled, o, rollout.Start{Saved: saved, Again: c.Bool("again"), Skip: c.Bool("skip-unfit")}, c.show)
	}
	plan, err := c.planReady(compiled, o)
	if err != nil {
		return err
	}
	if saved != nil {
		if err := plan.Keep(saved); err != nil {
			return err
		}
	}
	unfit := plan.Count(fleet.Cannot) > 0 && !c.Bool("skip-unfit")
	if c.Bool("dry-run") {
		to, err := c.proposer(repositoriesOf(plan))
		if err != nil {
			return err
		}
		if err := c.show(dryRun{planResult{plan}, to}); err != nil || !unfit {
			return err
		}
		return outcome.Told(outcome.Refused)
	}
	if unfit {
		return plan.Unfit()
	}
	r, err := c.publishPlan(plan, true)
	if r != nil { // also after an error: some states may be published
		err = cmp.Or(err, c.show(r))
	}
	return err
}

// publishPlan publishes a plan; progress: and shows how far it has come. It returns a result and an error if only a part was published.
func (c *call) publishPlan(plan *fleet.Plan, progress bool) (*fleetPublished, error) {
	to, err := c.proposer(repositoriesOf(plan))
	if err != nil {
		return nil, err
	}
	var show func(fleet.Progress)
	done := func() {}
	if progress {
		show, done = c.progress("published")
	}
	report, err := plan.Publish(c.Context, to, show)
	done()
	if err != nil && len(report.Published)+len(report.Proposed) == 0 {
		return nil, err
	}
	return &fleetPublished{
		Fleet: plan.Fleet, Published: statesOf(report), Proposed: proposalsOf(report), Failed: failedOf(report), Same: plan.Count(fleet.Same), Skipped: plan.Count(fleet.Cannot),
		Signed: c.signer != nil, Bytes: report.Bytes,
	}, err
}
