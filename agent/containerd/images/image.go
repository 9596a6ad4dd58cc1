package images

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxDocument bounds an index, a manifest or a configuration: they are held in memory.
const maxDocument = 4 << 20

// maxLayers is how many layers an image may have. Overlays end at 500, Docker's images at 127.
const maxLayers = 256

// maxIndexDepth is how deep indexes of indexes may go before the manifest.
const maxIndexDepth = 3

// Image is one platform's image, read from verified bytes.
type Image struct {
	root     ocispec.Descriptor // the descriptor of the reference's digest: an index or the manifest
	path     []ocispec.Descriptor
	manifest ocispec.Manifest
	Config   ocispec.Image
	health   *workload.Health // Docker's HEALTHCHECK; nil: none
	chain    []digest.Digest  // chain ids, bottom first; they name the snapshots
}

// Top names the snapshot that containers start from; "" for an image without layers.
func (i *Image) Top() string {
	if len(i.chain) == 0 {
		return ""
	}
	return i.chain[len(i.chain)-1].String()
}

// size is the image's size in a registry, for one platform.
func (i *Image) size() int64 {
	var n int64
	for _, d := range slices.Concat(i.path, []ocispec.Descriptor{i.manifest.Config}, i.manifest.Layers) {
		n += d.Size
	}
	return n
}

// children lists the children of an index or manifest, for this platform only.
func (i *Image) children(_ context.Context, d ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	for n, p := range i.path {
		if p.Digest != d.Digest {
			continue
		}
		if n+1 < len(i.path) {
			return i.path[n+1 : n+2], nil
		}
		return append([]ocispec.Descriptor{i.manifest.Config}, i.manifest.Layers...), nil
	}
	return nil, nil
}

// readImage walks from a digest to one platform's image. get returns a document's verified bytes; it fills in a
// descriptor that has only a digest.
func readImage(ctx context.Context, d digest.Digest, match platforms.MatchComparer,
	get func(context.Context, *ocispec.Descriptor) ([]byte, error),
) (*Image, error) {
	img := &Image{}
	next := ocispec.Descriptor{Digest: d}
	for range maxIndexDepth {
		data, err := get(ctx, &next)
		if err != nil {
			return nil, err
		}
		next.MediaType = mediaType(next.MediaType, data)
		img.path = append(img.path, next)
		if images.IsManifestType(next.MediaType) {
			img.root = img.path[0]
			return img, img.readManifest(ctx, data, match, get)
		}
		if !images.IsIndexType(next.MediaType) {
			return nil, fmt.Errorf("%s is a %q, not an image: %w", next.Digest, next.MediaType, fault.ErrUnsupported)
		}
		var index ocispec.Index
		if err := json.Unmarshal(data, &index); err != nil {
			return nil, fmt.Errorf("read index %s: %w", next.Digest, failure.As(fault.ErrInvalid, err))
		}
		if next, err = choose(index, match); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("more than %d indexes inside each other: %w", maxIndexDepth-1, fault.ErrUnsupported)
}

func (i *Image) readManifest(ctx context.Context, data []byte, match platforms.MatchComparer,
	get func(context.Context, *ocispec.Descriptor) ([]byte, error),
) error {
	at := i.path[len(i.path)-1].Digest
	if err := json.Unmarshal(data, &i.manifest); err != nil {
		return fmt.Errorf("read manifest %s: %w", at, failure.As(fault.ErrInvalid, err))
	}
	if !images.IsConfigType(i.manifest.Config.MediaType) {
		return fmt.Errorf("manifest %s has a configuration of type %q, it is not a container image: %w",
			at, i.manifest.Config.MediaType, fault.ErrUnsupported)
	}
	if n := len(i.manifest.Layers); n > maxLayers {
		return fmt.Errorf("manifest %s has %d layers, over %d: %w", at, n, maxLayers, fault.ErrUnsupported)
	}
	for _, l := range i.manifest.Layers {
		if !images.IsLayerType(l.MediaType) {
			return fmt.Errorf("manifest %s has a layer of type %q: %w", at, l.MediaType, fault.ErrUnsupported)
		}
	}
	for n := range i.manifest.Layers {
		i.manifest.Layers[n].URLs = nil // bytes are fetched only from the registry that the policy covers
	}
	i.manifest.Config.URLs = nil
	data, err := get(ctx, &i.manifest.Config)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &i.Config); err != nil {
		return fmt.Errorf("read image configuration %s: %w", i.manifest.Config.Digest, failure.As(fault.ErrInvalid, err))
	}
	if i.health, err = imageHealth(data); err != nil {
		return fmt.Errorf("read image configuration %s: %w", i.manifest.Config.Digest, err)
	}
	ids := i.Config.RootFS.DiffIDs
	if len(ids) != len(i.manifest.Layers) {
		return fmt.Errorf("image %s has %d layers and names %d: %w", at, len(i.manifest.Layers), len(ids), fault.ErrInvalid)
	}
	for _, id := range ids {
		if err := id.Validate(); err != nil {
			return fmt.Errorf("layer id %q of image %s: %w", id, at, failure.As(fault.ErrInvalid, err))
		}
	}
	if p := i.Config.Platform; p.Architecture != "" && !match.Match(platforms.Normalize(p)) {
		return fmt.Errorf("image %s is for %s, not for this machine: %w", at, platforms.FormatAll(p), fault.ErrUnfit)
	}
	i.chain = identity.ChainIDs(append([]digest.Digest{}, ids...))
	return nil
}

