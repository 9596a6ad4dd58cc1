package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet/enroll"
	"github.com/longshore-dev/longshore/fleet/store"
)

// expectTTL is how long an approval waits for its device.
const expectTTL = 7 * 24 * time.Hour

func fingerprintFlag(usage string) cmdline.Flag {
	return cmdline.Flag{Name: "fingerprint", Usage: usage, Env: env("fingerprint")}
}

var devicesCommand = cmdline.Command{
	Name:  "devices",
	Usage: "approve, deny, list and remove enrolled devices",
	About: "A device that runs longshore-agent enroll waits until its key is approved. It shows the fingerprint of the key: compare it.\n" +
		"The server does not have to be stopped.",
	Commands: []cmdline.Command{
		{
			Name: "pending", Usage: "list devices that wait for approval",
			About: "What a device reports about itself is not verified; its fingerprint is.\n\n" +
				"   longshore-fleet devices pending\n   longshore-fleet devices pending -o json\n\n" + exitCodes,
			Flags: []cmdline.Flag{databaseFlag, outputFlag},
			Run:   withStore(func(c *cmdline.Context, db *store.SQLite) error { return listDevices(c, db, store.EnrollmentPending) }),
		},
		{
			Name: "approve", Usage: "accept a device, by the fingerprint of its key", Args: "ID",
			About: "The device with this key gets the id ID, and receives its certificate and settings. With --expect the device need not have\n" +
				"asked yet. The key of a denied or removed device can be approved again.\n\n" +
				"   longshore-fleet devices approve press-07 --fingerprint sha256:9f1c…\n" +
				"   longshore-fleet devices approve press-08 --expect sha256:77ab… --expires 24h\n\n" + exitCodes,
			Flags: []cmdline.Flag{
				fingerprintFlag("`SHA256` of the key, as the device shows it"),
				{Name: "expect", Usage: "`SHA256` of the key of a device that will ask later", Env: env("expect")},
				{Name: "expires", Usage: "`TIME` for which an approval by --expect waits for its device; 0: for ever", Value: expectTTL, Env: env("expires")},
				databaseFlag, outputFlag,
			},
			Run: withStore(approveDevice),
		},
		{
			Name: "deny", Usage: "reject a device that waits, by the fingerprint of its key",
			About: "The device stops asking and shows the reason.\n\n" +
				"   longshore-fleet devices deny --fingerprint sha256:9f1c… --reason \"not ours\"\n\n" + exitCodes,
			Flags: []cmdline.Flag{
				fingerprintFlag("`SHA256` of the key"),
				{Name: "reason", Usage: "`TEXT` for the person at the device", Env: env("reason")},
				databaseFlag,
			},
			Run: withStore(denyDevice),
		},
		{
			Name: "list", Usage: "list devices that are enrolled, expected, denied or removed",
			About: "   longshore-fleet devices list\n   longshore-fleet devices list --state removed -o json\n\n" + exitCodes,
			Flags: []cmdline.Flag{
				{Name: "state", Usage: "only `STATE`: pending, expected, approved, denied or removed", Env: env("device-state")},
				databaseFlag, outputFlag,
			},
			Run: withStore(func(c *cmdline.Context, db *store.SQLite) error {
				return listDevices(c, db, store.EnrollmentState(c.String("state")))
			}),
		},
		{
			Name: "remove", Usage: "remove a device from the fleet", Args: "ID",
			About: "The manager rejects the device's certificate and tokens at once, serves it no desired state and deletes its reports. A pull\n" +
				"credential that the server created is deleted. With --wipe the device is asked to delete its applications, data and\n" +
				"credentials; it does so only if its own configuration permits that (enrollment.allowWipe). Its state in the registry stays.\n" +
				"A device with a token that is not enrolled is removed too. If --clients accepts its certificate, change that file first:\n" +
				"otherwise its next report adds it again.\n\n" +
				"   longshore-fleet devices remove press-07\n   longshore-fleet devices remove press-07 --wipe\n\n" + exitCodes,
			Flags: []cmdline.Flag{
				{Name: "wipe", Value: false, Usage: "ask the device to delete its applications, data and credentials", Env: env("wipe")}, databaseFlag,
			},
			Run: withStore(removeDevice),
		},
	},
}

// deviceInfo is a device in "devices list -o json". The keys are stable.
type deviceInfo struct {
	Fingerprint string          `json:"fingerprint"`
	State       string          `json:"state"`
	Device      string          `json:"device,omitempty"` // of a pending device the id that it asks for
	Reason      string          `json:"reason,omitempty"`
	FirstSeen   time.Time       `json:"firstSeen"`
	LastAsked   time.Time       `json:"lastAsked,omitzero"`
	Decided     time.Time       `json:"decided,omitzero"`
	Expires     time.Time       `json:"expires,omitzero"`
	Certificate time.Time       `json:"certificateNotAfter,omitzero"`
	Wipe        bool            `json:"wipe,omitempty"`
	Withdraw    bool            `json:"credentialToWithdraw,omitempty"` // the pull credential of a removed device is still valid
	Address     string          `json:"address,omitempty"`
	About       json.RawMessage `json:"about,omitempty"` // reported by the device, not verified
}

