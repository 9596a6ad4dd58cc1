package sign

import (
	"context"
	"encoding/base64"
	"encoding/json"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/longshore-dev/longshore/signing"
)

// maxInline is the largest bundle that is also in the descriptor of its layer, so that a device reads it with the manifest: a keyless
// signature has 10 KiB. The field is "data" of the image specification's descriptors; the blob is there too. A small signature is in an annotation
// instead, which the list of referrers has as well.
const maxInline = 16 << 10

// writeBundle signs a statement and attaches it.
func (s *Signer) writeBundle(ctx context.Context, st signing.Store, subject ocispec.Descriptor, said Statement) (digest.Digest, error) {
	data, err := s.bundle(ctx, subject.Digest, said)
	if err != nil {
		return "", err
	}
	layer := descriptorOf(signing.MediaTypeBundle, data)
	inline, annotations := layer, map[string]string{
		"dev.sigstore.bundle.content":   "dsse-envelope",
		signing.AnnotationPredicateType: said.Type,
	}
	switch {
	case said.Type == signing.PredicateSign && len(data) <= signing.MaxAnnotatedBundle:
		annotations[signing.AnnotationBundle] = string(data)
	case len(data) <= maxInline:
		inline.Data = data
	}
	subject = ocispec.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size}
	m := ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: signing.MediaTypeBundle,
		Config:       descriptorOf(ocispec.MediaTypeEmptyJSON, ocispec.DescriptorEmptyJSON.Data),
		Layers:       []ocispec.Descriptor{inline},
		Subject:      &subject,
		Annotations:  annotations,
	}
	if at := said.Annotations[signing.AnnotationTime]; at != "" && said.Type != signing.PredicateSign { // so that the newest can be looked at first
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
	d.ArtifactType, d.Annotations = signing.MediaTypeBundle, m.Annotations
	return d.Digest, st.PushReferrer(ctx, d, manifest)
}

// bundle signs a statement about d.
func (s *Signer) bundle(ctx context.Context, d digest.Digest, said Statement) ([]byte, error) {
	if s.keyless != nil {
		payload, err := said.encode(d)
		if err != nil {
			return nil, err
		}
		return s.keyless(ctx, payload)
	}
	envelope, err := s.envelope(ctx, d, said)
	if err != nil {
		return nil, err
	}
	b := signing.KeyBundle{MediaType: signing.MediaTypeBundle, Envelope: *envelope}
	b.Verification.PublicKey.Hint = s.key.Hint()
	return json.Marshal(b)
}

// envelope signs a statement about d with a key.
func (s *Signer) envelope(ctx context.Context, d digest.Digest, said Statement) (*dsse.Envelope, error) {
	payload, err := said.encode(d)
	if err != nil {
		return nil, err
	}
	sig, err := s.sign(ctx, dsse.PAE(signing.PayloadType, payload))
	if err != nil {
		return nil, err
	}
	return &dsse.Envelope{
		PayloadType: signing.PayloadType, Payload: base64.StdEncoding.EncodeToString(payload),
		Signatures: []dsse.Signature{{Sig: base64.StdEncoding.EncodeToString(sig)}},
	}, nil
}
