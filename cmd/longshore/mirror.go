package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry/budget"
	"github.com/longshore-dev/longshore/site"
)

var mirrorCommand = command{
	name: "mirror", args: "HOST/PATH DESTINATION", min: 2, max: 2,
	usage: "copy everything that a site's devices need to the site's registry",
	about: "Copies the states of devices in HOST/PATH, and everything that they name, to the registry DESTINATION: trust policies, " +
		"application packages, components and images, with all signatures, attestations and other referrers, in both of " +
		"cosign's formats. Digests do not change. Every state is verified first, as longshore verify does. The tags of devices " +
		"are set last, and never to an older generation. Repeat an interrupted run: existing content is not sent again. Devices " +
		"find the copies by hosts.toml, see docs/site.md.",
	examples: []string{
		"--key release.pub harbor.acme.example/plant/state registry.graz.local:5000",
		"--policy trust.yaml --device press-07 --history 1 harbor.acme.example/plant/state registry.graz.local:5000",
	},
	flags: slices.Concat([]cmdline.Flag{checkFlag, platformFlag}, siteVerifyFlags, budgetFlags, siteFlags),
	run:   (*call).mirror,
}

type mirrorResult struct {
	*site.Mirrored
	Source      string `json:"source"`
	Destination string `json:"destination"`
}

func (r mirrorResult) quietText() string { return fmt.Sprint(r.Bytes) }

func (r mirrorResult) text(w io.Writer) {
	row(w, "copied", "%s: %s and %s sent, %s", printable.Counted(r.Artifacts, "artifact"), printable.Counted(r.Manifests, "manifest"), printable.Counted(r.Sent, "blob"), printable.Bytes(r.Bytes))
	rows(w, "note", r.Notes)
	if len(r.Devices) == 0 {
		row(w, "devices", "all tags are up to date")
		return
	}
	row(w, "devices", "%s", strings.Join(r.Devices, ", "))
}

func (c *call) mirror(args []string) error {
	to := site.Snapshots(c.destination(args[1]))
	s, err := c.carry(args[0], to, true)
	if err != nil {
		return err
	}
	m := &site.Mirror{From: s.from, To: to.OpenName, Check: c.checkOf(), Platforms: s.platforms}
	made, err := c.runMirror(m, s.closure)
	if err != nil {
		return err
	}
	return c.show(mirrorResult{made, args[0], args[1]})
}

// runMirror copies a closure and shows how far it has come. With --max-bytes it finds out first how much the site lacks, to tell how much
// is left when they are used up.
func (c *call) runMirror(m *site.Mirror, closure *site.Closure) (*site.Mirrored, error) {
	show, end := c.progress("copied")
	m.Tell = func(made site.Mirrored) {
		show(fleet.Progress{Done: made.Done, All: made.Artifacts, Bytes: made.Bytes})
	}
	m.Concurrency = cmp.Or(m.Concurrency, c.Int("concurrency"))
	var lacks int64
	if c.String("max-bytes") != "" {
		plan, err := m.Plan(c.Context, closure)
		if err != nil {
			return nil, err
		}
		lacks = plan.Lacks
	}
	made, err := m.Run(c.Context, closure)
	end()
	if err != nil && errors.Is(context.Cause(c.Context), budget.ErrUsed) {
		hint := "run the same command again: it continues"
		if made.Manifests+made.Sent == 0 {
			hint += "; if it copies nothing again, repeat with a larger --max-bytes"
		}
		err = fault.WithHint(fmt.Errorf("copied %s, at most %s are left: %w", printable.Bytes(made.Bytes), printable.Bytes(max(0, lacks-made.Bytes)), budget.ErrUsed), hint)
	}
	return made, err
}
