package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
)

func (p *program) tokenCommand() *cli.Command {
	device := func(usage string) cli.Flag {
		return &cli.StringFlag{Name: "device", Usage: usage, EnvVars: env("device")}
	}
	return &cli.Command{
		Name:  "token",
		Usage: "create, list and revoke tokens of devices",
		Description: "With a token a device can report, and a gateway also for the devices behind it. A token is printed once; only its hash is stored.\n" +
			"The server does not have to be stopped.",
		Subcommands: []*cli.Command{
			{
				Name: "create", Usage: "create a token for a device and print it once",
				Description: "Prints only the token on stdout.\n\n" +
					"   longshore-fleet token create --device press-07 > press-07.token\n" +
					"   longshore-fleet token create --device gateway-1        # covers gateway-1/… too\n\n" + exitCodes,
				Flags:  []cli.Flag{device("`ID` of the device"), databaseFlag()},
				Action: p.withStore(p.createToken),
			},
			{
				Name: "list", Usage: "list tokens without their text",
				Description: "   longshore-fleet token list\n   longshore-fleet token list --device press-07 -o json\n\n" + exitCodes,
				Flags: []cli.Flag{
					device("only of the device `ID`"), databaseFlag(),
					&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "text or json", Value: "text", EnvVars: env("output")},
				},
				Action: p.withStore(p.listTokens),
			},
			{
				Name: "revoke", Usage: "revoke a token at once, or all tokens of a device", ArgsUsage: "[TOKEN-ID ...]",
				Description: "   longshore-fleet token revoke 4fzjq2x…            # an id from token list\n   longshore-fleet token revoke --device press-07\n\n" + exitCodes,
				Flags:       []cli.Flag{device("all tokens of the device `ID`"), databaseFlag()},
				Action:      p.withStore(p.revokeTokens),
			},
		},
	}
}

func (p *program) withStore(do func(*cli.Context, *store.SQLite) error) cli.ActionFunc {
	return func(c *cli.Context) (err error) {
		if c.Command.Name != "revoke" {
			if err := noArguments(c); err != nil {
				return err
			}
		}
		if id := c.String("device"); id != "" {
			if _, err := artifacts.ParseDeviceID(id); err != nil {
				return err
			}
		}
		db, err := p.open(c, slog.New(slog.NewTextHandler(p.stderr, nil)))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, db.Close()) }()
		return do(c, db)
	}
}

func (p *program) createToken(c *cli.Context, db *store.SQLite) error {
	if c.String("device") == "" {
		return outcome.Usagef("", "name the device with --device ID")
	}
	text, t, err := status.Mint(artifacts.DeviceID(c.String("device")), p.now())
	if err != nil {
		return err
	}
	if err := db.AddToken(c.Context, t); err != nil {
		return err
	}
	fmt.Fprintf(p.stderr, "token %s for %s; it is not shown again\n", t.ID, t.Device)
	_, err = fmt.Fprintln(p.stdout, text)
	return err
}

// tokenInfo is a token in "token list -o json". The keys are stable.
type tokenInfo struct {
	ID      string    `json:"id"`
	Device  string    `json:"device"`
	Created time.Time `json:"created"`
	Revoked time.Time `json:"revoked,omitzero"`
}

func (p *program) listTokens(c *cli.Context, db *store.SQLite) error {
	output := c.String("output")
	if output != "text" && output != "json" {
		return outcome.Usagef("", "output %q is none of text, json", output)
	}
	all, err := db.ListTokens(c.Context, c.String("device"))
	if err != nil {
		return err
	}
	if output == "json" {
		out := make([]tokenInfo, 0, len(all))
		for _, t := range all {
			out = append(out, tokenInfo{t.ID, t.Device, t.Created, t.Revoked})
		}
		e := json.NewEncoder(p.stdout)
		e.SetIndent("", "  ")
		return e.Encode(out)
	}
	w := tabwriter.NewWriter(p.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tDEVICE\tCREATED\tREVOKED")
	for _, t := range all {
		revoked := "-"
		if !t.Revoked.IsZero() {
			revoked = t.Revoked.Format(time.RFC3339)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", t.ID, t.Device, t.Created.Format(time.RFC3339), revoked)
	}
	return w.Flush()
}

func (p *program) revokeTokens(c *cli.Context, db *store.SQLite) error {
	ids := c.Args().Slice()
	device := c.String("device")
	if (device == "") == (len(ids) == 0) {
		return outcome.Usagef("", "name tokens by their id, or all of a device with --device")
	}
	if device != "" {
		all, err := db.ListTokens(c.Context, device)
		if err != nil {
			return err
		}
		for _, t := range all {
			if t.Revoked.IsZero() {
				ids = append(ids, t.ID)
			}
		}
		if len(ids) == 0 {
			return fmt.Errorf("tokens of %s: %w", device, fault.ErrNotFound)
		}
	}
	for _, id := range ids {
		if err := db.RevokeToken(c.Context, id, p.now()); err != nil {
			return err
		}
		fmt.Fprintf(p.stderr, "revoked %s\n", id)
	}
	return nil
}
