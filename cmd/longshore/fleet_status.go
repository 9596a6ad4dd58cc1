package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/rollout"
	"github.com/longshore-dev/longshore/registry"
)

var fleetStatusCommand = command{
	name: "status", args: "[DIRECTORY]", max: 1,
	usage: "show what is published for each device",
	about: "Shows for each device whether its generation in the registry matches the files: current, behind, new (never published), or " +
		"cannot (get its deployments); with --resign also unsigned (by no known signer). With a fleet endpoint it also shows the " +
		"report of the device: well, working, waiting, failed with the reason, offline with the time, or silent, and the phase of a change that " +
		"is not complete, if the device says it. Exit code 1 means that a " +
		"device is not current, or does not report that it is well.",
	examples: []string{"", "--select line=a -o json plant", "--endpoint https://fleet.acme.example plant"},
	flags:    slices.Concat(planFlags, keyFlags, registryFlags),
	run:      (*call).fleetStatus,
}

type fleetStatusResult struct {
	Fleet   string         `json:"fleet"`
	Devices []deviceStatus `json:"devices"`
}

type deviceStatus struct {
	Device     string         `json:"device"`
	Group      string         `json:"group,omitempty"`
	Reference  string         `json:"reference"`
	State      string         `json:"state"`                // current, behind, unsigned, new, cannot, nothing
	Generation uint64         `json:"generation,omitempty"` // that is published; 0: none
	Digest     digest.Digest  `json:"digest,omitempty"`
	Reasons    []string       `json:"reasons,omitempty"`
	Reported   *reportedState `json:"reported,omitempty"` // left out: there is no fleet endpoint
}

// reportedState is what a device reports about its published state.
type reportedState struct {
	State     string `json:"state"` // well, working, waiting, failed, silent, offline, later, unverified
	Reason    string `json:"reason,omitempty"`
	Heard     string `json:"heard,omitempty"`        // "": never
	Offline   string `json:"offlineSince,omitempty"` // the time of the last report; "": it is online
	Agent     string `json:"agent,omitempty"`        // version of longshore-agent
	Accepted  uint64 `json:"accepted"`               // generations; 0: none
	Committed uint64 `json:"committed"`              // generation that ran completely

	Missed   uint64 `json:"missed,omitempty"`     // reports in the registry that newer ones replaced since the last run that read them
	Unheeded string `json:"unverified,omitempty"` // why the report in the registry does not count, if that at the endpoint does

	Progress  *artifacts.CurrentProgress  `json:"progress,omitempty"`  // of the change to the newest state; left out: it does not say
	Decisions []artifacts.CurrentDecision `json:"decisions,omitempty"` // of people at the device, the newest few, the last at the end
	held      bool                        // the last of them is why it waits, and the reason tells it
}

func (r fleetStatusResult) text(w io.Writer) {
	width := len("DEVICE")
	for _, d := range r.Devices {
		width = max(width, len(d.Device))
	}
	asked := len(r.Devices) > 0 && r.Devices[0].Reported != nil
	offline, reports, missed := 0, len("OFFLINE")+1, 0
	for _, d := range r.Devices {
		if d.Reported != nil {
			reports = max(reports, len(d.Reported.State))
			if d.Reported.Missed > 0 {
				missed++
			}
		}
		if d.Reported != nil && d.Reported.Offline != "" {
			offline++
			fmt.Fprintf(w, "! %s is offline since %s\n", d.Device, d.Reported.Offline)
		}
	}
	if offline > 0 {
		fmt.Fprintln(w)
	}
	column := func(s string) string {
		if !asked {
			return ""
		}
		return fmt.Sprintf("%-*s  ", reports, s)
	}
	fmt.Fprintf(w, "%-*s  %-8s  %10s  %s%s\n", width, "DEVICE", "STATE", "GENERATION", column("REPORTS"), "GROUP")
	counts := map[string]int{}
	for _, d := range r.Devices {
		counts[d.State]++
		generation := "–"
		if d.Generation > 0 {
			generation = fmt.Sprint(d.Generation)
		}
		report := ""
		if d.Reported != nil {
			report = d.Reported.State
			counts["is "+report]++
		}
		fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("%-*s  %-8s  %10s  %s%s", width, d.Device, d.State, generation, column(report), d.Group), " "))
		for _, why := range d.Reasons {
			fmt.Fprintf(w, "  %s\n", why)
		}
		if d.Reported != nil && d.Reported.Reason != "" {
			fmt.Fprintf(w, "  %s\n", d.Reported.Reason)
		}
		if d.Reported != nil && d.Reported.Unheeded != "" {
			fmt.Fprintf(w, "  report in the registry: %s\n", oneLine(d.Reported.Unheeded))
		}
		if d.Reported != nil && d.Reported.Progress.Uncommitted() {
			fmt.Fprintf(w, "  %s\n", d.Reported.Progress)
		}
		if x := d.Reported; x != nil && x.State != string(rollout.Well) && !x.held && len(x.Decisions) > 0 {
			fmt.Fprintf(w, "  %s\n", x.Decisions[len(x.Decisions)-1])
		}
	}
	fmt.Fprintf(w, "\n%d of %s current", counts["current"]+counts["nothing"], printable.Counted(len(r.Devices), "device"))
	if asked {
		fmt.Fprintf(w, ", %d well", counts["is well"])
	}
	if offline > 0 {
		fmt.Fprintf(w, ", %d offline", offline)
	}
	fmt.Fprintln(w)
	if missed > 0 {
		fmt.Fprintf(w, "reports of %s in the registry were replaced by newer ones before they were read\n", printable.Counted(missed, "device"))
	}
}

