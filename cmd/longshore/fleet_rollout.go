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

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/rollout"
	"github.com/longshore-dev/longshore/registry"
)

var noWaitFlag = cmdline.Flag{Name: "no-wait", Value: false, Usage: "do only what can be done now, and end with exit code 0; run the command again to continue"}

var lookFlag = cmdline.Flag{Name: "look-every", Value: 10 * time.Second, Usage: "`TIME` between two queries of the device reports"}

var fleetRolloutCommands = group("rollout", "show, halt, continue and undo a rollout in waves",
	rolloutShowCommand, rolloutHistoryCommand, rolloutContinueCommand, rolloutHaltCommand, rolloutUndoCommand)

// rolloutCommand adds the argument and the flags that all commands about the newest rollout have.
func rolloutCommand(d command) command {
	d.args, d.max = "[DIRECTORY]", 1
	d.flags = slices.Concat(d.flags, signedByFlags(publishedNow, ""), registryFlags)
	return d
}

var rolloutShowCommand = rolloutCommand(command{
	name:  "show",
	usage: "show the progress of a rollout",
	about: "Shows the newest rollout of a fleet from the registry and, with a fleet endpoint, the device reports of each wave. Of the " +
		"files it uses only the fleet's name, registry and endpoint. Exit code 0 means done, 1 in progress, 6 halted or rolled " +
		"back.",
	examples: []string{"plant", "--endpoint https://fleet.acme.example --verify-key release.pub -o json plant"},
	flags:    slices.Concat(keyFlags, endpointFlags),
	run:      (*call).rolloutShow,
})

var rolloutContinueCommand = rolloutCommand(command{
	name:  "continue",
	usage: "continue a rollout that was halted, or that runs on another machine",
	about: "Continues the rollout and evaluates a failed wave again. With --promote NAME this wave counts as passed, whatever its " +
		"devices report. The files must be those that the rollout was started with. If another process runs the rollout, that " +
		"one ends with exit code 6.",
	examples: []string{"--key release.key plant", "--promote canary --key release.key --endpoint https://fleet.acme.example plant"},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "promote", Value: []string(nil), Usage: "`NAME` of a failed or incomplete wave to count as passed, GROUP/NAME for a group's wave; may be repeated"},
		noWaitFlag, lookFlag, unsignedFlag,
		skipUnfitFlag, parallelFlag,
	}, endpointFlags, signFlags),
	run: (*call).rolloutContinue,
})

var rolloutHaltCommand = rolloutCommand(command{
	name:  "halt",
	usage: "stop a rollout",
	about: "Stops publication; published states stay. The process that runs the rollout ends with exit code 6. Then you can continue " +
		"or undo the rollout, or publish another release.",
	examples: []string{"--key release.key plant", "--reason 'line 4 must not stop tonight' --key release.key plant"},
	flags:    slices.Concat(signFlags, []cmdline.Flag{reasonFlag, unsignedFlag}),
	run:      (*call).rolloutHalt,
})

var rolloutUndoCommand = rolloutCommand(command{
	name:  "undo",
	usage: "roll devices back to what they had before a rollout",
	about: "Publishes the previous content of each device that the newest rollout has reached, as a new generation, because devices " +
		"refuse older generations. Devices that have another state since then, or had none before, stay " +
		"unchanged. First the command checks everything that devices would load: if something is missing for a device, " +
		"nothing is published. Exit code 0 means that all other devices were rolled back.\n\nStates that need several signers by " +
		"--policy are not undone in one step: propose the former ones with longshore fleet rollback --previous.",
	examples: []string{"--key release.key plant", "--reason 'vision loses frames' --key release.key plant"},
	flags:    slices.Concat(contentFlags, signFlags, []cmdline.Flag{reasonFlag, unsignedFlag, parallelFlag}),
	run:      (*call).rolloutUndo,
})

var reasonFlag = cmdline.Flag{Name: "reason", Usage: "`TEXT` with the reason, for other people"}

