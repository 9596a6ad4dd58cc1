package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxHeld is the largest blob, in bytes, that is held in memory while it is copied; larger ones are streamed.
const maxHeld = 1 << 20

// bundleType begins the artifact type of signatures in Sigstore bundles.
const bundleType = "application/vnd.dev.sigstore.bundle"

// errStream: a blob is too large to be held in memory.
var errStream = errors.New("the blob is streamed")

// Copied counts the content that a copy transferred.
type Copied struct {
	Manifests int   `json:"manifests"` // with those of signatures and statements
	Referrers int   `json:"referrers"` // of these: referrers of the copied content
	Mounted   int   `json:"mounted"`   // blobs that the registry shares now: no bytes were sent
	Sent      int   `json:"sent"`      // blobs
	Bytes     int64 `json:"bytes"`     // of these
}

// Add counts another copy too.
func (c *Copied) Add(more *Copied) {
	c.Manifests += more.Manifests
	c.Referrers += more.Referrers
	c.Mounted += more.Mounted
	c.Sent += more.Sent
	c.Bytes += more.Bytes
}

// CopyFrom copies a manifest from another repository, with everything that it names and that refers to it (signatures,
// attestations, statements; cosign's older ones as well), byte for byte. tag is set last; if it names another digest
// already, that is fault.ErrConflict. Existing content is not sent again, and blobs of another repository of the same
// registry are shared. It may be repeated after any interruption. only leaves out manifests of an index for other
// platforms: the index itself is not changed, and a registry that requires all of its manifests rejects it.
func (r *Repository) CopyFrom(ctx context.Context, from *Repository, d digest.Digest, tag string, only ...string) (*Copied, error) {
	c := &copier{only: only, to: r.Upstream(), from: from, origin: from.Upstream(), done: map[digest.Digest]bool{}}
	if tag != "" {
		there, err := r.ResolveUpstream(ctx, tag)
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
		err = c.about(ctx, desc, maxNested)
	}
	if err == nil && tag != "" {
		err = r.PushManifest(ctx, desc, data, tag)
	}
	return &c.made, err
}

// CopyReferrersFrom copies the referrers of an existing manifest, as CopyFrom does. Referrers of a signature are copied together with the
// signature, not later, except those that cosign's older tags name.
func (r *Repository) CopyReferrersFrom(ctx context.Context, from *Repository, d digest.Digest) (*Copied, error) {
	c := &copier{to: r.Upstream(), from: from, origin: from.Upstream(), done: map[digest.Digest]bool{}}
	err := c.about(ctx, ocispec.Descriptor{Digest: d}, maxNested)
	return &c.made, err
}

// Below lists the manifests that an index names for some platforms, default: all; none of an image.
func (r *Repository) Below(ctx context.Context, d digest.Digest, only ...string) ([]ocispec.Descriptor, error) {
	desc, data, err := r.ManifestLimit(ctx, d, MaxForeignManifest)
	if err != nil || !isIndex(desc.MediaType) {
		return nil, err
	}
	_, manifests, err := parts(data)
	if err == nil {
		manifests, err = Platforms(only).of(manifests)
	}
	return manifests, r.fail(opRead, d.String(), err)
}

// copier copies content from one repository to another.
type copier struct {
	to, from *Repository
	origin   *Repository // from without mirrors, whose lists may be incomplete
	only     Platforms

	mu   sync.Mutex // blobs are copied concurrently
	done map[digest.Digest]bool
	made Copied
}

func (c *copier) isDone(d digest.Digest) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.done[d]
}

// finish records copied content, and how it was copied.
func (c *copier) finish(d digest.Digest, count func(*Copied)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done[d] = true
	count(&c.made)
}

// manifest copies a manifest and everything that it names.
func (c *copier) manifest(ctx context.Context, d digest.Digest, depth int) (ocispec.Descriptor, []byte, error) {
	desc, data, err := c.from.ManifestLimit(ctx, d, MaxForeignManifest)
	if err != nil || c.isDone(d) {
		return desc, data, err
	}
	if err := c.parts(ctx, d, data, depth); err != nil {
		return desc, data, err
	}
	there, err := c.to.Exists(ctx, desc)
	if err == nil && !there {
		err = c.to.PushManifest(ctx, desc, data, "")
		if len(c.only) > 0 && isIndex(desc.MediaType) && refuses(statusOf(err)) {
			err = fault.WithHint(err, "the registry may take an image index only with the images of all platforms: copy all of them, or allow it in the "+
				"registry's configuration (distribution: validation.manifests.indexes.platforms: none)")
		}
	}
	if err == nil {
		c.finish(d, func(made *Copied) {
			if !there {
				made.Manifests++
			}
		})
	}
	return desc, data, err
}

