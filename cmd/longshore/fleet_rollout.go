package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/opencontainers/go-digest"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/rollout"
	"github.com/longshore-dev/longshore/registry"
)

func noWaitFlag() cli.Flag {
	return &cli.BoolFlag{Name: "no-wait", Usage: "do what can be done now and end with exit code 0; the same command continues"}
}

func lookFlag() cli.Flag {
	return &cli.DurationFlag{Name: "look-every", Value: 10 * time.Second, Usage: "`TIME` between two queries of the device reports"}
}

func (p *program) fleetRolloutCommands() *cli.Command {
	return group("rollout", "show, halt, continue and undo a rollout in waves",
		p.rolloutShowCommand(), p.rolloutHistoryCommand(), p.rolloutContinueCommand(), p.rolloutHaltCommand(), p.rolloutUndoCommand())
}

// rolloutCommand makes a command about the newest rollout of a fleet: all name its directory, and whose signatures count.
func (p *program) rolloutCommand(d command) *cli.Command {
	d.args, d.max = "[DIRECTORY]", 1
	d.flags = slices.Concat(d.flags, vouchFlags(publishedNow, ""), registryFlags())
	return p.command("fleet rollout", d)
}

func (p *program) rolloutShowCommand() *cli.Command {
	return p.rolloutCommand(command{
		name:  "show",
		usage: "show the progress of a rollout",
		about: "Reads the newest rollout of a fleet from the registry and, with a fleet endpoint, the device reports of each wave. " +
			"Only the fleet's name, registry and endpoint are read from the files. Exit code 0 means done, 1 in progress, 6 halted " +
			"or rolled back.",
		examples: []string{"plant", "--endpoint https://fleet.acme.example --verify-key release.pub -o json plant"},
		flags:    slices.Concat(keyFlags(), endpointFlags()),
		run:      p.rolloutShow,
	})
}

func (p *program) rolloutContinueCommand() *cli.Command {
	return p.rolloutCommand(command{
		name:  "continue",
		usage: "continue a rollout that was halted, or that runs on another machine",
		about: "Continues the rollout and evaluates a failed wave again. With --promote NAME that wave, failed or not complete, " +
			"counts as passed whatever its devices report. The files must be those that the rollout was started with. Another " +
			"process that runs the rollout reports this and ends with exit code 6.",
		examples: []string{"--key release.key plant", "--promote canary --key release.key --endpoint https://fleet.acme.example plant"},
		flags: slices.Concat([]cli.Flag{
			&cli.StringSliceFlag{Name: "promote", Usage: "`NAME` of a failed or incomplete wave to count as passed, GROUP/NAME for a group's wave; may be repeated"}, noWaitFlag(), lookFlag(), unsignedFlag(),
			skipUnfitFlag(), parallelFlag(),
		}, endpointFlags(), signFlags()),
		run: p.rolloutContinue,
	})
}

func (p *program) rolloutHaltCommand() *cli.Command {
	return p.rolloutCommand(command{
		name:  "halt",
		usage: "stop a rollout",
		about: "Stops publication; published states stay. The process that runs the rollout ends with exit code 6. Afterwards you can " +
			"continue or undo the rollout, or publish another release.",
		examples: []string{"--key release.key plant", "--reason 'line 4 must not stop tonight' --key release.key plant"},
		flags:    append(signFlags(), reasonFlag(), unsignedFlag()),
		run:      p.rolloutHalt,
	})
}

func (p *program) rolloutUndoCommand() *cli.Command {
	return p.rolloutCommand(command{
		name:  "undo",
		usage: "restore what devices had before a rollout",
		about: "Publishes, for each device that the newest rollout has reached, its previous content as a new generation, because " +
			"devices reject older generations. A device that got another state since keeps it, and so does one that had nothing " +
			"before. First the command checks everything that devices would load, like fleet rollback: if something is missing for " +
			"a device, nothing is published. Exit code 0 means that all other devices were restored.",
		examples: []string{"--key release.key plant", "--reason 'vision loses frames' --key release.key plant"},
		flags:    slices.Concat(contentFlags(), signFlags(), []cli.Flag{reasonFlag(), unsignedFlag(), parallelFlag()}),
		run:      p.rolloutUndo,
	})
}

func reasonFlag() cli.Flag {
	return &cli.StringFlag{Name: "reason", Usage: "`TEXT` with the reason, for other people"}
}

type rolloutInfo struct {
	Fleet     string        `json:"fleet"`
	Reference string        `json:"reference"`
	Digest    digest.Digest `json:"digest"`
	Rollout   uint64        `json:"rollout"` // number
	Revision  uint64        `json:"revision"`
	Phase     string        `json:"phase"` // running, halted, rolling-back, rolled-back, done
	Reason    string        `json:"reason,omitempty"`
	By        string        `json:"by,omitempty"`
	Began     string        `json:"began"`
	Changed   string        `json:"changed"`
	Waves     []waveInfo    `json:"waves"`
}

