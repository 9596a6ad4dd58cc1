package compose

import (
	"context"
	"io/fs"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts"
)

// File is the name of the Compose file in an archive.
const File = "compose.yaml"

// Options say for what and with which values a Compose file is read.
type Options struct {
	Deployment    string            // Margo deployment id
	Component     string            // Margo component name
	Generation    uint64            // of the state that asks for it
	Environment   map[string]string // all that interpolation knows: the deployment's parameters
	Platform      string            // of this device, "linux/arm64"; "": not checked
	AllowUnpinned bool              // images without a digest pass, with an empty Image.Digest
}

// Load translates the archive's compose.yaml. Its errors are a [strict.Error] with every fault found, a
// fault.ErrUnfit when an image is not made for o.Platform, or the context's.
func Load(ctx context.Context, archive *artifacts.Archive, o Options) (*workload.Project, error) {
	return nil, nil
}

// Images lists the image references of a Compose file as they are written once env is filled in, in order of
// appearance, each once. A reference that needs a variable that env does not tell is a fault.
func Images(file string, compose []byte, env map[string]string) ([]string, error) { return nil, nil }

// Check validates a Compose file as far as that is possible without a device's values: what needs a variable that has
// no default is left out. fsys is the archive's directory and may be nil; then env files are not looked at.
func Check(file string, compose []byte, fsys fs.FS) error { return nil }
