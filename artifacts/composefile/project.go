package composefile

import (
	"fmt"
	"slices"

	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Name is the name of the Compose file in an archive.
const Name = artifacts.ComposeFile

// Project is a project as one Compose file.
type Project struct {
	*Report
	Root *Node
}

// Parse reads a Compose file; file is its name in errors. Errors are a strict.Error.
func Parse(file string, data []byte) (*Project, error) {
	p := &Project{Report: &Report{File: file}}
	var faults []strict.Fault
	p.Root, faults = parse(data)
	p.Add(faults...)
	return p, p.Err()
}

// Clone returns a copy with its own tree and report.
func (p *Project) Clone() *Project {
	return &Project{Report: &Report{File: p.File, notices: slices.Clone(p.notices)}, Root: copyOf(p.Root, "")}
}

// HasServices reports whether there are services; it is a fault when there are none.
func (p *Project) HasServices() bool {
	services := p.Root.Get("services")
	switch {
	case services.IsNull() || services.Kind == Map && len(services.Keys) == 0:
		p.Fault(p.Root, "", "there are no services")
	case services.Kind != Map:
		p.Fault(services, "write each service as a key with its fields below it", "must be a mapping")
	default:
		return true
	}
	return false
}

// Images lists the image references of the project with the variables of env filled in, in order of appearance, each once. A
// reference that needs a variable that env lacks is a fault: what is released names its images.
func (p *Project) Images(env map[string]string) ([]string, error) {
	return p.Clone().images(env)
}

func (p *Project) images(env map[string]string) ([]string, error) {
	if !p.HasServices() {
		return nil, p.Err()
	}
	services := p.Root.Get("services")
	i := &Interpolation{Env: env, Unset: map[*Node][]string{}}
	var out []string
	for _, n := range p.imageNodes() {
		before := len(i.Faults)
		if i.Walk(n); len(i.Faults) > before {
			continue
		}
		if p.checkImage(n, i.Unset[n]) && !slices.Contains(out, n.Text()) {
			out = append(out, n.Text())
		}
	}
	p.Add(i.Faults...)
	for _, name := range services.Keys {
		if services.Get(name, "image") == nil {
			p.Fault(services.Fields[name], "every service names its image with \"image:\"", "there is no image")
		}
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	return out, nil
}

// imageNodes are all image references: of services, of their init containers, and of images that are mounted.
func (p *Project) imageNodes() []*Node {
	var out []*Node
	add := func(n *Node) {
		if n != nil {
			out = append(out, n)
		}
	}
	Each(p.Root.Get("services"), func(_ string, s *Node) {
		containers := []*Node{s}
		if inits := s.Get("pre_start"); inits != nil {
			containers = append(containers, inits.Items...)
		}
		for _, c := range containers {
			add(c.Get("image"))
			if volumes := c.Get("volumes"); volumes != nil {
				for _, v := range volumes.Items {
					if v.Get("type").Text() == "image" {
						add(v.Get("source"))
					}
				}
			}
		}
	})
	return out
}

func (p *Project) checkImage(n *Node, unset []string) bool {
	switch {
	case n.IsNull() || n.Kind != Scalar:
		p.Fault(n, "", "must be an image reference")
		return false
	case len(unset) > 0:
		p.Fault(n, fmt.Sprintf("write a default, ${%s:-…}, or give the value when the component is pushed", unset[0]),
			"variable %s has no value here, and a released image must be known", unset[0])
		return false
	}
	named, err := reference.ParseNormalizedNamed(n.Text())
	if err != nil {
		p.Fault(n, "", "%q: %v", n.Text(), err)
		return false
	}
	return p.CheckPin(n, named)
}

// CheckPin refuses a digest that not all of registries, the lock and the agent support.
func (r *Report) CheckPin(n *Node, named reference.Named) bool {
	digested, ok := named.(reference.Digested)
	if !ok || digested.Digest().Algorithm() == digest.SHA256 {
		return true
	}
	r.Fault(n, "pin the image by its sha256 digest", "images pinned by %s are not supported on a device", digested.Digest().Algorithm())
	return false
}
