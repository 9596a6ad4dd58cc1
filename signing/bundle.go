package signing

import (
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	bundlev1 "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

const (
	// MediaTypeBundle is the type of the bundles that are written, as artifact and as layer.
	MediaTypeBundle = "application/vnd.dev.sigstore.bundle.v0.3+json"

	// AnnotationPredicateType is, of a bundle's referrer, the type of its statement before it is fetched.
	AnnotationPredicateType = "dev.sigstore.bundle.predicateType"
	// AnnotationBundle is, of a signature's referrer, the bundle itself, as its layer has it: a registry shows it in the list of referrers. What
	// it has there is a hint: a signature counts by its own bytes, and the manifest is read if these are not good.
	AnnotationBundle = "dev.longshore.bundle"
	// MaxAnnotatedBundle bounds a bundle in an annotation, because lists of referrers have all of them: a signature with a key has 0.6 KiB.
	MaxAnnotatedBundle = 4 << 10
	// PayloadType is the type of an envelope's payload: an in-toto statement.
	PayloadType = "application/vnd.in-toto+json"

	bundleTypePrefix = "application/vnd.dev.sigstore.bundle" // of every version

	// MaxStatementBytes bounds the bundle of a statement: of a signature 0.6 KiB, keyless with its log entry 10, of an
	// SBOM megabytes.
	MaxStatementBytes = 8 << 20
	maxBundleBytes    = 1 << 20 // of a signature

	// maxMaterialBytes bounds what proves a signature: a certificate, log entries and timestamps have 10 KiB. They are read before anyone is known to
	// have made them: checking an RSA key of a megabit takes minutes, and reading deeply nested timestamps as long.
	maxMaterialBytes = 32 << 10
)

// isBundleType reports whether a layer is a sigstore bundle of any version.
func isBundleType(mediaType string) bool { return strings.HasPrefix(mediaType, bundleTypePrefix) }

// openBundle reads a bundle and the statement in it, without verification. An error that wraps errNoSignature means that it
// is well-formed and of another kind.
func openBundle(data []byte, subject digest.Digest) (*Evidence, *payload, error) {
	var b bundlev1.Bundle
	if err := protojson.Unmarshal(data, &b); err != nil {
		return nil, nil, fmt.Errorf("bundle: %w", err)
	}
	if !isBundleType(b.GetMediaType()) {
		return nil, nil, fmt.Errorf("bundle: of type %.100q", b.GetMediaType())
	}
	if b.GetMessageSignature() != nil {
		return nil, nil, fmt.Errorf("a bundle of a blob: %w", errNoSignature)
	}
	envelope, material := b.GetDsseEnvelope(), b.GetVerificationMaterial()
	if envelope == nil || material == nil {
		return nil, nil, fmt.Errorf("bundle: without envelope or verification material")
	}
	if n := proto.Size(material); n > maxMaterialBytes {
		return nil, nil, fmt.Errorf("bundle: certificates, log entries and timestamps of %d bytes, where at most %d can be", n, maxMaterialBytes)
	}
	if t := envelope.GetPayloadType(); t != PayloadType {
		return nil, nil, fmt.Errorf("a bundle with payload %.100q: %w", t, errNoSignature)
	}
	if n := len(envelope.GetSignatures()); n != 1 {
		return nil, nil, fmt.Errorf("bundle: %d signatures in one envelope", n)
	}
	said, err := openStatement(envelope.GetPayload())
	if err != nil {
		return nil, nil, fmt.Errorf("bundle: %w", err)
	}
	e := &Evidence{
		Format: FormatBundle, Subject: subject, Bundle: data,
		Signed:    dsse.PAE(PayloadType, envelope.GetPayload()),
		Signature: envelope.GetSignatures()[0].GetSig(),
		Hint:      material.GetPublicKey().GetHint(),
	}
	if c := material.GetCertificate(); c != nil {
		e.Certificates = append(e.Certificates, c.GetRawBytes())
	}
	for _, c := range material.GetX509CertificateChain().GetCertificates() {
		e.Certificates = append(e.Certificates, c.GetRawBytes())
	}
	if material.GetPublicKey() == nil && len(e.Certificates) == 0 {
		return nil, nil, fmt.Errorf("bundle: with neither key nor certificate")
	}
	return e, said, nil
}
