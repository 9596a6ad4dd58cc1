package signing

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	cbundle "github.com/sigstore/cosign/v2/pkg/cosign/bundle"
	sgbundle "github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature/dsse"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// MediaTypeBundle is the type of the bundles that are written, as artifact and as layer.
	MediaTypeBundle = "application/vnd.dev.sigstore.bundle.v0.3+json"
	// PredicateSign is the in-toto predicate that makes a statement a signature.
	PredicateSign = "https://sigstore.dev/cosign/sign/v1"

	bundleTypePrefix = "application/vnd.dev.sigstore.bundle" // of every version
	inTotoPayload    = "application/vnd.in-toto+json"
	inTotoStatement  = "https://in-toto.io/Statement/v1"

	maxBundleBytes = 1 << 20 // a key's bundle has 0.6 KiB, a keyless one with its log entry 10
)

// statement is the signed part of a bundle, an in-toto Statement v1.
type statement struct {
	Type          string             `json:"_type"`
	Subject       []statementSubject `json:"subject"`
	PredicateType string             `json:"predicateType"`
	Predicate     struct{}           `json:"predicate"`
}

type statementSubject struct {
	Digest      map[string]string `json:"digest"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func (s *Signer) writeBundle(ctx context.Context, st Store, subject ocispec.Descriptor) (digest.Digest, error) {
	data, err := s.bundle(subject.Digest)
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
			"dev.sigstore.bundle.content":       "dsse-envelope",
			"dev.sigstore.bundle.predicateType": PredicateSign,
		},
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
	d.ArtifactType = MediaTypeBundle
	return d.Digest, st.PushReferrer(ctx, d, manifest)
}

// bundle signs a statement about d.
func (s *Signer) bundle(d digest.Digest) ([]byte, error) {
	payload, err := json.Marshal(statement{
		Type:          inTotoStatement,
		Subject:       []statementSubject{{Digest: map[string]string{"sha256": d.Encoded()}, Annotations: s.claims()}},
		PredicateType: PredicateSign,
	})
	if err != nil {
		return nil, err
	}
	envelope, err := dsse.WrapSigner(s.sv, inTotoPayload).SignMessage(bytes.NewReader(payload))
	if err != nil {
		return nil, err
	}
	pub, err := s.sv.PublicKey()
	if err != nil {
		return nil, err
	}
	data, err := cbundle.MakeNewBundle(pub, nil, payload, envelope, s.public, nil)
	if err != nil {
		return nil, err
	}
	// protojson varies its spaces on purpose; take them out, so that equal bundles have equal bytes.
	var compact bytes.Buffer
	if err := json.Compact(&compact, data); err != nil {
		return nil, err
	}
	return compact.Bytes(), nil
}

func marshalPublic(pub any) ([]byte, error) { return cryptoutils.MarshalPublicKeyToPEM(pub) }

// isBundleType tells whether a layer is a sigstore bundle of any version.
func isBundleType(mediaType string) bool { return strings.HasPrefix(mediaType, bundleTypePrefix) }

// What was found is none of the keys' business, and says nothing against them.
var (
	errNoSignature = errors.New("not a signature")         // another kind of statement, or of a blob
	errOtherSigner = errors.New("signed by somebody else") // with a certificate, or by a key that is not asked for
)

// checkBundle returns the key that signed d in this bundle, and the signed claims. Any error but the two above says
// that the bundle is broken or forged.
func checkBundle(ctx context.Context, data []byte, d digest.Digest, keys []Key) (Key, map[string]string, error) {
	var b sgbundle.Bundle
	if err := b.UnmarshalJSON(data); err != nil {
		return Key{}, nil, fmt.Errorf("bundle: %w", err)
	}
	content, err := b.SignatureContent()
	if err != nil {
		return Key{}, nil, fmt.Errorf("bundle: %w", err)
	}
	envelope := content.EnvelopeContent()
	if envelope == nil {
		return Key{}, nil, fmt.Errorf("a bundle of a blob: %w", errNoSignature)
	}
	if t := envelope.RawEnvelope().PayloadType; t != inTotoPayload {
		return Key{}, nil, fmt.Errorf("a bundle with payload %.100q: %w", t, errNoSignature)
	}
	said, err := envelope.Statement()
	if err != nil {
		return Key{}, nil, fmt.Errorf("bundle: %w", err)
	}
	if said.GetPredicateType() != PredicateSign {
		return Key{}, nil, fmt.Errorf("a statement of type %.200q: %w", said.GetPredicateType(), errNoSignature)
	}
	verification, err := b.VerificationContent()
	if err != nil {
		return Key{}, nil, fmt.Errorf("bundle: %w", err)
	}
	public := verification.PublicKey()
	if public == nil {
		return Key{}, nil, fmt.Errorf("a bundle with a certificate: %w", errOtherSigner)
	}
	want, err := hex.DecodeString(d.Encoded())
	if err != nil {
		return Key{}, nil, fmt.Errorf("digest %s: %w: %w", d, fault.ErrInvalid, err)
	}
	hinted := false
	for _, k := range keys {
		hinted = hinted || public.Hint() == "" || public.Hint() == k.hint
		for _, v := range k.verifiers {
			result, err := cosign.VerifyNewBundle(ctx, &cosign.CheckOpts{
				SigVerifier:     v,
				TrustedMaterial: &root.BaseTrustedMaterial{}, // asked for, and empty: nothing but the key is trusted
				NewBundleFormat: true,
				Offline:         true, IgnoreTlog: true, IgnoreSCT: true,
			}, verify.WithArtifactDigest("sha256", want), &b)
			if err != nil {
				continue
			}
			for _, subject := range result.Statement.GetSubject() {
				if subject.GetDigest()["sha256"] == d.Encoded() {
					return k, stringClaims(subject.GetAnnotations().AsMap()), nil
				}
			}
		}
	}
	if !hinted {
		return Key{}, nil, fmt.Errorf("a bundle of key %.64q: %w", public.Hint(), errOtherSigner)
	}
	return Key{}, nil, errors.New("signature does not match")
}

// stringClaims keeps what a person wrote: cosign's claims are strings.
func stringClaims(m map[string]any) map[string]string {
	var claims map[string]string
	for k, v := range m {
		if s, ok := v.(string); ok {
			if claims == nil {
				claims = make(map[string]string)
			}
			claims[k] = s
		}
	}
	return claims
}
