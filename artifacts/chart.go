package artifacts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Media types of Helm's charts. A chart has no artifact type of its own: the config's type stands for it.
const (
	TypeChartConfig     = "application/vnd.cncf.helm.config.v1+json"
	TypeChart           = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
	TypeChartProvenance = "application/vnd.cncf.helm.chart.provenance.v1.prov"
)

// ChartFile is the name of a chart's own description.
const ChartFile = "Chart.yaml"

// Chart is what Chart.yaml says, in the order in which Helm writes it.
type Chart struct {
	Name         string            `json:"name"`
	Home         string            `json:"home,omitempty"`
	Sources      []string          `json:"sources,omitempty"`
	Version      string            `json:"version"`
	Description  string            `json:"description,omitempty"`
	Keywords     []string          `json:"keywords,omitempty"`
	Maintainers  []ChartMaintainer `json:"maintainers,omitempty"`
	Icon         string            `json:"icon,omitempty"`
	APIVersion   string            `json:"apiVersion"`
	Condition    string            `json:"condition,omitempty"`
	Tags         string            `json:"tags,omitempty"`
	AppVersion   string            `json:"appVersion,omitempty"`
	Deprecated   bool              `json:"deprecated,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
	KubeVersion  string            `json:"kubeVersion,omitempty"`
	Dependencies []ChartDependency `json:"dependencies,omitempty"`
	Type         string            `json:"type,omitempty"`
}

// ChartMaintainer is who looks after a chart.
type ChartMaintainer struct {
	Name  string `json:"name,omitempty"`
	Email string `json:"email,omitempty"`
	URL   string `json:"url,omitempty"`
}

// ChartDependency is a chart that a chart needs; it has to be in its charts folder.
type ChartDependency struct {
	Name       string   `json:"name"`
	Version    string   `json:"version,omitempty"`
	Repository string   `json:"repository"`
	Condition  string   `json:"condition,omitempty"`
	Tags       []string `json:"tags,omitempty"`
	Alias      string   `json:"alias,omitempty"`
}

// Tag is the tag under which Helm looks for the chart: its version, "_" for "+".
func (c *Chart) Tag() string { return strings.ReplaceAll(c.Version, "+", "_") }

// chartName is a name that is Helm's and, as Margo wants it, a component's.
var chartName = strict.Expression(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

// ParseChart reads a Chart.yaml as strictly as our own documents: unknown members are faults. file names it in errors,
// which are a *strict.Error.
func ParseChart(file string, data []byte) (*Chart, error) {
	root, err := strict.YAML(file, data)
	if err != nil {
		return nil, err
	}
	c := &Chart{
		APIVersion: root.Need("apiVersion").Text(), Name: root.Need("name").Filled(), Version: root.Need("version").Filled(),
		Home: root.Get("home").Text(), Description: root.Get("description").Text(), Icon: root.Get("icon").Text(), Condition: root.Get("condition").Text(),
		Tags: root.Get("tags").Text(), AppVersion: scalar(root.Get("appVersion")), Deprecated: root.Get("deprecated").Bool(), KubeVersion: root.Get("kubeVersion").Text(),
		Type: root.Get("type").Text(), Annotations: root.Get("annotations").Texts(),
	}
	if n := root.Get("apiVersion"); n != nil && c.APIVersion != "v2" && n.Kind() == strict.String {
		n.Faultf("must be v2: charts of Helm 3 and 4")
	}
	if n := root.Get("name"); c.Name != "" && (len(c.Name) > 250 || !chartName.MatchString(c.Name)) {
		n.Faultf("must be lower-case letters, digits and dashes")
	}
	if n := root.Get("version"); c.Version != "" && !margo.ValidRevision(c.Tag()) {
		n.Faultf("must be a SemVer version like 1.4.0")
	}
	if n := root.Get("type"); n != nil && c.Type != "application" && n.Kind() == strict.String {
		n.Faultf("must be application: a library chart cannot be deployed")
	}
	for _, n := range root.Get("sources").Items() {
		c.Sources = append(c.Sources, n.Text())
	}
	for _, n := range root.Get("keywords").Items() {
		c.Keywords = append(c.Keywords, n.Text())
	}
	for _, n := range root.Get("maintainers").Items() {
		c.Maintainers = append(c.Maintainers, ChartMaintainer{n.Need("name").Text(), n.Get("email").Text(), n.Get("url").Text()})
		n.Close()
	}
	for _, n := range root.Get("dependencies").Items() {
		d := ChartDependency{
			Name: n.Need("name").Filled(), Version: n.Get("version").Text(), Repository: n.Get("repository").Text(),
			Condition: n.Get("condition").Text(), Alias: n.Get("alias").Text(),
		}
		for _, t := range n.Get("tags").Items() {
			d.Tags = append(d.Tags, t.Text())
		}
		_ = n.Get("import-values").Value() // Helm's business
		n.Close()
		c.Dependencies = append(c.Dependencies, d)
	}
	root.Close()
	return c, root.Err()
}

// scalar is a value that people write with and without quotes.
func scalar(n *strict.Node) string {
	switch n.Kind() {
	case strict.Number, strict.Bool:
		return fmt.Sprint(n.Value())
	}
	return n.Text()
}

// ChartOptions say what is known of a chart beside itself.
type ChartOptions struct {
	Provenance  []byte    // Helm's .prov file of a packed chart; nil: none
	Created     time.Time // zero: left out
	Annotations map[string]string
}

// PackChart makes of the directory that holds Chart.yaml what "helm push" would, so that "helm pull" finds it: everything in
// it but what .helmignore names. Same files, same digest.
func PackChart(fsys fs.FS, o ChartOptions) (*Artifact, *Chart, error) {
	rules, err := readIgnore(fsys)
	if err != nil {
		return nil, nil, fmt.Errorf("pack chart: %w", err)
	}
	entries, err := tree(fsys)
	if err != nil {
		return nil, nil, fmt.Errorf("pack chart: %w", err)
	}
	entries = slices.DeleteFunc(entries, rules.leavesOut)
	i := slices.IndexFunc(entries, func(e entry) bool { return e.name == ChartFile && !e.dir })
	if i < 0 {
		return nil, nil, fmt.Errorf("pack chart: there is no %s: %w", ChartFile, fault.ErrNotFound)
	}
	c, err := ParseChart(ChartFile, entries[i].data)
	if err != nil {
		return nil, nil, fmt.Errorf("pack chart: %w", err)
	}
	first := entries[i]
	entries = slices.Delete(entries, i, i+1)
	entries = slices.DeleteFunc(entries, func(e entry) bool { return e.dir }) // Helm's archives have none
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	entries = append([]entry{first}, entries...) // Helm reads it first
	for i := range entries {
		entries[i].name = c.Name + "/" + entries[i].name
	}
	data, err := writeTarball(entries, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("pack chart %s: %w", c.Name, err)
	}
	return PackChartArchive(data, o)
}

// PackChartArchive makes the artifact of a chart that "helm package" has packed; its bytes stay as they are, so that a
// provenance file stays right.
func PackChartArchive(data []byte, o ChartOptions) (*Artifact, *Chart, error) {
	c, err := ReadChart(data)
	if err != nil {
		return nil, nil, fmt.Errorf("pack chart: %w", err)
	}
	config, err := json.Marshal(c)
	if err != nil {
		return nil, nil, fmt.Errorf("pack chart %s: %w", c.Name, err)
	}
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: described(TypeChartConfig, config), Layers: []ocispec.Descriptor{described(TypeChart, data)},
		Annotations: c.annotations(o),
	}
	a := &Artifact{Blobs: []Blob{{m.Config, config}, {m.Layers[0], data}}}
	if o.Provenance != nil {
		m.Layers = append(m.Layers, described(TypeChartProvenance, o.Provenance))
		a.Blobs = append(a.Blobs, Blob{m.Layers[1], o.Provenance})
	}
	if a.Manifest, err = json.Marshal(m); err != nil {
		return nil, nil, fmt.Errorf("pack chart %s: %w", c.Name, err)
	}
	a.Descriptor = described(m.MediaType, a.Manifest)
	a.Descriptor.ArtifactType = TypeChartConfig
	return a, c, nil
}

func described(mediaType string, data []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
}

// annotations are those that Helm writes, but for the time.
func (c *Chart) annotations(o ChartOptions) map[string]string {
	out := map[string]string{}
	maps.Copy(out, c.Annotations)
	maps.Copy(out, o.Annotations)
	var authors []string
	for _, m := range c.Maintainers {
		if m.Email != "" {
			authors = append(authors, fmt.Sprintf("%s (%s)", m.Name, m.Email))
		} else {
			authors = append(authors, m.Name)
		}
	}
	own := map[string]string{
		ocispec.AnnotationTitle: c.Name, ocispec.AnnotationVersion: c.Version, ocispec.AnnotationDescription: c.Description,
		ocispec.AnnotationURL: c.Home, ocispec.AnnotationAuthors: strings.Join(authors, ", "),
	}
	if len(c.Sources) > 0 {
		own[ocispec.AnnotationSource] = c.Sources[0]
	}
	if !o.Created.IsZero() {
		own[ocispec.AnnotationCreated] = o.Created.UTC().Truncate(time.Second).Format(time.RFC3339)
	}
	for k, v := range own {
		if v != "" {
			out[k] = v
		}
	}
	return out
}

// ReadChart reads a packed chart: safe to extract, everything below the folder of its name, and every dependency in it.
func ReadChart(data []byte) (*Chart, error) {
	entries, err := readTarball(data)
	if err != nil {
		return nil, fmt.Errorf("read chart: %w", err)
	}
	i := slices.IndexFunc(entries, func(e entry) bool { return !e.dir && path.Base(e.name) == ChartFile && strings.Count(e.name, "/") == 1 })
	if i < 0 {
		return nil, fmt.Errorf("read chart: there is no NAME/%s in it: %w", ChartFile, fault.ErrInvalid)
	}
	c, err := ParseChart(entries[i].name, entries[i].data)
	if err != nil {
		return nil, fmt.Errorf("read chart: %w", err)
	}
	for _, e := range entries {
		if top, _, _ := strings.Cut(e.name, "/"); top != c.Name {
			return nil, fmt.Errorf("read chart %s: %s is not in the folder %s: %w", c.Name, e.name, c.Name, fault.ErrInvalid)
		}
	}
	var missing []error
	for _, d := range c.Dependencies {
		if !slices.ContainsFunc(entries, func(e entry) bool { return isSubchart(c.Name, d.Name, e.name) }) {
			missing = append(missing, fault.WithHint(fmt.Errorf("chart %s: the dependency %s is not in charts/: %w", c.Name, d.Name, fault.ErrInvalid),
				"helm dependency update brings it there: a device fetches nothing but the chart"))
		}
	}
	return c, errors.Join(missing...)
}

// isSubchart reports whether a file makes a dependency present: its folder's Chart.yaml, or its packed chart.
func isSubchart(chart, dependency, name string) bool {
	at, ok := strings.CutPrefix(name, chart+"/charts/")
	if !ok {
		return false
	}
	if at == dependency+"/"+ChartFile {
		return true
	}
	version, ok := strings.CutPrefix(at, dependency+"-")
	return ok && strings.HasSuffix(version, ".tgz") && version != "" && version[0] >= '0' && version[0] <= '9' && !strings.Contains(version, "/")
}

// ChartIndex is what the manifest of a Helm chart says.
type ChartIndex struct {
	Chart      ocispec.Descriptor
	Provenance *ocispec.Descriptor // nil: none
}

// OpenChart checks the manifest of a Helm chart.
func OpenChart(manifest []byte) (*ChartIndex, error) {
	o, err := ReadOutline(manifest)
	if err != nil {
		return nil, fmt.Errorf("open chart: %w", err)
	}
	if o.ArtifactType != TypeChartConfig || o.Config == nil {
		return nil, fmt.Errorf("open chart: artifact type %q, want %q: %w", o.ArtifactType, TypeChartConfig, fault.ErrUnsupported)
	}
	x := &ChartIndex{}
	for _, l := range o.Layers {
		switch l.MediaType {
		case TypeChart:
			if x.Chart.Digest != "" {
				return nil, fmt.Errorf("open chart: a second layer of type %s: %w", TypeChart, fault.ErrInvalid)
			}
			x.Chart = l
		case TypeChartProvenance:
			x.Provenance = &l
		}
	}
	if x.Chart.Digest.Validate() != nil {
		return nil, fmt.Errorf("open chart: has no layer of type %s: %w", TypeChart, fault.ErrUnsupported)
	}
	if err := bounded(x.Chart, MaxArchive); err != nil {
		return nil, fmt.Errorf("open chart: %w", err)
	}
	return x, nil
}

// Read fetches the chart and checks it.
func (x *ChartIndex) Read(blob func(ocispec.Descriptor) ([]byte, error)) (*Chart, error) {
	data, err := fetch(blob, x.Chart)
	if err != nil {
		return nil, fmt.Errorf("read chart: %w", err)
	}
	return ReadChart(data)
}
