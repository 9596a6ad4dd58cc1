package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxCopied bounds a blob that is carried from one repository to another: packages, components and charts are smaller.
const maxCopied = 256 << 20

// Copied counts what a copy brought.
type Copied struct {
	Manifests int   `json:"manifests"` // with those of signatures and statements
	Referrers int   `json:"referrers"` // of these: what refers to what was copied
	Mounted   int   `json:"mounted"`   // blobs that the registry shares now: no bytes were sent
	Sent      int   `json:"sent"`      // blobs
	Bytes     int64 `json:"bytes"`     // of these
}

// CopyFrom brings a manifest from another repository, with all that it names and all that refers to it (signatures,
// attestations, statements; cosign's older ones as well), bytes as they are. tag is set last; one that names something else
// already stays and is fault.ErrConflict. What is there is not sent again, and what another repository of the same registry
// has is shared. It may be repeated after any interruption.
func (r *Repository) CopyFrom(ctx context.Context, from *Repository, d digest.Digest, tag string) (*Copied, error) {
	c := &copier{to: r, from: from, done: map[digest.Digest]bool{}}
	if tag != "" {
		there, err := r.names(ctx, tag)
		if err == nil && there != "" && there != d {
			err = fault.WithHint(r.fail("copy to", tag, fmt.Errorf("it names %s already, not %s: %w", there, d, fault.ErrConflict)),
				"a version stands for one content: find out who pushed the other one")
		}
		if err != nil {
			return &c.made, err
		}
	}
	desc, data, err := c.manifest(ctx, d, maxNested)
	if err == nil {
		err = c.referrers(ctx, desc, maxNested)
	}
	if err == nil && tag != "" {
		err = r.PushManifest(ctx, desc, data, tag)
	}
	return &c.made, err
}

// copier brings things from one repository to another.
type copier struct {
	to, from *Repository
	done     map[digest.Digest]bool
	made     Copied
}

