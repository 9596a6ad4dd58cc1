package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet/enroll"
	"github.com/longshore-dev/longshore/fleet/store"
	"github.com/longshore-dev/longshore/identity"
	protocol "github.com/longshore-dev/longshore/identity/enroll"
)

const joinTTL = 24 * time.Hour

var joinTokenCommand = cmdline.Command{
	Name:  "join-token",
	Usage: "create, list and revoke tokens that enroll one device each without an operator",
	About: "A join token is printed once; only its hash is stored. It is used up by the first device that presents it.\n" +
		"The server does not have to be stopped.",
	Commands: []cmdline.Command{
		{
			Name: "create", Usage: "create a join token and print it",
			About: "With --trust-bundle the token also has the fingerprint of the manager's authority: the device then needs nothing else to\n" +
				"authenticate the manager.\n\n" +
				"   longshore-fleet join-token create --device press-07 --trust-bundle ca/bundle.json >press-07.join\n" +
				"   longshore-fleet join-token create --expires 1h            # any device; it gives its id itself\n\n" + exitCodes,
			Flags: []cmdline.Flag{
				{Name: "device", Usage: "`ID` that the device gets; default: any free id that the device asks for", Env: env("device")},
				{Name: "expires", Usage: "`TIME` for which the token is valid", Value: joinTTL, Env: env("join-expires")},
				{Name: "trust-bundle", Usage: "`FILE` with the manager's trust bundle (SPIFFE's JSON, or PEM)", Env: env("trust-bundle")},
				newDatabaseFlag, outputFlag,
			},
			Run: withNewStore(createJoinToken),
		},
		{
			Name: "list", Usage: "list join tokens without their text",
			About: "   longshore-fleet join-token list\n   longshore-fleet join-token list -o json\n\n" + exitCodes,
			Flags: []cmdline.Flag{databaseFlag, outputFlag},
			Run:   withStore(listJoinTokens),
		},
		{
			Name: "revoke", Usage: "revoke join tokens at once", Args: "TOKEN-ID ...",
			About: "A device that has used its token stays enrolled; see longshore-fleet devices remove.\n\n" +
				"   longshore-fleet join-token revoke 4fzjq2x…            # an id from join-token list\n\n" + exitCodes,
			Flags: []cmdline.Flag{databaseFlag},
			Run:   withStore(revokeJoinTokens),
		},
	},
}

// joinTokenInfo is a join token in "join-token create -o json" and "join-token list -o json". The keys are stable.
type joinTokenInfo struct {
	ID      string    `json:"id"`
	Device  string    `json:"device,omitempty"`
	Token   string    `json:"token,omitempty"` // its text; "": it is not shown again
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires"`
	Used    time.Time `json:"used,omitzero"`
	Key     string    `json:"fingerprint,omitempty"` // of the device that used it
	Revoked time.Time `json:"revoked,omitzero"`
}

func createJoinToken(c *cmdline.Context, db *store.SQLite) error {
	device, ttl := c.String("device"), c.Duration("expires")
	if ttl <= 0 {
		return outcome.Usagef("join-token create", "--expires must be positive")
	}
	if device != "" {
		if err := enroll.CheckDevice(device); err != nil {
			return err
		}
	}
	var pin digest.Digest
	if file := c.String("trust-bundle"); file != "" {
		data, err := bounded.File(os.Open, file, identity.MaxBundle)
		if err != nil {
			return err
		}
		bundle, err := identity.ParseBundle(file, data, "any") // its name does not count here
		if err != nil {
			return err
		}
		if pin, err = protocol.ManagerFingerprint(bundle); err != nil {
			return err
		}
	}
	text, t := enroll.MintToken(device, pin, time.Now(), ttl)
	if err := db.AddJoinTokens(c.Context, t); err != nil {
		return err
	}
	info := joinTokenInfo{ID: t.ID, Device: t.Device, Token: text, Created: t.Created, Expires: t.Expires}
	return c.Show(info, func(w io.Writer) {
		fmt.Fprintf(c.Err, "join token %s, until %s; it is not shown again\n", t.ID, date(t.Expires))
		fmt.Fprintln(w, text)
	})
}

func listJoinTokens(c *cmdline.Context, db *store.SQLite) error {
	all, err := db.ListJoinTokens(c.Context)
	if err != nil {
		return err
	}
	return list(c, all, func(t store.JoinToken) joinTokenInfo {
		return joinTokenInfo{ID: t.ID, Device: t.Device, Created: t.Created, Expires: t.Expires, Used: t.Used, Key: t.Key, Revoked: t.Revoked}
	}, "ID\tDEVICE\tCREATED\tEXPIRES\tUSED\tREVOKED", func(t joinTokenInfo) []string {
		return []string{t.ID, cmp.Or(t.Device, "-"), date(t.Created), date(t.Expires), date(t.Used), date(t.Revoked)}
	})
}

func revokeJoinTokens(c *cmdline.Context, db *store.SQLite) error {
	if len(c.Args) == 0 {
		return outcome.Usagef("join-token revoke", "name tokens by their id")
	}
	for _, id := range c.Args {
		if err := db.RevokeJoinToken(c.Context, id, time.Now()); err != nil {
			return err
		}
		fmt.Fprintf(c.Err, "revoked %s\n", id)
	}
	return nil
}
