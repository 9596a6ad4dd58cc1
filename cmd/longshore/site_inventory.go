package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/site"
)

var siteInventoryCommand = command{
	name: "inventory", args: "HOST/PATH DESTINATION", min: 2, max: 2,
	usage: "list what a site has, for longshore export --since",
	about: "Lists the manifests and blobs that the registry DESTINATION of a site has for the devices with states in HOST/PATH, as " +
		"JSON. The command does not connect to HOST: run it at the site, and bring the file to the machine of the export. With " +
		"--key the site signs the file: the signature is FILE.sigstore.json, for longshore export --inventory-key.",
	examples: []string{"harbor.acme.example/plant/state registry.graz.local:5000 >graz.json", "--site graz --key site.key --file graz.json harbor.acme.example/plant/state registry.graz.local:5000"},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "site", Usage: "`NAME` of the site, for the inventory"},
		{Name: "file", Usage: "write the inventory to `FILE` instead of stdout"},
	}, keyFlags, siteFlags),
	run: (*call).siteInventory,
}

type inventoryResult struct{ *site.Inventory }

func (r inventoryResult) quietText() string { return fmt.Sprint(len(r.Content)) }

// text is JSON too: the inventory is a file for export.
func (r inventoryResult) text(w io.Writer) {
	_ = cmdline.Encode(w, "json", r) // the writer's own errors show when the result is printed
}

func (c *call) siteInventory(args []string) error {
	file := c.String("file")
	if file == "" && c.String("key") != "" {
		return c.misused("--key needs --file, because the signature is a file beside it")
	}
	signer, err := c.siteSigner("key", "key-password-file")
	if err != nil {
		return err
	}
	there := site.Mapped(c.destination(args[1]))
	states, o, err := c.siteOptions(args[0])
	if err != nil {
		return err
	}
	o.Known = true
	i := &site.Inventory{Version: 1, States: states}
	closure, err := site.Close(c.Context, there, states, o)
	if err == nil {
		i, err = site.Take(c.Context, there, states, closure)
	} else if errors.Is(err, fault.ErrNotFound) && !errors.Is(err, fault.ErrTemporary) {
		fmt.Fprintf(c.stderr, "note: the inventory is empty: %v\n", err)
		closure = &site.Closure{}
		i, err = site.Take(c.Context, there, states, closure)
	}
	if err != nil {
		return err
	}
	for _, s := range closure.Absent {
		fmt.Fprintf(c.stderr, "note: %s\n", s)
	}
	i.Site, i.Taken = c.String("site"), stamp(c.now())
	if file == "" {
		return c.show(inventoryResult{i})
	}
	var data bytes.Buffer
	inventoryResult{i}.text(&data)
	return writeSiteFile(c.Context, file, data.Bytes(), signer)
}
