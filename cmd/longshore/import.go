package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/site"
)

func (p *program) importCommand() *cli.Command {
	return p.command("", command{
		name: "import", args: "DIRECTORY|TAR… DESTINATION", min: 2, max: -1,
		usage: "copy an export to the registry of a site",
		about: "Verifies an export, with the keys or the policy of the site, and copies it to the registry DESTINATION. The tags of devices " +
			"are set last, and never to an older generation. Volumes may be in several directories; all of them are checked first. Repeat an interrupted import: it continues.",
		examples: []string{"--key release.pub /media/stick registry.graz.local:5000", "--policy /etc/longshore/trust.yaml /media/stick registry.graz.local:5000"},
		flags:    slices.Concat(siteVerifyFlags(), []cli.Flag{hostPathsFlag()}, budgetFlags(), registryFlags()),
		run:      p.budgeted(p.importMedia),
	})
}

func (p *program) importMedia(c *cli.Context, args []string) error {
	client, err := p.client(c)
	if err != nil {
		return err
	}
	defer client.Close()
	media, there := args[:len(args)-1], args[len(args)-1]
	e, err := openMedia(c.Context, client, media)
	if err != nil {
		return err
	}
	defer e.Close()
	to := destination(c, client, there)
	from := site.Mapped(func(ctx context.Context, repository string) (*registry.Repository, error) {
		return client.OpenCarried(e.Path, repository, registry.Carried{Below: func(ctx context.Context) (*registry.Repository, error) { return to(ctx, repository) }})
	})
	o := site.Options{History: maxHistory, Trust: e.Trust}
	if _, err = p.siteVerify(c, from, &o, site.Mapped(to)); err != nil {
		return err
	}
	var made *site.Mirrored
	closure, err := site.Close(c.Context, from, e.States, o)
	if err == nil {
		made, err = p.runMirror(c, &site.Mirror{From: from, To: to, Platforms: e.Platforms}, closure)
	}
	if e.Difference && errors.Is(err, fault.ErrNotFound) && !fault.Retryable(err) {
		err = fault.WithHint(err, "the export leaves out what an inventory lists, and the site lacks some of it: export again with a new inventory, or without --since")
	}
	if err != nil {
		return err
	}
	return p.show(c, mirrorResult{made, strings.Join(media, " "), there})
}

// openMedia opens an export so that the client reads it. The caller closes it.
func openMedia(ctx context.Context, client *registry.Client, paths []string) (*site.Media, error) {
	m, err := site.OpenMedia(ctx, paths)
	if err != nil || m.Files == nil {
		return m, err
	}
	return m, client.ReadLayout(m.Path, m.Files)
}