type waveInfo struct {
	Name      string       `json:"name"`
	Group     string       `json:"group,omitempty"`
	Devices   int          `json:"devices"`
	State     string       `json:"state"` // pending, publishing, published, passed, failed, rolling-back, rolled-back
	Soak      string       `json:"soak"`
	Success   int          `json:"success"` // percent; 0: not waited for
	Published string       `json:"published,omitempty"`
	Well      string       `json:"well,omitempty"` // since when enough devices are
	Ended     string       `json:"ended,omitempty"`
	Reason    string       `json:"reason,omitempty"`
	Left      int          `json:"left"`              // devices that do not count any more
	Reports   *reportsInfo `json:"reports,omitempty"` // left out: nobody was asked
}

type reportsInfo struct {
	Well    int `json:"well"`
	Failed  int `json:"failed"`
	Working int `json:"working"`
	Silent  int `json:"silent"`
	Offline int `json:"offline"`
	Left    int `json:"left"`
	text    string
}

func describeRollout(l rollout.Store, rec *rollout.Record, tallies []rollout.WaveCount) rolloutInfo {
	x := rec.Rollout
	r := rolloutInfo{
		Fleet: x.Fleet, Reference: l.Repository() + ":" + x.Fleet, Digest: rec.Digest, Rollout: x.Number, Revision: rec.Revision, Phase: string(x.Phase),
		Reason: x.Reason, By: x.By, Began: stamp(x.Began), Changed: stamp(x.Changed), Waves: []waveInfo{},
	}
	for i, w := range x.Waves {
		info := waveInfo{
			Name: w.Name, Group: w.Group, Devices: w.Devices, State: string(w.State), Soak: w.Soak.String(), Success: w.Success, Published: stamp(w.Published),
			Well: stamp(w.Well), Ended: stamp(w.Ended), Reason: w.Reason, Left: len(w.Left),
		}
		if tallies != nil && w.State != artifacts.WavePending {
			t := tallies[i]
			info.Reports = &reportsInfo{t.Well, t.Failed, t.Working, t.Silent, t.Offline, t.Left, t.String()}
		}
		r.Waves = append(r.Waves, info)
	}
	return r
}

func (r rolloutInfo) essence() string { return r.Digest.String() }

func (r rolloutInfo) text(w io.Writer) {
	width := len("WAVE")
	for _, x := range r.Waves {
		width = max(width, len(x.title()))
	}
	fmt.Fprintf(w, "%-*s  %7s  %-12s  %s\n", width, "WAVE", "DEVICES", "STATE", "REPORTS")
	for _, x := range r.Waves {
		reports := "–"
		switch {
		case x.Reports != nil:
			reports = x.Reports.text
		case x.State != string(artifacts.WavePending):
			reports = "not asked: longshore fleet rollout show"
		}
		fmt.Fprintf(w, "%-*s  %7d  %-12s  %s\n", width, x.title(), x.Devices, x.State, reports)
	}
	fmt.Fprintf(w, "\nrollout %d of %s: %s", r.Rollout, r.Fleet, r.Phase)
	if r.Reason != "" {
		fmt.Fprintf(w, ": %s", r.Reason)
	}
	fmt.Fprintln(w)
}

func (w waveInfo) title() string {
	if w.Group != "" {
		return w.Group + "/" + w.Name
	}
	return w.Name
}

// conduct is what a rollout is run with.
func (p *program) conduct(c *cli.Context, f *fleet.Fleet, s *session, o fleet.Options) rollout.Config {
	k := rollout.Config{
		Store: rollout.Of(f, registry.Upstream{Client: s.Client}, fleetPublisher{s}, o.Verify), Now: p.now, Interval: c.Duration("look-every"), Wait: !c.Bool("no-wait"), By: p.whoami(), Claim: uuid.NewString(),
		Parallel: c.Int("parallel"),
	}
	if !c.Bool("quiet") {
		k.Event = func(line string) { fmt.Fprintln(p.stderr, line) }
	}
	return k
}

// whoami names who runs this, for others to read.
func (p *program) whoami() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return cmp.Or(p.getenv("USER"), p.getenv("LOGNAME"), "somebody") + "@" + host
}

// rollOut begins or takes up a rollout, runs it, and shows what came of it.
func (p *program) rollOut(c *cli.Context, s *session, compiled *fleet.Compiled, o fleet.Options, start rollout.Start, show func(result) error) error {
	return p.runRollout(c, s, compiled, o, show, func(k rollout.Config) (*rollout.Run, *fleet.Plan, error) {
		return rollout.Begin(c.Context, compiled, k, o, start)
	})
}

