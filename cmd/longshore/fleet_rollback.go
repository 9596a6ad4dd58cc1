package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/signing"
)

var fleetRollbackCommand = command{
	name: "rollback", args: "[DIRECTORY]", max: 1,
	usage: "roll many devices back to what they had before",
	about: "Publishes the earlier content of each device as a new generation, because devices refuse older generations. --before " +
		"rolls back what was published since a time, --revision what was published from a revision of the files, --previous " +
		"each device's last change; other devices are unchanged. The command first shows the plan, and on a terminal asks for " +
		"confirmation. Like fleet publish, it checks that everything is still in its registry and in the mirrors of --mirror, " +
		"and that --policy accepts it. A device whose earlier state is missing or incomplete is reported and does not block the " +
		"others; then the exit code is 6. Repeat an interrupted run. The command uses only the names of devices and " +
		"repositories in the files, and does not change the files: correct them before the next fleet publish, which would " +
		"otherwise publish the bad release again.\n\nStates that need several signers by --policy are proposed: the others run the same " +
		"command with their own keys, and the last signature publishes each state.",
	examples: []string{
		"--before 2h --dry-run plant",
		"--before 2026-11-20T02:00:00Z --key release.key plant",
		"--revision 4be2d1c --key release.key plant",
		"--previous --select site=graz --key release.key plant",
	},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "before", Usage: "roll back to what devices had at this `TIME`: 2026-11-20T02:00:00Z, or 2h for two hours ago"},
		{Name: "revision", Usage: "roll back devices with a state of this `REVISION` of the files; a prefix is enough"},
		{Name: "previous", Value: false, Usage: "roll back each device's last change; devices that were already rolled back are unchanged"},
		{Name: "dry-run", Value: false, Usage: "print the plan and push nothing"},
		yesFlag, unsignedFlag, selectFlag,
		{Name: "expires", Usage: "`TIME` from which devices report the states as stale: 2027-01-31T00:00:00Z, or 30d from now"},
		parallelFlag,
		annotationFlag,
	}, proposalFlags, signedByFlags("the states", "; also checks components and images"), contentFlags, signFlags, registryFlags),
	run: (*call).fleetRollback,
}

type rollbackResult struct {
	Fleet     string          `json:"fleet"`
	Published []fleetState    `json:"published"`
	Proposed  []fleetProposal `json:"proposed,omitempty"` // states that others have to sign, too
	Failed    []failedDevice  `json:"failed,omitempty"`   // states that could not be published
	Stay      int             `json:"stay"`               // unchanged devices
	Cannot    []cannotDevice  `json:"cannot"`
	Signed    bool            `json:"signed"`
	Bytes     int64           `json:"bytes"`
}

type cannotDevice struct {
	Device  string   `json:"device"`
	Reasons []string `json:"reasons"`

	lost bool // its earlier state is incomplete
}

func (r rollbackResult) text(w io.Writer) {
	printPublished(w, r.Published, r.Signed)
	printProposed(w, r.Proposed)
	for _, d := range r.Cannot {
		row(w, "cannot", "%s: %s", d.Device, strings.Join(d.Reasons, "; "))
	}
	if slices.ContainsFunc(r.Cannot, func(d cannotDevice) bool { return d.lost }) {
		row(w, "hint", "push the missing content again, with the same digest; or choose another generation: longshore state history, longshore state rollback --to")
	}
	printFailed(w, r.Failed)
	row(w, "done", "%s rolled back%s, %d unchanged", printable.Counted(len(r.Published), "device"), andProposed(r.Proposed), r.Stay)
	if len(r.Published)+len(r.Proposed) > 0 {
		row(w, "note", "the files are unchanged: correct them before the next fleet publish; fleet plan shows the difference")
	}
}

