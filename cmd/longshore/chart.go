package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/registry"
)

// chartSource reports whether the user named a Helm chart: a directory, or an archive of helm package.
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
	row(w, "packed", "chart %s %s (%s)", r.Name, r.Version, printable.Bytes(r.Bytes))
	rows(w, "attached", r.Attached)
	r.pushed.text(w)
}

// chartPush pushes a Helm chart in the format of helm push.
func (c *call) chartPush(args []string) error {
	for _, flag := range []string{"name", "env", "platform"} {
		if c.IsSet(flag) {
			return c.misused("--%s is for Compose projects, and %s is a Helm chart", flag, args[0])
		}
	}
	ref, err := registry.ParseReference(args[1])
	if err != nil {
		return err
	}
	a, chart, err := c.packChart(args[0])
	if err != nil {
		return err
	}
	if ref.Digest != "" || ref.Tag != "" && ref.Tag != chart.Tag() {
		return c.misused("%s: the tag must be the chart's version, %s", args[1], chart.Tag())
	}
	if lastElement(ref) != chart.Name {
		return c.misused("%s: the repository must end with the chart's name: HOST/PATH/%s", args[1], chart.Name)
	}
	ref = ref.WithTag(chart.Tag())
	attached, err := c.newAttacher()
	if err != nil {
		return err
	}
	repo, err := c.open(ref)
	if err != nil {
		return err
	}
	r := chartResult{Name: chart.Name, Version: chart.Version, Bytes: a.Blobs[1].Descriptor.Size}
	if r.pushed, r.Attached, err = attached.publish(repo, a, c.once(ref.Tag)); err != nil {
		return err
	}
	return c.show(r)
}

// packChart packs a directory, or reads an archive of helm package, with its provenance file if there is one.
func (c *call) packChart(from string) (*artifacts.Artifact, *artifacts.Chart, error) {
	created, err := c.created()
	if err != nil {
		return nil, nil, err
	}
	o := artifacts.ChartOptions{Annotations: c.annotations, Created: created}
	if strings.HasSuffix(from, ".tgz") {
		data, err := bounded.File(os.Open, from, artifacts.MaxArchive)
		if err != nil {
			return nil, nil, err
		}
		if o.Provenance, err = bounded.File(os.Open, from+".prov", artifacts.MaxDocument); err != nil && !errors.Is(err, os.ErrNotExist) {
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
	used, err := filesOf(dir.FS())
	if err != nil {
		return nil, nil, err
	}
	if o.Annotations, err = c.origin(false, sources{dir: from, files: used}); err != nil {
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
