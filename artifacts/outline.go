package artifacts

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Kind is what an artifact is to us.
type Kind string

// Kinds of artifacts. The zero value is an artifact of others.
const (
	KindOther        Kind = ""
	KindState        Kind = "state"
	KindComponent    Kind = "component"
	KindBundle       Kind = "bundle"
	KindPackage      Kind = "package"
	KindCurrentState Kind = "current-state"
	KindTrust        Kind = "trust"
	KindRollout      Kind = "rollout"
	KindImage        Kind = "image"     // for one platform
	KindIndex        Kind = "index"     // of images, mostly
	KindSignature    Kind = "signature" // or another signed statement: what it says is in its bytes
)

// Media types of others that say what an artifact is.
const (
	typeDockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	typeDockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
	typeDockerConfig   = "application/vnd.docker.container.image.v1+json"
	typeSimpleSigning  = "application/vnd.dev.cosign.simplesigning.v1+json"
	typeEnvelope       = "application/vnd.dsse.envelope.v1+json" // cosign's older attestations
	typeSigstoreBundle = "application/vnd.dev.sigstore.bundle"   // and a version
)

// Outline is what any manifest or index says about itself. Nothing in it is checked.
type Outline struct {
	Kind         Kind `json:"-"`
	MediaType    string
	ArtifactType string // as told; what was made before image-spec 1.1 tells it as the config's media type
	Config       *ocispec.Descriptor
	Layers       []ocispec.Descriptor
	Manifests    []ocispec.Descriptor // of an index
	Subject      *ocispec.Descriptor  // what it refers to
	Annotations  map[string]string
}

// ReadOutline reads any manifest or index: unknown members are kept, missing ones stay empty. It is
// for showing; what is used is opened by [OpenState] and its like.
func ReadOutline(manifest []byte) (*Outline, error) {
	if len(manifest) > MaxManifest {
		return nil, fmt.Errorf("read manifest: %d bytes, more than %d: %w", len(manifest), MaxManifest, fault.ErrTooLarge)
	}
	var m struct {
		SchemaVersion int
		Outline
	}
	if err := json.Unmarshal(manifest, &m); err != nil {
		return nil, fmt.Errorf("read manifest: %w: %w", fault.ErrInvalid, err)
	}
	if m.SchemaVersion != 2 {
		return nil, fmt.Errorf("read manifest: schemaVersion %d, want 2: %w", m.SchemaVersion, fault.ErrUnsupported)
	}
	o := &m.Outline
	if o.ArtifactType == "" && o.Config != nil && o.Config.MediaType != ocispec.MediaTypeEmptyJSON && !isImageConfig(o.Config.MediaType) {
		o.ArtifactType = o.Config.MediaType
	}
	o.Kind = o.kind()
	return o, nil
}

func isImageConfig(mediaType string) bool {
	return mediaType == ocispec.MediaTypeImageConfig || mediaType == typeDockerConfig
}

// kinds are those of our artifact types.
var kinds = map[string]Kind{
	TypeState: KindState, TypeComponent: KindComponent, TypeBundle: KindBundle, TypePackage: KindPackage,
	TypeCurrentState: KindCurrentState, TypeTrust: KindTrust, TypeRollout: KindRollout,
}

func (o *Outline) kind() Kind {
	if k, ours := kinds[o.ArtifactType]; ours {
		return k
	}
	signed := slices.ContainsFunc(o.Layers, func(l ocispec.Descriptor) bool {
		return l.MediaType == typeSimpleSigning || l.MediaType == typeEnvelope || strings.HasPrefix(l.MediaType, typeSigstoreBundle)
	})
	switch {
	case signed:
		return KindSignature
	case o.ArtifactType != "":
		return KindOther
	case o.MediaType == ocispec.MediaTypeImageIndex, o.MediaType == typeDockerList, o.MediaType == "" && o.Manifests != nil:
		return KindIndex
	case o.Config != nil && isImageConfig(o.Config.MediaType) && (o.MediaType == ocispec.MediaTypeImageManifest || o.MediaType == typeDockerManifest || o.MediaType == ""):
		return KindImage
	}
	return KindOther
}

// Size adds the told sizes of the config and of the layers: what a copy moves beside the manifest. A size that no file
// can have counts as nothing.
func (o *Outline) Size() int64 {
	var sum int64
	add := func(d ocispec.Descriptor) {
		if d.Size > 0 && sum+d.Size > 0 {
			sum += d.Size
		}
	}
	if o.Config != nil {
		add(*o.Config)
	}
	for _, l := range o.Layers {
		add(l)
	}
	return sum
}
