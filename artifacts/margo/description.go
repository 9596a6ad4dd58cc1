package margo

import (
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// ApplicationDescription is margo.yaml: what an application is, how it can run and what can be set.
type ApplicationDescription struct {
	ID                 string
	Metadata           DescriptionMetadata
	DeploymentProfiles []DescribedProfile
	Parameters         map[string]Parameter
	Configuration      *Configuration
	Extensions         Extensions // for the fleet manager, never passed on to devices
}

// DescriptionMetadata names an application. Version is the OCI tag of its package.
type DescriptionMetadata struct {
	Name        string
	Description string
	Version     string
	Application CatalogApplication
}

// CatalogApplication describes the application. Icon, DescriptionFile, LicenseFile and ReleaseNotes are paths in the package.
type CatalogApplication struct {
	DescriptionFile string
	Icon            string
	LicenseFile     string
	ReleaseNotes    string
	Site            string
	Tagline         string
	Tags            []string
}

// DescribedProfile is one way to run the application.
type DescribedProfile struct {
	ID          string
	Description string
	DeploymentProfile
}

// Configuration groups the parameters for a person who sets them.
type Configuration struct {
	Sections []ConfigurationSection
	Schema   []ConfigurationSchema
}

// ConfigurationSection is a group of settings.
type ConfigurationSection struct {
	Name     string
	Settings []ConfigurationSetting
}

// ConfigurationSetting shows one parameter. Schema is a ConfigurationSchema's name.
type ConfigurationSetting struct {
	Parameter   string
	Name        string
	Description string
	Immutable   bool
	Schema      string
}

// ConfigurationSchema says which values a setting takes.
type ConfigurationSchema struct {
	Name         string
	DataType     string // string, integer, double, boolean, array[...]
	AllowEmpty   bool
	MinLength    *int64
	MaxLength    *int64
	RegexMatch   string
	MinValue     *float64
	MaxValue     *float64
	MinPrecision *int64
	MaxPrecision *int64
	Multiselect  bool
	Options      []any // nil: no closed set
}

var (
	emailFormat    = strict.Expression(`^.*@[a-z0-9.-]*$`)
	dataTypeFormat = strict.Expression(`^(string|integer|double|boolean|array\[(string|integer|double|boolean)\])$`)
)

// ParseApplicationDescription reads a margo.yaml of rc.3, or of the 1.0.0 line, which it normalises.
func ParseApplicationDescription(file string, data []byte) (*ApplicationDescription, error) {
	root, err := strict.YAML(file, data)
	if err != nil {
		return nil, err
	}
	d := &ApplicationDescription{}
	r := deploymentReader{open: true, old: root.Need("apiVersion").OneOf("v1", "margo.org/v1-alpha1") == "margo.org/v1-alpha1"}
	metadata := root.Need("metadata")
	id := root.Get("id")
	if r.old {
		root.Need("kind").OneOf("ApplicationDescription", "application")
		if id == nil {
			id = metadata.Get("id")
		}
	} else {
		root.Get("kind").OneOf("ApplicationDescription")
	}
	if id == nil {
		id = root.Need("id")
	}
	d.ID = id.Matching(applicationFormat, "an application id (lower-case letters, digits, dashes, at most 200)")
	d.Metadata = descriptionMetadata(metadata)
	compose := len(root.Get("deploymentProfiles").Items()) > 0
	var ids []*strict.Node
	for _, p := range root.Need("deploymentProfiles").Items() {
		dp := DescribedProfile{ID: p.Need("id").Filled(), Description: p.Get("description").Text(), DeploymentProfile: r.profile(p)}
		compose = compose && dp.Type == "compose"
		d.DeploymentProfiles = append(d.DeploymentProfiles, dp)
		ids = append(ids, p.Get("id"))
	}
	unique(ids, "profile")
	d.Parameters = parameters(root.Get("parameters"), compose, false)
	knownTargets(root.Get("parameters"), d.DeploymentProfiles)
	d.Configuration = configuration(root.Get("configuration"), d.Parameters)
	d.Extensions = extensions(root)
	return strict.Result(root, d)
}

func descriptionMetadata(n *strict.Node) DescriptionMetadata {
	m := DescriptionMetadata{
		Name:        n.Need("name").Filled(),
		Description: n.Get("description").Text(),
		Version:     n.Need("version").Matching(tagFormat, "a tag, and the package is tagged with it"),
	}
	catalog := n.Need("catalog")
	a := catalog.Get("application")
	m.Application = CatalogApplication{
		DescriptionFile: a.Get("descriptionFile").Text(),
		Icon:            a.Get("icon").Text(),
		LicenseFile:     a.Get("licenseFile").Text(),
		ReleaseNotes:    a.Get("releaseNotes").Text(),
		Site:            a.Get("site").Text(),
		Tagline:         a.Get("tagline").Text(),
		Tags:            a.Get("tags").Strings(),
	}
	for _, i := range catalog.Get("author").Items() {
		i.Get("name").Text() // authors and organizations are held against the format only
		i.Get("email").Matching(emailFormat, "an e-mail address")
	}
	for _, i := range catalog.Need("organization").Items() {
		i.Need("name").Filled()
		i.Get("site").Text()
	}
	return m
}

// knownTargets records targets that name no component of any profile, and values that are objects.
func knownTargets(n *strict.Node, profiles []DescribedProfile) {
	var names []string
	for _, p := range profiles {
		for _, c := range p.Components {
			names = append(names, c.Name)
		}
	}
	for _, m := range n.Members() {
		if v := m.Get("value"); v.Kind() == strict.Object {
			v.Faultf("must be a string, a number, a boolean or a list of them, is an object")
		}
		for _, t := range m.Get("targets").Items() {
			for _, c := range t.Get("components").Items() {
				if c.Kind() == strict.String && !slices.Contains(names, c.Text()) {
					c.Faultf("no profile has a component %q (there are: %s)", c.Text(), strings.Join(names, ", "))
				}
			}
		}
	}
}

func configuration(n *strict.Node, parameters map[string]Parameter) *Configuration {
	if n == nil {
		return nil
	}
	c := &Configuration{}
	var names []string
	for _, s := range n.Get("schema").Items() {
		schema := configurationSchema(s)
		c.Schema = append(c.Schema, schema)
		names = append(names, schema.Name)
	}
	for _, s := range n.Get("sections").Items() {
		section := ConfigurationSection{Name: s.Need("name").Filled()}
		for _, i := range s.Need("settings").Items() {
			parameter, schema := i.Need("parameter"), i.Need("schema")
			set := ConfigurationSetting{
				Parameter:   parameter.Filled(),
				Name:        i.Need("name").Filled(),
				Description: i.Get("description").Text(),
				Immutable:   i.Get("immutable").Bool(),
				Schema:      schema.Filled(),
			}
			if _, ok := parameters[set.Parameter]; !ok && set.Parameter != "" {
				parameter.Faultf("there is no parameter %q", set.Parameter)
			}
			if set.Schema != "" && !slices.Contains(names, set.Schema) {
				schema.Faultf("there is no schema %q", set.Schema)
			}
			section.Settings = append(section.Settings, set)
		}
		c.Sections = append(c.Sections, section)
	}
	return c
}

func configurationSchema(n *strict.Node) ConfigurationSchema {
	s := ConfigurationSchema{
		Name:         n.Need("name").Filled(),
		DataType:     n.Need("dataType").Matching(dataTypeFormat, "string, integer, double, boolean or array[...] of one of them"),
		MinLength:    whole(n.Get("minLength")),
		MaxLength:    whole(n.Get("maxLength")),
		RegexMatch:   n.Get("regexMatch").Text(),
		MinPrecision: whole(n.Get("minPrecision")),
		MaxPrecision: whole(n.Get("maxPrecision")),
		Multiselect:  n.Get("multiselect").Bool(),
	}
	if v := n.Get("minValue"); v != nil {
		s.MinValue = new(v.Float64())
	}
	if v := n.Get("maxValue"); v != nil {
		s.MaxValue = new(v.Float64())
	}
	for _, k := range []string{"allowEmpty", "allowNoValue"} { // the second is its older name
		if v := n.Get(k); v != nil {
			s.AllowEmpty = v.Bool()
		}
	}
	for _, o := range n.Get("options").Items() {
		s.Options = append(s.Options, o.Value())
	}
	return s
}

func whole(n *strict.Node) *int64 {
	if n == nil {
		return nil
	}
	return new(n.Int64())
}
