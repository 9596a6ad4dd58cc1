package artifacts

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Deployment is one ApplicationDeployment with the exact bytes that its digest is of.
type Deployment struct {
	Document *margo.ApplicationDeployment
	Bytes    []byte
	Digest   digest.Digest
}

// ReadDeployment parses one ApplicationDeployment and keeps its bytes. Components that are no OCI artifacts (1.0.0 line,
// packageLocation) are fault.ErrUnsupported: they cannot come from a registry.
func ReadDeployment(file string, data []byte) (*Deployment, error) {
	d, err := margo.ParseApplicationDeployment(file, data)
	if err != nil {
		return nil, err
	}
	for _, c := range d.Spec.DeploymentProfile.Components {
		if c.Properties.Repository == "" {
			return nil, fault.WithHint(fmt.Errorf("read %s: component %q comes from %s, not from a registry: %w", file, c.Name, c.Properties.PackageLocation, fault.ErrUnsupported),
				"push the component to a registry and name it by repository and revision")
		}
	}
	return &Deployment{Document: d, Bytes: data, Digest: digest.FromBytes(data)}, nil
}

// DeployedComponent is a component of a deployment, by its version and its digest.
type DeployedComponent struct {
	Name       string        `json:"name"`
	Repository string        `json:"repository"` // "host/path"
	Version    string        `json:"version"`
	Digest     digest.Digest `json:"digest,omitempty"` // "": not pinned
}

// Components lists the components of the deployment.
func (d *Deployment) Components() []DeployedComponent {
	out := []DeployedComponent{}
	for _, c := range d.Document.Spec.DeploymentProfile.Components {
		pinned, _, _ := c.Pinned() // the parser has rejected a broken one before
		out = append(out, DeployedComponent{c.Name, strings.TrimPrefix(c.Properties.Repository, "oci://"), c.Properties.Revision, pinned})
	}
	return out
}

