package keyless

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	protobundle "github.com/sigstore/protobuf-specs/gen/pb-go/bundle/v1"
	protocommon "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	protorekor "github.com/sigstore/protobuf-specs/gen/pb-go/rekor/v1"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/verify"

	"github.com/longshore-dev/longshore/signing"
)

// Annotations of cosign's older format, and the bundle version that has room for what is in them.
const (
	annotationCertificate = "dev.sigstore.cosign/certificate"
	annotationChain       = "dev.sigstore.cosign/chain"
	annotationLog         = "dev.sigstore.cosign/bundle"
	annotationTimestamp   = "dev.sigstore.cosign/rfc3161timestamp"

	mediaTypeBundle01 = "application/vnd.dev.sigstore.bundle+json;version=0.1"

	maxAnnotationBytes = 16 << 10 // a chain has 3 KiB, a log entry 2; more is slow to check
)

// entity is evidence in the form of sigstore's verifier.
type entity struct {
	*bundle.Bundle
	leaf   *x509.Certificate
	chain  []*x509.Certificate // what came with the leaf, unverified
	policy verify.ArtifactPolicyOption
}

// VerificationContent returns the leaf certificate of the evidence.
func (e *entity) VerificationContent() (verify.VerificationContent, error) {
	return bundle.NewCertificate(e.leaf), nil
}

// signer reads the certificate of a signature, unverified: it shows only the claimed signer. A signature
// by a key is of another signer.
func signer(e *signing.Evidence) (*x509.Certificate, error) {
	if e.Format != signing.FormatLegacy {
		if len(e.Certificates) == 0 {
			return nil, fmt.Errorf("a bundle of a key: %w", signing.ErrOtherSigner)
		}
		c, err := x509.ParseCertificate(e.Certificates[0])
		if err != nil {
			return nil, fmt.Errorf("bundle: certificate: %w", err)
		}
		return c, nil
	}
	said := e.Annotations[annotationCertificate]
	if said == "" {
		return nil, fmt.Errorf("a signature of a key: %w", signing.ErrOtherSigner)
	}
	own, err := annotated(e, annotationCertificate)
	if err != nil {
		return nil, err
	}
	if len(own) != 1 {
		return nil, fmt.Errorf("annotation %s: %d certificates", annotationCertificate, len(own))
	}
	return own[0], nil
}

// annotated reads the certificates in an annotation.
func annotated(e *signing.Evidence, name string) ([]*x509.Certificate, error) {
	said := e.Annotations[name]
	if len(said) > maxAnnotationBytes {
		return nil, fmt.Errorf("annotation %s has %d bytes, where at most %d can be", name, len(said), maxAnnotationBytes)
	}
	all, err := parsePEM([]byte(said))
	if err != nil {
		return nil, fmt.Errorf("annotation %s: %w", name, err)
	}
	return all, nil
}

// open reads all verification material of a signature by leaf.
func open(e *signing.Evidence, leaf *x509.Certificate) (*entity, error) {
	if e.Format == signing.FormatLegacy {
		return openLegacy(e, leaf)
	}
	var b bundle.Bundle
	if err := b.UnmarshalJSON(e.Bundle); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	want, err := hex.DecodeString(e.Subject.Encoded())
	if err != nil {
		return nil, fmt.Errorf("digest %s: %w", e.Subject, err)
	}
	out := &entity{Bundle: &b, leaf: leaf, policy: verify.WithArtifactDigest(e.Subject.Algorithm().String(), want)}
	raw := certificates(b.Bundle)
	if len(raw) == 0 || !bytes.Equal(raw[0], leaf.Raw) {
		return nil, errors.New("bundle: another certificate than the one that was read")
	}
	if len(raw) > maxCertificates {
		return nil, fmt.Errorf("bundle: %d certificates, where at most %d can be", len(raw), maxCertificates)
	}
	for i, der := range raw[1:] {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("bundle: certificate %d: %w", i+2, err)
		}
		out.chain = append(out.chain, c)
	}
	return out, nil
}

// certificates are what a bundle has of them, the signer's first.
func certificates(b *protobundle.Bundle) [][]byte {
	var all [][]byte
	material := b.GetVerificationMaterial()
	if c := material.GetCertificate(); c != nil {
		all = append(all, c.GetRawBytes())
	}
	for _, c := range material.GetX509CertificateChain().GetCertificates() {
		all = append(all, c.GetRawBytes())
	}
	return all
}

// same checks that the verified bytes are those that the caller uses, in case two JSON readers differ.
func (e *entity) same(found *signing.Evidence) error {
	content, err := e.SignatureContent()
	if err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	if !bytes.Equal(content.Signature(), found.Signature) {
		return errors.New("bundle: another signature than the one that was read")
	}
	if found.Format == signing.FormatLegacy {
		return nil // verified against the caller's own bytes
	}
	envelope := content.EnvelopeContent()
	if envelope == nil {
		return errors.New("bundle: of a blob")
	}
	payload, err := envelope.RawEnvelope().DecodeB64Payload()
	if err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	if !bytes.Equal(dsse.PAE(envelope.RawEnvelope().PayloadType, payload), found.Signed) {
		return errors.New("bundle: another payload than the one that was read")
	}
	return nil
}

