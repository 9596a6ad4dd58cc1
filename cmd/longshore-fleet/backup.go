package main

import (
	"fmt"
	"os"
	"time"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet/store"
)

var backupCommand = cmdline.Command{
	Name: "backup", Usage: "write a copy of the database into a file", Args: "FILE",
	About: "The copy is consistent; the server does not have to be stopped. FILE is replaced as a whole. It holds hashes of tokens, and\n" +
		"only its owner may read it. Desired state is not in it: that is in the registry.\n\n" +
		"   longshore-fleet backup /var/backups/fleet.db\n   longshore-fleet backup --database ./fleet.db /media/stick/fleet.db\n\n" + exitCodes,
	Flags: []cmdline.Flag{databaseFlag},
	Run: func(c *cmdline.Context) error {
		if len(c.Args) != 1 {
			return outcome.Usagef("backup", "backup needs one FILE")
		}
		if err := checkDatabase(c); err != nil {
			return err
		}
		file := c.Arg()
		err := store.Backup(c.Context, c.String("database"), file, time.Now())
		if err != nil {
			return err
		}
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.Out, "wrote %s, %d bytes\n", file, info.Size())
		return err
	},
}

var restoreCommand = cmdline.Command{
	Name: "restore", Usage: "replace the database with a backup", Args: "FILE",
	About: "The server must be stopped. A damaged backup, or one of a newer version, changes nothing. Afterwards each device reports\n" +
		"everything once more, and gets a manifest above the one that it has. Devices that were removed since the backup are enrolled\n" +
		"again: remove them before you start the server: longshore-fleet devices remove ID.\n\n" +
		"   longshore-fleet restore /var/backups/fleet.db\n   longshore-fleet restore --database ./fleet.db /media/stick/fleet.db\n\n" +
		"Exit codes: 0 done; 2 usage, or the file is damaged; 4 not found; 6 the database is open in another process; 70 anything else.",
	Flags: []cmdline.Flag{newDatabaseFlag},
	Run: func(c *cmdline.Context) error {
		if len(c.Args) != 1 {
			return outcome.Usagef("restore", "restore needs one FILE")
		}
		file := c.Arg()
		r, err := store.Restore(c.Context, file, c.String("database"))
		if err != nil {
			return err
		}
		made := ""
		if !r.Made.IsZero() {
			made = " of " + r.Made.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(c.Out, "restored %s with %d devices from %s%s\n", c.String("database"), r.Devices, file, made)
		_, err = fmt.Fprintln(c.Err, "devices that were removed since this backup are enrolled again: remove them before you start the server: longshore-fleet devices remove ID")
		return err
	},
}
