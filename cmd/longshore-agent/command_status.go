package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

var outputFlag = cmdline.OutputFlag(env("OUTPUT"))

var statusCommand = cmdline.Command{
	Name:  "status",
	Usage: "show the status of this device, problems first",
	About: "Queries the running agent. Exit code 4 means that no agent runs.\n\n" +
		"Examples:\n  longshore-agent status\n  longshore-agent status -o json",
	Flags: []cmdline.Flag{configFlag, socketFlag, outputFlag},
	Run: shows(operatorOf, func(c *cmdline.Context, agent *control.Client) (*status.Status, error) {
		return agent.Status(c.Context)
	}, writeStatus),
}

var syncCommand = cmdline.Command{
	Name:  "sync",
	Usage: "check the registry now and wait for the result",
	About: "Ends when the state in the registry runs, was refused, or could not be fetched.\n" +
		"Exit code 0 in sync, 1 accepted but not running completely, 6 refused, 75 registry not reached or --timeout expired: the\n" +
		"agent continues.\n\n" +
		"Examples:\n  longshore-agent sync\n  longshore-agent sync --timeout 5m -o json",
	Flags: []cmdline.Flag{
		configFlag, socketFlag, outputFlag,
		{Name: "timeout", Value: time.Duration(0), Usage: "`TIME` to wait at most", Default: "no limit", Env: env("TIMEOUT")},
	},
	Run: syncNow,
}

func syncNow(c *cmdline.Context) error {
	client, err := operatorOf(c)
	if err != nil {
		return err
	}
	ctx := c.Context
	if d := c.Duration("timeout"); d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	r, err := client.Sync(ctx)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && c.Context.Err() == nil {
		return unfinished(c.Context, client, c.Duration("timeout"))
	}
	if err != nil {
		return err
	}
	if err := c.Show(r, func(w io.Writer) {
		fmt.Fprint(w, r.Outcome)
		if r.Generation > 0 {
			fmt.Fprintf(w, "   generation %d", r.Generation)
		}
		fmt.Fprintln(w)
	}); err != nil {
		return err
	}
	told := fmt.Errorf("generation %d: %s: %s", r.Generation, r.Code, r.Message)
	switch r.Outcome {
	case status.SyncRefused:
		told = fmt.Errorf("%w: %w", told, fault.ErrRejected)
	case status.SyncUnreachable:
		told = fmt.Errorf("%s: %s: %w", r.Code, r.Message, fault.ErrTemporary)
	case status.SyncFailed, status.SyncWaiting:
		told = outcome.WithCode(told, outcome.Differs)
	default:
		return nil
	}
	return fault.WithHint(told, r.Hint)
}

// statusLimit is how long an agent that did not finish within a timeout has to say what it is doing.
const statusLimit = 5 * time.Second

// unfinished says what the agent is still doing when the time to wait for it is over. An agent that does not even say that
// has its own error.
func unfinished(ctx context.Context, client *control.Client, waited time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, statusLimit)
	defer cancel()
	s, err := client.Status(ctx)
	if err != nil {
		return fmt.Errorf("no outcome after %v: %w", waited, err)
	}
	return fault.WithHint(outcome.WithCode(fmt.Errorf("no outcome after %v: still %s", waited, underWay(s)), outcome.Temporary),
		"the agent goes on: longshore-agent status, or sync again with a longer --timeout")
}

// shows is the action of a command that asks the agent one thing and prints the answer.
func shows[T any](
	connect func(*cmdline.Context) (*control.Client, error), ask func(*cmdline.Context, *control.Client) (T, error), text func(io.Writer, T),
) func(*cmdline.Context) error {
	return func(c *cmdline.Context) error {
		agent, err := connect(c)
		if err != nil {
			return err
		}
		answer, err := ask(c, agent)
		if err != nil {
			return err
		}
		return c.Show(answer, func(w io.Writer) { text(w, answer) })
	}
}

func clientOf(c *cmdline.Context) (*control.Client, error) {
	cfg, err := readConfig(c.String("config"))
	if err != nil {
		return nil, err
	}
	return control.NewClient(socketPath(cfg)), nil
}

// ago is a duration for people: one unit, rounded down.
func ago(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", max(0, int(d/time.Second)))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d/time.Minute))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d/time.Hour))
	}
	return fmt.Sprintf("%d d", int(d/(24*time.Hour)))
}

func colour(w io.Writer) bool {
	return os.Getenv("NO_COLOR") == "" && cmdline.Terminal(w) != nil
}
