package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Limits of reads. Larger responses are fault.ErrTooLarge.
const (
	// MaxManifest bounds our own artifacts' manifests.
	MaxManifest = 1 << 20
	// MaxForeignManifest bounds manifests and indexes of others: the limit of registries.
	MaxForeignManifest = 4 << 20
)

// Repository is one repository of a registry, or an OCI layout on disk. It is safe for concurrent use.
type Repository struct {
	ref Reference
	place
	concurrency int
}

// Elsewhere opens another repository with r's client, as [Client.OpenName] does; a layout has no other.
func (r *Repository) Elsewhere(ctx context.Context, name string) (*Repository, error) {
	p, ok := r.place.(*remotePlace)
	if !ok {
		return nil, newError("open", name, fmt.Errorf("from a layout: %w", fault.ErrUnsupported))
	}
	return p.c.OpenName(ctx, name)
}

// place has the common operations of a registry's repository and a layout. The Repository checks desc.Digest, not the place.
type place interface {
	resolve(ctx context.Context, target string) (ocispec.Descriptor, error)
	manifest(ctx context.Context, target string, limit int64) (ocispec.Descriptor, []byte, error)
	blob(ctx context.Context, desc ocispec.Descriptor) ([]byte, error)
	// openBlob opens a blob from a byte on. check: io.EOF is returned only if the digest matches; off must be 0 then.
	openBlob(ctx context.Context, desc ocispec.Descriptor, off int64, check bool) (io.ReadCloser, error)
	exists(ctx context.Context, desc ocispec.Descriptor) (bool, error)
	referrers(ctx context.Context, subject ocispec.Descriptor) ([]ocispec.Descriptor, error)
	tags(ctx context.Context, prefix string) ([]string, error) // prefix: a hint that no other tag is needed
	pushBlob(ctx context.Context, desc ocispec.Descriptor, data []byte) (sent bool, err error)
	pushBlobFrom(ctx context.Context, desc ocispec.Descriptor, open opener) (sent bool, err error)
	pushManifest(ctx context.Context, desc ocispec.Descriptor, data []byte, tag string) error
	pushReferrer(ctx context.Context, subject, desc ocispec.Descriptor, data []byte) error
}

// Name is "host/path", or the path of a layout.
func (r *Repository) Name() string { return r.ref.Name() }

// Reference is the reference that the repository was opened with.
func (r *Repository) Reference() Reference { return r.ref }

// Resolve returns the descriptor of a tag, or of an existing digest: usually one HEAD. Only Digest of the descriptor
// is reliable, and only after [Repository.Manifest] has fetched and hashed the bytes.
func (r *Repository) Resolve(ctx context.Context, tagOrDigest string) (ocispec.Descriptor, error) {
	if err := checkTarget(tagOrDigest); err != nil {
		return ocispec.Descriptor{}, r.fail(opResolve, tagOrDigest, err)
	}
	d, err := r.resolve(ctx, tagOrDigest)
	return d, r.fail(opResolve, tagOrDigest, err)
}

// Manifest returns the exact bytes of a manifest of at most [MaxManifest] bytes; they match the requested digest.
func (r *Repository) Manifest(ctx context.Context, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	return r.ManifestLimit(ctx, d, MaxManifest)
}

// ManifestLimit is Manifest with another bound, at most [MaxForeignManifest].
func (r *Repository) ManifestLimit(ctx context.Context, d digest.Digest, limit int64) (ocispec.Descriptor, []byte, error) {
	if err := checkDigest(d); err != nil {
		return ocispec.Descriptor{}, nil, r.fail(opManifest, d.String(), err)
	}
	desc, data, err := r.manifest(ctx, d.String(), min(limit, MaxForeignManifest))
	return desc, data, r.fail(opManifest, d.String(), err)
}

// Tagged returns the manifest that a tag names, of at most [MaxManifest] bytes, with its digest: one request.
func (r *Repository) Tagged(ctx context.Context, tag string) (ocispec.Descriptor, []byte, error) {
	if !ValidTag(tag) {
		return ocispec.Descriptor{}, nil, r.fail(opManifest, tag, checkTarget(tag))
	}
	desc, data, err := r.manifest(ctx, tag, MaxManifest)
	return desc, data, r.fail(opManifest, tag, err)
}

