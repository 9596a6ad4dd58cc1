package signing

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/cosign/v2/pkg/cosign"
	"github.com/sigstore/cosign/v2/pkg/oci/static"
	"github.com/sigstore/sigstore/pkg/signature/payload"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	mediaTypeSimpleSigning = "application/vnd.dev.cosign.simplesigning.v1+json"
	annotationSignature    = static.SignatureAnnotationKey

	maxPayloadBytes   = 64 << 10 // cosign writes 250 bytes and the annotations
	maxLegacyLayers   = 64       // signatures of one subject that are looked at
	legacyWriteRounds = 5        // times that a lost race for the tag is repeated
)

// LegacyTag is the tag under which cosign's older format keeps the signatures of d.
func LegacyTag(d digest.Digest) string {
	return d.Algorithm().String() + "-" + d.Encoded() + ".sig"
}

// writeLegacy appends a signature to what is under the tag, and looks again whether it stayed.
func (s *Signer) writeLegacy(ctx context.Context, st Store, subject ocispec.Descriptor) (digest.Digest, error) {
	claims := payload.SimpleContainerImage{
		Critical: payload.Critical{
			Identity: payload.Identity{DockerReference: st.Name()},
			Image:    payload.Image{DockerManifestDigest: subject.Digest.String()},
			Type:     payload.CosignSignatureType,
		},
	}
	for k, v := range s.claims() {
		if claims.Optional == nil {
			claims.Optional = make(map[string]any)
		}
		claims.Optional[k] = v
	}
	data, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	sig, err := s.sv.SignMessage(bytes.NewReader(data))
	if err != nil {
		return "", err
	}
	layer := descriptorOf(mediaTypeSimpleSigning, data)
	layer.Annotations = map[string]string{annotationSignature: base64.StdEncoding.EncodeToString(sig)}
	if err := st.PushBlob(ctx, layer, data); err != nil {
		return "", err
	}
	tag := LegacyTag(subject.Digest)
	for range legacyWriteRounds {
		m, err := readLegacy(ctx, st, tag)
		if err != nil {
			return "", err
		}
		if m == nil {
			m = &ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
		}
		if slices.ContainsFunc(m.Layers, func(l ocispec.Descriptor) bool {
			return l.Annotations[annotationSignature] == layer.Annotations[annotationSignature]
		}) {
			return layer.Digest, nil
		}
		if err := pushLegacy(ctx, st, tag, m, layer); err != nil {
			return "", err
		}
	}
	return "", fmt.Errorf("tag %s: %w: other signers overwrote it %d times", tag, fault.ErrTemporary, legacyWriteRounds)
}

func pushLegacy(ctx context.Context, st Store, tag string, m *ocispec.Manifest, layer ocispec.Descriptor) error {
	m.Layers = append(m.Layers, layer)
	diffs := make([]string, len(m.Layers))
	for i, l := range m.Layers {
		diffs[i] = l.Digest.String()
	}
	config, err := json.Marshal(map[string]any{
		"architecture": "", "os": "", "config": map[string]any{},
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffs},
	})
	if err != nil {
		return err
	}
	m.Config = descriptorOf(ocispec.MediaTypeImageConfig, config)
	manifest, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := st.PushBlob(ctx, m.Config, config); err != nil {
		return err
	}
	return st.PushManifest(ctx, descriptorOf(m.MediaType, manifest), manifest, tag)
}

// readLegacy returns the manifest under a signature tag; nil when there is none.
func readLegacy(ctx context.Context, st Source, tag string) (*ocispec.Manifest, error) {
	d, err := st.Resolve(ctx, tag)
	if errors.Is(err, fault.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, unread(err, "resolve tag "+tag)
	}
	_, m, err := readManifest(ctx, st, d.Digest)
	if err != nil {
		return nil, err
	}
	if m.MediaType == "" {
		m.MediaType = ocispec.MediaTypeImageManifest
	}
	return m, nil
}

// checkLegacy returns the key that signed d in this payload, and the signed claims.
func checkLegacy(ctx context.Context, data []byte, b64 string, d digest.Digest, keys []Key) (Key, map[string]string, error) {
	// Before anything is verified: the claim's type, which cosign's claim verifier does not look at.
	var claims payload.SimpleContainerImage
	if err := json.Unmarshal(data, &claims); err != nil {
		return Key{}, nil, fmt.Errorf("payload: %w", err)
	}
	if claims.Critical.Type != payload.CosignSignatureType {
		return Key{}, nil, fmt.Errorf("a payload of type %.100q: %w", claims.Critical.Type, errNoSignature)
	}
	sig, err := static.NewSignature(data, b64)
	if err != nil {
		return Key{}, nil, err
	}
	hash := v1.Hash{Algorithm: d.Algorithm().String(), Hex: d.Encoded()}
	for _, k := range keys {
		for _, v := range k.verifiers {
			_, err := cosign.VerifyImageSignature(ctx, sig, hash, &cosign.CheckOpts{
				SigVerifier:   v,
				ClaimVerifier: cosign.SimpleClaimVerifier, // without it the digest is not compared
				Offline:       true, IgnoreTlog: true, IgnoreSCT: true,
			})
			if err == nil {
				return k, stringClaims(claims.Optional), nil
			}
		}
	}
	if claims.Critical.Image.DockerManifestDigest != d.String() {
		return Key{}, nil, fmt.Errorf("signature is of another artifact, %.100q", claims.Critical.Image.DockerManifestDigest)
	}
	return Key{}, nil, errors.New("signature does not match")
}