// manifest brings a manifest and all that it names.
func (c *copier) manifest(ctx context.Context, d digest.Digest, depth int) (ocispec.Descriptor, []byte, error) {
	desc, data, err := c.from.ManifestLimit(ctx, d, MaxForeignManifest)
	if err != nil || c.done[d] {
		return desc, data, err
	}
	var m struct {
		Config    *ocispec.Descriptor  `json:"config"`
		Layers    []ocispec.Descriptor `json:"layers"`
		Manifests []ocispec.Descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(data, &m); err != nil {
		return desc, data, c.from.fail("copy", d.String(), fmt.Errorf("a manifest that is not JSON: %w", fault.ErrInvalid))
	}
	for _, child := range m.Manifests {
		if depth == 0 {
			return desc, data, c.from.fail("copy", d.String(), fmt.Errorf("indexes of indexes: %w", fault.ErrTooLarge))
		}
		if _, _, err := c.manifest(ctx, child.Digest, depth-1); err != nil {
			return desc, data, err
		}
	}
	blobs := m.Layers
	if m.Config != nil {
		blobs = append(blobs, *m.Config)
	}
	for _, b := range blobs {
		if err := c.blob(ctx, b); err != nil {
			return desc, data, err
		}
	}
	if there, err := c.to.Exists(ctx, desc); err != nil || there {
		c.done[d] = err == nil
		return desc, data, err
	}
	if err := c.to.PushManifest(ctx, desc, data, ""); err != nil {
		return desc, data, err
	}
	c.done[d] = true
	c.made.Manifests++
	return desc, data, nil
}

// blob brings a blob: it is there already, the registry shares it, or it is sent.
func (c *copier) blob(ctx context.Context, b ocispec.Descriptor) error {
	if c.done[b.Digest] {
		return nil
	}
	b = ocispec.Descriptor{MediaType: b.MediaType, Digest: b.Digest, Size: b.Size}
	sent := false
	get := func() ([]byte, error) {
		sent = true
		return c.from.Blob(ctx, b, maxCopied)
	}
	there, err := c.to.Exists(ctx, ocispec.Descriptor{Digest: b.Digest, Size: b.Size})
	switch {
	case err != nil:
		return err
	case there:
		c.done[b.Digest] = true
		return nil
	}
	to, remote := c.to.place.(*remotePlace)
	from, alike := c.from.place.(*remotePlace)
	if remote && alike && to.host == from.host && to.name != from.name {
		err = to.share(ctx, b, from.name, get)
	} else {
		var data []byte
		if data, err = get(); err == nil {
			err = c.to.PushBlob(ctx, b, data)
		}
	}
	if err != nil {
		return c.to.fail("copy blob", b.Digest.String(), err)
	}
	c.done[b.Digest] = true
	if sent {
		c.made.Sent++
		c.made.Bytes += b.Size
	} else {
		c.made.Mounted++
	}
	return nil
}

// share asks the registry to share a blob of another of its repositories; where it does not, the blob is fetched and sent.
func (p *remotePlace) share(ctx context.Context, desc ocispec.Descriptor, from string, get func() ([]byte, error)) error {
	ctx = p.writing(ctx)
	var failed error
	err := p.pushing().Mount(ctx, desc, from, func() (io.ReadCloser, error) {
		data, err := get()
		failed = err
		return io.NopCloser(bytes.NewReader(data)), err
	})
	if failed != nil {
		return failed
	}
	if err = p.oras(ctx, err); err == nil || ctx.Err() != nil || errors.Is(err, fault.ErrTemporary) {
		return err
	}
	data, err := get() // not allowed there, or no such call: no reason not to send it
	if err != nil {
		return err
	}
	_, err = p.pushBlob(ctx, desc, data)
	return err
}

// referrers brings everything that refers to a manifest.
func (c *copier) referrers(ctx context.Context, subject ocispec.Descriptor, depth int) error {
	list, err := c.from.Referrers(ctx, subject)
	if err != nil {
		return err
	}
	there, err := c.to.Referrers(ctx, subject)
	if err != nil {
		return err
	}
	for _, d := range list {
		if err := c.referrer(ctx, subject, d, there, depth); err != nil {
			return err
		}
	}
	if depth < maxNested {
		return nil // cosign of old signs no signatures
	}
	for _, suffix := range append(ownTags, sharedTags...) {
		tag := fallbackTag(subject.Digest) + suffix
		d, err := c.from.Resolve(ctx, tag)
		if errors.Is(err, fault.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if now, err := c.to.names(ctx, tag); err != nil || now != "" {
			if err != nil {
				return err
			}
			continue // signatures made there stay
		}
		desc, data, err := c.manifest(ctx, d.Digest, 0)
		if err == nil {
			err = c.to.PushManifest(ctx, desc, data, tag)
		}
		if err != nil {
			return err
		}
		c.made.Referrers++
	}
	return nil
}

func (c *copier) referrer(ctx context.Context, subject, d ocispec.Descriptor, there []ocispec.Descriptor, depth int) error {
	desc, data, err := c.from.ManifestLimit(ctx, d.Digest, MaxForeignManifest)
	if errors.Is(err, fault.ErrNotFound) {
		return nil // listed, and gone
	}
	if err != nil {
		return err
	}
	if of, err := subjectOf(data); err != nil || of.Digest != subject.Digest {
		return nil //nolint:nilerr // listed by mistake
	}
	if !lists(there, d.Digest) {
		var m struct {
			Config *ocispec.Descriptor  `json:"config"`
			Layers []ocispec.Descriptor `json:"layers"`
		}
		if err := json.Unmarshal(data, &m); err != nil {
			return err
		}
		if m.Config != nil {
			m.Layers = append(m.Layers, *m.Config)
		}
		for _, b := range m.Layers {
			if err := c.blob(ctx, b); err != nil {
				return err
			}
		}
		if err := c.to.PushReferrer(ctx, desc, data); err != nil {
			return err
		}
		c.made.Manifests++
		c.made.Referrers++
	}
	if depth <= 1 {
		return nil
	}
	return c.referrers(ctx, desc, depth-1)
}
