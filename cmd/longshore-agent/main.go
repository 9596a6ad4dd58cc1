// Command longshore-agent keeps a device at its signed release: it asks the registry what should run, checks that it may,
// and has containerd run it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

// version is set when a release is built.
var version = "devel"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// program is what the commands share: where they may write.
type program struct {
	stdout, stderr io.Writer
}

func run(ctx context.Context, args []string, _ io.Reader, stdout, stderr io.Writer) int {
	p := &program{stdout: stdout, stderr: stderr}
	app := &cli.App{
		Name:                 "longshore-agent",
		Usage:                "keep this device at its signed release",
		Version:              version,
		HideVersion:          true,
		Writer:               stdout,
		ErrWriter:            stderr,
		EnableBashCompletion: true,
		ExitErrHandler:       func(*cli.Context, error) {}, // errors are told once, below
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return usageError{err}
		},
		Commands: []*cli.Command{
			p.initCommand(), p.runCommand(), p.statusCommand(), p.syncCommand(), p.logsCommand(), p.checkConfigCommand(),
			{
				Name: "version", Usage: "print the version",
				Action: func(*cli.Context) error {
					_, err := fmt.Fprintln(stdout, version)
					return err
				},
			},
		},
	}
	for _, c := range app.Commands {
		c.OnUsageError = app.OnUsageError
	}
	app.Action = func(c *cli.Context) error {
		if c.Args().Present() {
			return usageError{fmt.Errorf("%q is not a command of longshore-agent", c.Args().First())}
		}
		return cli.ShowAppHelp(c)
	}
	err := app.RunContext(ctx, args)
	if err == nil {
		return 0
	}
	for _, line := range strings.Split(err.Error(), "\n") {
		fmt.Fprintf(stderr, "longshore-agent: %s\n", line)
	}
	if hint := hintFor(err); hint != "" {
		fmt.Fprintf(stderr, "  hint: %s\n", hint)
	}
	return exitCode(err)
}

// usageError is a command line that cannot be understood.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func hintFor(err error) string {
	if h := fault.Hint(err); h != "" {
		return h
	}
	if errors.As(err, &usageError{}) {
		return "longshore-agent --help, or --help after a command"
	}
	return ""
}

// exitCode tells scripts what to do next; docs/exit-codes.md lists them.
func exitCode(err error) int {
	switch {
	case errors.As(err, &usageError{}), errors.Is(err, fault.ErrInvalid):
		return 2
	case errors.Is(err, fault.ErrUnauthenticated), errors.Is(err, fault.ErrDenied):
		return 3
	case errors.Is(err, fault.ErrNotFound):
		return 4
	case errors.Is(err, fault.ErrUnsigned), errors.Is(err, fault.ErrBadSignature), errors.Is(err, fault.ErrDigestMismatch):
		return 5
	case errors.Is(err, fault.ErrRejected), errors.Is(err, fault.ErrRollback), errors.Is(err, fault.ErrUnfit):
		return 6
	case errors.Is(err, fault.ErrTemporary):
		return 75
	}
	return 1
}

func env(name string) []string { return []string{"LONGSHORE_" + name} }

func configFlag() cli.Flag {
	return &cli.StringFlag{Name: "config", Aliases: []string{"c"}, Usage: "`FILE` with the device's configuration", Value: config.DefaultPath, EnvVars: env("CONFIG")}
}

func noArguments(c *cli.Context) error {
	if c.Args().Present() {
		return usageError{fmt.Errorf("%s takes no argument, got %q", c.Command.Name, c.Args().First())}
	}
	return nil
}

// maxConfigBytes bounds every file that configures a device.
const maxConfigBytes = 1 << 20

func readBounded(name string, limit int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("read %s: more than %d bytes: %w", name, limit, fault.ErrTooLarge)
	}
	return data, nil
}

func readConfig(name string) (*config.Config, error) {
	data, err := readBounded(name, maxConfigBytes)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrNotFound), "write one: longshore-agent init --help; or name it with --config")
	}
	if err != nil {
		return nil, err
	}
	return config.Parse(name, data)
}

func readPolicy(name string) (*signing.Policy, error) {
	data, err := readBounded(name, maxConfigBytes)
	if err != nil {
		return nil, err
	}
	return signing.ParsePolicy(name, data, func(path string) ([]byte, error) {
		return readBounded(beside(name, path), signing.MaxKeyBytes)
	})
}
