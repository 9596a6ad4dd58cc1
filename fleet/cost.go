package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// once caches the value of a key; one caller looks it up while the others wait.
type once[T any] struct{ all sync.Map } // by key: func() (T, error)

func (o *once[T]) get(ctx context.Context, key string, find func(context.Context) (T, error)) (T, error) {
	found, _ := o.all.LoadOrStore(key, sync.OnceValues(func() (T, error) { return find(ctx) }))
	return found.(func() (T, error))()
}

// openedArchive is a Compose Archive and the size of its artifact.
type openedArchive struct {
	*artifacts.Archive
	bytes int64 // of the layer
}

// archives reads Compose Archives by the digests of their components.
type archives struct {
	from Registry
	once once[*openedArchive]
}

func (a *archives) get(ctx context.Context, c margo.Component) (*openedArchive, error) {
	d := pinOf(c)
	repository, ok := strings.CutPrefix(c.Properties.Repository, "oci://")
	if !ok || d == "" {
		return nil, fmt.Errorf("component %s is not pinned: %w", c.Name, fault.ErrUnsupported)
	}
	return a.once.get(ctx, repository+"@"+d.String(), func(ctx context.Context) (*openedArchive, error) {
		_, manifest, err := a.from.Manifest(ctx, repository, d)
		if err != nil {
			return nil, err
		}
		x, err := artifacts.OpenComponent(manifest)
		if err != nil {
			return nil, err
		}
		archive, err := x.Read(func(d ocispec.Descriptor) ([]byte, error) {
			return a.from.Blob(ctx, repository, d, artifacts.MaxArchive)
		})
		if err != nil {
			return nil, fmt.Errorf("component %s: %w", c.Name, err)
		}
		return &openedArchive{archive, x.Archive.Size}, nil
	})
}

// load has the content that a device fetches for a component: blobs by digest, with their sizes.
type load struct {
	blobs   map[digest.Digest]int64
	atMost  bool   // an image's layers could not be read: its total size counts
	missing string // why the device could not load it
}

// platformOf is a device's platform; "" if unknown.
func platformOf(d *Device) string {
	if d.Capabilities == nil || len(d.Capabilities.Properties.CPUs) == 0 {
		return ""
	}
	if a := d.Capabilities.Properties.CPUs[0].Architecture; a != "" && a != "other" {
		return "linux/" + a
	}
	return ""
}

// loads returns the content that a device of a platform fetches for a component.
func (p *planner) loads(ctx context.Context, c margo.Component, platform string) (*load, error) {
	return p.cost.get(ctx, c.Properties.Repository+"@"+pinOf(c).String()+" "+platform, func(ctx context.Context) (*load, error) {
		archive, err := p.archives.get(ctx, c)
		if err != nil {
			return nil, err
		}
		l := &load{blobs: map[digest.Digest]int64{pinOf(c): archive.bytes}}
		if archive.Lock == nil {
			l.atMost = true
			return l, nil
		}
		for _, image := range archive.Lock.Images {
			if err := p.image(ctx, l, image, platform); err != nil {
				return nil, err
			}
		}
		return l, nil
	})
}

// image adds the layers of an image.
func (p *planner) image(ctx context.Context, l *load, image artifacts.LockedImage, platform string) error {
	var at *artifacts.LockedPlatform
	var there []string
	for i, x := range image.Platforms {
		there = append(there, x.Platform)
		switch {
		case platform == "" && (at == nil || x.Size > at.Size): // the largest, if the platform is unknown
			at = &image.Platforms[i]
			l.atMost = len(image.Platforms) > 1 || l.atMost
		case platform != "" && at == nil && (x.Platform == platform || strings.HasPrefix(x.Platform, platform+"/")):
			at = &image.Platforms[i]
		}
	}
	if at == nil {
		l.missing = fmt.Sprintf("image %s is for %s, the device is %s", image.Reference, strings.Join(there, ", "), platform)
		return nil
	}
	var layers []ocispec.Descriptor
	err := error(fault.ErrUnsupported)
	if p.o.Layers != nil {
		layers, err = p.o.Layers(ctx, image.Reference, at.Digest)
	}
	switch {
	case errors.Is(err, fault.ErrNotFound):
		l.missing = fmt.Sprintf("image %s@%s is not at its registry", image.Reference, at.Digest)
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil: // its registry does not answer here, but may answer the devices
		l.blobs[at.Digest], l.atMost = at.Size, true
	}
	for _, d := range layers {
		l.blobs[d.Digest] = d.Size
	}
	return nil
}

// Cost is the content that a change transfers to one device.
type Cost struct {
	Bytes  int64 `json:"bytes"`
	Blobs  int   `json:"blobs"`            // that the device lacks
	Kept   int   `json:"kept"`             // of the same blobs, that it has
	AtMost bool  `json:"atMost,omitempty"` // an image's layers could not be read, so its total size counts
}

// price is the content that a device must fetch for profiles, if it has the content of had.
func (p *planner) price(ctx context.Context, platform string, had, now []margo.DeploymentProfile) (c Cost, missing string, err error) {
	has, wants := map[digest.Digest]int64{}, map[digest.Digest]int64{}
	sum := func(into map[digest.Digest]int64, all []margo.DeploymentProfile, strict bool) error {
		for _, profile := range all {
			if profile.Type != "compose" {
				continue
			}
			for _, component := range profile.Components {
				l, err := p.loads(ctx, component, platform)
				if err != nil && !strict && ctx.Err() == nil {
					continue // its registry does not have it, or does not answer: its content counts as missing
				}
				if err != nil {
					return err
				}
				if strict {
					c.AtMost = c.AtMost || l.atMost
					missing = cmp.Or(missing, l.missing)
				}
				maps.Copy(into, l.blobs)
			}
		}
		return nil
	}
	if err := sum(has, had, false); err != nil {
		return c, "", err
	}
	if err := sum(wants, now, true); err != nil {
		return c, "", err
	}
	for d, size := range wants {
		if _, there := has[d]; there {
			c.Kept++
			continue
		}
		c.Blobs++
		c.Bytes += size
	}
	c.AtMost = c.AtMost && c.Blobs > 0
	return c, missing, nil
}
