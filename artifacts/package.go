package artifacts

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// DescriptionFile is the name of the ApplicationDescription in a package.
const DescriptionFile = "margo.yaml"

// Kinds of resources of an application package.
const (
	ResourceIcon         = "icon"
	ResourceDescription  = "descriptionFile"
	ResourceLicense      = "licenseFile"
	ResourceReleaseNotes = "releaseNotes"
)

const packageTypes = "application/vnd.margo.app."

var formatWord = strict.Expression(`^[a-z0-9]{1,16}$`)

// PackageOptions say what is known of a package beside its margo.yaml.
type PackageOptions struct {
	Created     time.Time // zero: left out
	Annotations map[string]string
}

// PackPackage makes an application package from the directory that holds margo.yaml, with the resources that it names by
// a relative path. The package's tag must be the version that the description tells.
func PackPackage(fsys fs.FS, o PackageOptions) (_ *Artifact, _ *margo.ApplicationDescription, err error) {
	defer during(&err, "pack package")
	data, err := resource(fsys, DescriptionFile, strict.MaxYAML)
	if err != nil {
		return nil, nil, err
	}
	d, err := margo.ParseApplicationDescription(DescriptionFile, data)
	if err != nil {
		return nil, nil, err
	}
	layers := []Blob{layer(TypeDescription, DescriptionFile, data)}
	c := d.Metadata.Application
	for _, r := range []struct{ kind, file string }{
		{ResourceIcon, c.Icon}, {ResourceDescription, c.DescriptionFile}, {ResourceLicense, c.LicenseFile}, {ResourceReleaseNotes, c.ReleaseNotes},
	} {
		if r.file == "" || strings.Contains(r.file, "://") {
			continue
		}
		name := path.Clean(r.file)
		data, err := resource(fsys, name, MaxArchive)
		if err != nil {
			return nil, nil, fmt.Errorf("metadata.catalog.application.%s: %w", r.kind, err)
		}
		format := strings.ToLower(strings.TrimPrefix(path.Ext(name), "."))
		if !formatWord.MatchString(format) {
			return nil, nil, fmt.Errorf("metadata.catalog.application.%s: %s has no ending that tells its format: %w", r.kind, r.file, fault.ErrInvalid)
		}
		l := layer(packageTypes+r.kind+".v1+"+format, name, data)
		l.Descriptor.Annotations[AnnotationResource] = r.kind
		layers = append(layers, l)
	}
	own := map[string]string{ocispec.AnnotationTitle: d.Metadata.Name, ocispec.AnnotationVersion: d.Metadata.Version, ocispec.AnnotationDescription: d.Metadata.Description}
	a, err := pack(TypePackage, layers, o.Created, own, o.Annotations)
	return a, d, err
}

func resource(fsys fs.FS, name string, limit int64) ([]byte, error) {
	if !fs.ValidPath(name) {
		return nil, fmt.Errorf("%q leaves the package: %w", name, fault.ErrInvalid)
	}
	info, err := fs.Stat(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no %s: %w", name, fault.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	e, err := file(fsys, name, fs.FileInfoToDirEntry(info), limit)
	if errors.Is(err, fault.ErrTooLarge) {
		return nil, fmt.Errorf("%s has more than %d bytes: %w", name, limit, fault.ErrTooLarge)
	}
	if err != nil {
		return nil, err
	}
	if e.dir {
		return nil, fmt.Errorf("%s is a directory: %w", name, fault.ErrInvalid)
	}
	return e.data, nil
}

// PackageIndex is what the manifest of an application package says.
type PackageIndex struct {
	Description ocispec.Descriptor
	Resources   map[string]ocispec.Descriptor // by kind: icon, descriptionFile, licenseFile, releaseNotes
}

// OpenPackage checks the manifest of an application package.
func OpenPackage(manifest []byte) (*PackageIndex, error) {
	i, err := open(manifest, TypePackage)
	if err != nil {
		return nil, fmt.Errorf("open package: %w", err)
	}
	x := &PackageIndex{Resources: make(map[string]ocispec.Descriptor)}
	for _, l := range i.layers {
		if !strings.HasPrefix(l.MediaType, packageTypes) {
			return nil, fmt.Errorf("open package: layer %s: media type %q does not begin with %q: %w", l.Digest, l.MediaType, packageTypes, fault.ErrUnsupported)
		}
		limit := int64(MaxArchive)
		kind := l.Annotations[AnnotationResource]
		switch _, twice := x.Resources[kind]; {
		case l.MediaType == TypeDescription:
			if x.Description.Digest != "" {
				return nil, fmt.Errorf("open package: a second description: %w", fault.ErrInvalid)
			}
			limit, x.Description = strict.MaxYAML, l
		case kind == "":
			return nil, fmt.Errorf("open package: layer %s has no annotation %s: %w", l.Digest, AnnotationResource, fault.ErrInvalid)
		case twice:
			return nil, fmt.Errorf("open package: a second %s: %w", kind, fault.ErrInvalid)
		default:
			x.Resources[kind] = l
		}
		if err := bounded(l, limit); err != nil {
			return nil, fmt.Errorf("open package: %w", err)
		}
	}
	if x.Description.Digest == "" {
		return nil, fmt.Errorf("open package: has no layer of type %s: %w", TypeDescription, fault.ErrInvalid)
	}
	return x, nil
}

// Read fetches the description and checks it.
func (x *PackageIndex) Read(blob func(ocispec.Descriptor) ([]byte, error)) (_ *margo.ApplicationDescription, err error) {
	defer during(&err, "read package")
	data, err := fetch(blob, x.Description)
	if err != nil {
		return nil, err
	}
	return margo.ParseApplicationDescription(DescriptionFile, data)
}
