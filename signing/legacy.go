package signing

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	mediaTypeSimpleSigning = "application/vnd.dev.cosign.simplesigning.v1+json"
	annotationSignature    = "dev.cosignproject.cosign/signature"
	annotationCertificate  = "dev.sigstore.cosign/certificate"
	typeSimpleSigning      = "cosign container image signature"

	maxPayloadBytes = 64 << 10 // cosign writes 250 bytes and the annotations
	maxLegacyLayers = 64       // signatures of one subject that are looked at

	// Writing the tag races with other signers, and no registry offers a compare-and-swap: each round reads, appends,
	// writes, waits and reads again. Whoever read before our write has written by then, and who lost repeats. The wait has
	// to be longer than the others' time between reading and writing.
	legacyRounds = 24
	legacyWait   = 120 * time.Millisecond
)

// LegacyTag is the tag under which cosign's older format keeps the signatures of d.
func LegacyTag(d digest.Digest) string {
	return d.Algorithm().String() + "-" + d.Encoded() + ".sig"
}

// simpleSigning is the payload of cosign's older format, its members in the order that cosign writes.
type simpleSigning struct {
	Critical struct {
		Identity struct {
			Reference string `json:"docker-reference"` // nobody checks it: signatures go where the artifact goes
		} `json:"identity"`
		Image struct {
			Digest string `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
	Optional map[string]any `json:"optional"`
}

// writeLegacy appends a signature to what is under the tag in st, and looks again whether it stayed. name is the
// artifact's repository.
func (s *Signer) writeLegacy(ctx context.Context, st Store, name string, subject ocispec.Descriptor) (digest.Digest, error) {
	if s.sign == nil {
		return "", fmt.Errorf("%w: an identity's signature is a bundle, format %s is for keys", fault.ErrUnsupported, FormatLegacy)
	}
	var claims simpleSigning
	claims.Critical.Identity.Reference = name
	claims.Critical.Image.Digest = subject.Digest.String()
	claims.Critical.Type = typeSimpleSigning
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
	layer := descriptorOf(mediaTypeSimpleSigning, data)
	layer.Annotations = map[string]string{annotationSignature: base64.StdEncoding.EncodeToString(sig)}
	if err := st.PushBlob(ctx, layer, data); err != nil {
		return "", err
	}
	return layer.Digest, appendLegacy(ctx, st, LegacyTag(subject.Digest), layer)
}

// appendLegacy brings a layer under the tag beside what is there, and stays until it has been seen there a while later.
func appendLegacy(ctx context.Context, st Store, tag string, layer ocispec.Descriptor) error {
	seen, refused := 0, false
	for round := range legacyRounds {
		was, m, err := readLegacy(ctx, st, tag)
		if err != nil {
			return err
		}
		if m == nil {
			m = &ocispec.Manifest{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest}
		}
		if slices.ContainsFunc(m.Layers, func(l ocispec.Descriptor) bool {
			return l.Annotations[annotationSignature] == layer.Annotations[annotationSignature]
		}) {
			// Alone on a fresh tag once is enough; where others write, look twice.
			if seen++; len(m.Layers) == 1 || seen == 2 {
				return nil
			}
		} else {
			seen = 0
			there := len(m.Layers)
			err := pushLegacy(ctx, st, tag, was, m, layer)
			// Once it may be that another signer was faster; twice, that the tag is never written again.
			if err != nil && (refused || !errors.Is(err, fault.ErrConflict)) {
				return immutable(tag, there, err)
			}
			refused = err != nil
		}
		if err := sleep(ctx, legacyWait+rand.N(legacyWait*time.Duration(1+min(round, 4)))); err != nil {
			return err
		}
	}
	return fmt.Errorf("tag %s: %w: other signers overwrote it %d times", tag, fault.ErrTemporary, legacyRounds)
}

// immutable tells what a refused write of a tag that is there means: nothing is lost, and more cannot be added.
func immutable(tag string, there int, err error) error {
	if there == 0 || fault.Retryable(err) || errors.Is(err, fault.ErrUnauthenticated) {
		return err
	}
	err = fmt.Errorf("tag %s cannot be written again, the %d signatures under it are as they were: %w", tag, there, err)
	return fault.WithHint(err, "where tags are immutable, sign with bundles: --signature-format bundle")
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// tagSetter is a [Store] that is told what a tag names until now, and leaves alone what somebody else sets while it tries
// again.
type tagSetter interface {
	SetTag(ctx context.Context, d ocispec.Descriptor, data []byte, tag string, was digest.Digest) error
}

func pushLegacy(ctx context.Context, st Store, tag string, was digest.Digest, m *ocispec.Manifest, layer ocispec.Descriptor) error {
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

// readLegacy returns the manifest under a signature tag, with its digest; nil when there is none.
func readLegacy(ctx context.Context, st Source, tag string) (digest.Digest, *ocispec.Manifest, error) {
	d, err := st.Resolve(ctx, tag)
	if errors.Is(err, fault.ErrNotFound) {
		return "", nil, nil
	}
	if err != nil {
		return "", nil, unread(err, "resolve tag "+tag)
	}
	_, m, err := readManifest(ctx, st, d.Digest)
	if err != nil {
		return "", nil, err
	}
	if m.MediaType == "" {
		m.MediaType = ocispec.MediaTypeImageManifest
	}
	return d.Digest, m, nil
}

// openLegacy reads a payload and its signature, and believes neither.
func openLegacy(data []byte, annotations map[string]string, subject digest.Digest) (*Evidence, *simpleSigning, error) {
	said, err := readPayload(data)
	if err != nil {
		return nil, nil, fmt.Errorf("payload: %w", err)
	}
	if said.Critical.Type != typeSimpleSigning {
		return nil, nil, fmt.Errorf("a payload of type %.100q: %w", said.Critical.Type, errNoSignature)
	}
	sig, err := base64.StdEncoding.DecodeString(annotations[annotationSignature])
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

// readPayload reads a payload exactly: names of members in their own case, none twice.
func readPayload(data []byte) (*simpleSigning, error) {
	top, err := members(data)
	if err != nil {
		return nil, err
	}
	critical, err := members(top["critical"])
	if err != nil {
		return nil, fmt.Errorf("critical: %w", err)
	}
	image, err := members(critical["image"])
	if err != nil {
		return nil, fmt.Errorf("critical: image: %w", err)
	}
	var said simpleSigning
	if err := json.Unmarshal(critical["type"], &said.Critical.Type); err != nil {
		return nil, fmt.Errorf("critical: type: %w", err)
	}
	if err := json.Unmarshal(image["docker-manifest-digest"], &said.Critical.Image.Digest); err != nil {
		return nil, fmt.Errorf("critical: image: digest: %w", err)
	}
	if optional, there := top["optional"]; there {
		if err := json.Unmarshal(optional, &said.Optional); err != nil {
			return nil, fmt.Errorf("optional: %w", err)
		}
	}
	return &said, nil
}