// Blob returns the exact bytes of a blob; desc.Size bounds the read, and limit bounds desc.Size.
func (r *Repository) Blob(ctx context.Context, desc ocispec.Descriptor, limit int64) ([]byte, error) {
	target := desc.Digest.String()
	if desc.Size > limit {
		return nil, r.fail(opBlob, target, fmt.Errorf("%d bytes, %d are allowed: %w", desc.Size, limit, fault.ErrTooLarge))
	}
	if err := checkDescriptor(desc); err != nil {
		return nil, r.fail(opBlob, target, err)
	}
	data, err := r.blob(ctx, desc)
	return data, r.fail(opBlob, target, err)
}

// OpenBlob streams a blob. The reader returns io.EOF only if size and digest match; a broken connection is
// resumed. The caller closes it. ctx bounds the whole stream.
func (r *Repository) OpenBlob(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	if err := checkDescriptor(desc); err != nil {
		return nil, r.fail(opBlob, desc.Digest.String(), err)
	}
	body, err := r.openBlob(ctx, desc, 0, true)
	if err != nil {
		return nil, r.fail(opBlob, desc.Digest.String(), err)
	}
	return body, nil
}

// Exists reports whether a blob, or a manifest by its media type, exists. A failed query is an error.
func (r *Repository) Exists(ctx context.Context, desc ocispec.Descriptor) (bool, error) {
	if err := checkDescriptor(desc); err != nil {
		return false, r.fail("look for", desc.Digest.String(), err)
	}
	ok, err := r.exists(ctx, desc)
	return ok, r.fail("look for", desc.Digest.String(), err)
}

// Referrers lists every manifest that names subject, unfiltered, because artifact types in registries' lists are not
// reliable. An empty list means that the place answered and there are none.
func (r *Repository) Referrers(ctx context.Context, subject ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	if err := checkDigest(subject.Digest); err != nil {
		return nil, r.fail("list referrers of", subject.Digest.String(), err)
	}
	list, err := r.referrers(ctx, subject)
	return list, r.fail("list referrers of", subject.Digest.String(), err)
}

// EachReferrers calls enough with the lists of referrers from which Referrers chooses, those of mirrors before the registry's own,
// until it returns true. At each place it may be called twice: with the entries of the API or of the fallback tag, then with those of both. An error means that the query of the registry itself failed; it is not queried if a mirror's list was
// enough.
func (r *Repository) EachReferrers(ctx context.Context, subject ocispec.Descriptor, enough func([]ocispec.Descriptor) bool) error {
	p, ok := r.place.(*remotePlace)
	if !ok {
		list, err := r.Referrers(ctx, subject)
		if err == nil {
			enough(list)
		}
		return err
	}
	err := checkDigest(subject.Digest)
	if err == nil {
		err = p.eachReferrers(ctx, subject, enough)
	}
	return r.fail("list referrers of", subject.Digest.String(), err)
}

// EachResolve calls enough with the descriptor of a tag, from each mirror that may resolve tags and then from the registry itself, until
// it returns true. Errors are those of [Repository.EachReferrers]; the registry's fault.ErrNotFound means that it has no such tag.
func (r *Repository) EachResolve(ctx context.Context, tag string, enough func(ocispec.Descriptor) bool) error {
	p, ok := r.place.(*remotePlace)
	if !ok {
		d, err := r.Resolve(ctx, tag)
		if err == nil {
			enough(d)
		}
		return err
	}
	err := checkTarget(tag)
	if err == nil {
		err = p.eachResolve(ctx, tag, enough)
	}
	return r.fail(opResolve, tag, err)
}

// Tags lists all tags, sorted.
func (r *Repository) Tags(ctx context.Context) ([]string, error) {
	list, err := r.tags(ctx, "")
	return list, r.fail(opTags, "", err)
}

// TagsWithPrefix lists the tags that begin with prefix, sorted. At a registry that lists in order this takes one request,
// independent of the number of other tags; at others the whole list is read.
func (r *Repository) TagsWithPrefix(ctx context.Context, prefix string) ([]string, error) {
	list, err := r.tags(ctx, prefix)
	list = slices.DeleteFunc(list, func(t string) bool { return !strings.HasPrefix(t, prefix) })
	return list, r.fail(opTags, "", err)
}

