// Command longshore-fleet receives what devices report about themselves and their deployments, in the form of the Margo
// management API, and shows it on one page and as JSON.
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
	_ "time/tzdata" // windows in states name time zones

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet/store"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// program is what the commands share.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	now            func() time.Time
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	stdout, stderr = printable.NewWriter(stdout), printable.NewWriter(stderr)
	p := &program{stdin: stdin, stdout: stdout, stderr: stderr, now: time.Now}
	app := &cli.App{
		Name:                 "longshore-fleet",
		Usage:                "receive and show reports of devices",
		HideVersion:          true,
		Writer:               stdout,
		ErrWriter:            stderr,
		EnableBashCompletion: true,
		ExitErrHandler:       func(*cli.Context, error) {}, // errors are told once, below
		Commands: []*cli.Command{
			p.serveCommand(), p.collectCommand(), p.tokenCommand(), p.devicesCommand(), p.joinTokenCommand(), p.caCommand(), p.backupCommand(), p.restoreCommand(), p.unitCommand(), p.completionCommand(),
			cmdline.Version("longshore-fleet", stdout),
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return outcome.Usagef("", "%q is not a command of longshore-fleet", c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
	}
	onUsageError(app.Commands)
	app.OnUsageError = func(_ *cli.Context, err error, _ bool) error { return outcome.Usagef("", "%v", err) }
	if len(args) > 1 && args[1] == cmdline.CompleteCommand {
		cmdline.Complete(stdout, app, args[2:], func(*cmdline.Completion, string, string) ([]string, bool) { return nil, false })
		_ = printable.Flush(stdout) // the shell does not show errors
		return outcome.OK
	}
	line, err := cmdline.Arrange(app, args[1:], nil)
	if err == nil {
		err = app.RunContext(ctx, append(args[:1:1], line...))
	}
	if last := printable.Flush(stdout); err == nil {
		err = last
	}
	if err != nil {
		outcome.Tell(stderr, "longshore-fleet", err)
	}
	_ = printable.Flush(stderr) // there is no other place to say so
	return outcome.Code(err)
}

func onUsageError(commands []*cli.Command) {
	for _, c := range commands {
		c.OnUsageError = func(_ *cli.Context, err error, _ bool) error { return outcome.Usagef("", "%v", err) }
		onUsageError(c.Subcommands)
	}
}

const exitCodes = "Exit codes: 0 done; 2 usage; 4 not found; 75 temporary, try again; 70 anything else."

// env names the variable of a flag. A flag beats the variable, the variable beats the default.
func env(flag string) []string {
	return []string{"LONGSHORE_FLEET_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))}
}

const defaultDatabase = "/var/lib/longshore-fleet/fleet.db"

func databaseFlag() cli.Flag {
	return &cli.StringFlag{Name: "database", Usage: "SQLite `FILE`, created if it is missing", Value: defaultDatabase, EnvVars: env("database")}
}

//go:embed longshore-fleet.service
var unit []byte

func (p *program) unitCommand() *cli.Command {
	return &cli.Command{
		Name:  "unit",
		Usage: "print the systemd unit",
		Description: "The unit expects the program at /usr/local/bin/longshore-fleet. Settings are LONGSHORE_FLEET_… variables in\n" +
			"/etc/longshore/fleet.env.\n\n" +
			"   longshore-fleet unit >/etc/systemd/system/longshore-fleet.service\n\n" + exitCodes,
		Action: func(c *cli.Context) error {
			if err := noArguments(c); err != nil {
				return err
			}
			_, err := p.stdout.Write(unit)
			return err
		},
	}
}

func (p *program) completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a shell completion script",
		ArgsUsage: "bash|zsh|fish",
		Description: "bash: source it, or install it in /etc/bash_completion.d. zsh: source it after compinit. fish: install it in\n" +
			"~/.config/fish/completions.\n\n" +
			"   longshore-fleet completion bash >/etc/bash_completion.d/longshore-fleet\n\n" + exitCodes,
		Action: func(c *cli.Context) error { return cmdline.WriteScript(p.stdout, c.App.Name, c.Args().Slice()) },
	}
}

func noArguments(c *cli.Context) error {
	if c.Args().Present() {
		return outcome.Usagef("", "%s takes no argument, got %q", c.Command.Name, c.Args().First())
	}
	return nil
}

// open opens the database that the flags name.
func (p *program) open(c *cli.Context, log *slog.Logger) (*store.SQLite, error) {
	s, err := store.Open(c.Context, c.String("database"), log)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrNotFound), "make its folder, or name another file with --database")
	}
	return s, err
}
