package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/audit"
	"github.com/longshore-dev/longshore/signing/filebundle"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/site"
	"github.com/longshore-dev/longshore/site/volume"
)

// writeSiteFile writes a document of a site for good, and signs it beside the file: signer may be nil. A signature of what the file
// was before is removed.
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
	f, err := volume.Create(file + ".part")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(file+".part", file)
	}
	if err != nil {
		_ = os.Remove(file + ".part") // the first error counts
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

// siteSigner signs documents of a site with the key that a flag names; nil if it names none.
func (p *program) siteSigner(c *cli.Context, flag, passwordFlag string) (*signer, error) {
	key := c.String(flag)
	if key == "" {
		return nil, nil
	}
	at, err := p.signingTime()
	if err != nil {
		return nil, err
	}
	return p.keySigner(c, key, c.String(passwordFlag), sign.Options{Format: signing.FormatBundle, Time: at, Once: true})
}

// inventory reads the inventory that --since names, from the site that --site and --inventory-key say; nil without --since.
func (p *program) inventory(c *cli.Context, states string) (*site.Inventory, error) {
	file, keys := c.String("since"), c.StringSlice("inventory-key")
	if file == "" {
		if len(keys) > 0 || c.String("site") != "" {
			return nil, misused(c, "--site and --inventory-key need --since")
		}
		return nil, nil
	}
	if file == "-" && len(keys) > 0 {
		return nil, misused(c, "--inventory-key verifies a file with its signature beside it, not stdin")
	}
	data, err := p.readInventory(file)
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
		return nil, fmt.Errorf("%s is the inventory of %s, not of %s: %w", file, orUnnamed(i.Site), name, fault.ErrConflict)
	}
	return i, nil
}

func orUnnamed(s string) string {
	if s == "" {
		return "a site without a name"
	}
	return s
}

// verifySiteFile refuses bytes of a file that none of the keys has signed.
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
		return fmt.Errorf("%s changes while it is read: %w", file, fault.ErrDigestMismatch)
	}
	if err := audit.OfFile(ctx, store, d, audit.Keys{Verifiers: signing.Verifiers(keys...)}).Err(); err != nil {
		err = fmt.Errorf("%s: %w", file, err)
		return fault.WithHint(err, "fetch it again from the site with "+filepath.Base(file)+".sigstore.json, and name the public key of that site: "+strings.Join(keyFiles, ", ")+" does not fit")
	}
	return nil
}

func (p *program) readInventory(file string) ([]byte, error) {
	if file == "-" {
		return bounded.Read(p.stdin, site.MaxInventory)
	}
	return bounded.File(os.Open, file, site.MaxInventory)
}