// openLegacy puts the annotations of cosign's older format into a bundle.
func openLegacy(e *signing.Evidence, leaf *x509.Certificate) (*entity, error) {
	for name, value := range e.Annotations {
		if len(value) > maxAnnotationBytes {
			return nil, fmt.Errorf("annotation %.100q has %d bytes, where at most %d can be", name, len(value), maxAnnotationBytes)
		}
	}
	out := &entity{leaf: leaf, policy: verify.WithArtifact(bytes.NewReader(e.Signed))}
	var err error
	if e.Annotations[annotationChain] != "" {
		if out.chain, err = annotated(e, annotationChain); err != nil {
			return nil, err
		}
	}
	material := &protobundle.VerificationMaterial{Content: &protobundle.VerificationMaterial_X509CertificateChain{
		X509CertificateChain: &protocommon.X509CertificateChain{Certificates: []*protocommon.X509Certificate{{RawBytes: out.leaf.Raw}}},
	}}
	if said := e.Annotations[annotationLog]; said != "" {
		entry, err := legacyEntry(said)
		if err != nil {
			return nil, fmt.Errorf("annotation %s: %w", annotationLog, err)
		}
		material.TlogEntries = append(material.TlogEntries, entry)
	}
	if said := e.Annotations[annotationTimestamp]; said != "" {
		var stamp struct{ SignedRFC3161Timestamp []byte }
		if err := json.Unmarshal([]byte(said), &stamp); err != nil {
			return nil, fmt.Errorf("annotation %s: %w", annotationTimestamp, err)
		}
		material.TimestampVerificationData = &protobundle.TimestampVerificationData{
			Rfc3161Timestamps: []*protocommon.RFC3161SignedTimestamp{{SignedTimestamp: stamp.SignedRFC3161Timestamp}},
		}
	}
	sum := e.Subject.Algorithm().FromBytes(e.Signed)
	hash, err := hex.DecodeString(sum.Encoded())
	if err != nil {
		return nil, err
	}
	out.Bundle, err = bundle.NewBundle(&protobundle.Bundle{
		MediaType:            mediaTypeBundle01,
		VerificationMaterial: material,
		Content: &protobundle.Bundle_MessageSignature{MessageSignature: &protocommon.MessageSignature{
			MessageDigest: &protocommon.HashOutput{Algorithm: protocommon.HashAlgorithm_SHA2_256, Digest: hash},
			Signature:     e.Signature,
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("annotations: %w", err)
	}
	return out, nil
}

// legacyEntry reads a Rekor log's promise in cosign's older format.
func legacyEntry(said string) (*protorekor.TransparencyLogEntry, error) {
	var promise struct {
		SignedEntryTimestamp []byte
		Payload              struct {
			Body           string `json:"body"`
			IntegratedTime int64  `json:"integratedTime"`
			LogIndex       int64  `json:"logIndex"`
			LogID          string `json:"logID"`
		}
	}
	if err := json.Unmarshal([]byte(said), &promise); err != nil {
		return nil, err
	}
	body, err := base64.StdEncoding.DecodeString(promise.Payload.Body)
	if err != nil {
		return nil, fmt.Errorf("body: %w", err)
	}
	id, err := hex.DecodeString(promise.Payload.LogID)
	if err != nil {
		return nil, fmt.Errorf("log id: %w", err)
	}
	var kind struct {
		Kind       string `json:"kind"`
		APIVersion string `json:"apiVersion"`
	}
	if err := json.Unmarshal(body, &kind); err != nil {
		return nil, fmt.Errorf("body: %w", err)
	}
	return &protorekor.TransparencyLogEntry{
		LogIndex: promise.Payload.LogIndex, LogId: &protocommon.LogId{KeyId: id},
		KindVersion:    &protorekor.KindVersion{Kind: kind.Kind, Version: kind.APIVersion},
		IntegratedTime: promise.Payload.IntegratedTime, CanonicalizedBody: body,
		InclusionPromise: &protorekor.InclusionPromise{SignedEntryTimestamp: promise.SignedEntryTimestamp},
	}, nil
}

// guarded turns a panic into an error: the libraries below read untrusted input, and decoders of log entries have
// panicked on malformed entries.
func guarded(verify func() (signing.Verification, error)) (v signing.Verification, err error) {
	defer func() {
		if r := recover(); r != nil {
			v, err = signing.Verification{}, fmt.Errorf("cannot be read: %v", r)
		}
	}()
	return verify()
}