type rolloutInfo struct {
	Fleet     string `json:"fleet"`
	Reference string `json:"reference"`
	digested
	Rollout  uint64     `json:"rollout"` // number
	Revision uint64     `json:"revision"`
	Phase    string     `json:"phase"` // running, halted, rolling-back, rolled-back, done
	Reason   string     `json:"reason,omitempty"`
	By       string     `json:"by,omitempty"`
	Began    string     `json:"began"`
	Changed  string     `json:"changed"`
	Waves    []waveInfo `json:"waves"`
}

type waveInfo struct {
	Name      string             `json:"name"`
	Group     string             `json:"group,omitempty"`
	Devices   int                `json:"devices"`
	State     string             `json:"state"` // pending, publishing, published, passed, failed, rolling-back, rolled-back
	Soak      string             `json:"soak"`
	Success   int                `json:"success"` // percent; 0: not waited for
	Published string             `json:"published,omitempty"`
	Well      string             `json:"well,omitempty"` // since when enough devices are well
	Ended     string             `json:"ended,omitempty"`
	Reason    string             `json:"reason,omitempty"`
	Left      int                `json:"left"`              // devices that no longer count
	Reports   *rollout.WaveCount `json:"reports,omitempty"` // left out: not requested
}

func describeRollout(l rollout.Store, rec *rollout.Record, tallies []rollout.WaveCount) rolloutInfo {
	x := rec.Rollout
	r := rolloutInfo{
		Fleet: x.Fleet, Reference: l.Repository() + ":" + x.Fleet, digested: digested{rec.Digest}, Rollout: x.Number, Revision: rec.Revision, Phase: string(x.Phase),
		Reason: x.Reason, By: x.By, Began: stamp(x.Began), Changed: stamp(x.Changed), Waves: []waveInfo{},
	}
	for i, w := range x.Waves {
		info := waveInfo{
			Name: w.Name, Group: w.Group, Devices: w.Devices, State: string(w.State), Soak: w.Soak.String(), Success: w.Success, Published: stamp(w.Published),
			Well: stamp(w.Well), Ended: stamp(w.Ended), Reason: w.Reason, Left: len(w.Left),
		}
		if tallies != nil && w.State != artifacts.WavePending {
			info.Reports = &tallies[i]
		}
		r.Waves = append(r.Waves, info)
	}
	return r
}

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
			reports = x.Reports.String()
		case x.State != string(artifacts.WavePending):
			reports = "see longshore fleet rollout show"
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

// conduct configures the run of a rollout.
func (c *call) conduct(f *fleet.Fleet, o fleet.Options) rollout.Config {
	k := rollout.Config{
		Store: rollout.Of(f, registry.Upstream{Client: c.registry}, &fleetPublisher{call: c}, o.Verify), Now: c.now, Interval: c.Duration("look-every"), Wait: !c.Bool("no-wait"), By: c.whoami(), Claim: uuid.NewString(),
		Parallel: c.Int("parallel"),
	}
	if !c.Bool("quiet") {
		k.Event = func(line string) { fmt.Fprintln(c.stderr, line) }
	}
	return k
}

// whoami names the user and the machine, for other people.
func (p *program) whoami() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return cmp.Or(p.getenv("USER"), p.getenv("LOGNAME"), "unknown") + "@" + host
}

// What to do if states need several signers.
const (
	hintWaves    = "propose the states of one wave after the other: longshore fleet publish --at-once --select SELECTOR --policy FILE"
	hintContinue = "end it with longshore fleet rollout halt, and " + hintWaves
	hintUndo     = "propose the former states: longshore fleet rollback --previous --policy FILE"
)

// rollOut starts or continues a rollout, runs it, and prints the result.
func (c *call) rollOut(compiled *fleet.Compiled, o fleet.Options, start rollout.Start, show func(result) error) error {
	return c.runRollout(compiled, o, hintWaves, show, func(k rollout.Config) (*rollout.Run, *fleet.Plan, error) {
		return rollout.Begin(c.Context, compiled, k, o, start)
	})
}

