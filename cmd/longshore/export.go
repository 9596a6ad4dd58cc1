package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/site"
	"github.com/longshore-dev/longshore/site/volume"
)

var exportCommand = command{
	name: "export", args: "HOST/PATH DIRECTORY", min: 2, max: 2,
	usage: "write everything that a site's devices need to a directory, for example on a USB stick",
	about: "Verifies and writes the same content as longshore mirror, into an OCI image layout in DIRECTORY. With --since it leaves out " +
		"what the site has already, according to longshore site inventory. With --volume-size it writes tar files with checksums, " +
		"for several media, or for a file system that limits the size of files; then DIRECTORY needs space for two copies. " +
		"Repeat an interrupted export: it continues. With --reports, at the site, it writes the reports that devices pushed to " +
		"HOST/PATH into DIRECTORY/reports, to bring them back.",
	examples: []string{
		"--key release.pub harbor.acme.example/plant/state /media/stick",
		"--policy trust.yaml --since graz.json harbor.acme.example/plant/state /media/stick",
		"--reports registry.graz.local:5000/plant/state /media/stick",
	},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "volume-size", Usage: "write tar files of at most `SIZE` each, such as 4GB, instead of a layout"},
		{Name: "tar", Value: false, Usage: "write one tar file instead of a layout"},
		{Name: "check-media", Value: false, Usage: "read every file that DIRECTORY has, and replace those that are damaged"},
		platformFlag,
		{Name: "since", Usage: "inventory `FILE` of the site, - is stdin; listed content is left out"},
		{Name: "site", Usage: "reject an inventory that is not of the site `NAME`"},
		{Name: "inventory-key", Value: []string(nil), Usage: "public key `FILE` of the site; the inventory must be signed with it; may be repeated, one signature is enough"},
	}, reportsFlags("write the reports of the site's devices, and nothing else"), siteVerifyFlags, budgetFlags, siteFlags),
	run: (*call).export,
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

func (r exportResult) quietText() string { return fmt.Sprint(r.Bytes) }

func (r exportResult) text(w io.Writer) {
	carried := printable.Bytes(r.Carried)
	if len(r.Volumes) > 0 {
		carried += " in " + printable.Counted(len(r.Volumes), "volume") + ", see " + volume.SumsFile
	}
	if r.Difference {
		carried += fmt.Sprintf(" (the site has %s of %s already)", printable.Bytes(r.Omitted), printable.Bytes(r.Omitted+r.Carried))
	}
	row(w, "to carry", "%s", carried)
	row(w, "wrote", "%s: %s and %s, %s", printable.Counted(r.Artifacts, "artifact"), printable.Counted(r.Manifests, "manifest"), printable.Counted(r.Sent, "blob"), printable.Bytes(r.Bytes))
	if r.Taken != "" {
		row(w, "since", "the inventory of %s, %s", cmp.Or(r.Site, unnamedSite), r.Taken)
	}
	row(w, "directory", "%s", r.Directory)
	rows(w, "note", r.Notes)
}

func (c *call) export(args []string) error {
	if c.Bool("reports") {
		return c.exportReports(args[0], args[1])
	}
	volumes, each, err := c.volumeSize()
	if err != nil {
		return err
	}
	states, _, err := c.siteOptions(args[0])
	if err != nil {
		return err
	}
	had, err := c.inventory(states)
	if err != nil {
		return err
	}
	s, err := c.carry(args[0], nil, true) // last: to verify many states takes long
	if err != nil {
		return err
	}
	check, end := c.checkMedia()
	draft, err := site.Begin(c.Context, args[1], site.Form{States: s.states, Volumes: volumes, Size: each, Check: check})
	if end(); err != nil {
		return err
	}
	save, err := c.registry.HoldIndex(draft.Layout)
	if err != nil {
		return err
	}
	parts := had.Parts(s.closure)
	var mu sync.Mutex
	omitted := map[digest.Digest]int64{} // blobs that the site has, with their sizes
	omit := func(d ocispec.Descriptor) {
		mu.Lock()
		defer mu.Unlock()
		omitted[d.Digest] = d.Size
	}
	m := &site.Mirror{From: s.from, Concurrency: 1, To: func(_ context.Context, repository string) (*registry.Repository, error) {
		return s.OpenCarried(draft.Layout, repository, registry.Carried{Had: parts[repository], Sparse: len(s.platforms) > 0, Omitted: omit})
	}, Platforms: s.platforms, Since: had, Omitted: omit}
	made, err := c.runMirror(m, s.closure)
	if err = cmp.Or(err, save()); err != nil { // an interrupted export keeps its names
		return err
	}
	history := c.Int("history")
	e := site.Export{States: s.states, Trust: s.trust, Platforms: s.platforms, Difference: had != nil, History: &history}
	if had != nil {
		e.Site, e.Taken = had.Site, had.Taken
	}
	written, err := draft.End(c.Context, e)
	if err != nil {
		return err
	}
	r := exportResult{Mirrored: made, Source: args[0], Directory: args[1], Difference: had != nil, Site: e.Site, Taken: e.Taken, Volumes: written.Volumes, Carried: written.Bytes}
	for _, size := range omitted {
		r.Omitted += size
	}
	return c.show(r)
}

// checkMedia reads --check-media; nil: it is not given. The second function ends the progress.
func (c *call) checkMedia() (site.Checking, func()) {
	if !c.Bool("check-media") {
		return nil, func() {}
	}
	show, end := c.progress("checked")
	return func(done, all int, bytes int64) { show(fleet.Progress{Done: done, All: all, Bytes: bytes}) }, end
}

// volumeSize reads --tar and --volume-size; size 0 means any.
func (c *call) volumeSize() (volumes bool, each int64, err error) {
	text := c.String("volume-size")
	if text == "" {
		return c.Bool("tar"), 0, nil
	}
	if each, err = c.sizeFlag("volume-size"); err != nil {
		return false, 0, err
	}
	switch {
	case c.Bool("tar"):
		err = c.misused("--tar excludes --volume-size")
	case each < volume.MinSize:
		err = c.misused("--volume-size %q is less than 1MiB", text)
	}
	return true, each, err
}
