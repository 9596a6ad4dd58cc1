package compose

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"

	"github.com/distribution/reference"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// File is the name of the Compose file in an archive.
const File = artifacts.ComposeFile

// projectVariable is what Compose itself defines for interpolation.
const projectVariable = "COMPOSE_PROJECT_NAME"

// Options say for what and with which values a Compose file is read.
type Options struct {
	Deployment    string            // Margo deployment id
	Application   string            // name of the deployment, for people
	Component     string            // Margo component name
	Generation    uint64            // of the state that asks for it
	Environment   map[string]string // all that interpolation knows: the deployment's parameters
	Platform      string            // of this device, "linux/arm64"; "": not checked
	AllowUnpinned bool              // images without a digest pass, with an empty Image.Digest
}

// Load translates the archive's compose.yaml. Its errors are a strict.Error with every fault found, a fault.ErrUnfit
// when an image is not made for o.Platform, or the context's.
func Load(ctx context.Context, archive *artifacts.Archive, o Options) (*workload.Project, error) {
	name := workload.ProjectName(o.Deployment, o.Component)
	d, err := open(path.Join(archive.Root, File), archive.Compose, environment(o.Environment, name))
	if err != nil {
		return nil, err
	}
	files := archive.FS
	if files == nil {
		files = noFiles{}
	}
	t := &translation{document: d, files: files, lock: archive.Lock, platform: o.Platform, unpinned: o.AllowUnpinned}
	p, err := t.translate(ctx, name)
	if err != nil {
		return nil, err
	}
	p.Deployment, p.Application, p.Component, p.Generation = o.Deployment, o.Application, o.Component, o.Generation
	return p, nil
}

// images is [Packed.Images] of a document. Other parts of it are not looked at; see [Check].
func images(d *document) ([]string, error) {
	if !d.hasServices() {
		return nil, d.err()
	}
	services := d.root.get("services")
	i := &interpolation{env: d.env, unset: map[*node][]string{}}
	d.unset = i.unset
	var out []string
	for _, n := range d.imageNodes() {
		before := len(i.faults)
		if i.walk(n); len(i.faults) > before {
			continue
		}
		if d.checkImage(n) && !slices.Contains(out, n.str()) {
			out = append(out, n.str())
		}
	}
	d.faults = append(d.faults, i.faults...)
	for _, name := range services.keys {
		if services.get(name, "image") == nil {
			d.fault(services.fields[name], "every service names its image with \"image:\"", "there is no image")
		}
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return out, nil
}

// imageNodes are all image references: of services, of their init containers, and of images that are mounted.
func (d *document) imageNodes() []*node {
	var out []*node
	add := func(n *node) {
		if n != nil {
			out = append(out, n)
		}
	}
	services := d.root.get("services")
	for _, name := range services.keys {
		s := services.fields[name]
		containers := []*node{s}
		if inits := s.get("pre_start"); inits != nil {
			containers = append(containers, inits.items...)
		}
		for _, c := range containers {
			add(c.get("image"))
			if volumes := c.get("volumes"); volumes != nil {
				for _, v := range volumes.items {
					if v.get("type").str() == "image" {
						add(v.get("source"))
					}
				}
			}
		}
	}
	return out
}

func (d *document) checkImage(n *node) bool {
	switch {
	case n.isNull() || n.kind != scalarKind:
		d.fault(n, "", "must be an image reference")
		return false
	case len(d.unset[n]) > 0:
		d.fault(n, fmt.Sprintf("write a default, ${%s:-…}, or give the value when the component is pushed", d.unset[n][0]),
			"variable %s has no value here, and a released image must be known", d.unset[n][0])
		return false
	}
	named, err := reference.ParseNormalizedNamed(n.str())
	if err != nil {
		d.fault(n, "", "%q: %v", n.str(), err)
		return false
	}
	return d.checkPin(n, named)
}

// Check validates a Compose file as far as that is possible without a device's values: what needs a variable that has
// no default is left out. fsys is the archive's directory and may be nil; then its files are not looked at. The notices
// say what a device honours in another way than the author may expect; they refuse nothing.
func Check(ctx context.Context, file string, compose []byte, fsys fs.FS) (notices []strict.Fault, err error) {
	d := &document{file: file, env: environment(nil, checked), cut: map[string]bool{}}
	d.root, d.faults = parse(compose)
	if len(d.faults) > 0 {
		return nil, d.err()
	}
	return d.check(ctx, fsys)
}

// checked is the name of a project whose deployment is not known.
const checked = "check"

func (d *document) check(ctx context.Context, fsys fs.FS) ([]strict.Fault, error) {
	if err := d.prepare(true); err != nil {
		return nil, err
	}
	t := &translation{document: d, files: fsys, unpinned: true, every: true}
	if _, err := t.translate(ctx, checked); err != nil {
		return nil, err
	}
	return d.notices, nil
}

// environment adds what Compose defines itself.
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

// noFiles is an archive with nothing beside compose.yaml.
type noFiles struct{}

func (noFiles) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}
