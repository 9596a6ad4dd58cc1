package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/files"
)

// Names in the directory of an authority, and how long a certificate is valid without --ttl.
const (
	caCert     = "ca.crt"
	caKey      = "ca.key"
	caBundle   = "bundle.json"
	svidTTL    = 30 * 24 * time.Hour
	maxCAFiles = 64 << 10 // bytes of each
)

var caDirFlag = cmdline.Flag{Name: "dir", Usage: "`DIR` of the authority", Value: "ca", Env: env("ca-dir")}

var caCommand = cmdline.Command{
	Name:  "ca",
	Usage: "a small certificate authority for mutual TLS",
	About: "For sites without an authority of their own, such as SPIRE. Whoever has ca.key can act as every manager and every client of the\n" +
		"trust domain. Only a server that enrolls devices (serve --enroll) needs it: keep it away from other servers. With --key the key\n" +
		"stays in a PKCS#11 token or a key management service, with the same addresses as for longshore sign --key.",
	Commands: []cmdline.Command{
		{
			Name: "init", Usage: "create an authority for a trust domain, and its trust bundle",
			About: "Writes ca.crt, ca.key (mode 0600) and bundle.json, the trust bundle that manager and devices need. An existing authority is kept.\n" +
				"With --key the key must exist already (ECDSA P-256 or P-384, or RSA of 3072 bits), and there is no ca.key.\n\n" +
				"   longshore-fleet ca init --trust-domain plant.acme.example\n   longshore-fleet ca init --trust-domain plant.acme.example --dir /media/stick/ca\n" +
				"   longshore-fleet ca init --trust-domain plant.acme.example --key 'pkcs11:token=plant;object=ca?module-path=/usr/lib/softhsm/libsofthsm2.so'\n" +
				"   longshore-fleet ca init --trust-domain plant.acme.example --key hashivault://plant-ca\n\n" + exitCodes,
			Flags: append([]cmdline.Flag{{Name: "trust-domain", Usage: "`NAME` of the trust domain", Env: env("trust-domain")}, caDirFlag}, caKeyFlags...),
			Run:   caInit,
		},
		{
			Name: "issue", Usage: "sign a certificate for a manager or a client", Args: "NAME",
			About: "Writes NAME.crt and NAME.key (mode 0600), with a new key; existing files are replaced.\n\n" +
				"   longshore-fleet ca issue --manager main main\n   longshore-fleet ca issue --manager main --client press-07 press-07\n\n" + exitCodes,
			Flags: append([]cmdline.Flag{
				{Name: "manager", Usage: "`ID` of the manager", Env: env("manager")},
				{Name: "client", Usage: "`ID` of a client of it; default: the certificate is the manager's", Env: env("client")},
				{Name: "ttl", Usage: "`TIME` for which the certificate is valid", Value: svidTTL, Env: env("ttl")},
				caDirFlag,
			}, caKeyFlags...),
			Run: caIssue,
		},
	},
}

func caInit(c *cmdline.Context) error {
	if c.String("trust-domain") == "" {
		return outcome.Usagef("ca init", "--trust-domain is needed, a name like plant.acme.example")
	}
	key, err := openCAKey(c.Context, c.String("key"), c.String("key-password-file"))
	if err != nil {
		return err
	}
	defer closeCAKey(key)
	a, err := newAuthority(key, c.String("trust-domain"))
	if err != nil {
		return err
	}
	dir := c.String("dir")
	if err := writeAuthority(dir, a); err != nil {
		return err
	}
	wrote := []string{filepath.Join(dir, caCert), filepath.Join(dir, caKey), filepath.Join(dir, caBundle)}
	if key != nil {
		wrote = slices.Delete(wrote, 1, 2)
	}
	_, err = fmt.Fprintln(c.Out, "wrote "+strings.Join(wrote, ", "))
	return err
}

func caIssue(c *cmdline.Context) error {
	if len(c.Args) != 1 || c.String("manager") == "" {
		return outcome.Usagef("ca issue", "--manager and one NAME for the files are needed")
	}
	k, err := openCAKey(c.Context, c.String("key"), c.String("key-password-file"))
	if err != nil {
		return err
	}
	defer closeCAKey(k)
	a, err := openAuthority(c.String("dir"), k)
	if err != nil {
		return err
	}
	name, err := identity.ParseName(identity.Name{TrustDomain: a.Bundle().TrustDomain(), Manager: c.String("manager"), Client: c.String("client")}.String())
	if err != nil {
		return err
	}
	cert, key, err := a.Issue(name, time.Now(), c.Duration("ttl"))
	if err != nil {
		return err
	}
	file := c.Arg()
	if err := errors.Join(files.Write(file+".key", key, 0o600), files.Write(file+".crt", cert, 0o644)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.Out, "%s\nwrote %s.crt, %s.key; valid until %s\n", name, file, file, time.Now().Add(c.Duration("ttl")).UTC().Format(time.RFC3339))
	return err
}
