package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/registry"
)

// chartSource tells a Helm chart, a directory or what helm package made of one, from a Compose project.
func chartSource(from string) bool {
	if strings.HasSuffix(from, ".tgz") {
		return true
	}
	dir := os.DirFS(from)
	return isDirectory(from) && exists(dir, artifacts.ChartFile) && composefile.ProjectFiles(dir) == nil
}

type chartResult struct {
	pushed
	Name     string         `json:"name"`
	Version  string         `json:"version"`
	Bytes    int64          `json:"bytes"` // of the packed chart
	Attached []attachedInfo `json:"attached,omitempty"`
}

func (r chartResult) text(w io.Writer) {
	row(w, "packed", "chart %s %s (%s)", r.Name, r.Version, size(r.Bytes))
	for _, a := range r.Attached {
		a.text(w)
	}
	r.pushed.text(w)
}

// chartPush pushes a Helm chart as helm push does.
func (p *program) chartPush(c *cli.Context, args []string) error {
	for _, flag := range []string{"name", "env", "platform"} {
		if c.IsSet(flag) {
			return misused(c, "--%s is for Compose projects, and %s is a Helm chart", flag, args[0])
		}
	}
	ref, err := registry.ParseReference(args[1])
	if err != nil {
		return err
	}
	a, chart, err := p.packChart(c, args[0])
	if err != nil {
		return err
	}
	if ref.Digest != "" || ref.Tag != "" && ref.Tag != chart.Tag() {
		return misused(c, "%s: a chart's tag is its version, %s", args[1], chart.Tag())
	}
	if lastElement(ref) != chart.Name {
		return misused(c, "%s: helm finds a chart under its name: HOST/PATH/%s", args[1], chart.Name)
	}
	ref = ref.WithTag(chart.Tag())
	s, err := p.session(c, nil, false)
	if err != nil {
		return err
	}
	defer s.Close()
	attached, err := p.newAttacher(c, s.signer)
	if err != nil {
		return err
	}
	repo, err := s.Open(c.Context, ref)
	if err != nil {
		return err
	}
	r := chartResult{Name: chart.Name, Version: chart.Version, Bytes: a.Blobs[1].Descriptor.Size}
	if r.pushed, r.Attached, err = attached.publish(c, repo, a, once(c, ref.Tag)); err != nil {
		return err
	}
	return p.show(c, r)
}

// packChart packs a directory, or takes what helm package has packed, with its provenance file if there is one.
func (p *program) packChart(c *cli.Context, from string) (*artifacts.Artifact, *artifacts.Chart, error) {
	annotations, err := pairs("annotation", c.StringSlice("annotation"))
	if err != nil {
		return nil, nil, err
	}
	o := artifacts.ChartOptions{Annotations: annotations}
	if o.Created, err = p.created(); err != nil {
		return nil, nil, err
	}
	if strings.HasSuffix(from, ".tgz") {
		data, err := bounded.File(os.Open, from, artifacts.MaxArchive)
		if err != nil {
			return nil, nil, err
		}
		if o.Provenance, err = bounded.File(os.Open, from+".prov", artifacts.MaxDocument); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		if err != nil {
			return nil, nil, err
		}
		a, chart, err := artifacts.PackChartArchive(data, o)
		return a, chart, named(from, err)
	}
	dir, err := os.OpenRoot(from)
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	used, err := files(dir.FS())
	if err != nil {
		return nil, nil, err
	}
	if o.Annotations, err = p.origin(c, annotations, material{dir: from, files: used}); err != nil {
		return nil, nil, err
	}
	a, chart, err := artifacts.PackChart(dir.FS(), o)
	return a, chart, inDirectory(from, err)
}

// checkChart checks a chart and packs it, as component push does.
func (p *program) checkChart(name string) error {
	dir, err := os.OpenRoot(name)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	defer dir.Close()
	_, _, err = artifacts.PackChart(dir.FS(), artifacts.ChartOptions{})
	return named(name, inDirectory(name, err))
}