func (c *call) fleetRollback(args []string) error {
	b := fleet.Back{Revision: c.String("revision")}
	ways := 0
	for _, asked := range []bool{c.String("before") != "", b.Revision != "", c.Bool("previous")} {
		if asked {
			ways++
		}
	}
	var err error
	switch {
	case ways != 1:
		return c.misused("use one of --before, --revision and --previous")
	case c.whoSigns() != nil:
		return c.whoSigns()
	case c.String("before") != "":
		if b.Before, err = c.pastTime("before"); err != nil {
			return err
		}
	}
	if err := c.openSigner(true); err != nil {
		return err
	}
	if b.When, err = c.publishedAt(); err != nil {
		return err
	}
	plan, err := c.planRollback(fleetDirectory(args), b)
	if err != nil {
		return err
	}
	if c.Bool("dry-run") {
		if err := c.show(planResult{plan}); err != nil || plan.Count(fleet.Cannot) == 0 {
			return err
		}
		return outcome.Told(outcome.Refused)
	}
	r := rollbackResult{Fleet: plan.Fleet, Published: []fleetState{}, Stay: plan.Count(fleet.Same), Cannot: []cannotDevice{}, Signed: c.signer != nil}
	for _, d := range plan.Devices {
		if d.Action == fleet.Cannot {
			r.Cannot = append(r.Cannot, cannotDevice{string(d.Device), d.Reasons, d.Previous != ""})
		}
	}
	if n := plan.Count(fleet.Publish); n > 0 {
		if c.String("output") == "text" && !c.Bool("quiet") {
			plan.Details(c.stdout)
		}
		if err := c.confirm(fmt.Sprintf("Publish %s?", printable.Counted(n, "state"))); err != nil {
			return err
		}
	}
	made, err := c.publishPlan(plan, true)
	if made == nil {
		return err
	}
	r.Published, r.Proposed, r.Failed, r.Bytes = made.Published, made.Proposed, made.Failed, made.Bytes
	if err := cmp.Or(err, c.show(r)); err != nil { // also after an error: some states may be published
		return err
	}
	if len(r.Cannot) > 0 {
		return outcome.Told(outcome.Refused)
	}
	return nil
}

// planRollback plans the rollback.
func (c *call) planRollback(dir string, b fleet.Back) (*fleet.Plan, error) {
	f, err := readFleet(dir)
	if err != nil {
		return nil, err
	}
	o, err := c.fleetOptions()
	if err != nil {
		return nil, err
	}
	plan, err := f.Rollback(c.Context, registry.Upstream{Client: c.registry}, o, b)
	if err != nil {
		return nil, err
	}
	return plan, c.checkSelection(plan)
}

// publishedAt returns a function that finds when a state was published: the time of the first signature by a known key,
// otherwise the creation time of the state.
func (c *call) publishedAt() (func(context.Context, string, digest.Digest) (time.Time, error), error) {
	known, err := c.verifiers(c.signer)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, repository string, state digest.Digest) (time.Time, error) {
		repo, err := c.registry.OpenName(ctx, repository)
		if err != nil {
			return time.Time{}, err
		}
		if len(known) > 0 {
			signed, err := c.signaturesOf(ctx, repo)
			if err != nil {
				return time.Time{}, err
			}
			good, err := signing.Verify(ctx, signed, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: state}, known)
			if err != nil && !fault.Distrusted(err) { // a signature by another key is no error: the chain of states is verified elsewhere
				return time.Time{}, err
			}
			if at := first(good); !at.IsZero() {
				return at, nil
			}
		}
		s, err := release.Open(ctx, repo, state.String())
		if err != nil {
			return time.Time{}, err
		}
		at, err := time.Parse(time.RFC3339, s.Index.Annotations[ocispec.AnnotationCreated])
		if err != nil {
			return time.Time{}, nil //nolint:nilerr // the state has no valid time
		}
		return at, nil
	}, nil
}

// first is the earliest time of signatures; zero if none has a time.
func first(all []signing.Signature) time.Time {
	var at time.Time
	for _, s := range all {
		if t := s.Time; !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	return at
}

// past reads the time of a flag, which is over: RFC 3339, or how long ago.
func (c *call) pastTime(flag string) (time.Time, error) {
	text := c.String(flag)
	t, err := time.Parse(time.RFC3339, text)
	if d, durationErr := strict.ParseDuration(text); durationErr == nil && d > 0 {
		t, err = c.now().Add(-d), nil
	}
	switch {
	case err != nil:
		return t, c.misused("--%s %q is neither a time like 2026-11-20T02:00:00Z nor a duration like 2h or 3d", flag, text)
	case t.After(c.now()):
		return t, c.misused("--%s %s is in the future", flag, text)
	}
	return t, nil
}

var yesFlag = cmdline.Flag{Name: "yes", Value: false, Usage: "do not ask for confirmation"}

// confirm asks the user whether to continue. It does not ask without a terminal or with --yes.
func (c *call) confirm(question string) error {
	if c.Bool("yes") || cmdline.Terminal(c.stdin) == nil {
		return nil
	}
	answer, err := c.ask(question + " [y/N] ")
	if err != nil {
		return err
	}
	if answer = strings.ToLower(answer); answer != "y" && answer != "yes" {
		return outcome.WithCode(fmt.Errorf("%s: not confirmed, nothing was changed", c.Command), outcome.Interrupted)
	}
	return nil
}
