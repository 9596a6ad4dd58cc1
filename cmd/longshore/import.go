package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/build"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing/audit"
	"github.com/longshore-dev/longshore/site"
)

var importCommand = command{
	name: "import", args: "DIRECTORY|TAR… [DESTINATION]", min: 1, max: -1,
	usage: "copy an export to the registry of a site",
	about: "Verifies an export with the keys or the policy of the site, and copies it to the registry DESTINATION. The tags of devices " +
		"are set last, and never to an older generation. Volumes may be in several directories; all of them are checked first. " +
		"The command writes a receipt to the media, which lists what the site has now; with --site-key the site signs it. Repeat " +
		"an interrupted import: it continues. With --reports it copies the device reports of export --reports to the repository " +
		"DESTINATION; an older report never replaces a newer one. With --endpoint instead of DESTINATION it " +
		"hands them in to the fleet endpoint, which stores each once.",
	examples: []string{"--key release.pub /media/stick registry.graz.local:5000", "--policy /etc/longshore/trust.yaml /media/stick registry.graz.local:5000", "--reports /media/stick harbor.acme.example/plant/state", "--reports --endpoint https://fleet.acme.example /media/stick"},
	flags: slices.Concat(siteVerifyFlags, []cmdline.Flag{
		hostPathsFlag,
		{Name: "receipt", Usage: "write the receipt to `FILE` instead of receipt.json on the media"},
		{Name: "site-key", Usage: "private `KEY` of the site to sign the receipt with: a file, pkcs11:…, or a key service: awskms://…"},
		{Name: "site-key-password-file", Usage: "`FILE` with the password or PIN of --site-key; default: LONGSHORE_KEY_PASSWORD, COSIGN_PASSWORD or a prompt"},
	}, reportsFlags("copy the reports of the site's devices, and nothing else"), handFlags, budgetFlags, registryFlags),
	run: (*call).importMedia,
}

type importResult struct {
	*site.Mirrored
	Source      string       `json:"source"`
	Destination string       `json:"destination"`
	Verified    siteVerified `json:"verified"`
	Receipt     string       `json:"receipt,omitempty"` // file
}

// siteVerified counts what an import has verified.
type siteVerified struct {
	States     int    `json:"states"`
	Components int    `json:"components"`
	Images     int    `json:"images"`
	Signatures int    `json:"signatures"`
	Against    string `json:"against,omitempty"` // files of keys or of a policy, or an identity; "": nothing was verified
}

func (r importResult) quietText() string { return fmt.Sprint(r.Bytes) }

func (r importResult) text(w io.Writer) {
	v := r.Verified
	counts := strings.Join([]string{printable.Counted(v.States, "state"), printable.Counted(v.Components, "component"), printable.Counted(v.Images, "image")}, ", ")
	if v.Against == "" {
		row(w, "copied", "%s without verification", counts)
	} else {
		row(w, "verified", "%s, %s against %s", counts, printable.Counted(v.Signatures, "signature"), v.Against)
	}
	moved := "all tags are up to date"
	if n := len(r.Devices); n > 0 {
		moved = "tags moved for " + printable.Counted(n, "device")
	}
	if r.Receipt != "" {
		moved += "; receipt written to " + r.Receipt
	}
	row(w, "pushed", "%s; %s", printable.Bytes(r.Bytes), moved)
	rows(w, "note", r.Notes)
}

