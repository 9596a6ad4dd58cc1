package artifacts

import (
	"io/fs"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/margo"
)

// PackageOptions say what is known of a package beside its margo.yaml.
type PackageOptions struct {
	Created     time.Time // zero: left out
	Annotations map[string]string
}

// PackPackage makes an application package from the directory that holds margo.yaml. Its tag must be the version that
// the description tells.
func PackPackage(fsys fs.FS, o PackageOptions) (*Artifact, *margo.ApplicationDescription, error) {
	return nil, nil, errUnfinished
}

// PackageIndex is what the manifest of an application package says.
type PackageIndex struct {
	Description ocispec.Descriptor
	Resources   map[string]ocispec.Descriptor // by kind: icon, descriptionFile, licenseFile, releaseNotes
	Annotations map[string]string
}

// OpenPackage checks the manifest of an application package.
func OpenPackage(manifest []byte) (*PackageIndex, error) { return nil, errUnfinished }
