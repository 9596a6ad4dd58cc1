package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
)

func (p *program) fleetRollbackCommand() *cli.Command {
	return p.command("fleet", command{
		name: "rollback", args: "[DIRECTORY]", max: 1,
		usage: "roll many devices back to what they had before",
		about: "Publishes for each device its earlier content as a new generation, because devices reject older generations. --before " +
			"rolls back what was published since a time, --revision what was published from a revision of the files, --previous " +
			"each device's last change; other devices are unchanged. The command first shows the plan, and on a terminal asks for " +
			"confirmation. As fleet publish does, it checks that everything is still in its registry and in the mirrors of " +
			"--mirror, and that --policy accepts it. Devices without an earlier state, or without all of it, are reported and do " +
			"not block the others; then the exit code is 6. Repeat an interrupted run. The command reads only the names of devices " +
			"and repositories from the files and does not change them: correct the files before the next fleet publish, which " +
			"would otherwise publish the bad release again.",
		examples: []string{
			"--before 2h --dry-run plant",
			"--before 2026-11-20T02:00:00Z --key release.key plant",
			"--revision 4be2d1c --key release.key plant",
			"--previous --select site=graz --key release.key plant",
		},
		flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "before", Usage: "roll back to what devices had at this `TIME`: 2026-11-20T02:00:00Z, or 2h for two hours ago"},
			&cli.StringFlag{Name: "revision", Usage: "roll back devices with a state of this `REVISION` of the files; a prefix is enough"},
			&cli.BoolFlag{Name: "previous", Usage: "roll back each device's last change; devices that were already rolled back are unchanged"},
			&cli.BoolFlag{Name: "dry-run", Usage: "print the plan and push nothing"},
			yesFlag(), unsignedFlag(), selectFlag(),
			&cli.StringFlag{Name: "expires", Usage: "`TIME` from which devices report the states as stale: 2027-01-31T00:00:00Z, or 720h from now"},
			parallelFlag(),
			annotationFlag(),
		}, vouchFlags("the states", "; also checks components and images"), contentFlags(), signFlags(), registryFlags()),
		run: p.fleetRollback,
	})
}

type rollbackResult struct {
	Fleet     string         `json:"fleet"`
	Published []fleetState   `json:"published"`
	Failed    []failedDevice `json:"failed,omitempty"` // what was tried and is not published
	Stay      int            `json:"stay"`             // devices that have it already, or got nothing since
	Cannot    []cannotDevice `json:"cannot"`
	Signed    bool           `json:"signed"`
	Bytes     int64          `json:"bytes"`
}

type cannotDevice struct {
	Device  string   `json:"device"`
	Reasons []string `json:"reasons"`

	lost bool // it has something to go back to, and could not run or load it
}

func (r rollbackResult) essence() string { return "" }

func (r rollbackResult) text(w io.Writer) {
	tellPublished(w, r.Published, r.Signed)
	for _, d := range r.Cannot {
		row(w, "cannot", "%s: %s", d.Device, strings.Join(d.Reasons, "; "))
	}
	if slices.ContainsFunc(r.Cannot, func(d cannotDevice) bool { return d.lost }) {
		row(w, "hint", "push what is gone again, by the same digest; or go back to another generation: longshore state history, longshore state rollback --to")
	}
	tellFailed(w, r.Failed)
	row(w, "done", "%s went back, %d stay", fleet.Counted(len(r.Published), "device"), r.Stay)
	if len(r.Published) > 0 {
		row(w, "note", "the files say what they said: put them right before the next fleet publish; fleet plan shows the difference")
	}
}

