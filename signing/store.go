package signing

import (
	"context"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Source is what [Verify] needs of one repository. Errors wrap the sentinels of artifacts/fault: fault.ErrNotFound only
// when the place answered and the thing is not there.
type Source interface {
	// Name is the repository's name, "host/path", without scheme.
	Name() string
	// Resolve asks what a tag points at.
	Resolve(ctx context.Context, tag string) (ocispec.Descriptor, error)
	// Manifest returns a manifest's exact bytes, bounded.
	Manifest(ctx context.Context, d digest.Digest) (ocispec.Descriptor, []byte, error)
	// Blob returns a blob's exact bytes, at most limit of them.
	Blob(ctx context.Context, d ocispec.Descriptor, limit int64) ([]byte, error)
	// Referrers lists every manifest whose subject this is, of whatever type, in any order. None is no error.
	Referrers(ctx context.Context, subject ocispec.Descriptor) ([]ocispec.Descriptor, error)
}

// Store is what [Signer.Sign] needs of one repository.
type Store interface {
	Source
	// PushBlob makes a blob present; it does nothing when the blob is there.
	PushBlob(ctx context.Context, d ocispec.Descriptor, data []byte) error
	// PushManifest makes a manifest present by its digest and, unless tag is empty, points the tag at it.
	PushManifest(ctx context.Context, d ocispec.Descriptor, data []byte, tag string) error
	// PushReferrer makes a manifest with a subject present, and returns when the subject's referrers list it.
	PushReferrer(ctx context.Context, d ocispec.Descriptor, data []byte) error
}
