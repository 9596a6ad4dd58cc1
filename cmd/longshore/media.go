package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
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

func (p *program) exportCommand() *cli.Command {
	return p.command("", command{
		name: "export", args: "HOST/PATH DIRECTORY", min: 2, max: 2,
		usage: "write everything that a site's devices need to a directory, such as a USB stick",
		about: "Writes what longshore mirror copies into an OCI image layout in DIRECTORY, which may be on a USB stick: verified first, " +
			"with all signatures. With --since it omits what the site has already, according to longshore site inventory. " +
			"Repeat an interrupted export: it continues.",
		examples: []string{
			"--key release.pub harbor.acme.example/plant/state /media/stick",
			"--policy trust.yaml --since graz.json harbor.acme.example/plant/state /media/stick",
		},
		flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "since", Usage: "inventory `FILE` of the site, - is stdin: what it lists is not written"},
		}, siteVerifyFlags(), siteFlags()),
		run: p.export,
	})
}

func (p *program) importCommand() *cli.Command {
	return p.command("", command{
		name: "import", args: "DIRECTORY DESTINATION", min: 2, max: 2,
		usage: "copy an export to the registry of a site",
		about: "Verifies an export, with the keys or the policy of the site, and copies it to the registry DESTINATION. The tags of devices " +
			"are set last, and never to an older generation. Repeat an interrupted import: it continues.",
		examples: []string{"--key release.pub /media/stick registry.graz.local:5000", "--policy /etc/longshore/trust.yaml /media/stick registry.graz.local:5000"},
		flags:    slices.Concat(siteVerifyFlags(), []cli.Flag{hostPathsFlag()}, registryFlags()),
		run:      p.importMedia,
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

type exportResult struct {
	*site.Mirrored
	Source     string `json:"source"`
	Directory  string `json:"directory"`
	Difference bool   `json:"difference"`
}

func (r exportResult) essence() string { return fmt.Sprint(r.Bytes) }

func (r exportResult) text(w io.Writer) {
	row(w, "wrote", "%s: %s and %s, %s", fleet.Counted(r.Artifacts, "artifact"), fleet.Counted(r.Manifests, "manifest"), fleet.Counted(r.Sent, "blob"), size(r.Bytes))
	if r.Difference {
		row(w, "", "without what the site has")
	}
	row(w, "directory", "%s", r.Directory)
}

func (p *program) export(c *cli.Context, args []string) error {
	s, err := p.carry(c, args[0], true)
	if err != nil {
		return err
	}
	defer s.Close()
	var had *site.Inventory
	if file := c.String("since"); file != "" {
		data, err := p.readInventory(file)
		if err != nil {
			return err
		}
		if had, err = site.ParseInventory(file, data, s.states); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(filepath.Join(args[1], site.ExportFile)); err != nil { // it is not whole until it is written again
		return err
	}
	m := &site.Mirror{From: s.Client, Concurrency: 1, To: func(_ context.Context, repository string) (*registry.Repository, error) {
		return s.OpenCarried(args[1], repository, registry.Carried{Had: had.Had(repository)})
	}}
	made, err := p.runMirror(c, m, s.closure)
	if err != nil {
		return err
	}
	if err := (site.Export{States: s.states, Trust: s.trust, Difference: had != nil}).Write(args[1]); err != nil {
		return err
	}
	return p.show(c, exportResult{made, args[0], args[1], had != nil})
}

func (p *program) readInventory(file string) ([]byte, error) {
	if file == "-" {
		return bounded.Read(p.stdin, site.MaxInventory)
	}
	return bounded.File(os.Open, file, site.MaxInventory)
}

func (p *program) importMedia(c *cli.Context, args []string) error {
	client, err := p.client(c)
	if err != nil {
		return err
	}
	defer client.Close()
	e, err := site.ReadExport(args[0])
	if err != nil {
		return err
	}
	to := destination(c, client, args[1])
	from := site.Mapped(func(ctx context.Context, repository string) (*registry.Repository, error) {
		return client.OpenCarried(args[0], repository, registry.Carried{Below: func(ctx context.Context) (*registry.Repository, error) { return to(ctx, repository) }})
	})
	o := site.Options{History: maxHistory, Trust: e.Trust}
	if err = p.siteVerify(c, from, &o); err != nil {
		return err
	}
	var made *site.Mirrored
	closure, err := site.Close(c.Context, from, e.States, o)
	if err == nil {
		made, err = p.runMirror(c, &site.Mirror{From: from, To: to}, closure)
	}
	if e.Difference && errors.Is(err, fault.ErrNotFound) && !fault.Retryable(err) {
		err = fault.WithHint(err, "the export leaves out what an inventory lists, and the site lacks some of it: export again with a new inventory, or without --since")
	}
	if err != nil {
		return err
	}
	return p.show(c, mirrorResult{made, args[0], args[1]})
}

// siteOptions reads which states are meant, and what of them.
func (p *program) siteOptions(c *cli.Context, arg string) (states string, o site.Options, err error) {
	ref, err := registry.ParseReference(arg)
	if err != nil {
		return "", o, err
	}
	if ref.Target() != "" || ref.Scheme != registry.SchemeOCI {
		return "", o, misused(c, "%s: name the repository of states, HOST/PATH, and devices with --device", arg)
	}
	if n := c.Int("history"); n < 0 || n > maxHistory {
		return "", o, misused(c, "--history %d is not from 0 to %d", n, maxHistory)
	}
	o.History = c.Int("history")
	for _, s := range c.StringSlice("trust") {
		trust, err := registry.ParseReference(s)
		if err != nil || trust.Target() != "" {
			return "", o, outcome.Usagef("", "--trust %s is not HOST/PATH", s)
		}
		o.Trust = append(o.Trust, trust.Name())
	}
	o.Devices, err = devicesOf(c)
	return ref.Name(), o, err
}

// runMirror copies a closure and shows how far it has come.
func (p *program) runMirror(c *cli.Context, m *site.Mirror, closure *site.Closure) (*site.Mirrored, error) {
	show, end := p.progress(c, "copied")
	if show != nil {
		m.Tell = func(made site.Mirrored) {
			show(fleet.Progress{Done: made.Done, All: made.Artifacts, Bytes: made.Bytes})
		}
	}
	made, err := m.Run(c.Context, closure)
	end()
	return made, err
}