// PushBlob sends a blob unless it exists.
func (r *Repository) PushBlob(ctx context.Context, desc ocispec.Descriptor, data []byte) error {
	if err := checkContent(desc, data); err != nil {
		return r.fail(opPushBlob, desc.Digest.String(), err)
	}
	_, err := r.pushBlob(ctx, desc, data)
	return r.fail(opPushBlob, desc.Digest.String(), err)
}

// PushManifest puts a manifest, by its digest if tag is empty, otherwise under tag. Everything that it names must exist.
// It does not make a manifest with a subject findable everywhere; [Repository.PushReferrer] does.
func (r *Repository) PushManifest(ctx context.Context, desc ocispec.Descriptor, data []byte, tag string) error {
	target := tag
	if tag == "" {
		target = desc.Digest.String()
	}
	err := checkPut(desc, data, target)
	if err == nil {
		err = r.pushManifest(ctx, desc, data, tag)
	}
	return r.fail(opPushManifest, target, err)
}

func checkPut(desc ocispec.Descriptor, data []byte, target string) error {
	if err := checkContent(desc, data); err != nil {
		return err
	}
	if len(data) > MaxForeignManifest {
		return fmt.Errorf("%d bytes: %w", len(data), fault.ErrTooLarge)
	}
	return checkTarget(target)
}

// PushReferrer puts a manifest with a subject, and returns when the subject's referrers list it. If the registry has no
// referrers API, it updates the list under the fallback tag of the distribution specification and keeps entries of
// others.
func (r *Repository) PushReferrer(ctx context.Context, desc ocispec.Descriptor, data []byte) error {
	err := checkContent(desc, data)
	var subject ocispec.Descriptor
	if err == nil {
		subject, err = subjectOf(data)
	}
	if err == nil {
		err = r.pushReferrer(ctx, subject, desc, data)
	}
	return r.fail(opPushReferrer, desc.Digest.String(), err)
}

// Tag sets a tag to an existing manifest.
func (r *Repository) Tag(ctx context.Context, desc ocispec.Descriptor, tag string) error {
	full, data, err := r.ManifestLimit(ctx, desc.Digest, MaxForeignManifest)
	if err != nil {
		return err
	}
	return r.PushManifest(ctx, full, data, tag)
}

func (r *Repository) fail(op, target string, err error) error {
	if err == nil {
		return nil
	}
	ref := r.ref
	ref.Tag, ref.Digest = "", ""
	name := ref.String()
	switch {
	case target == "":
	case checkDigest(digest.Digest(target)) == nil:
		name += "@" + target
	default:
		name += ":" + target
	}
	return newError(op, name, err)
}

func checkTarget(target string) error {
	if checkDigest(digest.Digest(target)) == nil || ValidTag(target) {
		return nil
	}
	return fmt.Errorf("%q is neither a tag nor a digest: %w", target, fault.ErrInvalid)
}

func checkDescriptor(desc ocispec.Descriptor) error {
	if desc.Size < 0 {
		return fmt.Errorf("size %d: %w", desc.Size, fault.ErrInvalid)
	}
	return checkDigest(desc.Digest)
}

func checkContent(desc ocispec.Descriptor, data []byte) error {
	if err := checkDescriptor(desc); err != nil {
		return err
	}
	if int64(len(data)) != desc.Size || desc.Digest.Algorithm().FromBytes(data) != desc.Digest {
		return fmt.Errorf("%d bytes that are not the %d of their descriptor: %w", len(data), desc.Size, fault.ErrDigestMismatch)
	}
	return nil
}

// parts are the content that a manifest or an index names, without its subject: the configuration with the layers, and further manifests.
func parts(manifest []byte) (blobs, manifests []ocispec.Descriptor, err error) {
	var m struct {
		Config    *ocispec.Descriptor  `json:"config"`
		Layers    []ocispec.Descriptor `json:"layers"`
		Manifests []ocispec.Descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(manifest, &m); err != nil {
		return nil, nil, fmt.Errorf("a manifest that is not JSON: %w", fault.ErrInvalid)
	}
	if m.Config != nil {
		blobs = append(blobs, *m.Config)
	}
	blobs = append(blobs, m.Layers...)
	for _, d := range append(slices.Clone(blobs), m.Manifests...) {
		if err := checkDescriptor(d); err != nil {
			return nil, nil, err
		}
	}
	return blobs, m.Manifests, nil
}
