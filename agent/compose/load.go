package compose

import (
	"context"
	"embed"
	"io/fs"
	"maps"
	"path"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// projectVariable is the variable that Compose defines for interpolation.
const projectVariable = "COMPOSE_PROJECT_NAME"

// Options of [Load].
type Options struct {
	Deployment    string            // Margo deployment id
	Application   string            // name of the deployment, for display
	Component     string            // Margo component name
	Generation    uint64            // of the state that needs it
	Environment   map[string]string // variables for interpolation: the deployment's parameters
	Platform      string            // of this device, "linux/arm64"; "": not checked
	AllowUnpinned bool              // accept images without a digest; Image.Digest is then empty
}

// Load translates the archive's compose.yaml. Errors are a strict.Error with all faults, a fault.ErrUnfit when an image does not support
// o.Platform, or the context's.
func Load(ctx context.Context, archive *artifacts.Archive, o Options) (*workload.Project, error) {
	name := workload.ProjectName(o.Deployment, o.Component)
	d, err := open(path.Join(archive.Root, composefile.Name), archive.Compose, environment(o.Environment, name))
	if err != nil {
		return nil, err
	}
	files := archive.FS
	if files == nil {
		files = embed.FS{} // none beside compose.yaml
	}
	t := &translation{document: d, files: files, lock: archive.Lock, platform: o.Platform, unpinned: o.AllowUnpinned}
	p, err := t.translate(ctx, name)
	if err != nil {
		return nil, err
	}
	p.Deployment, p.Application, p.Component, p.Generation = o.Deployment, o.Application, o.Component, o.Generation
	return p, nil
}

// Check validates a Compose file as far as that is possible without a device's values: a value that needs a variable without a
// default is left out. files are those of the archive; nil: they are not checked. The notices name settings that a device handles
// differently than the author may expect; they are not errors. They include those of p.
func Check(ctx context.Context, p *composefile.Project, files fs.FS) (notices []strict.Fault, err error) {
	d := documentOf(p.Clone(), environment(nil, checked))
	if err := d.prepare(true); err != nil {
		return nil, err
	}
	t := &translation{document: d, files: files, unpinned: true, publisher: true}
	if _, err := t.translate(ctx, checked); err != nil {
		return nil, err
	}
	return d.Notices(), nil
}

// checked is the name of a project without a known deployment.
const checked = "check"

// environment adds the variables that Compose defines.
func environment(env map[string]string, project string) map[string]string {
	out := maps.Clone(env)
	if out == nil {
		out = map[string]string{}
	}
	if _, ok := out[projectVariable]; !ok {
		out[projectVariable] = project
	}
	return out
}
