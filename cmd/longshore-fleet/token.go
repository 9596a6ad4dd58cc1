package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
)

func deviceFlag(usage string) cmdline.Flag {
	return cmdline.Flag{Name: "device", Usage: usage, Env: env("device")}
}

var tokenCommand = cmdline.Command{
	Name:  "token",
	Usage: "create, list and revoke tokens of devices",
	About: "With a token a device can report, and a gateway also for the devices behind it. A token is for one device, unless it is created\n" +
		"with --shared: then each of its devices can speak for the others. A token is printed once; only its hash is stored.\n" +
		"The server does not have to be stopped.",
	Commands: []cmdline.Command{
		{
			Name: "create", Usage: "create tokens for devices and print them once", Args: "[ID ...]",
			About: "With --device or --shared, stdout has only the token. For several devices it has one line each: ID, space, token. All tokens\n" +
				"are created, or none.\n\n" +
				"   longshore-fleet token create --device press-07 > press-07.token\n" +
				"   longshore-fleet token create --device gateway-1        # covers gateway-1/… too\n" +
				"   longshore-fleet token create -o json press-07 press-08\n" +
				"   longshore-fleet token create --devices devices.txt > tokens.txt\n" +
				"   longshore-fleet token create --shared press-07 press-08 > line-a.token\n\n" + exitCodes,
			Flags: []cmdline.Flag{
				deviceFlag("`ID` of the device"), newDatabaseFlag, outputFlag,
				{Name: "devices", Usage: "`FILE` with an id on each line, or - for stdin; empty lines and those that begin with # are skipped", Env: env("devices")},
				{Name: "shared", Value: false, Usage: "one token for all these devices, of which each can speak for the others", Env: env("shared")},
			},
			Run: withNewStore(createTokens),
		},
		{
			Name: "list", Usage: "list tokens without their text",
			About: "   longshore-fleet token list\n   longshore-fleet token list --device press-07 -o json\n\n" + exitCodes,
			Flags: []cmdline.Flag{
				deviceFlag("only of the device `ID`"), databaseFlag,
				outputFlag,
			},
			Run: withStore(listTokens),
		},
		{
			Name: "revoke", Usage: "revoke a token at once, or all tokens of a device", Args: "[TOKEN-ID ...]",
			About: "A token of several devices is revoked for all of them.\n\n" +
				"   longshore-fleet token revoke 4fzjq2x…            # an id from token list\n   longshore-fleet token revoke --device press-07\n\n" + exitCodes,
			Flags: []cmdline.Flag{deviceFlag("all tokens of the device `ID`"), databaseFlag},
			Run:   withStore(revokeTokens),
		},
	},
}

var outputFlag = cmdline.OutputFlag(env("output"))

// withStore is the action of a command on a database that exists.
func withStore(do func(*cmdline.Context, *store.SQLite) error) func(*cmdline.Context) error {
	return onStore(do, checkDatabase)
}

// withNewStore is the action of a command that creates the database if it is missing.
func withNewStore(do func(*cmdline.Context, *store.SQLite) error) func(*cmdline.Context) error {
	return onStore(do, func(*cmdline.Context) error { return nil })
}

