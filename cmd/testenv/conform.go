package main

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/testenv/conform"
)

// conformCommand checks a manager, ours or another one.
func conformCommand() cmdline.Command {
	flag := func(name, usage string) cmdline.Flag { return cmdline.Flag{Name: name, Usage: usage} }
	return cmdline.Command{
		Name:  "conform",
		Usage: "check a workload fleet manager against Margo 1.0.0-rc.3, over mutual TLS",
		About: "Sends requests as a client of the manager and reports which requirements of the specification it meets. The client's device is\n" +
			"registered, reported about and removed: use one that nothing depends on. Cases that need more than --cert are skipped without it.\n\n" +
			"   go run ./cmd/testenv conform --base-url https://fleet.acme.example:8443 --cert test-1.crt --key test-1.key --ca bundle.pem\n" +
			"   go run ./cmd/testenv conform … --other-cert test-2.crt --other-key test-2.key --authority-cert ca.crt --authority-key ca.key -o junit\n\n" +
			"Exit codes: 0 no case failed; 1 a case failed, or the manager could not be checked.",
		Flags: []cmdline.Flag{
			flag("base-url", "`URL` of the manager, https"), flag("cert", "`FILE` with the client's SVID (PEM)"), flag("key", "`FILE` with its private key (PEM)"),
			flag("ca", "`FILE` with the trust anchors (PEM)"), flag("device", "`ID` of the client's device; default: the client's id"),
			flag("other-cert", "`FILE` with the SVID of another accepted client"), flag("other-key", "`FILE` with its private key"), flag("other-device", "`ID` of its device; default: its id"),
			flag("authority-cert", "`FILE` with an authority of the trust domain: to present certificates that must be rejected"), flag("authority-key", "`FILE` with its private key"),
			flag("fresh-client", "`ID` of an accepted client without deployments; needs the authority"),
			flag("assign", "`COMMAND` (of sh) that has device $DEVICE run $COUNT deployments, each time other ones"),
			{Name: "patience", Usage: "how long it may take until that is served", Value: time.Minute},
			flag("run", "only cases that match this `REGEXP`"),
			{Name: "output", Alias: "o", Usage: "`FORMAT` of the report: text, json, junit", Value: "text"},
		},
		Run: runConform,
	}
}

func runConform(c *cmdline.Context) error {
	t := conform.Target{BaseURL: c.String("base-url"), Device: c.String("device"), OtherDevice: c.String("other-device"), Fresh: c.String("fresh-client"), Patience: c.Duration("patience")}
	var err error
	if t.Client, err = tls.LoadX509KeyPair(c.String("cert"), c.String("key")); err != nil {
		return fmt.Errorf("--cert, --key: %w", err)
	}
	if t.Anchors, err = certificates(c.String("ca")); err != nil {
		return fmt.Errorf("--ca: %w", err)
	}
	if c.IsSet("other-cert") {
		pair, err := tls.LoadX509KeyPair(c.String("other-cert"), c.String("other-key"))
		if err != nil {
			return fmt.Errorf("--other-cert, --other-key: %w", err)
		}
		t.Other = &pair
	}
	if c.IsSet("authority-cert") {
		if t.Authority, err = authority(c.String("authority-cert"), c.String("authority-key")); err != nil {
			return fmt.Errorf("--authority-cert, --authority-key: %w", err)
		}
	}
	if line := c.String("assign"); line != "" {
		t.Assign = conform.AssignBy(line, os.Stderr)
	}
	var match *regexp.Regexp
	if c.String("run") != "" {
		if match, err = regexp.Compile(c.String("run")); err != nil {
			return err
		}
	}
	report, err := conform.Run(c.Context, t, match)
	if err != nil {
		return err
	}
	if err := report.Write(c.Out, c.String("output")); err != nil {
		return err
	}
	if n := report.Count(conform.Failed); n > 0 {
		return fmt.Errorf("%d of %d cases failed", n, len(report.Results))
	}
	return nil
}

// certificates reads a PEM file.
func certificates(file string) (out []*x509.Certificate, err error) {
	data, err := os.ReadFile(file)
	for err == nil {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		var one *x509.Certificate
		if one, err = x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, one)
		}
	}
	if err == nil && len(out) == 0 {
		err = fmt.Errorf("%s has no certificate in PEM", file)
	}
	return out, err
}

func authority(certFile, keyFile string) (*conform.Authority, error) {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	c, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, errors.New("the key cannot sign")
	}
	return &conform.Authority{Certificate: c, Key: key}, nil
}