func infoOf(e store.Enrollment) deviceInfo {
	return deviceInfo{
		Fingerprint: e.Key, State: string(e.State), Device: e.Device, Reason: e.Reason, FirstSeen: e.First, LastAsked: e.Asked, Decided: e.Decided, Expires: e.Expires,
		Certificate: e.Certified, Wipe: e.Wipe, Withdraw: e.State == store.EnrollmentRemoved && e.Credential != "", Address: e.Address, About: e.About,
	}
}

func listDevices(c *cmdline.Context, db *store.SQLite, state store.EnrollmentState) error {
	states := []store.EnrollmentState{"", store.EnrollmentPending, store.EnrollmentExpected, store.EnrollmentApproved, store.EnrollmentDenied, store.EnrollmentRemoved}
	if !slices.Contains(states, state) {
		return outcome.Usagef("devices list", "--state %s is none of %v", state, states[1:])
	}
	all, err := db.ListEnrollments(c.Context, store.EnrollmentQuery{State: state})
	if err != nil {
		return err
	}
	if state == "" {
		all = slices.DeleteFunc(all, func(e store.Enrollment) bool { return e.State == store.EnrollmentPending })
	}
	return list(c, all, infoOf, "DEVICE\tSTATE\tASKED\tADDRESS\tCERTIFICATE UNTIL\tFINGERPRINT", func(d deviceInfo) []string {
		return []string{cmp.Or(d.Device, "-"), d.State, date(d.LastAsked), cmp.Or(d.Address, "-"), date(d.Certificate), d.Fingerprint}
	})
}

func date(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Format(time.RFC3339)
}

func approveDevice(c *cmdline.Context, db *store.SQLite) error {
	key, ahead := c.String("fingerprint"), c.String("expect")
	if len(c.Args) != 1 || (key == "") == (ahead == "") {
		return outcome.Usagef("devices approve", "name one ID, and the key with --fingerprint or --expect")
	}
	if c.Duration("expires") < 0 {
		return outcome.Usagef("devices approve", "--expires must not be negative")
	}
	a := store.Approval{Key: key + ahead, Device: c.Arg(), Ahead: ahead != "", At: time.Now()}
	if c.Duration("expires") > 0 {
		a.Expires = a.At.Add(c.Duration("expires"))
	}
	if err := errors.Join(enroll.CheckDevice(a.Device), checkFingerprint(a.Key)); err != nil {
		return err
	}
	e, err := db.ApproveEnrollment(c.Context, a)
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return fault.WithHint(err, "compare the fingerprint with what the device shows; or approve it before it asks, with --expect")
	case errors.Is(err, fault.ErrConflict):
		return fault.WithHint(err, "if the device got another key, remove the old one first: longshore-fleet devices remove")
	case err != nil:
		return err
	}
	return c.Show(infoOf(e), func(w io.Writer) { fmt.Fprintf(w, "%s is %s with the key %s\n", e.Device, e.State, e.Key) })
}

// checkFingerprint takes whole fingerprints only: the beginning of one could be that of another key, too.
func checkFingerprint(text string) error {
	if d := digest.Digest(text); d.Validate() != nil || d.Algorithm() != digest.SHA256 {
		return fault.WithHint(fmt.Errorf("%q is no fingerprint: %w", text, fault.ErrInvalid), "write it whole, as the device shows it: sha256: and 64 hexadecimal digits")
	}
	return nil
}

func denyDevice(c *cmdline.Context, db *store.SQLite) error {
	key := c.String("fingerprint")
	if key == "" {
		return outcome.Usagef("devices deny", "--fingerprint is needed")
	}
	if err := checkFingerprint(key); err != nil {
		return err
	}
	err := db.DenyEnrollment(c.Context, key, c.String("reason"), time.Now())
	if errors.Is(err, fault.ErrConflict) {
		return fault.WithHint(err, "take an enrolled device out with longshore-fleet devices remove")
	}
	if err == nil {
		_, err = fmt.Fprintf(c.Out, "denied %s\n", key)
	}
	return err
}

func removeDevice(c *cmdline.Context, db *store.SQLite) error {
	if len(c.Args) != 1 {
		return outcome.Usagef("devices remove", "name one ID")
	}
	device := c.Arg()
	tokens, err := db.ListTokens(c.Context, device)
	if err != nil {
		return err
	}
	e, err := db.RemoveDevice(c.Context, device, c.Bool("wipe"), time.Now())
	if err != nil {
		return err
	}
	for _, t := range tokens {
		if len(t.Devices) > 1 && t.Revoked.IsZero() {
			fmt.Fprintf(c.Err, "token %s is valid for its other devices; if %s may still have it, create another one and revoke it\n", t.ID, device)
		}
	}
	if e.Credential != "" {
		fmt.Fprintf(c.Err, "the server deletes its pull credential %s; see longshore-fleet devices list --state removed -o json\n", e.Credential)
	}
	_, err = fmt.Fprintf(c.Out, "removed %s\n", device)
	return err
}