func (p *program) fleetRollback(c *cli.Context, args []string) error {
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
		return misused(c, "to what? give one of --before, --revision and --previous")
	case whoSigns(c) != nil:
		return whoSigns(c)
	case c.String("before") != "":
		if b.Before, err = p.past(c, "before"); err != nil {
			return err
		}
	}
	s, err := p.session(c, nil, true)
	if err != nil {
		return err
	}
	defer s.Close()
	if b.When, err = p.publishedAt(c, s.Client, s.signer); err != nil {
		return err
	}
	plan, err := p.planRollback(c, s, fleetDirectory(args), b)
	if err != nil {
		return err
	}
	if c.Bool("dry-run") {
		if err := p.show(c, planResult{plan}); err != nil || plan.Count(fleet.Cannot) == 0 {
			return err
		}
		return outcome.Told(outcome.Refused)
	}
	r := rollbackResult{Fleet: plan.Fleet, Published: []fleetState{}, Stay: plan.Count(fleet.Same), Cannot: []cannotDevice{}, Signed: s.signer != nil}
	for _, d := range plan.Devices {
		if d.Action == fleet.Cannot {
			r.Cannot = append(r.Cannot, cannotDevice{string(d.Device), d.Reasons, d.Previous != ""})
		}
	}
	if n := plan.Count(fleet.Publish); n > 0 {
		if c.String("output") == "text" && !c.Bool("quiet") {
			plan.Details(p.stdout)
		}
		if err := p.confirm(c, fmt.Sprintf("Publish %s?", fleet.Counted(n, "state"))); err != nil {
			return err
		}
	}
	show, done := p.progress(c, "published")
	report, err := plan.Publish(c.Context, fleetPublisher{s}, show)
	done()
	if err != nil && len(report.Published) == 0 {
		return err
	}
	r.Published, r.Failed, r.Bytes = statesOf(report), failedOf(report), report.Bytes
	if err := cmp.Or(err, p.show(c, r)); err != nil { // also when it ended early: what is published is published
		return err
	}
	if len(r.Cannot) > 0 {
		return outcome.Told(outcome.Refused)
	}
	return nil
}

// planRollback plans the way back. The repositories that the files name may have the flags' credentials.
func (p *program) planRollback(c *cli.Context, s *session, dir string, b fleet.Back) (*fleet.Plan, error) {
	f, err := readFleet(dir)
	if err != nil {
		return nil, err
	}
	o, err := p.fleetOptions(c, s.Client, s.signer)
	if err != nil {
		return nil, err
	}
	plan, err := f.Rollback(c.Context, registry.Upstream{Client: s.Client}, o, b)
	if err != nil {
		return nil, err
	}
	return plan, someDevices(c, plan)
}

// publishedAt tells when a state was published: by the first signature of a key that counts here, else by the state itself.
func (p *program) publishedAt(c *cli.Context, client *registry.Client, s *signer) (func(context.Context, string, digest.Digest) (time.Time, error), error) {
	known, err := trustees(c, s)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, repository string, state digest.Digest) (time.Time, error) {
		repo, err := client.OpenName(ctx, repository)
		if err != nil {
			return time.Time{}, err
		}
		if len(known) > 0 {
			signed, err := p.signedAt(ctx, repo)
			if err != nil {
				return time.Time{}, err
			}
			good, err := signing.Verify(ctx, signed, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: state}, known)
			if err != nil && !fault.Distrusted(err) { // that of another key is not asked: what follows the state vouches for it
				return time.Time{}, err
			}
			if at := first(good); !at.IsZero() {
				return at, nil
			}
		}
		_, manifest, err := repo.Manifest(ctx, state)
		if err != nil {
			return time.Time{}, err
		}
		x, err := artifacts.OpenState(manifest)
		if err != nil {
			return time.Time{}, err
		}
		at, err := time.Parse(time.RFC3339, x.Annotations[ocispec.AnnotationCreated])
		if err != nil {
			return time.Time{}, nil //nolint:nilerr // it does not say, or says nothing that is a time
		}
		return at, nil
	}, nil
}

// first is when the earliest of some signatures was made; zero when none says.
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
func (p *program) past(c *cli.Context, flag string) (time.Time, error) {
	text := c.String(flag)
	t, err := time.Parse(time.RFC3339, text)
	if d, durationErr := time.ParseDuration(text); durationErr == nil && d > 0 {
		t, err = p.now().Add(-d), nil
	}
	switch {
	case err != nil:
		return t, misused(c, "--%s %q is neither a time like 2026-11-20T02:00:00Z nor a duration like 2h", flag, text)
	case t.After(p.now()):
		return t, misused(c, "--%s %s is in the future", flag, text)
	}
	return t, nil
}

func yesFlag() cli.Flag {
	return &cli.BoolFlag{Name: "yes", Usage: "do not ask for confirmation"}
}

// confirm asks a person whether to go on. Without a terminal, or with --yes, nobody is asked.
func (p *program) confirm(c *cli.Context, question string) error {
	f, ok := p.stdin.(*os.File)
	if c.Bool("yes") || !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	answer, err := p.ask(question + " [y/N] ")
	if err != nil {
		return err
	}
	if answer = strings.ToLower(answer); answer != "y" && answer != "yes" {
		return outcome.WithCode(fmt.Errorf("%s: not confirmed, nothing was done", c.Command.Name), outcome.Interrupted)
	}
	return nil
}
