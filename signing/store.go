package signing

import (
	"context"
	"slices"

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

// Mirrored is a [Source] that reads mirrors before the place itself, and so may show fewer signatures than there are: [Examine]
// then asks on.
type Mirrored interface {
	Source
	// EachReferrers gives enough the list of each mirror that has one and then that of the place itself, until it reports
	// true. A list may follow on a shorter one of the same place. An error says that the place itself could not be asked.
	EachReferrers(ctx context.Context, subject ocispec.Descriptor, enough func([]ocispec.Descriptor) bool) error
	// EachResolve gives enough what a tag points at, in the same order.
	EachResolve(ctx context.Context, tag string, enough func(ocispec.Descriptor) bool) error
}

// eachReferrers is [Mirrored.EachReferrers] of any source.
func eachReferrers(ctx context.Context, st Source, subject ocispec.Descriptor, enough func([]ocispec.Descriptor) bool) error {
	if m, ok := st.(Mirrored); ok {
		return m.EachReferrers(ctx, subject, enough)
	}
	list, err := st.Referrers(ctx, subject)
	if err == nil {
		enough(list)
	}
	return err
}

// AllReferrers lists the referrers that any place of a source has. With an error, which says why the place itself could not be
// asked, what mirrors list is there all the same.
func AllReferrers(ctx context.Context, st Source, subject ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	var all []ocispec.Descriptor
	err := eachReferrers(ctx, st, subject, func(listed []ocispec.Descriptor) bool {
		for _, d := range listed {
			if !slices.ContainsFunc(all, func(o ocispec.Descriptor) bool { return o.Digest == d.Digest }) {
				all = append(all, d)
			}
		}
		return false
	})
	return all, err
}

// EachResolve is [Mirrored.EachResolve] of any source.
func EachResolve(ctx context.Context, st Source, tag string, enough func(ocispec.Descriptor) bool) error {
	if m, ok := st.(Mirrored); ok {
		return m.EachResolve(ctx, tag, enough)
	}
	d, err := st.Resolve(ctx, tag)
	if err == nil {
		enough(d)
	}
	return err
}

// atPlace resolves a tag at the place itself: what is written there follows what is there, not what mirrors show.
func atPlace(ctx context.Context, st Source, tag string) (last ocispec.Descriptor, err error) {
	err = EachResolve(ctx, st, tag, func(d ocispec.Descriptor) bool {
		last = d
		return false
	})
	return last, err
}

// Store is what signing (signing/sign) needs of one repository.
type Store interface {
	Source
	// PushBlob makes a blob present; it does nothing when the blob is there.
	PushBlob(ctx context.Context, d ocispec.Descriptor, data []byte) error
	// PushManifest makes a manifest present by its digest and, unless tag is empty, points the tag at it.
	PushManifest(ctx context.Context, d ocispec.Descriptor, data []byte, tag string) error
	// PushReferrer makes a manifest with a subject present, and returns when the subject's referrers list it.
	PushReferrer(ctx context.Context, d ocispec.Descriptor, data []byte) error
}