// refuses reports whether a status may mean an incomplete index: some registries answer 500 for it.
func refuses(status int) bool {
	switch status {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusUnprocessableEntity, http.StatusInternalServerError:
		return true
	}
	return false
}

// parts copies everything that a manifest names, without its subject. oras-go's CopyGraph skips an existing manifest
// without checking its blobs, which a registry may have lost.
func (c *copier) parts(ctx context.Context, d digest.Digest, manifest []byte, depth int) error {
	blobs, manifests, err := parts(manifest)
	if err == nil && len(manifests) > 0 && depth == 0 {
		err = fmt.Errorf("indexes of indexes: %w", fault.ErrTooLarge)
	}
	if err == nil {
		manifests, err = c.only.of(manifests)
	}
	if err != nil {
		return c.from.fail("copy", d.String(), err)
	}
	for _, child := range manifests {
		if _, _, err := c.manifest(ctx, child.Digest, depth-1); err != nil {
			return err
		}
		if err := c.about(ctx, child, depth-1); err != nil {
			return err
		}
	}
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(max(c.to.concurrency, 1))
	asked := map[digest.Digest]bool{}
	for _, b := range blobs {
		if !asked[b.Digest] {
			asked[b.Digest] = true
			g.Go(func() error { return c.blob(inner, b) })
		}
	}
	return g.Wait()
}

// blob copies a blob: it exists already, the registry shares it, or it is sent.
func (c *copier) blob(ctx context.Context, b ocispec.Descriptor) error {
	if c.isDone(b.Digest) {
		return nil
	}
	b = ocispec.Descriptor{MediaType: b.MediaType, Digest: b.Digest, Size: b.Size}
	if _, remote := c.to.place.(*remotePlace); remote && b.Size > maxHeld && c.shared() == "" { // pushBlobFrom checks, before it waits for a slot
		return c.transfer(ctx, b)
	}
	there, err := c.to.Exists(ctx, ocispec.Descriptor{Digest: b.Digest, Size: b.Size})
	if err == nil && !there {
		return c.transfer(ctx, b)
	}
	if err == nil {
		c.finish(b.Digest, func(*Copied) {})
	}
	return err
}

// transfer copies a missing blob.
func (c *copier) transfer(ctx context.Context, b ocispec.Descriptor) error {
	sent := true
	mounted, err := c.held(ctx, b)
	if errors.Is(err, errStream) {
		sent, err = c.to.pushBlobFrom(ctx, b, func(ctx context.Context, off int64) (io.ReadCloser, error) {
			return c.from.openBlob(ctx, b, off, false)
		})
	}
	if _, remote := c.from.place.(*remotePlace); !remote && errors.Is(err, fault.ErrDigestMismatch) && fault.Hint(err) == "" {
		err = fault.WithHint(err, hintDamaged)
	}
	if err != nil {
		return c.to.fail(opCopyBlob, b.Digest.String(), err)
	}
	c.finish(b.Digest, func(made *Copied) {
		switch {
		case mounted:
			made.Mounted++
		case sent:
			made.Sent++
			made.Bytes += b.Size
		}
	})
	return nil
}

// shared is the repository of the same registry from which blobs are mounted; "": there is none.
func (c *copier) shared() string {
	to, remote := c.to.place.(*remotePlace)
	from, alike := c.from.place.(*remotePlace)
	if !remote || !alike || to.host != from.host || to.name == from.name {
		return ""
	}
	return from.name
}

// held copies a blob that the registry shares, or that fits into memory; errStream: neither.
func (c *copier) held(ctx context.Context, b ocispec.Descriptor) (mounted bool, err error) {
	from := c.shared()
	if from == "" && b.Size > maxHeld {
		return false, errStream
	}
	get := func() ([]byte, error) {
		if b.Size > maxHeld {
			return nil, errStream
		}
		return c.from.Blob(ctx, b, maxHeld)
	}
	to, remote := c.to.place.(*remotePlace)
	if remote {
		done, err := to.turn(ctx)
		if err != nil {
			return false, err
		}
		defer done()
	}
	if from != "" {
		return to.mount(ctx, b, from, get)
	}
	data, err := get()
	if err == nil {
		err = c.to.PushBlob(ctx, b, data)
	}
	return false, err
}