func (c *call) runRollout(compiled *fleet.Compiled, o fleet.Options, instead string, show func(result) error, begin func(rollout.Config) (*rollout.Run, *fleet.Plan, error)) error {
	if err := c.refuseWaves(compiled.Fleet, o, instead); err != nil {
		return err
	}
	k := c.conduct(compiled.Fleet, o)
	e, err := c.endpoint(compiled.Fleet)
	if err != nil {
		return err
	}
	if e == nil {
		return fault.WithHint(c.misused("the files define waves, but no fleet endpoint that has the device reports"),
			"name the fleet endpoint with --endpoint, or as endpoint in fleet.yaml; or publish to all devices at once with --at-once")
	}
	defer e.Close()
	k.Endpoint = e
	run, plan, err := begin(k)
	if err != nil {
		return err
	}
	if run == nil {
		if err := c.checkSelection(plan); err != nil {
			return err
		}
		return show(&fleetPublished{Fleet: plan.Fleet, Published: []fleetState{}, Same: plan.Count(fleet.Same), Skipped: plan.Count(fleet.Cannot), Signed: c.signer != nil})
	}
	err = run.Go(c.Context)
	if err == nil || errors.Is(err, fault.ErrRejected) {
		if shown := show(describeRollout(k.Store, run.Record(), nil)); shown != nil {
			return shown
		}
	}
	return err
}

// rolloutOnly opens what showing and ending a rollout need: no applications, no placements. open opens the signer.
func (c *call) rolloutOnly(args []string, open func(once bool) error, do func(f *fleet.Fleet, k rollout.Config) error) error {
	f, err := readFleet(fleetDirectory(args))
	if err != nil {
		return err
	}
	if err := open(true); err != nil {
		return err
	}
	o, err := c.fleetOptions()
	if err != nil {
		return err
	}
	k := c.conduct(f, o)
	if o.Content != nil || o.Trusted != nil {
		k.Loader = fleet.NewLoader(registry.Upstream{Client: c.registry}, o)
	}
	return do(f, k)
}

func (c *call) rolloutShow(args []string) error {
	return c.rolloutOnly(args, c.openSigner, func(f *fleet.Fleet, k rollout.Config) error {
		rec, err := k.Store.Read(c.Context)
		if err != nil {
			return err
		}
		var tallies []rollout.WaveCount
		e, err := c.endpoint(f)
		if err != nil {
			return err
		}
		if e != nil {
			defer e.Close()
			tallies, err = rollout.CountWaves(c.Context, e, rec.Rollout, c.now()) // without reports the rest is shown, too
		}
		if err := cmp.Or(c.show(describeRollout(k.Store, rec, tallies)), err); err != nil {
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

func (c *call) rolloutContinue(args []string) error {
	if err := c.openPublisher(true); err != nil {
		return err
	}
	compiled, o, err := c.readyFleet(fleetDirectory(args), true)
	if err != nil {
		return err
	}
	return c.runRollout(compiled, o, hintContinue, c.show, func(k rollout.Config) (*rollout.Run, *fleet.Plan, error) {
		return rollout.Continue(c.Context, compiled, k, o, rollout.Start{Promote: c.StringSlice("promote"), Skip: c.Bool("skip-unfit")})
	})
}

func (c *call) rolloutHalt(args []string) error {
	return c.rolloutOnly(args, c.openPublisher, func(_ *fleet.Fleet, k rollout.Config) error {
		rec, err := rollout.Halt(c.Context, k, cmp.Or(c.String("reason"), "by hand"))
		if err != nil {
			return err
		}
		return c.show(describeRollout(k.Store, rec, nil))
	})
}

func (c *call) rolloutUndo(args []string) error {
	return c.rolloutOnly(args, c.openPublisher, func(f *fleet.Fleet, k rollout.Config) error {
		if err := c.refuseWaves(f, fleet.Options{}, hintUndo); err != nil {
			return err
		}
		run, err := rollout.Undo(c.Context, k, cmp.Or(c.String("reason"), "by hand"))
		if err != nil {
			return err
		}
		// A rollout that was rolled back is what the user wants.
		if err := run.Go(c.Context); err != nil && run.Rollout().Phase != artifacts.RolloutRolledBack {
			return err
		}
		if err := c.show(describeRollout(k.Store, run.Record(), nil)); err != nil {
			return err
		}
		if run.Kept() > 0 {
			return outcome.Told(outcome.Refused)
		}
		return nil
	})
}
