package signing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
)

const (
	maxReferrers     = 128     // of one subject that are looked at, likely ones first
	maxManifestBytes = 1 << 20 // of one referrer or signature manifest
	maxReasons       = 3       // told in one error

	maxSignatureBytes  = 32 << 20 // of all that is fetched to find the signatures of one subject
	maxStatementsBytes = 64 << 20 // or its statements of another type
	maxPieces          = 256      // of evidence about one subject that are looked at
)

// AnnotationTime is the signed annotation in which a signer says when it signed.
const AnnotationTime = "dev.longshore.signed"

// Signature is one signature that was made or found good, or another statement.
type Signature struct {
	Verification
	By          string            // the name of the trustee
	Format      Format            // FormatBundle or FormatLegacy
	Digest      digest.Digest     // of the referrer's manifest, as its list names it; of the payload when Format is FormatLegacy
	Time        time.Time         // when, as the signer claims, in UTC; zero when it did not tell
	Annotations map[string]string // what else was signed with the digest
	Predicate   json.RawMessage   // what a statement says; nil of a signature
}

// Verify returns the good signatures of subject's digest by any of trustees, at least one.
//
// Referrers are looked at first, whatever the registry says of their types, then cosign's ".sig" tag. The tag does not
// help where a bundle in a trustee's name is broken: that is an alarm.
//
// An error wraps fault.ErrUnsigned when there is none, fault.ErrBadSignature when there are some and none is good, and
// what the store said, or fault.ErrTemporary, when something could not be read that might have been a good one.
func Verify(ctx context.Context, st Source, subject ocispec.Descriptor, trustees []Verifier) ([]Signature, error) {
	return Statements(ctx, st, subject, PredicateSign, trustees)
}

// Found is what an examination found out about one subject.
type Found struct {
	Good   []Signature // one for each trustee of each signature
	Bad    []Remark    // broken or forged in the name of one of the trustees
	Other  []Remark    // signed by others
	Beside []Remark    // not what was asked for
	// Unread is why something that might have been a good one was not read; of several reasons the first that wraps
	// fault.ErrTemporary, if one does. What is more than is looked at, fault.ErrTooLarge, comes last.
	Unread error

	asked []Verifier
	what  string // predicate type
}

// Remark is something that was found and does not count.
type Remark struct {
	Where  string `json:"where"`        // "referrer sha256:…", "tag sha256-….sig"
	By     string `json:"by,omitempty"` // in which verifier's name; "": none, or unknown
	Reason string `json:"reason"`
	// Key is the fingerprint of the key that a signature by somebody else names, "": none. It is not checked.
	Key digest.Digest `json:"-"`
}

func (r Remark) String() string {
	if r.Where == "" {
		return r.Reason
	}
	return r.Where + ": " + r.Reason
}

// Err says why nothing, or not enough, is good; its kinds are those of [Verify].
func (f *Found) Err() error {
	switch who := f.verifiers(); {
	case f.Unread != nil:
		if len(f.Bad) > 0 {
			return fmt.Errorf("%w; and what could be read is bad: %s", f.Unread, Reasons(f.Bad))
		}
		return f.Unread
	case len(f.Bad) == 0 && len(f.Other) > 0:
		return fmt.Errorf("%w: not signed by %s, but %s", fault.ErrBadSignature, who, without(f.Other, ErrOtherSigner))
	case len(f.Bad) > 0:
		return fmt.Errorf("%w: not signed by %s: %s", fault.ErrBadSignature, who, Reasons(slices.Concat(f.Bad, f.Other)))
	case len(f.Beside) > 0:
		return fmt.Errorf("%w: there is only %s", fault.ErrUnsigned, Reasons(f.Beside))
	case f.what == PredicateSign:
		return fault.WithHint(fault.ErrUnsigned, hintUnsigned)
	default:
		return fault.ErrUnsigned
	}
}

// verifiers are the names of those who could have signed.
func (f *Found) verifiers() string {
	var names []string
	for _, v := range f.asked {
		names = append(names, v.VerifierName())
	}
	return strings.Join(names, ", ")
}

// Of is Err with the name of the artifact. Its summary is one sentence: "… is signed by key sha256:66b53686176b…, not by release".
func (f *Found) Of(st Source, subject ocispec.Descriptor) error {
	what := ""
	if f.what != PredicateSign {
		what = f.what + " of "
	}
	err := fmt.Errorf("verify %s%s@%s: %w", what, st.Name(), subject.Digest, f.Err())
	if says := f.Says(); says != "" {
		err = fault.WithSummary(err, Brief(st.Name(), subject.Digest)+" "+says)
	}
	return err
}

