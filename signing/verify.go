package signing

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	maxReferrers     = 64      // of one subject that are looked at, likely signatures first
	maxManifestBytes = 1 << 20 // of one referrer or signature manifest
	maxReasons       = 3       // told in one error
)

// Signature is one signature that was made or found good.
type Signature struct {
	Key         string            // the name of the key
	Fingerprint digest.Digest     // of the key
	Algorithm   string            // of the key
	Format      Format            // FormatBundle or FormatLegacy
	Digest      digest.Digest     // of the referrer's manifest; of the payload when Format is FormatLegacy
	Time        time.Time         // when, as the signer claims, in UTC; zero when it did not tell
	Annotations map[string]string // what else was signed with the digest
}

// Verify returns the good signatures of subject's digest by any of keys, at least one.
//
// Referrers are looked at first, whatever the registry says of their types, then cosign's ".sig" tag. The tag does not
// help where a bundle that names one of keys is broken: that is an alarm.
//
// An error wraps fault.ErrUnsigned when there is none, fault.ErrBadSignature when there are some and none is good, and
// what the store said, or fault.ErrTemporary, when something could not be read that might have been a good one.
func Verify(ctx context.Context, st Source, subject ocispec.Descriptor, keys []Key) ([]Signature, error) {
	if err := checkSubject(st, subject); err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("verify %s@%s: %w: no key given", st.Name(), subject.Digest, fault.ErrInvalid)
	}
	e := examine(ctx, st, subject, keys, FormatBoth)
	if len(e.good) > 0 {
		return e.good, nil
	}
	return nil, fmt.Errorf("verify %s@%s: %w", st.Name(), subject.Digest, e.err(keys))
}

// examination collects what was found about one subject.
type examination struct {
	good   []Signature
	bad    []string // broken or forged in the name of one of the keys
	other  []string // signatures by others
	beside []string // no signatures
	unread error    // the first thing that could not be read
}

// err says why nothing is good.
func (e *examination) err(keys []Key) error {
	switch {
	case e.unread != nil:
		if len(e.bad) > 0 {
			return fmt.Errorf("%w; and what could be read is bad: %s", e.unread, reasons(e.bad))
		}
		return e.unread
	case len(e.bad)+len(e.other) > 0:
		names := make([]string, len(keys))
		for i, k := range keys {
			names[i] = k.Name
		}
		return fmt.Errorf("%w: none by %s: %s", fault.ErrBadSignature, strings.Join(names, ", "), reasons(append(e.bad, e.other...)))
	case len(e.beside) > 0:
		return fmt.Errorf("%w: there is only %s", fault.ErrUnsigned, reasons(e.beside))
	default:
		return fault.ErrUnsigned
	}
}

func reasons(all []string) string {
	if len(all) > maxReasons {
		all = append(all[:maxReasons:maxReasons], fmt.Sprintf("and %d more", len(all)-maxReasons))
	}
	return strings.Join(all, "; ")
}

// note sorts the result of one check.
func (e *examination) note(where string, err error) {
	reason := where + ": " + err.Error()
	switch {
	case errors.Is(err, errNoSignature):
		e.beside = append(e.beside, reason)
	case errors.Is(err, errOtherSigner):
		e.other = append(e.other, reason)
	default:
		e.bad = append(e.bad, reason)
	}
}

func (e *examination) miss(err error) {
	if e.unread == nil {
		e.unread = err
	}
}

// examine looks at the signatures of subject in a format, or in both as Verify describes.
func examine(ctx context.Context, st Source, subject ocispec.Descriptor, keys []Key, f Format) *examination {
	e := &examination{}
	if f != FormatLegacy {
		e.referrers(ctx, st, subject, keys)
	}
	if f == FormatLegacy || f == FormatBoth && len(e.good) == 0 && len(e.bad) == 0 {
		e.legacyTag(ctx, st, subject, keys)
	}
	return e
}

