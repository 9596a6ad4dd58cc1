package margo

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
	Catalog     Catalog
}

// Catalog is what a catalogue shows.
type Catalog struct {
	Application  CatalogApplication
	Author       []Author
	Organization []Organization
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

// Author is a person.
type Author struct {
	Name  string
	Email string
}

// Organization stands behind an application.
type Organization struct {
	Name string
	Site string
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
	Options      []string // nil: no closed set
}
