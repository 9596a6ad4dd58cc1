package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/site"
)

func (p *program) siteInventoryCommand() *cli.Command {
	return p.command("site", command{
		name: "inventory", args: "HOST/PATH DESTINATION", min: 2, max: 2,
		usage: "list what a site has, for longshore export --since",
		about: "Lists the manifests and blobs that the registry DESTINATION of a site has for the devices with states in HOST/PATH, as " +
			"JSON. The command does not connect to HOST: run it at the site, and bring the file to where you export.",
		examples: []string{"harbor.acme.example/plant/state registry.graz.local:5000 >graz.json", "--device press-07 harbor.acme.example/plant/state registry.graz.local:5000"},
		flags:    siteFlags(),
		run:      p.siteInventory,
	})
}

type inventoryResult struct{ *site.Inventory }

func (r inventoryResult) essence() string { return fmt.Sprint(len(r.Content)) }

// text is JSON too: the inventory is a file for export.
func (r inventoryResult) text(w io.Writer) {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(r) // the writer's own errors show when the result is printed
}

func (p *program) siteInventory(c *cli.Context, args []string) error {
	client, err := p.client(c)
	if err != nil {
		return err
	}
	defer client.Close()
	there := site.Mapped(destination(c, client, args[1]))
	states, o, err := p.siteOptions(c, args[0])
	if err != nil {
		return err
	}
	i := &site.Inventory{Version: 1, States: states}
	closure, err := site.Close(c.Context, there, states, o)
	if err == nil {
		i, err = site.Take(c.Context, there, states, closure)
	} else if errors.Is(err, fault.ErrNotFound) && !errors.Is(err, fault.ErrTemporary) {
		i, err = site.Take(c.Context, there, states, &site.Closure{}) // a new site has nothing
	}
	if err != nil {
		return err
	}
	return p.show(c, inventoryResult{i})
}
