package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/urfave/cli/v2"

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
			"With --volume-size it writes tar files with checksums, for several media, or for a file system that limits the size of files; meanwhile " +
			"DIRECTORY needs space for two copies. Repeat an interrupted export: it continues. With --reports it writes, at the site, the reports that " +
			"devices pushed to HOST/PATH into DIRECTORY/reports, to be carried back.",
		examples: []string{
			"--key release.pub harbor.acme.example/plant/state /media/stick",
			"--policy trust.yaml --since graz.json harbor.acme.example/plant/state /media/stick",
			"--reports registry.graz.local:5000/plant/state /media/stick",
		},
		flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "volume-size", Usage: "write tar files of at most `SIZE` each, such as 4GB, instead of a layout"},
			&cli.BoolFlag{Name: "tar", Usage: "write one tar file instead of a layout"},
			platformFlag(),
			&cli.StringFlag{Name: "since", Usage: "inventory `FILE` of the site, - is stdin: what it lists is not written"},
			&cli.StringFlag{Name: "site", Usage: "reject an inventory that is not of the site `NAME`"},
			&cli.StringSliceFlag{Name: "inventory-key", Usage: "public key `FILE` of the site; the inventory must be signed with it; may be repeated, one signature is enough"},
		}, reportsFlags("write the reports of the site's devices, and nothing else"), siteVerifyFlags(), budgetFlags(), siteFlags()),
		run: p.budgeted(p.export),
	})
}

type exportResult struct {
	*site.Mirrored
	Source     string   `json:"source"`
	Directory  string   `json:"directory"`
	Difference bool     `json:"difference"`
	Site       string   `json:"site,omitempty"`    // of the inventory
	Taken      string   `json:"taken,omitempty"`   // when it was
	Volumes    []string `json:"volumes,omitempty"` // files, in their order
	Carried    int64    `json:"carried"`           // bytes of the export
	Omitted    int64    `json:"omitted,omitempty"` // bytes of blobs that the site has
}

func (r exportResult) essence() string { return fmt.Sprint(r.Bytes) }

func (r exportResult) text(w io.Writer) {
	carried := size(r.Carried)
	if len(r.Volumes) > 0 {
		carried += " in " + fleet.Counted(len(r.Volumes), "volume") + ", see " + volume.SumsFile
	}
	if r.Difference {
		carried += fmt.Sprintf(" (the site has %s of %s already)", size(r.Omitted), size(r.Omitted+r.Carried))
	}
	row(w, "to carry", "%s", carried)
	row(w, "wrote", "%s: %s and %s, %s", fleet.Counted(r.Artifacts, "artifact"), fleet.Counted(r.Manifests, "manifest"), fleet.Counted(r.Sent, "blob"), size(r.Bytes))
	if r.Taken != "" {
		row(w, "since", "the inventory of %s, %s", orUnnamed(r.Site), r.Taken)
	}
	row(w, "directory", "%s", r.Directory)
	for _, s := range r.Notes {
		row(w, "note", "%s", s)
	}
}

func (p *program) export(c *cli.Context, args []string) error {
	if c.Bool("reports") {
		return p.exportReports(c, args[0], args[1])
	}
	client, err := p.client(c)
	if err != nil {
		return err
	}
	defer client.Close()
	s, err := p.carry(c, client, args[0], nil, true)
	if err != nil {
		return err
	}
	had, err := p.inventory(c, s.states)
	if err != nil {
		return err
	}
	volumes, each, err := volumeSize(c)
	if err != nil {
		return err
	}
	draft, err := site.Begin(args[1], volumes, each)
	if err != nil {
		return err
	}
	parts := had.Parts(s.closure)
	omitted := omissions{all: map[digest.Digest]int64{}}
	m := &site.Mirror{From: s.from, Concurrency: 1, To: func(_ context.Context, repository string) (*registry.Repository, error) {
		return s.OpenCarried(draft.Layout, repository, registry.Carried{Had: parts[repository], Sparse: len(s.platforms) > 0, Omitted: omitted.add})
	}, Platforms: s.platforms, Since: had, Omitted: omitted.add}
	made, err := p.runMirror(c, m, s.closure)
	if err != nil {
		return err
	}
	e := site.Export{States: s.states, Trust: s.trust, Platforms: s.platforms, Difference: had != nil}
	if had != nil {
		e.Site, e.Taken = had.Site, had.Taken
	}
	written, err := draft.End(c.Context, e)
	if err != nil {
		return err
	}
	return p.show(c, exportResult{made, args[0], args[1], had != nil, e.Site, e.Taken, written.Volumes, written.Bytes, omitted.bytes()})
}

// omissions are blobs that an export leaves out, because the site has them.
type omissions struct {
	mu  sync.Mutex
	all map[digest.Digest]int64
}

func (o *omissions) add(d ocispec.Descriptor) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all[d.Digest] = d.Size
}

func (o *omissions) bytes() (sum int64) {
	for _, size := range o.all {
		sum += size
	}
	return sum
}

// volumeSize reads whether volumes are wanted, and of which size; 0: any.
func volumeSize(c *cli.Context) (volumes bool, each int64, err error) {
	text := c.String("volume-size")
	if text == "" {
		return c.Bool("tar"), 0, nil
	}
	if each, err = sizeFlag(c, "volume-size"); err != nil {
		return false, 0, err
	}
	switch {
	case c.Bool("tar"):
		err = misused(c, "--tar excludes --volume-size")
	case each < volume.MinSize:
		err = misused(c, "--volume-size %q is less than 1MiB", text)
	}
	return true, each, err
}