// turn waits for one of the client's transfer slots. The lock of an upload comes before it.
func (p *remotePlace) turn(ctx context.Context) (done func(), err error) {
	if err := p.c.transfers.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	return func() { p.c.transfers.Release(1) }, nil
}

// about copies everything that refers to a manifest, in each format.
func (c *copier) about(ctx context.Context, subject ocispec.Descriptor, depth int) error {
	if err := c.referrers(ctx, subject, depth); err != nil {
		return err
	}
	return c.legacy(ctx, subject.Digest, depth)
}

// legacy copies what older cosign stores about a manifest under tags, and everything that refers to that.
func (c *copier) legacy(ctx context.Context, subject digest.Digest, depth int) error {
	for _, suffix := range legacyTags {
		if err := c.tagged(ctx, fallbackTag(subject)+suffix, depth); err != nil {
			return err
		}
	}
	return nil
}

// referrers copies every manifest that names one as its subject.
func (c *copier) referrers(ctx context.Context, subject ocispec.Descriptor, depth int) error {
	list, err := c.origin.Referrers(ctx, subject)
	if err != nil {
		return err
	}
	var there []ocispec.Descriptor
	if len(list) > 0 {
		if there, err = c.to.Referrers(ctx, subject); err != nil {
			return err
		}
	}
	for _, d := range list {
		if err := c.referrer(ctx, subject, d, there, depth); err != nil {
			return err
		}
	}
	return nil
}

// tagged copies the artifact that older cosign stores under a separate tag. Signatures at the destination stay: the tag there moves
// only to a manifest with all layers of the previous one, as cosign creates it when it adds a signature.
func (c *copier) tagged(ctx context.Context, tag string, depth int) error {
	if !c.origin.MayHave(tag) {
		return nil
	}
	d, err := c.origin.Resolve(ctx, tag)
	if errors.Is(err, fault.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	known := c.to.omits(d.Digest)
	if !known {
		now, err := c.to.ResolveUpstream(ctx, tag)
		if err != nil {
			return err
		}
		known = now == d.Digest
		if !known && now != "" {
			if more, err := c.extends(ctx, d.Digest, now); err != nil || !more {
				return err
			}
		}
	}
	if !known {
		desc, data, err := c.manifest(ctx, d.Digest, 0)
		if err == nil {
			err = c.to.PushManifest(ctx, desc, data, tag)
		}
		if err != nil {
			return err
		}
		c.made.Referrers++
	}
	switch {
	case depth <= 1:
		return nil
	case known && strings.HasSuffix(tag, signatureTag): // one request less for each signature that the destination has
		return c.legacy(ctx, d.Digest, depth-1)
	}
	return c.about(ctx, d, depth-1)
}

// extends reports whether a manifest of the source has every layer of an existing one.
func (c *copier) extends(ctx context.Context, d, there digest.Digest) (bool, error) {
	_, data, err := c.from.ManifestLimit(ctx, d, MaxForeignManifest)
	if err != nil {
		return false, err
	}
	_, old, err := c.to.ManifestLimit(ctx, there, MaxForeignManifest)
	if err != nil {
		return false, err
	}
	blobs, _, err := parts(data)
	if err != nil {
		return false, c.from.fail("copy", d.String(), err)
	}
	were, _, err := parts(old)
	if err != nil || len(were) == 0 {
		return false, nil //nolint:nilerr // another artifact, created at the destination
	}
	for _, b := range were[1:] { // the first is the config, which lists the layers
		if !lists(blobs, b.Digest) {
			return false, nil
		}
	}
	return true, nil
}

func (c *copier) referrer(ctx context.Context, subject, d ocispec.Descriptor, there []ocispec.Descriptor, depth int) error {
	known := lists(there, d.Digest) || c.to.omits(d.Digest)
	if known && strings.HasPrefix(d.ArtifactType, bundleType) {
		if depth <= 1 {
			return nil
		}
		return c.legacy(ctx, d.Digest, depth-1)
	}
	desc, data, err := c.from.ManifestLimit(ctx, d.Digest, MaxForeignManifest)
	if errors.Is(err, fault.ErrNotFound) {
		return nil // listed, but removed
	}
	if err != nil {
		return err
	}
	if of, err := subjectOf(data); err != nil || of.Digest != subject.Digest {
		return nil //nolint:nilerr // listed by mistake
	}
	if !known {
		if err := c.parts(ctx, d.Digest, data, depth); err != nil {
			return err
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
	return c.about(ctx, desc, depth-1)
}
