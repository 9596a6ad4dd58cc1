package signing

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	bundlev1 "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

const (
	// MediaTypeBundle is the type of the bundles that are written, as artifact and as layer.
	MediaTypeBundle = "application/vnd.dev.sigstore.bundle.v0.3+json"

	bundleTypePrefix    = "application/vnd.dev.sigstore.bundle" // of every version
	annotationPredicate = "dev.sigstore.bundle.predicateType"   // of a referrer, what it says before it is fetched
	inTotoPayload       = "application/vnd.in-toto+json"

	// MaxStatementBytes bounds the bundle of a statement: of a signature 0.6 KiB, keyless with its log entry 10, of an
	// SBOM megabytes.
	MaxStatementBytes = 8 << 20
	maxBundleBytes    = 1 << 20 // of a signature
)

// writeBundle signs a statement and attaches it.
func (s *Signer) writeBundle(ctx context.Context, st Store, subject ocispec.Descriptor, said Statement) (digest.Digest, error) {
	data, err := s.bundle(ctx, subject.Digest, said)
	if err != nil {
		return "", err
	}
	layer := descriptorOf(MediaTypeBundle, data)
	subject = ocispec.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size}
	m := ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: MediaTypeBundle,
		Config:       descriptorOf(ocispec.MediaTypeEmptyJSON, ocispec.DescriptorEmptyJSON.Data),
		Layers:       []ocispec.Descriptor{layer},
		Subject:      &subject,
		Annotations: map[string]string{
			"dev.sigstore.bundle.content": "dsse-envelope",
			annotationPredicate:           said.Type,
		},
	}
	if at := said.Annotations[timeClaim]; at != "" && said.Type != PredicateSign { // so that the newest can be looked at first
		m.Annotations[ocispec.AnnotationCreated] = at
	}
	manifest, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	if err := st.PushBlob(ctx, layer, data); err != nil {
		return "", err
	}
	if err := st.PushBlob(ctx, m.Config, ocispec.DescriptorEmptyJSON.Data); err != nil {
		return "", err
	}
	d := descriptorOf(ocispec.MediaTypeImageManifest, manifest)
	d.ArtifactType, d.Annotations = MediaTypeBundle, m.Annotations
	return d.Digest, st.PushReferrer(ctx, d, manifest)
}

// keyBundle is the JSON of a bundle that is signed with a key, its members in the order that sigstore writes.
type keyBundle struct {
	MediaType    string `json:"mediaType"`
	Verification struct {
		PublicKey struct {
			Hint string `json:"hint"`
		} `json:"publicKey"`
	} `json:"verificationMaterial"`
	Envelope dsse.Envelope `json:"dsseEnvelope"`
}

// bundle signs a statement about d.
func (s *Signer) bundle(ctx context.Context, d digest.Digest, said Statement) ([]byte, error) {
	payload, err := said.encode(d)
	if err != nil {
		return nil, err
	}
	if s.seal != nil {
		return s.seal(ctx, payload)
	}
	sig, err := s.sign(ctx, dsse.PAE(inTotoPayload, payload))
	if err != nil {
		return nil, err
	}
	b := keyBundle{MediaType: MediaTypeBundle}
	b.Verification.PublicKey.Hint = s.key.hint
	b.Envelope = dsse.Envelope{
		PayloadType: inTotoPayload, Payload: base64.StdEncoding.EncodeToString(payload),
		Signatures: []dsse.Signature{{Sig: base64.StdEncoding.EncodeToString(sig)}},
	}
	return json.Marshal(b)
}

// isBundleType tells whether a layer is a sigstore bundle of any version.
func isBundleType(mediaType string) bool { return strings.HasPrefix(mediaType, bundleTypePrefix) }

// openBundle reads a bundle and the statement in it, and believes neither. An error that wraps errNoSignature says that it
// is well-formed and another kind of thing.
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
	if t := envelope.GetPayloadType(); t != inTotoPayload {
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
		Signed:    dsse.PAE(inTotoPayload, envelope.GetPayload()),
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
