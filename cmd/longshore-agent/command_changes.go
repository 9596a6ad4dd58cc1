package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// operatorSocket is where the members of approvals.group may ask and decide: beside the run directory, which is root's alone.
func operatorSocket(runDir string) string { return runDir + "-operators/agent.sock" }

var socketFlag = cmdline.Flag{Name: "socket", Usage: "`SOCKET` of the agent (default: that of the configuration, for other users than root the operators' socket)", Env: env("SOCKET")}

// operatorOf asks the agent as root does, or as a member of approvals.group.
func operatorOf(c *cmdline.Context) (*control.Client, error) {
	if path := c.String("socket"); path != "" {
		return control.NewClient(path), nil
	}
	cfg, err := readConfig(c.String("config"))
	switch {
	case errors.Is(err, fault.ErrDenied) || errors.Is(err, fs.ErrPermission):
		return control.NewClient(operatorSocket(config.DefaultRunDir)), nil // its configuration is not for everybody
	case err != nil:
		return nil, err
	case !writable(socketPath(cfg)):
		if _, err := os.Stat(operatorSocket(cfg.RunDir)); err == nil {
			return control.NewClient(operatorSocket(cfg.RunDir)), nil
		}
	}
	return control.NewClient(socketPath(cfg)), nil
}

var changesCommand = cmdline.Command{
	Name: "changes", Usage: "list the changes that wait, and why",
	About: "A change is what the accepted state changes of one deployment. It waits for an approval, an update lock of the application, or a\n" +
		"window for changes, as agent.yaml says. What runs continues. The change trust-policy is the next version of the trust policy.\n\n" +
		"Examples:\n  longshore-agent changes\n  longshore-agent changes -o json\n\n" + outcome.Help,
	Flags: []cmdline.Flag{configFlag, socketFlag, outputFlag},
	Run: shows(operatorOf, func(c *cmdline.Context, agent *control.Client) ([]status.Change, error) {
		return agent.Changes(c.Context)
	}, writeChanges),
}

var (
	reasonFlag    = cmdline.Flag{Name: "reason", Usage: "`TEXT` with the reason, for the event log and the reports"}
	idFlag        = cmdline.Flag{Name: "id", Usage: "decide only if the change is still the one with this `ID`, as changes -o json shows it"}
	decisionFlags = []cmdline.Flag{configFlag, socketFlag, outputFlag, idFlag, reasonFlag}
)

const aboutDecisions = "A decision is about the change that waits now: if the state changes, the new change waits for its own decision. The agent records who\n" +
	"decided, when and what. A change that has begun cannot be stopped. trust-policy names the next version of the trust policy.\n\n"

var decisionCommands = []cmdline.Command{
	{
		Name: "approve", Usage: "let changes of deployments begin", Args: "DEPLOYMENT ...",
		About: aboutDecisions + "Examples:\n  longshore-agent approve vision\n  longshore-agent approve --all\n\n" + outcome.Help,
		Flags: append([]cmdline.Flag{{Name: "all", Value: false, Usage: "approve every change of a deployment that waits"}}, decisionFlags...),
		Run:   func(c *cmdline.Context) error { return decide(c, control.Decision{Verdict: store.Approved}) },
	},
	{
		Name: "reject", Usage: "keep what runs instead of a change", Args: "DEPLOYMENT ...",
		About: aboutDecisions + "Examples:\n  longshore-agent reject vision --reason 'camera 2 is not calibrated'\n\n" + outcome.Help,
		Flags: decisionFlags,
		Run:   func(c *cmdline.Context) error { return decide(c, control.Decision{Verdict: store.Rejected}) },
	},
	{
		Name: "postpone", Usage: "decide on a change later", Args: "DEPLOYMENT ...",
		About: aboutDecisions + "Examples:\n  longshore-agent postpone vision --for 8h\n  longshore-agent postpone vision --until 2026-12-01T22:00:00Z\n\n" + outcome.Help,
		Flags: append([]cmdline.Flag{
			{Name: "for", Value: time.Duration(0), Usage: "`DURATION` from now, at most 90 days: 8h", Default: "none"},
			{Name: "until", Usage: "`TIME` until which nothing changes, at most 90 days from now: 2026-12-01T22:00:00Z, or 2026-12-01 22:00 in local time"},
		}, decisionFlags...),
		Run: func(c *cmdline.Context) error {
			d := control.Decision{Verdict: store.Postponed}
			until := c.String("until")
			if (until == "") == !c.IsSet("for") {
				return outcome.Usagef("postpone", "give --for or --until")
			}
			if until == "" {
				d.Until = time.Now().Add(c.Duration("for"))
			} else if d.Until = timeOf(until); d.Until.IsZero() {
				return outcome.Usagef("postpone", "--until: %q is no time: write 2026-12-01T22:00:00Z, or 2026-12-01 22:00 for local time; a span from now is --for 8h", until)
			}
			return decide(c, d)
		},
	},
}

