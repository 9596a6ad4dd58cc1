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
	"slices"
	"strings"
	"syscall"
	_ "time/tzdata" // windows of time on a device without time zones of its own

	"github.com/sirupsen/logrus"

	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/signing/trust"
)

func main() {
	if code, done := inContainer(os.Args); done {
		os.Exit(code)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends at once what does not heed the first
	code := run(ctx, asVerifier(os.Args), os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// program is what the commands share: where they may write.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	logrus.SetOutput(io.Discard) // libraries warn there; what they return is logged with its place
	p := &program{stdin: stdin, stdout: printable.NewWriter(stdout), stderr: printable.NewWriter(stderr)}
	app := &cmdline.Program{
		Name:  "longshore-agent",
		Usage: "run signed applications on this device",
		Out:   p.stdout,
		Err:   p.stderr,
		About: "Set up a device, then see what it does:\n\n" +
			"   longshore-agent init --device press-07 --state oci://harbor.acme.example/plant/state --key release.pub\n" +
			"   systemctl enable --now longshore-agent\n   longshore-agent status",
		Commands: slices.Concat(
			[]cmdline.Command{p.initCommand(), p.enrollCommand(), p.runCommand(), p.statusCommand(), p.syncCommand(), p.changesCommand()},
			p.decisionCommands(), p.rollbackCommands(),
			[]cmdline.Command{
				p.psCommand(), p.logsCommand(), p.execCommand(), p.restartCommand(), p.statsCommand(), p.eventsCommand(), p.metricsCommand(), p.volumesCommand(),
				p.capabilitiesCommand(), p.keyCommand(), p.checkConfigCommand(), p.verifyImageCommand(), p.panelPINCommand(), p.unitCommand(), p.containerdConfigCommand(),
				p.completionCommand(), cmdline.Version(p.stdout, outputFlag()),
			}),
	}
	for i := range app.Commands {
		c := &app.Commands[i]
		if !strings.Contains("\n"+c.About, "\nExit code") { // a command that has codes of its own lists them
			c.About = strings.TrimLeft(c.About+"\n\n"+outcome.Help, "\n")
		}
	}
	return cmdline.Run(ctx, app, args[1:], cmdline.Options{Offer: offer})
}

func env(name string) string { return "LONGSHORE_" + name }

func configFlag() cmdline.Flag {
	return cmdline.Flag{Name: "config", Alias: "c", Usage: "`FILE` with the device's configuration", Value: config.DefaultPath, Env: env("CONFIG")}
}

// maxConfigBytes bounds every file that configures a device.
const maxConfigBytes = 1 << 20

func readConfig(name string) (*config.Config, error) {
	data, err := bounded.File(os.Open, name, maxConfigBytes)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrNotFound), "write one: longshore-agent init --help; or name it with --config")
	}
	if err != nil {
		return nil, err
	}
	return config.Parse(name, data)
}

func readPolicy(name string) (*trust.Policy, error) {
	data, err := bounded.File(os.Open, name, maxConfigBytes)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.WithHint(err, "put the trust policy there, or name it with trust: in agent.yaml; longshore-agent init writes both files")
	}
	if err != nil {
		return nil, err
	}
	return trust.Parse(name, data, readKey)
}

func readKey(path string) ([]byte, error) { return bounded.File(os.Open, path, trust.MaxFileBytes) }