// choose picks the entry of an index that fits best.
func choose(index ocispec.Index, match platforms.MatchComparer) (ocispec.Descriptor, error) {
	var (
		best  *ocispec.Descriptor
		found []string
	)
	for n, d := range index.Manifests {
		if d.Platform == nil {
			if images.IsIndexType(d.MediaType) || len(index.Manifests) == 1 {
				best = &index.Manifests[n]
			}
			continue
		}
		if d.Platform.OS == "unknown" { // attestations
			continue
		}
		p := platforms.Normalize(*d.Platform)
		found = append(found, platforms.FormatAll(p))
		if match.Match(p) && (best == nil || best.Platform == nil || match.Less(p, platforms.Normalize(*best.Platform))) {
			best = &index.Manifests[n]
		}
	}
	if best == nil {
		return ocispec.Descriptor{}, fmt.Errorf("the image has nothing for this machine, only for %v: %w", found, fault.ErrUnfit)
	}
	out := *best
	out.URLs = nil
	return out, out.Digest.Validate()
}

// mediaType is the media type in a document, else that of its descriptor, else one guessed from its members.
func mediaType(said string, data []byte) string {
	var d struct {
		MediaType string          `json:"mediaType"`
		Manifests json.RawMessage `json:"manifests"`
		Layers    json.RawMessage `json:"layers"`
	}
	if json.Unmarshal(data, &d) != nil {
		return said
	}
	switch {
	case d.MediaType != "":
		return d.MediaType
	case images.IsManifestType(said), images.IsIndexType(said):
		return said
	case d.Manifests != nil:
		return ocispec.MediaTypeImageIndex
	case d.Layers != nil:
		return ocispec.MediaTypeImageManifest
	}
	return said
}

// platform is the matcher for the platform of an image.
func platform(i workload.Image) (platforms.MatchComparer, error) {
	if i.Platform == "" {
		return platforms.Only(platforms.DefaultSpec()), nil
	}
	p, err := platforms.Parse(i.Platform)
	if err != nil {
		return nil, fmt.Errorf("platform %q: %w", i.Platform, failure.As(fault.ErrInvalid, err))
	}
	return platforms.Only(p), nil
}

// local reads an image from containerd's store only, without verifying images that are durable in the journal.
func (r *Store) local(ctx context.Context, i workload.Image) (*Image, error) {
	key := i.Name() + " " + i.Platform
	if img, ok := r.cache.Load(key); ok {
		return img.(*Image), nil
	}
	match, err := platform(i)
	if err != nil {
		return nil, err
	}
	img, err := readImage(ctx, i.Digest, match, r.readDocument)
	if err != nil {
		return nil, err
	}
	r.cache.Store(key, img)
	return img, nil
}

// readDocument reads a small blob that is in the store.
func (r *Store) readDocument(ctx context.Context, d *ocispec.Descriptor) ([]byte, error) {
	store := r.client.ContentStore()
	info, err := store.Info(ctx, d.Digest)
	if err != nil {
		if errdefs.IsNotFound(err) {
			return nil, fmt.Errorf("%s is not on this device: %w", d.Digest, fault.ErrNotFound)
		}
		return nil, failure.Classify(err)
	}
	if info.Size > maxDocument {
		return nil, fmt.Errorf("%s has %d bytes, over %d: %w", d.Digest, info.Size, maxDocument, fault.ErrTooLarge)
	}
	d.Size = info.Size
	data, err := content.ReadBlob(ctx, store, *d)
	return data, failure.Classify(err)
}
