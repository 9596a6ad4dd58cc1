package signing

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// MediaTypeEnvelope is the type of the layers with statements in cosign's older format.
	MediaTypeEnvelope = "application/vnd.dsse.envelope.v1+json"

	MediaTypeSimpleSigning = "application/vnd.dev.cosign.simplesigning.v1+json"
	AnnotationSignature    = "dev.cosignproject.cosign/signature"
	annotationCertificate  = "dev.sigstore.cosign/certificate"
	AnnotationStatement    = "predicateType" // of a layer with an envelope
	typeSimpleSigning      = "cosign container image signature"

	maxPayloadBytes = 64 << 10 // cosign writes 250 bytes and the annotations
	maxLegacyLayers = 64       // signatures, or statements of one type, of one subject that are read
)

// LegacyTag is the tag of the signatures of d in cosign's older format.
func LegacyTag(d digest.Digest) string {
	return d.Algorithm().String() + "-" + d.Encoded() + ".sig"
}

// AttestationTag is the tag of the statements about d in cosign's older format.
func AttestationTag(d digest.Digest) string {
	return d.Algorithm().String() + "-" + d.Encoded() + ".att"
}

// simpleSigning has the members of a payload of cosign's older format that are read.
type simpleSigning struct {
	kind        string
	digest      string // that it is about
	annotations map[string]any
}

// ReadTagged returns the manifest under a tag of signatures at the place itself, with its digest; nil if there is none.
func ReadTagged(ctx context.Context, st Source, tag string) (digest.Digest, *ocispec.Manifest, error) {
	d, err := atPlace(ctx, st, tag)
	if errors.Is(err, fault.ErrNotFound) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, unread(err, "resolve tag "+tag)
	}
	_, m, err := readManifest(ctx, st, d)
	if err != nil {
		return "", nil, err
	}
	m.MediaType = cmp.Or(m.MediaType, ocispec.MediaTypeImageManifest)
	return d.Digest, m, nil
}

// openLegacy reads a payload and its signature, without verification.
func openLegacy(data []byte, annotations map[string]string, subject digest.Digest) (*Evidence, *simpleSigning, error) {
	said, err := readPayload(data)
	if err != nil {
		return nil, nil, fmt.Errorf("payload: %w", err)
	}
	if said.kind != typeSimpleSigning {
		return nil, nil, fmt.Errorf("a payload of type %.100q: %w", said.kind, errNoSignature)
	}
	sig, err := base64.StdEncoding.DecodeString(annotations[AnnotationSignature])
	if err != nil {
		return nil, nil, fmt.Errorf("payload: signature: %w", err)
	}
	e := &Evidence{Format: FormatLegacy, Subject: subject, Signed: data, Signature: sig, Annotations: annotations}
	if text := annotations[annotationCertificate]; text != "" {
		block, _ := pem.Decode([]byte(text))
		if block == nil || block.Type != "CERTIFICATE" {
			return nil, nil, errors.New("payload: certificate is no PEM")
		}
		e.Certificates = [][]byte{block.Bytes}
	}
	return e, said, nil
}

// openEnvelope reads a statement of cosign's older format and its signature, without verification.
func openEnvelope(data []byte, annotations map[string]string, subject digest.Digest) (*Evidence, *payload, error) {
	var envelope dsse.Envelope
	if err := json.Unmarshal(data, &envelope); err != nil {
		return nil, nil, fmt.Errorf("envelope: %w", err)
	}
	if envelope.PayloadType != PayloadType {
		return nil, nil, fmt.Errorf("an envelope with payload %.100q: %w", envelope.PayloadType, errNoSignature)
	}
	if n := len(envelope.Signatures); n != 1 {
		return nil, nil, fmt.Errorf("envelope: %d signatures in one", n)
	}
	text, err := base64.StdEncoding.DecodeString(envelope.Payload)
	if err != nil {
		return nil, nil, fmt.Errorf("envelope: payload: %w", err)
	}
	sig, err := base64.StdEncoding.DecodeString(envelope.Signatures[0].Sig)
	if err != nil {
		return nil, nil, fmt.Errorf("envelope: signature: %w", err)
	}
	said, err := openStatement(text)
	if err != nil {
		return nil, nil, fmt.Errorf("envelope: %w", err)
	}
	if annotations[annotationCertificate] != "" {
		return nil, nil, fmt.Errorf("a statement with a certificate, which is read in bundles only: %w", errNoSignature)
	}
	return &Evidence{
		Format: FormatLegacy, Subject: subject, Signed: dsse.PAE(envelope.PayloadType, text), Signature: sig, Annotations: annotations,
	}, said, nil
}

// readPayload reads a payload exactly: names of members in their own case, none twice.
func readPayload(data []byte) (*simpleSigning, error) {
	top, err := Members(data)
	if err != nil {
		return nil, err
	}
	critical, err := Members(top["critical"])
	if err != nil {
		return nil, fmt.Errorf("critical: %w", err)
	}
	image, err := Members(critical["image"])
	if err != nil {
		return nil, fmt.Errorf("critical: image: %w", err)
	}
	var said simpleSigning
	if err := json.Unmarshal(critical["type"], &said.kind); err != nil {
		return nil, fmt.Errorf("critical: type: %w", err)
	}
	if err := json.Unmarshal(image["docker-manifest-digest"], &said.digest); err != nil {
		return nil, fmt.Errorf("critical: image: digest: %w", err)
	}
	if optional, there := top["optional"]; there {
		if err := json.Unmarshal(optional, &said.annotations); err != nil {
			return nil, fmt.Errorf("optional: %w", err)
		}
	}
	return &said, nil
}