func (e *examination) referrers(ctx context.Context, st Source, subject ocispec.Descriptor, keys []Key) {
	listed, err := st.Referrers(ctx, subject)
	if errors.Is(err, fault.ErrNotFound) { // also said by places that have never heard of the subject
		listed, err = nil, nil
	}
	if err != nil {
		e.miss(unread(err, "list referrers"))
		return
	}
	// The type that is told may be wrong, so it decides nothing but the order.
	listed = slices.Clone(listed)
	slices.SortStableFunc(listed, func(a, b ocispec.Descriptor) int {
		return cmp.Compare(likeliness(a), likeliness(b))
	})
	if len(listed) > maxReferrers {
		e.miss(fmt.Errorf("%w: %d referrers, and no good signature among the first %d", fault.ErrTooLarge, len(listed), maxReferrers))
		listed = listed[:maxReferrers]
	}
	for _, d := range listed {
		e.referrer(ctx, st, d, subject.Digest, keys)
	}
}

// likeliness is lower for what may be a signature.
func likeliness(d ocispec.Descriptor) int {
	switch {
	case isBundleType(d.ArtifactType):
		return 0
	case d.ArtifactType == "", d.ArtifactType == ocispec.MediaTypeEmptyJSON, d.ArtifactType == ocispec.MediaTypeImageConfig:
		return 1
	default:
		return 2
	}
}

func (e *examination) referrer(ctx context.Context, st Source, d ocispec.Descriptor, subject digest.Digest, keys []Key) {
	where := "referrer " + d.Digest.String()
	if d.Size > maxManifestBytes {
		e.beside = append(e.beside, fmt.Sprintf("%s: a manifest of %d bytes", where, d.Size))
		return
	}
	_, m, err := readManifest(ctx, st, d.Digest)
	if err != nil {
		e.missOrNote(where, err)
		return
	}
	if !slices.ContainsFunc(m.Layers, func(l ocispec.Descriptor) bool {
		return isBundleType(l.MediaType) || l.MediaType == mediaTypeSimpleSigning
	}) {
		e.beside = append(e.beside, fmt.Sprintf("%s of type %.100q", where, cmp.Or(m.ArtifactType, m.Config.MediaType)))
		return
	}
	if len(m.Layers) > maxLegacyLayers {
		e.bad = append(e.bad, fmt.Sprintf("%s: %d layers", where, len(m.Layers)))
		return
	}
	for _, l := range m.Layers {
		switch {
		case isBundleType(l.MediaType):
			e.bundleLayer(ctx, st, where, d.Digest, l, subject, keys)
		case l.MediaType == mediaTypeSimpleSigning: // cosign 2's experiment with referrers
			e.legacyLayer(ctx, st, where, l, subject, keys)
		}
	}
}

func (e *examination) bundleLayer(ctx context.Context, st Source, where string, at digest.Digest, l ocispec.Descriptor, subject digest.Digest, keys []Key) {
	data, err := readBlob(ctx, st, l, maxBundleBytes)
	if err != nil {
		e.missOrNote(where, err)
		return
	}
	k, claims, err := checkBundle(ctx, data, subject, keys)
	if err != nil {
		e.note(where, err)
		return
	}
	e.add(k, FormatBundle, at, claims)
}

func (e *examination) legacyTag(ctx context.Context, st Source, subject ocispec.Descriptor, keys []Key) {
	where := "tag " + LegacyTag(subject.Digest)
	m, err := readLegacy(ctx, st, LegacyTag(subject.Digest))
	if err != nil {
		e.missOrNote(where, err)
		return
	}
	if m == nil {
		return
	}
	layers := m.Layers
	if len(layers) > maxLegacyLayers {
		e.miss(fmt.Errorf("%w: %s: %d signatures, and no good one among the first %d", fault.ErrTooLarge, where, len(layers), maxLegacyLayers))
		layers = layers[:maxLegacyLayers]
	}
	for _, l := range layers {
		if l.MediaType == mediaTypeSimpleSigning {
			e.legacyLayer(ctx, st, where, l, subject.Digest, keys)
		}
	}
}

