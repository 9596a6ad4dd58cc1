package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/audit"
	"github.com/longshore-dev/longshore/signing/filebundle"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/site"
	"github.com/longshore-dev/longshore/site/volume"
)

// writeSiteFile writes a document of a site durably, and its signature beside it, if signer is not nil. The signature of an
// earlier file is removed.
func writeSiteFile(ctx context.Context, file string, data []byte, signer *signer) error {
	old, err := filebundle.Names(file)
	if err != nil {
		return err
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	err = volume.WriteFile(file, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	if signer != nil {
		store, d, err := filebundle.Open(file)
		if err != nil {
			return err
		}
		if _, err := signer.Signer.Sign(ctx, store, d); err != nil {
			return err
		}
	}
	return volume.SyncFolder(filepath.Dir(file))
}

// siteSigner signs documents of a site with the key of a flag; nil without one.
func (c *call) siteSigner(flag, passwordFlag string) (*signer, error) {
	key := c.String(flag)
	if key == "" {
		return nil, nil
	}
	at, err := c.signingTime()
	if err != nil {
		return nil, err
	}
	return c.keySigner(key, c.String(passwordFlag), sign.Options{Format: signing.FormatBundle, Time: at, Once: true})
}

// inventory reads and verifies the inventory of --since; nil without it.
func (c *call) inventory(states string) (*site.Inventory, error) {
	file, keys := c.String("since"), c.StringSlice("inventory-key")
	if file == "" {
		if len(keys) > 0 || c.String("site") != "" {
			return nil, c.misused("--site and --inventory-key need --since")
		}
		return nil, nil
	}
	if file == "-" && len(keys) > 0 {
		return nil, c.misused("--inventory-key verifies a file with its signature beside it, not stdin")
	}
	data, err := c.input(file, site.MaxInventory)
	if err != nil {
		return nil, err
	}
	if len(keys) > 0 {
		if err := verifySiteFile(c.Context, file, data, keys); err != nil {
			return nil, err
		}
	}
	i, err := site.ParseInventory(file, data, states)
	if err != nil {
		return nil, err
	}
	if name := c.String("site"); name != "" && name != i.Site {
		return nil, fmt.Errorf("%s is the inventory of %s, not of %s: %w", file, cmp.Or(i.Site, unnamedSite), name, fault.ErrConflict)
	}
	return i, nil
}

const unnamedSite = "an unnamed site"

// verifySiteFile rejects a file that none of the keys has signed.
func verifySiteFile(ctx context.Context, file string, data []byte, keyFiles []string) error {
	keys, err := publicKeys(keyFiles)
	if err != nil {
		return err
	}
	store, d, err := filebundle.Open(file)
	if err != nil {
		return err
	}
	if digest.FromBytes(data) != d.Digest {
		return fmt.Errorf("%s changed while it was read: %w", file, fault.ErrDigestMismatch)
	}
	if err := audit.OfFile(ctx, store, d, audit.Keys{Verifiers: signing.Verifiers(keys...)}).Err(); err != nil {
		err = fmt.Errorf("%s: %w", file, err)
		return fault.WithHint(err, "fetch it again from the site with "+filepath.Base(file)+".sigstore.json, and name the public key of that site: "+strings.Join(keyFiles, ", ")+" did not sign it")
	}
	return nil
}
