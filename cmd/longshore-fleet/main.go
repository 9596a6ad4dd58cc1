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
	"strings"
	_ "time/tzdata" // windows in states name time zones

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/fleet/store"
)

func main() {
	cmdline.Main(func(ctx context.Context) int { return run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr) })
}

func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	app := &cmdline.Program{
		Name:  "longshore-fleet",
		Usage: "receive and show reports of devices",
		In:    stdin,
		Out:   printable.NewWriter(stdout),
		Err:   printable.NewWriter(stderr),
		Commands: []cmdline.Command{
			serveCommand, collectCommand, tokenCommand, devicesCommand, joinTokenCommand, caCommand, backupCommand, restoreCommand, unitCommand, completionCommand,
			cmdline.Version(outputFlag),
		},
	}
	return app.Run(ctx, args[1:])
}

const exitCodes = "Exit codes: 0 done; 2 usage; 4 not found; 75 temporary, try again; 70 anything else."

// env names the variable of a flag. A flag beats the variable, the variable beats the default.
func env(flag string) string {
	return "LONGSHORE_FLEET_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

const defaultDatabase = "/var/lib/longshore-fleet/fleet.db"

// databaseFlag names the database of a command that needs one.
var databaseFlag = cmdline.Flag{Name: "database", Usage: "SQLite `FILE` of the server", Value: defaultDatabase, Env: env("database")}

// newDatabaseFlag names the database of a command that may come before the server's first start.
var newDatabaseFlag = cmdline.Flag{Name: "database", Usage: "SQLite `FILE`, created if it is missing", Value: defaultDatabase, Env: env("database")}

//go:embed longshore-fleet.service
var unit string

var unitCommand = cmdline.UnitCommand(unit, "The unit expects the program at /usr/local/bin/longshore-fleet. Settings are LONGSHORE_FLEET_… variables in\n"+
	"/etc/longshore/fleet.env.\n\n"+
	"   longshore-fleet unit >/etc/systemd/system/longshore-fleet.service\n\n"+exitCodes)

var completionCommand = cmdline.ScriptCommand("\n\n   longshore-fleet completion bash >/etc/bash_completion.d/longshore-fleet\n\n" + exitCodes)

// checkDatabase is the error if the database that the flags name does not exist: a command that needs its content must not create an empty one.
func checkDatabase(c *cmdline.Context) error {
	_, err := os.Stat(c.String("database"))
	if !errors.Is(err, os.ErrNotExist) {
		return nil // what else is wrong shows when it is opened
	}
	return fault.WithHint(fmt.Errorf("open database: %w", err),
		"name the server's file with --database; longshore-fleet serve and longshore-fleet token create make a new one")
}

// open opens the database that the flags name, and creates it if it is missing.
func openStore(c *cmdline.Context, log *slog.Logger) (*store.SQLite, error) {
	s, err := store.Open(c.Context, c.String("database"), log)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fault.WithHint(fmt.Errorf("%w: %w", err, fault.ErrNotFound), "make its folder, or name another file with --database")
	}
	return s, err
}
