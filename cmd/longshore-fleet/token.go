package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
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
				Name: "create", Usage: "create tokens for devices and print them once", ArgsUsage: "[ID ...]",
				Description: "With --device, stdout has only the token. For several devices it has one line each: ID, space, token. All tokens are\n" +
					"created, or none.\n\n" +
					"   longshore-fleet token create --device press-07 > press-07.token\n" +
					"   longshore-fleet token create --device gateway-1        # covers gateway-1/… too\n" +
					"   longshore-fleet token create -o json press-07 press-08\n" +
					"   longshore-fleet token create --devices devices.txt > tokens.txt\n\n" + exitCodes,
				Flags: []cli.Flag{
					device("`ID` of the device"), databaseFlag(), outputFlag(),
					&cli.StringFlag{Name: "devices", Usage: "`FILE` with an id on each line, or - for stdin; empty lines and those that begin with # are skipped", EnvVars: env("devices")},
				},
				Action: p.withStore(p.createTokens),
			},
			{
				Name: "list", Usage: "list tokens without their text",
				Description: "   longshore-fleet token list\n   longshore-fleet token list --device press-07 -o json\n\n" + exitCodes,
				Flags: []cli.Flag{
					device("only of the device `ID`"), databaseFlag(),
					outputFlag(),
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

func outputFlag() cli.Flag {
	return &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "text or json", Value: "text", EnvVars: env("output")}
}

func (p *program) withStore(do func(*cli.Context, *store.SQLite) error) cli.ActionFunc {
	return func(c *cli.Context) (err error) {
		if c.Command.ArgsUsage == "" {
			if err := noArguments(c); err != nil {
				return err
			}
		}
		if output := c.String("output"); output != "" && output != "text" && output != "json" {
			return outcome.Usagef("", "output %q is none of text, json", output)
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

// tokenInfo is a token in "token create -o json" and "token list -o json". The keys are stable.
type tokenInfo struct {
	ID      string    `json:"id"`
	Device  string    `json:"device"`
	Token   string    `json:"token,omitempty"` // its text; "": it is not shown again
	Created time.Time `json:"created"`
	Revoked time.Time `json:"revoked,omitzero"`
}

func (p *program) createTokens(c *cli.Context, db *store.SQLite) error {
	devices, err := p.devicesOf(c)
	if err != nil {
		return err
	}
	tokens, infos := make([]store.Token, 0, len(devices)), make([]tokenInfo, 0, len(devices))
	for _, device := range devices {
		text, t, err := status.Mint(device, p.now())
		if err != nil {
			return err
		}
		tokens, infos = append(tokens, t), append(infos, tokenInfo{ID: t.ID, Device: t.Device, Token: text, Created: t.Created})
	}
	if err := db.AddTokens(c.Context, tokens...); err != nil {
		return err
	}
	for _, t := range infos {
		fmt.Fprintf(p.stderr, "token %s for %s; it is not shown again\n", t.ID, t.Device)
	}
	if c.String("output") == "json" {
		return p.encode(infos)
	}
	for _, t := range infos {
		line := t.Token
		if c.String("device") == "" {
			line = t.Device + " " + t.Token
		}
		if _, err := fmt.Fprintln(p.stdout, line); err != nil {
			return err
		}
	}
	return nil
}

// maxDevices bounds a file with ids of devices: a hundred thousand and more.
const maxDevices = 16 << 20

// devicesOf are the devices that a command line names: by --device, as arguments, or in the file of --devices.
func (p *program) devicesOf(c *cli.Context) (out []artifacts.DeviceID, err error) {
	one, file := c.String("device"), c.String("devices")
	given := 0
	for _, is := range []bool{one != "", file != "", c.Args().Present()} {
		if is {
			given++
		}
	}
	if given != 1 {
		return nil, outcome.Usagef("token create", "name devices in one way: with --device ID, as arguments, or with --devices FILE")
	}
	named := c.Args().Slice()
	place := func(int) string { return "" }
	switch {
	case one != "":
		named = []string{one}
	case file != "":
		if file == "-" {
			file = stdin
		}
		text, err := p.readDevices(file)
		if err != nil {
			return nil, err
		}
		named = strings.Split(string(text), "\n")
		place = func(i int) string { return fmt.Sprintf("%s:%d: ", file, i+1) }
	}
	seen := map[artifacts.DeviceID]bool{}
	var errs []error
	for i, text := range named {
		if text = strings.TrimSpace(text); file != "" && (text == "" || strings.HasPrefix(text, "#")) {
			continue
		}
		id, err := artifacts.ParseDeviceID(text)
		if err == nil && seen[id] {
			err = fmt.Errorf("device %s is there twice: %w", id, fault.ErrInvalid)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s%w", place(i), err))
			continue
		}
		seen[id] = true
		out = append(out, id)
	}
	if len(out) == 0 && len(errs) == 0 {
		return nil, fmt.Errorf("%s names no device: %w", file, fault.ErrInvalid)
	}
	return out, errors.Join(errs...)
}

// stdin stands for a file in messages.
const stdin = "standard input"

func (p *program) readDevices(file string) ([]byte, error) {
	if file == stdin {
		return bounded.Read(p.stdin, maxDevices)
	}
	return bounded.File(os.Open, file, maxDevices)
}

func (p *program) encode(v any) error {
	e := json.NewEncoder(p.stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func (p *program) listTokens(c *cli.Context, db *store.SQLite) error {
	all, err := db.ListTokens(c.Context, c.String("device"))
	if err != nil {
		return err
	}
	if c.String("output") == "json" {
		out := make([]tokenInfo, 0, len(all))
		for _, t := range all {
			out = append(out, tokenInfo{ID: t.ID, Device: t.Device, Created: t.Created, Revoked: t.Revoked})
		}
		return p.encode(out)
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
