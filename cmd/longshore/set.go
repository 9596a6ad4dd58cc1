package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/registry"
)

// checkSet refuses values of --set that a component has no use for: a name with a slip in it would be signed, published,
// and have no effect.
func checkSet(ctx context.Context, repo *registry.Repository, component digest.Digest, values map[string]string) error {
	if len(values) == 0 {
		return nil
	}
	_, manifest, err := repo.Manifest(ctx, component)
	if err != nil {
		return err
	}
	x, err := artifacts.OpenComponent(manifest)
	if err != nil {
		return fmt.Errorf("--component %s: %w", repo.Reference(), err)
	}
	data, err := repo.Blob(ctx, x.Archive, artifacts.MaxArchive)
	if err != nil {
		return err
	}
	archive, err := artifacts.ReadArchive(data)
	if err != nil {
		return fmt.Errorf("--component %s: %w", repo.Reference(), err)
	}
	unused, known, err := compose.Unused(archive, slices.Sorted(maps.Keys(values)))
	if err != nil {
		return err
	}
	hint := "its compose.yaml refers to no variable"
	if len(known) > 0 {
		hint = "it takes " + strings.Join(known, ", ")
	}
	var all []error
	for _, name := range unused {
		err := fmt.Errorf("--set %s: %w: nothing in the component has this name", name, fault.ErrInvalid)
		if meant := strict.Nearest(name, known); meant != "" {
			err = fmt.Errorf("%w; did you mean %s?", err, meant)
		}
		all = append(all, err)
	}
	return fault.WithHint(errors.Join(all...), hint)
}