func (p *program) runRollout(c *cli.Context, s *session, compiled *fleet.Compiled, o fleet.Options, show func(result) error, begin func(rollout.Config) (*rollout.Run, *fleet.Plan, error)) error {
	k := p.conduct(c, compiled.Fleet, s, o)
	e, err := p.endpoint(c, compiled.Fleet)
	if err != nil {
		return err
	}
	if e == nil {
		return fault.WithHint(misused(c, "the files define waves, and no fleet endpoint is named that reports how devices are"),
			"name the fleet endpoint with --endpoint, or as endpoint in fleet.yaml; or publish to all devices at once with --at-once")
	}
	defer e.Close()
	k.Endpoint = e
	run, plan, err := begin(k)
	if err != nil {
		return err
	}
	if run == nil {
		if err := someDevices(c, plan); err != nil {
			return err
		}
		return show(&fleetPublished{Fleet: plan.Fleet, Published: []fleetState{}, Same: plan.Count(fleet.Same), Skipped: plan.Count(fleet.Cannot), Signed: s.signer != nil})
	}
	err = run.Go(c.Context)
	if err == nil || errors.Is(err, fault.ErrRejected) {
		if shown := show(describeRollout(k.Store, run.Record(), nil)); shown != nil {
			return shown
		}
	}
	return err
}

// rolloutOnly opens what looking at a rollout and ending one need: no applications, no placements.
func (p *program) rolloutOnly(c *cli.Context, args []string, do func(f *fleet.Fleet, k rollout.Config) error) error {
	f, err := readFleet(fleetDirectory(args))
	if err != nil {
		return err
	}
	s, err := p.session(c, nil, true)
	if err != nil {
		return err
	}
	defer s.Close()
	o, err := p.fleetOptions(c, s.Client, s.signer)
	if err != nil {
		return err
	}
	k := p.conduct(c, f, s, o)
	if o.Content != nil || o.Trusted != nil {
		k.Loader = fleet.NewLoader(registry.Upstream{Client: s.Client}, o)
	}
	return do(f, k)
}

func (p *program) rolloutShow(c *cli.Context, args []string) error {
	return p.rolloutOnly(c, args, func(f *fleet.Fleet, k rollout.Config) error {
		rec, err := k.Store.Read(c.Context)
		if err != nil {
			return err
		}
		var tallies []rollout.WaveCount
		e, err := p.endpoint(c, f)
		if err != nil {
			return err
		}
		if e != nil {
			defer e.Close()
			if tallies, err = rollout.CountWaves(c.Context, e, rec.Rollout, p.now()); err != nil {
				return err
			}
		}
		if err := p.show(c, describeRollout(k.Store, rec, tallies)); err != nil {
			return err
		}
		switch rec.Rollout.Phase {
		case artifacts.RolloutDone:
			return nil
		case artifacts.RolloutRunning, artifacts.RolloutGoingBack:
			return outcome.Told(outcome.Differs)
		}
		return outcome.Told(outcome.Refused)
	})
}

func (p *program) rolloutContinue(c *cli.Context, args []string) error {
	if err := whoSigns(c); err != nil {
		return err
	}
	s, err := p.session(c, nil, true)
	if err != nil {
		return err
	}
	defer s.Close()
	compiled, o, err := p.readyFleet(c, s, fleetDirectory(args), true)
	if err != nil {
		return err
	}
	show := func(r result) error { return p.show(c, r) }
	return p.runRollout(c, s, compiled, o, show, func(k rollout.Config) (*rollout.Run, *fleet.Plan, error) {
		return rollout.Continue(c.Context, compiled, k, o, rollout.Start{Promote: c.StringSlice("promote"), Skip: c.Bool("skip-unfit")})
	})
}

func (p *program) rolloutHalt(c *cli.Context, args []string) error {
	if err := whoSigns(c); err != nil {
		return err
	}
	return p.rolloutOnly(c, args, func(_ *fleet.Fleet, k rollout.Config) error {
		rec, err := rollout.Halt(c.Context, k, cmp.Or(c.String("reason"), "by hand"))
		if err != nil {
			return err
		}
		return p.show(c, describeRollout(k.Store, rec, nil))
	})
}

func (p *program) rolloutUndo(c *cli.Context, args []string) error {
	if err := whoSigns(c); err != nil {
		return err
	}
	return p.rolloutOnly(c, args, func(_ *fleet.Fleet, k rollout.Config) error {
		run, err := rollout.Undo(c.Context, k, cmp.Or(c.String("reason"), "by hand"))
		if err != nil {
			return err
		}
		// That it was undone is what was asked for.
		if err := run.Go(c.Context); err != nil && run.Rollout().Phase != artifacts.RolloutRolledBack {
			return err
		}
		if err := p.show(c, describeRollout(k.Store, run.Record(), nil)); err != nil {
			return err
		}
		if run.Kept() > 0 {
			return outcome.Told(outcome.Refused)
		}
		return nil
	})
}