// Says is Err for people, without the name of the artifact: "is signed by key sha256:66b53686176b…, not by release"; "" if
// something could not be read.
func (f *Found) Says() string {
	who, lacks := f.verifiers(), "is not signed"
	if f.what != PredicateSign {
		lacks = "has no attestation of type " + f.what
	}
	switch signer := Signers(f.Other); {
	case f.Unread != nil:
		return ""
	case len(f.Bad) > 0 || len(f.Other) > 0 && signer == "":
		return fmt.Sprintf("%s by %s: %s", lacks, who, Reasons(slices.Concat(f.Bad, f.Other)))
	case len(f.Other) > 0 && f.what != PredicateSign:
		return fmt.Sprintf("%s by %s, only by %s", lacks, who, signer)
	case len(f.Other) > 0:
		return fmt.Sprintf("is signed by %s, not by %s", signer, who)
	case len(f.Beside) > 0:
		return lacks + "; there is only " + without(f.Beside, errNoSignature)
	}
	return lacks
}

// Signers names the keys that signatures by others claim, each once: "key sha256:66b53686176b…, key …"; "" if one of the
// signatures names no key.
func Signers(others []Remark) string {
	var keys []string
	for _, r := range others {
		if r.Key == "" {
			return ""
		}
		if k := "key " + printable.Digest(r.Key); !slices.Contains(keys, k) {
			keys = append(keys, k)
		}
	}
	if n := len(keys); n > maxReasons {
		keys = append(keys[:maxReasons], fmt.Sprintf("and %d more", n-maxReasons))
	}
	return strings.Join(keys, ", ")
}

// Brief names an artifact for people: its repository, and the beginning of its digest.
func Brief(repository string, d digest.Digest) string { return repository + "@" + printable.Digest(d) }

// hintUnsigned is for what has no signature at all.
const hintUnsigned = "sign it: longshore sign --key KEY REFERENCE; a copy needs its signatures copied too: oras cp -r, regctl image copy --referrers --digest-tags, skopeo with use-sigstore-attachments"

// without is the reasons of remarks, each once, without their place and an error that all of them end with.
func without(all []Remark, end error) string {
	var out []Remark
	for _, r := range all {
		r = Remark{Reason: strings.TrimSuffix(r.Reason, ": "+end.Error())}
		if !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return Reasons(out)
}

// Reasons tells the first few of many.
func Reasons(all []Remark) string {
	var text []string
	for _, r := range all[:min(len(all), maxReasons)] {
		text = append(text, r.String())
	}
	if more := len(all) - len(text); more > 0 {
		text = append(text, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(text, "; ")
}

// errMalformed marks what arrived whole and is broken.
var errMalformed = errors.New("malformed")

// readManifest returns the manifest that a descriptor carries in itself, or fetches it, and checks that it is what was asked for.
func readManifest(ctx context.Context, st Source, d ocispec.Descriptor) ([]byte, *ocispec.Manifest, error) {
	if err := d.Digest.Validate(); err != nil {
		return nil, nil, fmt.Errorf("%w: digest %.100q: %w", errMalformed, d.Digest, err)
	}
	data, err := artifacts.Carried(d), error(nil)
	if data == nil {
		if _, data, err = st.Manifest(ctx, d.Digest); err != nil {
			return nil, nil, unread(err, "fetch manifest")
		}
	}
	if got := d.Digest.Algorithm().FromBytes(data); got != d.Digest {
		return nil, nil, fmt.Errorf("fetch manifest: %w: got %s", fault.ErrDigestMismatch, got)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, nil, fmt.Errorf("%w manifest: %w", errMalformed, err)
	}
	return data, &m, nil
}

// readBlob returns the blob that a descriptor carries in itself, or fetches it, and checks that it is what was asked for.
func readBlob(ctx context.Context, st Source, d ocispec.Descriptor, limit int64) ([]byte, error) {
	if err := d.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("%w: digest %.100q: %w", errMalformed, d.Digest, err)
	}
	if d.Size < 0 || d.Size > limit {
		return nil, fmt.Errorf("%w: %d bytes, where at most %d can be", errMalformed, d.Size, limit)
	}
	if data := artifacts.Carried(d); data != nil {
		return data, nil
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

// CheckSubject refuses what cosign cannot sign.
func CheckSubject(st Source, subject ocispec.Descriptor) error {
	if err := subject.Digest.Validate(); err != nil {
		return fmt.Errorf("%s@%s: %w: %w", st.Name(), subject.Digest, fault.ErrInvalid, err)
	}
	if subject.Digest.Algorithm() != digest.SHA256 {
		return fmt.Errorf("%s@%s: %w: cosign's signatures are of sha256 digests only", st.Name(), subject.Digest, fault.ErrUnsupported)
	}
	return nil
}
