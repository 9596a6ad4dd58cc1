package main

import (
	"errors"
	"fmt"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
)

var dryRunFlag = cmdline.Flag{Name: "dry-run", Value: false, Usage: "print what would be pushed, with its digest, without pushing or signing"}

// previewPublish returns what publish would push, or the error that it would end with, and pushes nothing.
func (c *call) previewPublish(repo *registry.Repository, a *artifacts.Artifact, o release.PublishOptions) (pushed, error) {
	r := describePushed(repo, lastTag(o), a.Descriptor)
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
		return r, fmt.Errorf("%s: %w: it names %s already", repo.Reference().WithTag(o.HistoryTag), fault.ErrConflict, there.Digest)
	}
	return r, nil
}

// lastTag is the tag that people know: the last of the moving ones, or the version.
func lastTag(o release.PublishOptions) string {
	if n := len(o.Tags); n > 0 {
		return o.Tags[n-1]
	}
	return o.HistoryTag
}
