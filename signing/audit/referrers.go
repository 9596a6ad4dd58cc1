package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

const (
	maxReferrers  = 64 // of one artifact that are opened
	maxStatements = 64 // of one referrer or signature tag that are opened

	maxStatementsBytes = 64 << 20 // of all statements about one artifact
)

// Referrer is something that refers to an artifact: a signature, an attestation, an SBOM.
type Referrer struct {
	Digest       digest.Digest `json:"digest"`
	Tag          string        `json:"tag,omitempty"` // tag of cosign's older format
	ArtifactType string        `json:"artifactType,omitempty"`
	Size         int64         `json:"size"` // of its manifest
	// Statements are its statements, unchecked. An artifact that is not a signature has none.
	Statements []Statement `json:"statements,omitempty"`
	Fault      string      `json:"fault,omitempty"` // why it could not be read
}

// olderTags are the suffixes of the tags of cosign's older format.
var olderTags = []string{".sig", ".att", ".sbom"}

// referrers lists the referrers of subject. A read error is reported, and the others are still listed.
func (i *Inspection) referrers(ctx context.Context, src signing.Source, subject ocispec.Descriptor) {
	listed, err := signing.AllReferrers(ctx, src, subject)
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		if i.Faults = append(i.Faults, err.Error()); len(listed) == 0 {
			i.Referrers = nil
		}
	}
	slices.SortFunc(listed, func(a, b ocispec.Descriptor) int { return strings.Compare(a.Digest.String(), b.Digest.String()) })
	if len(listed) > maxReferrers {
		i.Unlisted, listed = len(listed)-maxReferrers, listed[:maxReferrers]
	}
	left := int64(maxStatementsBytes)
	for _, d := range listed {
		i.Referrers = append(i.Referrers, openReferrer(ctx, src, d.Digest, d.ArtifactType, &left))
	}
	for _, ending := range olderTags {
		tag := strings.Replace(subject.Digest.String(), ":", "-", 1) + ending
		d, err := src.Resolve(ctx, tag)
		if errors.Is(err, fault.ErrNotFound) {
			continue
		}
		if err != nil {
			i.Faults = append(i.Faults, err.Error())
			continue
		}
		r := openReferrer(ctx, src, d.Digest, "", &left)
		r.Tag = tag
		i.Referrers = append(i.Referrers, r)
	}
}

// openReferrer reads a referrer; left are the bytes that may still be read of statements.
func openReferrer(ctx context.Context, src signing.Source, d digest.Digest, told string, left *int64) Referrer {
	r := Referrer{Digest: d, ArtifactType: told}
	desc, manifest, err := src.Manifest(ctx, d)
	if err != nil {
		r.Fault = err.Error()
		return r
	}
	r.Size = desc.Size
	o, err := artifacts.ReadOutline(manifest)
	if err != nil {
		r.Fault = err.Error()
		return r
	}
	r.ArtifactType = cmp.Or(o.ArtifactType, told) // lists of older tools have a wrong type
	if o.Kind == artifacts.KindSignature {
		if r.Statements, err = statements(ctx, src, o, left); err != nil {
			r.Fault = err.Error()
		}
	}
	return r
}

// statements reads the layers of a signature.
func statements(ctx context.Context, src signing.Source, o *artifacts.Outline, left *int64) ([]Statement, error) {
	var out []Statement
	var faults []error
	layers := o.Layers
	if len(layers) > maxStatements {
		faults = append(faults, fmt.Errorf("%d layers, %d are shown: %w", len(layers), maxStatements, fault.ErrTooLarge))
		layers = layers[:maxStatements]
	}
	for _, l := range layers {
		read := readSimple
		switch {
		case strings.HasPrefix(l.MediaType, "application/vnd.dev.sigstore.bundle"):
			read = ReadBundle
		case l.MediaType == "application/vnd.dsse.envelope.v1+json":
			read = readEnvelope
		case l.MediaType != "application/vnd.dev.cosign.simplesigning.v1+json":
			continue
		}
		if *left -= max(0, l.Size); *left < 0 {
			faults = append(faults, fmt.Errorf("%s: it and the statements before are more than is read: %w", l.Digest, fault.ErrTooLarge))
			continue
		}
		data, err := src.Blob(ctx, l, maxStatement)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		s, err := read(data)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		out = append(out, *s)
	}
	return out, errors.Join(faults...)
}