// decide decides on the changes of the deployments that are named, each as it was just listed.
func decide(c *cmdline.Context, d control.Decision) error {
	names := c.Args
	client, err := operatorOf(c)
	if err != nil {
		return err
	}
	if len(names) == 0 != c.Bool("all") {
		return outcome.Usagef(c.Command, "name the deployments whose changes are meant")
	}
	d.Reason = c.String("reason")
	if d.Verdict == store.Rejected && d.Reason == "" {
		return outcome.Usagef(c.Command, "give a reason with --reason")
	}
	all, err := client.Changes(c.Context)
	if err != nil {
		return err
	}
	if c.Bool("all") {
		for _, x := range all {
			if x.Begun.IsZero() && x.Trust == nil {
				names = append(names, x.DeploymentID)
			}
		}
	}
	var errs []error
	done := []status.Change{}
	for _, name := range names {
		d.Deployment, d.ID, d.Seen = name, digest.Digest(c.String("id")), nil
		for _, x := range all {
			if x.Deployment != name && x.DeploymentID != name {
				continue
			}
			d.ID, d.Seen = cmp.Or(d.ID, x.ID), new(time.Time)
			if x.Decision != nil {
				*d.Seen = x.Decision.At
			}
		}
		x, err := client.Decide(c.Context, d)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		done = append(done, x)
	}
	err = c.Show(done, func(w io.Writer) {
		for _, x := range done {
			fmt.Fprintf(w, "%s   %s   %s\n", d.Verdict, x.Deployment, changeText(x))
			if x.Waiting != nil && d.Verdict == store.Approved {
				fmt.Fprintf(w, "  %s\n", x.Waiting.Message)
			}
		}
	})
	return errors.Join(append(errs, err)...)
}

var rollbackCommands = []cmdline.Command{
	{
		Name: "rollback", Usage: "go back to a generation that ran before, and stay there",
		About: "The device keeps the generation until the registry has another state than the one that is accepted now, or until\n" +
			"longshore-agent release. Its signatures and those of its components and images, which are on the device, are verified again: a generation\n" +
			"that the current trust policy does not accept, or that it has revoked, is rejected with exit code 6.\n" +
			"Without --to it is the generation that ran completely before.\n\n" +
			"Examples:\n  longshore-agent rollback --reason 'line 3 stops since the update'\n  longshore-agent rollback --to 41\n\n" + outcome.Help,
		Flags: []cmdline.Flag{
			configFlag, socketFlag, outputFlag,
			{Name: "to", Value: uint64(0), Usage: "`NUMBER` of the generation", Default: "the one that ran completely before"},
			reasonFlag,
		},
		Run: shows(operatorOf, func(c *cmdline.Context, agent *control.Client) (status.Hold, error) {
			return agent.RollBack(c.Context, control.Rollback{To: c.Uint64("to"), Reason: c.String("reason")})
		}, func(w io.Writer, h status.Hold) {
			fmt.Fprintf(w, "generation %d is restored and held; longshore-agent release ends that\n", h.Generation)
		}),
	},
	{
		Name: "release", Usage: "end a rollback by hand: apply the accepted state",
		About: "Examples:\n  longshore-agent release\n\n" + outcome.Help,
		Flags: []cmdline.Flag{configFlag, socketFlag, outputFlag},
		Run: shows(operatorOf, func(c *cmdline.Context, agent *control.Client) (status.Hold, error) { return agent.Release(c.Context) },
			func(w io.Writer, h status.Hold) { fmt.Fprintf(w, "released from generation %d\n", h.Generation) }),
	},
}

func writeChanges(w io.Writer, all []status.Change) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "DEPLOYMENT\tGENERATION\tCHANGE\tSTATE")
	for _, x := range all {
		state := "may begin"
		switch {
		case !x.Begun.IsZero():
			state = "begun"
		case x.Waiting != nil:
			state = x.Waiting.Message
		}
		generation := "-"
		if x.Trust == nil {
			generation = fmt.Sprint(x.Generation)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", x.Deployment, generation, changeText(x), state)
	}
	_ = t.Flush() // the writer's own errors show at the next Fprintf
	for _, x := range all {
		if x.Trust != nil {
			fmt.Fprintf(w, "\n%s version %d (%s), signed by %s:\n", x.Deployment, x.Trust.Version, x.ID, strings.Join(x.Trust.SignedBy, ", "))
			for _, c := range x.Trust.Changes {
				fmt.Fprintf(w, "  %s\n", c)
			}
		}
	}
}

// changeText says what a change does: "image vision 0.9.1 → 0.9.2, restarts 1 of 2 services, 41 MB to load".
func changeText(x status.Change) string {
	if x.Trust != nil {
		return fmt.Sprintf("version %d", x.Trust.Version)
	}
	var parts []string
	for _, i := range x.Images {
		to := cmp.Or(i.ToTag, shortImage(i.To))
		switch from := cmp.Or(i.FromTag, shortImage(i.From)); {
		case from == "":
			parts = append(parts, fmt.Sprintf("image %s %s", i.Service, to))
		case from == to:
			parts = append(parts, fmt.Sprintf("image %s %s → %s", i.Service, shortImage(i.From), shortImage(i.To)))
		default:
			parts = append(parts, fmt.Sprintf("image %s %s → %s", i.Service, from, to))
		}
	}
	for _, k := range x.Kinds {
		if k != plan.Images {
			parts = append(parts, string(k))
		}
	}
	if x.Restarts > 0 {
		parts = append(parts, fmt.Sprintf("restarts %d of %d containers", x.Restarts, x.Containers))
	}
	if x.Bytes > 0 {
		parts = append(parts, printable.Bytes(x.Bytes)+" to load")
	}
	return strings.Join(parts, ", ")
}

// shortImage is a reference by digest, for people.
func shortImage(image string) string {
	_, d, ok := strings.Cut(image, "@sha256:")
	if !ok {
		return image
	}
	return d[:min(12, len(d))]
}