func (c *call) fleetStatus(args []string) error {
	plan, err := c.planToShow(args)
	if err != nil {
		return err
	}
	e, err := c.endpoint(plan.Definition())
	if err != nil {
		return err
	}
	var reports map[artifacts.DeviceID]rollout.DeviceStatus
	var unread error // without reports the rest is shown, too
	if e != nil {
		defer e.Close()
		reports, unread = rollout.DeviceStatuses(c.Context, plan, e)
	}
	r, differs := fleetStatusResult{Fleet: plan.Fleet, Devices: []deviceStatus{}}, plan.Count(fleet.Same) < len(plan.Devices)
	for _, d := range plan.Devices {
		s := deviceStatus{Device: string(d.Device), Group: d.Group(), Reference: d.Repository + ":" + d.Device.Tag(), Digest: d.Tagged, Reasons: d.Reasons}
		switch {
		case d.Action == fleet.Cannot:
			s.State, s.Generation = "cannot", d.TaggedGeneration
		case d.Resigned():
			s.State, s.Generation = "unsigned", d.Generation
		case d.Action == fleet.Publish && d.Tagged == "":
			s.State = "new"
		case d.Action == fleet.Publish:
			s.State, s.Generation = "behind", d.TaggedGeneration
		case d.Generation == 0:
			s.State = "nothing"
		default:
			s.State, s.Generation = "current", d.Generation
		}
		if x, asked := reports[d.Device]; asked {
			s.Reported = &reportedState{State: string(x.State), Reason: x.Why}
			if why := e.unverified(d.Device); why != "" && x.Seen == nil {
				s.Reported.State, s.Reported.Reason = "unverified", why
			} else {
				s.Reported.Unheeded = why
			}
			if e.seen != nil {
				s.Reported.Missed = e.seen.Missed(d.Device)
			}
			if x.Seen != nil {
				s.Reported.Heard, s.Reported.Agent, s.Reported.Accepted, s.Reported.Committed = stamp(x.Seen.Heard), x.Seen.Agent, x.Seen.Accepted, x.Seen.Committed
				s.Reported.Decisions, s.Reported.held = x.Seen.Waits.Decisions, x.Seen.Waits.Hold != nil
				s.Reported.Offline = stamp(x.Seen.OfflineSince)
				if p := x.Seen.Progress; p != nil && p.Phase != "" {
					s.Reported.Progress = p
				}
			}
			differs = differs || x.State != rollout.Well && s.State != "nothing"
		}
		r.Devices = append(r.Devices, s)
	}
	err = cmp.Or(c.show(r), unread)
	if err == nil && differs {
		err = outcome.Told(outcome.Differs)
	}
	return err
}

var fleetDiffCommand = command{
	name: "diff", args: "[DIRECTORY]", max: 1,
	usage: "show what publishing would change in the documents, line by line",
	about: "Compares each device's ApplicationDeployments in the registry with those that the files define. Devices with the same " +
		"changed lines are listed together. Exit code 1 means that there is a difference, 6 that a device cannot get its " +
		"deployments; such devices are not shown.",
	examples: []string{"", "--select device=press-07 plant"},
	flags:    slices.Concat(planFlags, keyFlags, registryFlags),
	run:      (*call).fleetDiff,
}

type fleetDiffResult struct {
	Fleet string                `json:"fleet"`
	Diffs []*fleet.DocumentDiff `json:"diffs"`
}

func (r fleetDiffResult) text(w io.Writer) {
	for _, d := range r.Diffs {
		fmt.Fprintf(w, "# %s\n%s\n", strings.Join(d.Devices, ", "), strings.Join(d.Lines, "\n"))
	}
}

func (c *call) fleetDiff(args []string) error {
	plan, err := c.planToShow(args)
	if err != nil {
		return err
	}
	diffs, err := plan.Diffs(c.Context, registry.Upstream{Client: c.registry})
	if err != nil {
		return err
	}
	if err := c.show(fleetDiffResult{plan.Fleet, diffs}); err != nil {
		return err
	}
	switch {
	case plan.Count(fleet.Cannot) > 0 && !c.Bool("skip-unfit"):
		return plan.Unfit()
	case len(diffs) > 0:
		return outcome.Told(outcome.Differs)
	}
	return nil
}

// planToShow plans for a command that does not publish.
func (c *call) planToShow(args []string) (*fleet.Plan, error) {
	if err := c.openSigner(true); err != nil {
		return nil, err
	}
	compiled, o, err := c.readyFleet(fleetDirectory(args), true)
	if err != nil {
		return nil, err
	}
	return c.planReady(compiled, o)
}