func onStore(do func(*cmdline.Context, *store.SQLite) error, check func(*cmdline.Context) error) func(*cmdline.Context) error {
	return func(c *cmdline.Context) (err error) {
		if id := c.String("device"); id != "" {
			if _, err := artifacts.ParseDeviceID(id); err != nil {
				return err
			}
		}
		if err := check(c); err != nil {
			return err
		}
		db, err := openStore(c, slog.New(slog.NewTextHandler(c.Err, nil)))
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
	Device  string    `json:"device,omitempty"`  // "": it is for several
	Devices []string  `json:"devices,omitempty"` // of a token for several
	Token   string    `json:"token,omitempty"`   // its text; "": it is not shown again
	Created time.Time `json:"created"`
	Revoked time.Time `json:"revoked,omitzero"`
}

func tokenInfoOf(t store.Token, text string) tokenInfo {
	out := tokenInfo{ID: t.ID, Token: text, Created: t.Created, Revoked: t.Revoked}
	if len(t.Devices) == 1 {
		out.Device = t.Devices[0]
	} else {
		out.Devices = t.Devices
	}
	return out
}

// shownDevices bounds the ids of a token on a line.
const shownDevices = 4

// names are the devices of a token, for people.
func (t tokenInfo) names() string {
	all := t.Devices
	if t.Device != "" {
		all = []string{t.Device}
	}
	if n := len(all) - shownDevices; n > 0 {
		return fmt.Sprintf("%s,+%d", strings.Join(all[:shownDevices], ","), n)
	}
	return strings.Join(all, ",")
}

func createTokens(c *cmdline.Context, db *store.SQLite) error {
	devices, err := devicesOf(c)
	if err != nil {
		return err
	}
	groups := slices.Collect(slices.Chunk(devices, 1))
	if c.Bool("shared") {
		if groups = [][]artifacts.DeviceID{devices}; len(devices) < 2 || len(devices) > maxShared {
			return outcome.Usagef("token create", "--shared is for 2 to %d devices, and %d are named", maxShared, len(devices))
		}
	}
	tokens, infos := make([]store.Token, 0, len(groups)), make([]tokenInfo, 0, len(groups))
	for _, of := range groups {
		text, t, err := status.Mint(time.Now(), of...)
		if err != nil {
			return err
		}
		tokens, infos = append(tokens, t), append(infos, tokenInfoOf(t, text))
	}
	if err := db.AddTokens(c.Context, tokens...); err != nil {
		return err
	}
	for _, t := range infos {
		fmt.Fprintf(c.Err, "token %s for %s; it is not shown again\n", t.ID, t.names())
	}
	return c.Show(infos, func(w io.Writer) {
		for _, t := range infos {
			line := t.Token
			if c.String("device") == "" && t.Device != "" {
				line = t.Device + " " + t.Token
			}
			fmt.Fprintln(w, line)
		}
	})
}

const (
	maxDevices = 16 << 20 // bytes of a file with ids of devices: a hundred thousand and more
	maxShared  = 1000     // devices of one token
)

// devicesOf are the devices that a command line names: by --device, as arguments, or in the file of --devices.
func devicesOf(c *cmdline.Context) (out []artifacts.DeviceID, err error) {
	one, file := c.String("device"), c.String("devices")
	given := 0
	for _, is := range []bool{one != "", file != "", len(c.Args) > 0} {
		if is {
			given++
		}
	}
	if given != 1 {
		return nil, outcome.Usagef("token create", "name devices in one way: with --device ID, as arguments, or with --devices FILE")
	}
	named := c.Args
	place := func(int) string { return "" }
	switch {
	case one != "":
		named = []string{one}
	case file != "":
		var text []byte
		if file == "-" {
			file = "standard input"
			text, err = bounded.Read(c.In, maxDevices)
		} else {
			text, err = bounded.File(os.Open, file, maxDevices)
		}
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

func listTokens(c *cmdline.Context, db *store.SQLite) error {
	all, err := db.ListTokens(c.Context, c.String("device"))
	if err != nil {
		return err
	}
	return list(c, all, func(t store.Token) tokenInfo { return tokenInfoOf(t, "") }, "ID\tDEVICE\tCREATED\tREVOKED",
		func(t tokenInfo) []string { return []string{t.ID, t.names(), date(t.Created), date(t.Revoked)} })
}

// list prints all, as text in a table with the columns of a head.
func list[T, Info any](c *cmdline.Context, all []T, describe func(T) Info, head string, columns func(Info) []string) error {
	infos := make([]Info, 0, len(all))
	for _, one := range all {
		infos = append(infos, describe(one))
	}
	return c.Show(infos, func(w io.Writer) {
		t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		fmt.Fprintln(t, head)
		for _, i := range infos {
			fmt.Fprintln(t, strings.Join(columns(i), "\t"))
		}
		_ = t.Flush() // the writer's own errors show when it is flushed
	})
}

func revokeTokens(c *cmdline.Context, db *store.SQLite) error {
	ids := c.Args
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
		if err := db.RevokeToken(c.Context, id, time.Now()); err != nil {
			return err
		}
		fmt.Fprintf(c.Err, "revoked %s\n", id)
	}
	return nil
}
