package artifacts

import (
	"io/fs"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// ComponentOptions say what a Compose component is called.
type ComponentOptions struct {
	Name        string    // component name, lower-case letters, digits, dashes; names the top-level directory too
	Version     string    // the tag: SemVer, "_" for "+"
	Lock        *Lock     // nil: the project's own longshore.lock, if it has one
	Created     time.Time // zero: left out
	Annotations map[string]string
}

// PackComponent makes a Compose component from the directory that holds compose.yaml.
func PackComponent(fsys fs.FS, o ComponentOptions) (*Artifact, error) { return nil, errUnfinished }

// ComponentIndex is what the manifest of a Compose component says.
type ComponentIndex struct {
	Version     string             // "" when the publisher left it out
	Archive     ocispec.Descriptor // the Compose Archive
	Annotations map[string]string
}

// OpenComponent checks the manifest of a Compose component.
func OpenComponent(manifest []byte) (*ComponentIndex, error) { return nil, errUnfinished }
