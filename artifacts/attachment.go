package artifacts

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Media types of what is attached to artifacts, as other tools know them.
const (
	TypeSPDX      = "application/spdx+json"
	TypeCycloneDX = "application/vnd.cyclonedx+json"
	TypeInToto    = "application/vnd.in-toto+json" // an unsigned statement
)

// annotationInToto is the predicate type of an unsigned statement, as BuildKit writes it.
const annotationInToto = "in-toto.io/predicate-type"

// Saying is a document about an artifact: a bill of materials, a provenance.
type Saying struct {
	File          string // its name
	MediaType     string // as a plain referrer
	PredicateType string // of it in an in-toto statement
	Data          []byte
}

// ReadSBOM finds out what a bill of materials is: SPDX or CycloneDX, in JSON.
func ReadSBOM(file string, data []byte) (*Saying, error) {
	has, err := members(file, data)
	if err != nil {
		return nil, err
	}
	s := &Saying{File: path.Base(file), Data: data}
	switch {
	case has["spdxVersion"] != nil:
		s.MediaType, s.PredicateType = TypeSPDX, "https://spdx.dev/Document"
	case string(has["bomFormat"]) == `"CycloneDX"`:
		s.MediaType, s.PredicateType = TypeCycloneDX, "https://cyclonedx.org/bom"
	default:
		return nil, fault.WithHint(fmt.Errorf("%s: %w: neither SPDX (spdxVersion) nor CycloneDX (bomFormat)", file, fault.ErrUnsupported),
			"write the bill of materials as SPDX or CycloneDX in JSON; other statements: longshore attest --type URI")
	}
	return s, nil
}

// ReadProvenance finds out what a provenance is: the predicate of SLSA 1 or 0.2, in JSON.
func ReadProvenance(file string, data []byte) (*Saying, error) {
	has, err := members(file, data)
	if err != nil {
		return nil, err
	}
	s := &Saying{File: path.Base(file), MediaType: TypeInToto, Data: data}
	switch {
	case has["_type"] != nil, has["payload"] != nil, has["dsseEnvelope"] != nil:
		return nil, fault.WithHint(fmt.Errorf("%s: %w: a whole statement, which is about something else already", file, fault.ErrUnsupported),
			"give the predicate in it alone; what it is about is the digest that is pushed")
	case has["buildDefinition"] != nil:
		s.PredicateType = "https://slsa.dev/provenance/v1"
	case has["buildType"] != nil && has["builder"] != nil:
		s.PredicateType = "https://slsa.dev/provenance/v0.2"
	default:
		return nil, fault.WithHint(fmt.Errorf("%s: %w: no SLSA provenance (buildDefinition, or builder and buildType)", file, fault.ErrUnsupported),
			"other statements: longshore attest --type URI")
	}
	return s, nil
}

func members(file string, data []byte) (map[string]json.RawMessage, error) {
	var has map[string]json.RawMessage
	if err := json.Unmarshal(data, &has); err != nil || has == nil {
		return nil, fmt.Errorf("%s: %w: no JSON object", file, fault.ErrInvalid)
	}
	return has, nil
}

// Attach makes the referrer that carries a saying unsigned: a bill of materials as it is, anything else as an in-toto
// statement about subject, which is called name.
func (s *Saying) Attach(name string, subject ocispec.Descriptor) (*Artifact, error) {
	data, file := s.Data, s.File
	annotations := map[string]string{ocispec.AnnotationTitle: file}
	if s.MediaType == TypeInToto {
		var err error
		data, err = json.Marshal(map[string]any{
			"_type": "https://in-toto.io/Statement/v1", "predicateType": s.PredicateType, "predicate": json.RawMessage(s.Data),
			"subject": []any{map[string]any{"name": name, "digest": map[string]string{subject.Digest.Algorithm().String(): subject.Digest.Encoded()}}},
		})
		if err != nil {
			return nil, fmt.Errorf("attach %s: %w", file, err)
		}
		annotations = map[string]string{ocispec.AnnotationTitle: strings.TrimSuffix(file, path.Ext(file)) + ".intoto.json", annotationInToto: s.PredicateType}
	}
	layer := described(s.MediaType, data)
	layer.Annotations = annotations
	empty := ocispec.DescriptorEmptyJSON
	config := ocispec.Descriptor{MediaType: empty.MediaType, Digest: empty.Digest, Size: empty.Size}
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: s.MediaType,
		Config: config, Layers: []ocispec.Descriptor{layer},
		Subject: &ocispec.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size},
	}
	if t := annotations[annotationInToto]; t != "" {
		m.Annotations = map[string]string{annotationInToto: t}
	}
	manifest, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", file, err)
	}
	return &Artifact{
		Descriptor: ocispec.Descriptor{MediaType: m.MediaType, ArtifactType: m.ArtifactType, Digest: digest.FromBytes(manifest), Size: int64(len(manifest))},
		Manifest:   manifest, Blobs: []Blob{{config, empty.Data}, {layer, data}},
	}, nil
}