func (c *call) importMedia(args []string) error {
	if c.Bool("reports") {
		return c.importReports(args)
	}
	switch {
	case len(args) < 2:
		return c.misused("name the registry of the site after the media")
	case c.typedEndpoint():
		return c.misused("--endpoint needs --reports")
	}
	signer, err := c.siteSigner("site-key", "site-key-password-file")
	if err != nil {
		return err
	}
	media, there := args[:len(args)-1], args[len(args)-1]
	e, err := openMedia(c.Context, c.registry, media)
	if err != nil {
		return err
	}
	defer e.Close()
	to := c.destination(there)
	from := site.Mapped(func(ctx context.Context, repository string) (*registry.Repository, error) {
		carried := registry.Carried{}
		if e.Difference {
			carried.Below = func(ctx context.Context) (*registry.Repository, error) { return to(ctx, repository) }
		}
		return c.registry.OpenCarried(e.Path, repository, carried)
	})
	var mu sync.Mutex
	signatures := map[string]bool{} // each of them once
	count := func(r *audit.Report) {
		mu.Lock()
		defer mu.Unlock()
		r.EachSignature(func(of digest.Digest, x audit.Signed) { signatures[fmt.Sprint(of, x.Digest, x.By)] = true })
	}
	o := site.Options{History: maxHistory, Trust: e.Trust}
	if e.Export.History != nil {
		o.History = min(max(*e.Export.History, 0), maxHistory)
	}
	if err = c.siteVerify(from, &o, count, site.Mapped(to)); err != nil {
		return err
	}
	var made *site.Mirrored
	closure, err := site.Close(c.Context, from, e.States, o)
	if err == nil {
		made, err = c.runMirror(&site.Mirror{From: from, To: to, Platforms: e.Platforms}, closure)
	}
	switch lacks := !fault.Retryable(err) && (errors.Is(err, fault.ErrNotFound) || e.Difference && errors.Is(err, fault.ErrUnsigned)); {
	case lacks && !e.Difference:
		if fault.Hint(err) == "" || errors.As(err, new(site.Missing)) { // else it is about the destination
			err = fault.WithHint(err, "the export lacks it: export again, from a registry that has it")
		}
	case lacks:
		since := "an inventory"
		if e.Taken != "" {
			since = "the inventory of " + cmp.Or(e.Site, unnamedSite) + ", " + e.Taken + ","
		}
		err = fault.WithHint(err, "the export leaves out the content that "+since+" lists: if the site lacks some of it, export again with a new inventory, or without --since")
	}
	if gone := e.There(); err != nil && gone != nil {
		err = fault.WithHint(fmt.Errorf("%s can no longer be read: %w", e.Path, err), "insert it and run the same import again: it continues; no device's tag has moved to incomplete content")
		err = outcome.WithCode(err, outcome.Other)
	}
	if err != nil {
		return err
	}
	r := importResult{Mirrored: made, Source: strings.Join(media, " "), Destination: there, Verified: c.verifiedOf(closure, len(signatures))}
	receipt := e.Receipt(closure, made)
	receipt.Destination, receipt.Time, receipt.Program = there, stamp(c.now()), "longshore "+build.Version()
	if r.Receipt, err = c.writeReceipt(e.Path, receipt, signer); err != nil {
		if c.String("receipt") != "" {
			return err
		}
		made.Notes = append(made.Notes, fmt.Sprintf("no receipt was written; name a file with --receipt: %v", err))
	}
	return c.show(r)
}

// writeReceipt writes a receipt to the media, or to the file of --receipt.
func (c *call) writeReceipt(media string, receipt *site.Receipt, signer *signer) (string, error) {
	file := c.String("receipt")
	if file == "" {
		if info, err := os.Stat(media); err != nil || !info.IsDir() {
			media = filepath.Dir(media)
		}
		file = filepath.Join(media, site.ReceiptFile)
	}
	data, err := json.MarshalIndent(receipt, "", "  ")
	if err != nil {
		return "", err
	}
	if err := writeSiteFile(c.Context, file, append(data, '\n'), signer); err != nil {
		return "", err
	}
	return file, nil
}

func (c *call) verifiedOf(closure *site.Closure, signatures int) siteVerified {
	v := siteVerified{Signatures: signatures}
	for _, n := range closure.Needs {
		switch n.Kind {
		case artifacts.KindState:
			v.States++
		case artifacts.KindComponent:
			v.Components++
		case artifacts.KindImage:
			v.Images++
		}
	}
	if !c.Bool("no-verify") {
		v.Against = strings.Join(slices.DeleteFunc(append(c.StringSlice("key"), c.String("policy"), c.String("certificate-identity")), func(s string) bool { return s == "" }), ", ")
	}
	return v
}

// openMedia opens an export and makes the client read it. The caller closes it.
func openMedia(ctx context.Context, client *registry.Client, paths []string) (*site.Media, error) {
	m, err := site.OpenMedia(ctx, paths)
	if err != nil || m.Files == nil {
		return m, err
	}
	return m, client.ReadLayout(m.Path, m.Files)
}
