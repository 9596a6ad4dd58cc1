package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/signing"
)

var keyCommand = cmdline.Command{
	Name:  "key",
	Usage: "print the public key of this device",
	About: "The device signs the reports of its current state with its own key. longshore-agent init creates the key, or the\n" +
		"agent when it starts with report.registry. Put the public key into the fleet's files, and give it to everyone who\n" +
		"verifies reports with longshore verify device.\n\n" +
		"Examples:\n  longshore-agent key >press-07.pub\n  longshore-agent key -o json",
	Flags: []cmdline.Flag{configFlag, outputFlag},
	Run:   showKey,
}

type keyResult struct {
	Device      string `json:"device"`
	File        string `json:"file,omitempty"`   // of the private key
	TPM         string `json:"tpm,omitempty"`    // that has the private key
	PKCS11      string `json:"pkcs11,omitempty"` // address of the private key in a token
	Algorithm   string `json:"algorithm"`
	Fingerprint string `json:"fingerprint"` // SHA-256 of the public key's DER
	PublicKey   string `json:"publicKey"`   // PEM
}

func showKey(c *cmdline.Context) error {
	cfg, err := readConfig(c.String("config"))
	if err != nil {
		return err
	}
	at := keyPlace(cfg)
	key, err := at.Load()
	if errors.Is(err, fs.ErrNotExist) {
		return fault.WithHint(fmt.Errorf("device key %s: %w", at, fault.ErrNotFound),
			"set report.registry: true in agent.yaml and restart the agent: it creates the key; on a new device longshore-agent init creates it")
	}
	if err != nil {
		return err
	}
	public, err := signing.NewKey(string(cfg.Device), key.Public())
	if err != nil {
		return err
	}
	if at.TPM+at.Token != "" {
		at.File = ""
	}
	r := keyResult{string(cfg.Device), at.File, at.TPM, at.Token, public.Algorithm, public.Fingerprint.String(), string(key.PublicPEM)}
	return c.Show(r, func(w io.Writer) { fmt.Fprint(w, r.PublicKey) })
}
