package signing

import (
	"context"
	"errors"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Layout reports how the signatures and statements of subject are stored in st: FormatLegacy where all of them are under cosign's
// older tags, FormatBoth where there are bundles too, else FormatBundle, also if there is none.
func Layout(ctx context.Context, st Source, subject ocispec.Descriptor) (Format, error) {
	older := false
	for _, tag := range []string{LegacyTag(subject.Digest), AttestationTag(subject.Digest)} {
		switch _, err := atPlace(ctx, st, tag); {
		case err == nil:
			older = true
		case !errors.Is(err, fault.ErrNotFound):
			return "", unread(err, "resolve tag "+tag)
		}
	}
	if !older {
		return FormatBundle, nil
	}
	var listed []ocispec.Descriptor
	err := eachReferrers(ctx, st, subject, func(one []ocispec.Descriptor) bool {
		listed = one
		return false
	})
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		return "", unread(err, "list referrers")
	}
	bundles, err := anyBundle(ctx, st, listed)
	switch {
	case err != nil:
		return "", err
	case bundles:
		return FormatBoth, nil
	}
	return FormatLegacy, nil
}

// anyBundle reports whether a list of referrers has a bundle. Types in lists are often wrong, so possible bundles are opened.
func anyBundle(ctx context.Context, st Source, listed []ocispec.Descriptor) (bool, error) {
	for _, d := range listed {
		switch d.ArtifactType {
		case "", ocispec.MediaTypeEmptyJSON, ocispec.MediaTypeImageConfig:
			_, m, err := readManifest(ctx, st, d)
			if errors.Is(err, errMalformed) {
				continue
			}
			if err != nil {
				return false, err
			}
			if slices.ContainsFunc(m.Layers, func(l ocispec.Descriptor) bool { return isBundleType(l.MediaType) }) {
				return true, nil
			}
		default:
			if isBundleType(d.ArtifactType) {
				return true, nil
			}
		}
	}
	return false, nil
}