func (e *examination) legacyLayer(ctx context.Context, st Source, where string, l ocispec.Descriptor, subject digest.Digest, keys []Key) {
	data, err := readBlob(ctx, st, l, maxPayloadBytes)
	if err != nil {
		e.missOrNote(where, err)
		return
	}
	k, claims, err := checkLegacy(ctx, data, l.Annotations[annotationSignature], subject, keys)
	if err != nil {
		e.note(where, err)
		return
	}
	e.add(k, FormatLegacy, l.Digest, claims)
}

func (e *examination) add(k Key, f Format, at digest.Digest, claims map[string]string) {
	s := Signature{Key: k.Name, Fingerprint: k.Fingerprint, Algorithm: k.Algorithm, Format: f, Digest: at, Annotations: claims}
	if t, err := time.Parse(time.RFC3339, claims[timeClaim]); err == nil {
		s.Time = t.UTC()
		delete(claims, timeClaim)
	}
	e.good = append(e.good, s)
}

// errMalformed marks what arrived whole and is broken.
var errMalformed = errors.New("malformed")

// missOrNote sorts the failure of a read.
func (e *examination) missOrNote(where string, err error) {
	if errors.Is(err, errMalformed) {
		e.note(where, err)
		return
	}
	e.miss(fmt.Errorf("%s: %w", where, err))
}

// readManifest fetches a manifest and checks that it is what was asked for.
func readManifest(ctx context.Context, st Source, d digest.Digest) ([]byte, *ocispec.Manifest, error) {
	if err := d.Validate(); err != nil {
		return nil, nil, fmt.Errorf("%w: digest %.100q: %w", errMalformed, d, err)
	}
	_, data, err := st.Manifest(ctx, d)
	if err != nil {
		return nil, nil, unread(err, "fetch manifest")
	}
	if got := d.Algorithm().FromBytes(data); got != d {
		return nil, nil, fmt.Errorf("fetch manifest: %w: got %s", fault.ErrDigestMismatch, got)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, nil, fmt.Errorf("%w manifest: %w", errMalformed, err)
	}
	return data, &m, nil
}

// readBlob fetches a blob and checks that it is what was asked for.
func readBlob(ctx context.Context, st Source, d ocispec.Descriptor, limit int64) ([]byte, error) {
	if err := d.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("%w: digest %.100q: %w", errMalformed, d.Digest, err)
	}
	if d.Size < 0 || d.Size > limit {
		return nil, fmt.Errorf("%w: %d bytes, where at most %d can be", errMalformed, d.Size, limit)
	}
	data, err := st.Blob(ctx, d, limit)
	if err != nil {
		return nil, unread(err, "fetch "+d.Digest.String())
	}
	if got := d.Digest.Algorithm().FromBytes(data); got != d.Digest {
		return nil, fmt.Errorf("fetch %s: %w: got %s", d.Digest, fault.ErrDigestMismatch, got)
	}
	return data, nil
}

// unread makes sure that a failed read can never be taken for "there is none": a thing that is listed and missing, and
// any error without a name, is temporary.
func unread(err error, what string) error {
	for _, known := range []error{
		fault.ErrTemporary, fault.ErrUnauthenticated, fault.ErrDenied, fault.ErrDigestMismatch, fault.ErrTooLarge,
		fault.ErrUnsupported, fault.ErrInvalid, context.Canceled,
	} {
		if errors.Is(err, known) {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
	if errors.Is(err, fault.ErrNotFound) {
		return fmt.Errorf("%s: %w: it is listed and not there: %v", what, fault.ErrTemporary, err)
	}
	return fmt.Errorf("%s: %w: %w", what, fault.ErrTemporary, err)
}
