// Command longshore-agent keeps a device at its signed release: it asks the registry what should run, checks that it may,
// and has containerd run it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
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
	cmdline.Main(func(ctx context.Context) int { return run(ctx, asVerifier(os.Args), os.Stdin, os.Stdout, os.Stderr) })
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	logrus.SetOutput(io.Discard) // libraries warn there; what they return is logged with its place
	app := &cmdline.Program{
		Name:  "longshore-agent",
		Usage: "run signed applications on this device",
		In:    stdin,
		Out:   printable.NewWriter(stdout),
		Err:   printable.NewWriter(stderr),
		About: "Set up a device, then see what it does:\n\n" +
			"   longshore-agent init --device press-07 --state oci://harbor.acme.example/plant/state --key release.pub\n" +
			"   systemctl enable --now longshore-agent\n   longshore-agent status",
		Commands: slices.Concat(
			[]cmdline.Command{initCommand, enrollCommand, runCommand, statusCommand, syncCommand, changesCommand},
			decisionCommands, rollbackCommands,
			[]cmdline.Command{
				psCommand, logsCommand, execCommand, restartCommand, statsCommand, eventsCommand, metricsCommand, volumesCommand,
				capabilitiesCommand, keyCommand, checkConfigCommand, verifyImageCommand, panelPINCommand, unitCommand, containerdConfigCommand,
				completionCommand, cmdline.Version(outputFlag),
			}),
	}
	for i := range app.Commands {
		c := &app.Commands[i]
		if !strings.Contains("\n"+c.About, "\nExit code") { // a command that has codes of its own lists them
			c.About = strings.TrimLeft(c.About+"\n\n"+outcome.Help, "\n")
		}
	}
	return app.Run(ctx, args[1:])
}

func env(name string) string { return "LONGSHORE_" + name }

var configFlag = cmdline.Flag{Name: "config", Alias: "c", Usage: "`FILE` with the device's configuration", Value: config.DefaultPath, Env: env("CONFIG")}

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