// readDeployments parses documents, refuses two of the same id, and sorts by id.
func readDeployments(files []entry) ([]Deployment, error) {
	out := make([]Deployment, 0, len(files))
	from := make(map[string]string, len(files))
	var faults []error
	for _, f := range files {
		d, err := ReadDeployment(f.name, f.data)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		id := strings.ToLower(d.Document.ID)
		if first, ok := from[id]; ok {
			faults = append(faults, fmt.Errorf("%s and %s are both deployment %s: %w", first, f.name, d.Document.ID, fault.ErrInvalid))
		}
		from[id] = f.name
		out = append(out, *d)
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	slices.SortFunc(out, func(a, b Deployment) int { return strings.Compare(a.Document.ID, b.Document.ID) })
	return out, nil
}

// numbered names documents that came without a name.
func numbered(documents [][]byte) []entry {
	files := make([]entry, 0, len(documents))
	for i, d := range documents {
		files = append(files, entry{name: fmt.Sprintf("deployment[%d]", i), data: d})
	}
	return files
}

// PackBundle makes the archive of exactly the given ApplicationDeployments, at least one: "<id>.yaml" each, in order of
// ids. Same documents, same bytes.
func PackBundle(deployments [][]byte) ([]byte, error) {
	ds, err := readDeployments(numbered(deployments))
	if err != nil {
		return nil, fmt.Errorf("pack bundle: %w", err)
	}
	return packBundle(ds, nil)
}

func packBundle(ds []Deployment, from *Compressors) ([]byte, error) {
	if len(ds) == 0 {
		return nil, fmt.Errorf("pack bundle: there are no deployments: %w", fault.ErrInvalid)
	}
	entries := make([]entry, 0, len(ds))
	size := 0
	for _, d := range ds {
		size += len(d.Bytes)
		entries = append(entries, entry{name: d.Document.ID + ".yaml", data: d.Bytes})
	}
	if len(ds) > MaxEntries || size > MaxUnpacked {
		return nil, fmt.Errorf("pack bundle: %d deployments of %d bytes, more than %d or %d: %w", len(ds), size, MaxEntries, MaxUnpacked, fault.ErrTooLarge)
	}
	data, err := writeTarball(entries, from)
	if err != nil {
		return nil, fmt.Errorf("pack bundle: %w", err)
	}
	return data, nil
}

// ReadBundle unpacks a bundle archive and parses its deployments, sorted by id. File names mean nothing, but everything
// must be a file at the root, and a deployment.
func ReadBundle(data []byte) (_ []Deployment, err error) {
	defer during(&err, "read bundle")
	entries, err := readTarball(data)
	if err != nil {
		return nil, err
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("it is empty: %w", fault.ErrInvalid)
	}
	for _, e := range entries {
		if e.dir || strings.Contains(e.name, "/") {
			return nil, fmt.Errorf("%q is not a file at the root: %w", e.name, fault.ErrInvalid)
		}
	}
	return readDeployments(entries)
}

// BundleOptions say what a deployment bundle holds.
type BundleOptions struct {
	Name        string // title, may be ""
	Version     string // may be ""
	Deployments [][]byte
	Created     time.Time // zero: left out
	Annotations map[string]string
}

// PackBundleArtifact makes a deployment bundle: the archive, then each deployment as a layer of its own.
func PackBundleArtifact(o BundleOptions) (*Artifact, error) {
	ds, err := readDeployments(numbered(o.Deployments))
	if err != nil {
		return nil, fmt.Errorf("pack bundle: %w", err)
	}
	archive, err := packBundle(ds, nil)
	if err != nil {
		return nil, err
	}
	own := map[string]string{ocispec.AnnotationTitle: o.Name, ocispec.AnnotationVersion: o.Version}
	return pack(TypeBundle, append([]Blob{layer(TypeBundle, "bundle.tar.gz", archive)}, deploymentLayers(ds)...), o.Created, own, o.Annotations)
}

func deploymentLayers(ds []Deployment) []Blob {
	out := make([]Blob, 0, len(ds))
	for _, d := range ds {
		out = append(out, layer(TypeDeployment, d.Document.ID+".yaml", d.Bytes))
	}
	return out
}

// BundleIndex is what the manifest of a deployment bundle says.
type BundleIndex struct {
	Name        string
	Version     string
	Archive     ocispec.Descriptor
	Deployments []ocispec.Descriptor // empty when a foreign publisher pushed the archive only
}

// OpenBundle checks the manifest of a deployment bundle.
func OpenBundle(manifest []byte) (_ *BundleIndex, err error) {
	defer during(&err, "open bundle")
	i, err := open(manifest, TypeBundle)
	if err != nil {
		return nil, err
	}
	x := &BundleIndex{Name: i.annotations[ocispec.AnnotationTitle], Version: i.annotations[ocispec.AnnotationVersion]}
	bundle, deployments, err := documentLayers(i.layers)
	if err == nil && bundle == nil {
		err = fmt.Errorf("has no layer of type %s: %w", TypeBundle, fault.ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	x.Archive, x.Deployments = *bundle, deployments
	return x, nil
}

// documentLayers tells the bundle archive from the single deployments, each bounded and there once.
func documentLayers(layers []ocispec.Descriptor) (bundle *ocispec.Descriptor, deployments []ocispec.Descriptor, err error) {
	seen := make(map[digest.Digest]bool, len(layers))
	for _, l := range layers {
		if seen[l.Digest] {
			return nil, nil, fmt.Errorf("layer %s is there twice: %w", l.Digest, fault.ErrInvalid)
		}
		seen[l.Digest] = true
		limit := int64(strict.MaxYAML)
		switch {
		case l.MediaType == TypeDeployment:
			deployments = append(deployments, l)
		case l.MediaType == TypeBundle && bundle == nil && len(deployments) == 0:
			limit, bundle = MaxArchive, &l
		case l.MediaType == TypeBundle:
			return nil, nil, fmt.Errorf("layer %s: a second bundle, or one behind its deployments: %w", l.Digest, fault.ErrInvalid)
		default:
			return nil, nil, fmt.Errorf("layer %s: media type %q has no place here: %w", l.Digest, l.MediaType, fault.ErrUnsupported)
		}
		if err := bounded(l, limit); err != nil {
			return nil, nil, err
		}
	}
	if len(deployments) > MaxEntries {
		return nil, nil, fmt.Errorf("%d deployments, more than %d: %w", len(deployments), MaxEntries, fault.ErrTooLarge)
	}
	return bundle, deployments, nil
}

// Read fetches the archive and checks its deployments, also against the single layers. They come sorted by id.
func (x *BundleIndex) Read(blob func(ocispec.Descriptor) ([]byte, error)) ([]Deployment, error) {
	data, err := fetch(blob, x.Archive)
	if err != nil {
		return nil, fmt.Errorf("read bundle: %w", err)
	}
	ds, err := ReadBundle(data)
	if err != nil {
		return nil, err
	}
	if len(x.Deployments) > 0 {
		have := make(map[digest.Digest]bool, len(ds))
		for _, d := range ds {
			have[d.Digest] = true
		}
		for _, l := range x.Deployments {
			if !have[l.Digest] {
				return nil, fmt.Errorf("read bundle: layer %s is not in the archive: %w", l.Digest, fault.ErrInvalid)
			}
		}
		if len(have) != len(x.Deployments) {
			return nil, fmt.Errorf("read bundle: the archive has %d deployments, %d have layers: %w", len(have), len(x.Deployments), fault.ErrInvalid)
		}
	}
	return ds, nil
}
