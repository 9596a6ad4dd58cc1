package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"slices"

	"github.com/dustin/go-humanize"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/site"
	"github.com/longshore-dev/longshore/site/volume"
)

func (p *program) exportCommand() *cli.Command {
	return p.command("", command{
		name: "export", args: "HOST/PATH DIRECTORY", min: 2, max: 2,
		usage: "write everything that a site's devices need to a directory, such as a USB stick",
		about: "Writes what longshore mirror copies into an OCI image layout in DIRECTORY, which may be on a USB stick: verified first, " +
			"with all signatures. With --since it omits what the site has already, according to longshore site inventory. " +
			"With --volume-size it writes tar files with checksums, for several media or file systems with small files; meanwhile DIRECTORY " +
			"needs space for two copies. Repeat an interrupted export: it continues.",
		examples: []string{
			"--key release.pub harbor.acme.example/plant/state /media/stick",
			"--policy trust.yaml --since graz.json harbor.acme.example/plant/state /media/stick",
		},
		flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "volume-size", Usage: "write tar files of at most `SIZE` each, such as 4GB, instead of a layout"},
			&cli.BoolFlag{Name: "tar", Usage: "write one tar file instead of a layout"},
			platformFlag(),
			&cli.StringFlag{Name: "since", Usage: "inventory `FILE` of the site, - is stdin: what it lists is not written"},
		}, siteVerifyFlags(), budgetFlags(), siteFlags()),
		run: p.budgeted(p.export),
	})
}

type exportResult struct {
	*site.Mirrored
	Source     string   `json:"source"`
	Directory  string   `json:"directory"`
	Difference bool     `json:"difference"`
	Volumes    []string `json:"volumes,omitempty"` // files, in their order
}

func (r exportResult) essence() string { return fmt.Sprint(r.Bytes) }

func (r exportResult) text(w io.Writer) {
	row(w, "wrote", "%s: %s and %s, %s", fleet.Counted(r.Artifacts, "artifact"), fleet.Counted(r.Manifests, "manifest"), fleet.Counted(r.Sent, "blob"), size(r.Bytes))
	if r.Difference {
		row(w, "", "without what the site has")
	}
	row(w, "directory", "%s", r.Directory)
	if len(r.Volumes) > 0 {
		row(w, "volumes", "%d, see %s", len(r.Volumes), volume.SumsFile)
	}
}

func (p *program) export(c *cli.Context, args []string) error {
	client, err := p.client(c)
	if err != nil {
		return err
	}
	defer client.Close()
	s, err := p.carry(c, client, args[0], nil, true)
	if err != nil {
		return err
	}
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
	volumes, each, err := volumeSize(c)
	if err != nil {
		return err
	}
	draft, err := site.Begin(args[1], volumes, each)
	if err != nil {
		return err
	}
	m := &site.Mirror{From: s.from, Concurrency: 1, To: func(_ context.Context, repository string) (*registry.Repository, error) {
		return s.OpenCarried(draft.Layout, repository, registry.Carried{Had: had.Had(repository), Sparse: len(s.platforms) > 0})
	}, Platforms: s.platforms}
	made, err := p.runMirror(c, m, s.closure)
	if err != nil {
		return err
	}
	names, err := draft.End(c.Context, site.Export{States: s.states, Trust: s.trust, Platforms: s.platforms, Difference: had != nil})
	if err != nil {
		return err
	}
	return p.show(c, exportResult{made, args[0], args[1], had != nil, names})
}

// volumeSize reads whether volumes are wanted, and of which size; 0: any.
func volumeSize(c *cli.Context) (volumes bool, each int64, err error) {
	text := c.String("volume-size")
	if text == "" {
		return c.Bool("tar"), 0, nil
	}
	n, err := humanize.ParseBytes(text)
	switch {
	case c.Bool("tar"):
		err = misused(c, "--tar excludes --volume-size")
	case err != nil || n < volume.MinSize || n > math.MaxInt64:
		err = misused(c, "--volume-size %q is no size of at least 1MiB, such as 700MB or 4GB", text)
	}
	return true, int64(n), err
}

func (p *program) readInventory(file string) ([]byte, error) {
	if file == "-" {
		return bounded.Read(p.stdin, site.MaxInventory)
	}
	return bounded.File(os.Open, file, site.MaxInventory)
}
