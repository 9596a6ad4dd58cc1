package audit

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

// maxClaimed bounds the referrers of one subject that [Claimed] opens.
const maxClaimed = 4

// Claimed reads the claimed signers of subject. Nothing is verified, and of many referrers only the newest are opened; an empty result
// means that there is no signature. With an error, which is about signatures that could not be read, the others are returned too.
func Claimed(ctx context.Context, src signing.Source, subject ocispec.Descriptor) ([]Statement, error) {
	listed, err := signing.AllReferrers(ctx, src, subject)
	if errors.Is(err, fault.ErrNotFound) {
		err = nil
	}
	listed = slices.DeleteFunc(listed, func(d ocispec.Descriptor) bool {
		declared := d.Annotations[signing.AnnotationPredicateType]
		return declared != "" && declared != signing.PredicateSign
	})
	slices.SortStableFunc(listed, func(a, b ocispec.Descriptor) int {
		return cmp.Compare(b.Annotations[ocispec.AnnotationCreated], a.Annotations[ocispec.AnnotationCreated])
	})
	var out []Statement
	left := int64(maxStatementsBytes)
	for _, d := range listed[:min(len(listed), maxClaimed)] {
		out = append(out, signatures(openReferrer(ctx, src, d.Digest, d.ArtifactType, &left), subject.Digest, &err)...)
	}
	if len(out) > 0 {
		return out, err
	}
	old, missing := src.Resolve(ctx, signing.LegacyTag(subject.Digest))
	if missing == nil {
		out = signatures(openReferrer(ctx, src, old.Digest, "", &left), subject.Digest, &err)
	} else if !errors.Is(missing, fault.ErrNotFound) {
		err = errors.Join(err, missing)
	}
	return out, err
}

// signatures are the claims of an opened referrer as a signature of subject; a read error joins err.
func signatures(r Referrer, subject digest.Digest, err *error) []Statement {
	if r.Fault != "" {
		*err = errors.Join(*err, errors.New(r.Fault))
	}
	return slices.DeleteFunc(r.Statements, func(s Statement) bool { return s.Kind != "signature" || s.Subject != subject })
}
