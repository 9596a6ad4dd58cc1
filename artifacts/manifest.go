package artifacts

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// layer makes a blob. title, which may be "", is the file name that other tools give it.
func layer(mediaType, title string, data []byte) Blob {
	b := Blob{described(mediaType, data), data}
	if title != "" {
		b.Descriptor.Annotations = map[string]string{ocispec.AnnotationTitle: title}
	}
	return b
}

// inline puts content of at most so many bytes into its descriptor too, so that it is read with the manifest. The blob is pushed all the same:
// other tools read that, and a copy has to have it.
func (b Blob) inline(limit int) Blob {
	if len(b.Data) <= limit {
		b.Descriptor.Data = b.Data
	}
	return b
}

// inlineAll is inline for content of at most so many bytes together.
func inlineAll(all []Blob, limit int) []Blob {
	size := 0
	for _, b := range all {
		size += len(b.Data)
	}
	if size <= limit {
		for i, b := range all {
			all[i] = b.inline(limit)
		}
	}
	return all
}

// pack makes an artifact of layers. own annotations may not be overruled by given ones.
func pack(artifactType string, layers []Blob, created time.Time, own, given map[string]string) (*Artifact, error) {
	annotations := make(map[string]string)
	for _, k := range slices.Sorted(maps.Keys(given)) {
		if strings.HasPrefix(k, "dev.longshore.") || strings.HasPrefix(k, "org.margo.") {
			return nil, fmt.Errorf("annotation %q cannot be given, it follows from the content: %w", k, fault.ErrInvalid)
		}
		annotations[k] = given[k]
	}
	for k, v := range own {
		if v != "" {
			annotations[k] = v
		}
	}
	if !created.IsZero() {
		annotations[ocispec.AnnotationCreated] = created.UTC().Truncate(time.Second).Format(time.RFC3339)
	}
	empty := ocispec.DescriptorEmptyJSON
	m := ocispec.Manifest{
		Versioned:    specs.Versioned{SchemaVersion: 2},
		MediaType:    ocispec.MediaTypeImageManifest,
		ArtifactType: artifactType,
		Config:       empty,
		Annotations:  annotations,
	}
	a := &Artifact{Blobs: []Blob{{Descriptor: ocispec.Descriptor{MediaType: empty.MediaType, Digest: empty.Digest, Size: empty.Size}, Data: slices.Clone(empty.Data)}}}
	for _, l := range layers {
		m.Layers = append(m.Layers, l.Descriptor)
		l.Descriptor.Data = nil
		if !slices.ContainsFunc(a.Blobs, func(b Blob) bool { return b.Descriptor.Digest == l.Descriptor.Digest }) {
			a.Blobs = append(a.Blobs, l)
		}
	}
	data, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("write manifest: %w", err)
	}
	if len(data) > MaxManifest {
		return nil, fmt.Errorf("write manifest: %d bytes, more than %d: %w", len(data), MaxManifest, fault.ErrTooLarge)
	}
	a.Manifest = data
	a.Descriptor = described(m.MediaType, data)
	a.Descriptor.ArtifactType = artifactType
	return a, nil
}

// image is what we read of an OCI image manifest.
type image struct {
	layers      []ocispec.Descriptor
	annotations map[string]string
}

// open reads an image manifest of one artifact type. Of what descriptors carry, it takes what is of the first layer, and of deployments.
func open(data []byte, artifactType string) (*image, error) {
	if len(data) > MaxManifest {
		return nil, fmt.Errorf("read manifest: %d bytes, more than %d: %w", len(data), MaxManifest, fault.ErrTooLarge)
	}
	root, err := strict.JSON("manifest", data)
	if err != nil {
		return nil, err
	}
	if t, ok := root.Get("mediaType").Value().(string); ok && t != ocispec.MediaTypeImageManifest {
		return nil, fmt.Errorf("read manifest: media type %q, want %q: %w", t, ocispec.MediaTypeImageManifest, fault.ErrUnsupported)
	}
	config := root.Need("config")
	kind, ok := root.Get("artifactType").Value().(string)
	if !ok || kind == "" { // what tools did before image-spec 1.1
		kind, _ = config.Get("mediaType").Value().(string)
	}
	if root.Kind() == strict.Object && kind != artifactType {
		return nil, fmt.Errorf("read manifest: artifact type %q, want %q: %w", kind, artifactType, fault.ErrUnsupported)
	}
	version := root.Need("schemaVersion")
	if v := version.Uint64(); version.Kind() == strict.Number && v != 2 {
		version.Faultf("must be 2")
	}
	root.Need("mediaType").Text()
	descriptor(config)
	i := &image{annotations: root.Get("annotations").Texts()}
	layers := root.Need("layers")
	for n, l := range layers.Items() {
		d := descriptor(l)
		if n == 0 || d.MediaType == TypeDeployment {
			d.Data = inlined(l, d)
		}
		i.layers = append(i.layers, d)
	}
	if layers.Kind() == strict.List && len(i.layers) == 0 {
		layers.Faultf("must have at least one layer")
	}
	return strict.Result(root, i)
}

