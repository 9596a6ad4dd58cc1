package main

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
)

func dryRunFlag() cli.Flag {
	return &cli.BoolFlag{Name: "dry-run", Usage: "print what would be pushed, with its digest, without pushing or signing"}
}

// rehearse is publish without its effects: it says what would be there, or why that cannot be.
func rehearse(c *cli.Context, repo *registry.Repository, a *artifacts.Artifact, o release.PublishOptions) (pushed, error) {
	r := pushedAs(repo, lastTag(o), a.Descriptor)
	r.DryRun = true
	if o.HistoryTag == "" {
		return r, nil
	}
	there, err := repo.Resolve(c.Context, o.HistoryTag)
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return r, nil
	case err != nil:
		return r, err
	case there.Digest != a.Descriptor.Digest:
		return r, fmt.Errorf("%s: %w: it is %s already", repo.Reference().WithTag(o.HistoryTag), fault.ErrConflict, there.Digest)
	}
	return r, nil
}

// lastTag is the tag that people know what is published by.
func lastTag(o release.PublishOptions) string {
	if n := len(o.Tags); n > 0 {
		return o.Tags[n-1]
	}
	return o.HistoryTag
}
