package sign

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/sigstore/pkg/signature/payload"

	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

// Writing the tag races with other signers, and no registry offers a compare-and-swap: each round reads, appends, writes,
// waits and reads again. A writer that read before our write has written by then, and the one that lost repeats. The wait has to be longer
// than the others' time between reading and writing.
const (
	legacyRounds = 24
	legacyWait   = 120 * time.Millisecond
)

// writeLegacy appends a signature to what is under the tag in st, and looks again whether it stayed. name is the
// artifact's repository.
func (s *Signer) writeLegacy(ctx context.Context, st signing.Store, name string, subject ocispec.Descriptor) (digest.Digest, error) {
	if s.sign == nil {
		return "", fmt.Errorf("%w: an identity's signature is a bundle, format %s is for keys", fault.ErrUnsupported, signing.FormatLegacy)
	}
	var claims payload.SimpleContainerImage
	claims.Critical.Identity.DockerReference = name // not checked by verifiers: signatures go where the artifact goes
	claims.Critical.Image.DockerManifestDigest = subject.Digest.String()
	claims.Critical.Type = payload.CosignSignatureType
	for k, v := range s.claims(s.options.Annotations) {
		if claims.Optional == nil {
			claims.Optional = make(map[string]any)
		}
		claims.Optional[k] = v
	}
	data, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	sig, err := s.sign(ctx, data)
	if err != nil {
		return "", err
	}
	layer := descriptorOf(signing.MediaTypeSimpleSigning, data)
	layer.Annotations = map[string]string{signing.AnnotationSignature: base64.StdEncoding.EncodeToString(sig)}
	if err := st.PushBlob(ctx, layer, data); err != nil {
		return "", err
	}
	return layer.Digest, appendLegacy(ctx, st, signing.LegacyTag(subject.Digest), layer, nil)
}

// writeEnvelope signs a statement and appends it to what is under the tag of statements in st, as cosign 2 does. The layers
// whose digests are in over go.
func (s *Signer) writeEnvelope(ctx context.Context, st signing.Store, subject ocispec.Descriptor, said Statement, over []digest.Digest) (digest.Digest, error) {
	envelope, err := s.envelope(ctx, subject.Digest, said)
	if err != nil {
		return "", err
	}
	data, err := json.Marshal(envelope)
	if err != nil {
		return "", err
	}
	layer := descriptorOf(signing.MediaTypeEnvelope, data)
	layer.Annotations = map[string]string{signing.AnnotationSignature: "", signing.AnnotationStatement: said.Type}
	if err := st.PushBlob(ctx, layer, data); err != nil {
		return "", err
	}
	return layer.Digest, appendLegacy(ctx, st, signing.AttestationTag(subject.Digest), layer, over)
}

// appendLegacy brings a layer under the tag beside what is there, in the place of those whose digests are in over, and stays
// until it has been seen there a while later.
func appendLegacy(ctx context.Context, st signing.Store, tag string, layer ocispec.Descriptor, over []digest.Digest) error {
	seen, refused := 0, false
	for round := range legacyRounds {
		was, m, err := signing.ReadTagged(ctx, st, tag)
		if err != nil {
			return err
		}
		if m == nil {
			m = &ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
		}
		if slices.ContainsFunc(m.Layers, func(l ocispec.Descriptor) bool {
			return l.Digest == layer.Digest && l.Annotations[signing.AnnotationSignature] == layer.Annotations[signing.AnnotationSignature]
		}) {
			// Alone on a fresh tag once is enough; where others write, look twice.
			if seen++; len(m.Layers) == 1 || seen == 2 {
				return nil
			}
		} else {
			seen = 0
			there := len(m.Layers)
			m.Layers = slices.DeleteFunc(m.Layers, func(l ocispec.Descriptor) bool { return slices.Contains(over, l.Digest) })
			err := pushLegacy(ctx, st, tag, was, m, layer)
			// Once it may be that another signer was faster; twice, that the tag is never written again.
			if err != nil && (refused || !errors.Is(err, fault.ErrConflict)) {
				return immutable(tag, there, err)
			}
			refused = err != nil
		}
		if err := delay.For(ctx, legacyWait+rand.N(legacyWait*time.Duration(1+min(round, 4)))); err != nil {
			return err
		}
	}
	return fmt.Errorf("tag %s: %w: other signers overwrote it %d times", tag, fault.ErrTemporary, legacyRounds)
}

// immutable explains a refused write of a tag that is there: nothing is lost, and more cannot be added.
func immutable(tag string, there int, err error) error {
	if there == 0 || fault.Retryable(err) || errors.Is(err, fault.ErrUnauthenticated) {
		return err
	}
	err = fmt.Errorf("tag %s cannot be written again, the %d signatures under it are as they were: %w", tag, there, err)
	return fault.WithHint(err, "where tags are immutable, sign with bundles: --signature-format bundle")
}

// tagSetter is a store that gets what a tag names until now, and keeps what another client sets while it tries again.
type tagSetter interface {
	SetTag(ctx context.Context, d ocispec.Descriptor, data []byte, tag string, was digest.Digest) error
}

func pushLegacy(ctx context.Context, st signing.Store, tag string, was digest.Digest, m *ocispec.Manifest, layer ocispec.Descriptor) error {
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
	if st, ok := st.(tagSetter); ok {
		return st.SetTag(ctx, descriptorOf(m.MediaType, manifest), manifest, tag, was)
	}
	return st.PushManifest(ctx, descriptorOf(m.MediaType, manifest), manifest, tag)
}