// number reads an annotation that counts from 1, written in the one way that there is.
func (i *image) number(key string) (uint64, error) {
	text := i.annotations[key]
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n == 0 || strconv.FormatUint(n, 10) != text {
		return 0, fmt.Errorf("annotation %s: %q is no whole number from 1 to 18446744073709551615: %w", key, text, fault.ErrInvalid)
	}
	return n, nil
}

// digest reads an annotation; "": it is not there.
func (i *image) digest(key string) (digest.Digest, error) {
	text, ok := i.annotations[key]
	if d := digest.Digest(text); !ok || margo.ValidDigest(d) {
		return d, nil
	}
	return "", fmt.Errorf("annotation %s: %q is not %s: %w", key, text, margo.DigestForm, fault.ErrInvalid)
}

func descriptor(n *strict.Node) ocispec.Descriptor {
	size := n.Need("size")
	d := ocispec.Descriptor{
		MediaType:   n.Need("mediaType").Filled(),
		Digest:      margo.ReadDigest(n.Need("digest")),
		Size:        size.Int64(),
		Annotations: n.Get("annotations").Texts(),
	}
	if d.Size < 0 {
		size.Faultf("must not be negative")
	}
	return d
}

// inlined is what a descriptor carries; nil: nothing, or not what it names.
func inlined(n *strict.Node, d ocispec.Descriptor) []byte {
	text, _ := n.Get("data").Value().(string)
	data, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil
	}
	d.Data = data
	return Carried(d)
}

// Carried is the content that a descriptor has in its field data; nil: none, or it is not what the descriptor names, and the blob has to be read.
func Carried(d ocispec.Descriptor) []byte {
	if d.Size <= 0 || int64(len(d.Data)) != d.Size || d.Digest.Validate() != nil || d.Digest.Algorithm().FromBytes(d.Data) != d.Digest {
		return nil
	}
	return d.Data
}

// during puts what a function does before the error that it returns. It is deferred.
func during(err *error, doing string, args ...any) {
	if *err != nil {
		*err = fmt.Errorf(doing+": %w", append(args, *err)...)
	}
}

// layerIs refuses a layer of another media type, and one that is not [bounded].
func layerIs(which string, d ocispec.Descriptor, mediaType string, limit int64) error {
	if d.MediaType != mediaType {
		return fmt.Errorf("%s: media type %q, want %q: %w", which, d.MediaType, mediaType, fault.ErrUnsupported)
	}
	return bounded(d, limit)
}

// bounded refuses a layer whose told size is over its limit, before anything is fetched.
func bounded(d ocispec.Descriptor, limit int64) error {
	if d.Size > limit {
		return fmt.Errorf("layer %s (%s): %d bytes, more than %d: %w", d.Digest, d.MediaType, d.Size, limit, fault.ErrTooLarge)
	}
	return nil
}

// fetch gets a blob that its descriptor does not carry, and checks that it is what the descriptor names, whatever the caller's function did. A size
// of 0 is not known.
func fetch(blob func(ocispec.Descriptor) ([]byte, error), d ocispec.Descriptor) ([]byte, error) {
	if data := Carried(d); data != nil {
		return data, nil
	}
	data, err := blob(d)
	if err != nil {
		return nil, err
	}
	if got := digest.FromBytes(data); got != d.Digest || d.Size != 0 && int64(len(data)) != d.Size {
		return nil, fmt.Errorf("blob %s of %d bytes: got %s of %d bytes: %w", d.Digest, d.Size, got, len(data), fault.ErrDigestMismatch)
	}
	return data, nil
}
