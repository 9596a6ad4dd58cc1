package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	maxImagePlatforms = 64
	maxImageConfig    = 4 << 20
)

// LockImage resolves an image reference of a Compose file: its current digest, its platforms, and the compressed size of
// each. Tags are resolved at the registry itself, because a mirror may show an older one; content is read by
// digest from any place. The result's Reference is ref unchanged. The credentials of Options are sent only to their own
// host, because Compose files may name any registry.
func (c *Client) LockImage(ctx context.Context, ref string) (artifacts.LockedImage, error) {
	out := artifacts.LockedImage{Reference: ref}
	parsed, err := ParseImage(ref)
	if err != nil {
		return out, err
	}
	repo, err := c.OpenNamed(parsed)
	if err != nil {
		return out, err
	}
	if out.Digest = parsed.Digest; out.Digest == "" {
		there, err := repo.here(ctx, parsed.Tag)
		if err != nil {
			return out, err
		}
		out.Digest = there.Digest
	}
	desc, data, err := repo.ManifestLimit(ctx, out.Digest, MaxForeignManifest)
	if err != nil {
		return out, err
	}
	if isIndex(desc.MediaType) {
		out.Platforms, err = lockIndex(ctx, repo, data)
	} else {
		out.Platforms, err = lockSingle(ctx, repo, desc.Digest, data)
	}
	if err == nil && len(out.Platforms) == 0 {
		err = fmt.Errorf("an image without a platform: %w", fault.ErrUnsupported)
	}
	return out, repo.fail("lock image", parsed.Target(), err)
}

// ImageLayers lists the blobs that a pull of one platform of an image transfers, its configuration first: d is the digest of the
// platform's manifest, ref names the image as in a Compose file. For credentials see [Client.LockImage].
func (c *Client) ImageLayers(ctx context.Context, ref string, d digest.Digest) ([]ocispec.Descriptor, error) {
	parsed, err := ParseImage(ref)
	if err != nil {
		return nil, err
	}
	repo, err := c.OpenNamed(parsed)
	if err != nil {
		return nil, err
	}
	_, data, err := repo.ManifestLimit(ctx, d, MaxForeignManifest)
	if err != nil {
		return nil, err
	}
	blobs, _, err := parts(data)
	return blobs, repo.fail("read image", d.String(), err)
}

func lockIndex(ctx context.Context, repo *Repository, data []byte) ([]artifacts.LockedPlatform, error) {
	var index ocispec.Index
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, fmt.Errorf("an index that is not JSON: %w", fault.ErrInvalid)
	}
	var out []artifacts.LockedPlatform
	for _, m := range index.Manifests {
		// Attestations are beside images, with an invalid platform.
		if m.Platform == nil || m.Platform.OS == "unknown" || m.Platform.Architecture == "unknown" || !IsManifest(m.MediaType) {
			continue
		}
		if len(out) == maxImagePlatforms {
			return nil, fmt.Errorf("more than %d platforms: %w", maxImagePlatforms, fault.ErrTooLarge)
		}
		name := platformName(*m.Platform)
		if slices.ContainsFunc(out, func(p artifacts.LockedPlatform) bool { return p.Platform == name }) {
			continue // a runtime uses the first of a kind
		}
		_, child, err := repo.ManifestLimit(ctx, m.Digest, MaxForeignManifest)
		if err != nil {
			return nil, err
		}
		size, _, err := imageSize(child)
		if err != nil {
			return nil, err
		}
		out = append(out, artifacts.LockedPlatform{Platform: name, Digest: m.Digest, Size: size})
	}
	slices.SortFunc(out, func(a, b artifacts.LockedPlatform) int { return strings.Compare(a.Platform, b.Platform) })
	return out, nil
}

// lockSingle reads the platform of an image without an index from its configuration.
func lockSingle(ctx context.Context, repo *Repository, d digest.Digest, data []byte) ([]artifacts.LockedPlatform, error) {
	size, config, err := imageSize(data)
	if err != nil {
		return nil, err
	}
	raw, err := repo.Blob(ctx, config, maxImageConfig)
	if err != nil {
		return nil, err
	}
	var image struct {
		ocispec.Platform
	}
	if err := json.Unmarshal(raw, &image); err != nil {
		return nil, fmt.Errorf("an image configuration that is not JSON: %w", fault.ErrInvalid)
	}
	if image.OS == "" || image.Architecture == "" {
		return nil, nil
	}
	return []artifacts.LockedPlatform{{Platform: platformName(image.Platform), Digest: d, Size: size}}, nil
}

func platformName(p ocispec.Platform) string {
	return platforms.Format(platforms.Normalize(ocispec.Platform{OS: p.OS, Architecture: p.Architecture, Variant: p.Variant}))
}

// imageSize adds up a pull: layers and configuration, each digest once.
func imageSize(data []byte) (int64, ocispec.Descriptor, error) {
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return 0, m.Config, fmt.Errorf("an image manifest that is not JSON: %w", fault.ErrInvalid)
	}
	var sum int64
	counted := map[digest.Digest]bool{}
	for _, d := range append([]ocispec.Descriptor{m.Config}, m.Layers...) {
		if err := checkDescriptor(d); err != nil {
			return 0, m.Config, err
		}
		if counted[d.Digest] {
			continue
		}
		counted[d.Digest] = true
		if sum += d.Size; sum < 0 {
			return 0, m.Config, fmt.Errorf("sizes beyond all bounds: %w", fault.ErrInvalid)
		}
	}
	return sum, m.Config, nil
}
